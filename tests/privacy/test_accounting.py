import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from error_codes import coded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from fulcrum.core.accounting import ACCOUNTANTS, epsilon_of_shift
from fulcrum.errors import ParameterError
from fulcrum.planning.theory.calibration import epsilon_of, noise_for
from fulcrum.planning.theory.epsilon_table import epsilon_of_shifts
from fulcrum.planning.theory.observer_power import observer_power, observer_power_at, observer_power_of_shift
from fulcrum.rounding import rounded_up

DELTAS = st.floats(-30, -0.1).map(lambda power: 10.0**power)


@pytest.mark.parametrize(
    ("multiplier", "exact", "renyi"),
    [(2, 17.8566, 19.0473), (5, 5.7595, 6.2081), (10, 2.5944, 2.8136), (25.82, 0.9058, 0.9900), (60, 0.3608, 0.3972)],
)
def test_check_values_hold_to_the_digits_printed(multiplier, exact, renyi):
    assert epsilon_of(multiplier, rounds=10, delta=1e-5) == pytest.approx(exact, abs=5e-5)
    assert epsilon_of(multiplier, rounds=10, delta=1e-5, accountant="renyi") == pytest.approx(renyi, abs=5e-5)


def test_noise_at_the_papers_operating_point():
    assert noise_for(0.99, rounds=10, delta=1e-5) == pytest.approx(23.8115, abs=5e-5)
    assert noise_for(0.99, rounds=10, delta=1e-5, accountant="renyi") == pytest.approx(25.8210, abs=5e-5)


def oracle_epsilon(multiplier: float, rounds: int, delta: float) -> mpmath.mpf:
    """The tight Gaussian curve at 60 digits, by bisection."""
    with mpmath.workdps(60):
        mu = 2 * mpmath.sqrt(rounds) / mpmath.mpf(multiplier)

        def excess(eps):
            return (
                mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu) - mpmath.mpf(delta)
            )

        if excess(mpmath.mpf(0)) <= 0:
            return mpmath.mpf(0)
        low, high = mpmath.mpf(0), mu * mu / 2 + 50 * mu
        for _ in range(190):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return low


