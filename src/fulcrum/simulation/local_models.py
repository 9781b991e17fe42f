"""The model of each silo on its own records, without a federation: a logistic regression with a penalty.

>>> inputs, labels = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([1, 0])
>>> round(float(fit_logistic(inputs, labels, penalty=1.0)[0]), 3)  # the root of w = 2 / (1 + exp(w))
0.675

A hospital that asks what a federation is worth compares it with this model: no noise, no clip, no other hospital. The
penalty makes the fit unique for a silo with few records or a single class.
"""

from collections.abc import Sequence

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.models import with_bias

_MOST_STEPS = 50
_TOLERANCE = 1e-9


def local_scores(task: Task, *, penalties: Sequence[float]) -> list[FloatArray]:
    """Returns for every penalty the scores of the test records, each by the model of the record's own silo.

    Args:
        task: A task of two classes, with the silo of every training and test record.
        penalties: The factors of half the squared length of the coefficients.

    Raises:
        DataError: The task has no silos, or other targets than two classes.
    """
    if task.silo is None or task.silo_test is None or len(task.classes) != 2:
        raise DataError("data.local-models-unfit", data=task.name, classes=len(task.classes))
    inputs, tested = with_bias(task.features_train), with_bias(task.features_test)
    trained_at, tested_at = np.array(task.silo), np.array(task.silo_test)
    scores = [np.zeros((len(tested), 2)) for _ in penalties]
    for silo in sorted(set(task.silo_test)):
        own, own_tested = trained_at == silo, tested_at == silo
        for values, penalty in zip(scores, penalties, strict=True):
            values[own_tested, 1] = tested[own_tested] @ fit_logistic(
                inputs[own], task.labels_train[own], penalty=penalty
            )
    return scores


def fit_logistic(inputs: FloatArray, labels: IntArray, *, penalty: float) -> FloatArray:
    """Returns the coefficients of least summed logistic loss plus penalty / 2 times their squared length.

    Newton's method, with half steps while the loss would grow. The intercept is penalised too, so that the fit exists
    for a single class.

    Args:
        inputs: By record and input; the last input is 1 for the intercept.
        labels: 0 or 1 by record.
        penalty: Above 0.
    """
    coefficients = np.zeros(inputs.shape[1])

    def loss(at: FloatArray) -> float:
        scores = inputs @ at
        return float((np.logaddexp(0, scores) - labels * scores).sum() + penalty / 2 * at @ at)

    value = loss(coefficients)
    for _ in range(_MOST_STEPS):
        probability = 1 / (1 + np.exp(-np.clip(inputs @ coefficients, -500, 500)))
        gradient = inputs.T @ (probability - labels) + penalty * coefficients
        if np.abs(gradient).max() < _TOLERANCE * max(1.0, len(labels)):
            break
        curvature = (inputs * (probability * (1 - probability))[:, None]).T @ inputs
        curvature[np.diag_indices_from(curvature)] += penalty
        step = np.linalg.solve(curvature, gradient)
        while (moved := loss(coefficients - step)) > value and np.abs(step).max() > _TOLERANCE:
            step = step / 2
        coefficients, value = coefficients - step, moved
    return coefficients
