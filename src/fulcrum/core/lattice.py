"""The integers that deployed silos release on: one lattice for the whole federation, fine enough for its lightest silo.

>>> step = lattice_step(least_weight=0.01, clip_norm=1.0, parameters=66)
>>> step, step <= 0.01 / (100 * 66**0.5)
(7.62939453125e-06, True)

A weighted, clipped update is divided by the step and cut toward zero, so that its norm never grows; noise is a discrete
Gaussian in lattice units. Steps are powers of two, so that the scaling is exact. A step tied to the noise instead would
destroy the update: the noise is meant to be larger than it.

All sums that are ever added up are on one lattice. Noise on a coarser one would leave the low bits of their total as
they are, and whoever reads the total modulo the coarse step would meet the noise of the finer regions alone.
"""

import math

from fulcrum.errors import ParameterError, UnreachableTargetError

SIGNAL_LOST = 0.01
"""What the lattice may cut away of an update, in norm, as a share of the lightest silo's weight times C."""

NOISE_DISTANCE = 2.0**-108
"""A bound on the total variation distance that one silo's coordinate adds to that of the noise in a sum.

It covers the sampler's own distance, below 2^-109 at every width, and that of adding it to the others' noise, at most
2^-112 where both are at least 16 steps wide (the lemma in `discrete_gaussian`, with both factors 1).
"""

REFUSAL_TAIL = 2.0**-80
"""How often, at most, a region takes the norm of an honest release for too small, and again for too large.

That it is refused shows above the region and depends on the update, however little: the chance is charged to delta.
"""

LEAST_WIDTH = 16.0
"""Steps; narrower, a sum of discrete Gaussians is no longer one to any precision that matters."""

FARTHEST_DRAW = 32.0
"""In widths: no draw of `discrete_gaussian` is as far out.

A base draw of width s is at most 15 s away, where its weight in units of 2^-159 ends. A sum of them with the factors
1, K, ..., K^(n-1) is then at most 15 s (1 + ... + K^(n-1)), which is below 30 times its own width
s sqrt(1 + ... + K^(2n-2)) for K >= 2 and for the two draws that K = 1 is used with.
"""

_LARGEST = 2.0**52
"""Steps; a release's coordinate stays below, where doubles hold every integer."""


def lattice_step(*, least_weight: float, clip_norm: float, parameters: int) -> float:
    """Returns the step of a federation's lattice: the largest power of two at most w_min C / (100 sqrt(d)).

    Cutting a coordinate toward zero loses less than one step, so an update of d coordinates loses at most step sqrt(d)
    in norm: 1 % of w_min C, the largest update that the lightest silo of the federation releases.
    """
    finest = least_weight * clip_norm * SIGNAL_LOST / math.sqrt(parameters)
    return 2.0 ** math.floor(math.log2(finest))


def delta_reserve(*, rounds: int, parameters: int, members: int, epsilon: float, single: bool = False) -> float:
    """Returns what lattice noise costs in delta: its distance, and honest releases that a region refuses.

    What is within total variation distance n of something that gives (epsilon, delta) gives
    (epsilon, delta + (1 + e^epsilon) n). The distance counts once a round, coordinate and silo of the sum seen, a
    refusal once a round and silo.

    Args:
        rounds: T.
        parameters: d.
        members: The silos of the sum that is seen.
        epsilon: Against its observer.
        single: Whether the observer sees single updates: what a region refuses is then its own doing.
    """
    distance = parameters * NOISE_DISTANCE + (0.0 if single else 2 * REFUSAL_TAIL)
    return (1 + math.exp(min(epsilon, 700.0))) * rounds * members * distance


def convolution_term(width: float, members: int) -> float:
    """Returns how far a sum of discrete Gaussians may be from one, a coordinate (Kairouz et al. 2021, Theorem 11).

    tau = 10 sum over k < m of exp(-2 pi² sigma² k / (k + 1)), with the smallest width of the sum for sigma. From 16
    steps on it is 0 in double precision, however many silos there are.
    """
    return 10 * max(members - 1, 0) * math.exp(-(math.pi**2) * width**2)


def check_fits(*, signal: float, width: float, members: int, silo: str) -> None:
    """Raises `UnreachableTargetError` unless all that a silo may release fits the integers that sums are taken in.

    It asks nothing of any update: whatever a silo trained on, a plan that passes releases it.

    Args:
        signal: The largest coordinate of its clipped, weighted update, w C, in steps.
        width: That of its noise, in steps.
        members: The silos of its federation, whose releases are added up.
        silo: Whose it is, for messages.
    """
    if width < LEAST_WIDTH or convolution_term(width, members) > 0:
        raise UnreachableTargetError("lattice.noise-too-narrow", silo=silo, width=width, least=LEAST_WIDTH)
    if not signal + FARTHEST_DRAW * width < min(_LARGEST, 2.0**63 / members):
        raise UnreachableTargetError("lattice.release-too-large", silo=silo, signal=signal, width=width)


def check_parameters(parameters: int | None) -> int:
    """Returns the number of trainable parameters, which a lattice needs."""
    if parameters is None:
        raise ParameterError("lattice.parameters-missing")
    return parameters
