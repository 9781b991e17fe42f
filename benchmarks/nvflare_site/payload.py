"""A training module that costs nothing: a model of any size, and an update of the size that is clipped to."""

import numpy as np


def start(options):
    """Returns zeros."""
    return {"weights": np.zeros(int(options["parameters"]))}


def train(model, assignment):
    """Returns the model moved by a vector of norm 1."""
    size = model["weights"].size
    return {"weights": model["weights"] + np.full(size, size**-0.5)}
