"""The canary person: one row among the rows of a silo's persons, and the change of the silo's sum by that row.

>>> from fulcrum.core.noise.mechanism import GaussianMechanism, apply_by_person
>>> silo = GaussianMechanism(
...     clip_norm=1.0, clip_share=1.0, weight=0.5, noise_multiplier=2.0, draw=np.zeros, largest_sum=20.0
... )
>>> canary = np.array([16.0, 0.0, 0.0])
>>> shifts_of(apply_by_person, silo, canary, largest_sum=20.0, neighbours="replace")
(0.5, -0.5)
>>> shifts_of(apply_by_person, silo, canary, largest_sum=20.0, neighbours="add-remove")
(0.25, -0.25)

The silo has several other persons, whose rows are the same with and without the canary. An observer knows the other
rows and subtracts the middle of the two sums, so the two sums of the game are equally far from 0.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import Neighbours
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism, Values
from fulcrum.core.noise.noise_sources import SecureNoise

OTHERS = 4
"""The most other persons in the silo of a canary person."""

SumByPerson: TypeAlias = Callable[[GaussianMechanism | LatticeMechanism, Iterable[FloatArray], int], Values]
"""A function like `apply_by_person`: takes a mechanism, one row for each person, and the number of coordinates."""


@dataclass(frozen=True, slots=True)
class NoNoise(SecureNoise):
    """Zeros in the place of noise, for the sum of a silo before its noise."""

    def integers(self, *, width: float, count: int) -> npt.NDArray[np.int64]:  # noqa: ARG002 no noise has no width
        """Returns zeros."""
        return np.zeros(count, dtype=np.int64)


def without_noise(mechanism: GaussianMechanism | LatticeMechanism) -> GaussianMechanism | LatticeMechanism:
    """Returns a mechanism with the same clip, weight and lattice, and without noise."""
    if isinstance(mechanism, GaussianMechanism):
        return replace(mechanism, draw=np.zeros)
    return replace(mechanism, noise=NoNoise())


def shifts_of(
    by_person: SumByPerson,
    mechanism: GaussianMechanism | LatticeMechanism,
    canary: FloatArray,
    *,
    largest_sum: float,
    neighbours: Neighbours,
) -> tuple[float, float]:
    """Returns a silo's sum before noise at the canary's coordinate, in both neighbours, minus the middle of the two.

    With "replace" the canary's row is `canary` or its opposite; with "add-remove" the row is `canary` or is missing.
    The rows of the other persons point the opposite way: a divisor that depends on the number of persons then changes
    the sum of the other persons as far as possible when the canary comes or goes.

    Args:
        by_person: The function that clips and adds rows.
        mechanism: The mechanism of the silo.
        canary: The canary's row before the clip, along the first coordinate.
        largest_sum: The largest norm of the sum, in clip norms: the other persons leave room for the canary.
        neighbours: The convention of the plan.
    """
    silent = without_noise(mechanism)
    others = min(OTHERS, max(int(largest_sum) - 1, 0))

    def total(rows: list[FloatArray]) -> float:
        return float(by_person(silent, [*rows, *[-canary] * others], canary.size)[0])

    first, second = total([canary]), total([-canary] if neighbours == "replace" else [])
    middle = (first + second) / 2
    if isinstance(mechanism, LatticeMechanism):
        middle = float(np.floor(middle))  # releases stay integers, whose low bits the audit tests
    return first - middle, second - middle
