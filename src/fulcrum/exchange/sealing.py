"""A silo's release sealed to its region, end to end, whatever carries it: only that region reads it, from that silo.

A plan carries an Ed25519 key for every silo and an X25519 key for every region (`fulcrum keygen`, `--kind sealing`).
An envelope is a header, which names format, plan, silo, region and round, then the ciphertext:

- the key is HKDF-SHA256 of an X25519 exchange between a fresh ephemeral key and the region's, bound to both;
- AES-256-GCM encrypts the release, with the header's context as associated data;
- the silo signs format, context, ephemeral key and the SHA-256 of the ciphertext.

A silo that releases nothing in a round says so as surely: a decline names plan, silo, region and round, and is signed.
Nobody else can decline for it, and so nobody can have a round closed without it.

>>> import tempfile
>>> import numpy as np
>>> from fulcrum.federation.structure import Federation
>>> from fulcrum.noise.sources import SeededNoise
>>> from fulcrum.planning.making import plan
>>> from fulcrum.roles.releasing import release
>>> from fulcrum.planning.signing import new_key
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

from fulcrum.errors import ExchangeError, ReleaseError, SignatureError, suggestion
from fulcrum.exchange.release import Release
from fulcrum.planning.plan import Plan
from fulcrum.planning.signing import private_key, public_key, public_text

FORMAT = "fulcrum.sealed/1"

DECLINED = "fulcrum.declined/1"
"""The format of a decline."""

# A nonce must not repeat under a key, and each key encrypts one message: it comes from an ephemeral key made for it.
_NONCE = bytes(12)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands before the ciphertext."""

    format: str
    plan_digest: str
    silo: str
    region: str
    round_number: int
    ephemeral: bytes
    signature: bytes


class _Decline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    plan_digest: str
    silo: str
    region: str
    round_number: int
    signature: bytes


