"""Effective noise multiplier to epsilon, and back.

>>> round(epsilon_of(25.82, rounds=10, delta=1e-5), 4)
0.9058
>>> round(epsilon_of(25.82, rounds=10, delta=1e-5, accountant="renyi"), 4)
0.99
>>> round(noise_for(0.99, rounds=10, delta=1e-5), 4)
23.8115

The curves of the accountants are in `fulcrum.core.accounting`, where silos verify plans by them.
"""

import math
from functools import partial
from typing import overload

import numpy as np
from scipy.special import ndtri

from fulcrum.arrays import ArrayLike, FloatArray, FloatLike
from fulcrum.core.accounting import CONVERGED, CURVES, NEWTON_STEPS, check_accounting, zero_shift
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.errors import ParameterError
from fulcrum.planning.theory.epsilon_table import epsilon_of_shifts

_LEAST_EPSILON, _MOST_EPSILON = 1e-12, 1e12


@overload
def epsilon_of(
    multiplier: float, *, rounds: int, delta: float, accountant: str = ..., unit: PrivacyUnit = ...
) -> float: ...
@overload
def epsilon_of(
    multiplier: ArrayLike, *, rounds: int, delta: float, accountant: str = ..., unit: PrivacyUnit = ...
) -> FloatArray: ...
def epsilon_of(
    multiplier: FloatLike, *, rounds: int, delta: float, accountant: str = "exact", unit: PrivacyUnit = SILO_UNIT
) -> float | FloatArray:
    """Returns the epsilon of releasing `rounds` updates at this effective noise multiplier.

    The guarantee is (epsilon, delta)-differential privacy between the neighbours of `unit` (by default: replace one
    silo's whole dataset, sensitivity 2C), every silo in every round, no amplification by sampling.

    =============  ============================================
    multiplier     epsilon
    =============  ============================================
    0              inf
    inf            0
    very large     exactly 0 once mu <= 2 sqrt(2) erfinv(delta)
    negative, NaN  raises `ParameterError`
    =============  ============================================

    Epsilons of long arrays are read from a table whose chords lie above the convex curve: never below the true value
    except for the last bits, and above the true value by at most a relative 1e-6 or an absolute 1e-7, whichever is
    more.

    Args:
        multiplier: Noise standard deviation over clip norm, as the observer meets the noise; a number or an array.
        rounds: Number of releases, T.
        delta: The DP parameter, in (0, 1).
        accountant: One of `ACCOUNTANTS`.
        unit: The unit of privacy.
    """
    check_accounting(rounds=rounds, delta=delta, accountant=accountant)
    multipliers = np.asarray(multiplier, dtype=np.float64)
    if not (multipliers >= 0).all():
        raise ParameterError("accounting.multiplier-range", multiplier=multipliers[~(multipliers >= 0)].flat[0])
    shift = shift_of(multipliers, rounds=rounds, unit=unit)
    return _like(multiplier, epsilon_of_shifts(shift, delta=delta, accountant=accountant))


def shift_of(multiplier: FloatLike, *, rounds: int, unit: PrivacyUnit = SILO_UNIT) -> FloatArray:
    """Returns mu, the mean shift of `rounds` releases at this effective noise multiplier; inf without noise."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(unit.sensitivity * math.sqrt(rounds) / np.asarray(multiplier, dtype=np.float64))


@overload
def noise_for(
    epsilon: float, *, rounds: int, delta: float, accountant: str = ..., unit: PrivacyUnit = ...
) -> float: ...
@overload
def noise_for(
    epsilon: ArrayLike, *, rounds: int, delta: float, accountant: str = ..., unit: PrivacyUnit = ...
) -> FloatArray: ...
def noise_for(
    epsilon: FloatLike, *, rounds: int, delta: float, accountant: str = "exact", unit: PrivacyUnit = SILO_UNIT
) -> float | FloatArray:
    """Returns the smallest effective noise multiplier that keeps to `epsilon`, rounded up so as never to overspend.

    Guarantees:

    - `epsilon_of` of the result is at most `epsilon`, in floating point too;
    - an infinite epsilon needs no noise: the result is 0.

    Args:
        epsilon: The budget, from 1e-12 to 1e12 or infinite; a number or an array.
        rounds: Number of releases, T.
        delta: The DP parameter, in (0, 1).
        accountant: One of `ACCOUNTANTS`.
        unit: The unit of privacy.
    """
    check_accounting(rounds=rounds, delta=delta, accountant=accountant)
    wanted = np.asarray(epsilon, dtype=np.float64)
    bad = ~(((wanted >= _LEAST_EPSILON) & (wanted <= _MOST_EPSILON)) | (wanted == np.inf))
    if bad.any():
        raise ParameterError(
            "accounting.epsilon-range", least=_LEAST_EPSILON, most=_MOST_EPSILON, epsilon=wanted[bad].flat[0]
        )
    budgets, where = np.unique(wanted, return_inverse=True)
    finite = np.isfinite(budgets)
    multipliers = np.zeros_like(budgets)
    if finite.any():
        shift = _shift_for(budgets[finite], delta, accountant)
        multipliers[finite] = unit.sensitivity * math.sqrt(rounds) / shift
        nudge = np.finfo(np.float64).eps
        # The last bits of Newton's method and of the division may fall on the wrong side: step away until they do not.
        reached = partial(epsilon_of, rounds=rounds, delta=delta, accountant=accountant, unit=unit)
        while (over := reached(multipliers) > budgets).any():
            multipliers[over] *= 1 + nudge
            nudge *= 2
    return _like(epsilon, multipliers[where].reshape(wanted.shape))


def _shift_for(epsilon: FloatArray, delta: float, accountant: str) -> FloatArray:
    """Returns the mu at which the curve reaches epsilon: Newton's method on a convex function."""
    tail = -ndtri(delta) if accountant == "exact" else math.sqrt(-2 * math.log(delta))
    root = np.sqrt(tail * tail + 2 * epsilon)
    shift = 2 * epsilon / (root + tail) if tail > 0 else root - tail
    if accountant == "exact":
        shift = np.maximum(shift, zero_shift(delta))
    for _ in range(NEWTON_STEPS):
        reached, slope = CURVES[accountant](shift, delta)
        step = (reached - epsilon) / slope
        shift = shift - step
        if (np.abs(step) <= CONVERGED * shift).all():
            break
    return shift


def _like(argument: FloatLike, result: FloatArray) -> float | FloatArray:
    return float(result) if np.ndim(argument) == 0 else result
