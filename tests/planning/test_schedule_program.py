"""The convex program of changing rosters: closed forms, a second solver, certificates."""

import numpy as np
import pytest
from scipy.sparse import csr_array

import fulcrum
from fulcrum.planning.theory.schedule_program import Schedule, certified_gap, least_noise_of_schedule


def schedule_of(squared, rounds=None, cost=None, allowance=None):
    squared = np.atleast_2d(np.asarray(squared, dtype=float))
    sums, silos = squared.shape
    return Schedule(
        squared_weight=csr_array(squared),
        rounds=np.ones(sums) if rounds is None else np.asarray(rounds, dtype=float),
        cost=np.ones(sums) if cost is None else np.asarray(cost, dtype=float),
        allowance=np.ones(silos) if allowance is None else np.asarray(allowance, dtype=float),
    )


def random_schedule(seed):
    random = np.random.default_rng(seed)
    silos, regions, phases = int(random.integers(3, 25)), int(random.integers(1, 5)), int(random.integers(2, 6))
    region_of = random.integers(0, regions, silos)
    weights = random.lognormal(0, 1, silos)
    weights /= weights.sum()
    rows = []
    for _ in range(phases):
        present = random.random(silos) < 0.7
        for region in range(regions):
            row = np.where(present & (region_of == region), weights**2, 0.0)
            if row.any():
                rows.append(row)
    squared = np.array(rows)
    squared = squared[:, squared.any(axis=0)]
    sums, kept = squared.shape
    return schedule_of(
        squared, random.integers(1, 8, sums), random.uniform(0.5, 2, sums), random.uniform(0.01, 1, kept)
    )


def test_the_check_value_of_four_rounds():
    noise = least_noise_of_schedule(schedule_of([[0.16, 0.09, 0.0], [0.16, 0.09, 0.36]], rounds=[2, 2]), gap=1e-12)
    assert noise.variance == pytest.approx([0.576, 0.72], rel=1e-6)
    assert noise.total == pytest.approx(2.592, rel=1e-11)
    assert 2.592 < 4 * 0.72 == 2.88  # constant noise: the third silo needs .72, the first .64


@pytest.mark.parametrize("seed", range(5))
def test_rosters_that_never_change_have_the_closed_form(seed):
    random = np.random.default_rng(seed)
    squared, allowance = random.uniform(0.1, 1, (3, 12)), random.uniform(0.1, 1, 12)
    squared[np.arange(12) % 3 != np.arange(3)[:, None]] = 0
    rounds = np.array([4.0, 7.0, 1.0])
    noise = least_noise_of_schedule(schedule_of(squared, rounds, allowance=allowance))
    expected = rounds * (squared / allowance).max(axis=1)
    assert noise.variance == pytest.approx(expected, rel=1e-12)
    assert noise.gap <= 1e-12


def test_two_phases_of_one_silo_share_its_allowance_by_closed_form():
    # One silo in two sums with costs c: Cauchy and Schwarz give (sum of L a sqrt(c))² / B.
    squared, rounds, cost = np.array([[0.25], [0.04]]), np.array([3.0, 5.0]), np.array([1.0, 2.0])
    noise = least_noise_of_schedule(schedule_of(squared, rounds, cost, [0.7]), gap=1e-13)
    expected = float((rounds * np.sqrt(squared[:, 0] * cost)).sum()) ** 2 / 0.7
    assert noise.total == pytest.approx(expected, rel=1e-12)


def test_two_hundred_random_schedules_agree_with_an_interior_point_solver():
    cvxpy = pytest.importorskip("cvxpy", reason="the second solver")
    for seed in range(200):
        schedule = random_schedule(seed)
        noise = least_noise_of_schedule(schedule, gap=2e-8)
        squared = schedule.squared_weight.toarray()
        share = cvxpy.Variable(len(schedule.rounds), pos=True)  # of the noise above, so that variables are near 1
        cost = schedule.rounds * schedule.cost * noise.variance / noise.total
        loads = (squared * (schedule.rounds / noise.variance)[:, None]).T / schedule.allowance[:, None]
        problem = cvxpy.Problem(cvxpy.Minimize(cost @ share), [loads @ cvxpy.inv_pos(share) <= 1])
        problem.solve(solver=cvxpy.CLARABEL, tol_gap_rel=1e-9, tol_gap_abs=1e-9, tol_feas=1e-9)
        assert noise.total == pytest.approx(problem.value * noise.total, rel=1e-7), seed
        assert schedule.loads(noise.variance).max() <= 1
        assert certified_gap(schedule, noise.variance, noise.prices) <= 1e-7


def test_noise_is_at_most_that_of_constant_noise():
    for seed in range(30):
        schedule = random_schedule(seed)
        noise = least_noise_of_schedule(schedule, gap=1e-6)
        constant = np.ones(len(schedule.rounds))
        constant *= schedule.loads(constant).max()
        assert noise.total <= schedule.total(constant) * (1 + 1e-9)


def test_a_certificate_refuses_too_little_noise_and_shows_too_much():
    schedule = random_schedule(3)
    noise = least_noise_of_schedule(schedule)
    assert certified_gap(schedule, noise.variance, noise.prices) <= 1e-9
    assert certified_gap(schedule, noise.variance * 0.999, noise.prices) == np.inf
    assert certified_gap(schedule, noise.variance * 2, noise.prices) == pytest.approx(0.5, abs=1e-6)
    assert certified_gap(schedule, noise.variance, -noise.prices) == np.inf
    random = np.random.default_rng(0)
    for _ in range(20):  # any prices give a true bound
        assert schedule.lower_bound(random.random(len(noise.prices))) <= noise.total * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"squared": [[1.0, 0.0]]}, "schedule.silo-absent"),
        ({"squared": [[1.0], [0.0]]}, "schedule.sum-empty"),
        ({"squared": [[1.0]], "rounds": [0]}, "schedule.values-range"),
        ({"squared": [[1.0]], "allowance": [np.nan]}, "schedule.values-range"),
        ({"squared": [[-1.0, 2.0]]}, "schedule.weights-range"),
    ],
)
def test_schedules_that_are_none_are_refused(arguments, code):
    with pytest.raises(fulcrum.FulcrumError) as caught:
        schedule_of(**arguments)
    assert caught.value.code == code


def test_many_silos_are_solved_in_bounded_steps():
    random = np.random.default_rng(0)
    silos, regions, phases = 2_000, 40, 10
    region_of, weight = random.integers(0, regions, silos), random.lognormal(0, 0.6, silos) / silos
    phase, silo = np.nonzero(random.random((phases, silos)) < 0.7)
    entries = (weight[silo] ** 2, (phase * regions + region_of[silo], silo))
    squared = csr_array(entries, shape=(phases * regions, silos))
    schedule = Schedule(
        squared_weight=squared,
        rounds=np.ones(phases * regions),
        cost=np.ones(phases * regions),
        allowance=np.ones(silos),
    )
    assert least_noise_of_schedule(schedule, gap=1e-4, most_steps=400).gap <= 1e-4