class Sealer:
    """Seals what one silo releases; its key is read, and held against the plan, once.

    Args:
        plan: The plan that the silo releases under.
        silo: Whose releases are sealed.
        key: The silo's private Ed25519 key file.
    """

    def __init__(self, plan: Plan, silo: str, key: str | Path) -> None:
        self._plan, self._silo = plan, silo
        self._region = region_of(plan, silo)
        self._step = step_of(plan, self._region)
        self._private = _own_key(plan, silo, key, "signing")
        self._to = _plan_key(plan, self._region, "sealing")

    def seal(self, release: Release) -> bytes:
        """Returns the envelope to send; sealed again, the same release has other bytes, which open to the same."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        plan = self._plan
        expected = (plan.digest, self._silo, self._region, self._step)
        if (release.plan_digest, release.silo, release.region, release.step) != expected:
            raise ExchangeError(f"the release is not one of silo {self._silo!r} under this plan. Nothing is sealed")
        _check_round(plan, self._silo, release.round_number)
        ephemeral = X25519PrivateKey.generate()
        public = ephemeral.public_key().public_bytes_raw()
        context = _context(plan.digest, self._silo, self._region, release.round_number)
        try:
            once = _one_time_key(ephemeral, self._to, public, self._to.public_bytes_raw())
        except ValueError:
            raise ExchangeError(f"the plan's key of region {self._region!r} is of low order. Make another") from None
        try:
            ciphertext = AESGCM(once).encrypt(_NONCE, release.to_bytes(), context)
        except OverflowError:
            raise ExchangeError(f"the release of silo {self._silo!r} is too large to be sealed") from None
        header = msgspec.msgpack.encode(
            _Envelope(
                format=FORMAT,
                plan_digest=plan.digest,
                silo=self._silo,
                region=self._region,
                round_number=release.round_number,
                ephemeral=public,
                signature=self._private.sign(_signed(context, public, ciphertext)),
            )
        )
        return b"".join((len(header).to_bytes(4, "little"), header, ciphertext))

    def decline(self, round_number: int) -> bytes:
        """Returns word, signed, that the silo releases nothing in a round; it says nothing of why."""
        plan, silo, region = self._plan, self._silo, self._region
        _check_round(plan, silo, round_number)
        signature = self._private.sign(_context(plan.digest, silo, region, round_number, DECLINED))
        return msgspec.msgpack.encode(
            _Decline(
                format=DECLINED,
                plan_digest=plan.digest,
                silo=silo,
                region=region,
                round_number=round_number,
                signature=signature,
            )
        )


class Opener:
    """Opens what the silos of one region seal; keys are read, and held against the plan, once.

    Args:
        plan: The plan that the silos release under.
        region: To whom the releases are sealed.
        key: The region's private X25519 key file.
    """

    def __init__(self, plan: Plan, region: str, key: str | Path) -> None:
        self._plan, self._region = plan, region
        members = members_of(plan, region)
        self._step = step_of(plan, region)
        self._private = _own_key(plan, region, key, "sealing")
        self._public = self._private.public_key().public_bytes_raw()
        self._from = {silo: _plan_key(plan, silo, "signing") for silo in members}

    def open(self, data: bytes) -> Release:
        """Returns the release in an envelope; anything but a whole one from a silo of the region is refused."""
        from cryptography.exceptions import InvalidSignature, InvalidTag
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        envelope, ciphertext = _envelope_of(data)
        silo, number = envelope.silo, envelope.round_number
        self._check_context(envelope)
        context = _context(envelope.plan_digest, silo, envelope.region, number)
        whose = f"the release of silo {silo!r} for round {number}"
        try:
            self._from[silo].verify(envelope.signature, _signed(context, envelope.ephemeral, ciphertext))
        except InvalidSignature:
            raise ExchangeError(f"{whose} is not signed by the key that the plan carries") from None
        try:
            ephemeral = X25519PublicKey.from_public_bytes(envelope.ephemeral)
            once = _one_time_key(self._private, ephemeral, envelope.ephemeral, self._public)
        except ValueError:  # of low order, so that the shared secret is zero; or not 32 bytes
            raise ExchangeError(f"{whose} has an ephemeral key that gives no secret") from None
        try:
            plain = AESGCM(once).decrypt(_NONCE, ciphertext, context)
        except (InvalidTag, ValueError, OverflowError):
            raise ExchangeError(f"{whose} does not open with the key of region {self._region!r}") from None
        try:
            release = Release.from_bytes(memoryview(plain))  # type: ignore[arg-type]  # a view: its slices are no copies
        except ReleaseError:
            raise ExchangeError(f"{whose} opens, but does not hold a release") from None
        if (release.plan_digest, release.silo, release.region, release.round_number) != (
            envelope.plan_digest,
            silo,
            envelope.region,
            number,
        ):
            raise ExchangeError(f"{whose} holds a release of another plan, silo, region or round")
        if release.step != self._step:
            raise ExchangeError(f"{whose} is not on the lattice of region {self._region!r}")
        return release

    def open_decline(self, data: bytes) -> tuple[str, int]:
        """Returns who declines which round; anything but the signed word of a silo of the region is refused."""
        from cryptography.exceptions import InvalidSignature

        try:
            decline = msgspec.msgpack.decode(data, type=_Decline)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
            raise ExchangeError("these bytes are neither a release nor a decline") from None
        if decline.format != DECLINED or msgspec.msgpack.encode(decline) != data:
            raise ExchangeError(f"these bytes are not a decline of format {DECLINED}")
        self._check_context(decline)
        silo, number = decline.silo, decline.round_number
        try:
            signed = _context(decline.plan_digest, silo, decline.region, number, DECLINED)
            self._from[silo].verify(decline.signature, signed)
        except InvalidSignature:
            raise ExchangeError(f"that silo {silo!r} declines round {number} is not signed by its key") from None
        return silo, number

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


def seal(release: Release, plan: Plan, key: str | Path) -> bytes:
    """Returns a release sealed to its region, signed with the silo's private Ed25519 key file; see `Sealer`."""
    return Sealer(plan, release.silo, key).seal(release)


def unseal(data: bytes, plan: Plan, region: str, key: str | Path) -> Release:
    """Returns what was sealed to a region, opened with its private X25519 key file; see `Opener`."""
    return Opener(plan, region, key).open(data)


