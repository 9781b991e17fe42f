"""Metrics of a model on the test split: a metric for every kind of target, and recall by class.

>>> outputs = np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]])
>>> METRICS["classes"](outputs, np.array([1, 0, 1]))
0.6666666666666666
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError, in_one_line
from fulcrum.simulation.data.tasks import Task

Metric = Callable[[Any, Any], Any]
"""A function from outputs (records, ...) and targets (records, ...), as NumPy arrays, to a number."""


def accuracy(outputs: FloatArray, targets: Any) -> float:
    """Returns the share of records with the largest output at the true class; a record with NaN counts as wrong."""
    return float((_predicted_classes(outputs) == targets).mean())


def explained_variance(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns 1 - (squared error) / (squared error of the targets' mean): 1 is best, 0 is as good as the mean.

    Equal targets, such as a single target, have no variance to explain: NaN.
    """
    missed = np.square(outputs.reshape(targets.shape) - targets).sum()
    spread = np.square(targets - targets.mean(axis=0)).sum()
    return float(1 - missed / spread) if spread else math.nan


def right_labels(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns the share of correct labels; an output above 0 means that a record has the label."""
    return float((((outputs > 0) == (targets > 0.5)) & ~np.isnan(outputs)).mean())


def auc(outputs: FloatArray, targets: Any) -> float:
    """Returns the area under the ROC curve of two classes.

    The area is the share of pairs of a record of the second class and a record of the first class with the larger
    output difference at the record of the second class; a tie counts half. The sum of ranks gives the same number
    without pairs. A record with NaN loses all comparisons. A single class has no pairs: NaN.

    >>> auc(np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0], [0.0, 2.0]]), np.array([1, 0, 1, 0]))
    0.875
    """
    second = np.asarray(targets) == 1
    pairs = int(second.sum()) * int((~second).sum())
    if not pairs:
        return math.nan
    with np.errstate(invalid="ignore"):  # infinite outputs of both classes have no difference, and lose as NaN does
        scores = outputs[:, 1] - outputs[:, 0]
    scores = np.where(np.isnan(scores), np.where(second, -np.inf, np.inf), scores)
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    number = int(second.sum())
    return float((ranks[second].sum() - number * (number + 1) / 2) / pairs)


def concordance(outputs: FloatArray, targets: Any) -> float:
    """Returns Harrell's concordance: the share of comparable pairs in which the earlier event has the larger risk.

    A pair is comparable if the person with the earlier time has the event; at equal times one of both must lack it. The
    risk is the output difference of the two classes, and equal risks count half. A record with NaN loses all
    comparisons. Without a comparable pair: NaN.

    Args:
        outputs: By record and class.
        targets: By record, the event (1, or 0 for the end of observation) and the time.

    >>> concordance(np.array([[0.0, 3.0], [0.0, 1.0], [0.0, 2.0]]), np.array([[1, 2.0], [0, 9.0], [1, 5.0]]))
    1.0
    """
    event, time = np.asarray(targets)[:, 0] == 1, np.asarray(targets)[:, 1]
    with np.errstate(invalid="ignore"):
        risk = outputs[:, 1] - outputs[:, 0]
    later_risk = np.where(np.isnan(risk), np.inf, risk)
    right, pairs = 0.0, 0
    for row in np.flatnonzero(event).tolist():
        compared = later_risk[(time > time[row]) | ((time == time[row]) & ~event)]
        pairs += len(compared)
        if not np.isnan(risk[row]):
            right += float((risk[row] > compared).sum() + (risk[row] == compared).sum() / 2)
    return right / pairs if pairs else math.nan


METRICS: dict[str, Metric] = {"classes": accuracy, "numbers": explained_variance, "labels": right_labels}
"""The metric by kind of target, for models without a metric of their own."""

NAMED_METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "auc": auc,
    "concordance": concordance,
    "explained variance": explained_variance,
    "right labels": right_labels,
}
"""The metric of every name of `tasks.METRIC_NAMES`."""


PARTS = 50
"""The number of parts of the test records for a standard error over test records."""


def measure(outputs: Sequence[FloatArray], task: Task, metric: Metric | None = None) -> tuple[FloatArray, FloatArray]:
    """Returns the metric by variant, and recall by class and variant; recall is (0, variants) without classes.

    Args:
        outputs: The outputs of every variant's model for the test records, (records, ...).
        task: The task with the true labels.
        metric: The model's own metric; the metric of the task by default.
    """
    chosen = metric or NAMED_METRICS[task.metric]
    values = []
    for scores in outputs:
        values.append(_value(chosen, scores, measured_targets(task), "the test records"))
    if task.targets != "classes":
        return np.array(values), np.empty((0, len(values)))
    if any(scores.shape != (len(task.labels_test), len(task.classes)) for scores in outputs):
        return np.array(values), np.full(
            (len(task.classes), len(values)), np.nan
        )  # outputs without a score for every class
    right = np.stack([_predicted_classes(scores) == task.labels_test for scores in outputs], axis=1)
    return np.array(values), recall_of(right, task.labels_test, classes=len(task.classes))


def measure_with_error(outputs: FloatArray, task: Task) -> tuple[float, float]:
    """Returns the metric of a model on the test records, and its standard error over test records.

    The error is the jackknife's: the spread of the metric over the test split without one of `PARTS` equal parts, the
    records in their order. NaN if a part leaves no value, such as an AUC with a single class.

    Args:
        outputs: The outputs of the model for the test records.
        task: The task with the true labels.
    """
    metric, targets = NAMED_METRICS[task.metric], measured_targets(task)
    parts = min(PARTS, len(outputs))
    part_of = np.arange(len(outputs)) % parts
    left = [_value(metric, outputs[part_of != part], targets[part_of != part], "a part") for part in range(parts)]
    spread = np.square(np.array(left) - np.mean(left)).sum() if parts > 1 else math.nan
    return _value(metric, outputs, targets, "the test records"), float(np.sqrt(spread * (parts - 1) / parts))


def measured_targets(task: Task) -> Any:
    """Returns the targets of the test records as the task's metric takes them: for concordance, event and time."""
    if task.metric != "concordance" or task.times_test is None:
        return task.labels_test
    return np.stack([task.labels_test, task.times_test], axis=1)


