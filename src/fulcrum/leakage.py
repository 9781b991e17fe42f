"""What an observer learns of a silo's sensitive-class concentration: lateral floor, information bound, informativeness.

>>> print(f"{lateral_floor(60, coupling=20):.2f} nats from its neighbours")
0.91 nats from its neighbours
>>> print(f"{mechanism_information(25.82, rounds=10):.3f} nats from the mechanism")
0.030 nats from the mechanism

All information is in nats. A multiplier here is the effective one: the noise an observer meets over the silo's weight,
in units of the clip norm. The floor comes from the silo's group and flows around the mechanism: no noise lowers it.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from fulcrum.arrays import FloatArray, FloatLike, read_only
from fulcrum.errors import ParameterError, UnreachableTargetError, listing, suggestion

BOUNDS = ("paper", "capacity")
"""Bounds on what one round reveals: the paper's divergence over the clip ball, or the Gaussian channel's capacity."""

_NODES = 400  # of the grid of group means; sd/step of the posterior is then at least 0.9 up to _STRONGEST
_WEAKEST, _STRONGEST = 1e-3, 1e4  # outside, the floor follows its limit in the coupling to 4e-4 nats
_LARGEST_SUM = 32  # members; beyond, the gain of one more follows its limit
_EXACT, _NORMAL = 1e3, 2e3  # couplings between which the floor in levels passes over to its normal limit
_SHARP = 1e7  # coupling beyond which what is left unknown of a level goes as the width of p about its group's mean
_MOST_LEVELS = 2000  # a silo of a million records resolves no more


@dataclass(frozen=True, slots=True)
class Coupling:
    """Take the floor from the hierarchical Beta prior with this concentration of silos about their group's mean.

    Attributes:
        strength: The paper's kappa, finite and above 0. Larger means that members resemble each other more.
    """

    strength: float

    def __post_init__(self) -> None:
        _above_zero("coupling", self.strength)


def lateral_floor(
    group_size: npt.ArrayLike, *, coupling: float | Coupling, levels: int | None = 400
) -> float | FloatArray:
    """Returns what the other members of a silo's group reveal of it with no update sent, I(bin(p_1); p_2 .. p_m).

    The prior: Phi ~ Beta(2, 2) for the group, p | Phi ~ Beta(kappa Phi, kappa (1 - Phi)) for each member. The silo's
    own p_1 is quantised to equal levels. The others are not: what is conditioned on is their data. Deterministic
    quadrature throughout, accurate to 5e-4 nats (beyond kappa 1e6, where levels are above 400, to 0.04).

    A coarser p has a lower floor, so the floor in 400 levels also bounds those in 4, 10, 20 and 50, which divide it,
    and the unquantised floor those in any number of levels. It is above that in 400 by 0.001 at kappa 20, by 0.04 at
    kappa 1, and without limit as kappa grows, where the floor in levels saturates at `prior_entropy`.

    Args:
        group_size: Members m of the group, the silo included; whole numbers, or `math.inf` for saturation, I(bin; Phi).
        coupling: kappa.
        levels: Equal levels that p_1 is resolved to, at most 2000; None leaves it unquantised.

    Returns:
        Nats, of the shape of `group_size`. 0 for a silo alone; non-decreasing in size and in coupling.
    """
    kappa = _strength(coupling)
    if levels is not None:
        _check_levels(levels)
    sizes = np.asarray(group_size, dtype=np.float64)
    wrong = sizes[~((sizes >= 1) & (np.isinf(sizes) | (sizes == np.floor(sizes))))]
    if wrong.size:
        raise ParameterError(f"group_size must be a whole number of at least 1 (or inf), got {wrong[0]:g}")
    distinct, where = np.unique(sizes, return_inverse=True)
    floors = [_floor(float(m), kappa) if levels is None else _floor_in(int(levels), float(m), kappa) for m in distinct]
    return _like_input(np.array(floors)[where].reshape(sizes.shape))


@lru_cache(maxsize=4096)
def _floor(m: float, kappa: float) -> float:
    """Returns I(p_1; p_2 .. p_m) unquantised to 1e-4 nats, and to 4e-4 beyond the strongest coupling.

    Members are exchangeable, so with J(n) = I(Phi; p_1 .. p_n) it is J(1) + J(m - 1) - J(m), exactly.
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
    n = _summed(others, held)
    remainder = _group_information(n + 1, held) - _group_information(n, held) - 0.5 * math.log1p(1 / n)
    return saturation - 0.5 * math.log1p(1 / others) - remainder * (n / others) ** 2


