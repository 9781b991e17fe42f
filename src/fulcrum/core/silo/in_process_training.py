"""Training inside the process that releases, for engines whose own process calls the user's code, as Flower's does.

What training raises becomes one kind of error. What it uses up of memory and files is kept from it, and what it began
is ended with it. A silo whose engine allows it trains in a process of its own (`fulcrum.core.silo.training_worker`),
which bounds more: here training that hangs, or ends its process, ends the silo's answer too.
"""

import contextlib
import mmap
import os
import signal
import sys
from collections.abc import Iterator, Mapping

from fulcrum.arrays import FloatArray
from fulcrum.core.silo.assignment import Assignment, TrainingFailedError
from fulcrum.core.silo.release_room import file_identity
from fulcrum.core.silo.training_module import (
    Learner,
    error_in_words,
    forked_children_end,
    load_learner,
    report_of,
)

_FILES = 32
"""Opening a ledger takes fewer than ten."""

_MEMORY = 64 * 2**20
_MEMORY_OF_A_PARAMETER = 96
"""Bytes: a release and its way to disk take 52 of Python's, and SQLite's pages a copy or two."""


class InProcessTraining:
    """Trains in this process.

    Args:
        learner: The functions that train, or the name of the module that holds them. The module is imported when it
            first trains: one that reads records when it is imported may fail by what they are.
    """

    def __init__(self, learner: Learner | str) -> None:
        self._learner = learner

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed.

        Raises:
            TrainingFailedError: Whatever training raised, a cancelled task, an exit or a group of errors among it. An
                interrupt alone is handed on: it is the operator's, who wants the site to end.
        """
        with contextlib.ExitStack() as spare:
            spare.enter_context(_set_aside(sum(array.size for array in model.values())))
            try:
                with _nothing_left_behind(), forked_children_end():
                    if isinstance(self._learner, str):
                        self._learner = load_learner(self._learner)
                    return self._learner.update(model, assignment)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                spare.close()  # the report may take some of it
                raise TrainingFailedError(error_in_words(error), report_of(error)) from error


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


@contextlib.contextmanager
def _set_aside(parameters: int) -> Iterator[None]:
    """Keeps free the memory and the places for open files that one release takes.

    Memory is kept as the operating system counts it for a limit of one process. It is not touched, so it takes none
    from others, and does not help where the system ends a process that has too much.
    """
    memory = _memory(_MEMORY + _MEMORY_OF_A_PARAMETER * parameters)
    opened = {file: file_identity(file) for file in _open_files()}
    try:
        yield
    finally:
        for file, identity in opened.items():
            with contextlib.suppress(OSError):  # training may have closed it, and opened another in its place
                if file_identity(file) == identity:
                    os.close(file)
        for block in memory:
            block.close()


def _memory(size: int) -> list[mmap.mmap]:
    """Returns blocks of memory of a size in all; less where there is not so much."""
    blocks: list[mmap.mmap] = []
    piece = size
    while size > 0 and piece >= mmap.PAGESIZE:
        try:
            blocks.append(mmap.mmap(-1, piece))
            size -= piece
        except (OSError, MemoryError):
            piece //= 2
    return blocks


def _open_files() -> list[int]:
    """Opens files that are closed again when their places are needed; fewer where there is no place for so many."""
    spare: list[int] = []
    with contextlib.suppress(OSError):
        while len(spare) < _FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    return spare
