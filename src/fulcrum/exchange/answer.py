"""What a region sends up for a round: the sum of its releases, or that it is withheld.

>>> total = RegionalSum(
...     plan_digest="3f2a",
...     region="north",
...     round_number=1,
...     members=("lille", "metz"),
...     layout=Layout(names=("head",), shapes=((2,),)),
...     values=np.array([3, -1]),
...     step=0.5,
... )
>>> received = answer_from_bytes(total.to_bytes())
>>> received.members, received.values * received.step
(('lille', 'metz'), array([ 1.5, -0.5]))
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.errors import ExchangeError
from fulcrum.exchange.layout import Layout


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
        plan_digest: The plan they were made under.
        region: Whose sum it is.
        round_number: Of which round.
        members: Whose releases are in it, sorted.
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
        header = _Sum(**{name: getattr(self, name) for name in _Sum.__struct_fields__})
        return _framed(header, np.ascontiguousarray(self.values, dtype=dtype_of(self.step)).data.cast("B"))

    @classmethod
    def from_bytes(cls, data: bytes) -> "RegionalSum":
        """Returns the sum that these bytes are, or raises `ExchangeError`."""
        answer = answer_from_bytes(data)
        if not isinstance(answer, cls):
            raise ExchangeError("these bytes are not a regional sum: the region withheld it")
        return answer


class Withheld(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fulcrum.withheld/1"):
    """That a region sends up no sum for a round.

    Attributes:
        plan_digest: The plan it runs.
        region: Which region.
        round_number: Which round.
        missing: The silos whose releases are not there, sorted.
        reason: Why that is too many.
    """

    plan_digest: str
    region: str
    round_number: int
    missing: tuple[str, ...]
    reason: str

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        return _framed(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Withheld":
        """Returns the answer that these bytes are, or raises `ExchangeError`."""
        answer = answer_from_bytes(data)
        if not isinstance(answer, cls):
            raise ExchangeError("these bytes are a regional sum, not that it is withheld")
        return answer


Answer: TypeAlias = RegionalSum | Withheld
"""What a region sends up for a round."""


def answer_from_bytes(data: bytes) -> Answer:
    """Returns what a region sent up, whole and in its one encoding, or raises `ExchangeError`."""
    try:
        view = memoryview(data)
        size = int.from_bytes(view[:4], "little")
        header = msgspec.msgpack.decode(view[4 : 4 + size], type=_Sum | Withheld)
        one_encoding = msgspec.msgpack.encode(header) == view[4 : 4 + size]
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ExchangeError(f"these bytes are not a region's answer: {error}") from None
    rest = view[4 + size :]
    names = header.members if isinstance(header, _Sum) else header.missing
    if not one_encoding or header.round_number < 1 or list(names) != sorted(set(names)):
        raise ExchangeError("these bytes are not a region's answer: its header does not hold together")
    if isinstance(header, Withheld):
        if len(rest):
            raise ExchangeError("these bytes are not a region's answer: something follows what is withheld")
        return header
    if header.step is not None and not 0 < header.step < math.inf:
        raise ExchangeError("a regional sum is on a lattice whose step is no length")
    check_layout(header.layout)
    if len(rest) != 8 * header.layout.parameters or not names:
        raise ExchangeError(f"a regional sum of {header.layout.parameters} coordinates is not whole")
    values = np.frombuffer(rest, dtype=dtype_of(header.step))
    if not np.isfinite(values).all():
        raise ExchangeError("a regional sum is not finite")
    return RegionalSum(**msgspec.structs.asdict(header), values=values)


def check_layout(layout: Layout, whose: str = "a regional sum") -> None:
    """Raises `ExchangeError` unless a layout that somebody sent is one that arrays can have."""
    names, shapes = layout.names, layout.shapes
    one_to_one = len(names) == len(shapes) == len(set(names))
    if not one_to_one or not all(map(str.isprintable, names)) or any(size < 0 for shape in shapes for size in shape):
        raise ExchangeError(f"{whose} has names or shapes that no arrays have")


def dtype_of(step: float | None) -> str:
    """Returns how coordinates are held and sent: integers on a lattice, floating point in research."""
    return "<f8" if step is None else "<i8"


def _framed(header: _Sum | Withheld, values: bytes | memoryview = b"") -> bytes:
    encoded = msgspec.msgpack.encode(header)
    return b"".join((len(encoded).to_bytes(4, "little"), encoded, values))
