"""The prior of silos' concentrations: the information about a silo in its group, and the entropy in all.

>>> print(f"{lateral_floor(60, coupling=20):.2f} nats of {prior_entropy(20, levels=20):.2f}")
0.91 nats of 2.94

The prior is hierarchical: Phi ~ Beta(2, 2) for a group, p | Phi ~ Beta(kappa Phi, kappa (1 - Phi)) for each member. All
information is in nats.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError

_NODES = 400  # of the grid of group means; sd/step of the posterior is then at least 0.9 up to _STRONGEST
_WEAKEST, _STRONGEST = 1e-3, 1e4  # outside, the floor follows its limit in the coupling to 4e-4 nats
_LARGEST_SUM = 32  # members; beyond, the gain of one more follows its limit
_EXACT, _NORMAL = 1e3, 2e3  # couplings between which the floor in levels passes over to its normal limit
_SHARP = 1e7  # coupling beyond which the unknown part of a level goes as the width of p about the group's mean
_MOST_LEVELS = 2000  # a silo of a million records resolves no more


@dataclass(frozen=True, slots=True)
class Coupling:
    """The similarity of silos in one group: the parameter of the prior distribution of the information floor.

    The information floor is the information about a silo that the other silos of its group reveal, without any update.

    Attributes:
        strength: The paper's kappa, finite and above 0. Members of a group with a larger kappa resemble each other
            more.
    """

    strength: float

    def __post_init__(self) -> None:
        above_zero("coupling", self.strength)


def lateral_floor(
    group_size: npt.ArrayLike, *, coupling: float | Coupling, levels: int | None = 400
) -> float | FloatArray:
    """Returns the information floor: nats that a silo's group reveals with no update sent, I(bin(p_1); p_2 .. p_m).

    The prior: Phi ~ Beta(2, 2) for the group, p | Phi ~ Beta(kappa Phi, kappa (1 - Phi)) for each member. The silo's
    own p_1 is quantised to equal levels. The concentrations of the remaining members are not quantised, since the
    condition is on their data. Deterministic quadrature throughout, accurate to 5e-4 nats (beyond kappa 1e6, with more
    than 400 levels, to 0.04).

    A coarser p has a lower floor, so the floor in 400 levels also bounds the floors in 4, 10, 20 and 50 levels, which
    divide 400, and the unquantised floor bounds the floor in any number of levels. The unquantised floor is above the
    floor in 400 levels by 0.001 at kappa 20, by 0.04 at kappa 1, and without limit as kappa grows, since the floor in
    levels saturates at `prior_entropy`.

    Args:
        group_size: Members m of the group, the silo included; whole numbers, or `math.inf` for saturation, I(bin; Phi).
        coupling: kappa.
        levels: Equal levels that p_1 is resolved to, at most 2000; None leaves p_1 unquantised.

    Returns:
        Nats, of the shape of `group_size`. 0 for a silo alone; non-decreasing in size and in coupling.
    """
    kappa = strength_of(coupling)
    if levels is not None:
        _check_levels(levels)
    sizes = np.asarray(group_size, dtype=np.float64)
    wrong = sizes[~((sizes >= 1) & (np.isinf(sizes) | (sizes == np.floor(sizes))))]
    if wrong.size:
        raise ParameterError("prior.group-size-range", group_size=wrong[0])
    distinct, where = np.unique(sizes, return_inverse=True)
    floors = [_floor(float(m), kappa) if levels is None else _floor_in(int(levels), float(m), kappa) for m in distinct]
    return like_input(np.array(floors)[where].reshape(sizes.shape))


@lru_cache(maxsize=4096)
def _floor(m: float, kappa: float) -> float:
    """Returns I(p_1; p_2 .. p_m) unquantised to 1e-4 nats, and to 4e-4 beyond the strongest coupling.

    Members are exchangeable, so with J(n) = I(Phi; p_1 .. p_n) the floor is J(1) + J(m - 1) - J(m), exactly.
    """
    if m == 1:
        return 0.0
    held = min(max(kappa, _WEAKEST), _STRONGEST)
    # The Gaussian location limit beyond the strongest: J(n) grows by half the logarithm of the precision.
    saturation = _group_information(1, held) + 0.5 * math.log(max(kappa / _STRONGEST, 1.0))
    if math.isinf(m):
        return saturation
    # The last member's gain J(n+1) - J(n) is log1p(1/n)/2 + O(1/n^2); the remainder is matched at the largest sum held.
    others = m - 1
    n = _members_summed(others, held)
    remainder = _group_information(n + 1, held) - _group_information(n, held) - 0.5 * math.log1p(1 / n)
    return saturation - 0.5 * math.log1p(1 / others) - remainder * (n / others) ** 2


@lru_cache(maxsize=4096)
def _floor_in(levels: int, m: float, kappa: float) -> float:
    """Returns I(bin(p_1); p_2 .. p_m): exact at moderate coupling, the normal limit at a strong coupling.

    Neither the shares of the two formulas nor, for divisors of 400, the nodes depend on the levels: splitting a level
    does not lower the floor.
    """
    if m == 1 or levels == 1:
        return 0.0
    normal = min(math.log(max(kappa / _EXACT, 1.0)) / math.log(_NORMAL / _EXACT), 1.0)
    floor = normal * _normal_floor(levels, m, kappa) if normal > 0 else 0.0
    floor += (1 - normal) * _exact_floor(levels, m, max(kappa, _WEAKEST)) if normal < 1 else 0.0
    return min(floor, _floor(m, kappa))


def _exact_floor(levels: int, m: float, kappa: float) -> float:
    prior, bins = _group_means(_NODES)[2], _bins(levels, kappa)
    marginal = prior @ bins
    saturation = _information(prior, bins, marginal)
    if math.isinf(m):
        return saturation
    n = _members_summed(m - 1, kappa)
    weight, posterior = _posterior(n, kappa)
    shortfall = saturation - _information(weight, posterior @ bins, marginal)
    if m - 1 > n:  # both shortfalls of saturation, quantised and not, go as 1/n
        limit = _floor(math.inf, kappa)
        shortfall *= (limit - _floor(m, kappa)) / (limit - _floor(n + 1, kappa))
    return saturation - shortfall


def _normal_floor(levels: int, m: float, kappa: float) -> float:
    """Returns the floor if every angle arcsin(sqrt(p)) is normal about the group's angle, of variance 1/(4 kappa).

    Given n more members, p_1 is then normal about their mean of variance (1 + 1/n)/(4 kappa). Errs by less than 1/kappa
    nats.
    """
    held = min(kappa, _SHARP)
    sd = 0.5 * math.sqrt((1 + 1 / (m - 1)) / held)
    panels = levels * -(-_NODES // levels)  # the levels, each split equally: no panel straddles two
    ends = np.arcsin(np.sqrt(np.linspace(0, 1, panels + 1)))
    node, weight = np.polynomial.legendre.leggauss(-(-10 * _NODES // panels))
    angle = (ends[:-1, None] + np.diff(ends)[:, None] * (node + 1) / 2).ravel()
    prior = (np.diff(ends)[:, None] * weight).ravel() * (np.sin(angle) * np.cos(angle)) ** 3
    prior /= prior.sum()
    edges = np.concatenate([[-np.inf], ends[:: panels // levels][1:-1], [np.inf]])
    bins = np.maximum(np.diff(special.ndtr((edges - angle[:, None]) / sd)), 0.0)
    unknown = float(prior @ special.entr(bins).sum(axis=1))
    return _entropy(levels, kappa) - math.sqrt(held / kappa) * unknown


def _members_summed(others: float, kappa: float) -> int:
    """Returns the number of members whose sum the grid of group means resolves."""
    return int(min(others, max(1, min(_LARGEST_SUM, _STRONGEST // kappa))))


def _information(weight: FloatArray, conditional: FloatArray, marginal: FloatArray) -> float:
    """Returns the mean divergence of the rows of `conditional` from `marginal`."""
    return float(weight @ special.rel_entr(conditional, marginal).sum(axis=1))


@lru_cache(maxsize=2)
def _group_means(nodes: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns nodes of Phi, 1 - Phi and the prior masses of the nodes.

    The nodes are uniform in the angle arcsin(sqrt(Phi)): in the angle a posterior has the same width everywhere and the
    midpoint rule converges as step^4.
    """
    angle = (np.arange(nodes) + 0.5) * np.pi / 2 / nodes
    phi, other = np.sin(angle) ** 2, np.cos(angle) ** 2
    prior = (phi * other) ** 1.5
    return phi, other, prior / prior.sum()


