"""What a silo sends its region in a round: its weighted, noisy update, and nothing else.

>>> sent = Release(
...     plan_digest="3f2a",
...     silo="lille",
...     region="north",
...     round_number=1,
...     layout=Layout(names=("head",), shapes=((2,),)),
...     values=np.array([3, -1]),
...     step=0.5,
... )
>>> Release.from_bytes(sent.to_bytes()).arrays()
{'head': array([ 1.5, -0.5])}
"""

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fulcrum.errors import ReleaseError
from fulcrum.exchange.layout import Layout


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    plan_digest: str
    silo: str
    region: str
    round_number: int
    layout: Layout
    step: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """A silo's weighted, noisy contribution to its region's sum.

    Attributes:
        plan_digest: The plan it was made under.
        silo: Whose it is.
        region: Whose sum it goes into.
        round_number: In which round.
        layout: The names and shapes of the arrays.
        values: All coordinates: integers in units of `step`, or floating point in research.
        step: The step of the region's lattice; None in research.
    """

    plan_digest: str
    silo: str
    region: str
    round_number: int
    layout: Layout
    values: np.ndarray[Any, Any]
    step: float | None

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the contribution as arrays by name, in the units of the update."""
        scaled = self.values * (1.0 if self.step is None else self.step)
        ends = np.cumsum([math.prod(shape) for shape in self.layout.shapes])
        parts = np.split(scaled, ends[:-1]) if len(ends) else []
        named = zip(self.layout.names, self.layout.shapes, parts, strict=True)
        return {name: part.reshape(shape) for name, shape, part in named}

    def to_bytes(self) -> bytes:
        """Returns the bytes to send: a header, then the values, little-endian."""
        header = _Header(
            plan_digest=self.plan_digest,
            silo=self.silo,
            region=self.region,
            round_number=self.round_number,
            layout=self.layout,
            step=self.step,
        )
        encoded = msgspec.msgpack.encode(header)
        kind = "<f8" if self.step is None else "<i8"
        return len(encoded).to_bytes(4, "little") + encoded + self.values.astype(kind).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Release":
        """Returns the release that these bytes are, or raises `ReleaseError`."""
        try:
            size = int.from_bytes(data[:4], "little")
            header = msgspec.msgpack.decode(data[4 : 4 + size], type=_Header)
            values = np.frombuffer(data[4 + size :], dtype="<f8" if header.step is None else "<i8")
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            raise ReleaseError(f"these bytes are not a release: {error}") from None
        if len(values) != header.layout.parameters:
            raise ReleaseError(f"a release of {header.layout.parameters} coordinates holds {len(values)}")
        return cls(
            plan_digest=header.plan_digest,
            silo=header.silo,
            region=header.region,
            round_number=header.round_number,
            layout=header.layout,
            values=values,
            step=header.step,
        )
