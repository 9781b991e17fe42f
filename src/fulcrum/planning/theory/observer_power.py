"""The power of the best observer, in rates that a person understands.

>>> power = observer_power(23.8115, rounds=10)
>>> f"{power.guessing_rate:.3f} {power.true_positive_rate:.3f}"
'0.553 0.020'
"""

import math
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from fulcrum.core.accounting import MOST_SHIFT, check_accounting
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.errors import ParameterError
from fulcrum.planning.theory.calibration import shift_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPower:
    """The success rates of the best observer, for a person to read.

    Attributes:
        guessing_rate: The rate of right guesses between two possible datasets of a silo, both equally likely
            beforehand; one half is blind guessing.
        true_positive_rate: The rate of right accusations at the false-positive rate.
        false_positive_rate: The rate of wrong accusations that the observer accepts.
    """

    guessing_rate: float
    true_positive_rate: float
    false_positive_rate: float


def observer_power(
    multiplier: float, *, rounds: int, false_positive_rate: float = 0.01, unit: PrivacyUnit = SILO_UNIT
) -> ObserverPower:
    """Returns the power of the best observer of Gaussian releases at this multiplier; tight, and free of delta.

    >>> power = observer_power(23.8115, rounds=10)
    >>> f"{power.guessing_rate:.3f} {power.true_positive_rate:.3f}"
    '0.553 0.020'
    """
    check_accounting(rounds=rounds)
    if not multiplier >= 0:
        raise ParameterError("accounting.multiplier-range", multiplier=multiplier)
    shift = math.inf if multiplier == 0 else float(shift_of(multiplier, rounds=rounds, unit=unit))
    return observer_power_of_shift(shift, false_positive_rate=false_positive_rate)


def observer_power_of_shift(
    shift: float, *, accountant: str = "exact", distance: float = 0.0, false_positive_rate: float = 0.01
) -> ObserverPower:
    """Returns the power of the best observer of releases whose shift is mu in all (mu² adds up over releases).

    With `exact`, the power against continuous Gaussian noise. With `renyi`, a bound that needs only the result of that
    accountant, a Renyi divergence of at most alpha mu²/2 at every order, so the bound holds for lattice noise too: the
    two possible outputs have a Kullback-Leibler divergence of at most mu²/2, hence a total variation distance of at
    most mu/2 (Pinsker) and sqrt(1 - exp(-mu²/2)) (Bretagnolle and Huber 1979); and an event of probability q under one
    output has at most exp(-(sqrt(log 1/q) - mu/sqrt 2)²) under the second, the least over alpha of (q exp(alpha
    mu²/2))^((alpha - 1)/alpha) (van Erven and Harremoes 2014, probability preservation).

    >>> proven = observer_power_of_shift(0.2656, accountant="renyi")
    >>> f"{proven.guessing_rate:.3f} {proven.true_positive_rate:.3f}"
    '0.566 0.022'

    Args:
        shift: mu.
        accountant: One of `ACCOUNTANTS`.
        distance: The total variation distance between the drawn noise and the accounted noise, at most.
        false_positive_rate: The rate of wrong accusations that the observer accepts.
    """
    check_accounting(accountant=accountant)
    _check_rate(false_positive_rate)
    if not (shift >= 0 and distance >= 0):
        raise ParameterError("observer.shift-range", shift=shift, distance=distance)
    wrong = min(false_positive_rate + distance, 1.0)  # wrong accusations under the accounted noise
    if accountant == "exact":
        guessing = float(ndtr(shift / 2))
        accusing = float(ndtr(ndtri(wrong) + shift))
    else:
        far = min(shift / 2, math.sqrt(-math.expm1(-(min(shift, MOST_SHIFT) ** 2) / 2)))
        short = math.sqrt(-math.log(wrong)) - shift / math.sqrt(2)
        guessing = (1 + far) / 2
        accusing = math.exp(-(short**2)) if short > 0 else 1.0
    return ObserverPower(
        guessing_rate=min(1.0, guessing + distance),
        true_positive_rate=min(1.0, accusing + distance),
        false_positive_rate=false_positive_rate,
    )


def observer_power_at(epsilon: float, *, delta: float, false_positive_rate: float = 0.01) -> ObserverPower:
    """Returns the most power that (epsilon, delta) alone allows an observer of any mechanism (Kairouz et al. 2015).

    >>> power = observer_power_at(0.99, delta=1e-5)
    >>> f"{power.guessing_rate:.3f} {power.true_positive_rate:.3f}"
    '0.729 0.027'
    """
    check_accounting(delta=delta)
    _check_rate(false_positive_rate)
    if not epsilon >= 0:
        raise ParameterError("observer.epsilon-range", epsilon=epsilon)
    odds = math.exp(-epsilon)  # of the less likely dataset
    lower = 1.0 if odds == 0 else delta + false_positive_rate / odds
    return ObserverPower(
        guessing_rate=min(1.0, (1 + delta * odds) / (1 + odds)),
        true_positive_rate=min(1.0, lower, 1 - odds * (1 - delta - false_positive_rate)),
        false_positive_rate=false_positive_rate,
    )


def _check_rate(rate: float) -> None:
    if not 0 < rate < 1:
        raise ParameterError("observer.false-positive-rate-range", rate=rate)
