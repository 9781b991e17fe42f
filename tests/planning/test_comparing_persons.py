"""Comparisons for a person or a record as the unit of privacy."""

import math

import numpy as np
import pytest

import fulcrum
from fulcrum.planning.comparisons.comparison import EACH_SILO, NO_PRIVACY, ONE_GROUP, compare_plans
from fulcrum.readers.profiles import profile
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.training_settings import GradientTraining

TARGET = {"rounds": 10, "epsilon": 1.0, "unit": "person", "parameters": 66}


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
@pytest.mark.parametrize("silos_per_person", [1, 2])
def test_every_row_keeps_the_target_above_and_the_first_row_inside(neighbours, silos_per_person):
    rows = fulcrum.compare("severe", neighbours=neighbours, silos_per_person=silos_per_person, **TARGET)
    assert [row.allocation for row in rows] == [EACH_SILO, "uniform", "optimal", "joint", ONE_GROUP, NO_PRIVACY]
    by_name = {row.allocation: row for row in rows}
    for name in ("uniform", "optimal", "joint", ONE_GROUP):
        assert by_name[name].epsilon_above_worst == pytest.approx(1.0, abs=1e-6)
    assert by_name[EACH_SILO].epsilon_inside_worst == pytest.approx(1.0, abs=1e-6)
    assert by_name[EACH_SILO].epsilon_above_worst < 1
    assert (by_name[NO_PRIVACY].noise_budget, by_name[NO_PRIVACY].epsilon_above_worst) == (0.0, math.inf)


def test_the_noise_of_rows_has_the_ratios_of_the_closed_forms():
    """Equal weights of persons: noise of |R| regions, of n silos, or of one sum, whatever the sizes."""
    federation = fulcrum.Federation.from_sizes({"north": [30, 10, 50], "south": [20], "west": [5, 80]})
    noise = {row.allocation: row.noise_budget for row in fulcrum.compare(federation, **TARGET)}
    assert noise[EACH_SILO] / noise["optimal"] == pytest.approx(6 / 3, rel=1e-6)
    assert noise[ONE_GROUP] / noise["optimal"] == pytest.approx(1 / 3, rel=1e-6)
    assert noise["optimal"] <= noise["uniform"] <= noise[EACH_SILO] * (1 + 1e-9)


def test_a_target_inside_stays_in_every_row_and_makes_the_first_row_as_strict():
    rows = compare_plans(profile("consortium"), None, TARGET | {"epsilon": {"region": 2.0, "aggregator": 1.5}})
    for name, row in rows.plans.items():
        assert row.worst_epsilon("silo") <= 1.5 + 1e-9, name
    assert rows.plans[EACH_SILO].epsilon_target == {"silo": 1.5}
    assert rows.plans[ONE_GROUP].epsilon_target == {"silo": 1.5, "federation": 2.0}


def test_a_budget_has_no_row_of_silos_by_themselves():
    rows = fulcrum.compare("consortium", rounds=10, budget=1e-4, unit="person")
    assert [row.allocation for row in rows] == ["uniform", "optimal", NO_PRIVACY]


def test_rows_of_records_are_trained_and_gains_are_over_silos_by_themselves():
    task = load_task("digits", ranges="0,16")
    rows = fulcrum.compare_trained(
        "isic-paper",
        task,
        seeds=2,
        rounds=5,
        epsilon=3.0,
        unit="record",
        neighbours="add-remove",
        clip_norm=3.0,
        training=GradientTraining(learning_rate=10.0),
    )
    by_name = {row.allocation: row for row in rows}
    assert list(by_name) == [EACH_SILO, "uniform", "optimal", "joint", ONE_GROUP, NO_PRIVACY]
    assert by_name[EACH_SILO].gain == 0.0
    assert by_name[NO_PRIVACY].accuracy == by_name["optimal"].reference
    assert by_name[ONE_GROUP].noise_budget < by_name["optimal"].noise_budget < by_name[EACH_SILO].noise_budget
    assert np.isfinite(by_name[NO_PRIVACY].worst_region)
