"""Training in a process of its own: nothing that it does ends, fills or delays the process that releases.

    worker = TrainingWorker("their_training", seconds=96.0)
    update = worker.update(model, assignment)    # or TrainingFailedError, whatever went wrong

The worker is started when a silo first trains and serves all rounds after that; a worker that died, or that was ended
at its deadline, is started anew in the next round. It is given the name of the training module, the assignment and the
model. It inherits no descriptor but the three that are made here, so it holds no ledger, no key and no seal. It runs as
the silo's own user: this keeps mishaps apart, and is no wall against a training module that means harm.

Model and rows travel in an anonymous file in memory, messages as lines over a socket. The silo copies a row out of the
file with `pread`: a worker that shrinks the file, or writes on, hurts no memory of the silo. Every row is checked for
its size alone, which is fixed; the silo clips it, never the worker.
"""

import contextlib
import itertools
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment, TrainingFailedError
from fulcrum.errors import in_one_line

_COMMAND = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fulcrum.core.training.worker_process import serve
serve(*map(int, sys.argv[2:]))
"""

_WATCH = """
import os, sys
while os.read(0, 1): pass
os.killpg(int(sys.argv[1]), 9)
"""
"""Kills a worker's group when the silo's end of a pipe is closed. Training cannot keep it waiting, by holding the
interpreter's lock or by being stopped: it is a process of its own, which imports nothing."""

_INTERVAL = 0.1
"""Seconds between two looks whether a silent worker lives: its children may hold the socket of a dead one open."""

_LONGEST_LINE = 2**16
_LONGEST_END = 5.0
"""Seconds for a killed process to go; one that the operating system holds on to is left behind."""


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """What a worker is started with; another model or assignment takes another worker."""

    assignment: Assignment
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    """By array of the model: name, dtype and shape."""

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for _, _, shape in self.arrays)

    @property
    def model_size(self) -> int:
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) for _, dtype, shape in self.arrays)


class TrainingWorker:
    """Trains by a module in a process of its own.

    Args:
        module: The name that the training module is imported under.
        seconds: The deadline of a round, the start of the process and the import of the module included.
        gigabytes: The address space that the process may take, in 2^30 bytes; 0 for what the operating system allows.
    """

    def __init__(self, module: str, *, seconds: float, gigabytes: float = 0.0) -> None:
        self._module, self._seconds, self._memory = module, seconds, int(gigabytes * 2**30)
        self._running: _RunningWorker | None = None
        self._lock = threading.Lock()

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns what local training changed: the one row of a silo, less the model."""
        trained = self.trained(model, assignment)
        with np.errstate(all="ignore"):  # the release tells what is not finite
            return {name: np.subtract(trained[name], array, out=trained[name]) for name, array in model.items()}

    def trained(self, model: Mapping[str, np.ndarray[Any, Any]], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the model after local training, in double precision, under the model's names and shapes."""
        with contextlib.closing(self.rows(model, assignment)) as rows:
            found = list(itertools.islice(rows, 2))
        if len(found) != 1:
            raise TrainingFailedError("training.rows-number", rows="no row" if not found else "more rows than one")
        ends = np.cumsum([array.size for array in model.values()])[:-1]
        parts = zip(model.items(), np.split(found[0], ends), strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in parts}

    def rows(self, model: Mapping[str, np.ndarray[Any, Any]], assignment: Assignment) -> Generator[FloatArray]:
        """Yields the models after training, each as one row of coordinates: one row for each unit of privacy.

        A row is asked for when the one before it was taken, so the silo holds one row at a time.

        Raises:
            TrainingFailedError: Training failed, died, gave no whole row, or was not over at its deadline.
        """
        until = time.monotonic() + self._seconds
        arrays = tuple((name, array.dtype.str, array.shape) for name, array in model.items())
        setup = _Setup(assignment=replace(assignment, round_number=0), arrays=arrays)
        with self._lock, self._ended_unless_whole(), self._started(setup).at_work() as running:
            running.write_model(model.values())
            running.ask(assignment.round_number)
            while running.has_row(until):
                yield running.row()
                running.ask(assignment.round_number)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def _started(self, setup: _Setup) -> "_RunningWorker":
        """Returns the worker that runs; a new one where there is none, it died, or it was started for another model."""
        if self._running is not None and (self._running.setup != setup or self._running.has_died()):
            self._end()
        if self._running is None:
            self._running = _RunningWorker(self._module, setup, self._memory)
        return self._running

    @contextlib.contextmanager
    def _ended_unless_whole(self) -> Iterator[None]:
        """Ends a worker that failed by anything but an exception of its training: nobody knows what it does next."""
        try:
            yield
        except TrainingFailedError:
            raise
        except TimeoutError:
            self._end()
            raise TrainingFailedError("training.deadline-passed", seconds=self._seconds) from None
        except (OSError, EOFError, ValueError, MemoryError, msgspec.MsgspecError) as error:  # died, or no whole answer
            code = self._end()
            told = "" if code is None else f" ({f'killed by signal {-code}' if code < 0 else f'exit code {code}'})"
            said = in_one_line(error) or type(error).__name__
            raise TrainingFailedError("training.process-failed", ending=told, reason=said) from None
        except BaseException:
            self._end()
            raise

    def _end(self) -> int | None:
        """Ends the process that runs, and returns the code of one that had ended by itself."""
        running, self._running = self._running, None
        return None if running is None else running.end()


