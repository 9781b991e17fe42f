"""A conflict of labels: the largest region alone has other labels, and every region is measured by its own."""

from dataclasses import replace

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import ParameterError
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.label_conflict import accuracy_in_conflict, check_conflict, conflicting_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import partition_of

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")


def job_of(task, federation="severe", **settings):
    plan = fulcrum.plan(federation, rounds=3, **({"epsilon": 30.0} | settings))
    part = partition_of(task, plan.federation, seed=4)
    return Job(seed=4, partition=part, variants=Variants.from_plans([plan]).with_reference())


@pytest.mark.parametrize("every_class", [False, True])
def test_every_region_is_measured_by_its_own_labels(every_class):
    task = load_task("digits", every_class=every_class)
    job, classes = job_of(task), len(task.classes)
    changed = conflicting_task(task, job)
    owner = np.repeat(job.variants.region_of, job.partition.counts)
    moved = (changed.labels_train - task.labels_train)[job.partition.records] % classes
    assert (moved == (owner == 0)).all()  # 60 of 96 silos are in the first region
    (run,) = train_jobs([job], changed, LocalTraining(learning_rate=0.3))
    inputs = np.hstack([task.features_test, np.ones((len(task.features_test), 1))])
    answers = np.einsum("np,pca->nca", inputs, run.models).argmax(axis=1)
    right = answers == task.labels_test[:, None]
    of_largest = answers == (task.labels_test[:, None] + 1) % classes
    over, worst = accuracy_in_conflict(job, run, task)
    assert over == pytest.approx((4 * right.mean(axis=0) + of_largest.mean(axis=0)) / 5)
    least = np.ones(2)
    for region in range(5):
        held = task.labels_train[job.partition.records[owner == region]]
        named = of_largest if region == 0 else right
        mixed = [named[task.labels_test == label].mean(axis=0) * (held == label).mean() for label in range(classes)]
        least = np.minimum(least, sum(mixed))
    assert worst == pytest.approx(least)


def test_named_silos_are_tested_on_their_own_records_with_their_own_labels():
    random = np.random.default_rng(0)
    federation = fulcrum.Federation.from_sizes({"large": {"a": 40, "b": 40}, "small": {"c": 20}})
    silo = ("a",) * 40 + ("b",) * 40 + ("c",) * 20
    labels = random.integers(0, 2, 100)
    features = np.stack([2.0 * labels - 1, random.normal(size=100)], axis=1)
    task = Task(
        name="clinics",
        features_train=features,
        labels_train=labels,
        features_test=features,
        labels_test=labels,
        classes=("no", "yes"),
        silo=silo,
        silo_test=silo,
    )
    job = job_of(task, federation, epsilon=1e4)
    changed = conflicting_task(task, job)
    assert (changed.labels_test != labels).tolist() == [True] * 80 + [False] * 20
    (run,) = train_jobs([job], changed, LocalTraining(learning_rate=0.3))
    over, worst = accuracy_in_conflict(job, run, task)
    # The first input decides: a model serves the large region wholly and the small region not at all.
    assert over == pytest.approx([0.5, 0.5])
    assert worst == pytest.approx([0.0, 0.0])


def test_a_rehearsal_shows_less_than_agreement_and_pairs_with_it():
    how = {"rounds": 3, "epsilon": 20.0, "seeds": 2, "allocation": None}
    rows = {
        conflict: fulcrum.compare_trained("severe", "digits", conflict=conflict, **how) for conflict in (False, True)
    }
    agreeing, disagreeing = ({row.allocation: row for row in rows[conflict]} for conflict in (False, True))
    assert agreeing.keys() == disagreeing.keys()
    assert all(disagreeing[name].accuracy < agreeing[name].accuracy for name in agreeing)
    assert disagreeing["optimal"].noise_budget == agreeing["optimal"].noise_budget
    assert disagreeing["optimal"].reference < 0.6 < agreeing["optimal"].reference


def test_rounds_are_told_as_the_seeds_are_trained():
    told = []
    fulcrum.compare_trained(
        "mild", "digits", rounds=3, epsilon=20.0, seeds=2, conflict=True, on_round=lambda number, _: told.append(number)
    )
    assert told == [1, 2, 3]


def test_a_conflict_without_classes_or_with_an_own_model_is_refused():
    task = load_task("digits")
    how = {"rounds": 1, "epsilon": 20.0, "seeds": 1, "conflict": True}
    with pytest.raises(ParameterError, check=coded("conflict.classes-missing", metric="auc")):
        fulcrum.compare_trained("mild", replace(task, metric="auc"), **how)
    with pytest.raises(ParameterError, check=coded("conflict.own-model", data="digits")):
        check_conflict(task, own_model=True)
