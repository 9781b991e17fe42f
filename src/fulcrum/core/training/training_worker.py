"""Training in a separate process: no act of training ends, fills or delays the process that releases.

    worker = TrainingWorker("their_training", seconds=96.0)
    update = worker.update(model, assignment)    # or TrainingFailedError, for every kind of failure

Training that hangs, exits or takes all memory in the silo's process would make the silo late or silent, and an observer
would learn about the silo's records from the silence. A separate process turns every failure into
`TrainingFailedError`, and the silo releases zero plus noise.

- The worker starts with the first training of a silo and serves all later rounds. A worker that died, or that was
  killed at the deadline, is replaced in the next round.
- The worker receives the name of the training module, the assignment and the model. The worker inherits three
  descriptors and a pipe for its output, all made here, and so holds no ledger, no key and no seal. A separate process
  (`fulcrum.core.training.worker_output`) passes the output on to the silo's stderr as far as stderr takes the output.
- The worker runs as the silo's own user: the process contains accidents, and is no wall against a hostile module.
- Model and rows travel in an anonymous file in memory, messages as lines over a socket. The silo copies a row with
  `pread`: a worker that shrinks the file, or writes on, damages no memory of the silo.
- The silo checks the size of a row, which the model fixes, and relies on no other check of the worker: the silo clips.
- Every question has a token of its own, which the answer repeats. Lines that training itself writes to the socket are
  no answers, and a worker with such a line is replaced.
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
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment, TrainingFailedError
from fulcrum.core.training.worker_output import unread_bytes
from fulcrum.errors import in_one_line

_COMMAND = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fulcrum.core.training.worker_process import serve
serve(*map(int, sys.argv[2:]))
"""

_WATCH = f"""
import os, sys
while os.read(0, 1): pass
for group, number in zip(map(int, sys.argv[1:]), ({int(signal.SIGKILL)}, {int(signal.SIGCONT)})):
    try: os.killpg(group, number)
    except OSError: pass  # ended before the silo: the other group still needs its signal
"""
"""Kills a worker's group when the silo's end of a pipe is closed, and lets the process for its output go on to its end.
A thread of the worker would not be enough: training may hold the interpreter's lock, or may be stopped. The watcher is
a separate process and imports nothing."""

_PASSING_ON = Path(__file__).with_name("worker_output.py")

_INTERVAL = 0.1
"""Seconds between two checks of a silent worker: children of a dead worker may hold the socket open."""

_BLOCK = 2**22
"""Bytes of rows that the worker hands over at once. The silo and the shared file hold one block, or one larger row."""

_LAST_WORDS = 1.0
"""Seconds until the output of a dead worker must have passed."""

_ROUND_WORDS = 0.5
"""Seconds until the output of a round must have passed; later output waits in the pipe for the next round."""

_LONGEST_LINE = 2**16
_LONGEST_END = 5.0
"""Seconds until a killed process must have ended; a process that the operating system holds is left behind."""


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """The start values of a worker; a new model or a new assignment needs a new worker."""

    assignment: Assignment
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    """The name, dtype and shape of every array of the model."""

    @property
    def parameters(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for _, _, shape in self.arrays)

    @property
    def rows_at_once(self) -> int:
        """The most rows of one answer; a single row for a silo, and as many as fit `_BLOCK` for persons."""
        within = self.assignment.plan.unit.is_within_silo
        return max(1, _BLOCK // (8 * max(1, self.parameters))) if within else 1

    @property
    def model_size(self) -> int:
        return sum(np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)) for _, dtype, shape in self.arrays)


