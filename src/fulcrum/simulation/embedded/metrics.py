"""How well a model does on the test split: a metric for each kind of target, and recall where there are classes.

>>> outputs = np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]])
>>> METRICS["classes"](outputs, np.array([1, 0, 1]))
0.6666666666666666
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError, in_one_line
from fulcrum.simulation.data.tasks import Task

Metric = Callable[[Any, Any], Any]
"""Outputs (records, ...) and targets (records, ...), as NumPy arrays, to one number."""


def accuracy(outputs: FloatArray, targets: Any) -> float:
    """Returns the share of records whose largest output is that of their class; NaN is of no class."""
    return float((_named(outputs) == targets).mean())


def explained_variance(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns one minus the squared error over the squared error of the targets' mean: 1 is best, 0 is the mean's.

    Targets that are all alike, such as a single one, have no variance to explain: NaN.
    """
    missed = np.square(outputs.reshape(targets.shape) - targets).sum()
    spread = np.square(targets - targets.mean(axis=0)).sum()
    return float(1 - missed / spread) if spread else math.nan


def right_labels(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns the share of labels that are said rightly; an output above 0 says that a record has the label."""
    return float((((outputs > 0) == (targets > 0.5)) & ~np.isnan(outputs)).mean())


METRICS: dict[str, Metric] = {"classes": accuracy, "numbers": explained_variance, "labels": right_labels}
"""What is measured by kind of target, unless a model has a metric of its own."""


def measured(outputs: Sequence[FloatArray], task: Task, metric: Metric | None = None) -> tuple[FloatArray, FloatArray]:
    """Returns the metric by arm, and recall by class and arm; a task without classes has no recall, (0, arms).

    Args:
        outputs: What the model of each arm says of the test records, (records, ...).
        task: What is true of them.
        metric: The model's own; one of `METRICS` by default.
    """
    chosen = metric or METRICS[task.targets]
    found = []
    for said in outputs:
        found.append(_value(chosen, said, task.labels_test, "the test records"))
    if task.targets != "classes":
        return np.array(found), np.empty((0, len(found)))
    if any(said.shape != (len(task.labels_test), len(task.classes)) for said in outputs):
        return np.array(found), np.full((len(task.classes), len(found)), np.nan)  # outputs that only a metric reads
    right = np.stack([_named(said) == task.labels_test for said in outputs], axis=1)
    return np.array(found), recall_of(right, task.labels_test, classes=len(task.classes))


def measured_by_silo(outputs: Sequence[FloatArray], task: Task, metric: Metric | None = None) -> FloatArray:
    """Returns the metric on each silo's own test records, (silos, arms), silos in the order of `tested_silos`.

    Args:
        outputs: What the model of each arm says of the test records.
        task: What is true of them, and whose they are; (0, arms) where it does not say.
        metric: The model's own; one of `METRICS` by default.
    """
    chosen, names = metric or METRICS[task.targets], tested_silos(task)
    number = {name: place for place, name in enumerate(names)}
    owner = np.array([number[name] for name in task.silo_test or ()], dtype=np.intp)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner, minlength=len(names)))
    found = [
        [_value(chosen, said[own], task.labels_test[own], f"the test records of silo {name!r}") for said in outputs]
        for name, own in zip(names, np.split(order, ends[:-1]), strict=False)  # no names, and one empty part
    ]
    return np.array(found).reshape(len(names), len(outputs))


def _named(outputs: FloatArray) -> Any:
    """Returns the class that each record is said to be of, and -1 where an output is NaN."""
    return np.where(np.isnan(outputs).any(axis=1), -1, outputs.argmax(axis=1))


def _value(metric: Metric, outputs: FloatArray, targets: Any, where: str) -> float:
    """Returns what a metric says; one that fails, or says no single number, raises `ParameterError`."""
    try:
        value = np.asarray(metric(outputs.copy(), targets.copy()))  # a user's own may write to what it is given
        said = float(value.item()) if value.size == 1 else None
    except Exception as error:  # whatever a user's metric does
        told = f"{type(error).__name__}: {in_one_line(error)}"
        raise ParameterError("metric.function-failed", metric=name_of(metric), records=where, reason=told) from error
    if said is None:
        raise ParameterError("metric.shape-wrong", metric=name_of(metric), shape=value.shape)
    return said


def tested_silos(task: Task) -> tuple[str, ...]:
    """Returns the silos that have test records of their own, sorted."""
    return tuple(sorted(set(task.silo_test or ())))


def name_of(metric: Metric) -> str:
    """Returns what a metric is called."""
    return str(getattr(metric, "__name__", type(metric).__name__)).replace("_", " ")


def recall_of(right: Any, labels: Any, *, classes: int) -> FloatArray:
    """Returns by class and arm the share of its records that were named rightly; NaN where it has none."""
    nobody = np.full(right.shape[1], np.nan)
    of_class = [right[labels == number] for number in range(classes)]
    return np.array([found.mean(axis=0) if len(found) else nobody for found in of_class])
