from itertools import pairwise

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import ParameterError
from fulcrum.planning.comparisons.comparison import compare, compare_plans, observer_trade, row_of
from fulcrum.planning.planner import plan
from fulcrum.readers.federation import Federation
from fulcrum.readers.federation_reader import read_federation


def test_every_allocation_meets_the_same_target_and_the_optimum_costs_least():
    rows = compare("severe", rounds=10, epsilon=0.99, accountant="renyi")
    paper = ["optimal", "uniform", "size", "inverse-size", "misallocated"]
    assert [row.allocation for row in rows] == [
        *(*paper, "equal", "least-noise"),
        *("half the rounds", "one masked group", "unit person"),
    ]
    rows = rows[:5]
    assert all(row.epsilon_above_worst == pytest.approx(0.99, rel=1e-9) for row in rows)
    assert rows[0].noise_budget == min(row.noise_budget for row in rows)
    assert rows[1].epsilon_above_mean == pytest.approx(0.368, abs=5e-4)
    assert rows[0].epsilon_inside_worst == pytest.approx(10.06, abs=5e-3)


def test_least_noise_joins_where_there_are_colluders():
    rows = compare("isic-hospital", rounds=10, epsilon=1.0, colluders=1)
    assert rows[5].allocation == "least-under-collusion"
    assert rows[5].noise_budget == min(row.noise_budget for row in rows[:6])


def evenly(federation, requirement):
    return np.ones(len(federation))


def test_a_users_own_allocation_joins_the_comparison():
    rows = compare("severe", rounds=10, epsilon=1.0, allocation=evenly)
    assert rows[5].allocation == "evenly"
    assert rows[5].noise_budget == pytest.approx(rows[1].noise_budget, rel=1e-12)


def test_the_same_budget_buys_different_epsilons():
    rows = fulcrum.compare("severe", rounds=10, budget=0.5)
    assert all(row.noise_budget == pytest.approx(0.5, rel=1e-9) for row in rows)
    assert rows[0].epsilon_above_worst == min(row.epsilon_above_worst for row in rows[:5])


def test_rows_beyond_the_paper_follow_its_own_and_say_whom_they_quieten():
    rows = {row.allocation: row for row in compare("severe", rounds=10, epsilon=0.99, parameters=66)}
    assert list(rows)[5:8] == ["equal", "least-noise", "joint"]
    for name in list(rows)[:5]:
        assert rows[name].least_influence == pytest.approx(1)
    # 5.425e-4, 2.4414e-4: noise in q² C² of the optimum and of least-noise weights; a region of 4 counts 16 / 4096.
    assert rows["least-noise"].noise_budget / rows["optimal"].noise_budget == pytest.approx(2.4414 / 5.4253, rel=1e-4)
    assert rows["least-noise"].least_influence == pytest.approx(16 / 4096 / (4 / 96))
    made = plan("severe", rounds=10, epsilon=0.99, parameters=66, recipe="joint")
    share, by_size = made.node_influence("region"), np.array([60, 20, 8, 4, 4]) / 96
    assert rows["joint"].least_influence == pytest.approx((share / by_size).min())
    assert rows["joint"].noise_budget == pytest.approx(((share / by_size) ** 2 * made.node_noise("region")).sum())
    assert rows["joint"].epsilon_above_worst == pytest.approx(0.99)


def test_a_row_that_cannot_keep_the_target_is_left_out_with_the_reason():
    severe = fulcrum.read_federation("severe")
    without_d = compare_plans(severe, None, {"rounds": 10, "epsilon": 1.0})
    assert "joint" not in without_d.rows
    assert "needs the number of trainable parameters" in without_d.left_out["joint"]
    outer = compare_plans(severe, None, {"rounds": 10, "epsilon": {"federation": 1.0}, "parameters": 66})
    assert list(outer.left_out) == ["joint"]
    assert "no target on 'federation' can hold" in outer.left_out["joint"]
    with pytest.raises(ParameterError, check=coded("accounting.delta-range")):
        compare(severe, rounds=10, epsilon=1.0, delta=2.0)


