"""A silo's release, encrypted to the region and signed by the silo: no carrier can read or change a sealed release.

A plan carries an Ed25519 key for every silo and an X25519 key for every region (`fulcrum keygen`, `--kind sealing`).
An envelope is a header with format, plan, silo, region and round, then the ciphertext:

- HPKE (RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM) encrypts the release to the region's
  key, with a fresh ephemeral key for every envelope, and with format, plan, silo, region and round as `info`: with any
  other format, plan, silo, region or round the ciphertext does not open;
- the silo signs format, plan, silo, region, round and the SHA-256 of the ciphertext.

A silo without a release in a round sends a decline: a signed message with plan, silo, region and round. No other party
can decline for the silo, so no other party can have a round closed without the silo.

>>> import tempfile
>>> import numpy as np
>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.core.noise.noise_sources import SeededNoise
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.core.silo.releasing import release
>>> from fulcrum.aggregation.release_opening import unseal
>>> from fulcrum.planning.files.plan_issue import new_key
>>> folder = tempfile.TemporaryDirectory()
>>> keys = {"lyon": new_key(f"{folder.name}/lyon"), "south": new_key(f"{folder.name}/south", "sealing")}
>>> one_round = plan(Federation.from_sizes({"south": {"lyon": 100}}), rounds=1, epsilon=1.0, keys=keys)
>>> sent = release(np.ones(3), one_round, "lyon", 1, noise=SeededNoise(seed=0))
>>> sealed = seal(sent, one_round, f"{folder.name}/lyon")
>>> unseal(sealed, one_round, "south", f"{folder.name}/south").to_bytes() == sent.to_bytes()
True
>>> folder.cleanup()

Limits:

- sender, receiver, round and length of an envelope stay visible;
- there is no forward secrecy: a region's key lasts as long as the plan. A thief of the key can read every envelope
  that was recorded before the theft; the releases inside have their noise.
"""

import hashlib
from pathlib import Path

import msgspec

from fulcrum.core.messages.framing import frame
from fulcrum.core.messages.membership import region_of, step_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing_context import Context, sealing_suite
from fulcrum.core.plan.keys import load_private_key, plan_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError

FORMAT = "fulcrum.sealed/2"
"""The format of an envelope. Format 1 was not HPKE; envelopes of format 1 are refused."""

DECLINED = "fulcrum.declined/1"
"""The format of a decline."""


class Envelope(Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    """The header of a sealed release: a `Context` with the silo's Ed25519 signature; the ciphertext follows."""

    signature: bytes


class Decline(Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=DECLINED):
    """A statement that a silo sends no release in a round: a `Context` with the silo's Ed25519 signature."""

    signature: bytes


class Sealer:
    """Seals the releases of one silo; the silo's key is read, and compared with the plan, once.

    Args:
        plan: The plan of the releases.
        silo: The silo.
        key: The silo's private Ed25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, silo: str, key: str | Path) -> None:
        self._plan, self._silo = plan, silo
        self._region = region_of(plan, silo)
        self._step = step_of(plan, self._region)
        self._private = load_private_key(plan, silo, key, "signing")
        self._to = plan_key(plan, self._region, "sealing")

    def seal(self, release: Release) -> bytes:
        """Returns the envelope to send.

        A second envelope of the same release has other bytes, because the ephemeral key is fresh, and opens to the same
        release.

        Raises:
            ExchangeError: The release is of another plan, silo, region, step or round than the sealer's; the region's
                key is of low order, so that everybody could compute the shared secret; the release is too large.
        """
        expected = (self._plan.digest, self._silo, self._region, self._step)
        if (release.plan_digest, release.silo, release.region, release.step) != expected:
            raise ExchangeError("seal.release-foreign", silo=self._silo)
        context = self._context(release.round_number)
        try:
            sealed = sealing_suite().encrypt(release.to_bytes(), self._to, info=context.binding(FORMAT))
        except ValueError:
            raise ExchangeError("seal.key-low-order", region=self._region) from None
        except OverflowError:
            raise ExchangeError("seal.release-too-large", silo=self._silo) from None
        signature = self._private.sign(context.binding(FORMAT, ciphertext_digest(sealed)))
        return frame(Envelope(**msgspec.structs.asdict(context), signature=signature), sealed)

    def decline(self, round_number: int) -> bytes:
        """Returns a signed statement that the silo sends no release in a round; the statement has no reason."""
        context = self._context(round_number)
        signature = self._private.sign(context.binding(DECLINED))
        return msgspec.msgpack.encode(Decline(**msgspec.structs.asdict(context), signature=signature))

    def _context(self, round_number: int) -> Context:
        check_round(self._plan, self._silo, round_number)
        where = {"plan_digest": self._plan.digest, "silo": self._silo, "region": self._region}
        return Context(**where, round_number=round_number)


def seal(release: Release, plan: VerifiedPlan, key: str | Path) -> bytes:
    """Returns a release, sealed to the region and signed with the silo's private Ed25519 key file; see `Sealer`."""
    return Sealer(plan, release.silo, key).seal(release)


def ciphertext_digest(sealed: bytes | memoryview) -> bytes:
    """Returns the SHA-256 of a ciphertext: Ed25519 signs one message, and a digest saves a copy of the ciphertext."""
    return hashlib.sha256(sealed).digest()


def check_round(plan: VerifiedPlan, silo: str, round_number: int) -> None:
    """Raises `ExchangeError` for a round outside of the plan."""
    if not 1 <= round_number <= plan.rounds:
        raise ExchangeError("release.round-range", silo=silo, round_number=round_number, rounds=plan.rounds)