@pytest.mark.parametrize("multiplier", [1e-3, 0.1, 1.0, 7.0, 63.0, 64.0, 1e3, 1e5, 1e7, 1e9])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 1e-5, 0.1, 0.9])
def test_exact_epsilon_agrees_with_sixty_digit_arithmetic(multiplier, delta):
    for rounds in (1, 500):
        true = float(oracle_epsilon(multiplier, rounds, delta))
        assert epsilon_of(multiplier, rounds=rounds, delta=delta) == pytest.approx(true, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("multiplier", [1e-2, 1.0, 25.82, 1e4, 1e9])
@pytest.mark.parametrize("delta", [1e-30, 1e-5, 0.3])
def test_renyi_epsilon_is_the_infimum_over_orders(multiplier, delta):
    with mpmath.workdps(40):
        c = 2 * mpmath.mpf(10) / mpmath.mpf(multiplier) ** 2

        def theorem_one(log_x):
            alpha = 1 + mpmath.exp(log_x)
            return (
                c * alpha
                + mpmath.log((alpha - 1) / alpha)
                - (mpmath.log(mpmath.mpf(delta)) + mpmath.log(alpha)) / (alpha - 1)
            )

        low, high = mpmath.mpf(-80), mpmath.mpf(80)
        golden = (mpmath.sqrt(5) - 1) / 2
        for _ in range(250):
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if theorem_one(left) < theorem_one(right) else (left, high)
        true = max(float(theorem_one((low + high) / 2)), 0.0)
    found = epsilon_of(multiplier, rounds=10, delta=delta, accountant="renyi")
    assert found == pytest.approx(true, rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("multiplier", [2.0, 5.0, 25.82])
def test_exact_epsilon_agrees_with_a_privacy_loss_distribution(multiplier):
    # A second library, and a second method: numerical composition of replace-one Gaussian releases of sensitivity 2.
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier / 2,
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval=1e-4,
    ).self_compose(10)
    assert epsilon_of(multiplier, rounds=10, delta=1e-5) == pytest.approx(pld.get_epsilon_for_delta(1e-5), rel=2e-3)


@settings(max_examples=300, deadline=None)
@given(
    epsilon=st.floats(-12, 12).map(lambda power: 10.0**power),
    rounds=st.integers(1, 500),
    delta=DELTAS,
    accountant=st.sampled_from(ACCOUNTANTS),
)
@example(epsilon=0.001, rounds=1, delta=0.79, accountant="exact")
def test_calibrated_noise_never_overspends(epsilon, rounds, delta, accountant):
    multiplier = noise_for(epsilon, rounds=rounds, delta=delta, accountant=accountant)
    spent = epsilon_of(multiplier, rounds=rounds, delta=delta, accountant=accountant)
    assert spent <= epsilon
    assert spent == pytest.approx(epsilon, rel=1e-9, abs=1e-14)


@given(multiplier=st.floats(1e-3, 1e9), rounds=st.integers(1, 1000), delta=DELTAS)
def test_exact_is_never_looser_than_renyi(multiplier, rounds, delta):
    exact = epsilon_of(multiplier, rounds=rounds, delta=delta)
    renyi = epsilon_of(multiplier, rounds=rounds, delta=delta, accountant="renyi")
    assert 0 <= exact <= renyi * (1 + 1e-12)
    assert math.isfinite(renyi)


@given(low=st.floats(1e-3, 1e6), factor=st.floats(1.0001, 1e3), delta=DELTAS, accountant=st.sampled_from(ACCOUNTANTS))
def test_more_noise_never_costs_more(low, factor, delta, accountant):
    some, more = epsilon_of([low, low * factor], rounds=3, delta=delta, accountant=accountant)
    assert more <= some


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_table_is_never_below_the_curve_and_close_above_it(accountant):
    rng = np.random.default_rng(1)
    multipliers = np.exp(rng.uniform(-5, 12, 50_000))
    tabulated = epsilon_of(multipliers, rounds=10, delta=1e-6, accountant=accountant)
    parts = np.array_split(multipliers, 5)
    solved = np.concatenate([epsilon_of(part, rounds=10, delta=1e-6, accountant=accountant) for part in parts])
    assert (tabulated >= solved * (1 - 1e-13)).all()
    assert (tabulated <= solved * (1 + 1e-6) + 1e-12).all()
    worst = int(np.argmax(solved))
    assert tabulated[worst] == solved[worst]


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.3])
def test_a_table_is_as_good_where_epsilon_leaves_zero(accountant, delta):
    edge = 2 * math.sqrt(2) * float(mpmath.erfinv(delta))
    shifts = edge * np.exp(np.random.default_rng(2).uniform(-0.01, 0.01, 40_000))
    tabulated = epsilon_of_shifts(shifts, delta=delta, accountant=accountant)
    solved = np.concatenate(
        [epsilon_of_shift(part, delta=delta, accountant=accountant) for part in np.array_split(shifts, 4)]
    )
    assert (tabulated >= solved * (1 - 1e-13)).all()
    assert (tabulated <= solved * (1 + 1e-6) + 1e-7).all()


@given(epsilon=st.floats(1e-12, 1e12), digits=st.integers(2, 9))
def test_printed_epsilons_are_rounded_up_and_never_down(epsilon, digits):
    rounded = rounded_up(epsilon, digits=digits)
    assert epsilon <= rounded <= epsilon * (1 + 1.001 * 10.0 ** (1 - digits))


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_table_of_one_value_repeated_is_that_value(accountant):
    found = epsilon_of(np.full(30_000, 7.0), rounds=2, delta=1e-5, accountant=accountant)
    assert (found == epsilon_of(7.0, rounds=2, delta=1e-5, accountant=accountant)).all()


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_epsilon_is_convex_in_the_shift(accountant):
    shift = np.geomspace(1e-6, 1e3, 4001)
    epsilon = epsilon_of_shift(shift, delta=1e-5, accountant=accountant)
    slope = np.diff(epsilon) / np.diff(shift)
    assert (np.diff(slope) >= -1e-9 * slope[1:] - 1e-12).all()


