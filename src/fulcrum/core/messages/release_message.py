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

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fulcrum.core.messages.framing import framed, header_of, unframed
from fulcrum.core.messages.layout import Layout, in_units, payload_of


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
        return self.layout.arrays(in_units(self.values, self.step))

    def to_bytes(self) -> bytes:
        """Returns the bytes to send: a header, then the values, little-endian."""
        return framed(header_of(_Header, self), payload_of(self.values, self.step))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "Release":
        """Returns the release that these bytes are, or raises `ExchangeError`."""
        header, payload = unframed(data, _Header, "a release")
        header.layout.check("a release")
        values = header.layout.values(payload, header.step, "a release")
        return cls(**msgspec.structs.asdict(header), values=values)
