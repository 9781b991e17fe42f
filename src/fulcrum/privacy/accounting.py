"""Effective noise multiplier to epsilon, and back.

Adjacency replaces one silo's whole dataset, so a clipped update moves by at most 2C: a release with effective noise
multiplier s is a Gaussian mechanism of sensitivity-to-noise ratio 2 / s, and T of them compose to mu = 2 sqrt(T) / s.

>>> round(epsilon_of(25.82, rounds=10, delta=1e-5), 4)
0.9058
>>> round(epsilon_of(25.82, rounds=10, delta=1e-5, accountant="renyi"), 4)
0.99
>>> round(noise_for(0.99, rounds=10, delta=1e-5), 4)
23.8115

Two accountants: `exact` is the tight curve of the Gaussian mechanism, `renyi` the paper's Theorem 1. Both are convex
and increasing in mu, which is what makes Newton's method safe here and a chord between two points an upper bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, erfinv, ndtr, ndtri

from fulcrum.arrays import ArrayLike, FloatArray, FloatLike
from fulcrum.errors import ParameterError, check_known

ACCOUNTANTS = ("exact", "renyi")
"""`exact`: the tight Gaussian curve. `renyi`: the paper's Theorem 1, never tighter."""

MOST_ROUNDS = 10**9
_LEAST_EPSILON, _MOST_EPSILON = 1e-12, 1e12
_TABLE_FROM = 20_000  # entries from which a table is cheaper than solving for each
_TABLE_STEP = 5e-4  # relative spacing in mu; a chord is then at most 1e-7 above the curve, relatively
_MOST_SHIFT = 1e100  # beyond it squares and their products leave floating point
_LEAST_SHIFT = 1e-100  # below it squares become zero, and are divided by
_BLOCK = 32_768  # entries looked up at a time, so that temporaries stay in cache
_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.legendre.leggauss(16)
_NEWTON_STEPS = 100
_CONVERGED = 1e-9  # a Newton step this small leaves an error of its square


@overload
def epsilon_of(multiplier: float, *, rounds: int, delta: float, accountant: str = ...) -> float: ...
@overload
def epsilon_of(multiplier: ArrayLike, *, rounds: int, delta: float, accountant: str = ...) -> FloatArray: ...
def epsilon_of(multiplier: FloatLike, *, rounds: int, delta: float, accountant: str = "exact") -> float | FloatArray:
    """Returns the epsilon of releasing `rounds` updates at this effective noise multiplier.

    The guarantee is (epsilon, delta)-differential privacy where neighbours differ in one silo's whole dataset (replace
    one, sensitivity 2C), every silo in every round, no amplification by sampling.

    =============  ============================================
    multiplier     epsilon
    =============  ============================================
    0              inf
    inf            0
    very large     exactly 0 once mu <= 2 sqrt(2) erfinv(delta)
    negative, NaN  raises `ParameterError`
    =============  ============================================

    Arrays of many entries are read off a table whose chords lie above the convex curve: never below the true value but
    for the last bits, and above it by at most 1e-6 of it or 1e-7, whichever is more.

    Args:
        multiplier: Noise standard deviation over clip norm, as the observer meets it; a number or an array.
        rounds: Number of releases, T.
        delta: The DP parameter, in (0, 1).
        accountant: One of `ACCOUNTANTS`.
    """
    _check(rounds=rounds, delta=delta, accountant=accountant)
    multipliers = np.asarray(multiplier, dtype=np.float64)
    if not (multipliers >= 0).all():
        raise ParameterError(f"noise multiplier must be at least 0, got {multipliers[~(multipliers >= 0)].flat[0]}")
    with np.errstate(divide="ignore", over="ignore"):
        shift = 2 * math.sqrt(rounds) / multipliers
    return _like(multiplier, epsilon_of_shift(shift, delta=delta, accountant=accountant))