class TrainingWorker:
    """Trains by a training module in a separate process.

    Args:
        module: The name of the training module, as Python imports the module.
        seconds: The deadline of a round, including the start of the process and the import of the module.
        gigabytes: The limit of the process's address space, in 2^30 bytes; 0 for the limit of the operating system.
    """

    def __init__(self, module: str, *, seconds: float, gigabytes: float = 0.0) -> None:
        self._module, self._seconds, self._memory = module, seconds, int(gigabytes * 2**30)
        self._running: _RunningWorker | None = None
        self._lock = threading.Lock()

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the change of the model by local training: the single row of a silo, less the model."""
        trained = self.train(model, assignment)
        with np.errstate(all="ignore"):  # the release handles values that are not finite, and hides them
            return {name: np.subtract(trained[name], array, out=trained[name]) for name, array in model.items()}

    def train(self, model: Mapping[str, np.ndarray[Any, Any]], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the model after local training, in double precision, under the model's names and shapes."""
        with contextlib.closing(self.rows(model, assignment)) as rows:
            first_rows = list(itertools.islice(rows, 2))
        if len(first_rows) != 1 or len(first_rows[0]) != 1:
            number = "more rows than one" if first_rows else "no row"
            raise TrainingFailedError("training.rows-number", rows=number)
        ends = np.cumsum([array.size for array in model.values()])[:-1]
        parts = zip(model.items(), np.split(first_rows[0][0], ends), strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in parts}

    def rows(self, model: Mapping[str, np.ndarray[Any, Any]], assignment: Assignment) -> Generator[FloatArray]:
        """Yields matrices of rows, a row for every unit of privacy: the trained model of a silo, or each person's step.

        The silo asks for the next rows after taking rows, so the silo holds a single block of rows at a time. The rows
        of a training that fails later have been yielded before: the caller must release none of them.

        Raises:
            TrainingFailedError: Training failed, died, gave an incomplete row, or ran past the deadline.
        """
        until = time.monotonic() + self._seconds
        arrays = tuple((name, array.dtype.str, array.shape) for name, array in model.items())
        setup = _Setup(assignment=replace(assignment, round_number=0), arrays=arrays)
        with self._lock, self._end_on_failure(), self._start(setup).at_work() as running:
            running.write_model(model.values())
            running.ask(assignment.round_number)
            while count := running.next_rows(until):
                yield running.rows(count)
                running.ask(assignment.round_number)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def _start(self, setup: _Setup) -> "_RunningWorker":
        """Returns the running worker, or a new worker for another model, after a death, or after an unasked line."""
        if self._running is not None and (self._running.setup != setup or not self._running.waits_for_questions()):
            self._end()
        if self._running is None:
            self._running = _RunningWorker(self._module, setup, self._memory)
        return self._running

    @contextlib.contextmanager
    def _end_on_failure(self) -> Iterator[None]:
        """Kills a worker after every failure except an exception of training: the state of such a worker is unknown."""
        try:
            yield
        except TrainingFailedError:
            raise
        except TimeoutError:
            self._end()
            raise TrainingFailedError("training.deadline-passed", seconds=self._seconds) from None
        except (OSError, EOFError, ValueError, MemoryError, msgspec.MsgspecError) as error:  # died, or no whole answer
            code = self._end()
            ending = "" if code is None else f" ({f'killed by signal {-code}' if code < 0 else f'exit code {code}'})"
            reason = in_one_line(error) or type(error).__name__
            raise TrainingFailedError("training.process-failed", ending=ending, reason=reason) from None
        except BaseException:
            self._end()
            raise

    def _end(self) -> int | None:
        """Kills the running process; returns the exit code if the process had ended before."""
        running, self._running = self._running, None
        return None if running is None else running.end()


