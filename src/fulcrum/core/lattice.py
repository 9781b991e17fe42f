"""The lattice of deployed releases: the same integers for the whole federation, fine enough for the lightest silo.

>>> step = lattice_step(least_weight=0.01, clip_norm=1.0, parameters=66)
>>> step, step <= 0.01 / (100 * 66**0.5)
(7.62939453125e-06, True)

A weighted, clipped update is divided by the step and cut toward zero, so its norm never grows. The noise is a discrete
Gaussian in lattice units. Steps are powers of two, so the scaling is exact. A step tied to the noise instead would
destroy the update, since the noise is larger than the update by intention.

All sums that are ever added up lie on the same lattice. Noise on a coarser lattice would leave the low bits of the
total unchanged: an observer who reads the total modulo the coarse step would see the noise of the finer regions alone.
"""

import math

from fulcrum.errors import ParameterError, UnreachableTargetError

SIGNAL_LOST = 0.01
"""The largest norm that the lattice cuts from an update, as a share of the lightest silo's weight times C."""

NOISE_DISTANCE = 2.0**-108
"""A bound on the total variation distance that a coordinate of a silo adds to the distance of the noise in a sum.

The bound covers the distance of the sampler, below 2^-109 at every width, and the distance of the addition to the noise
of the remaining silos, at most 2^-112 if both are at least 16 steps wide (the lemma in `discrete_gaussian`, with both
factors 1).
"""

REFUSAL_TAIL = 2.0**-80
"""The largest probability that a region refuses an honest release as too small, and again as too large.

A refusal is visible above the region and depends on the update, however little, so the probability is charged to delta.
"""

LEAST_WIDTH = 16.0
"""In steps. The sum of narrower discrete Gaussians is no discrete Gaussian to a sufficient precision."""

FARTHEST_DRAW = 32.0
"""In widths: a bound on the magnitude of every draw of `discrete_gaussian`.

A base draw of width s is at most 15 s, since farther weights are 0 in units of 2^-159. A sum of base draws with the
factors 1, K, ..., K^(n-1) is at most 15 s (1 + ... + K^(n-1)). The bound is below 30 times the sum's own width
s sqrt(1 + ... + K^(2n-2)) for K >= 2, and for K = 1 with the two draws of that case.
"""

_LARGEST = 2.0**52
"""In steps. A coordinate of a release stays below, since doubles hold every integer up to 2^53."""


def lattice_step(*, least_weight: float, clip_norm: float, parameters: int) -> float:
    """Returns the step of a federation's lattice: the largest power of two at most w_min C / (100 sqrt(d)).

    Cutting a coordinate toward zero loses less than a step, so an update of d coordinates loses at most step sqrt(d) in
    norm: 1 % of w_min C, the largest update that the lightest silo of the federation releases.
    """
    finest = least_weight * clip_norm * SIGNAL_LOST / math.sqrt(parameters)
    # Down to a power of two: multiplication and division by the step are then exact.
    return 2.0 ** math.floor(math.log2(finest))


def delta_reserve(*, rounds: int, parameters: int, members: int, epsilon: float, single: bool = False) -> float:
    """Returns the cost of lattice noise in delta: distance from exact noise, and refusals of honest releases.

    A mechanism within total variation distance n of an (epsilon, delta) private mechanism is
    (epsilon, delta + (1 + e^epsilon) n) private. The distance counts once for every round, coordinate and silo of the
    observed sum, a refusal once for every round and silo.

    Args:
        rounds: T.
        parameters: d.
        members: The number of silos in the observed sum.
        epsilon: The epsilon against the observer.
        single: True if the observer sees single updates; refusals of the region are then the observer's own acts.
    """
    distance = parameters * NOISE_DISTANCE + (0.0 if single else 2 * REFUSAL_TAIL)
    return (1 + math.exp(min(epsilon, 700.0))) * rounds * members * distance


def convolution_term(width: float, members: int) -> float:
    """Returns the distance of a sum of discrete Gaussians from a discrete Gaussian (Kairouz et al. 2021, Theorem 11).

    The distance of a coordinate is tau = 10 sum over k < m of exp(-2 pi² sigma² k / (k + 1)), with the smallest width
    of the sum as sigma. From 16 steps on tau is 0 in double precision, for any number of silos.
    """
    return 10 * max(members - 1, 0) * math.exp(-(math.pi**2) * width**2)


def check_fits(*, signal: float, width: float, members: int, silo: str) -> None:
    """Raises `UnreachableTargetError` unless every possible release of a silo fits the integers of the sums.

    The check does not depend on any update: a plan that passes can release every update of the silo.

    Args:
        signal: The largest coordinate of the clipped, weighted update, w C, in steps.
        width: The width of the silo's noise, in steps.
        members: The number of silos in the federation, whose releases are added up.
        silo: The name of the silo, for messages.
    """
    if width < LEAST_WIDTH or convolution_term(width, members) > 0:
        raise UnreachableTargetError("lattice.noise-too-narrow", silo=silo, width=width, least=LEAST_WIDTH)
    # The largest possible draw, not a likely draw: no proof covers integers that wrap.
    if not signal + FARTHEST_DRAW * width < min(_LARGEST, 2.0**63 / members):
        raise UnreachableTargetError("lattice.release-too-large", silo=silo, signal=signal, width=width)


def check_parameters(parameters: int | None) -> int:
    """Returns the number of trainable parameters, or raises `ParameterError` for None: a lattice needs the number."""
    if parameters is None:
        raise ParameterError("lattice.parameters-missing")
    return parameters
