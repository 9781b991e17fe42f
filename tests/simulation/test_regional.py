import numpy as np
import pytest

import fulcrum
from fulcrum.simulation.data.partition import Partition, coupled_partition
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.batched_engine import recall_of, train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.regional_metrics import class_mixes, worst_region_accuracy
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.training_runs import worst_region_of

TRAINING = LocalTraining(learning_rate=0.3, steps=3)


@pytest.fixture(scope="module")
def trained():
    task, federation = load_task("digits"), fulcrum.read_federation("mild")
    plans = [fulcrum.plan(federation, rounds=2, epsilon=20.0, allocation=name) for name in ("optimal", "uniform")]
    job = Job(seed=0, partition=coupled_partition(task, federation, seed=0), variants=Variants.from_plans(plans))
    return task, job, train_jobs([job], task, TRAINING)[0]


def test_the_worst_region_is_the_least_accuracy_on_records_drawn_as_a_region_holds_them(trained):
    task, job, run = trained
    found = worst_region_of(job, run, task)
    drawn = np.random.default_rng(0)
    scores = with_bias(task.features_test) @ run.models.reshape(len(run.models), -1)
    right = scores.reshape(-1, 2, 2).argmax(axis=1) == task.labels_test[:, None]
    of_region = []
    owner = np.repeat(job.variants.region_of, job.partition.counts)
    for region in range(5):
        wanted = task.labels_train[job.partition.records[owner == region]]
        picks = [drawn.choice(np.flatnonzero(task.labels_test == label)) for label in np.tile(wanted, 30)]
        of_region.append(right[picks].mean(axis=0))
    assert found == pytest.approx(np.min(of_region, axis=0), abs=0.02)


def test_both_engines_name_the_same_classes_rightly(trained):
    task, job, run = trained
    head = SoftmaxHead(features=task.features_train.shape[1], classes=2).as_model(learning_rate=0.3)
    slow = train_slowly(job, task, TRAINING, head)
    assert slow.recall == pytest.approx(run.recall, abs=1e-12)
    right = (run.recall * np.bincount(task.labels_test)[:, None]).sum(axis=0)
    assert right == pytest.approx(run.accuracy[-1] * len(task.labels_test))


def test_mixes_add_up_to_one_and_follow_who_holds_what():
    partition = Partition(
        records=np.array([4, 0, 1, 2]), starts=np.array([0, 1, 3]), counts=np.array([1, 2, 1]), shares=np.zeros(3)
    )
    mixes = class_mixes(partition, np.array([0, 1, 1, 0, 2]), np.array([0, 1, 1]), classes=3)
    assert mixes == pytest.approx(np.array([[0, 0, 1], [1 / 3, 2 / 3, 0]]))


def test_a_class_that_was_not_tested_is_left_out():
    recall = recall_of(np.array([[True], [False], [True]]), np.array([0, 0, 2]), classes=3)
    assert recall[:, 0] == pytest.approx([0.5, np.nan, 1.0], nan_ok=True)
    assert worst_region_accuracy(recall, np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]])) == pytest.approx([0.75])
