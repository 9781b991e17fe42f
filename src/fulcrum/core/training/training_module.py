"""The user's training module: the functions `start` and `train`, or `start`, `persons` and `gradients`.

    def start(options):                # the model before the first round: named arrays, or a PyTorch state dict
    def train(model, assignment):      # at a silo: the model after local training, under the same names
    def persons(assignment):           # at a silo, if the plan protects persons: the records of each person, in turn
    def gradients(model, records):     # the gradient of the loss, added up over the records of one person: named arrays
                                       # as the model has, or all coordinates in a row; fulcrum.TorchGradients is one
    def evaluate(model, assignment):   # at the server, after each round: named numbers, from public records alone
    SOFTMAX_HEAD = "head"              # for a model that is a softmax head: the arrays whose last axis are the classes
    SERVER_LEARNING_RATE = 0.1         # if the plan protects persons: the server's factor on the mean of all gradients

The functions run at the site of their installation; no code travels. `fulcrum.engines.built_in_training` is built in.
"""

import copy
import importlib
import itertools
import logging
import math
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.model_form import ModelForm, as_array, form_of
from fulcrum.core.training.training_result import checked_result, error_in_words, forked_children_end, update_of
from fulcrum.errors import DataError, FulcrumError, in_one_line, listing

_logger = logging.getLogger(__name__)

