"""The processes that work for the page: how many, how long each may take, and who still waits for it.

workers = Workers()
reply = workers.answer(job, left)      # blocks; `left` says whether whoever asked has gone
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

from fulcrum.views.page_work import Job, Reply
from fulcrum.views.page_worker import read_message, write_message

DEADLINE = 60.0
"""Seconds that a question may take."""

_GRACE = 1.0
"""Seconds of work that nobody waits for any more. A slider that moves on leaves many short questions behind, and to
start another process takes longer than to end them."""

_LONGEST_START = 60.0
"""Seconds that a process may take until it is ready, which a question waits for beside its own time."""

_INTERVAL = 0.05


class Workers:
    """Processes that answer questions, started when they are needed and used again.

    A question that is late, or that nobody waits for, is ended with its process.

    Args:
        deadline: Seconds that a question may take.
    """

    def __init__(self, *, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        weakref.finalize(self, _end_all, self._all)  # none outlives the page's server

    def prepare(self) -> None:
        """Starts a process, unless there is one."""
        with self._lock:
            if not self._all:
                self._idle.append(self._started())

    def answer(self, job: Job, left: Callable[[], bool] = lambda: False) -> Reply:
        """Returns the reply to a job.

        Args:
            job: The work.
            left: Says whether whoever asked has gone.
        """
        if left():
            return _unwanted()
        with self._lock:
            worker = self._idle.pop() if self._idle else self._started()
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

    def _started(self) -> "_Worker":
        worker = _Worker(self._deadline)
        self._all.add(worker)
        return worker


class _Worker:
    """One process, and a thread that takes its replies.

    Attributes:
        is_ready: Whether it can take another question.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline, self.is_ready, self._has_begun = deadline, True, False
        # Not from the folder that the page was started in, where a file named as a module would be run as one (-P).
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
            [sys.executable, "-P", "-m", "fulcrum.views.page_worker", str(deadline)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the page's server
        )
        self._replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        threading.Thread(target=self._take, daemon=True).start()

    def answer(self, job: Job, left: Callable[[], bool]) -> Reply:
        """Returns the reply to a job, or a refusal where there is none in time; the process is of no use then."""
        self.is_ready = False
        try:
            if not self._has_begun and self._replies.get(timeout=_LONGEST_START) is None:
                return _lost()
            write_message(cast(IO[bytes], self._process.stdin), job)
        except (queue.Empty, OSError):
            return _lost()
        self._has_begun, begun = True, time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                reply = self._replies.get(timeout=_INTERVAL)
                self.is_ready = reply is not None
                return _lost() if reply is None else reply
            seconds = time.monotonic() - begun
            if seconds > self._deadline:
                return _late(self._deadline)
            if seconds > _GRACE and left():
                return _unwanted()

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):  # what was not sent has nobody to go to
                cast(IO[bytes], stream).close()

    def _take(self) -> None:
        """Takes replies until the process ends."""
        with contextlib.suppress(OSError, ValueError):
            while (reply := read_message(cast(IO[bytes], self._process.stdout), Reply)) is not None:
                self._replies.put(reply)
        self._replies.put(None)


def _late(deadline: float) -> Reply:
    reason = f"this takes longer than the {deadline:g} s that the page gives a question. Use: fulcrum plan"
    return Reply.refusal(503, reason)


def _unwanted() -> Reply:
    return Reply.refusal(400, "nobody waits for this")


def _lost() -> Reply:
    return Reply.refusal(503, "the process that worked on this ended. Ask again, or use: fulcrum plan")


def _end_all(workers: set[_Worker]) -> None:
    while workers:
        workers.pop().end()
