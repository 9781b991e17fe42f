import json

import numpy as np
import pytest

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.training.runs import chosen_seeds, save_run, train


@pytest.fixture(scope="module")
def run():
    return train(fulcrum.plan("mild", rounds=4, epsilon=5.0), "digits", seeds=3)


def test_a_run_tells_accuracy_by_round_and_its_reference(run):
    assert run.accuracy.shape == (3, 4)
    rows = run.by_round()
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["accuracy"] == pytest.approx(run.accuracy[:, -1].mean())
    assert rows[-1]["accuracy_se"] == pytest.approx(run.accuracy[:, -1].std(ddof=1) / 3**0.5)
    assert run.reference.mean() >= run.accuracy[:, -1].mean()


def test_seeds_are_a_number_or_a_list(run):
    again = train(fulcrum.plan("mild", rounds=4, epsilon=5.0), "digits", seeds=[2])
    assert (again.accuracy[0] == run.accuracy[2]).all()
    assert chosen_seeds(2) == [0, 1]
    for bad in (0, [], [-1]):
        with pytest.raises(ParameterError, match="seeds must be at least one"):
            chosen_seeds(bad)


def test_a_run_is_written_whole(run, tmp_path):
    save_run(run, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["plan_digest"] == run.plan.digest
    with np.load(tmp_path / "run" / "observed.npz") as arrays:
        assert (arrays["regional_sums"] == run.regional_sums).all()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made a folder"):
        save_run(run, tmp_path / "file")


def test_readers_are_told_what_is_outside_epsilon_and_what_the_data_could_not_give(run):
    assert "outside every epsilon" in run.notes[0]
    assert "too few records for 200 a silo" in run.notes[1]
    assert "fewer than a batch of 64" in run.notes[2]
