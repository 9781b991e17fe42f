"""Lower bounds on epsilon, with confidence, from an observer's right and wrong guesses.

>>> tally = Tally(right=5_800, wrong=4_200, trials=10_000)
>>> round(tally.shift_at_least(0.05), 3), round(tally.epsilon_at_least(0.05, delta=1e-5), 3)
(0.361, 0.289)

A silo sends one of two updates, with probability one half each; the observer guesses the update, or abstains. Let a be
the probability of a right guess and b of a wrong guess. For every mechanism,

- (epsilon, delta) privacy makes a <= e^epsilon b + delta;
- a Gaussian trade-off of shift mu makes a <= Phi(Phi^-1(b) + mu), since the curve is concave and the same for both
  directions of guessing (Dong, Roth and Su 2022).

Bounds on the two rates from counts (Clopper and Pearson 1934, exact at every count) therefore bound epsilon and mu from
below. The first bound has no assumptions. The second assumes a Gaussian trade-off between the two errors, but not
normal scores. Thresholds of guessing are chosen on a pilot, never on the counted trials.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from fulcrum.arrays import BoolArray, FloatArray

_SPARED = 0.05
"""The share of a bound's error for the rate of guesses; the rest is for the rate of right guesses."""

_FARTHEST = 4.5
"""In widths: too few scores pass a larger threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of an observer's guesses.

    Attributes:
        right: Trials with a right guess.
        wrong: Trials with a wrong guess.
        trials: All trials, including trials without a guess.
    """

    right: int
    wrong: int
    trials: int

    def epsilon_at_least(self, error: float, *, delta: float) -> float:
        """Returns a lower bound on the mechanism's epsilon at this delta, without assumptions.

        For an (epsilon, delta) private mechanism the result is above epsilon with probability at most `error`.
        """
        guessed, right = self._at_least(error)
        excess = right - delta / guessed if guessed else 0.0
        return max(0.0, math.log(excess / (1 - right))) if excess > 0 else 0.0

    def shift_at_least(self, error: float) -> float:
        """Returns a lower bound on the mu of the Gaussian trade-off.

        For a mechanism with the trade-off of mu, or a smaller one, the result is above mu with probability at most
        `error`.
        """
        return _shift(*self._at_least(error))

    def shift_at_most(self, error: float) -> float:
        """Returns an upper bound on the mu of this way of guessing, which fails with probability at most `error`.

        The bound holds for this observer, not for the mechanism: another observer may do better.
        """
        spared, rest = _SPARED * error, (1 - _SPARED) * error
        guesses = self.right + self.wrong
        return _shift(rate_at_most(guesses, self.trials, spared), rate_at_most(self.right, guesses, rest))

    def _at_least(self, error: float) -> tuple[float, float]:
        """Returns two lower bounds: on the rate of guesses among trials, and on the rate of right ones among guesses.

        Both bounds hold together except with probability `error`.
        """
        guesses = self.right + self.wrong
        guessed = rate_at_least(guesses, self.trials, _SPARED * error)
        # Given the number of guesses, the number of right guesses is binomial.
        return guessed, rate_at_least(self.right, guesses, (1 - _SPARED) * error)


def rate_at_least(count: int, trials: int, error: float) -> float:
    """Returns Clopper and Pearson's lower bound on a probability; the bound fails with probability at most `error`."""
    return float(special.betaincinv(count, trials - count + 1, error)) if count else 0.0


def rate_at_most(count: int, trials: int, error: float) -> float:
    """Returns Clopper and Pearson's upper bound on a probability; the bound fails with probability at most `error`."""
    return float(special.betainccinv(count + 1, trials - count, error)) if count < trials else 1.0


def tally(scores: FloatArray, positive: BoolArray, threshold: float) -> Tally:
    """Counts guesses: positive above the threshold, negative below minus the threshold, otherwise no guess."""
    signed = np.where(positive, scores, -scores)
    right, wrong = int(np.count_nonzero(signed > threshold)), int(np.count_nonzero(signed < -threshold))
    return Tally(right=right, wrong=wrong, trials=len(scores))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Scores from which an observer guesses.

    Attributes:
        rare: For the bound on epsilon without assumptions, which gains by few and certain guesses.
        usual: For the bound on a Gaussian trade-off, which gains by many guesses.
    """

    rare: float
    usual: float


def thresholds_from(scores: FloatArray, positive: BoolArray, *, trials: int, error: float, delta: float) -> Thresholds:
    """Returns the most promising thresholds for a number of trials, from pilot scores that are not counted later.

    The choice treats scores as normal, with the pilot's median and width. For other scores a bound is lower than
    possible, and still holds.
    """
    signed = np.where(positive, scores, -scores)
    middle = float(np.median(signed))
    width = float(np.median(np.abs(signed - middle))) / 0.6745
    if not width > 0 or middle > _FARTHEST * width:  # practically never wrong
        return Thresholds(rare=0.0, usual=0.0)
    grid = np.linspace(0.0, _FARTHEST, 46) * width
    expected = [
        Tally(
            right=round(trials * float(special.ndtr((middle - at) / width))),
            wrong=math.ceil(trials * float(special.ndtr((-middle - at) / width))),
            trials=trials,
        )
        for at in grid
    ]
    expected = [outcome for outcome in expected if outcome.right + outcome.wrong <= trials]
    rare = max(range(len(expected)), key=lambda at: expected[at].epsilon_at_least(error, delta=delta), default=0)
    usual = max(range(len(expected)), key=lambda at: expected[at].shift_at_least(error), default=0)
    return Thresholds(rare=float(grid[rare]), usual=float(grid[usual]))


def _shift(guessed: float, right: float) -> float:
    """Returns mu of the Gaussian trade-off through the point of these rates; at least 0."""
    if guessed <= 0 or right <= 0.5:
        return 0.0
    return float(special.ndtri(guessed * right) - special.ndtri(guessed * (1 - right)))
