"""All sites of a deployment on one machine: started, watched, and stopped without a process left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fulcrum.engines.nvflare.common import FOLDER
from fulcrum.engines.nvflare.console import follow
from fulcrum.engines.nvflare.kits import SERVER, Deployment
from fulcrum.errors import EngineError
from fulcrum.planning.plan_reading import read_plan
from fulcrum.roles.checkpoint import RoundSummary, read_history
from fulcrum.roles.server import Coordinator
from fulcrum.storage.database import ClosedAtTheEnd

_CLIENT = "nvflare.private.fed.app.client.client_train"
_SERVER = "nvflare.private.fed.app.server.server_train"
_PROCESSES = Path("/proc")
_CALM = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}  # twenty processes share this machine


class Loopback(ClosedAtTheEnd):
    """The processes of a deployment on this machine, none of which outlives the `with`."""

    def __init__(self, kits: Path, deployment: Deployment) -> None:
        self._kits = kits.resolve()
        self._deployment = deployment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, environment: dict[str, str] | None = None) -> None:
        """Starts one site."""
        kit = self._kits / name
        module, settings = (_SERVER, "fed_server.json") if name == SERVER else (_CLIENT, "fed_client.json")
        about = [
            "secure_train=true",
            "org=fulcrum",
            "config_folder=config",
            *([] if name == SERVER else [f"uid={name}"]),
        ]
        (kit / "transfer").mkdir(exist_ok=True)
        with (kit / "output.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603  (our own interpreter, names checked by the kits)
                [sys.executable, "-u", "-m", module, "-m", str(kit), "-s", settings, "--set", *about],
                cwd=kit,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | _CALM | {"PYTHONPATH": _import_path()} | (environment or {}),
            )

    def start_all(self, environment: dict[str, str] | None = None) -> None:
        """Starts the server, then everyone else."""
        for name in self._deployment.sites:
            self.start(name, environment)

    def check(self) -> None:
        """Raises `EngineError` if a site's process has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self._kits / name / "output.log"
                raise EngineError(f"the process of {name!r} ended with code {process.returncode}. See {log}")

    def kill(self, name: str) -> None:
        """Kills a site: its own process and its job processes."""
        for pid in processes_of(self._kits / name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process = self._processes.pop(name, None)
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Ends every process of every site."""
        for name in list(self._deployment.sites):
            self.kill(name)
        for name in self._deployment.sites:  # a launcher may have been about to start its job process again
            self.kill(name)


def _import_path() -> str:
    """What sites find modules on: the current folder first, as here."""
    return os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def processes_of(kit: Path) -> list[int]:
    """Returns the processes that work in a kit: those whose command line names it."""
    wanted = str(kit.resolve()).encode()
    found = []
    if not _PROCESSES.is_dir():
        raise EngineError("every site on one machine needs Linux: there is no /proc to find their processes by")
    for entry in _PROCESSES.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def run_here(
    deployment: Deployment, kits: Path, *, on_round: Callable[[RoundSummary], None], stall: float
) -> dict[str, Any]:
    """Starts every site of some kits here, runs the plan to its last round, and stops them all.

    Args:
        deployment: What the kits were made from.
        kits: As `write_kits` made them.
        on_round: Told what became of each round.
        stall: Seconds without a finished round after which it is given up.

    Returns:
        The history of rounds, the final model, and the seconds from first to last round.
    """
    plan = read_plan(kits / "plan.json")
    checkpoint = kits / SERVER / "local" / FOLDER / "state"
    told: list[RoundSummary] = []
    moments = [time.monotonic()]
    processes_of(kits)  # refused here where they could not be stopped
    with Loopback(kits, deployment) as sites, ending_on_signals():
        sites.start_all()

        def tick() -> None:
            sites.check()
            for summary in read_history(checkpoint, plan)[len(told) :]:
                told.append(summary)
                moments.append(time.monotonic())
                on_round(summary)
            if time.monotonic() - moments[-1] > stall:
                raise EngineError(f"no round was finished for {stall:g} s. The logs are in {kits}/*/output.log")

        follow(kits, tick=tick)
        tick()
    model = Coordinator.read(checkpoint, plan).model
    return {"history": told, "model": model, "seconds": moments[-1] - moments[min(1, len(moments) - 1)]}


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
