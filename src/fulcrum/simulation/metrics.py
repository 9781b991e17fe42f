"""How well a model does on the test split: a metric for each kind of target, and recall where there are classes.

>>> outputs = np.array([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4]])
>>> METRICS["classes"](outputs, np.array([1, 0, 1]))
0.6666666666666666
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError
from fulcrum.simulation.tasks import Task

Metric = Callable[[Any, Any], Any]
"""Outputs (records, ...) and targets (records, ...), as NumPy arrays, to one number."""


def accuracy(outputs: FloatArray, targets: Any) -> float:
    """Returns the share of records whose largest output is that of their class."""
    return float((outputs.argmax(axis=1) == targets).mean())


def explained_variance(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns one minus the squared error over the squared error of the targets' mean: 1 is best, 0 is the mean's."""
    missed = np.square(outputs.reshape(targets.shape) - targets).sum()
    return float(1 - missed / np.square(targets - targets.mean(axis=0)).sum())


def right_labels(outputs: FloatArray, targets: FloatArray) -> float:
    """Returns the share of labels that are said rightly; an output above 0 says that a record has the label."""
    return float(((outputs > 0) == (targets > 0.5)).mean())


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
        value = np.asarray(chosen(said, task.labels_test))
        if value.size != 1:
            raise ParameterError(f"{name_of(chosen)} must give one number, got the shape {value.shape}")
        found.append(float(value.item()))
    if task.targets != "classes":
        return np.array(found), np.empty((0, len(found)))
    right = np.stack([said.argmax(axis=1) == task.labels_test for said in outputs], axis=1)
    return np.array(found), recall_of(right, task.labels_test, classes=len(task.classes))


def measured_by_silo(outputs: Sequence[FloatArray], task: Task, metric: Metric | None = None) -> FloatArray:
    """Returns the metric on each silo's own test records, (silos, arms), silos in the order of `tested_silos`.

    Args:
        outputs: What the model of each arm says of the test records.
        task: What is true of them, and whose they are; (0, arms) where it does not say.
        metric: The model's own; one of `METRICS` by default.
    """
    chosen, owner = metric or METRICS[task.targets], np.array(task.silo_test or ())
    rows = [np.flatnonzero(owner == name) for name in tested_silos(task)]
    found = [[float(chosen(said[own], task.labels_test[own])) for said in outputs] for own in rows]
    return np.array(found).reshape(len(rows), len(outputs))


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