class _RunningWorker:
    """One process, and the silo's ends of what connects it."""

    def __init__(self, module: str, setup: _Setup, memory: int) -> None:
        self.setup = setup
        with contextlib.ExitStack() as handed, contextlib.ExitStack() as kept:
            _fill_standard_files(handed)
            self._channel, theirs = socket.socketpair()
            kept.callback(self._channel.close)
            handed.callback(theirs.close)
            self._shared = _anonymous_file()
            kept.callback(os.close, self._shared)
            os.truncate(self._shared, setup.model_size + 8 * setup.parameters)
            start = _anonymous_file()
            handed.callback(os.close, start)
            given = setup.assignment
            plan = given.plan.encoded, given.plan.issuer  # verified anew: a plan is not unpickled
            _write(start, pickle.dumps((module, plan, given.silo, given.seed, given.options, setup.arrays, memory)))
            files = theirs.fileno(), self._shared, start
            self._process = subprocess.Popen(  # noqa: S603 this interpreter, by its own name
                [sys.executable, "-Pc", _COMMAND, json.dumps([str(place) for place in sys.path]), *map(str, files)],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,  # a group of its own, which is killed as a whole
            )
            kept.callback(_kill, self._process, os.getpid())
            watch = [sys.executable, "-ISc", _WATCH, str(self._process.pid)]
            watcher = subprocess.Popen(  # noqa: S603 as above
                watch,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            kept.callback(_end_watcher, watcher, os.getpid())
            self.end_all = weakref.finalize(self, kept.pop_all().close)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Self]:
        """Lets the process run. It is stopped after that, with its children, until the next round.

        So nothing that training left running takes the memory or the disk that the release needs.
        """
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield self
        finally:
            with contextlib.suppress(OSError):  # it has ended
                os.killpg(self._process.pid, signal.SIGSTOP)
                if hasattr(os, "waitid"):
                    self._wait_until_stopped()

    def _wait_until_stopped(self) -> None:
        """Waits until the process stands still: a write to disk that is under way is not cut short."""
        until = time.monotonic() + _LONGEST_END
        states = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, states) is None and time.monotonic() < until:
            time.sleep(_INTERVAL / 100)

    def write_model(self, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
        """Puts a model where the worker reads it."""
        at = 0
        for array in arrays:
            at = _write(self._shared, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, at)

    def ask(self, round_number: int) -> None:
        """Asks for the next row of a round. The socket takes so few bytes whether the worker reads them or not."""
        self._channel.settimeout(_INTERVAL)
        self._channel.sendall(b"%d\n" % round_number)

    def has_row(self, until: float) -> bool:
        """Returns True where a row is there, False where training has given its last; waits until then."""
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(min(left, _INTERVAL))
            try:
                part = self._channel.recv(_LONGEST_LINE)
            except TimeoutError:
                if self.has_died():
                    raise EOFError("it ended") from None
                continue
            line += part
            if not part:
                raise EOFError("it ended, or closed its connection")
            if len(line) > _LONGEST_LINE:
                raise ValueError("it sends what is no answer")
        match msgspec.json.decode(line, type=list[str]):
            case ["row"]:
                return True
            case ["end"]:
                return False
            case ["failed", reason, report]:
                raise TrainingFailedError("training.failed", reason=in_one_line(reason), report=report)
        raise ValueError("it sends what is no answer")

    def row(self) -> FloatArray:
        """Returns a copy of the row that is there."""
        found = np.empty(self.setup.parameters)
        left, at = found.data.cast("B"), self.setup.model_size
        while left:
            count = os.preadv(self._shared, [left], at)
            if not count:
                raise ValueError("it gave no whole row")
            left, at = left[count:], at + count
        return found

    def has_died(self) -> bool:
        """Returns whether the process has ended."""
        return self._process.poll() is not None

    def end(self) -> int | None:
        """Kills the process and its group, and returns the code of one that had ended by itself."""
        code = self._process.poll()
        if code is None:  # an end that is on its way, such as by a signal, closes the socket first
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_INTERVAL)
        self.end_all()
        return code


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kills a worker with all processes of its group, whether it has ended or not."""
    if os.getpid() != owner:  # a child that the silo's process forked, and that ends: the worker is not its own
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LONGEST_END)


def _end_watcher(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends the process that waits for the end of the silo, before its pipe is closed: `_kill` ends the worker."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _fill_standard_files(handed: contextlib.ExitStack) -> None:
    """Opens what is closed of this process's standard files, until the worker runs.

    A service may start with any of the three closed. A file of the worker's that took such a place would be lost.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
        handed.callback(os.close, file)
    os.close(file)


def _anonymous_file() -> int:
    """Opens a file that has no name, in memory where the operating system has such: it goes with who holds it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fulcrum-training")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, data: bytes | memoryview, at: int = 0) -> int:
    """Writes at a place of a file, and returns the place after it."""
    left = memoryview(data)
    while left:
        count = os.pwrite(file, left, at)
        left, at = left[count:], at + count
    return at
