"""The messages of a masked round: requests of the server, and signed answers of a silo.

>>> session = Session(plan_digest="3f2a", group="north", round_number=1, attempt=1, input_digest="model-0")
>>> session.info("self mask", "lille") == session.info("pair mask", "lille")
False
>>> request = Survivors(session=session, members=("lille", "metz"))
>>> request_from_bytes(request.to_bytes()) == request
True

A round has five stages, and every silo answers every stage:

- `Begin`: the answer is the silo's public keys;
- `Roster`: the answer is the shares of the silo's secrets;
- `Inbox`: the answer is the masked input;
- `Survivors`: the answer is a signature over the list of survivors;
- `Attested`: the answer is the shares that unmask the sum.

Every message names plan, group, round, attempt and model. Answers are signed with the silo's key of the plan. Requests
are not signed, since a silo trusts no statement of the server.
"""

import hashlib
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from fulcrum.core.messages.framing import decode, frame, unframe
from fulcrum.errors import ExchangeError, in_one_line
from fulcrum.primitives import primitives

FORMAT = "fulcrum.masking/1"
"""The format of every message, and a part of every derived key."""

KEYS, SHARES, INPUT, ATTESTATION, UNMASKING = "keys", "shares", "input", "attestation", "unmasking"
"""The kinds of content of an answer."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A masked round of a group. Messages, keys and signatures are bound to the session.

    Attributes:
        plan_digest: The digest of the plan.
        group: The name of the region, or "federation".
        round_number: From 1.
        attempt: From 1; the server begins a new attempt of the same round with a higher number.
        input_digest: The digest of the training request: the global model and the settings sent with the model; see
            `input_digest_of`.
    """

    plan_digest: str
    group: str
    round_number: int
    attempt: int
    input_digest: str = msgspec.field(name="basis")

    def info(self, purpose: str, *whom: Any) -> bytes:
        """Returns the bytes for which a key is derived or a signature is made: format, purpose, session and parties.

        Different purposes, sessions or parties have different bytes, so a key or a signature is valid for a single use.
        """
        return msgspec.msgpack.encode((FORMAT, purpose, *msgspec.structs.astuple(self), *whom))


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="asks"):
    session: Session

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        return msgspec.msgpack.encode(self)


class Begin(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="keys"):
    """Asks for fresh keys and states the server's numbers, which a silo compares with the numbers of the plan.

    Attributes:
        threshold: The number of holders that restore a secret.
        neighbours: The number of members with which a member shares masks.
        bits: The width of a masked integer.
    """

    threshold: int
    neighbours: int
    bits: int


class Roster(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="shares"):
    """Asks for shares of a silo's secrets, sealed to its neighbours; `keys` are the answers of all participants."""

    keys: tuple[bytes, ...]


class Inbox(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input"):
    """Asks for the masked input.

    Attributes:
        sharers: All members that sent shares, sorted.
        sealed: By neighbour, the share that the neighbour sealed to the silo.
    """

    sharers: tuple[str, ...]
    sealed: dict[str, bytes]


class Survivors(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="attestation"):
    """Asks for a signature over `members`: the silos with a masked input in the sum, sorted."""

    members: tuple[str, ...]


class Attested(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="unmasking"):
    """Asks for the shares that unmask the sum; `attestations` are the answers of all members to the same survivors."""

    attestations: tuple[bytes, ...]


Request: TypeAlias = Begin | Roster | Inbox | Survivors | Attested
"""A request of the server to a silo."""


class PublicKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `KEYS`: two public X25519 keys, and a digest of the settings outside of the round.

    Attributes:
        masking: The key for masks.
        sealing: The key for the shares that are sealed to the silo.
        settings: The digest of training settings that no request names; empty if the training has no settings.
    """

    masking: bytes
    sealing: bytes
    settings: str = ""


class SealedShares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `SHARES`: a commitment to the self-mask's seed, and by neighbour the sealed shares."""

    commitment: bytes
    sealed: dict[str, bytes]


class SharePair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares that are sealed to a neighbour: of the seed of the self-mask, and of the private masking key."""

    seed: bytes
    key: bytes


class Revealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `UNMASKING`: by survivor a share of the seed, by dropped-out member a share of the masking key."""

    seeds: dict[str, bytes]
    keys: dict[str, bytes]


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    holds: str
    session: Session
    silo: str
    signature: bytes


class MemberReply(msgspec.Struct, frozen=True, kw_only=True):
    """A silo's answer before the signature is checked.

    Attributes:
        holds: `KEYS`, `SHARES`, `INPUT`, `ATTESTATION` or `UNMASKING`.
        session: The session of the answer.
        silo: The claimed sender.
        signature: The signature over all further fields.
        body: The content.
    """

    holds: str
    session: Session
    silo: str
    signature: bytes
    body: Any

    def check(self, holds: str, session: Session, keys: Any) -> None:
        """Raises `ExchangeError` unless the answer is of the stage and the session, signed by the claimed sender.

        Args:
            holds: The expected kind of content.
            session: The current round.
            keys: By member, the public Ed25519 key of the plan.
        """
        silo = in_one_line(self.silo)[:60]  # a name from the network, cut before a message shows it
        if self.silo not in keys:
            raise ExchangeError("mask.reply-not-of-member", silo=silo, group=session.group)
        if self.session != session or self.holds != holds:
            raise ExchangeError("mask.reply-foreign", silo=silo)
        public, signed = keys[self.silo].public_bytes_raw(), _signed_bytes(holds, session, self.silo, self.body)
        try:
            _verify(public, self.signature, signed)
        except primitives("masked sums need").invalid_signature:
            raise ExchangeError("mask.reply-signature", silo=silo) from None


def signed_reply(holds: str, session: Session, silo: str, body: Any, private: Any) -> bytes:
    """Returns an answer as bytes, signed with the silo's private Ed25519 key."""
    signature = private.sign(_signed_bytes(holds, session, silo, body))
    return frame(_Header(holds=holds, session=session, silo=silo, signature=signature), body)


def member_reply_from_bytes(data: Any) -> MemberReply:
    """Returns a silo's answer with an unchecked signature, or raises `ExchangeError`."""
    header, body = unframe(data, _Header, f"an answer of format {FORMAT}")
    return MemberReply(
        holds=header.holds, session=header.session, silo=header.silo, signature=header.signature, body=body
    )


def request_from_bytes(data: Any) -> Request:
    """Returns the server's request, or raises `ExchangeError`."""
    kinds: Any = Request
    request: Request = decode(data, kinds, "a request of a masked round")
    return request


def body_of(answer: MemberReply, kind: type[_Body]) -> _Body:
    """Returns the content of an answer as an object of the type `kind`; raises `ExchangeError` for other bytes."""
    return decode(bytes(answer.body), kind, f"what silo {in_one_line(answer.silo)[:60]!r} should answer")


@lru_cache(maxsize=2048)
def _verify(public: bytes, signature: bytes, signed: bytes) -> None:
    """Raises the package's `InvalidSignature` unless the key made the signature; a good one is checked once.

    In a simulation all silos of a group share few processes, and every silo receives the same signatures of all
    members.
    """
    # `lru_cache` stores no exception: a bad signature is checked, and refused, every time.
    primitives("masked sums need").ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)


def _signed_bytes(holds: str, session: Session, silo: str, body: Any) -> bytes:
    """Returns the bytes that an answer's signature covers: kind, session, sender and the SHA-256 of the body."""
    # The kind is signed too: otherwise a signature over survivors could be passed off as another stage's answer.
    return session.info(f"answer: {holds}", silo, hashlib.sha256(body).digest())
