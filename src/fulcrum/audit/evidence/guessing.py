"""What an observer's right and wrong guesses prove: lower bounds on epsilon, with confidence.

>>> tally = Tally(right=5_800, wrong=4_200, trials=10_000)
>>> round(tally.shift_at_least(0.05), 3), round(tally.epsilon_at_least(0.05, delta=1e-5), 3)
(0.361, 0.289)

A silo sends one of two updates, each with probability one half; the observer guesses which, or says nothing. Say it is
right with probability a and wrong with probability b. Whatever the mechanism,

- (epsilon, delta) privacy makes a <= e^epsilon b + delta;
- a Gaussian trade-off of shift mu makes a <= Phi(Phi^-1(b) + mu), since that curve is concave and the same for both
  directions of guessing (Dong, Roth and Su 2022).

So rates that are bounded from counts (Clopper and Pearson 1934, exact at every count) bound epsilon and mu from below.
The first bound assumes nothing. The second assumes that the trade-off between the two errors is a Gaussian one, and not
that scores are normal. When to guess is decided on a pilot, never on the trials that are counted.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from fulcrum.arrays import BoolArray, FloatArray

_SPARED = 0.05
"""The share of a bound's error that goes to how often the observer guesses; the rest to how often it is right."""

_FARTHEST = 4.5
"""In widths: thresholds beyond are met too seldom to count on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How an observer did.

    Attributes:
        right: Trials in which it guessed right.
        wrong: Trials in which it guessed wrong.
        trials: All of them, those in which it said nothing among them.
    """

    right: int
    wrong: int
    trials: int

    def epsilon_at_least(self, error: float, *, delta: float) -> float:
        """Returns an epsilon that the mechanism has at least, at this delta; assumes nothing.

        On a mechanism that is (epsilon, delta) private the result is above epsilon with probability `error` at most.
        """
        guessed, right = self._at_least(error)
        excess = right - delta / guessed if guessed else 0.0
        return max(0.0, math.log(excess / (1 - right))) if excess > 0 else 0.0

    def shift_at_least(self, error: float) -> float:
        """Returns a mu that the Gaussian trade-off has at least.

        On a mechanism whose trade-off is that of mu, or less, it is above mu with probability `error` at most.
        """
        return _shift(*self._at_least(error))

    def shift_at_most(self, error: float) -> float:
        """Returns a mu that this way of guessing does not reach beyond, except with probability `error`.

        It bounds what this observer does and not what the mechanism leaks: another observer may do better.
        """
        spared, rest = _SPARED * error, (1 - _SPARED) * error
        guesses = self.right + self.wrong
        return _shift(rate_at_most(guesses, self.trials, spared), rate_at_most(self.right, guesses, rest))

    def _at_least(self, error: float) -> tuple[float, float]:
        """How often it guesses, and how often it is then right: both at least so, except with probability `error`."""
        guesses = self.right + self.wrong
        guessed = rate_at_least(guesses, self.trials, _SPARED * error)
        # Of the guesses made, the number that are right is binomial given how many were made.
        return guessed, rate_at_least(self.right, guesses, (1 - _SPARED) * error)


def rate_at_least(count: int, trials: int, error: float) -> float:
    """Returns Clopper and Pearson's lower bound on a probability, above it with probability `error` at most."""
    return float(special.betaincinv(count, trials - count + 1, error)) if count else 0.0


def rate_at_most(count: int, trials: int, error: float) -> float:
    """Returns Clopper and Pearson's upper bound on a probability, below it with probability `error` at most."""
    return float(special.betainccinv(count + 1, trials - count, error)) if count < trials else 1.0


def tally(scores: FloatArray, positive: BoolArray, threshold: float) -> Tally:
    """Counts guesses: the positive update above the threshold, the negative one below minus it, else nothing."""
    signed = np.where(positive, scores, -scores)
    right, wrong = int(np.count_nonzero(signed > threshold)), int(np.count_nonzero(signed < -threshold))
    return Tally(right=right, wrong=wrong, trials=len(scores))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on an observer guesses.

    Attributes:
        rare: For the bound on epsilon that assumes nothing; it gains by guessing seldom and well.
        usual: For the bound on a Gaussian trade-off, which gains by guessing often.
    """

    rare: float
    usual: float


def thresholds_from(scores: FloatArray, positive: BoolArray, *, trials: int, error: float, delta: float) -> Thresholds:
    """Returns the thresholds that promise most for so many trials, on scores that are not counted afterwards.

    They are chosen as if scores were normal, with the pilot's median and width. Where they are not, a bound is lower
    than it could be, and holds.
    """
    signed = np.where(positive, scores, -scores)
    middle = float(np.median(signed))
    width = float(np.median(np.abs(signed - middle))) / 0.6745
    if not width > 0 or middle > _FARTHEST * width:  # never wrong, or as good as that
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
    expected = [found for found in expected if found.right + found.wrong <= trials]
    rare = max(range(len(expected)), key=lambda at: expected[at].epsilon_at_least(error, delta=delta), default=0)
    usual = max(range(len(expected)), key=lambda at: expected[at].shift_at_least(error), default=0)
    return Thresholds(rare=float(grid[rare]), usual=float(grid[usual]))


def _shift(guessed: float, right: float) -> float:
    """Mu of the Gaussian trade-off through the point of these rates; at least 0."""
    if guessed <= 0 or right <= 0.5:
        return 0.0
    return float(special.ndtri(guessed * right) - special.ndtri(guessed * (1 - right)))
