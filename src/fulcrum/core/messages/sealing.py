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
>>> from fulcrum.core.plan.signatures import new_key
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

from fulcrum.core.messages.framing import decoded, framed, unframed
from fulcrum.core.messages.membership import members_of, region_of, step_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.signatures import private_key, public_key, public_text
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError, MissingExtraError, SignatureError
from fulcrum.primitives import primitives

FORMAT = "fulcrum.sealed/2"
"""The format of an envelope. The first was no HPKE, and is not opened."""

DECLINED = "fulcrum.declined/1"
"""The format of a decline."""


class _Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class _Envelope(_Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    """What stands before the ciphertext."""

    signature: bytes


class _Decline(_Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=DECLINED):
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
        self._private = own_key(plan, silo, key, "signing")
        self._to = plan_key(plan, self._region, "sealing")

    def seal(self, release: Release) -> bytes:
        """Returns the envelope to send; sealed again, the same release has other bytes, which open to the same."""
        expected = (self._plan.digest, self._silo, self._region, self._step)
        if (release.plan_digest, release.silo, release.region, release.step) != expected:
            raise ExchangeError(f"the release is not one of silo {self._silo!r} under this plan. Nothing is sealed")
        context = self._context(release.round_number)
        try:
            sealed = _hpke().encrypt(release.to_bytes(), self._to, info=context.bound(FORMAT))
        except ValueError:
            raise ExchangeError(f"the plan's key of region {self._region!r} is of low order. Make another") from None
        except OverflowError:
            raise ExchangeError(f"the release of silo {self._silo!r} is too large to be sealed") from None
        signature = self._private.sign(context.bound(FORMAT, _sha256(sealed)))
        return framed(_Envelope(**msgspec.structs.asdict(context), signature=signature), sealed)

    def decline(self, round_number: int) -> bytes:
        """Returns a signed statement that the silo releases nothing in a round; it does not say why."""
        context = self._context(round_number)
        signature = self._private.sign(context.bound(DECLINED))
        return msgspec.msgpack.encode(_Decline(**msgspec.structs.asdict(context), signature=signature))

    def _context(self, round_number: int) -> _Context:
        _check_round(self._plan, self._silo, round_number)
        where = {"plan_digest": self._plan.digest, "silo": self._silo, "region": self._region}
        return _Context(**where, round_number=round_number)


class Opener:
    """Opens what the silos of one region seal; keys are read, and held against the plan, once.

    Args:
        plan: The plan that the silos release under.
        region: To whom the releases are sealed.
        key: The region's private X25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, region: str, key: str | Path) -> None:
        self._plan, self._region = plan, region
        members = members_of(plan, region)
        self._step = step_of(plan, region)
        self._private = own_key(plan, region, key, "sealing")
        self._from = {silo: plan_key(plan, silo, "signing") for silo in members}

    def open(self, data: bytes) -> Release:
        """Returns the release in an envelope; anything but a whole one from a silo of the region is refused."""
        envelope, sealed = unframed(data, _Envelope, f"a sealed release of format {FORMAT}")
        self._check_context(envelope)
        whose = f"the release of silo {envelope.silo!r} for round {envelope.round_number}"
        self._check_signature(envelope, envelope.bound(FORMAT, _sha256(sealed)), f"{whose} is")
        try:
            plain = _hpke().decrypt(sealed, self._private, info=envelope.bound(FORMAT))
        except (primitives("sealed releases need").invalid_tag, ValueError, OverflowError):
            raise ExchangeError(f"{whose} does not open with the key of region {self._region!r}") from None
        try:
            release = Release.from_bytes(plain)
        except ExchangeError as error:
            raise ExchangeError(f"{whose} opens, but does not hold a release: {error}") from None
        if any(getattr(release, name) != getattr(envelope, name) for name in _Context.__struct_fields__):
            raise ExchangeError(f"{whose} holds a release of another plan, silo, region or round")
        if release.step != self._step:
            raise ExchangeError(f"{whose} is not on the lattice of region {self._region!r}")
        return release

    def open_decline(self, data: bytes) -> tuple[str, int]:
        """Returns who declines which round; anything but a decline that a silo of the region signed is refused."""
        decline = decoded(data, _Decline, f"a decline of format {DECLINED}")
        self._check_context(decline)
        silo, number = decline.silo, decline.round_number
        self._check_signature(decline, decline.bound(DECLINED), f"that silo {silo!r} declines round {number} is")
        return silo, number

    def _check_signature(self, given: _Envelope | _Decline, signed: bytes, what: str) -> None:
        try:
            self._from[given.silo].verify(given.signature, signed)
        except primitives("sealed releases need").invalid_signature:
            raise ExchangeError(f"{what} not signed by the key that the plan carries") from None

    def _check_context(self, given: _Envelope | _Decline) -> None:
        """Refuses what is not, by its own words, of this plan, region and one of its silos."""
        what = "release" if isinstance(given, _Envelope) else "decline"
        if given.plan_digest != self._plan.digest:
            theirs, ours = _short(given.plan_digest), _short(self._plan.digest)
            raise ExchangeError(f"the {what} is one under another plan ({theirs}, ours is {ours})")
        if given.region != self._region:
            raise ExchangeError(f"the {what} is one to another region than {self._region!r}")
        if given.silo not in self._from:
            raise ExchangeError(f"the {what} is not from a silo of region {self._region!r}")
        _check_round(self._plan, given.silo, given.round_number)


def seal(release: Release, plan: VerifiedPlan, key: str | Path) -> bytes:
    """Returns a release sealed to its region, signed with the silo's private Ed25519 key file; see `Sealer`."""
    return Sealer(plan, release.silo, key).seal(release)


def unseal(data: bytes, plan: VerifiedPlan, region: str, key: str | Path) -> Release:
    """Returns what was sealed to a region, opened with its private X25519 key file; see `Opener`."""
    return Opener(plan, region, key).open(data)


def _hpke() -> Any:
    """Returns the suite that releases are sealed with."""
    suite = primitives("sealed releases need").hpke
    if suite is None:
        raise MissingExtraError(
            "sealed releases need the package cryptography, 47 or later. Run: pip install -U 'fulcrum-dp[secure]'"
        )
    return suite


def _sha256(sealed: bytes | memoryview) -> bytes:
    """What stands for a ciphertext in what is signed: Ed25519 takes one message, and this copies nothing."""
    return hashlib.sha256(sealed).digest()


def plan_key(plan: VerifiedPlan, name: str, kind: str) -> Any:
    """Returns the public key that the plan carries of a silo ("signing") or of a region ("sealing")."""
    whose = f"{'silo' if kind == 'signing' else plan.federation.innermost.name} {name!r}"
    if name not in plan.keys:
        raise ExchangeError(f"the plan carries no key of {whose}. Plan with --keys")
    try:
        return public_key(plan.keys[name], kind)
    except SignatureError as error:
        raise ExchangeError(f"the plan's key of {whose} cannot be used: {error}") from None


def own_key(plan: VerifiedPlan, name: str, path: str | Path, kind: str) -> Any:
    """Reads a private key and checks that its public half is the one that the plan carries under the name."""
    plan_key(plan, name, kind)
    try:
        private = private_key(path, kind)
    except SignatureError as error:
        raise ExchangeError(str(error)) from None
    if public_text(private) != plan.keys[name]:
        raise ExchangeError(
            f"{path} is not the key of {name!r} that the plan carries. Plan with its .pub, or use that key"
        )
    return private


def _check_round(plan: VerifiedPlan, silo: str, round_number: int) -> None:
    if not 1 <= round_number <= plan.rounds:
        raise ExchangeError(
            f"the release of silo {silo!r} is for round {round_number}, the plan's rounds are 1 to {plan.rounds}"
        )


def _short(digest: str) -> str:
    """The start of a digest, for a message; what a stranger wrote may be no digest at all."""
    return f"{digest[:4]}.." if digest[:4].isalnum() else "no digest"
