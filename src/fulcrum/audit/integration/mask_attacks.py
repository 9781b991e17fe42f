"""An attack on the keys and masks of a silo, by collisions among many.

A mask of 128 bits and more never repeats. Masks from a short seed do: among n masks of a seed of b bits, n^2 / 2^(b +
1) pairs are alike, and an attacker who sees a pair can find the seed of any mask by trying all seeds. The audit draws
and expands many masks here, by the functions that make a silo's masked inputs (`fulcrum.core.masking.masks`). Session,
name and partner are the same each time, so that the draws alone differ.

>>> alike([b"a", b"b", b"a", b"a"]), round(seed_bits(300_000, 10))
(3, 32)
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, Probe
from fulcrum.core.masking import masks as silos_masks
from fulcrum.core.masking import member_protocol as masking_silo
from fulcrum.core.masking.masking_messages import Session
from fulcrum.planning.plan import Plan

MOST_MASKS = 300_000
"""Masks of a kind: seeds of 32 bits then collide in all but 3 audits of 100,000, seeds of 36 bits in half of all."""

MASKS_A_TRIAL = 15
"""Masks of a kind for every replay of a game."""

KEYS, OWN, PAIRS = "keys of pairs", "its own", "of pairs"
"""Private keys for secrets of pairs, a silo's own masks, and masks that two silos share."""

_WORDS = 2  # of 64 bits: the compared part of a mask
_AT_ONCE = 5_000


def mask_probes(
    plan: Plan,
    *,
    masks: int = MOST_MASKS,
    kinds: Sequence[str] = (KEYS, OWN, PAIRS),
    on_masks: Callable[[int, int], None] | None = None,
) -> list[Probe]:
    """Returns, by kind, the verdict on masks: no two masks, and no two keys of masks, may be alike.

    Args:
        plan: A plan with masked sums.
        masks: Number of masks of a kind.
        kinds: The kinds under attack.
        on_masks: Called with the number of masks made, and the total number.
    """
    silo, other = plan.federation.silo_name(0), "another silo"
    session = Session(plan_digest=plan.digest, group="audit", round_number=1, attempt=1, input_digest="audit")
    transcript = hashlib.sha256(b"audit").digest()
    making: dict[str, Callable[[int], bytes]] = {
        KEYS: lambda _: silos_masks.new_private_key(),
        OWN: lambda _: _mask(masking_silo.self_mask_key(session, silos_masks.new_seed(), silo)),
        PAIRS: lambda number: _mask(masking_silo.pair_key(session, _secret(number), silo, other, transcript)),
    }
    probes = []
    for place, kind in enumerate(kinds):
        make = making[kind]
        drawn: list[bytes] = []
        for start in range(0, masks, _AT_ONCE):
            drawn += [make(number) for number in range(start, min(start + _AT_ONCE, masks))]
            if on_masks is not None:
                on_masks(place * masks + len(drawn), len(kinds) * masks)
        probes.append(_probe(kind, drawn))
    return probes


def alike(values: Sequence[bytes]) -> int:
    """Returns the number of pairs of equal values."""
    return sum(count * (count - 1) // 2 for count in Counter(values).values())


def seed_bits(drawn: int, pairs: int) -> float:
    """Returns the length in bits of a seed, from the number of draws and of equal pairs."""
    return math.log2(drawn * (drawn - 1) / 2 / pairs)


def _mask(key: bytes) -> bytes:
    """Returns the first bytes of the mask that silos derive from `key`."""
    vector = np.zeros(_WORDS, dtype=np.uint64)
    silos_masks.add_mask(vector, key)
    return vector.tobytes()


def _secret(number: int) -> bytes:
    """Returns a distinct secret for every pair: distinct keys of X25519 agree on distinct secrets."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def _probe(kind: str, drawn: Sequence[bytes]) -> Probe:
    pairs, reasons = alike(drawn), []
    if pairs:
        bits = seed_bits(len(drawn), pairs)
        reasons.append(
            f"{pairs:,} pairs of {len(drawn):,} are alike, as of a seed of {bits:.0f} bits: whoever tries all of these "
            "takes the masks off, and sees single releases."
        )
    verdict = VIOLATED if pairs else CONSISTENT
    return Probe(of="masks", node=kind, values=len(drawn), noise_ratio=None, verdict=verdict, reasons=reasons)