@lru_cache(maxsize=4096)
def _floor_in(levels: int, m: float, kappa: float) -> float:
    """Returns I(bin(p_1); p_2 .. p_m): exact at moderate coupling, its normal limit at a strong one.

    Neither the shares of the two nor, for divisors of 400, their nodes depend on the levels: splitting a level does not
    lower the floor.
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
    n = _summed(m - 1, kappa)
    weight, posterior = _posterior(n, kappa)
    shortfall = saturation - _information(weight, posterior @ bins, marginal)
    if m - 1 > n:  # both shortfalls of saturation, quantised and not, go as 1/n
        limit = _floor(math.inf, kappa)
        shortfall *= (limit - _floor(m, kappa)) / (limit - _floor(n + 1, kappa))
    return saturation - shortfall


def _normal_floor(levels: int, m: float, kappa: float) -> float:
    """Returns the floor where every angle arcsin(sqrt(p)) is normal about its group's, of variance 1/(4 kappa).

    Given n others, p_1 is then normal about their mean of variance (1 + 1/n)/(4 kappa). Errs by less than 1/kappa nats.
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


def _summed(others: float, kappa: float) -> int:
    """Returns how many of the others the grid of group means resolves a sum over."""
    return int(min(others, max(1, min(_LARGEST_SUM, _STRONGEST // kappa))))


def _information(weight: FloatArray, given: FloatArray, marginal: FloatArray) -> float:
    """Returns the mean divergence of the rows of `given` from `marginal`."""
    return float(weight @ special.rel_entr(given, marginal).sum(axis=1))


@lru_cache(maxsize=2)
def _group_means(nodes: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns nodes of Phi, 1 - Phi and their prior masses.

    They are uniform in the angle arcsin(sqrt(Phi)), in which a posterior has the same width everywhere and the midpoint
    rule converges as step^4.
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
    """Returns weights of nodes of what n members show, and the posterior of Phi at each.

    With kappa fixed, n members are an exponential family in t = sum of logit p_j: f(t | Phi) = g(t) exp(kappa Phi t -
    n log B(Phi)). Nodes of t are its means at the nodes of Phi, half of them: the model is symmetric under
    Phi -> 1 - Phi, t -> -t.
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
    """Returns the density at its own mean of a sum of n logits of Beta(a, b), by inverting its characteristic function.

    The trapezoid rule with step 1/4 in units of 1/sd errs by the density 25 sd away. Inversion at the mean (the
    saddle point) keeps the integrand free of cancellation.
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


def mechanism_information(
    multiplier: FloatLike, *, rounds: int, bound: str = "paper", parameters: int | None = None
) -> float | FloatArray:
    """Returns the mechanism term of Theorem 2 over all rounds, in nats, at effective multiplier s.

    - `paper`: 2 T / s^2, the largest divergence between silo-adjacent inputs (diameter 2C of the clip ball).
    - `capacity`: T (d/2) ln(1 + 1/(d s^2)), the capacity of the Gaussian channel whose input lies in the ball of radius
      C; it holds round by round given the past. Never above T/(2 s^2), a quarter of `paper`. It tightens the
      information bound alone: at equal information its epsilon is larger.

    Args:
        multiplier: s, at least 0. 0 gives inf, inf gives 0.
        rounds: T.
        bound: One of `BOUNDS`.
        parameters: d, for `capacity`; None is the limit of many parameters, T/(2 s^2). `paper` does not use it.
    """
    _check_channel(rounds, bound, parameters)
    s = _non_negative("multiplier", multiplier)
    with np.errstate(divide="ignore", over="ignore"):
        if bound == "capacity" and parameters is not None:
            signal = -2 * np.log(s) - math.log(parameters)
            return _like_input(rounds * parameters / 2 * np.logaddexp(0.0, signal))
        return _like_input((2.0 if bound == "paper" else 0.5) * rounds * (1 / s) ** 2)


def multiplier_for_information(
    nats: FloatLike, *, rounds: int, bound: str = "paper", parameters: int | None = None
) -> float | FloatArray:
    """Returns the least effective multiplier whose mechanism term over all rounds is `nats`: the inverse.

    `nats` is K - ell, what a target leaves to the mechanism once the floor is paid; above 0, and inf gives 0. The other
    arguments are those of `mechanism_information`.
    """
    _check_channel(rounds, bound, parameters)
    left = np.asarray(nats, dtype=np.float64)
    wrong = left[~(left > 0)]
    if wrong.size:
        raise ParameterError(f"nats must be above 0, got {wrong[0]}")
    if bound == "capacity" and parameters is not None:
        x = 2 * left / rounds / parameters
        return _like_input(np.exp(-x / 2) / np.sqrt(-parameters * np.expm1(-x)))
    return _like_input(np.sqrt((2.0 if bound == "paper" else 0.5) * rounds / left))


def information_bound(
    multiplier: FloatLike,
    *,
    floor: FloatLike,
    entropy: FloatLike,
    rounds: int,
    bound: str = "paper",
    parameters: int | None = None,
) -> float | FloatArray:
    """Returns Theorem 2's bound on what any estimate reveals of a silo's concentration, min(H, T m + ell), in nats."""
    mechanism = mechanism_information(multiplier, rounds=rounds, bound=bound, parameters=parameters)
    total = mechanism + _non_negative("floor", floor)
    return _like_input(np.minimum(_non_negative("entropy", entropy), total))


def quantised_entropy(concentrations: FloatLike, *, levels: int) -> float:
    """Returns the empirical entropy in nats of concentrations quantised to equal levels; 1.0 is in the last level."""
    _at_least_one("levels", levels)
    p = np.asarray(concentrations, dtype=np.float64).ravel()
    wrong = p[~((p >= 0) & (p <= 1))]
    if wrong.size or not p.size:
        raise ParameterError(f"concentrations must be in [0, 1], got {wrong[0] if wrong.size else 'none'}")
    counts = np.unique(np.minimum(np.floor(p * levels), levels - 1), return_counts=True)[1]
    return float(special.entr(counts / p.size).sum())


def prior_entropy(coupling: float | Coupling, *, levels: int) -> float:
    """Returns the entropy in nats of a silo's concentration under the prior of `lateral_floor`, in equal levels."""
    _check_levels(levels)
    return _entropy(int(levels), _strength(coupling))


def _check_levels(levels: int) -> None:
    if levels > _MOST_LEVELS:
        raise ParameterError(f"levels must be at most {_MOST_LEVELS}, got {levels}")
    _at_least_one("levels", levels)


@lru_cache(maxsize=256)
def _entropy(levels: int, kappa: float) -> float:
    # Outside, p is 0 or 1, or the group's Beta(2, 2), to 2e-5 nats.
    kappa = min(max(kappa, 1e-9), 10 * _STRONGEST)
    phi, other, prior = _group_means(2 * _NODES)
    below = special.betainc(kappa * phi[:, None], kappa * other[:, None], np.linspace(0, 1, levels + 1))
    return max(0.0, float(special.entr(np.maximum(np.diff(prior @ below), 0.0)).sum()))


def finest_resolution(records: float) -> int:
    """Returns the most levels that a silo of so many records can resolve, floor(2 sqrt(N)) and at least 1.

    The sampling error of a concentration is up to sqrt(1 / 4N), so a finer level is not identifiable.

    >>> finest_resolution(200)
    28
    """
    if not 0 <= records < math.inf:
        raise ParameterError(f"records must be a finite number of at least 0, got {records}")
    return max(1, math.isqrt(math.floor(4 * records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Informativeness:
    """Whether a guarantee says anything at one resolution (Remark 3).

    Attributes:
        levels: R, the levels to which the concentration is quantised.
        resolution: 1 / R.
        entropy: H of the quantised concentration, in nats.
        floor: The lateral floor, in nats.
        margin: H - ell, which the mechanism is responsible for; negative when the floor alone exceeds the entropy.
        mechanism: The mechanism term over all rounds, in nats.
        informative: Whether the mechanism term is below the margin; if not, the bound is the entropy itself.
        identifiable: Whether the silo has the records to resolve so many levels.
    """

    levels: int
    resolution: float
    entropy: float
    floor: float
    margin: float
    mechanism: float
    informative: bool
    identifiable: bool


def informativeness(
    *, mechanism: float, floor: float, levels: int, entropy: float, records: float | None = None
) -> Informativeness:
    """Returns the test of Remark 3, T m < H - ell, at one resolution. Entropy grows with levels: test several.

    The arguments are the fields of `Informativeness`, and the silo's `records`, which cap the useful levels if given.
    """
    _at_least_one("levels", levels)
    for name, value in (("mechanism", mechanism), ("floor", floor), ("entropy", entropy)):
        _non_negative(name, value)
    return Informativeness(
        levels=levels,
        resolution=1 / levels,
        entropy=entropy,
        floor=floor,
        margin=entropy - floor,
        mechanism=mechanism,
        informative=mechanism < entropy - floor,
        identifiable=records is None or levels <= finest_resolution(records),
    )


def informativeness_of(
    information: float | None,
    *,
    floor: float,
    coupling: float | Coupling,
    levels: int,
    records: float | None = None,
) -> Informativeness:
    """Returns whether a bound of K nats says anything at one resolution under the prior of `lateral_floor`.

    Args:
        information: K; None asks for entropy and margin alone.
        floor: The lateral floor, which K must exceed.
        coupling: Of the prior, for the entropy.
        levels: R.
        records: Of the smallest silo.
    """
    if information is not None and information <= floor:
        raise ParameterError(f"information={information:g} is not above the floor {floor:.4g}, which no noise lowers")
    return informativeness(
        mechanism=0.0 if information is None else information - floor,
        floor=floor,
        levels=levels,
        entropy=prior_entropy(coupling, levels=levels),
        records=records,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CouplingCost:
    """What it costs to allocate with one coupling where another holds.

    Attributes:
        overshoot: By group size, ell(true) - ell(assumed): nats by which the target is exceeded, if positive.
        worst_overshoot: The largest of them.
        noise_ratio: By group size, noise variance spent over that which the true coupling needs,
            (K - ell(true)) / (K - ell(assumed)). 0 where no noise would do under the true coupling.
    """

    overshoot: FloatArray
    worst_overshoot: float
    noise_ratio: FloatArray


def cost_of_coupling(
    group_sizes: npt.ArrayLike,
    *,
    assumed: float | Coupling,
    true: float | Coupling,
    information: float,
    levels: int | None = 400,
) -> CouplingCost:
    """Returns what assuming one coupling costs where another is true: the paper's sensitivity to the assumed coupling.

    The error in the floor enters the bound additively and in full. Overestimating the coupling keeps the target, but
    is paid for in noise.

    Args:
        group_sizes: Members by group; at least one group.
        assumed: The coupling that the allocation was made with.
        true: The coupling that holds.
        information: K, the target in nats, above every floor assumed.
        levels: Those of `lateral_floor`.

    Raises:
        UnreachableTargetError: K is at or below an assumed floor.
    """
    sizes = np.atleast_1d(np.asarray(group_sizes, dtype=np.float64))
    if not sizes.size:
        raise ParameterError("group_sizes must hold at least one group, got none")
    _above_zero("information", information)
    believed = np.asarray(lateral_floor(sizes, coupling=assumed, levels=levels))
    actual = np.asarray(lateral_floor(sizes, coupling=true, levels=levels))
    worst = int(believed.argmax())
    if information <= believed.flat[worst]:
        least = math.floor(believed.flat[worst] * 1000 + 1) / 1000
        raise UnreachableTargetError(
            f"information must be above the lateral floor, got {information} where a group of {sizes.flat[worst]:.0f} "
            f"at coupling {_strength(assumed):g} has a floor of {believed.flat[worst]:.4f}. Ask for at least {least:g}"
        )
    overshoot = actual - believed
    return CouplingCost(
        overshoot=read_only(overshoot),
        worst_overshoot=float(overshoot.max()),
        noise_ratio=read_only(np.maximum(information - actual, 0.0) / (information - believed)),
    )


def _strength(coupling: float | Coupling) -> float:
    return coupling.strength if isinstance(coupling, Coupling) else _above_zero("coupling", coupling)


def _above_zero(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ParameterError(f"{name} must be a finite number above 0, got {value}")
    return float(value)


def _at_least_one(name: str, value: int) -> None:
    if not (value >= 1 and value == math.floor(value)):
        raise ParameterError(f"{name} must be a whole number of at least 1, got {value}")


def _non_negative(name: str, value: FloatLike) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    wrong = array[~(array >= 0)]
    if wrong.size:
        raise ParameterError(f"{name} must be at least 0, got {wrong[0]}")
    return array


def _check_channel(rounds: int, bound: str, parameters: int | None) -> None:
    _at_least_one("rounds", rounds)
    if bound not in BOUNDS:
        raise ParameterError(f"bound must be one of {listing(BOUNDS)}, got {bound!r}.{suggestion(bound, BOUNDS)}")
    if parameters is not None:
        _at_least_one("parameters", parameters)


def _like_input(array: Any) -> float | FloatArray:
    """Returns a float for a scalar, and the array itself otherwise."""
    return float(array) if np.ndim(array) == 0 else np.asarray(array, dtype=np.float64)
