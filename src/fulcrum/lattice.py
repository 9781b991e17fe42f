"""The integers that a deployed silo releases on: one lattice a region, fine enough to lose at most 1 % of the signal.

>>> step = lattice_step(least_weight=0.01, clip_norm=1.0, parameters=66)
>>> step, step <= 0.01 / (100 * 66**0.5)
(7.62939453125e-06, True)

A weighted, clipped update is divided by the step and cut toward zero, so that its norm never grows; noise is a discrete
Gaussian in lattice units. Steps are powers of two, so that the scaling is exact. A step tied to the noise instead would
destroy the update: the noise is meant to be larger than it.
"""

import math

from fulcrum.errors import ParameterError, UnreachableTargetError

SIGNAL_LOST = 0.01
"""The share of a silo's update that the lattice may cut away, in norm."""

NOISE_DISTANCE = 2.0**-108
"""A bound on the total variation distance that one silo's coordinate adds to that of its region's noise.

It covers the sampler's own distance, below 2^-109 at every width, and that of adding it to the others' noise, at most
2^-112 where both are at least 16 steps wide (the lemma in `discrete_gaussian`, with both factors 1).
"""

LEAST_WIDTH = 16.0
"""Steps; narrower, a sum of discrete Gaussians is no longer one to any precision that matters."""


_MOST_WIDTH = 2.0**52


def lattice_step(*, least_weight: float, clip_norm: float, parameters: int) -> float:
    """Returns the step of a region's lattice: the largest power of two at most w_min C / (100 sqrt(d)).

    Cutting a coordinate toward zero loses less than one step, so an update of d coordinates loses at most step sqrt(d)
    in norm: 1 % of what the lightest silo of the region can release.
    """
    finest = least_weight * clip_norm * SIGNAL_LOST / math.sqrt(parameters)
    return 2.0 ** math.floor(math.log2(finest))


def delta_reserve(*, rounds: int, parameters: int, members: int, epsilon: float) -> float:
    """Returns what the distance of lattice noise costs in delta, once a round, coordinate and silo of the region.

    Noise within total variation distance n of one that gives (epsilon, delta) gives
    (epsilon, delta + (1 + e^epsilon) n).
    """
    return (1 + math.exp(min(epsilon, 700.0))) * rounds * parameters * members * NOISE_DISTANCE


def convolution_term(width: float, members: int) -> float:
    """Returns how far a sum of discrete Gaussians may be from one, a coordinate (Kairouz et al. 2021, Theorem 11).

    tau = 10 sum over k < m of exp(-2 pi² sigma² k / (k + 1)), with the smallest width of the region for sigma. From 16
    steps on it is 0 in double precision, however many silos there are.
    """
    return 10 * max(members - 1, 0) * math.exp(-(math.pi**2) * width**2)


def check_width(width: float, members: int, silo: str) -> None:
    """Raises `UnreachableTargetError` where a silo's noise is too narrow for sums of it to be Gaussian."""
    if width > _MOST_WIDTH:
        raise UnreachableTargetError(
            f"silo {silo!r}: its noise is {width:.3g} lattice steps wide, more than integers hold"
        )
    if width < LEAST_WIDTH or convolution_term(width, members) > 0:
        raise UnreachableTargetError(
            f"silo {silo!r}: its noise is {width:.3g} lattice steps wide, below {LEAST_WIDTH:g}, so sums of it are "
            "not proven to be Gaussian. Ask for a smaller epsilon"
        )


def check_parameters(parameters: int | None) -> int:
    """Returns the number of trainable parameters, which a lattice needs."""
    if parameters is None:
        raise ParameterError(
            "a deployment plan needs the number of trainable parameters. Give parameters (--parameters)"
        )
    return parameters