def test_weights_that_were_asked_for_make_a_last_row_and_leave_the_others_alone():
    target = {"rounds": 10, "epsilon": 1.0}
    plain, asked = compare("isic-paper", **target), compare("isic-paper", weights=0.5, **target)
    assert asked[:-1] == plain
    assert asked[-1].allocation == "as asked"
    rows = {row.allocation: row for row in plain}
    assert rows["least-noise"].noise_budget < asked[-1].noise_budget < plain[0].noise_budget
    # 0.091078 and 0.29615: noise in q² C² of equal weights within a region, and of the paper's optimum.
    assert rows["equal"].noise_budget / plain[0].noise_budget == pytest.approx(0.091078 / 0.29615, rel=1e-4)
    for rule in ("equal", "least-noise"):
        assert compare("isic-paper", weights=rule, **target) == plain


def test_a_plan_knows_which_row_of_a_comparison_it_is():
    target = {"rounds": 10, "epsilon": 1.0, "parameters": 66}
    assert row_of(plan("mild", **target)) == "optimal"
    assert row_of(plan("mild", allocation="uniform", **target)) == "uniform"
    assert row_of(plan("mild", weights="least-noise", **target)) == "least-noise"
    assert row_of(plan("mild", recipe="joint", **target)) == "joint"
    assert row_of(plan("mild", recipe="joint", shrink=False, **target)) is None
    assert row_of(plan("mild", weights="equal", **target)) == "equal"
    assert row_of(plan("mild", weights=0.5, **target)) is None
    kept = plan("mild", recipe="joint", least_influence=0.9, **target)
    assert row_of(kept) is None
    assert row_of(kept, least_influence=0.9) == "joint"


def test_the_trade_runs_from_the_optimum_to_uniform_and_each_end_is_a_plan():
    optimal = fulcrum.plan("severe", rounds=10, epsilon=1.0)
    uniform = fulcrum.plan("severe", rounds=10, epsilon=1.0, allocation="uniform")
    trades = observer_trade(optimal, points=5)
    assert trades[0].epsilon_inside == pytest.approx(optimal.epsilon_inside.max())
    assert trades[0].noise_budget == pytest.approx(optimal.noise_budget)
    assert trades[0].above_at_budget == pytest.approx(1.0)
    assert trades[-1].epsilon_inside == pytest.approx(uniform.epsilon_inside.max())
    assert trades[-1].noise_budget == pytest.approx(uniform.noise_budget)
    middle = fulcrum.plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": trades[2].epsilon_inside})
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
    assert observer_trade(fulcrum.plan("severe", rounds=10, epsilon={"aggregator": 1.0})) == ()
    assert observer_trade(fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator")) == ()
    flat = fulcrum.Federation.from_sizes({f"r{k}": [100] for k in range(5)})
    assert observer_trade(fulcrum.plan(flat, rounds=10, epsilon=1.0)) == ()


def test_masked_plans_are_compared_with_all_silos_masked_as_one_group():
    rows = {row.allocation: row for row in compare("severe", rounds=10, epsilon=0.3, aggregation="masked")}
    one, optimal = rows["one masked group"], rows["optimal"]
    assert one.noise_budget == pytest.approx(optimal.noise_budget / 5)  # one sum in place of five, at the same epsilon
    assert one.epsilon_above_worst <= 0.3
    assert one.least_influence == pytest.approx(1.0)
    trusted = {row.allocation: row for row in compare("severe", rounds=10, epsilon=0.3)}
    assert trusted["one masked group"] == one


def test_one_masked_group_keeps_the_least_of_the_targets_outside_and_that_inside():
    target = {"rounds": 10, "epsilon": {"region": 0.5, "federation": 0.4, "server+silo": 3.0}, "aggregation": "masked"}
    made = compare_plans(read_federation("severe"), None, target).plans["one masked group"]
    assert made.epsilon_target == {"federation": 0.4, "silo": 3.0}


def test_a_plan_that_is_one_masked_group_already_has_no_row_of_its_own():
    for source, epsilon in (
        ("severe", {"federation": 1.0}),
        (Federation.from_sizes({"all": {"a": 1, "b": 1, "c": 1}}), 1.0),
    ):
        rows = compare(source, rounds=10, epsilon=epsilon, aggregation="masked")
        assert "one masked group" not in {row.allocation for row in rows}
