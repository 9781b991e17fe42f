import dataclasses

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.errors import ParameterError
from fulcrum.simulation.data.partition import declared_partition
from fulcrum.simulation.data.tasks import METRIC_NAMES, load_task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.metrics import (
    METRICS,
    NAMED_METRICS,
    accuracy,
    auc,
    measure,
    measure_by_region,
    measure_by_silo,
    name_of,
)
from fulcrum.simulation.embedded.models import SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.training_runs import train, worst_region_of
from fulcrum.simulation.trials import compare_trained

roc_auc_score = pytest.importorskip("sklearn.metrics", reason="the digits come with scikit-learn").roc_auc_score


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


def test_what_is_not_a_number_is_of_no_class():
    outputs = np.array([[0.0, 1.0], [np.nan, np.nan], [2.0, np.nan], [np.inf, 0.0]])
    assert METRICS["classes"](outputs, np.array([1, 0, 0, 0])) == 0.5
    assert METRICS["labels"](outputs, np.array([[0, 1], [0, 0], [1, 0], [1, 0]])) == 5 / 8


def test_numbers_that_are_all_alike_have_no_variance_to_explain():
    assert np.isnan(METRICS["numbers"](np.array([[3.0], [4.0]]), np.array([5.0, 5.0])))
    assert METRICS["numbers"](np.array([[3.0], [4.0]]), np.array([3.0, 5.0])) == 0.5


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda said, true: 1 / 0, "the metric '<lambda>' failed on {}: ZeroDivisionError: division by zero"),
        (lambda said, true: "good", "the metric '<lambda>' failed on {}: ValueError: could not convert string"),
        (lambda said, true: [1, 2], "the metric <lambda> must return one number, got the shape (2,)"),
    ],
)
def test_a_metric_that_fails_is_told_in_one_line(task, metric, told):
    outputs = [np.zeros((len(task.labels_test), 2))]
    with pytest.raises(ParameterError) as caught:
        measure(outputs, task, metric)
    assert str(caught.value).startswith(told.format("the test records"))
    silos = dataclasses.replace(task, silo_test=("lyon",) * len(task.labels_test))
    with pytest.raises(ParameterError) as caught:
        measure_by_silo(outputs, silos, metric)
    assert str(caught.value).startswith(told.format("the test records of silo 'lyon'"))


def test_every_silo_is_measured_on_its_own_records(task):
    names = tuple(f"s{place % 7}" for place in range(len(task.labels_test)))
    named = dataclasses.replace(task, silo_test=names)
    outputs = [np.random.default_rng(arm).random((len(names), 2)) for arm in range(2)]
    found = measure_by_silo(outputs, named)
    for place in range(7):
        own = np.array(names) == f"s{place}"
        for arm, said in enumerate(outputs):
            assert found[place, arm] == METRICS["classes"](said[own], task.labels_test[own])
    assert measure_by_silo(outputs, task).shape == (0, 2)


def columns_of(scores):
    """Returns outputs of two classes whose difference is the score."""
    return np.stack([np.zeros(len(scores)), scores], axis=1)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_auc_is_the_share_of_pairs_in_order_and_scikit_learns(records):
    scores, labels = np.array([score for score, _ in records], float), np.array([int(label) for _, label in records])
    first, second = scores[labels == 0], scores[labels == 1]
    area = auc(columns_of(scores), labels)
    if not len(first) or not len(second):
        assert np.isnan(area)
        return
    pairs = (second[:, None] > first).sum() + 0.5 * (second[:, None] == first).sum()
    assert area == pytest.approx(pairs / (len(first) * len(second)), abs=1e-12)
    assert area == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert auc(columns_of(-scores), labels) == pytest.approx(1 - area, abs=1e-12)


def test_a_record_without_a_score_loses_every_comparison():
    scores = np.array([5.0, 4.0, 1.0, 0.0])
    assert auc(columns_of(scores), np.array([1, 1, 0, 0])) == 1.0
    for place in range(4):
        broken = columns_of(scores)
        broken[place, 1] = np.nan
        assert auc(broken, np.array([1, 1, 0, 0])) == 0.5
    assert auc(np.full((4, 2), np.inf), np.array([1, 1, 0, 0])) == 0.0