@lru_cache(maxsize=8)
def _bins(levels: int, kappa: float) -> FloatArray:
    """Returns the masses of the levels of p given each node of Phi."""
    phi, other, _ = _group_means(_NODES)
    half = slice(0, _NODES // 2)
    below = special.betainc(kappa * phi[half, None], kappa * other[half, None], np.linspace(0, 1, levels + 1))
    masses = np.maximum(np.diff(below), 0.0)
    return np.concatenate([masses, masses[::-1, ::-1]])


@lru_cache(maxsize=4096)
def _group_information(n: int, kappa: float) -> float:
    """Returns J(n) = I(Phi; p_1 .. p_n)."""
    weight, posterior = _posterior(n, kappa)
    return _information(weight, posterior, _group_means(_NODES)[2])


@lru_cache(maxsize=8)
def _posterior(n: int, kappa: float) -> tuple[FloatArray, FloatArray]:
    """Returns the weights of nodes of t, the statistic of n members, and the posterior of Phi at each node.

    With kappa fixed, n members are an exponential family in t = sum of logit p_j: f(t | Phi) = g(t) exp(kappa Phi t - n
    log B(Phi)). Nodes of t are the means of t at half of the nodes of Phi: the model is symmetric under Phi -> 1 - Phi,
    t -> -t.
    """
    phi, other, prior = _group_means(_NODES)
    log_beta = special.betaln(kappa * phi, kappa * other)
    half = slice(0, _NODES // 2)
    a, b = kappa * phi[half], kappa * other[half]
    mean = special.digamma(a) - special.digamma(b)
    variance = special.polygamma(1, a) + special.polygamma(1, b)
    # log f(t_k | Phi_j) - log f(t_k | Phi_k): at most 0, as t_k is the mean at Phi_k.
    tilt = n * (kappa * (phi - phi[half, None]) * mean[:, None] - (log_beta - log_beta[half, None]))
    joint = prior * np.exp(tilt)
    evidence = joint.sum(axis=1)
    weight = evidence * _density_at_mean(n, a, b, mean, variance) * n * kappa * variance * np.sqrt(phi * other)[half]
    return weight / weight.sum(), joint / evidence[:, None]


def _density_at_mean(n: int, a: FloatArray, b: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Returns the density of a sum of n logits of Beta(a, b) at its mean, by inverting the characteristic function.

    The trapezoid rule with step 1/4 in units of 1/sd errs by the density 25 sd away. Inversion at the mean (the saddle
    point) keeps the integrand free of cancellation.
    """
    if n == 1:
        return np.exp(a * mean - (a + b) * np.logaddexp(0.0, mean) - special.betaln(a, b))
    # The slowest decay is that of a gamma variable of shape n, as a or b goes to 0: (1 + v^2/n)^(-n/2).
    reach = min(100.0, math.sqrt(n * math.expm1(2 / n * math.log(1e8))))
    frequency = np.arange(0.0, reach, 0.25) / np.sqrt(n * variance)[:, None]
    cumulant = special.loggamma(a[:, None] + 1j * frequency) + special.loggamma(b[:, None] - 1j * frequency)
    cumulant -= special.betaln(a, b)[:, None] + special.gammaln(a + b)[:, None] + 1j * frequency * mean[:, None]
    wave = np.exp(n * cumulant).real
    density: FloatArray = (wave.sum(axis=1) - wave[:, 0] / 2) * frequency[:, 1] / np.pi
    return density


def prior_entropy(coupling: float | Coupling, *, levels: int) -> float:
    """Returns the entropy in nats of a silo's concentration under the prior of `lateral_floor`, in equal levels."""
    _check_levels(levels)
    return _entropy(int(levels), strength_of(coupling))


def _check_levels(levels: int) -> None:
    if levels > _MOST_LEVELS:
        raise ParameterError("prior.levels-limit", most=_MOST_LEVELS, levels=levels)
    at_least_one("levels", levels)


@lru_cache(maxsize=256)
def _entropy(levels: int, kappa: float) -> float:
    # Outside, p is 0 or 1, or the group's Beta(2, 2), to 2e-5 nats.
    kappa = min(max(kappa, 1e-9), 10 * _STRONGEST)
    phi, other, prior = _group_means(2 * _NODES)
    below = special.betainc(kappa * phi[:, None], kappa * other[:, None], np.linspace(0, 1, levels + 1))
    return max(0.0, float(special.entr(np.maximum(np.diff(prior @ below), 0.0)).sum()))


def strength_of(coupling: float | Coupling) -> float:
    """Returns kappa, checked."""
    return coupling.strength if isinstance(coupling, Coupling) else above_zero("coupling", coupling)


def above_zero(name: str, value: float) -> float:
    """Returns a finite number above 0, or raises `ParameterError`."""
    if not 0 < value < math.inf:
        raise ParameterError("prior.value-range", name=name, value=value)
    return float(value)


def at_least_one(name: str, value: int) -> None:
    """Raises `ParameterError` unless a number is whole and at least 1."""
    if not (value >= 1 and value == math.floor(value)):
        raise ParameterError("number.whole-range", name=name, least=1, value=value)


def like_input(array: Any) -> float | FloatArray:
    """Returns a float for a scalar, and the array itself otherwise."""
    return float(array) if np.ndim(array) == 0 else np.asarray(array, dtype=np.float64)
