"""A release: the weighted, noisy update that a silo sends to the region in a round, and nothing else.

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

from fulcrum.core.messages.framing import frame, header_of, unframe
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
    """A silo's weighted, noisy contribution to the sum of a region.

    Attributes:
        plan_digest: The digest of the plan.
        silo: The silo that releases.
        region: The region of the silo.
        round_number: The round, from 1.
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
        """Returns the contribution as arrays by name, in units of the update."""
        return self.layout.arrays(in_units(self.values, self.step))

    def to_bytes(self) -> bytes:
        """Returns the bytes to send: a header, then the values, little-endian."""
        return frame(header_of(_Header, self), payload_of(self.values, self.step))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> "Release":
        """Returns the release in a message, with `values` as a view of `data`.

        Plan, silo, region, round and step are the sender's claims: the region compares all five with the plan.

        Raises:
            ExchangeError: The bytes are not a whole release in the one encoding of `frame`.
        """
        header, payload = unframe(data, _Header, "a release")
        header.layout.check("a release")
        values = header.layout.values(payload, header.step, "a release")
        return cls(**msgspec.structs.asdict(header), values=values)
