import contextlib
import math

import numpy as np
import pytest

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.cli.shared_options.training_options import TrackingOptions
from fulcrum.core.training.assignment import Assignment
from fulcrum.engines import built_in_training
from fulcrum.server.run_results import RoundResult, RunResult
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.metrics import auc, measure_with_error
from fulcrum.simulation.trials import compare_trained
from fulcrum.simulation.tuning import tune
from fulcrum.views.charts.plan_charts import accuracy_chart
from fulcrum.views.terminal.plan_tables import comparison_columns, influence_columns, metric_of_rows, training_sentence
from fulcrum.views.tracking import round_values


def scored_task(metric, *, records=400, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, records)
    scores = np.column_stack([np.zeros(records), labels + random.normal(0, 1, records)])
    task = Task(
        name="scored",
        features_train=np.eye(2),
        labels_train=np.array([0, 1]),
        features_test=np.zeros((records, 2)),
        labels_test=labels,
        classes=("no", "yes"),
        metric=metric,
    )
    return task, scores


def test_the_standard_error_of_an_auc_is_that_of_delong():
    task, scores = scored_task("auc")
    value, error = measure_with_error(scores, task)
    sick, well = (scores[task.labels_test == label, 1] for label in (1, 0))
    wins = (sick[:, None] > well).astype(float)
    closed = math.sqrt(wins.mean(axis=1).var(ddof=1) / len(sick) + wins.mean(axis=0).var(ddof=1) / len(well))
    assert value == auc(scores, task.labels_test)
    assert error == pytest.approx(closed, rel=0.25)  # 50 parts: the spread of a variance is 20 %


def test_the_standard_error_of_an_accuracy_is_that_of_a_share():
    task, scores = scored_task("accuracy")
    scores = scores - [0, 0.5]
    value, error = measure_with_error(scores, task)
    assert error == pytest.approx(math.sqrt(value * (1 - value) / 400), rel=0.25)


def test_the_built_in_training_evaluates_the_metric_of_its_options():
    plan = fulcrum.plan("mild", rounds=2, epsilon=5.0)
    options = {"data": "digits", "metric": "auc"}
    task = load_task("digits", metric="auc")
    assert task.metric == "auc"
    model = {"head": np.random.default_rng(0).normal(size=(task.width + 1, 2))}
    assignment = Assignment(silo="", round_number=1, plan=plan, seed=0, options=options)
    metrics = built_in_training.evaluate(model, assignment)
    scores = np.column_stack([task.features_test, np.ones(len(task.features_test))]) @ model["head"]
    assert metrics["auc"] == pytest.approx(auc(scores, task.labels_test))
    assert 0 < metrics["auc_se"] < 0.1
    assert set(built_in_training.evaluate(model, Assignment(**vars_of(assignment, options={})))) == {"accuracy"}


def vars_of(assignment, **changes):
    names = ("silo", "round_number", "plan", "seed", "options")
    return {name: getattr(assignment, name) for name in names} | changes


def test_a_curve_has_the_error_beside_its_metric_and_no_curve_of_errors():
    rounds = [RoundResult(round=1, metrics={"auc": 0.7, "auc_se": 0.02, "loss": 0.5})]
    run = RunResult(plan_digest="", allocation="optimal", task="stays", seeds=[], rounds=rounds, notes=[])
    assert {name: curve[0][1:] for name, curve in run.curves().items()} == {"auc": (0.7, 0.02), "loss": (0.5, None)}
    trained = RunResult(
        plan_digest="",
        allocation="optimal",
        task="stays",
        seeds=[0, 1],
        metric="auc",
        rounds=[RoundResult(round=1, accuracy=0.7, accuracy_se=0.02)],
        notes=[],
    )
    assert list(trained.curves()) == ["auc"]
    assert trained.round_rows()[0]["auc"] == 0.7


def test_a_tracker_gets_the_metric_of_the_data_by_its_name(tmp_path, monkeypatch):
    numbers, seen = np.random.default_rng(0), []
    np.savez(tmp_path / "own.npz", X=numbers.normal(size=(400, 3)), y=numbers.integers(0, 2, 400))
    plan_file = tmp_path / "plan.json"
    fulcrum.save_plan(fulcrum.plan("isic-paper", rounds=2, epsilon=5.0), plan_file)
    monkeypatch.setattr(TrackingOptions, "open", lambda *_, **__: contextlib.nullcontext(seen.append))
    words = ["train", plan_file, "--data", tmp_path / "own.npz", "--metric", "auc", "--seeds", 2, "--format", "json"]
    assert run([str(word) for word in words]) == 0
    assert [sorted(round_values(result)) for result in seen] == [["auc", "auc_se"]] * 2


@pytest.mark.skipif("not __import__('importlib').util.find_spec('sklearn')", reason="the digits need scikit-learn")
def test_compare_and_tune_name_and_measure_the_chosen_metric():
    task = load_task("digits", metric="auc")
    rows = compare_trained("isic-paper", task, seeds=2, rounds=2, epsilon=8.0)
    assert metric_of_rows(rows) == "auc"
    assert "auc" in training_sentence(rows)
    federation = fulcrum.read_federation("isic-paper")
    assert [column.heading for column in comparison_columns(True, "auc")][4] == "auc"
    assert influence_columns(federation, True, "auc")[-1].heading == "auc of the worst region"
    described = accuracy_chart([{"allocation": "a", "accuracy": 0.5}], metric="auc")["description"]
    assert described.startswith("Test auc of 1")
    tuned = tune(fulcrum.plan(federation, rounds=2, epsilon=8.0), "digits", rounds=[2], seeds=2, metric="auc")
    assert tuned.metric == "auc"
    by_accuracy = tune(fulcrum.plan(federation, rounds=2, epsilon=8.0), "digits", rounds=[2], seeds=2)
    assert (by_accuracy.metric, by_accuracy.best.accuracy != tuned.best.accuracy) == ("accuracy", True)
