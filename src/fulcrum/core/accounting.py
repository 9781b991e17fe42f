"""Mean shift to epsilon, by two accountants.

Neighbouring federations differ by the relation of a unit of privacy (`fulcrum.core.privacy_unit`), and a clipped update
moves by at most kappa C between neighbours. A release with effective noise multiplier s is a Gaussian mechanism of
sensitivity-to-noise ratio kappa / s, and T releases compose to mu = kappa sqrt(T) / s. For the unit silo kappa is 2.

>>> mu = 2 * math.sqrt(10) / 25.82
>>> [round(float(epsilon_of_shift(mu, delta=1e-5, accountant=name)), 4) for name in ("exact", "renyi")]
[0.9058, 0.99]

The accountant `exact` is the tight curve of the Gaussian mechanism, `renyi` is the paper's Theorem 1. Both curves are
convex and increasing in mu, so Newton's method is safe (`fulcrum.planning.theory.calibration`) and a chord between two
points is an upper bound.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.special import erfcx, erfinv, ndtri

from fulcrum.arrays import FloatArray, FloatLike
from fulcrum.core.choices import ACCOUNTANTS, MOST_ROUNDS
from fulcrum.errors import ParameterError, check_known

NEWTON_STEPS = 100
CONVERGED = 1e-9
"""The relative size of the last Newton step; the remaining error is of the order of its square."""

MOST_SHIFT = 1e100
"""The largest accounted mu; the squares of larger shifts, and their products, leave floating point."""

_LEAST_SHIFT = 1e-100  # the square of a smaller shift underflows to zero, and is a divisor

Curve: TypeAlias = Callable[[FloatArray, float], tuple[FloatArray, FloatArray]]
"""A function from shifts and delta to epsilons and their derivatives."""

_QUADRATURE_NODES, _QUADRATURE_WEIGHTS = np.polynomial.legendre.leggauss(16)


def solve_each(shift: FloatArray, delta: float, curve: Curve) -> FloatArray:
    """Returns the epsilon of every shift by its curve, at least 0."""
    return np.maximum(curve(shift, delta)[0], 0)


def epsilon_of_shift(
    shift: FloatLike, *, delta: float, accountant: str = "exact", solve: Callable[..., FloatArray] = solve_each
) -> FloatArray:
    """Returns the epsilon of a Gaussian release whose mean moves by `shift` standard deviations (mu).

    Shifts are the currency of composition: rounds with different multipliers s_t add up in mu², the sum of kappa² /
    s_t².

    =============  =================================================
    shift          epsilon
    =============  =================================================
    0              0
    inf            inf, and so are shifts too large for their square
    negative, NaN  raises `ParameterError`
    =============  =================================================

    A shift above 0 and below 1e-100 counts as 1e-100, which is a safe bound.

    Args:
        shift: mu, a number or an array.
        delta: The delta of the (epsilon, delta) guarantee, in (0, 1).
        accountant: "exact" or "renyi".
        solve: A function of finite shifts above 0, of delta, and of the accountant's curve.
    """
    check_accounting(delta=delta, accountant=accountant)
    shifts = np.atleast_1d(np.asarray(shift, dtype=np.float64))
    if not (shifts >= 0).all():
        raise ParameterError("accounting.shift-range", shift=shifts[~(shifts >= 0)].flat[0])
    shifts = np.where(shifts > MOST_SHIFT, np.inf, shifts)  # counts as no noise at all
    shifts = np.where((shifts > 0) & (shifts < _LEAST_SHIFT), _LEAST_SHIFT, shifts)  # a larger shift is a safe bound
    curve = CURVES[accountant]
    todo = (shifts > 0) & (shifts < np.inf)
    if todo.all():
        return solve(shifts.ravel(), delta, curve).reshape(np.shape(shift))
    epsilon = np.where(shifts > 0, np.inf, 0.0)
    if todo.any():
        epsilon[todo] = solve(shifts[todo], delta, curve)
    return epsilon.reshape(np.shape(shift))


def check_accounting(*, rounds: int = 1, delta: float = 0.5, accountant: str = "exact") -> None:
    """Raises `ParameterError` for a number of rounds, a delta or an accountant that no plan can have."""
    # bool is a subclass of int: without the test, True would pass for a round.
    if isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 1:
        raise ParameterError("accounting.rounds-range", rounds=rounds)
    if rounds > MOST_ROUNDS:
        raise ParameterError("accounting.rounds-too-many", most=MOST_ROUNDS, rounds=float(min(rounds, 10**300)))
    if isinstance(delta, str) or not 0 < delta < 1:
        raise ParameterError("accounting.delta-range", delta=delta)
    check_known("accountant", accountant, ACCOUNTANTS)


def zero_shift(delta: float) -> float:
    """Returns the largest mu whose exact epsilon is 0."""
    return 2 * math.sqrt(2) * float(erfinv(delta))


def _mills(x: FloatArray) -> FloatArray:
    """Returns the Mills ratio of the normal distribution, Phi(-x) / phi(x), without underflow."""
    ratio: FloatArray = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    return ratio


def _mills_drop(z: FloatArray, shift: FloatArray) -> FloatArray:
    """Returns Mills(z) - Mills(z + shift); small shifts by quadrature of the derivative, against cancellation."""
    drop = _mills(z) - _mills(z + shift)
    small = shift < 0.1
    if small.any():
        half = shift[small, None] / 2
        points = z[small, None] + half * (1 + _QUADRATURE_NODES)
        drop[small] = (half * (1 - points * _mills(points))) @ _QUADRATURE_WEIGHTS
    return drop


def _exact_curve(shift: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Returns epsilon and d epsilon / d mu of the Gaussian mechanism (Balle and Wang 2018, theorem 8).

    Up to `zero_shift` epsilon is 0.

    With eps = mu²/2 + mu z, delta(eps) = phi(z) (Mills(z) - Mills(z + mu)): no e^eps and no difference of large
    numbers. log delta is concave in z, so Newton from the right, z = -Phi^-1(delta), never leaves the right.
    """
    z = np.full_like(shift, -ndtri(delta))
    log_delta = math.log(delta)
    for _ in range(NEWTON_STEPS):
        drop = _mills_drop(z, shift)
        excess = -z * z / 2 - 0.5 * math.log(2 * math.pi) + np.log(drop) - log_delta
        previous, z = z, np.maximum(z + excess * drop / (shift * _mills(z + shift)), -shift / 2)
        if (np.abs(z - previous) <= CONVERGED * (1 + np.abs(z))).all():
            break
    epsilon = shift * (shift / 2 + z)
    # Newton holds z at eps = 0. Up to zero_shift the guarantee is eps = 0 exactly, without a rounding error.
    epsilon[shift <= zero_shift(delta)] = 0
    return epsilon, 1 / _mills(z + shift)


def _renyi_curve(shift: FloatArray, delta: float) -> tuple[FloatArray, FloatArray]:
    """Returns epsilon and d epsilon / d mu of the paper's Theorem 1, at the best order alpha = 1 + x.

    With c = mu²/2 the best order satisfies c x² + log(1 + x) = log(1 / delta), and then
    eps = c (1 + 2 x) - log(1 + 1 / x). In u = log(1 + x) the equation is convex and increasing: Newton from the right.
    """
    c = shift * shift / 2
    log_inverse = -math.log(delta)
    # Two upper bounds of the root, from the equation without its second term and without its first.
    u = np.minimum(np.log1p(np.sqrt(log_inverse / c)), log_inverse)
    for _ in range(NEWTON_STEPS):
        x = np.expm1(u)
        step = (c * x * x + u - log_inverse) / (2 * c * x * (1 + x) + 1)
        u = u - step
        if (np.abs(step) <= CONVERGED * u).all():
            break
    x = np.expm1(u)
    return c * (1 + 2 * x) - np.log1p(1 / x), (1 + x) * shift


CURVES: dict[str, Curve] = {"exact": _exact_curve, "renyi": _renyi_curve}
