import dataclasses
import json

import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError
from fulcrum.server.run_results import read_results, unkeyed_digest
from fulcrum.simulation.trials import compare_trained, save_comparison

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

TARGET = {"rounds": 2, "epsilon": 3.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison as `fulcrum compare --train -o` leaves it."""
    where = tmp_path_factory.mktemp("run")
    federation = fulcrum.read_federation("severe")
    rows = compare_trained(federation, "digits", seeds=2, **TARGET)
    save_comparison(rows, where, federation=federation, task="digits", seeds=2, **TARGET)
    return where


def test_a_comparison_stands_beside_the_plan_of_each_of_its_rows(folder):
    for chosen in ({}, {"allocation": "uniform"}, {"weights": "least-noise"}, {"recipe": "joint", "parameters": 34}):
        made = fulcrum.plan("severe", **TARGET, **chosen)
        rows = {row.allocation: row for row in read_results(folder, made).comparison.rows}
        assert list(rows)[5:] == ["equal", "least-noise", "joint"]
        assert rows["joint"].least_influence == pytest.approx(0.5)
        assert rows["joint"].worst_region is not None
    other = fulcrum.plan("severe", weights="equal", **TARGET)  # none of its rows: only the target is held against it
    assert read_results(folder, other).comparison is not None


def test_a_row_of_other_noise_than_the_plan_of_its_name_is_refused(folder, tmp_path):
    made = fulcrum.plan("severe", recipe="joint", parameters=34, **TARGET)
    content = json.loads((folder / "comparison.json").read_text())
    for row in content["rows"]:
        row["noise_budget"] *= 2 if row["allocation"] == "joint" else 1
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(DataError, check=coded("run.other-target")):
        read_results(tmp_path, made)
    assert read_results(tmp_path, fulcrum.plan("severe", **TARGET)).comparison is not None


def test_a_comparison_of_a_version_that_knew_neither_influence_nor_worst_region_is_read(folder, tmp_path):
    content = json.loads((folder / "comparison.json").read_text())
    content["rows"] = [
        {key: value for key, value in row.items() if key != "least_influence" and "worst_region" not in key}
        for row in content["rows"][:5]
    ]
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    found = read_results(tmp_path, fulcrum.plan("severe", **TARGET)).comparison
    assert [row.least_influence for row in found.rows] == [None] * 5


def a_run(plan, **fields):
    """What a deployed run leaves in run.json."""
    rounds = [
        {"round": 1, "accuracy": 0.5, "metrics": {"loss": 0.9}, "regions": 2, "silos": 5, "withheld": []},
        {"round": 2, "accuracy": None, "metrics": {"loss": 0.7}, "regions": 1, "silos": 4, "withheld": ["south"]},
    ]
    told = {"plan_digest": plan.digest, "allocation": "optimal", "task": "learning", "engine": "nvflare", "seeds": []}
    return json.dumps(told | {"rounds": rounds, "notes": []} | fields)


def test_a_deployed_run_has_a_curve_for_every_metric_that_was_measured(tmp_path):
    made = fulcrum.plan("severe", **TARGET)
    (tmp_path / "run.json").write_text(a_run(made))
    found = read_results(tmp_path, made).run
    assert (found.engine, found.accuracy, found.reference) == ("nvflare", None, None)
    assert found.curves() == {"accuracy": [(1, 0.5, None)], "loss": [(1, 0.9, None), (2, 0.7, None)]}
    assert found.rounds[1].withheld == ["south"]


def test_a_run_of_the_plan_that_sites_were_given_keys_for_is_one_of_the_plan_it_was_made_of(tmp_path):
    made = fulcrum.plan("severe", **TARGET)
    keyed = dataclasses.replace(made, keys={"region-1": "x25519:" + "ab" * 32})
    assert keyed.digest != made.digest
    (tmp_path / "run.json").write_text(a_run(keyed, unkeyed_digest=unkeyed_digest(keyed)))
    for plan in (made, keyed):
        assert read_results(tmp_path, plan).run.plan_digest == keyed.digest
    with pytest.raises(DataError, check=coded("run.other-plan")):
        read_results(tmp_path, fulcrum.plan("severe", rounds=2, epsilon=2.9))
    (tmp_path / "run.json").write_text(a_run(keyed))
    with pytest.raises(DataError, check=coded("run.other-plan")):
        read_results(tmp_path, made)