@overload
def noise_for(epsilon: float, *, rounds: int, delta: float, accountant: str = ...) -> float: ...
@overload
def noise_for(epsilon: ArrayLike, *, rounds: int, delta: float, accountant: str = ...) -> FloatArray: ...
def noise_for(epsilon: FloatLike, *, rounds: int, delta: float, accountant: str = "exact") -> float | FloatArray:
    """Returns the smallest effective noise multiplier that keeps to `epsilon`, rounded so that it never overspends.

    `epsilon_of` of the result is at most `epsilon`, in floating point too. An infinite epsilon needs no noise: 0.

    Args:
        epsilon: The budget, from 1e-12 to 1e12 or infinite; a number or an array.
        rounds: Number of releases, T.
        delta: The DP parameter, in (0, 1).
        accountant: One of `ACCOUNTANTS`.
    """
    _check(rounds=rounds, delta=delta, accountant=accountant)
    wanted = np.asarray(epsilon, dtype=np.float64)
    bad = ~(((wanted >= _LEAST_EPSILON) & (wanted <= _MOST_EPSILON)) | (wanted == np.inf))
    if bad.any():
        raise ParameterError(
            f"epsilon must be from {_LEAST_EPSILON:g} to {_MOST_EPSILON:g}, or inf, got {wanted[bad].flat[0]}"
        )
    budgets, where = np.unique(wanted, return_inverse=True)
    finite = np.isfinite(budgets)
    multipliers = np.zeros_like(budgets)
    if finite.any():
        shift = _shift_for(budgets[finite], delta, accountant)
        multipliers[finite] = 2 * math.sqrt(rounds) / shift
        nudge = np.finfo(np.float64).eps
        # The last bits of Newton's method and of the division may fall on the wrong side: step away until they do not.
        while (over := epsilon_of(multipliers, rounds=rounds, delta=delta, accountant=accountant) > budgets).any():
            multipliers[over] *= 1 + nudge
            nudge *= 2
    return _like(epsilon, multipliers[where].reshape(wanted.shape))


def epsilon_of_shift(shift: FloatLike, *, delta: float, accountant: str = "exact") -> FloatArray:
    """Returns the epsilon of one Gaussian release whose mean moves by `shift` standard deviations (mu).

    This is the currency of composition: rounds with different multipliers add up in mu², mu² = sum of 4 / s_t².

    =============  =================================================
    shift          epsilon
    =============  =================================================
    0              0
    inf            inf, and so are shifts too large for their square
    negative, NaN  raises `ParameterError`
    =============  =================================================
    """
    _check(delta=delta, accountant=accountant)
    shifts = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    if not (shifts >= 0).all():
        raise ParameterError(f"shift must be a number of at least 0, got {shifts[~(shifts >= 0)].flat[0]}")
    shifts = np.where(shifts > _MOST_SHIFT, np.inf, shifts)  # as good as no noise at all
    shifts = np.where((shifts > 0) & (shifts < _LEAST_SHIFT), _LEAST_SHIFT, shifts)  # a larger shift is a safe bound
    curve = _CURVES[accountant]
    solved = _tabulated if shifts.size >= _TABLE_FROM else _solved
    todo = (shifts > 0) & (shifts < np.inf)
    if todo.all():
        return solved(shifts.ravel(), delta, curve).reshape(np.shape(shift))
    epsilon = np.where(shifts > 0, np.inf, 0.0)
    if todo.any():
        epsilon[todo] = solved(shifts[todo], delta, curve)
    return epsilon.reshape(np.shape(shift))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPower:
    """What an observer can do at best, told to a person.

    Attributes:
        guessing_rate: How often it guesses right which of two possible datasets a silo holds, both equally likely
            beforehand; one half is blind guessing.
        true_positive_rate: How often it rightly accuses while accusing wrongly at the false-positive rate.
        false_positive_rate: The rate of wrong accusations it allows itself.
    """

    guessing_rate: float
    true_positive_rate: float
    false_positive_rate: float


def observer_power(multiplier: float, *, rounds: int, false_positive_rate: float = 0.01) -> ObserverPower:
    """Returns what the best observer of Gaussian releases at this multiplier can do; tight, and free of delta.

    >>> power = observer_power(23.8115, rounds=10)
    >>> f"{power.guessing_rate:.3f} {power.true_positive_rate:.3f}"
    '0.553 0.020'
    """
    _check(rounds=rounds)
    if not multiplier >= 0:
        raise ParameterError(f"noise multiplier must be at least 0, got {multiplier}")
    shift = math.inf if multiplier == 0 else 2 * math.sqrt(rounds) / multiplier
    return observer_power_of_shift(shift, false_positive_rate=false_positive_rate)


