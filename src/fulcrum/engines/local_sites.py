"""All sites of a deployment on one machine, whatever the engine: started, watched, and none left behind.

An engine says how the process of one site is started, and by what mark its processes are found.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fulcrum.core.store.database import ClosedAtTheEnd
from fulcrum.engines.site_folders import Deployment
from fulcrum.errors import EngineError
from fulcrum.server.run_results import RoundResult

CALM = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""The environment of processes of which twenty share a machine."""

_PROCESSES = Path("/proc")
_LONGEST_END, _INTERVAL = 30.0, 0.02  # seconds


class LocalSites(ClosedAtTheEnd):
    """The processes of a deployment on this machine, none of which outlives the `with`.

    Args:
        kits: The folder of all kits.
        deployment: What the kits were made from.
        names: The sites, in the order in which they are ended.
    """

    def __init__(self, kits: Path, deployment: Deployment, names: Sequence[str]) -> None:
        self.kits, self.deployment, self._names = kits.resolve(), deployment, names
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def command(self, name: str) -> list[str]:
        """Returns the command that starts a site."""

    def environment(self, name: str) -> dict[str, str]:  # noqa: ARG002 a subclass may need the name
        """Returns what the environment of a site has beyond that of this process."""
        return {}

    @abstractmethod
    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site, those among them that the engine started for it."""

    def start(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts a site."""
        kit = self.kits / name
        with (kit / "output.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 our own command, names checked by the kits
                self.command(name),
                cwd=kit,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.full_environment(name) | dict(environment or {}),
            )

    def full_environment(self, name: str) -> dict[str, str]:
        """Returns the environment of a site: that of this process, calmed, and what the engine adds."""
        return os.environ | CALM | {"PYTHONPATH": import_path()} | self.environment(name)

    def check(self) -> None:
        """Raises `EngineError` if the process of a site has ended by itself; its log is in its kit."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self.kits / name / "output.log"
                raise EngineError("engine.site-ended", site=name, exit_code=process.returncode, log=log)

    def kill(self, name: str) -> None:
        """Kills a site: its own process, and those that the engine started for it."""
        process = self._processes.pop(name, None)
        end_all(lambda: self.processes_of(name))
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Ends every process of every site; twice, since one may have been about to start another."""
        for _ in range(2):
            for name in self._names:
                self.kill(name)


class RoundWatch:
    """The moments at which rounds ended, and the end of patience with a federation that finishes none.

    Args:
        kits: The folder whose logs say why no round is finished.
        on_round: Told what became of each round.
        stall: Seconds without a finished round after which it is given up.
    """

    def __init__(self, kits: Path, *, on_round: Callable[[RoundResult], None], stall: float) -> None:
        self._kits, self._on_round, self._stall = kits, on_round, stall
        self._moments = [time.monotonic()]

    def hear(self, result: RoundResult) -> None:
        """Tells of a round that has ended."""
        self._moments.append(time.monotonic())
        self._on_round(result)

    def check(self) -> None:
        """Raises `EngineError` where no round was finished for too long."""
        if time.monotonic() - self._moments[-1] > self._stall:
            raise EngineError("engine.rounds-stalled", seconds=self._stall, kits=self._kits)

    @property
    def seconds(self) -> float:
        """From the end of the first round to that of the last."""
        return self._moments[-1] - self._moments[min(1, len(self._moments) - 1)]


def free_port(*, following: int = 0) -> int:
    """Returns a port of this machine that is free, with as many free ports after it."""
    while True:
        with contextlib.ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in range(1 + following)]
            sockets[0].bind(("", 0))
            port = int(sockets[0].getsockname()[1])
            try:
                for offset, other in enumerate(sockets[1:], start=1):
                    other.bind(("", port + offset))
            except (OSError, OverflowError):
                continue
            return port


def import_path() -> str:
    """What sites find modules on: the current folder first, as here."""
    return os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def processes(file: str, wanted: bytes) -> list[int]:
    """Returns the processes that have `wanted` among the entries of their "cmdline" or "environ"."""
    if not _PROCESSES.is_dir():
        raise EngineError("engine.needs-linux")
    found = []
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / file).read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


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
