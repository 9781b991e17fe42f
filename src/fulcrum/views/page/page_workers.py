"""The worker processes of the page: a deadline for every question, and an end to work without a reader.

`Workers.answer` blocks. The function `left` returns True once the browser has left:

    reply = workers.answer(job, left)
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import IO, cast

from fulcrum.views.page.page_work import Job, Reply
from fulcrum.views.page.page_worker import read_message, write_message

DEADLINE = 60.0
"""Seconds for a question."""

_GRACE = 1.0
"""Seconds of work for a browser that has left. A moving slider leaves many short questions behind, and starting a new
process takes longer than finishing them."""

_LONGEST_START = 60.0
"""Seconds for the start of a process, beside the deadline of the question."""

_INTERVAL = 0.05


class Workers:
    """Worker processes, started on demand and used again. A late or abandoned question ends together with the process.

    Args:
        deadline: Seconds for a question.
    """

    def __init__(self, *, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        weakref.finalize(self, _end_all, self._all)  # no process outlives the page's server

    def prepare(self) -> None:
        """Starts a process, unless a process runs."""
        with self._lock:
            if not self._all:
                self._idle.append(self._start())

    def answer(self, job: Job, left: Callable[[], bool] = lambda: False) -> Reply:
        """Returns the reply to a job.

        Args:
            job: The work.
            left: Returns True once the browser has left.
        """
        if left():
            return _refuse_abandoned()
        with self._lock:
            worker = self._idle.pop() if self._idle else self._start()
        try:
            return worker.answer(job, left)
        finally:
            with self._lock:
                if worker.is_ready:
                    self._idle.append(worker)
                else:
                    self._all.discard(worker)
                    worker.end()

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            _end_all(self._all)
            self._idle.clear()

    def _start(self) -> "_Worker":
        worker = _Worker(self._deadline)
        self._all.add(worker)
        return worker


class _Worker:
    """A process, and a thread for the replies.

    Attributes:
        is_ready: True while the process can take a question.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline, self.is_ready, self._has_begun = deadline, True, False
        self._maker = os.getpid()
        # -P: a file in the current folder with the name of a module would otherwise be run as the module.
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, "-P", "-m", "fulcrum.views.page.page_worker", str(deadline)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the page's server
        )
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        threading.Thread(target=self._take, daemon=True).start()

    def answer(self, job: Job, left: Callable[[], bool]) -> Reply:
        """Returns the reply to a job, or a refusal after the deadline. The process is of no more use then."""
        self.is_ready = False
        try:
            if not self._has_begun and self._replies.get(timeout=_LONGEST_START) is None:
                return _refuse_ended()
            write_message(cast(IO[bytes], self._process.stdin), job)
        except (queue.Empty, OSError):
            return _refuse_ended()
        self._has_begun, begun = True, time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                reply = self._replies.get(timeout=_INTERVAL)
                self.is_ready = reply is not None
                return _refuse_ended() if reply is None else reply
            seconds = time.monotonic() - begun
            if seconds > self._deadline:
                return _refuse_late(self._deadline)
            if seconds > _GRACE and left():
                return _refuse_abandoned()

    def end(self) -> None:
        """Ends the process; does nothing in a forked child.

        The process is the parent's, and a child would wait for ever for a lock that a thread of the parent held.
        """
        if os.getpid() != self._maker:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):  # a broken pipe has no reader
                cast(IO[bytes], stream).close()

    def _take(self) -> None:
        """Takes replies until the process ends."""
        with contextlib.suppress(OSError, ValueError):
            while (reply := read_message(cast(IO[bytes], self._process.stdout), Reply)) is not None:
                self._replies.put(reply)
        self._replies.put(None)


def _refuse_late(deadline: float) -> Reply:
    reason = f"this takes longer than the {deadline:g} s that the page gives a question. Use: fulcrum plan"
    return Reply.refusal(503, reason)


def _refuse_abandoned() -> Reply:
    return Reply.refusal(400, "nobody waits for this")


def _refuse_ended() -> Reply:
    return Reply.refusal(503, "the process that worked on this ended. Ask again, or use: fulcrum plan")


def _end_all(workers: set[_Worker]) -> None:
    while workers:
        workers.pop().end()