def test_every_named_metric_has_a_function_and_every_default_is_the_kinds():
    assert {name for names in METRIC_NAMES.values() for name in names} == set(NAMED_METRICS)
    for kind, names in METRIC_NAMES.items():
        assert NAMED_METRICS[names[0]] is METRICS[kind]
    assert all(name_of(function) == name for name, function in NAMED_METRICS.items())


def test_a_metric_that_does_not_fit_the_task_is_refused(task):
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="metric", name="acu")):
        dataclasses.replace(task, metric="acu")
    with pytest.raises(ParameterError, check=coded("metric.classes-number", classes=3)):
        dataclasses.replace(task, classes=("a", "b", "c"), metric="auc")
    plan = fulcrum.plan("mild", rounds=1, epsilon=5.0)
    head = SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3)
    with pytest.raises(ParameterError, check=coded("metric.chosen-twice", metric="accuracy", other="auc")):
        train(plan, task, model=dataclasses.replace(head, metric=accuracy), metric="auc")


def test_a_run_is_measured_by_auc_where_it_is_named(task):
    plan = fulcrum.plan("mild", rounds=3, epsilon=50.0)
    run, plain = train(plan, task, metric="auc", seeds=2), train(plan, task, seeds=2)
    assert (run.metric, run.summary()["metric"], plain.metric) == ("auc", "auc", "accuracy")
    assert (run.models == plain.models).all()
    inputs = np.c_[task.features_test, np.ones(len(task.labels_test))]
    for seed, model in enumerate(run.models):
        scores = inputs @ model
        expected = roc_auc_score(task.labels_test, scores[:, 1] - scores[:, 0])
        assert run.accuracy[seed, -1] == pytest.approx(expected, abs=1e-9)
    slow = train(plan, task, metric="auc", model=SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3))
    assert slow.accuracy[0] == pytest.approx(run.accuracy[0], abs=1e-9)


def test_a_comparison_is_measured_by_auc_where_it_is_named(task):
    named = compare_trained("mild", task, metric="auc", seeds=1, rounds=1, epsilon=50.0)
    plain = compare_trained("mild", task, seeds=1, rounds=1, epsilon=50.0)
    assert [row.allocation for row in named] == [row.allocation for row in plain]
    assert named[0].reference != plain[0].reference
    assert all(row.worst_region == row.accuracy for row in named)  # AUC does not depend on the mix of classes


def test_the_auc_of_a_region_pools_its_silos_and_silos_of_one_class_have_none(task):
    few = slice(0, 40)
    silos = np.where(task.labels_test[few] == 1, "a", "b")  # each of them with a single class
    silos[:10] = "c"
    small = dataclasses.replace(
        task,
        features_test=task.features_test[few],
        labels_test=task.labels_test[few],
        silo_test=tuple(silos.tolist()),
        silo=tuple(("a", "b", "c", "d")[row % 4] for row in range(len(task.labels_train))),
        metric="auc",
    )
    federation = fulcrum.Federation.from_sizes({"north": {"a": 9, "b": 9}, "south": {"c": 9}, "west": {"d": 9}})
    plan = fulcrum.plan(federation, rounds=1, epsilon=50.0)
    job = Job(seed=0, partition=declared_partition(small, federation), variants=Variants.from_plans([plan]))
    training = LocalTraining(learning_rate=0.3, steps=2)
    run = train_jobs([job], small, training)[0]
    assert np.isnan(run.by_silo[:2]).all()
    inputs = np.c_[small.features_test, np.ones(40)]
    scores = inputs @ run.models[:, :, 0]
    expected = [
        roc_auc_score(small.labels_test[own], (scores[:, 1] - scores[:, 0])[own])
        for own in (silos != "c", silos == "c")
    ]
    assert run.by_region[:, 0] == pytest.approx(expected)
    assert worst_region_of(job, run, small) == pytest.approx([min(expected)])
    head = SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3)
    assert train_slowly(job, small, training, head).by_region == pytest.approx(run.by_region)
    outputs = [scores]
    assert np.isnan(measure_by_region(outputs, small, {"a": 0, "b": 1, "c": 2})[:2]).all()
    alone = dataclasses.replace(run, by_region=np.full((2, 1), np.nan))
    assert np.isnan(worst_region_of(job, alone, small)).all()
