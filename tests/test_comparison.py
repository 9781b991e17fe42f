import numpy as np
import pytest

import fulcrum
from fulcrum.comparison import compare


def test_every_allocation_meets_the_same_target_and_the_optimum_costs_least():
    rows = compare("severe", rounds=10, epsilon=0.99, accountant="renyi")
    assert [row.allocation for row in rows] == ["optimal", "uniform", "size", "inverse-size", "misallocated"]
    assert all(row.epsilon_above_worst == pytest.approx(0.99, rel=1e-9) for row in rows)
    assert rows[0].noise_budget == min(row.noise_budget for row in rows)
    assert rows[1].epsilon_above_mean == pytest.approx(0.368, abs=5e-4)
    assert rows[0].epsilon_inside_worst == pytest.approx(10.06, abs=5e-3)


def test_least_noise_joins_where_there_are_colluders():
    rows = compare("isic-hospital", rounds=10, epsilon=1.0, colluders=1)
    assert rows[-1].allocation == "least-noise"
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
