"""A silo's release, encrypted to its region and signed by the silo: whoever carries it can neither read nor change it.

A plan carries an Ed25519 key for every silo and an X25519 key for every region (`fulcrum keygen`, `--kind sealing`).
An envelope is a header, which names format, plan, silo, region and round, then the ciphertext:

- HPKE (RFC 9180, base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM) encrypts the release to the region's
  key, each time with a fresh ephemeral key, and with format, plan, silo, region and round as its `info`: under any
  other of these the ciphertext does not open;
- the silo signs format, plan, silo, region, round and the SHA-256 of the ciphertext.

A silo that releases nothing in a round sends a decline, which names plan, silo, region and round and is signed. Nobody
else can decline for it, and so nobody can have a round closed without it.

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
>>> made = plan(Federation.from_sizes({"south": {"lyon": 100}}), rounds=1, epsilon=1.0, keys=keys)
>>> sent = release(np.ones(3), made, "lyon", 1, noise=SeededNoise(seed=0))
>>> sealed = seal(sent, made, f"{folder.name}/lyon")
>>> unseal(sealed, made, "south", f"{folder.name}/south").to_bytes() == sent.to_bytes()
True
>>> folder.cleanup()

What it does not hide: who sends to whom, in which round, and how much. Whoever steals a region's key later reads what
was recorded before, since the key of a region lasts as long as the plan; what it reads is noised.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.core.messages.framing import framed
from fulcrum.core.messages.membership import region_of, step_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.keys import load_private_key, plan_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError, MissingExtraError
from fulcrum.primitives import primitives

FORMAT = "fulcrum.sealed/2"
"""The format of an envelope. The first was no HPKE, and is not opened."""

DECLINED = "fulcrum.declined/1"
"""The format of a decline."""


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a message is bound to."""

    plan_digest: str
    silo: str
    region: str
    round_number: int

    def bound(self, kind: str, *more: bytes) -> bytes:
        """Returns what encrypts or is signed; the kind keeps a decline from being taken for part of a release.

        It cannot be taken for the message of a plan's signature, which is a text.
        """
        return msgspec.msgpack.encode((kind, self.plan_digest, self.silo, self.region, self.round_number, *more))


class Envelope(Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    """What stands before the ciphertext."""

    signature: bytes


class Decline(Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=DECLINED):
    """A signed statement that a silo releases nothing in a round."""

    signature: bytes


class Sealer:
    """Seals what one silo releases; its key is read, and held against the plan, once.

    Args:
        plan: The plan that the silo releases under.
        silo: Whose releases are sealed.
        key: The silo's private Ed25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, silo: str, key: str | Path) -> None:
        self._plan, self._silo = plan, silo
        self._region = region_of(plan, silo)
        self._step = step_of(plan, self._region)
        self._private = load_private_key(plan, silo, key, "signing")
        self._to = plan_key(plan, self._region, "sealing")

    def seal(self, release: Release) -> bytes:
        """Returns the envelope to send; sealed again, the same release has other bytes, which open to the same."""
        expected = (self._plan.digest, self._silo, self._region, self._step)
        if (release.plan_digest, release.silo, release.region, release.step) != expected:
            raise ExchangeError("seal.release-foreign", silo=self._silo)
        context = self._context(release.round_number)
        try:
            sealed = sealing_suite().encrypt(release.to_bytes(), self._to, info=context.bound(FORMAT))
        except ValueError:
            raise ExchangeError("seal.key-low-order", region=self._region) from None
        except OverflowError:
            raise ExchangeError("seal.release-too-large", silo=self._silo) from None
        signature = self._private.sign(context.bound(FORMAT, ciphertext_digest(sealed)))
        return framed(Envelope(**msgspec.structs.asdict(context), signature=signature), sealed)

    def decline(self, round_number: int) -> bytes:
        """Returns a signed statement that the silo releases nothing in a round; it does not say why."""
        context = self._context(round_number)
        signature = self._private.sign(context.bound(DECLINED))
        return msgspec.msgpack.encode(Decline(**msgspec.structs.asdict(context), signature=signature))

    def _context(self, round_number: int) -> Context:
        check_round(self._plan, self._silo, round_number)
        where = {"plan_digest": self._plan.digest, "silo": self._silo, "region": self._region}
        return Context(**where, round_number=round_number)


def seal(release: Release, plan: VerifiedPlan, key: str | Path) -> bytes:
    """Returns a release sealed to its region, signed with the silo's private Ed25519 key file; see `Sealer`."""
    return Sealer(plan, release.silo, key).seal(release)


def sealing_suite() -> Any:
    """Returns the suite that releases are sealed with."""
    suite = primitives("sealed releases need").hpke
    if suite is None:
        raise MissingExtraError("extra.cryptography-old")
    return suite


def ciphertext_digest(sealed: bytes | memoryview) -> bytes:
    """What stands for a ciphertext in what is signed: Ed25519 takes one message, and this copies nothing."""
    return hashlib.sha256(sealed).digest()


def check_round(plan: VerifiedPlan, silo: str, round_number: int) -> None:
    """Refuses a round that the plan does not have."""
    if not 1 <= round_number <= plan.rounds:
        raise ExchangeError("release.round-range", silo=silo, round_number=round_number, rounds=plan.rounds)