def observer_power_of_shift(
    shift: float, *, accountant: str = "exact", distance: float = 0.0, false_positive_rate: float = 0.01
) -> ObserverPower:
    """Returns what the best observer can do against releases whose shift is mu in all (mu² adds up over releases).

    With `exact`, what it can do where noise is continuous and Gaussian. With `renyi`, a bound that needs only what that
    accountant proves, a Renyi divergence of at most alpha mu²/2 at every order, so that it holds for lattice noise too:
    the two possible outputs have a Kullback-Leibler divergence of at most mu²/2, hence a total variation distance of at
    most mu/2 (Pinsker) and sqrt(1 - exp(-mu²/2)) (Bretagnolle and Huber 1979); and an event of probability q under one
    has at most exp(-(sqrt(log 1/q) - mu/sqrt 2)²) under the other, the least over alpha of
    (q exp(alpha mu²/2))^((alpha - 1)/alpha) (van Erven and Harremoes 2014, probability preservation).

    >>> proven = observer_power_of_shift(0.2656, accountant="renyi")
    >>> f"{proven.guessing_rate:.3f} {proven.true_positive_rate:.3f}"
    '0.566 0.022'

    Args:
        shift: mu.
        accountant: One of `ACCOUNTANTS`.
        distance: How far, in total variation, the noise that is drawn may be from the one accounted for.
        false_positive_rate: The rate of wrong accusations it allows itself.
    """
    _check(accountant=accountant)
    _check_rate(false_positive_rate)
    if not (shift >= 0 and distance >= 0):
        raise ParameterError(f"shift and distance must be numbers of at least 0, got {shift} and {distance}")
    wrong = min(false_positive_rate + distance, 1.0)  # what may be accused wrongly under the noise accounted for
    if accountant == "exact":
        guessing = float(ndtr(shift / 2))
        accusing = float(ndtr(ndtri(wrong) + shift))
    else:
        far = min(shift / 2, math.sqrt(-math.expm1(-(min(shift, _MOST_SHIFT) ** 2) / 2)))
        short = math.sqrt(-math.log(wrong)) - shift / math.sqrt(2)
        guessing = (1 + far) / 2
        accusing = math.exp(-(short**2)) if short > 0 else 1.0
    return ObserverPower(
        guessing_rate=min(1.0, guessing + distance),
        true_positive_rate=min(1.0, accusing + distance),
        false_positive_rate=false_positive_rate,
    )


def observer_power_at(epsilon: float, *, delta: float, false_positive_rate: float = 0.01) -> ObserverPower:
    """Returns what (epsilon, delta) alone allows the best observer, whatever the mechanism (Kairouz et al. 2015).

    >>> power = observer_power_at(0.99, delta=1e-5)
    >>> f"{power.guessing_rate:.3f} {power.true_positive_rate:.3f}"
    '0.729 0.027'
    """
    _check(delta=delta)
    _check_rate(false_positive_rate)
    if not epsilon >= 0:
        raise ParameterError(f"epsilon must be at least 0, got {epsilon}")
    odds = math.exp(-epsilon)  # of the less likely dataset
    lower = 1.0 if odds == 0 else delta + false_positive_rate / odds
    return ObserverPower(
        guessing_rate=min(1.0, (1 + delta * odds) / (1 + odds)),
        true_positive_rate=min(1.0, lower, 1 - odds * (1 - delta - false_positive_rate)),
        false_positive_rate=false_positive_rate,
    )


def _like(given: FloatLike, result: FloatArray) -> float | FloatArray:
    return float(result) if np.ndim(given) == 0 else result


def _check(*, rounds: int = 1, delta: float = 0.5, accountant: str = "exact") -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 1:
        raise ParameterError(f"rounds must be a whole number of at least 1, got {rounds}")
    if rounds > MOST_ROUNDS:
        raise ParameterError(f"rounds must be at most {MOST_ROUNDS:,}, got {float(min(rounds, 10**300)):g}")
    if not 0 < delta < 1:
        raise ParameterError(f"delta must be in (0, 1), got {delta}")
    check_known("accountant", accountant, ACCOUNTANTS)


def _check_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise ParameterError(f"false-positive rate must be in (0, 1), got {rate}")


def _zero_up_to(delta: float) -> float:
    """The largest mu whose exact epsilon is 0."""
    return 2 * math.sqrt(2) * float(erfinv(delta))


def _mills(x: FloatArray) -> FloatArray:
    """The upper tail over the density of the normal distribution, Phi(-x) / phi(x), without underflow."""
    ratio: FloatArray = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    return ratio


def _mills_drop(z: FloatArray, shift: FloatArray) -> FloatArray:
    """Mills(z) - Mills(z + shift), by quadrature of its derivative where the difference would cancel."""
    drop = _mills(z) - _mills(z + shift)
    small = shift < 0.1
    if small.any():
        half = shift[small, None] / 2
        points = z[small, None] + half * (1 + _QUADRATURE_NODES)
        drop[small] = (half * (1 - points * _mills(points))) @ _QUADRATURE_WEIGHTS
    return drop


