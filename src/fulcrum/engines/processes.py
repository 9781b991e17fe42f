"""What engines on one machine share: how their processes are started, found and ended."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fulcrum.errors import EngineError

CALM = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""The environment of processes of which twenty share a machine."""

_PROCESSES = Path("/proc")


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
