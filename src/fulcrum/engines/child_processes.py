"""What engines on one machine share: how their processes are started, found and ended."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fulcrum.errors import EngineError

CALM = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""The environment of processes of which twenty share a machine."""

_PROCESSES = Path("/proc")
_LONGEST_END, _INTERVAL = 30.0, 0.02  # seconds


def import_path() -> str:
    """What sites find modules on: the current folder first, as here."""
    return os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def processes(file: str, wanted: bytes) -> list[int]:
    """Returns the processes that have `wanted` among the entries of their "cmdline" or "environ"."""
    if not _PROCESSES.is_dir():
        raise EngineError("every site on one machine needs Linux: there is no /proc to find their processes by")
    found = []
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / file).read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def check_running(started: Mapping[str, subprocess.Popen[bytes]], kits: Path) -> None:
    """Raises `EngineError` if the process of a site has ended by itself; its log is in its kit."""
    for name, process in started.items():
        if process.poll() is not None:
            log = kits / name / "output.log"
            raise EngineError(f"the process of {name!r} ended with code {process.returncode}. See {log}")


def end_all(found: Callable[[], list[int]]) -> None:
    """Kills processes, and returns when they have ended: until then their ports still take connections.

    What a process was started with is gone before its ports are, so those that were killed are watched by their number.
    """
    deadline, ending = time.monotonic() + _LONGEST_END, set[int]()
    while True:
        left = found()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ending = {pid for pid in ending | set(left) if _runs(pid)}
        if not ending or time.monotonic() > deadline:
            return
        time.sleep(_INTERVAL)


def _runs(pid: int) -> bool:
    """Whether a process still holds anything: one whose threads have all ended, and that nobody asked how, does not."""
    try:
        threads = [(thread / "stat").read_text() for thread in (_PROCESSES / str(pid) / "task").iterdir()]
    except OSError:  # one of them, or all, just went: seen again if it was not the last
        return (_PROCESSES / str(pid)).exists()
    return any(told.rpartition(")")[2].split()[0] not in ("Z", "X") for told in threads)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turns a request to end into an exception, so that whoever started processes can stop them."""

    def end(number: int, _: Any) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