def measure_by_silo(outputs: Sequence[FloatArray], task: Task, metric: Metric | None = None) -> FloatArray:
    """Returns the metric on every silo's own test records, (silos, variants), silos in the order of `tested_silos`.

    Args:
        outputs: The outputs of every variant's model for the test records.
        task: The task with the true labels and the silos of the test records; the result is (0, variants) without
            silos.
        metric: The model's own metric; the metric of the task by default.
    """
    return _measure_parts(outputs, task, task.silo_test or (), "silo", metric)


def measure_by_region(
    outputs: Sequence[FloatArray], task: Task, region_of: Mapping[str, int], metric: Metric | None = None
) -> FloatArray:
    """Returns the metric on the test records of every region's silos, (regions, variants), for regions with records.

    The records of a region are pooled. A mean over silos would differ for metrics that compare records, such as `auc`,
    and silos with records of a single class have no AUC.

    Args:
        outputs: The outputs of every variant's model for the test records.
        task: The task with the true labels and the silos of the test records; the result is (0, variants) without
            silos.
        region_of: The number of the region of every silo.
        metric: The model's own metric; the metric of the task by default.
    """
    return _measure_parts(outputs, task, [region_of[silo] for silo in task.silo_test or ()], "region", metric)


def _measure_parts(
    outputs: Sequence[FloatArray], task: Task, owners: Sequence[Any], noun: str, metric: Metric | None
) -> FloatArray:
    """Returns the metric on the test records of every owner, (owners, variants), owners sorted."""
    chosen, names, targets = metric or NAMED_METRICS[task.metric], sorted(set(owners)), measured_targets(task)
    number = {name: place for place, name in enumerate(names)}
    owner = np.array([number[name] for name in owners], dtype=np.intp)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(names)))
    values = [
        [_value(chosen, scores[rows], targets[rows], f"the test records of {noun} {name!r}") for scores in outputs]
        for name, rows in zip(
            names, np.split(order, ends[:-1]), strict=False
        )  # without names np.split gives a single empty part
    ]
    return np.array(values).reshape(len(names), len(outputs))


def _predicted_classes(outputs: FloatArray) -> Any:
    """Returns the predicted class of every record, and -1 for a record with an output NaN."""
    return np.where(np.isnan(outputs).any(axis=1), -1, outputs.argmax(axis=1))


def _value(metric: Metric, outputs: FloatArray, targets: Any, records: str) -> float:
    """Returns a metric as a number; raises `ParameterError` for a metric that fails or gives several numbers."""
    try:
        value = np.asarray(metric(outputs.copy(), targets.copy()))  # a user's own metric may write to the arrays
        number = float(value.item()) if value.size == 1 else None
    except Exception as error:  # a user's metric may raise anything
        reason = f"{type(error).__name__}: {in_one_line(error)}"
        raise ParameterError(
            "metric.function-failed", metric=name_of(metric), records=records, reason=reason
        ) from error
    if number is None:
        raise ParameterError("metric.shape-wrong", metric=name_of(metric), shape=value.shape)
    return number


def tested_silos(task: Task) -> tuple[str, ...]:
    """Returns the silos with test records of their own, sorted."""
    return tuple(sorted(set(task.silo_test or ())))


def name_of(metric: Metric) -> str:
    """Returns the name of a metric in words."""
    return str(getattr(metric, "__name__", type(metric).__name__)).replace("_", " ")


def recall_of(right: Any, labels: Any, *, classes: int) -> FloatArray:
    """Returns by class and variant the share of correctly named records; NaN for a class without records."""
    untested = np.full(right.shape[1], np.nan)
    of_class = [right[labels == number] for number in range(classes)]
    return np.array([answers.mean(axis=0) if len(answers) else untested for answers in of_class])
