"""The joint recipe keeps half of every region's influence by size, unless a plan says otherwise."""

import pytest

import fulcrum
from fulcrum.planning.comparisons.comparison import least_influence, row_of

PROMISE = {"rounds": 10, "epsilon": 0.99, "parameters": 66}


def test_the_joint_recipe_keeps_half_of_the_influence_by_size_and_the_paper_keeps_all():
    joint = fulcrum.plan("severe", **PROMISE, recipe="joint")
    assert joint.least_influence == 0.5
    assert least_influence(joint) == pytest.approx(0.5)
    paper = fulcrum.plan("severe", **PROMISE)
    assert (paper.least_influence, least_influence(paper)) == (0.0, pytest.approx(1.0))
    assert row_of(joint) == "joint"


def test_a_plan_may_choose_the_least_noise_or_influence_by_size():
    noise = {}
    for least in (0.0, 0.5, 1.0):
        made = fulcrum.plan("severe", **PROMISE, recipe="joint", least_influence=least)
        noise[least] = made.model_noise
        assert least_influence(made) >= least - 1e-9
        assert all(check.holds for check in fulcrum.verify(made))
    assert noise[0.0] < noise[0.5] < noise[1.0]
    # at influence by size, the noise of the paper's optimum: 96 equal silos in five regions
    assert noise[1.0] == pytest.approx(fulcrum.plan("severe", **PROMISE).noise_budget, rel=1e-9)


def test_a_comparison_keeps_the_recipe_s_least_influence_unless_asked_for_another():
    usual = {row.allocation: row for row in fulcrum.compare("severe", **PROMISE)}
    least = {row.allocation: row for row in fulcrum.compare("severe", **PROMISE, least_influence=0.0)}
    assert usual["joint"].least_influence == pytest.approx(0.5)
    assert usual["least-noise"] == least["least-noise"]
    assert least["joint"].least_influence < 0.1