class _RunningWorker:
    """A worker process, and the silo's ends of three connections to it.

    The socket carries requests and answers, and the shared file the model and rows of numbers. When the pipe closes, a
    watcher kills the worker.
    """

    def __init__(self, module: str, setup: _Setup, memory: int) -> None:
        self.setup = setup
        with contextlib.ExitStack() as handed, contextlib.ExitStack() as resources:
            _fill_standard_files(handed)
            self._channel, theirs = socket.socketpair()
            resources.callback(self._channel.close)
            handed.callback(theirs.close)
            self._shared = _anonymous_file()
            resources.callback(os.close, self._shared)
            os.truncate(self._shared, setup.model_size + 8 * setup.parameters * setup.rows_at_once)
            start = _anonymous_file()
            handed.callback(os.close, start)
            task = setup.assignment
            plan = task.plan.encoded, task.plan.issuer  # the worker verifies the plan again: no plan is unpickled
            _write(start, pickle.dumps((module, plan, task.silo, task.seed, task.options, setup.arrays, memory)))
            printed, output = os.pipe()
            handed.callback(os.close, printed)
            handed.callback(os.close, output)
            self._passing_on = subprocess.Popen(  # noqa: S603 this interpreter, by its own name
                [sys.executable, "-IS", str(_PASSING_ON)],
                stdin=printed,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            resources.callback(_end_passing_on, self._passing_on, os.getpid())
            self._output = os.dup(output)
            resources.callback(os.close, self._output)  # before the wait for the last words, which end with the pipe
            files = theirs.fileno(), self._shared, start
            self._process = subprocess.Popen(  # noqa: S603 this interpreter, by its own name
                [sys.executable, "-uPc", _COMMAND, json.dumps([str(place) for place in sys.path]), *map(str, files)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=files,
                start_new_session=True,  # a separate group, so that children of training are killed too
            )
            resources.callback(_kill, self._process, os.getpid())
            watch = [sys.executable, "-ISc", _WATCH, str(self._process.pid), str(self._passing_on.pid)]
            watcher = subprocess.Popen(  # noqa: S603 as above
                watch,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            resources.callback(_end_watcher, watcher, os.getpid())
            self.end_all = weakref.finalize(self, resources.pop_all().close)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Self]:
        """Lets the process run inside `with`, and suspends (SIGSTOP) the process and its children at the end.

        The suspended processes wait for the next round. A thread or child that training left running could otherwise
        fill the memory or the disk that the release needs. The process for the output is suspended too, after the
        output of the round has passed: a log on the same disk would grow during the release.
        """
        with contextlib.suppress(ProcessLookupError):  # killed meanwhile: training then fails by itself
            os.killpg(self._passing_on.pid, signal.SIGCONT)
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield self
        finally:
            _suspend(self._process)
            until = time.monotonic() + _ROUND_WORDS
            with contextlib.suppress(OSError):  # a system that counts the bytes of a pipe at its other end alone
                while unread_bytes(self._output) and time.monotonic() < until:
                    time.sleep(_INTERVAL / 100)
            _suspend(self._passing_on)

    def write_model(self, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
        """Writes a model to the shared file."""
        at = 0
        for array in arrays:
            at = _write(self._shared, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, at)

    def ask(self, round_number: int) -> None:
        """Asks for the next row of a round; the socket buffers so few bytes even if the worker reads none."""
        self._token = os.urandom(8).hex()
        self._channel.settimeout(_INTERVAL)
        self._channel.sendall(f"{round_number} {self._token}\n".encode())

    def next_rows(self, until: float) -> int:
        """Waits for an answer; returns the number of rows in the shared file, 0 after the last row.

        `until` is the end of the wait by the clock `time.monotonic`; a later answer raises `TimeoutError`.
        """
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
        token, *answer = msgspec.json.decode(line, type=list[str])
        if token != self._token:
            raise ValueError("it sends what answers no question")
        match answer:
            case ["rows", count] if count.isascii() and count.isdigit() and 1 <= int(count) <= self.setup.rows_at_once:
                return int(count)
            case ["end"]:
                return 0
            case ["failed", reason, report]:
                raise TrainingFailedError("training.failed", reason=in_one_line(reason), report=report)
        raise ValueError("it sends what is no answer")

    def rows(self, count: int) -> FloatArray:
        """Returns a copy of the rows in the shared file."""
        rows = np.empty((count, self.setup.parameters))
        left, at = rows.reshape(-1).data.cast("B"), self.setup.model_size
        while left:
            read = os.preadv(self._shared, [left], at)
            if not read:
                raise ValueError("it gave no whole row")
            left, at = left[read:], at + read
        return rows

    def waits_for_questions(self) -> bool:
        """Returns True if both processes live, and no line of training itself stands in the place of an answer."""
        self._channel.settimeout(0)
        with contextlib.suppress(OSError):  # nothing to read, as after every answer that was asked for
            self._channel.recv(1, socket.MSG_PEEK)
            return False
        return not self.has_died() and self._passing_on.poll() is None  # without a reader, training that prints fails

    def has_died(self) -> bool:
        """Returns True if the process has ended."""
        return self._process.poll() is not None

    def end(self) -> int | None:
        """Kills the process and its group; returns the exit code if the process had ended before."""
        code = self._process.poll()
        if code is None:  # a dying process closes the socket before the exit code is there
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_INTERVAL)
        self.end_all()
        return code


def _suspend(process: subprocess.Popen[bytes]) -> None:
    """Stops a process and its group, and waits for the stop: a write to disk goes on for a moment after the signal."""
    with contextlib.suppress(OSError):  # the process has ended
        os.killpg(process.pid, signal.SIGSTOP)
        if not hasattr(os, "waitid"):
            return
        until = time.monotonic() + _LONGEST_END
        states = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, process.pid, states) is None and time.monotonic() < until:
            time.sleep(_INTERVAL / 100)


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kills all processes of a worker's group, also after the end of the worker itself."""
    if os.getpid() != owner:  # a child that the silo's process forked: the worker belongs to the parent
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_LONGEST_END)


def _end_passing_on(process: subprocess.Popen[bytes], owner: int) -> None:
    """Lets the last words of a dead worker pass, and ends the process; a child that escaped may hold the pipe open."""
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LAST_WORDS)
        process.kill()
        process.wait()


def _end_watcher(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends the watcher before the pipe is closed; `_kill` then ends the worker."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _fill_standard_files(handed: contextlib.ExitStack) -> None:
    """Opens the closed standard files of this process until the worker runs.

    A service may start with any of the three standard files closed. A descriptor for the worker with the number 0, 1 or
    2 would be replaced by a standard file of the worker.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
        handed.callback(os.close, file)
    os.close(file)


def _anonymous_file() -> int:
    """Opens a file without a name, in memory if the system can; the file vanishes with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fulcrum-training")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, data: bytes | memoryview, at: int = 0) -> int:
    """Writes data at an offset of a file; returns the offset after the data."""
    left = memoryview(data)
    while left:
        count = os.pwrite(file, left, at)
        left, at = left[count:], at + count
    return at
