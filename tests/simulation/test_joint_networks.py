"""The joint recipe on networks: beside what its parts do alone."""

import math

import numpy as np

import fulcrum
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import train

INPUTS, HIDDEN, CLASSES = 32, 400, 10
TRAINING = LocalTraining(learning_rate=0.1, steps=3, batch=8)


def network():
    """One hidden layer, begun at random, its gradients by hand."""
    shapes = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
    ends = np.cumsum([math.prod(shape) for shape in shapes])

    def arrays(parameters):
        return [part.reshape(shape) for part, shape in zip(np.split(parameters, ends[:-1]), shapes, strict=True)]

    def passed(parameters, inputs):
        into, shift, out, bias = arrays(parameters)
        hidden = np.maximum(inputs @ into + shift, 0)
        return hidden, hidden @ out + bias

    def step(parameters, inputs, labels):
        hidden, scores = passed(parameters, inputs)
        wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong = (wrong / wrong.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]) / len(labels)
        back = (wrong @ arrays(parameters)[2].T) * (hidden > 0)
        slopes = (inputs.T @ back, back.sum(axis=0), hidden.T @ wrong, wrong.sum(axis=0))
        return parameters - TRAINING.learning_rate * np.concatenate([slope.ravel() for slope in slopes])

    widths = (INPUTS, INPUTS, HIDDEN, HIDDEN)
    rng = np.random.default_rng(7)
    start = [rng.uniform(-1, 1, math.prod(shape)) / width**0.5 for shape, width in zip(shapes, widths, strict=True)]
    return Model(
        parameters=int(ends[-1]),
        init=lambda parameters: parameters.copy(),
        step=step,
        final=lambda parameters: parameters,
        scores=lambda parameters, inputs: passed(parameters, inputs)[1],
        start=np.concatenate(start),
    )


def test_the_joint_recipe_is_no_worse_than_weights_of_least_noise_for_a_network_under_little_noise():
    task, model = fulcrum.load_task("digits", every_class=True, components=INPUTS), network()
    options = {"rounds": 8, "epsilon": 10.0, "parameters": model.parameters}
    joint, least = (
        train(fulcrum.plan("severe", **options, **way), task, model=model, training=TRAINING, seeds=[0, 1])
        for way in ({"recipe": "joint"}, {"weights": "least-noise"})
    )
    assert least.accuracy[:, -1].min() > 0.65  # there is something to be learnt
    assert (joint.accuracy[:, -1] >= least.accuracy[:, -1]).all()