_FUNCTIONS = ("start", "train", "persons", "gradients", "gradient_rows", "evaluate")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingModule:
    """The functions of a user's training module.

    Attributes:
        start: Makes the model before the first round, from the site's options.
        train: Makes the model after local training; None for a module that has gradients alone.
        persons: Yields the records of each person of the silo, if the plan protects persons; None for other modules.
        gradients: Makes the gradient of the loss of one person's records; the same names and shapes as the model.
        gradient_rows: In the place of `persons` and `gradients`, for modules that Fulcrum maps over persons itself:
            yields matrices of gradients, a row for each person, in the order of the model's coordinates.
        learning_rate: The server's factor on the mean of all gradients, if the plan protects persons: a public
            constant, which multiplies after clip and noise. The option "learning_rate" of the server comes first.
        evaluate: Measures a model after a round, at the server; None for a module without `evaluate`.
        head: The arrays of the softmax head; empty for a model that the module does not declare as a head.
        may_have_tensors: True if PyTorch was imported together with the module. A silo then runs `start` to see if
            the model is a state dict; without PyTorch a silo does not run `start`.
    """

    start: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    train: Callable[[dict[str, Any], Assignment], Mapping[str, Any]] | None = None
    persons: Callable[[Assignment], Iterable[Any]] | None = None
    gradients: Callable[[dict[str, Any], Any], Mapping[str, Any]] | None = None
    gradient_rows: Callable[[dict[str, Any], Assignment], Iterable[Any]] | None = None
    learning_rate: float = 1.0
    evaluate: Callable[[dict[str, Any], Assignment], Mapping[str, Any]] | None = None
    head: tuple[str, ...] = ()
    may_have_tensors: bool = False
    _forms: list[ModelForm] = field(default_factory=list, init=False, repr=False, compare=False)

    def starting_model(self, options: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the model before the first round.

        Raises:
            DataError: `start` failed; or `start` returned no named arrays; or `start` returned a PyTorch state dict,
                and the module imports torch inside of a function.
        """
        try:
            model = self.start(options)
            if isinstance(model, Mapping) and all(isinstance(name, str) for name in model):
                form = form_of(model)
                self._check_form(form)
                self._forms[:] = [form]
                return form.to_arrays(model)
        except (KeyboardInterrupt, FulcrumError):
            raise
        except BaseException as error:
            raise DataError("training.start-failed", reason=error_in_words(error)) from error
        raise DataError("training.start-result", type_name=type(model).__name__)

    def _check_form(self, form: ModelForm) -> None:
        """Refuses a state dict whose silos would not run `start`, and would train on arrays instead."""
        if form.like and not self.may_have_tensors:
            raise DataError("training.torch-imported-late")

    def form(self, options: Mapping[str, Any]) -> ModelForm:
        """Returns the form of the module's model; a module that cannot have tensors takes named arrays.

        `start` may fail at a silo, for example if `start` reads a file that exists at the server alone. The model then
        stays named arrays, and the log of the site says so.
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
        """Returns the change of the model by local training; refuses other names or shapes than the model's."""
        return update_of(model, self._train_model(model, assignment))

    def rows(self, model: Mapping[str, FloatArray], assignment: Assignment) -> Generator[FloatArray]:
        """Yields rows of coordinates, a row for every unit of privacy.

        - The plan protects silos: a single row, the model after training.
        - The plan protects persons: the step of each person, minus the gradient. A person whose call fails has a row of
          NaN, which the silo counts as zero for this person alone. A failure of the whole round would let one person
          move the release by the gradients of all others.

        Raises:
            DataError: `gradients` gives another gradient when a person is asked for again after the last, the first
                whose records can be copied: a state, or random numbers, would let one person change the gradients of
                others. The silo then releases noise alone, and the error stays in the silo's log.
        """
        self.check_unit(assignment.plan.unit)
        if not assignment.plan.unit.is_within_silo:
            trained = checked_result(model, self._train_model(model, assignment))
            yield _row_of(trained)
        elif self.gradient_rows is not None:
            form = self.form(assignment.options)
            for block in self.gradient_rows(form.to_module(model), assignment):
                yield np.negative(as_array(block).astype(np.float64, copy=False))
        else:
            if self.persons is None or self.gradients is None:
                raise DataError("training.gradients-missing", unit=assignment.plan.unit.noun)
            persons, first_rows = iter(self.persons(assignment)), list[tuple[Any, FloatArray]]()
            if hasattr(self.gradients, "rows"):  # `TorchGradients` takes many persons at a time
                # Alone before the others and alone after them: in a batch with others the rounding is another one.
                first = list(itertools.islice(persons, 1))
                copies = [copied for records in first for copied in _copy_of(records)]
                first_rows = [
                    (copied, self._person_row(self.gradients, model, copied, assignment)) for copied in copies
                ]
                form = self.form(assignment.options)
                for block in self.gradients.rows(form.to_module(model), itertools.chain(first, persons)):
                    yield np.negative(block)
            else:
                for records in persons:
                    copies = [] if first_rows else _copy_of(records)
                    row = self._person_row(self.gradients, model, records, assignment)
                    first_rows += [(copied, row) for copied in copies]
                    yield row
            for copied, row in first_rows:
                again = self._person_row(self.gradients, model, copied, assignment)
                if not _are_near(again, row, assignment.plan.clip_norm):
                    raise DataError("training.gradients-state", unit=assignment.plan.unit.noun)

    def server_rate(self, unit: PrivacyUnit, options: Mapping[str, Any]) -> float:
        """Returns the server's learning rate: 1 if silos train, since updates contain the rate of local steps."""
        return _checked_rate(options.get("learning_rate", self.learning_rate)) if unit.is_within_silo else 1.0

    def check_unit(self, unit: PrivacyUnit) -> None:
        """Raises `DataError` unless the module has the functions for the unit of privacy of a plan."""
        by_person = self.gradient_rows is not None or None not in (self.persons, self.gradients)
        if unit.is_within_silo and not by_person:
            raise DataError("training.gradients-missing", unit=unit.noun)
        if not unit.is_within_silo and self.train is None:
            raise DataError("training.train-missing")

    def _person_row(
        self, gradients: Callable[..., Any], model: Mapping[str, FloatArray], records: Any, assignment: Assignment
    ) -> FloatArray:
        """Returns the step of one person, or NaN in every coordinate if the user's code fails for the person.

        Every call gets a new copy of the model: a change of the model by one person's call must not reach the next.
        """
        try:
            with forked_children_end():
                form = self.form(assignment.options)
                gradient = gradients(form.to_module(model), records)
                if not isinstance(gradient, Mapping):
                    return np.negative(_flat_row(model, gradient))
                return np.negative(_row_of(checked_result(model, form.to_arrays(gradient))))
        except KeyboardInterrupt:  # the operator's
            raise
        except BaseException as error:  # of the user's code, which may raise anything, SystemExit too
            _logger.warning("the gradients of one %s failed: %s", assignment.plan.unit.noun, error_in_words(error))
            return np.full(sum(array.size for array in model.values()), np.nan)

    def _train_model(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the model after local training, unchecked."""
        if self.train is None:
            raise DataError("training.train-missing")
        form = self.form(assignment.options)
        return form.to_arrays(self.train(form.to_module(model), assignment))

    def metrics_of(self, model: Mapping[str, FloatArray], assignment: Assignment) -> tuple[dict[str, float], list[str]]:
        """Returns the metrics of `evaluate`, and a line with the reason for every metric that is left out.

        No exception and no result of `evaluate` ends the training: a value that is not a finite number under a name is
        left out. Only the server calls `evaluate`, on the global model, which is released, and on public records.
        """
        if self.evaluate is None:
            return {}, []
        try:
            metrics = self.evaluate(self.form(assignment.options).to_module(model), assignment)
            if not isinstance(metrics, Mapping):
                return {}, [f"evaluate must return a dict of named numbers, got {type(metrics).__name__}"]
            numbers, left_out = {}, []
            for name, value in metrics.items():
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
        """Returns the number of classes of a softmax head; None for a model that the module does not declare as a head.

        The head must be the whole model: the rules for heads do not hold for layers before a head.
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


def load_training_module(name: str) -> TrainingModule:
    """Imports a training module by name and returns its functions.

    Raises:
        DataError: The import failed with any error, or a function is missing or of a wrong type.
    """
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # importing runs the module's code, which may raise anything, SystemExit too
        raise DataError("training.module-not-importable", module=name, reason=error_in_words(error)) from error
    functions: dict[str, Any] = {function: getattr(module, function, None) for function in _FUNCTIONS}
    for function, value in functions.items():
        if value is not None and not callable(value):
            raise DataError("training.function-type", module=name, function=function, type_name=type(value).__name__)
    for function in ("start", *(() if functions["gradients"] or functions["gradient_rows"] else ("train",))):
        if functions[function] is None:
            raise DataError("training.function-missing", module=name, function=function)
    head = getattr(module, "SOFTMAX_HEAD", ())
    head = (head,) if isinstance(head, str) else head
    if not isinstance(head, tuple) or not all(isinstance(array, str) for array in head):
        raise DataError("training.head-type", module=name, head=head)
    rate = _checked_rate(getattr(module, "SERVER_LEARNING_RATE", 1.0))
    return TrainingModule(**functions, learning_rate=rate, head=head, may_have_tensors="torch" in sys.modules)


def _checked_rate(value: Any) -> float:
    """Returns a learning rate of the server as a float, or raises `DataError`."""
    rate = _number(value)
    if rate is None or not (math.isfinite(rate) and rate > 0):
        raise DataError("training.server-rate", learning_rate=value)
    return rate


def _row_of(arrays: Mapping[str, FloatArray]) -> FloatArray:
    """Returns the coordinates of arrays as a row."""
    return np.concatenate([np.zeros(0), *(array.ravel() for array in arrays.values())])


def _flat_row(model: Mapping[str, FloatArray], gradient: Any) -> FloatArray:
    """Returns a gradient of all coordinates in a row, in double precision."""
    row, parameters = as_array(gradient), sum(array.size for array in model.values())
    if row.dtype.kind not in "fiu" or row.shape != (parameters,):
        raise DataError("training.rows-shape", shape=row.shape, parameters=parameters)
    return row.astype(np.float64, copy=False)


def _copy_of(records: Any) -> list[Any]:
    """Returns a copy of one person's records in a list; an empty list for records that cannot be copied.

    Records with an open file have no copy, and large records may not fit twice. An error would end the round, and the
    person would move the release by the gradients of all others.
    """
    try:
        with forked_children_end():
            return [copy.deepcopy(records)]
    except KeyboardInterrupt:  # the operator's
        raise
    except BaseException:  # the copy runs code of the user's classes, which may raise anything
        return []


def _are_near(first: FloatArray, second: FloatArray, clip_norm: float) -> bool:
    """Returns True for rows that differ by no more than the rounding of a device that adds in any order.

    A gradient that is much smaller than the terms of its sum is mostly rounding, so a difference is also compared with
    the clip norm: a person with such a gradient must not end the round of all others.
    """
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return bool(np.array_equal(np.isfinite(first), np.isfinite(second)))
    return bool(np.linalg.norm(first - second) <= 1e-4 * max(float(np.linalg.norm(second)), clip_norm))


def _number(value: Any) -> float | None:
    """Returns a real number as a float, also out of an array or tensor without axes; None for any other value."""
    array = as_array(value)
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiub" else None
