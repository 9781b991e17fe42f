"""The opening of sealed answers at a region: the signed answer of a silo of the region comes out, or an error."""

from pathlib import Path

from fulcrum.aggregation.release_opening import check_context
from fulcrum.core.masking.answer_sealing import FORMAT, SealedAnswer
from fulcrum.core.masking.masking_messages import member_reply_from_bytes
from fulcrum.core.messages.framing import unframe
from fulcrum.core.messages.membership import members_of
from fulcrum.core.messages.sealing_context import sealing_suite
from fulcrum.core.plan.keys import load_private_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError
from fulcrum.primitives import primitives

_ENVELOPE_BYTES = 512
"""The most bytes of an envelope beside the answer and two names: digest, encapsulated key, tag and names of fields."""


class AnswerOpener:
    """Opens the sealed answers of a region's silos; reads and checks the key once.

    The envelope proves no sender: the caller checks the silo's signature of the answer inside. An envelope whose header
    names another plan, region, silo or round than the answer is refused.

    Args:
        plan: The plan of the masked sums.
        region: The region of the seal.
        key: The region's private X25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, region: str, key: str | Path) -> None:
        self._plan, self._region, self._members = plan, region, members_of(plan, region)
        self._private = load_private_key(plan, region, key, "sealing")

    @property
    def overhead(self) -> int:
        """The most bytes that an envelope adds to an answer."""
        return _ENVELOPE_BYTES + 2 * max(len(name.encode()) for name in (self._region, *self._members))

    def open(self, data: bytes) -> bytes:
        """Returns the answer in an envelope; raises `ExchangeError` for every other message."""
        header, sealed = unframe(data, SealedAnswer, f"a sealed answer of format {FORMAT}")
        check_context(header, self._plan, self._region, self._members)
        silo, number = header.silo, header.round_number
        try:
            plain: bytes = sealing_suite().decrypt(sealed, self._private, info=header.binding(FORMAT))
        except (primitives("sealed answers need").invalid_tag, ValueError, OverflowError):
            raise ExchangeError("seal.not-opened", silo=silo, round_number=number, region=self._region) from None
        answer = member_reply_from_bytes(plain)
        inside = (answer.session.plan_digest, answer.silo, answer.session.group, answer.session.round_number)
        if inside != (header.plan_digest, silo, header.region, number):
            raise ExchangeError("seal.content-foreign", silo=silo, round_number=number)
        return plain