def members_of(plan: Plan, region: str) -> dict[str, int]:
    """Returns the silos of a region, sorted by name, and where each stands in the federation."""
    inner = plan.federation.innermost
    if region not in inner.nodes:
        raise ExchangeError(f"the plan knows no region {region!r}.{suggestion(region, inner.nodes)}")
    where = (inner.parent_of == inner.nodes.index(region)).nonzero()[0].tolist()
    named = {plan.federation.silo_name(index): index for index in where}
    return dict(sorted(named.items()))


def region_of(plan: Plan, silo: str) -> str:
    """Returns the region that a silo reports to."""
    names: list[str] = plan.federation.silo_names.tolist()
    if silo not in names:
        raise ExchangeError(f"the plan knows no silo {silo!r}.{suggestion(silo, names)}")
    inner = plan.federation.innermost
    return str(inner.nodes[inner.parent_of[names.index(silo)]])


def step_of(plan: Plan, region: str) -> float | None:
    """Returns the step of a region's lattice; None in research."""
    steps = plan.lattice_steps
    return None if steps is None else float(steps[plan.federation.innermost.nodes.index(region)])


def _envelope_of(data: bytes) -> tuple[_Envelope, memoryview]:
    """Splits an envelope, which has one encoding only: a byte added or written otherwise is no envelope."""
    try:
        view = memoryview(data)
        size = int.from_bytes(view[:4], "little")
        header = bytes(view[4 : 4 + size])
        envelope = msgspec.msgpack.decode(header, type=_Envelope)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        raise ExchangeError("these bytes are not a sealed release") from None
    if envelope.format != FORMAT or msgspec.msgpack.encode(envelope) != header:
        raise ExchangeError(f"these bytes are not a sealed release of format {FORMAT}")
    return envelope, view[4 + size :]


def _context(plan_digest: str, silo: str, region: str, round_number: int, kind: str = FORMAT) -> bytes:
    """What a message is bound to. The format in it keeps a decline from being taken for part of a release."""
    return msgspec.msgpack.encode((kind, plan_digest, silo, region, round_number))


def _signed(context: bytes, ephemeral: bytes, ciphertext: bytes | memoryview) -> bytes:
    """What a silo signs. The ciphertext stands in it as its hash: Ed25519 takes one message, and this copies nothing.

    It cannot be taken for the message of a plan's signature, which is a text.
    """
    return msgspec.msgpack.encode((FORMAT, context, ephemeral, hashlib.sha256(ciphertext).digest()))


def _one_time_key(private: Any, public: Any, ephemeral: bytes, region: bytes) -> bytes:
    """Returns the key of one message; a peer's key of low order raises ValueError."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = msgspec.msgpack.encode((FORMAT, ephemeral, region))
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(private.exchange(public))


def _plan_key(plan: Plan, name: str, kind: str) -> Any:
    """Returns the public key that the plan carries of a silo ("signing") or of a region ("sealing")."""
    whose = f"{'silo' if kind == 'signing' else plan.federation.innermost.name} {name!r}"
    if name not in plan.keys:
        raise ExchangeError(f"the plan carries no key of {whose}. Plan with --keys")
    try:
        return public_key(plan.keys[name], kind)
    except SignatureError as error:
        raise ExchangeError(f"the plan's key of {whose} cannot be used: {error}") from None


def _own_key(plan: Plan, name: str, path: str | Path, kind: str) -> Any:
    """Reads a private key and checks that its public half is the one that the plan carries under the name."""
    _plan_key(plan, name, kind)
    try:
        private = private_key(path, kind)
    except SignatureError as error:
        raise ExchangeError(str(error)) from None
    if public_text(private) != plan.keys[name]:
        raise ExchangeError(
            f"{path} is not the key of {name!r} that the plan carries. Plan with its .pub, or use that key"
        )
    return private


def _check_round(plan: Plan, silo: str, round_number: int) -> None:
    if not 1 <= round_number <= plan.rounds:
        raise ExchangeError(
            f"the release of silo {silo!r} is for round {round_number}, the plan's rounds are 1 to {plan.rounds}"
        )


def _short(digest: str) -> str:
    """The start of a digest, for a message; what a stranger wrote may be no digest at all."""
    return f"{digest[:4]}.." if digest[:4].isalnum() else "no digest"
