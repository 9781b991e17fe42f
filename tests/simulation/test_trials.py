import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import ParameterError
from fulcrum.planning.comparisons.comparison import BEYOND
from fulcrum.readers.profiles import lognormal_sizes
from fulcrum.simulation.trials import compare_trained

TARGET = {"rounds": 4, "epsilon": 3.0}


@pytest.fixture(scope="module")
def rows():
    return {row.allocation: row for row in compare_trained("severe", "digits", seeds=3, **TARGET)}


def test_accuracy_stands_beside_what_the_plan_says(rows):
    planned = {row.allocation: row for row in fulcrum.compare("severe", **TARGET)}
    for name in ("optimal", "uniform", "size", "inverse-size"):
        assert rows[name].noise_budget == pytest.approx(planned[name].noise_budget, rel=1e-12)
        assert rows[name].epsilon_above_worst == planned[name].epsilon_above_worst
    assert rows["uniform"].gain == 0
    assert rows["optimal"].gain > 0
    assert rows["size"].accuracy == rows["optimal"].accuracy


def test_what_goes_beyond_the_paper_is_trained_beside_it_with_the_d_of_the_head(rows):
    planned = {row.allocation: row for row in fulcrum.compare("severe", parameters=34, **TARGET)}
    for name in ("least-noise", "joint"):
        assert rows[name].noise_budget == pytest.approx(planned[name].noise_budget, rel=1e-12)
        assert rows[name].least_influence == pytest.approx(planned[name].least_influence, rel=1e-9)
        assert rows[name].gain == pytest.approx(rows[name].accuracy - rows["uniform"].accuracy)
        assert rows[name].gain > 0
    for row in rows.values():
        assert row.worst_region < row.accuracy + 0.05
        assert row.worst_region_se > 0


def test_a_joint_row_is_what_the_joint_plan_trains(rows):
    made = fulcrum.plan("severe", recipe="joint", parameters=34, **TARGET)
    alone = fulcrum.train(made, "digits", seeds=3)
    assert rows["joint"].accuracy == pytest.approx(alone.accuracy[:, -1].mean(), abs=1e-12)


def test_every_seed_deals_misallocated_noise_anew():
    few = {row.allocation: row for row in compare_trained("severe", "digits", seeds=[0], **TARGET)}
    more = {row.allocation: row for row in compare_trained("severe", "digits", seeds=[0, 1, 2], **TARGET)}
    assert few["misallocated"].noise_budget != more["misallocated"].noise_budget
    assert np.isnan(few["optimal"].accuracy_se)


def test_balanced_gains_are_exactly_zero():
    rows = compare_trained("balanced", "digits", seeds=2, **TARGET)
    paper = [row for row in rows if row.allocation not in BEYOND]
    assert [row.gain for row in paper] == [0.0] * 5
    assert [row.gain_se for row in paper] == [0.0] * 5


def test_sizes_may_be_drawn_for_every_seed():
    rows = {
        row.allocation: row for row in compare_trained("balanced", "digits", seeds=2, size_law="lognormal", **TARGET)
    }
    assert rows["size"].gain == 0
    assert rows["optimal"].noise_budget < rows["uniform"].noise_budget
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="size law", name="equal")):
        compare_trained("balanced", "digits", seeds=1, size_law="equal", **TARGET)


def test_lognormal_sizes_have_the_dispersion_of_the_text():
    for name, expected in (("balanced", 0.30), ("mild", 0.34), ("severe", 0.63)):
        federation = fulcrum.read_federation(name)
        found = np.mean([fulcrum.dispersion(lognormal_sizes(federation, seed=seed)) for seed in range(300)])
        assert found == pytest.approx(expected, abs=0.015)