def test_edges_are_exact():
    assert epsilon_of(0.0, rounds=1, delta=1e-5) == math.inf
    assert epsilon_of(math.inf, rounds=1, delta=1e-5) == 0
    # eps = 0 exactly when mu <= 2 sqrt(2) erfinv(delta); erfinv(0.1) to 17 digits
    edge = 2 * math.sqrt(2) * 0.08885599049425769
    assert epsilon_of(2 / edge * (1 + 1e-9), rounds=1, delta=0.1) == 0
    assert epsilon_of(2 / edge * (1 - 1e-6), rounds=1, delta=0.1) > 0
    assert noise_for(math.inf, rounds=1, delta=1e-5) == 0
    mixed = epsilon_of([0.0, 1.0, math.inf], rounds=1, delta=1e-5)
    assert mixed[0] == math.inf
    assert mixed[2] == 0


def test_shapes_are_kept():
    assert isinstance(epsilon_of(3.0, rounds=1, delta=0.1), float)
    assert epsilon_of(np.ones((2, 3)), rounds=1, delta=0.1).shape == (2, 3)
    assert noise_for(np.ones((2, 3)), rounds=1, delta=0.1).shape == (2, 3)
    assert epsilon_of([], rounds=1, delta=0.1).shape == (0,)


def test_rounds_with_different_multipliers_add_up_in_the_squared_shift():
    together = epsilon_of_shift(math.sqrt(4 / 3**2 + 4 / 5**2), delta=1e-5)
    assert together == pytest.approx(epsilon_of(math.sqrt(4 / (4 / 9 + 4 / 25)), rounds=1, delta=1e-5), rel=1e-14)
    assert epsilon_of_shift(2 * math.sqrt(10) / 5, delta=1e-5) == epsilon_of(5.0, rounds=10, delta=1e-5)


def test_observer_power_is_the_gaussian_trade_off():
    with mpmath.workdps(30):
        mu = 2 * mpmath.sqrt(10) / 5
        guess = mpmath.ncdf(mu / 2)
        hit = mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf("0.01") - 1) + mu)
    power = observer_power(5.0, rounds=10)
    assert power.guessing_rate == pytest.approx(float(guess), rel=1e-12)
    assert power.true_positive_rate == pytest.approx(float(hit), rel=1e-12)
    assert observer_power(0.0, rounds=1).guessing_rate == 1
    assert observer_power(1e12, rounds=1).guessing_rate == pytest.approx(0.5)


