import json

import pytest

import fulcrum
from fulcrum.errors import DataError
from fulcrum.simulation.results import read_results
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
        assert list(rows)[5:] == ["least-noise", "joint"]
        assert rows["joint"].least_influence == pytest.approx(16 / 4096 / (4 / 96))
        assert rows["joint"].worst_region is not None
    other = fulcrum.plan("severe", weights="equal", **TARGET)  # none of its rows: only the target is held against it
    assert read_results(folder, other).comparison is not None


def test_a_row_of_other_noise_than_the_plan_of_its_name_is_refused(folder, tmp_path):
    made = fulcrum.plan("severe", recipe="joint", parameters=34, **TARGET)
    content = json.loads((folder / "comparison.json").read_text())
    for row in content["rows"]:
        row["noise_budget"] *= 2 if row["allocation"] == "joint" else 1
    (tmp_path / "comparison.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is of another federation or target"):
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
