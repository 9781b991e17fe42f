"""A region's reply to the server for a round: the sum of the releases, or the notice that the sum is withheld.

>>> total = RegionalSum(
...     plan_digest="3f2a",
...     region="north",
...     round_number=1,
...     members=("lille", "metz"),
...     layout=Layout(names=("head",), shapes=((2,),)),
...     values=np.array([3, -1]),
...     step=0.5,
... )
>>> received = regional_reply_from_bytes(total.to_bytes())
>>> received.members, received.values * received.step
(('lille', 'metz'), array([ 1.5, -0.5]))
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.core.messages.framing import frame, header_of, unframe
from fulcrum.core.messages.layout import Layout, payload_of
from fulcrum.errors import ExchangeError

LONGEST_REASON = 2_000
"""Characters. The server keeps every reason in the checkpoint: a region could fill the server's disk with a reason."""


class _Sum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fulcrum.sum/1"):
    plan_digest: str
    region: str
    round_number: int
    members: tuple[str, ...]
    layout: Layout
    step: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionalSum:
    """The sum of a region's releases in one round.

    Attributes:
        plan_digest: The digest of the plan.
        region: The region.
        round_number: The round, from 1.
        members: The silos whose releases are in the sum, sorted.
        layout: The names and shapes of the arrays.
        values: All coordinates: integers in units of `step`, or floating point in research.
        step: The step of the region's lattice; None in research.
    """

    plan_digest: str
    region: str
    round_number: int
    members: tuple[str, ...]
    layout: Layout
    values: np.ndarray[Any, Any]
    step: float | None

    def to_bytes(self) -> bytes:
        """Returns the bytes to send: a header, then the values, little-endian."""
        return frame(header_of(_Sum, self), payload_of(self.values, self.step))


class Withheld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fulcrum.withheld/1"):
    """The notice that a region sends no sum for a round.

    Attributes:
        plan_digest: The digest of the plan.
        region: The region.
        round_number: The round, from 1.
        missing: The silos without a release, sorted.
        reason: The reason in one line, such as too many missing silos.
    """

    plan_digest: str
    region: str
    round_number: int
    missing: tuple[str, ...]
    reason: str

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        return frame(self)


RegionalReply: TypeAlias = RegionalSum | Withheld
"""A region's reply for a round."""

_Header: Any = _Sum | Withheld
_NOUN = "a region's answer"


def regional_reply_from_bytes(data: bytes) -> RegionalReply:
    """Returns a region's reply from bytes.

    Plan, region, round, silos, layout and step are the sender's claims: the server compares all six with the plan.

    Raises:
        ExchangeError: The bytes are not a whole reply in the one encoding of `frame`; members or missing silos are not
            sorted or repeat; the round is below 1; a sum has no member, a step that is no length, or a value that is
            not finite; a reason is not printable, or too long.
    """
    header, payload = unframe(data, _Header, _NOUN)
    names = header.members if isinstance(header, _Sum) else header.missing
    if header.round_number < 1 or list(names) != sorted(set(names)):
        raise ExchangeError("message.malformed", noun=_NOUN, reason="its header does not hold together")
    if isinstance(header, Withheld):
        if len(payload):
            raise ExchangeError("message.malformed", noun=_NOUN, reason="something follows what is withheld")
        if len(header.reason) > LONGEST_REASON or not header.reason.isprintable():
            raise ExchangeError("sum.reason-invalid", most=LONGEST_REASON)
        return header
    if not names:
        raise ExchangeError("sum.members-missing")
    if header.step is not None and not 0 < header.step < math.inf:
        raise ExchangeError("sum.step-range")
    header.layout.check("a regional sum")
    values = header.layout.values(payload, header.step, "a regional sum")
    if not np.isfinite(values).all():
        raise ExchangeError("sum.not-finite")
    return RegionalSum(**msgspec.structs.asdict(header), values=values)