def _exact_curve(shift: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Epsilon and d epsilon / d mu of the Gaussian mechanism (Balle and Wang 2018, theorem 8), negative past its zero.

    With eps = mu²/2 + mu z, delta(eps) = phi(z) (Mills(z) - Mills(z + mu)): no e^eps and no difference of large
    numbers. log delta is concave in z, so Newton from the right, z = -Phi^-1(delta), never leaves the right.
    """
    z = np.full_like(shift, -ndtri(delta))
    log_delta = math.log(delta)
    for _ in range(_NEWTON_STEPS):
        drop = _mills_drop(z, shift)
        excess = -z * z / 2 - 0.5 * math.log(2 * math.pi) + np.log(drop) - log_delta
        previous, z = z, np.maximum(z + excess * drop / (shift * _mills(z + shift)), -shift / 2)
        if (np.abs(z - previous) <= _CONVERGED * (1 + np.abs(z))).all():
            break
    epsilon = shift * (shift / 2 + z)
    # z was held at eps = 0; below that the guarantee is eps = 0 outright.
    epsilon[shift <= _zero_up_to(delta)] = 0
    return epsilon, 1 / _mills(z + shift)


def _renyi_curve(shift: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Epsilon and d epsilon / d mu of the paper's Theorem 1, its infimum over the order alpha = 1 + x solved.

    With c = mu²/2 the best order satisfies c x² + log(1 + x) = log(1 / delta), and then
    eps = c (1 + 2 x) - log(1 + 1 / x). In u = log(1 + x) the equation is convex and increasing: Newton from the right.
    """
    c = shift * shift / 2
    log_inverse = -math.log(delta)
    u = np.minimum(np.log1p(np.sqrt(log_inverse / c)), log_inverse)
    for _ in range(_NEWTON_STEPS):
        x = np.expm1(u)
        step = (c * x * x + u - log_inverse) / (2 * c * x * (1 + x) + 1)
        u = u - step
        if (np.abs(step) <= _CONVERGED * u).all():
            break
    x = np.expm1(u)
    return c * (1 + 2 * x) - np.log1p(1 / x), (1 + x) * shift


_Curve: TypeAlias = Callable[[FloatArray, float], tuple[FloatArray, FloatArray]]
_CURVES: dict[str, _Curve] = {"exact": _exact_curve, "renyi": _renyi_curve}


def _shift_for(epsilon: FloatArray, delta: float, accountant: str) -> FloatArray:
    """Returns the mu at which the curve reaches epsilon: Newton on a convex function."""
    tail = -ndtri(delta) if accountant == "exact" else math.sqrt(-2 * math.log(delta))
    root = np.sqrt(tail * tail + 2 * epsilon)
    shift = 2 * epsilon / (root + tail) if tail > 0 else root - tail
    if accountant == "exact":
        shift = np.maximum(shift, _zero_up_to(delta))
    for _ in range(_NEWTON_STEPS):
        reached, slope = _CURVES[accountant](shift, delta)
        step = (reached - epsilon) / slope
        shift = shift - step
        if (np.abs(step) <= _CONVERGED * shift).all():
            break
    return shift


def _solved(shift: FloatArray, delta: float, curve: _Curve) -> FloatArray:
    return np.maximum(curve(shift, delta)[0], 0)


def _tabulated(shift: FloatArray, delta: float, curve: _Curve) -> FloatArray:
    """Reads the convex curve off its chords, so that no entry is below it; the largest shift is met exactly."""
    low, high = float(shift.min()), float(shift.max())
    edge = _zero_up_to(delta)
    if curve is _exact_curve and low < edge < high:  # no chord may span the bend
        epsilon = np.zeros_like(shift)
        epsilon[shift > edge] = _tabulated(shift[shift > edge], delta, curve)
        return epsilon
    cells = max(1, math.ceil(math.log(high / low) / _TABLE_STEP))
    step = math.log(high / low) / cells or 1.0
    nodes = low * np.exp(step * np.arange(cells + 1))
    nodes[0], nodes[-1] = low, high
    values = curve(nodes, delta)[0]
    right, top = nodes[1:], values[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(right > nodes[:-1], (top - values[:-1]) / (right - nodes[:-1]), 0.0)
    epsilon = np.empty_like(shift)
    scratch = np.empty(_BLOCK)
    for start in range(0, len(shift), _BLOCK):
        block = shift[start : start + _BLOCK]
        position = np.log(block / low, out=scratch[: len(block)])
        position /= step
        cell: npt.NDArray[Any] = position.astype(np.intp)
        np.minimum(cell, cells - 1, out=cell)
        out = epsilon[start : start + _BLOCK]
        right.take(cell, out=out, mode="clip")
        out -= block
        out *= slope.take(cell)
        np.subtract(top.take(cell), out, out=out)
    return np.maximum(epsilon, 0, out=epsilon)
