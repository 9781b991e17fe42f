"""A federation whose largest region has other labels: the task of such a federation, and the accuracy of every region.

Records are dealt as without the conflict. Then every label that the largest region holds moves on by one class, the
last class to the first. No model can serve both labellings, and each region is measured by the labels of the region.

>>> permute_labels(np.array([0, 1, 2]), classes=3).tolist()
[1, 2, 0]

The conflict is a rehearsal on public or synthetic data: the sums of a real federation do not show whose labels differ.
"""

from dataclasses import replace

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import right_answers
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.regional_metrics import class_mixes


def permute_labels(labels: IntArray, *, classes: int) -> IntArray:
    """Returns the labels of the region in conflict: every class moves on by one, the last class to the first."""
    return np.asarray((labels + 1) % classes)


def largest_region(job: Job) -> int:
    """Returns the region with the most records; of equals, the first."""
    return int(np.bincount(job.variants.region_of, weights=job.partition.counts).argmax())


def check_conflict(task: Task, *, own_model: bool) -> None:
    """Raises `ParameterError` unless a conflict of labels can be measured on the task.

    Args:
        task: The records, before the conflict.
        own_model: True for a model of the user's own; only test records with named silos then tell regions apart.
    """
    if not task.classes or task.metric != "accuracy":
        raise ParameterError("conflict.classes-missing", data=task.name, metric=task.metric)
    if own_model and task.silo_test is None:
        raise ParameterError("conflict.own-model", data=task.name)


def conflicting_task(task: Task, job: Job) -> Task:
    """Returns the task of one job, with permuted labels in the largest region, test records of its silos included."""
    region_of, place, classes = job.variants.region_of, largest_region(job), len(task.classes)
    owner = np.repeat(region_of, job.partition.counts)
    records = job.partition.records[owner == place]
    labels_train, labels_test = task.labels_train.copy(), task.labels_test.copy()
    labels_train[records] = permute_labels(labels_train[records], classes=classes)
    if task.silo_test is not None:
        of_region = job.variants.regions_of(task)
        held = np.array([of_region[name] == place for name in task.silo_test])
        labels_test[held] = permute_labels(labels_test[held], classes=classes)
    return replace(task, labels_train=labels_train, labels_test=labels_test)


def accuracy_in_conflict(job: Job, run: FederationRun, task: Task) -> tuple[FloatArray, FloatArray]:
    """Returns by variant the mean accuracy over regions, and the accuracy for the worst region.

    Each region is measured by its own labels, and counts once in the mean. If the test records name their silos, a
    region is measured on the test records of its silos, else on the test split; the worst region then on test records
    mixed like the records of the region.

    Args:
        job: The job.
        run: The results of the job, trained on `conflicting_task`.
        task: The task before the conflict.
    """
    if task.silo_test is not None:
        return np.nanmean(run.by_region, axis=0), np.asarray(np.fmin.reduce(run.by_region, axis=0))
    classes, place = len(task.classes), largest_region(job)
    head = SoftmaxHead(features=task.width, classes=classes)
    inputs = with_bias(task.features_test)
    permuted = permute_labels(task.labels_test, classes=classes)
    right = right_answers(head, run.models, inputs, permuted)
    other = np.stack([_mean(right[task.labels_test == label]) for label in range(classes)])
    mixes = class_mixes(job.partition, task.labels_train, job.variants.region_of, classes=classes)
    tested = ~np.isnan(run.recall[:, 0])
    shares = mixes[:, tested] / mixes[:, tested].sum(axis=1, keepdims=True)
    by_region = shares @ run.recall[tested]
    by_region[place] = shares[place] @ other[tested]
    regions = job.variants.regions
    over_regions = ((regions - 1) * run.accuracy[-1] + right.mean(axis=0)) / regions
    return np.asarray(over_regions), np.asarray(np.fmin.reduce(by_region, axis=0))


def _mean(right: FloatArray) -> FloatArray:
    """Returns the share of right answers by variant; NaN without records."""
    return np.asarray(right.mean(axis=0)) if len(right) else np.full(right.shape[1], np.nan)
