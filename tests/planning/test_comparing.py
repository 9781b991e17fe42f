from itertools import pairwise

import numpy as np
import pytest

import fulcrum
from fulcrum.planning.comparing import compare, observer_trade


def test_every_allocation_meets_the_same_target_and_the_optimum_costs_least():
    rows = compare("severe", rounds=10, epsilon=0.99, accountant="renyi")
    assert [row.allocation for row in rows] == ["optimal", "uniform", "size", "inverse-size", "misallocated"]
    assert all(row.epsilon_above_worst == pytest.approx(0.99, rel=1e-9) for row in rows)
    assert rows[0].noise_budget == min(row.noise_budget for row in rows)
    assert rows[1].epsilon_above_mean == pytest.approx(0.368, abs=5e-4)
    assert rows[0].epsilon_inside_worst == pytest.approx(10.06, abs=5e-3)


def test_least_noise_joins_where_there_are_colluders():
    rows = compare("isic-hospital", rounds=10, epsilon=1.0, colluders=1)
    assert rows[-1].allocation == "least-under-collusion"
    assert rows[-1].noise_budget == min(row.noise_budget for row in rows)


def evenly(federation, requirement):
    return np.ones(len(federation))


def test_a_users_own_allocation_joins_the_comparison():
    rows = compare("severe", rounds=10, epsilon=1.0, allocation=evenly)
    assert rows[-1].allocation == "evenly"
    assert rows[-1].noise_budget == pytest.approx(rows[1].noise_budget, rel=1e-12)


def test_the_same_budget_buys_different_epsilons():
    rows = fulcrum.compare("severe", rounds=10, budget=0.5)
    assert all(row.noise_budget == pytest.approx(0.5, rel=1e-9) for row in rows)
    assert rows[0].epsilon_above_worst == min(row.epsilon_above_worst for row in rows)


def test_the_trade_runs_from_the_optimum_to_uniform_and_each_end_is_a_plan():
    optimal = fulcrum.plan("severe", rounds=10, epsilon=1.0)
    uniform = fulcrum.plan("severe", rounds=10, epsilon=1.0, allocation="uniform")
    trades = observer_trade(optimal, points=5)
    assert trades[0].epsilon_inside == pytest.approx(optimal.epsilon_inside.max())
    assert trades[0].noise_budget == pytest.approx(optimal.noise_budget)
    assert trades[0].above_at_budget == pytest.approx(1.0)
    assert trades[-1].epsilon_inside == pytest.approx(uniform.epsilon_inside.max())
    assert trades[-1].noise_budget == pytest.approx(uniform.noise_budget)
    middle = fulcrum.plan("severe", rounds=10, epsilon={"region": 1.0, "silo": trades[2].epsilon_inside})
    assert trades[2].noise_budget == pytest.approx(middle.noise_budget, rel=1e-6)
    at_budget = fulcrum.plan("severe", rounds=10, budget=optimal.noise_budget, allocation="uniform")
    assert trades[-1].inside_at_budget == pytest.approx(at_budget.epsilon_inside.max(), rel=1e-6)
    assert trades[-1].above_at_budget == pytest.approx(at_budget.epsilon_above.max(), rel=1e-6)
    for before, after in pairwise(trades):
        assert after.epsilon_inside < before.epsilon_inside
        assert after.noise_budget > before.noise_budget
        assert after.above_at_budget > before.above_at_budget
        assert after.inside_at_budget < before.inside_at_budget


def test_there_is_no_trade_where_all_regions_are_single_silos_or_single_updates_alone_have_a_target():
    assert observer_trade(fulcrum.plan("severe", rounds=10, epsilon={"silo": 1.0})) == ()
    assert observer_trade(fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator")) == ()
    flat = fulcrum.Federation.from_sizes({f"r{k}": [100] for k in range(5)})
    assert observer_trade(fulcrum.plan(flat, rounds=10, epsilon=1.0)) == ()
