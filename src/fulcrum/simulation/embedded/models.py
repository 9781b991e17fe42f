"""Models for silos: a softmax head, built in and batched, or a user's own model as three pure functions.

>>> head = SoftmaxHead(features=32, classes=2)
>>> head.parameters
66

A model's parameters travel as a flat vector. Local training is plain SGD on the cross-entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A user's own model, for a single silo: three pure functions, and a function that scores the trained parameters.

    Attributes:
        parameters: The length d of the parameter vector.
        init: Parameters to a training state.
        step: State, features (batch, p) and labels (batch,) to the next state: a single local step.
        final: State to parameters.
        scores: Parameters and features (n, p) to a score for every class (n, classes).
        start: The parameters before the first round, d numbers; zeros by default. At zeros all units of a hidden layer
            get the same gradient, and so a network needs a start of its own.
        classes: Number of classes if the parameters are a softmax head, (inputs, classes) in a row; None for any other
            model. With this number a server that pools knows the direction ignored by the head, and shrinks the head.
        metric: Scores and targets of the test split to a number; by default the metric of the task, accuracy for
            classes.
        gradient: Parameters, features (n, p) and labels (n,) of one person to the gradient of the summed loss, d
            numbers. The units "person" and "record" need the function; the unit "silo" does not call it.
    """

    parameters: int
    init: Callable[[FloatArray], Any]
    step: Callable[[Any, FloatArray, IntArray], Any]
    final: Callable[[Any], FloatArray]
    scores: Callable[[FloatArray, FloatArray], FloatArray]
    start: FloatArray | None = None
    classes: int | None = None
    metric: Callable[[Any, Any], Any] | None = None
    gradient: Callable[[FloatArray, FloatArray, IntArray], FloatArray] | None = None

    def __post_init__(self) -> None:
        if self.start is not None and np.shape(self.start) != (self.parameters,):
            raise ParameterError("model.start-shape", parameters=self.parameters, shape=np.shape(self.start))
        if self.classes is not None and (self.classes < 2 or self.parameters % self.classes):
            raise ParameterError("model.classes-unfit", parameters=self.parameters, classes=self.classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxHead:
    """A linear head with bias, trained by SGD on the cross-entropy; d = (features + 1) * classes."""

    features: int
    classes: int

    @property
    def parameters(self) -> int:
        """The length d of the parameter vector."""
        return (self.features + 1) * self.classes

    def as_model(self, *, learning_rate: float) -> Model:
        """Returns the head as three pure functions of a single silo, the plain way."""
        shape = (self.features + 1, self.classes)

        def gradient(weights: FloatArray, features: FloatArray, labels: IntArray) -> FloatArray:
            inputs = with_bias(features)
            residual = softmax(inputs @ weights.reshape(shape))
            residual[np.arange(len(labels)), labels] -= 1
            return np.asarray(inputs.T @ residual)

        def step(weights: FloatArray, features: FloatArray, labels: IntArray) -> FloatArray:
            return weights - learning_rate / len(labels) * gradient(weights, features, labels)

        return Model(
            parameters=self.parameters,
            init=lambda parameters: parameters.reshape(shape).copy(),
            step=step,
            final=lambda weights: weights.ravel(),
            scores=lambda parameters, features: with_bias(features) @ parameters.reshape(shape),
            classes=self.classes,
            gradient=lambda parameters, features, labels: gradient(parameters, features, labels).ravel(),
        )

    def scores(self, models: FloatArray, inputs: FloatArray) -> FloatArray:
        """Returns scores (n, classes, variants) of models (features + 1, classes, variants) on inputs with the bias."""
        return (inputs @ models.reshape(len(models), -1)).reshape(len(inputs), *models.shape[1:])

    def local_updates(
        self, models: FloatArray, inputs: FloatArray, labels: IntArray, picks: IntArray, learning_rate: float
    ) -> FloatArray:
        """Returns the update of every silo under every variant: (silos, features + 1, classes, variants).

        Args:
            models: The global models, (features + 1, classes, variants).
            inputs: All records with the bias column, (records, features + 1).
            labels: The class of every record.
            picks: The records of every batch, (steps, silos, batch).
            learning_rate: Learning rate of the local steps.
        """
        updates = self._two_class_updates if self.classes == 2 else self._many_class_updates
        return updates(models, inputs, labels, picks, learning_rate)

    def _two_class_updates(
        self, models: FloatArray, inputs: FloatArray, labels: IntArray, picks: IntArray, learning_rate: float
    ) -> FloatArray:
        """Returns the updates of a head with two classes, by training the difference of both columns alone.

        The gradient of a column is minus the gradient of the second column, so the difference determines both.
        """
        steps, silos, batch = picks.shape
        width, variants = len(models), models.shape[2]
        start = models[:, 1] - models[:, 0]
        difference = np.broadcast_to(start, (silos, width, variants)).copy()
        targets = labels.astype(np.float64)
        gathered = np.empty((silos * batch, width))
        rate = 2 * learning_rate / batch  # both columns move, the difference by twice as much
        for step in range(steps):
            chosen = picks[step].ravel()
            features = inputs.take(chosen, axis=0, out=gathered, mode="clip").reshape(silos, batch, width)
            residual = features @ difference
            np.negative(residual, out=residual)
            np.exp(residual, out=residual)
            residual += 1
            np.reciprocal(residual, out=residual)
            residual -= targets.take(chosen).reshape(silos, batch, 1)
            gradient = features.transpose(0, 2, 1) @ residual
            gradient *= rate
            difference -= gradient
        half_difference = (difference - start) / 2
        return np.stack([-half_difference, half_difference], axis=2)

    def _many_class_updates(
        self, models: FloatArray, inputs: FloatArray, labels: IntArray, picks: IntArray, learning_rate: float
    ) -> FloatArray:
        steps, silos, batch = picks.shape
        width, classes, variants = models.shape
        weights = np.broadcast_to(models.reshape(width, -1), (silos, width, classes * variants)).copy()
        one_hot = np.eye(classes)
        for step in range(steps):
            features = inputs[picks[step]]
            logits = (features @ weights).reshape(silos, batch, classes, variants)
            residual = softmax(logits, axis=2)
            residual -= one_hot[labels[picks[step]]][..., None]
            gradient = features.transpose(0, 2, 1) @ residual.reshape(silos, batch, classes * variants)
            weights -= learning_rate / batch * gradient
        return weights.reshape(silos, width, classes, variants) - models


def with_bias(features: FloatArray) -> FloatArray:
    """Returns the features with a column of ones after them."""
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def softmax(logits: FloatArray, axis: int = -1) -> FloatArray:
    """Returns the probabilities of classes from scores; the classes are on `axis`."""
    shifted: FloatArray = logits - logits.max(axis=axis, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=axis, keepdims=True)
    return shifted
