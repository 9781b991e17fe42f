"""The norms of honest releases and of honest sums under a plan; regions and servers refuse other norms.

>>> from fulcrum.planning.planner import plan
>>> sample = plan("isic-paper", rounds=2, epsilon=1.0)
>>> low, high = norm_bounds(sample, 0, 1_000)
>>> low < high < largest_sum(sample, [0, 1], 1_000)
True

A release is a signal of norm at most B, weight times C for each unit of privacy of the silo, plus noise of width s in d
coordinates. The norm of the noise is s times a chi variable with d degrees of freedom.

- Upper bound: the triangle inequality adds B to the norm of the noise.
- Lower bound: for every signal, the norm of signal plus Gaussian noise is stochastically at least the norm of the noise
  alone (a noncentral chi variable), so the bound of the noise holds.

Both bounds hold for continuous noise. The lattice adds at most one step in every coordinate, and rounding a part in
10^9.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray
from fulcrum.core.lattice import REFUSAL_TAIL
from fulcrum.core.plan.figures import multiplier_of_round
from fulcrum.core.plan.verified_plan import VerifiedPlan

_TOLERANCE = 1e-9  # relative: norms are rounded in another order elsewhere


def norm_bounds(plan: VerifiedPlan, silo: int, parameters: int, round_number: int | None = None) -> tuple[float, float]:
    """Returns the least and the largest norm of an honest release, in lattice steps; in research without a unit.

    Args:
        plan: The plan.
        silo: The index of the silo in the federation.
        parameters: The number of coordinates, d.
        round_number: The round, which decides on the noise where membership changes; None bounds the largest noise.
    """
    least = least_sum(plan, [silo], parameters, round_number)
    return least, largest_sum(plan, [silo], parameters)


def least_sum(plan: VerifiedPlan, silos: Sequence[int], parameters: int, round_number: int | None = None) -> float:
    """Returns the least norm of a sum of honest releases: the noises of the releases are independent.

    With many parameters the bound is close to the noise's mean norm. A sum with half of the variance, such as the sum
    of one child in the place of the sum of two, is below the bound from about 1,000 parameters on, where updates are
    small beside noise.

    Args:
        plan: The plan.
        silos: The indices of the silos in the sum.
        parameters: The number of coordinates, d.
        round_number: The round, which decides on the noise where membership changes; None bounds the largest noise.
    """
    widths = _widths(plan, silos)
    if round_number is not None and plan.phase_multiplier is not None:
        drawn = np.array([multiplier_of_round(plan, silo, round_number) for silo in silos])
        widths = _signals(plan, silos) * drawn
    width = math.sqrt(math.fsum(np.square(widths).tolist()))
    slack = len(silos) * _slack(plan, parameters)
    return (width * _chi_bounds(parameters)[0] - slack) * (1 - _TOLERANCE)


def largest_sum(plan: VerifiedPlan, silos: Sequence[int], parameters: int) -> float:
    """Returns the largest norm of a sum of honest releases: the total of the releases' largest norms.

    A region accepts no release beyond the largest norm, so no sum of an honest region exceeds the total.

    Args:
        plan: The plan.
        silos: The indices of the silos in the sum.
        parameters: The number of coordinates, d.
    """
    norms = (
        _signals(plan, silos) * plan.largest_sums[silos]
        + _widths(plan, silos) * _chi_bounds(parameters)[1]
        + _slack(plan, parameters)
    )
    return math.fsum(norms.tolist()) * (1 + _TOLERANCE)


def _signals(plan: VerifiedPlan, silos: Sequence[int]) -> FloatArray:
    """Returns the largest norm of the clipped and weighted update of one unit of privacy, by silo."""
    steps = plan.lattice_steps
    step = 1.0 if steps is None else steps[plan.federation.innermost.parent_of[silos]]
    return np.asarray(plan.weights[silos] * plan.clip_norm / step)


def _widths(plan: VerifiedPlan, silos: Sequence[int]) -> FloatArray:
    """Returns the width of the noise, by silo."""
    return np.asarray(_signals(plan, silos) * plan.noise_multiplier[silos])


def _slack(plan: VerifiedPlan, parameters: int) -> float:
    """Returns the largest change of a norm by rounding to the lattice."""
    return 0.0 if plan.lattice_steps is None else math.sqrt(parameters)


@functools.cache
def _chi_bounds(parameters: int) -> tuple[float, float]:
    """Returns two quantiles of a chi variable, with probability `REFUSAL_TAIL` below the first and above the second."""
    return (
        math.sqrt(2 * special.gammaincinv(parameters / 2, REFUSAL_TAIL)),
        math.sqrt(2 * special.gammainccinv(parameters / 2, REFUSAL_TAIL)),
    )
