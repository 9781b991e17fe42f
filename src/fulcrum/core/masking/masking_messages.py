"""The messages of a masked round: what the server asks of a silo, and what a silo answers, signed.

>>> session = Session(plan_digest="3f2a", group="north", round_number=1, attempt=1, basis="model-0")
>>> session.info("self mask", "lille") == session.info("pair mask", "lille")
False
>>> request = Survivors(session=session, members=("lille", "metz"))
>>> request_from_bytes(request.to_bytes()) == request
True

Five times the server asks and every silo answers: `Begin`, its keys; `Roster`, its shares; `Inbox`, its masked input;
`Survivors`, that it was told so; `Attested`, its shares of what unmasks the sum. Every message names the plan, group,
round, attempt and model it belongs to. Answers are signed with the silo's key of the plan; requests are not, since a
silo takes nothing on the server's word.
"""

import hashlib
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from fulcrum.core.messages.framing import decoded, framed, unframed
from fulcrum.errors import ExchangeError, in_one_line
from fulcrum.primitives import primitives

FORMAT = "fulcrum.masking/1"
"""Of every message, and in every key that is derived."""

KEYS, SHARES, INPUT, ATTESTATION, UNMASKING = "keys", "shares", "input", "attestation", "unmasking"
"""What an answer holds."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One masked round of one group, to which its messages, keys and signatures are bound.

    Attributes:
        plan_digest: The plan.
        group: The name of the region, or "federation".
        round_number: From 1.
        attempt: From 1: which time the server begins this round.
        basis: The digest of all that comes with the request to train: the global model, and what stands beside it;
            see `basis_of`.
    """

    plan_digest: str
    group: str
    round_number: int
    attempt: int
    basis: str

    def info(self, purpose: str, *whom: Any) -> bytes:
        """Returns what a key is derived for, or a signature made of: the purpose, this session, and whom it is for."""
        return msgspec.msgpack.encode((FORMAT, purpose, *msgspec.structs.astuple(self), *whom))


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="asks"):
    session: Session

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        return msgspec.msgpack.encode(self)


class Begin(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="keys"):
    """Asks for fresh keys; says by which numbers the server goes, which a silo holds against its own.

    Attributes:
        threshold: Holders that give a secret back.
        neighbours: Members that each member shares masks with.
        bits: Of a masked integer.
    """

    threshold: int
    neighbours: int
    bits: int


class Roster(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="shares"):
    """Asks for shares of a silo's secrets, sealed to its neighbours; `keys` are the answers of all who take part."""

    keys: tuple[bytes, ...]


class Inbox(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="input"):
    """Asks for the masked input.

    Attributes:
        sharers: All members that sent shares, sorted.
        sealed: By neighbour, the share that it sealed to this silo.
    """

    sharers: tuple[str, ...]
    sealed: dict[str, bytes]


class Survivors(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="attestation"):
    """Asks for a signature: `members` are those whose masked inputs are in the sum, sorted."""

    members: tuple[str, ...]


class Attested(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="unmasking"):
    """Asks for what unmasks the sum; `attestations` are the answers of all that were told the same survivors."""

    attestations: tuple[bytes, ...]


Request: TypeAlias = Begin | Roster | Inbox | Survivors | Attested
"""What the server asks of a silo."""


class PublicKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `KEYS`: two public X25519 keys, and what the silo was told outside the round.

    Attributes:
        masking: The key for masks.
        sealing: The key for the shares that are sealed to the silo.
        settings: The digest of settings that training goes by and that no request names; empty where there are none.
    """

    masking: bytes
    sealing: bytes
    settings: str = ""


class SealedShares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `SHARES`: a commitment to the self-mask's seed, and by neighbour the sealed shares."""

    commitment: bytes
    sealed: dict[str, bytes]


class SharePair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sealed to a neighbour: its share of the seed of the self-mask, and of the private masking key."""

    seed: bytes
    key: bytes


class Revealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `UNMASKING`: by survivor its seed's share, by member that dropped out its masking key's share."""

    seeds: dict[str, bytes]
    keys: dict[str, bytes]


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    holds: str
    session: Session
    silo: str
    signature: bytes


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a silo answered, its signature not yet checked.

    Attributes:
        holds: `KEYS`, `SHARES`, `INPUT`, `ATTESTATION` or `UNMASKING`.
        session: To which round it belongs.
        silo: Whose it says it is.
        signature: Over all else.
        body: What it holds.
    """

    holds: str
    session: Session
    silo: str
    signature: bytes
    body: Any

    def check(self, holds: str, session: Session, keys: Any) -> None:
        """Raises `ExchangeError` unless it is such an answer of this session by the silo that it names.

        Args:
            holds: What is asked for.
            session: The round at hand.
            keys: By member, the public Ed25519 key that the plan carries.
        """
        silo = in_one_line(self.silo)[:60]
        if self.silo not in keys:
            raise ExchangeError("mask.reply-not-of-member", silo=silo, group=session.group)
        if self.session != session or self.holds != holds:
            raise ExchangeError("mask.reply-foreign", silo=silo)
        try:
            _verify(keys[self.silo].public_bytes_raw(), self.signature, _signed(holds, session, self.silo, self.body))
        except primitives("masked sums need").invalid_signature:
            raise ExchangeError("mask.reply-signature", silo=silo) from None


def signed_answer(holds: str, session: Session, silo: str, body: Any, private: Any) -> bytes:
    """Returns an answer as bytes, signed with the silo's private Ed25519 key."""
    signature = private.sign(_signed(holds, session, silo, body))
    return framed(_Header(holds=holds, session=session, silo=silo, signature=signature), body)


def answer_from_bytes(data: Any) -> Answer:
    """Returns what a silo answered, unchecked, or raises `ExchangeError`."""
    header, body = unframed(data, _Header, f"an answer of format {FORMAT}")
    return Answer(holds=header.holds, session=header.session, silo=header.silo, signature=header.signature, body=body)


def request_from_bytes(data: Any) -> Request:
    """Returns what the server asks, or raises `ExchangeError`."""
    kinds: Any = Request
    found: Request = decoded(data, kinds, "a request of a masked round")
    return found


def body_of(answer: Answer, kind: type[_Body]) -> _Body:
    """Returns what an answer holds, or raises `ExchangeError`."""
    return decoded(bytes(answer.body), kind, f"what silo {in_one_line(answer.silo)[:60]!r} should answer")


@lru_cache(maxsize=2048)
def _verify(public: bytes, signature: bytes, signed: bytes) -> None:
    """Raises the package's `InvalidSignature` unless a key signed this. A good signature is checked once in a process.

    In a simulation all silos of a group are in few processes, and each is sent the same signatures of all the others.
    """
    primitives("masked sums need").ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)


def _signed(holds: str, session: Session, silo: str, body: Any) -> bytes:
    return session.info(f"answer: {holds}", silo, hashlib.sha256(body).digest())