@given(multiplier=st.floats(0.05, 1e4), rounds=st.integers(1, 100), delta=DELTAS, rate=st.floats(1e-6, 0.9))
def test_what_epsilon_allows_bounds_what_the_mechanism_gives(multiplier, rounds, delta, rate):
    real = observer_power(multiplier, rounds=rounds, false_positive_rate=rate)
    epsilon = epsilon_of(multiplier, rounds=rounds, delta=delta)
    allowed = observer_power_at(epsilon, delta=delta, false_positive_rate=rate)
    assert real.guessing_rate <= allowed.guessing_rate + 1e-12
    assert real.true_positive_rate <= allowed.true_positive_rate + 1e-12


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: epsilon_of(1.0, rounds=0, delta=1e-5), "rounds must be a whole number of at least 1, got 0"),
        (lambda: epsilon_of(1.0, rounds=1.5, delta=1e-5), "rounds must be a whole number of at least 1, got 1.5"),
        (lambda: epsilon_of(1.0, rounds=1, delta=0.0), "delta must be in (0, 1), got 0.0"),
        (lambda: epsilon_of(1.0, rounds=1, delta=1.0), "delta must be in (0, 1), got 1.0"),
        (lambda: epsilon_of(1.0, rounds=1, delta=math.nan), "delta must be in (0, 1), got nan"),
        (lambda: epsilon_of(-1.0, rounds=1, delta=0.1), "noise multiplier must be at least 0, got -1.0"),
        (lambda: epsilon_of([1.0, math.nan], rounds=1, delta=0.1), "noise multiplier must be at least 0, got nan"),
        (lambda: noise_for(0.0, rounds=1, delta=0.1), "epsilon must be from 1e-12 to 1e+12, or inf, got 0.0"),
        (lambda: noise_for(math.nan, rounds=1, delta=0.1), "epsilon must be from 1e-12 to 1e+12, or inf, got nan"),
        (
            lambda: epsilon_of(1.0, rounds=1, delta=0.1, accountant="reny"),
            "unknown accountant 'reny'. Known: exact, renyi. Did you mean 'renyi'?",
        ),
        (lambda: epsilon_of(1.0, rounds=10**400, delta=0.1), "rounds must be at most 1,000,000,000, got 1e+300"),
        (lambda: observer_power(-1.0, rounds=1), "noise multiplier must be at least 0, got -1.0"),
        (lambda: observer_power_at(-1.0, delta=0.1), "epsilon must be at least 0, got -1.0"),
        (
            lambda: observer_power(1.0, rounds=1, false_positive_rate=1.0),
            "false-positive rate must be in (0, 1), got 1.0",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(call, line):
    with pytest.raises(ParameterError) as caught:
        call()
    assert str(caught.value) == line


@pytest.mark.parametrize("accountant", ["exact", "renyi"])
def test_what_has_no_noise_has_no_guarantee_and_what_is_no_number_no_answer(accountant):
    for multiplier in (5e-324, 1e-200, 1e-155, 1e-101):
        assert epsilon_of(multiplier, rounds=10, delta=1e-5, accountant=accountant) == math.inf
    for multiplier in (1e-90, 1e-20):
        found = epsilon_of(multiplier, rounds=10, delta=1e-5, accountant=accountant)
        assert found == pytest.approx(2 * 10 / multiplier**2, rel=1e-3)
    for shift in (math.nan, -1e-9, [0.5, math.nan]):
        with pytest.raises(ParameterError, check=coded("accounting.shift-range")):
            epsilon_of_shift(shift, delta=1e-5, accountant=accountant)


@given(shift=st.floats(1e-6, 30), rate=st.floats(1e-6, 0.5))
def test_what_is_proven_of_an_observer_covers_what_it_can_do_with_gaussian_noise(shift, rate):
    true = observer_power_of_shift(shift, false_positive_rate=rate)
    proven = observer_power_of_shift(shift, accountant="renyi", false_positive_rate=rate)
    assert true.guessing_rate == pytest.approx(stats.norm.cdf(shift / 2), rel=1e-12)
    assert true.guessing_rate <= proven.guessing_rate <= 1
    assert true.true_positive_rate <= proven.true_positive_rate <= 1
    if shift <= 0.5:  # and not by much
        assert proven.guessing_rate - 0.5 <= 1.3 * (true.guessing_rate - 0.5)


def test_what_is_proven_of_an_observer_holds_for_discrete_gaussians():
    """Sums over the integers of the two distributions, the best event for each hypothesis."""
    width, moved = 16.0, 9
    x = np.arange(-600, 601)
    one, other = (np.exp(-((x - mean) ** 2) / (2 * width**2)) for mean in (0, moved))
    one, other = one / one.sum(), other / other.sum()
    proven = observer_power_of_shift(moved / width, accountant="renyi")
    assert (1 + np.abs(one - other).sum() / 2) / 2 <= proven.guessing_rate
    order = np.argsort(one / other)
    accused = np.cumsum(one[order]) <= 0.01
    assert other[order][accused].sum() <= proven.true_positive_rate


def test_a_distance_between_the_noise_drawn_and_the_noise_accounted_for_helps_the_observer():
    for accountant in ("exact", "renyi"):
        without, with_it = (observer_power_of_shift(0.3, accountant=accountant, distance=d) for d in (0.0, 1e-3))
        assert with_it.guessing_rate == pytest.approx(without.guessing_rate + 1e-3)
        assert with_it.true_positive_rate > without.true_positive_rate + 1e-3
        more = observer_power_of_shift(0.3, accountant=accountant, false_positive_rate=0.011)
        assert with_it.true_positive_rate == pytest.approx(more.true_positive_rate + 1e-3)
    for wrong in ({"shift": math.nan}, {"shift": -1.0}, {"shift": 1.0, "distance": -1.0}):
        with pytest.raises(ParameterError, check=coded("observer.shift-range")):
            observer_power_of_shift(**wrong)


@pytest.mark.parametrize("accountant", ["exact", "renyi"])
@pytest.mark.parametrize("count", [1, 3000, 30_000])
def test_a_shift_too_small_for_its_square_costs_nothing_and_warns_of_nothing(accountant, count):
    """Warnings are errors in these tests."""
    for shift in (5e-324, 1e-300, 1e-160):
        assert not epsilon_of_shifts(np.full(count, shift), delta=1e-5, accountant=accountant).any()
    mixed = epsilon_of_shifts(np.geomspace(1e-320, 1.0, count), delta=1e-5, accountant=accountant)
    assert mixed[0] == 0
    assert (np.diff(mixed) >= 0).all()
