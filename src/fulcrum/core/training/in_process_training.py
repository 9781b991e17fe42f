"""Training inside the process that releases, for engines whose own process calls the user's code, as Flower's does.

What training raises becomes one kind of error. What it uses up of memory and files is kept from it, and what it began
is ended with it. A silo whose engine allows it trains in a process of its own
(`fulcrum.core.training.training_worker`), which bounds more: here training that hangs, or ends its process, ends the
silo's answer too.
"""

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping

from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment, Training, TrainingFailedError
from fulcrum.core.training.release_room import blocks_of_memory
from fulcrum.core.training.training_result import error_in_words, forked_children_end, report_of
from fulcrum.errors import error_messages

_REPORT = 4 * 2**20
"""Bytes that are free for the report of training that failed, whatever it took."""


class InProcessTraining:
    """Trains in this process.

    Args:
        training: Calls the user's code, and may raise anything.
    """

    def __init__(self, training: Training) -> None:
        self._training = training

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed.

        Raises:
            TrainingFailedError: Whatever training raised, a cancelled task, an exit or a group of errors among it. An
                interrupt alone is handed on: it is the operator's, who wants the site to end.
        """
        error_messages()  # read now: training may leave no place for a file, and the failure must have its words
        spare = blocks_of_memory(_REPORT)
        try:
            with _nothing_left_behind(), forked_children_end():
                return self._training.update(model, assignment)
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
def _nothing_left_behind() -> Iterator[None]:
    """Ends here what training began and what would go on into the release.

    An alarm that training set, of any clock, or a trace that it left would strike while the release is made, and the
    silo would decline because its training took long.
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
