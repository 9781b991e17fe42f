"""Training inside the process that releases, for engines whose own process calls the user's code, as Flower does.

Every error of training becomes `TrainingFailedError`. Memory and files for the release are reserved before training,
and alarms, traces and forked children of training end with training. A separate process
(`fulcrum.core.training.training_worker`) bounds more, and every engine that allows a separate process uses one: here,
training that hangs or exits also stops the silo's answer.
"""

import contextlib
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment, Training, TrainingFailedError
from fulcrum.core.training.release_room import blocks_of_memory
from fulcrum.core.training.training_result import error_in_words, forked_children_end, report_of
from fulcrum.errors import error_messages

_Result = TypeVar("_Result")

_END: Any = object()
"""Stands after the last row."""

_REPORT = 4 * 2**20
"""Bytes of memory that stay free for the report of a failed training."""


class InProcessTraining:
    """Trains in this process.

    Args:
        training: The object that calls the user's code; any exception may come out.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the change of the model by local training.

        Raises:
            TrainingFailedError: Training raised any exception, including a cancelled task, an exit or a group of
                errors. Only an interrupt passes through: the operator wants the site to end.
        """
        return self._calling(lambda: self._training.update(model, assignment))

    def rows(self, model: Mapping[str, FloatArray], assignment: Assignment) -> Generator[FloatArray]:
        """Yields the rows of all persons; every failure is an error as in `update`."""
        parameters = sum(array.size for array in model.values())
        rows = self._calling(lambda: self._training.rows(model, assignment))
        # No value of training ends the rows: a None in the place of one person's row would leave out all later persons.
        while (block := self._calling(lambda: next(rows, _END))) is not _END:
            if np.ndim(block) not in (1, 2) or np.shape(block)[-1] != parameters:
                raise TrainingFailedError("training.rows-shape", shape=np.shape(block), parameters=parameters)
            yield np.atleast_2d(block)

    def _calling(self, work: Callable[[], _Result]) -> _Result:
        """Returns the result of the user's code, or raises `TrainingFailedError`."""
        error_messages()  # read now: after training no place for an open file may be left, and the error needs words
        spare = blocks_of_memory(_REPORT)
        try:
            with _timers_and_traces_end(), forked_children_end():
                return work()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            for block in spare:
                block.close()
            # A worker's own, with its report: what training itself makes of the type may have none, or fail to give it.
            if type(error) is TrainingFailedError and type(vars(error).get("report")) is str:
                raise
            raise TrainingFailedError(
                "training.failed", reason=error_in_words(error), report=report_of(error)
            ) from error


@contextlib.contextmanager
def _timers_and_traces_end() -> Iterator[None]:
    """Ends the timers, the trace and the profile that training leaves behind.

    A timer of training would interrupt the release. The silo would then decline because training took long, and the
    decline would tell an observer about the silo's records.
    """
    clocks = [
        getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)
    ]
    idle = [clock for clock in clocks if signal.getitimer(clock) == (0.0, 0.0)]
    trace, profile = sys.gettrace(), sys.getprofile()
    try:
        yield
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
        for clock in idle:
            signal.setitimer(clock, 0)
