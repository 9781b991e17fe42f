import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers
from scipy import stats
from scipy.optimize import brentq

from fulcrum.audit.evidence.guessing import Tally, rate_at_least, rate_at_most, tally, thresholds_from
from fulcrum.core.accounting import epsilon_of_shift

DELTA = 1e-5
TRUE_EPSILON = 1.0
SHIFT = brentq(lambda mu: float(epsilon_of_shift(mu, delta=DELTA)) - TRUE_EPSILON, 0.01, 2.0)


def scored(trials, seed, shift=SHIFT):
    drawn = np.random.default_rng(seed)
    positive = drawn.random(trials) < 0.5
    return drawn.standard_normal(trials) + np.where(positive, shift / 2, -shift / 2), positive


def bounds(trials, seed, shift=SHIFT, error=0.05):
    """Both lower bounds on epsilon, thresholds from a pilot of a fifth of the trials."""
    scores, positive = scored(trials, seed, shift)
    pilot = trials // 5
    at = thresholds_from(scores[:pilot], positive[:pilot], trials=trials - pilot, error=error, delta=DELTA)
    rest, truth = scores[pilot:], positive[pilot:]
    free = tally(rest, truth, at.rare).epsilon_at_least(error, delta=DELTA)
    shift = tally(rest, truth, at.usual).shift_at_least(error)
    return free, float(epsilon_of_shift(shift, delta=DELTA))


@given(count=integers(0, 50), more=integers(0, 50), error=floats(1e-6, 0.4))
def test_bounds_on_a_rate_are_those_of_the_binomial_distribution(count, more, error):
    trials = count + more
    if trials == 0:
        return
    oracle = stats.binomtest(count, trials, alternative="greater").proportion_ci(1 - error, method="exact")
    assert rate_at_least(count, trials, error) == pytest.approx(oracle.low, rel=1e-6, abs=1e-9)
    oracle = stats.binomtest(count, trials, alternative="less").proportion_ci(1 - error, method="exact")
    assert rate_at_most(count, trials, error) == pytest.approx(oracle.high, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("trials", "gaussian", "free"), [(2_000, 0.39, 0.12), (20_000, 0.79, 0.38), (200_000, 0.94, 0.60)]
)
def test_the_reach_at_epsilon_1_is_at_least_that_of_one_threshold_for_each_error(trials, gaussian, free):
    """With 10^3, 10^4 and 10^5 replays a hypothesis, the means of bounds at 95 %."""
    found = np.array([bounds(trials, seed) for seed in range(20)])
    assert found[:, 0].mean() >= free
    assert found[:, 1].mean() >= gaussian


def test_bounds_are_above_the_truth_as_seldom_as_they_say():
    found = np.array([bounds(1_000, seed) for seed in range(1_000)])
    most = stats.binom.ppf(0.999, 1_000, 0.05)
    assert (found[:, 0] > TRUE_EPSILON).sum() <= most
    assert (found[:, 1] > TRUE_EPSILON).sum() <= most
    # And the one on a Gaussian trade-off is no looser than it says either.
    assert (found[:, 1] > TRUE_EPSILON).sum() >= stats.binom.ppf(0.001, 1_000, 0.02)


def test_the_bound_that_assumes_nothing_holds_for_randomised_response_and_reaches_it():
    epsilon, trials = 1.5, 40_000
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    drawn = np.random.default_rng(3)
    found = []
    for _ in range(200):
        positive = drawn.random(trials) < 0.5
        said = np.where(drawn.random(trials) < truthful, positive, ~positive)
        found.append(tally(np.where(said, 1.0, -1.0), positive, 0.0).epsilon_at_least(0.05, delta=0.0))
    assert (np.array(found) > epsilon).sum() <= stats.binom.ppf(0.999, 200, 0.05)
    assert np.mean(found) > 0.97 * epsilon


def test_the_bound_that_assumes_nothing_holds_for_a_mechanism_that_reveals_all_with_probability_delta():
    delta, trials = 0.02, 5_000  # it says nothing otherwise, so that its epsilon at this delta is 0
    revealed = np.random.default_rng(4).binomial(trials, delta, 400)
    found = [Tally(right=int(right), wrong=0, trials=trials) for right in revealed]
    above = sum(one.epsilon_at_least(0.05, delta=delta) > 0 for one in found)
    assert above <= stats.binom.ppf(0.999, 400, 0.05)
    assert all(one.epsilon_at_least(0.05, delta=0.0) > 3 for one in found)  # a bound without delta is false


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01, 0.05, 0.2])
def test_delta_is_taken_off_the_right_guesses(delta):
    right, wrong, trials, error = 5_800, 900, 100_000, 0.05
    guessed = stats.binomtest(right + wrong, trials, alternative="greater").proportion_ci(1 - 0.05 * error).low
    share = stats.binomtest(right, right + wrong, alternative="greater").proportion_ci(1 - 0.95 * error).low
    excess = (guessed * share - delta) / (guessed * (1 - share))
    expected = max(0.0, math.log(excess)) if excess > 0 else 0.0
    assert Tally(right=right, wrong=wrong, trials=trials).epsilon_at_least(error, delta=delta) == pytest.approx(
        expected
    )


def test_noise_alone_proves_nothing():
    for seed in range(50):
        free, gaussian = bounds(2_000, seed, shift=0.0, error=1e-4)
        assert (free, gaussian) == (0.0, 0.0)


@given(right=integers(0, 200), wrong=integers(0, 200), silent=integers(0, 200), error=floats(1e-6, 0.3))
def test_more_right_guesses_never_lower_a_bound(right, wrong, silent, error):
    one = Tally(right=right, wrong=wrong + 1, trials=right + wrong + 1 + silent)
    better = Tally(right=right + 1, wrong=wrong, trials=one.trials)
    assert better.shift_at_least(error) >= one.shift_at_least(error)
    assert better.epsilon_at_least(error, delta=DELTA) >= one.epsilon_at_least(error, delta=DELTA)
    assert one.shift_at_most(error) >= one.shift_at_least(error)


def test_an_observer_who_is_never_wrong_is_bounded_by_how_often_it_was_right():
    perfect = Tally(right=1_000, wrong=0, trials=1_000)
    assert perfect.epsilon_at_least(0.05, delta=0.0) == pytest.approx(math.log(1_000 / 3.05), rel=0.02)
    assert math.isfinite(perfect.shift_at_least(0.05))
    assert perfect.shift_at_most(0.05) == math.inf
