import dataclasses
import json

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.training_runs import save_run, seeds_of, train
from fulcrum.simulation.trials import compare_trained


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
    assert seeds_of(2) == [0, 1]
    assert run.seeds == (0, 1, 2)
    with pytest.raises(ParameterError, check=coded("training.seeds-repeated")):
        seeds_of([1, 2, 1])
    for bad in (0, [], [-1]):
        with pytest.raises(ParameterError, check=coded("training.seeds-range")):
            seeds_of(bad)


def test_a_run_is_written_whole(run, tmp_path):
    save_run(run, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["plan_digest"] == run.plan.digest
    assert (told["seeds"], told["records"], told["features"]) == ([0, 1, 2], None, 16)
    with np.load(tmp_path / "run" / "observed.npz") as arrays:
        assert (arrays["regional_sums"] == run.regional_sums).all()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, check=coded("run.folder-unusable")):
        save_run(run, tmp_path / "file")


def test_sums_are_kept_on_request(tmp_path):
    lean = train(fulcrum.plan("mild", rounds=1, epsilon=5.0), "digits", keep_regional_sums=False)
    assert lean.regional_sums is None
    save_run(lean, tmp_path)
    with np.load(tmp_path / "observed.npz") as arrays:
        assert set(arrays.files) == {"models", "accuracy"}


def test_the_reference_is_what_training_without_privacy_alone_gives(run):
    arms = Variants.from_plans([run.plan]).without_privacy()
    part = coupled_partition(run.task, run.plan.federation, seed=1)
    alone = train_jobs([Job(seed=1, partition=part, variants=arms)], run.task, run.training)[0]
    assert run.reference[1] == alone.accuracy[-1, 0]


@pytest.mark.parametrize("injection", ["silo", "aggregator"])
def test_callers_hear_of_the_plan_alone(injection):
    heard = []
    plan = fulcrum.plan("mild", rounds=2, epsilon=5.0, injection=injection)
    found = train(plan, "digits", on_round=lambda number, accuracy: heard.append((number, accuracy)))
    assert [number for number, _ in heard] == [1, 2]
    assert [accuracy[0].tolist() for _, accuracy in heard] == found.accuracy.T.tolist()


def test_data_that_names_its_silos_decides_their_records():
    federation = fulcrum.Federation.from_sizes({"a": {"x": 900, "y": 10}, "b": {"z": 10}})
    digits = load_task("digits")
    task = dataclasses.replace(digits, silo=tuple("xyz"[k % 3] for k in range(len(digits.labels_train))))
    plan = fulcrum.plan(federation, rounds=1, epsilon=5.0)
    assert "not of the sizes that federation declares" in train(plan, task).notes[1]
    with pytest.raises(ParameterError, check=coded("training.records-unneeded", records=10)):
        train(plan, task, records=10)
    with pytest.raises(ParameterError, check=coded("comparison.sizes-named")):
        compare_trained(federation, task, size_law="lognormal", rounds=1, epsilon=5.0)


def test_notes_go_by_the_records_asked_for():
    plan = fulcrum.plan("mild", rounds=1, epsilon=5.0)
    assert not any("too few records" in note for note in train(plan, "digits", records=5).notes)
    assert any("too few records for 50 a silo" in note for note in train(plan, "digits", records=50).notes)


def test_readers_are_told_what_is_outside_epsilon_and_what_the_data_could_not_give(run):
    assert "outside every epsilon" in run.notes[0]
    assert "too few records for 200 a silo" in run.notes[1]
    assert "fewer than a batch of 64" in run.notes[2]


def test_readers_are_told_that_the_last_of_many_classes_is_half_of_what_silos_hold(tmp_path):
    labels = np.arange(600) % 3
    np.savez(tmp_path / "three.npz", X=np.random.default_rng(0).normal(size=(600, 4)) + np.eye(3, 4)[labels], y=labels)
    plan, task = fulcrum.plan("isic-paper", rounds=1, epsilon=5.0), load_task(tmp_path / "three.npz")
    told = "three names no silos: about half of every silo's records are of its last class, '2'"
    assert [note for note in train(plan, task, records=5).notes if note.startswith(told)]
    named = dataclasses.replace(task, sensitive=(1, 2))
    assert not [note for note in train(plan, named, records=5).notes if "last class" in note]


def test_readers_are_told_where_the_head_is_not_what_the_plan_was_made_for():
    for parameters, told in ((610, True), (34, False), (None, False)):
        plan = fulcrum.plan("isic-paper", rounds=1, epsilon=5.0, parameters=parameters)
        said = "The plan is for 610 parameters, and the built-in head on digits trains 34. Was --model left out?"
        assert (said in train(plan, "digits").notes) is told
