"""The opening of sealed releases at a region: only a complete envelope, signed by a silo of the region, opens."""

from collections.abc import Container
from pathlib import Path

from fulcrum.core.messages.framing import decode, unframe
from fulcrum.core.messages.membership import members_of, step_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.messages.sealing import DECLINED, FORMAT, Decline, Envelope, check_round, ciphertext_digest
from fulcrum.core.messages.sealing_context import Context, sealing_suite
from fulcrum.core.plan.keys import load_private_key, plan_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError
from fulcrum.primitives import primitives


class Opener:
    """Opens the sealed releases and the declines of a region's silos; reads and checks all keys once.

    Guarantees, against a sender without a key of the plan:

    - only an envelope with a good signature by a silo of the region opens;
    - plan, silo, region and round in the envelope are bound to signature and ciphertext, so an envelope of another
      plan, silo, region or round does not open either.

    Args:
        plan: The plan of the releases.
        region: The region of the seal.
        key: The region's private X25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, region: str, key: str | Path) -> None:
        self._plan, self._region = plan, region
        members = members_of(plan, region)
        self._step = step_of(plan, region)
        self._private = load_private_key(plan, region, key, "sealing")
        self._from = {silo: plan_key(plan, silo, "signing") for silo in members}

    def open(self, data: bytes) -> Release:
        """Returns the release in an envelope; raises `ExchangeError` for every other message."""
        envelope, sealed = unframe(data, Envelope, f"a sealed release of format {FORMAT}")
        check_context(envelope, self._plan, self._region, self._from)
        silo, number = envelope.silo, envelope.round_number
        self._check_signature(envelope, envelope.binding(FORMAT, ciphertext_digest(sealed)))
        try:
            plain = sealing_suite().decrypt(sealed, self._private, info=envelope.binding(FORMAT))
        except (primitives("sealed releases need").invalid_tag, ValueError, OverflowError):
            raise ExchangeError("seal.not-opened", silo=silo, round_number=number, region=self._region) from None
        try:
            release = Release.from_bytes(plain)
        except ExchangeError as error:
            raise ExchangeError("seal.content-malformed", silo=silo, round_number=number, reason=error) from None
        if any(getattr(release, name) != getattr(envelope, name) for name in Context.__struct_fields__):
            raise ExchangeError("seal.content-foreign", silo=silo, round_number=number)
        if release.step != self._step:
            raise ExchangeError("seal.content-lattice", silo=silo, round_number=number, region=self._region)
        return release

    def open_decline(self, data: bytes) -> tuple[str, int]:
        """Returns silo and round of a signed decline; raises `ExchangeError` for every other message."""
        decline = decode(data, Decline, f"a decline of format {DECLINED}")
        check_context(decline, self._plan, self._region, self._from)
        self._check_signature(decline, decline.binding(DECLINED))
        return decline.silo, decline.round_number

    def _check_signature(self, message: Envelope | Decline, signed: bytes) -> None:
        silo, number = message.silo, message.round_number
        try:
            self._from[silo].verify(message.signature, signed)
        except primitives("sealed releases need").invalid_signature:
            raise ExchangeError("seal.signature-invalid", noun=_noun(message), silo=silo, round_number=number) from None


def unseal(data: bytes, plan: VerifiedPlan, region: str, key: str | Path) -> Release:
    """Returns the release in an envelope, opened with the region's private X25519 key file; see `Opener`."""
    return Opener(plan, region, key).open(data)


def check_context(message: Context, plan: VerifiedPlan, region: str, members: Container[str]) -> None:
    """Raises `ExchangeError` for a message that names another plan, another region or a silo of another region."""
    noun = _noun(message)
    if message.plan_digest != plan.digest:
        raise ExchangeError("seal.plan-differs", noun=noun, digest=_short(message.plan_digest), expected=plan.digest)
    if message.region != region:
        raise ExchangeError("seal.region-differs", noun=noun, region=region)
    if message.silo not in members:
        raise ExchangeError("seal.silo-not-of-region", noun=noun, region=region)
    check_round(plan, message.silo, message.round_number)


def _noun(message: Context) -> str:
    return {Envelope: "release", Decline: "decline"}.get(type(message), "answer")


def _short(digest: str) -> str:
    """Returns the start of a digest for an error message; a sender may have written any text there."""
    return f"{digest[:4]}.." if digest[:4].isalnum() else "no digest"
