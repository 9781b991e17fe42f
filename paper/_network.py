"""A network trained from scratch: one hidden layer of ReLU, as three pure functions of one silo."""

from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.simulation.embedded.models import Model, with_bias


def network(
    *, features: int, hidden: int, classes: int, learning_rate: float, precision: type[np.floating[Any]] = np.float32
) -> Model:
    """Returns a network with He-normal weights to start from, trained by SGD on the cross-entropy.

    Local steps are in the precision given, single by default: silos are trained one by one, and it takes half the time.
    """
    first, second = (features + 1, hidden), (hidden + 1, classes)
    cut = first[0] * first[1]
    stream = np.random.default_rng(hidden)
    start = np.concatenate(
        [
            (stream.standard_normal(first) * np.sqrt(2 / features)).ravel(),
            (stream.standard_normal(second) / np.sqrt(hidden)).ravel(),
        ]
    )

    def parts(parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        return parameters[:cut].reshape(first), parameters[cut:].reshape(second)

    def step(parameters: FloatArray, inputs: FloatArray, labels: IntArray) -> FloatArray:
        below, above = parts(parameters)
        inputs = with_bias(inputs).astype(parameters.dtype)
        active = np.maximum(inputs @ below, 0)
        outer = np.concatenate([active, np.ones((len(active), 1), parameters.dtype)], axis=1)
        logits = outer @ above
        residual = np.exp(logits - logits.max(axis=1, keepdims=True))
        residual /= residual.sum(axis=1, keepdims=True)
        residual[np.arange(len(labels)), labels] -= 1
        residual *= learning_rate / len(labels)
        back = (residual @ above[:-1].T) * (active > 0)
        above -= outer.T @ residual  # the state is this silo's own copy
        below -= inputs.T @ back
        return parameters

    def scores(parameters: FloatArray, inputs: FloatArray) -> FloatArray:
        below, above = parts(parameters)
        return np.asarray(with_bias(np.maximum(with_bias(inputs) @ below, 0.0)) @ above)

    return Model(
        parameters=len(start),
        init=lambda parameters: parameters.astype(precision),
        step=step,
        final=lambda parameters: np.asarray(parameters, dtype=np.float64),
        scores=scores,
        start=start,
    )
