"""What norm an honest release can have under a plan, and an honest sum of them: regions and servers hold them to it.

>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> low, high = norm_bounds(made, 0, 1_000)
>>> low < high < largest_sum(made, [0, 1], 1_000)
True

A release is a signal of norm at most B, weight times C, plus noise of width s in each of d coordinates. The norm of
the noise is s times a chi variable. Above, the triangle inequality adds B. Below, nothing is taken off: whatever
the signal, signal plus Gaussian noise is stochastically no smaller in norm than the noise alone (a noncentral chi).
Both hold for continuous noise; one step a coordinate is allowed for the lattice, and a part in 10^9 for rounding.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray
from fulcrum.core.lattice import REFUSAL_TAIL
from fulcrum.core.plan.verified_plan import VerifiedPlan

_TOLERANCE = 1e-9  # relative, of norms rounded in another order


def norm_bounds(plan: VerifiedPlan, silo: int, parameters: int) -> tuple[float, float]:
    """Returns the least and the largest norm of an honest release, in steps of the lattice, or bare in research.

    Args:
        plan: Says weight, clip norm, width and step.
        silo: Where the silo stands in the federation.
        parameters: d.
    """
    width, slack = float(_widths(plan, [silo])[0]), _slack(plan, parameters)
    least = (width * _chi_bounds(parameters)[0] - slack) * (1 - _TOLERANCE)
    return least, largest_sum(plan, [silo], parameters)


def largest_sum(plan: VerifiedPlan, silos: Sequence[int], parameters: int) -> float:
    """Returns the largest norm of a sum of honest releases: that of each, added up.

    A region takes in no release beyond its own largest norm, so no honest sum is beyond this.

    Args:
        plan: Says weights, clip norm, widths and step.
        silos: Whose releases are in the sum, as they stand in the federation.
        parameters: d.
    """
    each = _signals(plan, silos) + _widths(plan, silos) * _chi_bounds(parameters)[1] + _slack(plan, parameters)
    return math.fsum(each.tolist()) * (1 + _TOLERANCE)


def _signals(plan: VerifiedPlan, silos: Sequence[int]) -> FloatArray:
    """By silo, the largest norm of its clipped, weighted update."""
    steps = plan.lattice_steps
    step = 1.0 if steps is None else steps[plan.federation.innermost.parent_of[silos]]
    return np.asarray(plan.weights[silos] * plan.clip_norm / step)


def _widths(plan: VerifiedPlan, silos: Sequence[int]) -> FloatArray:
    """By silo, the width of its noise."""
    return np.asarray(_signals(plan, silos) * plan.noise_multiplier[silos])


def _slack(plan: VerifiedPlan, parameters: int) -> float:
    """What a lattice may add to a norm."""
    return 0.0 if plan.lattice_steps is None else math.sqrt(parameters)


@functools.cache
def _chi_bounds(parameters: int) -> tuple[float, float]:
    """Returns the quantiles of a chi variable with `REFUSAL_TAIL` below and above them."""
    return (
        math.sqrt(2 * special.gammaincinv(parameters / 2, REFUSAL_TAIL)),
        math.sqrt(2 * special.gammainccinv(parameters / 2, REFUSAL_TAIL)),
    )
