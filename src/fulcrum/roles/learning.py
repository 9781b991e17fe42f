"""What a silo trains: a module of the user's with two functions, `start` and `train`.

    def start(options):                # the model before the first round, as named arrays
    def train(model, assignment):      # the model after local training, under the same names
    SOFTMAX_HEAD = "head"              # where the model is one: the array whose last axis are the classes, or several

Both functions run where they are installed; neither travels. `fulcrum.engines.built_in_training` is the one built in.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, FulcrumError, in_one_line, listing
from fulcrum.planning.plan import Plan


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
    """The two functions of a user's module.

    Attributes:
        start: The model before the first round, from the site's options.
        train: The model after local training.
        head: The arrays of the softmax head that the model is; none where the module declares none.
    """

    start: Callable[[Mapping[str, Any]], Mapping[str, FloatArray]]
    train: Callable[[dict[str, FloatArray], Assignment], Mapping[str, FloatArray]]
    head: tuple[str, ...] = ()

    def starting_model(self, options: Mapping[str, Any]) -> dict[str, FloatArray]:
        """Returns the model before the first round; whatever `start` does but return named arrays is a `DataError`."""
        try:
            made = self.start(options)
            if isinstance(made, Mapping) and all(isinstance(name, str) for name in made):
                return {name: np.asarray(array) for name, array in made.items()}
        except (KeyboardInterrupt, FulcrumError):
            raise
        except BaseException as error:
            raise DataError(f"the training module's function start failed: {_told(error)}") from error
        kind = type(made).__name__
        raise DataError(f"the training module's function start must return a dict of named arrays, got {kind}")

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed; names and shapes that differ from the model's are refused."""
        trained = self.train({name: array.copy() for name, array in model.items()}, assignment)
        if list(trained) != list(model):
            raise DataError(f"train returned the arrays {sorted(trained)}, the model has {sorted(model)}")
        update = {}
        for name, array in model.items():
            found = np.asarray(trained[name])
            if found.dtype.kind not in "fiu" or found.shape != array.shape:
                told = f"{found.dtype} of shape {found.shape}"
                raise DataError(f"train returned {name!r} as {told}, it is real numbers of shape {array.shape}")
            update[name] = found.astype(np.float64) - array
        return update

    def classes(self, model: Mapping[str, FloatArray]) -> int | None:
        """Returns how many classes the softmax head has that the model is; None for a model that is declared as none.

        A head is the whole model: where other arrays come before it, what holds for heads does not hold for them.
        """
        if not self.head:
            return None
        if set(self.head) != set(model):
            raise DataError(
                f"SOFTMAX_HEAD names {listing(self.head)}, and the model has {listing(model)}. Name every array of a "
                "model that is a head, or leave it out"
            )
        shapes = {name: array.shape for name, array in model.items()}
        last = {shape[-1:] for shape in shapes.values()}
        if len(last) != 1 or min(last) < (2,):
            raise DataError(f"SOFTMAX_HEAD names arrays whose last axis are the classes, two or more, got {shapes}")
        return int(min(last)[0])


def load_learner(name: str) -> Learner:
    """Returns the learner that a module is, by the name it is imported under; whatever that raises is a `DataError`."""
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs the module's code, which may raise anything, SystemExit too
        told = f"the training module {name!r} cannot be imported: {_told(error)}"
        raise DataError(f"{told}. Install it at this site, or mend it") from error
    for wanted in ("start", "train"):
        if not callable(getattr(module, wanted, None)):
            raise DataError(f"the training module {name!r} has no function {wanted}")
    head = getattr(module, "SOFTMAX_HEAD", ())
    head = (head,) if isinstance(head, str) else head
    if not isinstance(head, tuple) or not all(isinstance(array, str) for array in head):
        raise DataError(f"SOFTMAX_HEAD of the training module {name!r} must be names of arrays, got {head!r}")
    return Learner(start=module.start, train=module.train, head=head)


def _told(error: BaseException) -> str:
    """What somebody else's code raised, for a message: most errors say too little without their names."""
    said, name = in_one_line(error), type(error).__name__
    if isinstance(error, ImportError | SyntaxError) and said:
        return said
    return f"{name}: {said}" if said else name
