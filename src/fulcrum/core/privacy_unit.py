"""The unit of privacy: the data in which neighbouring federations differ, and the largest effect on a release.

>>> SILO_UNIT.relation, SILO_UNIT.sensitivity
("replace one silo's whole dataset", 2.0)

A release with effective noise multiplier s is a Gaussian mechanism of sensitivity-to-noise ratio kappa / s, with kappa
the sensitivity below. So T releases have mu² = kappa² T / s², and no further property of the unit enters an epsilon.
"""

import math
from dataclasses import dataclass

from fulcrum.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyUnit:
    """A neighbouring relation, in words and as a number.

    Attributes:
        name: The name of the unit in plan files.
        protected: The protected data, to be read after "every" or "a".
        relation: The change that leads from a federation to its neighbours.
        sensitivity: The largest L2 distance by which the change moves a clipped update of weight 1, as a multiple of
            the clip norm C. Two updates in the ball of radius C are at most 2C apart.
    """

    name: str
    protected: str
    relation: str
    sensitivity: float

    def __post_init__(self) -> None:
        if not 0 < self.sensitivity < math.inf:
            raise ParameterError("unit.sensitivity-range", sensitivity=self.sensitivity)


SILO_UNIT = PrivacyUnit(
    name="silo",
    protected="silo's whole dataset",
    relation="replace one silo's whole dataset",
    sensitivity=2.0,
)

UNITS = {SILO_UNIT.name: SILO_UNIT}
"""The units that a plan file may name."""
