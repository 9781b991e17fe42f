"""Starts, watches and ends all sites of a deployment on one machine, for every engine.

An engine supplies the command that starts a site, and the mark by which the processes of a site are recognised.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fulcrum.core.store.database import ClosedAtTheEnd
from fulcrum.engines.site_folders import Deployment
from fulcrum.errors import EngineError
from fulcrum.server.run_results import RoundResult

CALM = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
"""Few threads and little memory for every process: twenty processes share a machine."""

_PROCESSES = Path("/proc")
_LONGEST_END, _INTERVAL = 30.0, 0.02  # seconds
_LONGEST_START, _PORT_INTERVAL = 120.0, 0.1


class LocalSites(ClosedAtTheEnd):
    """The processes of a deployment on this machine. No process outlives the `with`.

    Args:
        kits: The folder of all kits.
        deployment: The deployment that the kits were made from.
        names: The sites.
    """

    def __init__(self, kits: Path, deployment: Deployment, names: Sequence[str]) -> None:
        self.kits, self.deployment, self._names = kits.resolve(), deployment, names
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @abstractmethod
    def command(self, name: str) -> list[str]:
        """Returns the command that starts a site."""

    def environment(self, name: str) -> dict[str, str]:  # noqa: ARG002 a subclass may need the name
        """Returns the variables that a site's environment has in addition to the environment of this process."""
        return {}

    @abstractmethod
    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site, including the processes that the engine started for the site."""

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
        """Returns the environment of a site: this process's own, few threads, and the additions of the engine."""
        return os.environ | CALM | {"PYTHONPATH": import_path()} | self.environment(name)

    def check(self) -> None:
        """Raises `EngineError` if the process of a site has ended by itself; the message names the log."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self.kits / name / "output.log"
                raise EngineError("engine.site-ended", site=name, exit_code=process.returncode, log=log)

    def kill(self, name: str) -> None:
        """Kills a site: the site's own process, and all processes that Flower or NVIDIA FLARE started for the site."""
        process = self._processes.pop(name, None)
        end_all(lambda: self.processes_of(name))
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Ends every process of every site, twice: a process may have been about to start a child the first time.

        All sites are killed before any is waited for: a killed process takes a while to return its memory.
        """
        for _ in range(2):
            end_all(lambda: [process for name in self._names for process in self.processes_of(name)])
        while self._processes:
            self._processes.popitem()[1].wait()


class RoundWatch:
    """Records the moments at which rounds ended, and raises an error when no round ends for too long.

    Args:
        kits: The folder whose logs explain why no round is finished.
        on_round: Called with the result of every round.
        stall: Seconds without a finished round after which the run is given up.
    """

    def __init__(self, kits: Path, *, on_round: Callable[[RoundResult], None], stall: float) -> None:
        self._kits, self._on_round, self._stall = kits, on_round, stall
        self._moments = [time.monotonic()]

    def hear(self, result: RoundResult) -> None:
        """Records the end of a round, and passes the result on."""
        self._moments.append(time.monotonic())
        self._on_round(result)

    def check(self) -> None:
        """Raises `EngineError` if no round was finished for `stall` seconds."""
        if time.monotonic() - self._moments[-1] > self._stall:
            raise EngineError("engine.rounds-stalled", seconds=self._stall, kits=self._kits)

    @property
    def seconds(self) -> float:
        """Seconds from the end of the first round to the end of the last."""
        return self._moments[-1] - self._moments[min(1, len(self._moments) - 1)]


def free_port(*, following: int = 0) -> int:
    """Returns a free port of this machine that is followed by `following` free ports."""
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


def wait_for_ports(ports: Iterable[int], check: Callable[[], None], log: Path) -> None:
    """Waits until processes listen on ports of this machine.

    Args:
        ports: The ports.
        check: Raises an error if a process has ended.
        log: The log that explains a process that never listens.
    """
    deadline = time.monotonic() + _LONGEST_START
    while not all(map(_listens, ports)):
        check()
        if time.monotonic() > deadline:
            raise EngineError("engine.server-silent", log=log)
        time.sleep(_PORT_INTERVAL)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False


def import_path() -> str:
    """Returns the folders in which sites look for modules: the current folder first, as in this process."""
    return os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def processes(file: str, wanted: bytes) -> list[int]:
    """Returns the processes that have `wanted` among the entries of their "cmdline" or "environ"."""
    if not _PROCESSES.is_dir():
        raise EngineError("engine.needs-linux")
    matches = []
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / file).read_bytes().split(b"\0"):
                    matches.append(int(entry.name))
    return matches


def end_all(list_processes: Callable[[], list[int]]) -> None:
    """Kills processes, and returns when they have ended: a process that is ending still accepts connections.

    The kernel erases the command line and the environment of a process before closing the ports. Killed processes are
    therefore watched by number.

    Args:
        list_processes: Returns the processes that are still to be killed.
    """
    deadline, ending = time.monotonic() + _LONGEST_END, set[int]()
    while True:
        left = list_processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ending = {pid for pid in ending | set(left) if _runs(pid)}
        if not ending or time.monotonic() > deadline:
            return
        time.sleep(_INTERVAL)


def _runs(pid: int) -> bool:
    """Returns True while a process holds any resource.

    A process whose threads have all ended holds nothing, even while the parent has not collected the exit code.
    """
    try:
        threads = [(thread / "stat").read_text() for thread in (_PROCESSES / str(pid) / "task").iterdir()]
    except OSError:  # a thread, or the process, just ended: the next look decides
        return (_PROCESSES / str(pid)).exists()
    return any(stat.rpartition(")")[2].split()[0] not in ("Z", "X") for stat in threads)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Turns a request to end into an exception, so that the starter of processes can stop them.

    Enter this context before the processes: a second request, which `timeout` and service managers send to a whole
    group, is ignored while the processes are being stopped.
    """

    def end(number: int, _: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt(f"signal {number}")

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
