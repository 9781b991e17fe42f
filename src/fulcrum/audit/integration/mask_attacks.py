"""Whether masks can be told: an attack on the keys and masks of a silo, by the collisions of many.

A mask of 128 bits and more never comes twice. Masks that are made of a short seed do: among n masks of a seed of b bits
n^2 / 2^(b + 1) pairs are alike, and whoever sees two that are can find the seed of any by trying all. So a silo draws
and expands many here, by the very functions that its masked inputs are made with (`fulcrum.core.masking.masks`), and
every session, name and partner is the same each time, so that nothing but what it draws tells them apart.

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
"""Of each kind: seeds of 32 bits then collide in all but 3 audits of 100,000, seeds of 36 bits in half of all."""

MASKS_A_TRIAL = 15
"""Masks of each kind for every replay that is asked for."""

KEYS, OWN, PAIRS = "keys of pairs", "its own", "of pairs"
"""Private keys that a silo agrees on secrets with, masks of its own, and masks that it shares with another."""

_WORDS = 2  # of 64 bits that are looked at of every mask
_AT_ONCE = 5_000


def mask_probes(
    plan: Plan,
    *,
    masks: int = MOST_MASKS,
    kinds: Sequence[str] = (KEYS, OWN, PAIRS),
    on_masks: Callable[[int, int], None] | None = None,
) -> list[Probe]:
    """Returns whether any two masks, or any two keys that masks are made of, are alike.

    Args:
        plan: With masked sums.
        masks: How many of each kind.
        kinds: What is attacked.
        on_masks: Called with how many are made, and of how many.
    """
    one, other = plan.federation.silo_name(0), "another silo"
    session = Session(plan_digest=plan.digest, group="audit", round_number=1, attempt=1, basis="audit")
    told = hashlib.sha256(b"audit").digest()
    making: dict[str, Callable[[int], bytes]] = {
        KEYS: lambda _: silos_masks.new_private_key(),
        OWN: lambda _: _mask(masking_silo.own_key(session, silos_masks.new_seed(), one)),
        PAIRS: lambda number: _mask(masking_silo.pair_key(session, _secret(number), one, other, told)),
    }
    found = []
    for place, kind in enumerate(kinds):
        made = making[kind]
        drawn: list[bytes] = []
        for start in range(0, masks, _AT_ONCE):
            drawn += [made(number) for number in range(start, min(start + _AT_ONCE, masks))]
            if on_masks is not None:
                on_masks(place * masks + len(drawn), len(kinds) * masks)
        found.append(_probe(kind, drawn))
    return found


def alike(values: Sequence[bytes]) -> int:
    """Returns how many pairs of values are alike."""
    return sum(count * (count - 1) // 2 for count in Counter(values).values())


def seed_bits(drawn: int, pairs: int) -> float:
    """Returns how many bits a seed has of which so many draws gave so many pairs alike."""
    return math.log2(drawn * (drawn - 1) / 2 / pairs)


def _mask(key: bytes) -> bytes:
    """Returns how a mask begins."""
    vector = np.zeros(_WORDS, dtype=np.uint64)
    silos_masks.add_mask(vector, key)
    return vector.tobytes()


def _secret(number: int) -> bytes:
    """Returns a secret of its own for every pair: keys of X25519 that differ agree on secrets that do."""
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
