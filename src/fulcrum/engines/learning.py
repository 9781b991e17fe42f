"""What a silo trains: a module of the user's with two functions, `start` and `train`.

    def start(options):                # the model before the first round, as named arrays
    def train(model, assignment):      # the model after local training, under the same names

Both run where they are installed; neither travels. `fulcrum.engines.head` is the one built in.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError
from fulcrum.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What local training is told beside the model.

    Attributes:
        silo: Who trains.
        round_number: From 1.
        plan: The plan that is run.
        seed: Of everything that is drawn in research.
        options: The options of the site, such as where its records are.
    """

    silo: str
    round_number: int
    plan: Plan
    seed: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The two functions of a user's module."""

    start: Callable[[Mapping[str, Any]], Mapping[str, FloatArray]]
    train: Callable[[dict[str, FloatArray], Assignment], Mapping[str, FloatArray]]

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed; names and shapes that differ from the model's are refused."""
        trained = self.train({name: array.copy() for name, array in model.items()}, assignment)
        if list(trained) != list(model):
            raise DataError(f"train returned the arrays {sorted(trained)}, the model has {sorted(model)}")
        for name, array in model.items():
            if np.shape(trained[name]) != array.shape:
                raise DataError(f"train returned {name!r} of shape {np.shape(trained[name])}, it has {array.shape}")
        return {name: np.asarray(trained[name], dtype=np.float64) - array for name, array in model.items()}


def load_learner(name: str) -> Learner:
    """Returns the learner that a module is, by the name it is imported under."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"the training module {name!r} cannot be imported: {error}. Install it at this site") from None
    for wanted in ("start", "train"):
        if not callable(getattr(module, wanted, None)):
            raise DataError(f"the training module {name!r} has no function {wanted}")
    return Learner(start=module.start, train=module.train)
