"""What a silo trains: a module of the user's with two functions, `start` and `train`, and others that it may have.

    def start(options):                # the model before the first round: named arrays, or a PyTorch state dict
    def train(model, assignment):      # at a silo: the model after local training, under the same names
    def evaluate(model, assignment):   # at the server, after each round: named numbers, from public records alone
    SOFTMAX_HEAD = "head"              # where the model is one: the array whose last axis are the classes, or several

They run where they are installed; none travels. `fulcrum.engines.built_in_training` is the one built in.
"""

import importlib
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.model_form import ModelForm, as_array, form_of
from fulcrum.core.training.training_result import checked_result, error_in_words, update_of
from fulcrum.errors import DataError, FulcrumError, in_one_line, listing

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learner:
    """The functions of a user's module.

    Attributes:
        start: The model before the first round, from the site's options.
        train: The model after local training.
        evaluate: What the server measures of a model after a round, if the module says so.
        head: The arrays of the softmax head that the model is; none where the module declares none.
        may_have_tensors: Whether PyTorch was there once the module was imported. Where it was, a silo asks `start` too
            whether the model is a state dict, and is given one; where not, it does not run `start`.
    """

    start: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    train: Callable[[dict[str, Any], Assignment], Mapping[str, Any]]
    evaluate: Callable[[dict[str, Any], Assignment], Mapping[str, Any]] | None = None
    head: tuple[str, ...] = ()
    may_have_tensors: bool = False
    _forms: list[ModelForm] = field(default_factory=list, init=False, repr=False, compare=False)

    def starting_model(self, options: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the model before the first round; whatever `start` does but return named arrays is a `DataError`."""
        try:
            made = self.start(options)
            if isinstance(made, Mapping) and all(isinstance(name, str) for name in made):
                form = self._admitted(form_of(made))
                self._forms[:] = [form]
                return form.taken(made)
        except (KeyboardInterrupt, FulcrumError):
            raise
        except BaseException as error:
            raise DataError("training.start-failed", reason=error_in_words(error)) from error
        raise DataError("training.start-result", type_name=type(made).__name__)

    def _admitted(self, form: ModelForm) -> ModelForm:
        """Returns the form of what `start` gave; one that silos would not know of is refused."""
        if form.like and not self.may_have_tensors:
            raise DataError("training.torch-imported-late")
        return form

    def form(self, options: Mapping[str, Any]) -> ModelForm:
        """Returns in what form the module takes its model, which a module that cannot have tensors is not asked for.

        A `start` that fails where a silo trains, such as one that reads a file that the server alone has, leaves the
        model as arrays, and the site's log says so.
        """
        if not self._forms and self.may_have_tensors:
            try:
                self.starting_model(options)
            except FulcrumError as error:
                _logger.warning("the model is given to train as arrays, not as a state dict: %s", error)
        if not self._forms:
            self._forms[:] = [ModelForm()]
        return self._forms[0]

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed; names and shapes that differ from the model's are refused."""
        return update_of(model, self._trained(model, assignment))

    def rows(self, model: Mapping[str, FloatArray], assignment: Assignment) -> Iterator[FloatArray]:
        """Yields the model after training on each unit of privacy, as one row: the unit is a silo, so there is one."""
        trained = checked_result(model, self._trained(model, assignment))
        yield np.concatenate([array.ravel() for array in trained.values()])

    def _trained(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the model after local training, as the module gave it."""
        form = self.form(assignment.options)
        return form.taken(self.train(form.given(model), assignment))

    def measured(self, model: Mapping[str, FloatArray], assignment: Assignment) -> tuple[dict[str, float], list[str]]:
        """Returns what `evaluate` measures of a model, and in one line each what is left out of it and why.

        Nothing that `evaluate` raises or returns ends the training: what is not a finite number under a name is left
        out. It is the server's alone to run: on the global model, which is released, and on records that are public.
        """
        if self.evaluate is None:
            return {}, []
        try:
            found = self.evaluate(self.form(assignment.options).given(model), assignment)
            if not isinstance(found, Mapping):
                return {}, [f"evaluate must return a dict of named numbers, got {type(found).__name__}"]
            numbers, left_out = {}, []
            for name, value in found.items():
                number = _number(value)
                if not isinstance(name, str) or not name.isprintable() or not name.strip():
                    left_out.append(f"a metric's name must be a text that can be printed, got {name!r}")
                elif number is None or not math.isfinite(number):
                    met = in_one_line(repr(value))[:60] if number is None else f"{number}"
                    left_out.append(f"{name!r} is left out: a metric is one finite number, got {met}")
                else:
                    numbers[name] = number
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's code, which may raise anything, SystemExit too
            return {}, [f"nothing is measured, evaluate failed: {error_in_words(error)}"]
        return numbers, left_out

    def classes(self, model: Mapping[str, FloatArray]) -> int | None:
        """Returns how many classes the softmax head has that the model is; None for a model that is declared as none.

        A head is the whole model: where other arrays come before it, what holds for heads does not hold for them.
        """
        if not self.head:
            return None
        if set(self.head) != set(model):
            raise DataError("training.head-names", head=listing(self.head), model=listing(model))
        shapes = {name: array.shape for name, array in model.items()}
        last = {shape[-1:] for shape in shapes.values()}
        if len(last) != 1 or min(last) < (2,):
            raise DataError("training.head-shapes", shapes=shapes)
        return int(min(last)[0])


def load_learner(name: str) -> Learner:
    """Returns the learner that a module is, by the name it is imported under; whatever that raises is a `DataError`."""
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs the module's code, which may raise anything, SystemExit too
        raise DataError("training.module-not-importable", module=name, reason=error_in_words(error)) from error
    for wanted in ("start", "train"):
        if not callable(getattr(module, wanted, None)):
            raise DataError("training.function-missing", module=name, function=wanted)
    evaluate = getattr(module, "evaluate", None)
    if evaluate is not None and not callable(evaluate):
        raise DataError("training.evaluate-type", module=name, type_name=type(evaluate).__name__)
    head = getattr(module, "SOFTMAX_HEAD", ())
    head = (head,) if isinstance(head, str) else head
    if not isinstance(head, tuple) or not all(isinstance(array, str) for array in head):
        raise DataError("training.head-type", module=name, head=head)
    return Learner(
        start=module.start,
        train=module.train,
        evaluate=evaluate,
        head=head,
        may_have_tensors="torch" in sys.modules,
    )


def _number(value: Any) -> float | None:
    """Returns one real number as a float, whatever array or tensor it stands in; None for anything else."""
    found = as_array(value)
    return float(found) if found.ndim == 0 and found.dtype.kind in "fiub" else None
