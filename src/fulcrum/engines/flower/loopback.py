"""All sites of a Flower federation on one machine: started, watched, and stopped without one left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fulcrum.engines.flower.sites import silos_of
from fulcrum.engines.processes import CALM, ending_on_signals, import_path, processes
from fulcrum.engines.sites import Deployment
from fulcrum.errors import EngineError, MissingExtraError, in_one_line
from fulcrum.planning.deployable import SERVER
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_reading import read_plan
from fulcrum.roles.checkpoint import NAME, RoundSummary, read_checkpoint
from fulcrum.roles.server import Coordinator
from fulcrum.storage.database import ClosedAtTheEnd

MARK = "FULCRUM_KIT"
"""The environment variable by which the processes of a kit are known, those that Flower starts among them."""

_LONGEST_START = 120.0
_INTERVAL = 0.5


class Loopback(ClosedAtTheEnd):
    """The processes of a deployment on this machine, none of which outlives the `with`."""

    def __init__(self, kits: Path, deployment: Deployment) -> None:
        self._kits, self._deployment = kits.resolve(), deployment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        if not (Path(sys.executable).parent / "flower-superlink").exists():
            raise MissingExtraError("Flower is not installed. Run: pip install 'fulcrum-dp[flower]'")

    def start(self, name: str) -> None:
        """Starts one site, by the script that its operator has."""
        kit = self._kits / name
        settings = {"HOST": "127.0.0.1"} if name == SERVER else {"RUNTIME_PORT": str(free_port())}
        with (kit / "output.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 our own script, names checked by the kits
                ["bash", str(kit / "start.sh")],  # noqa: S607
                cwd=kit,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment(name, settings),
            )

    def start_all(self) -> None:
        """Starts the server, tells it the silos' nodes, and starts those."""
        self.start(SERVER)
        self.wait_for_server()
        self.run_script("register.sh")
        for name in silos_of(self._deployment):
            self.start(name)

    def wait_for_server(self) -> None:
        """Waits until the server listens."""
        deadline = time.monotonic() + _LONGEST_START
        while True:
            self.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._deployment.port), 1.0):
                return
            if time.monotonic() > deadline:
                raise EngineError(f"the server does not listen. See {self._kits / SERVER / 'output.log'}")
            time.sleep(_INTERVAL)

    def run_script(self, name: str, *arguments: str) -> str:
        """Runs a script of whoever runs the plan, and returns what it says."""
        done = subprocess.run(  # noqa: S603 our own script
            ["bash", str(self._kits / name), *arguments],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST_START,
            env=self._environment("", {}),
        )
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines() or ["nothing was said"]
            raise EngineError(f"{self._kits / name} failed: {in_one_line(told[-1])}")
        return done.stdout

    def check(self) -> None:
        """Raises `EngineError` if a site's process has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self._kits / name / "output.log"
                raise EngineError(f"the process of {name!r} ended with code {process.returncode}. See {log}")

    def kill(self, name: str) -> None:
        """Kills a site: its own process, and those that Flower started for it."""
        process = self._processes.pop(name, None)
        for pid in self.processes_of(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process is not None:
            process.wait()

    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site."""
        wanted = f"{MARK}={self._kits / name}".encode()
        return processes("environ", wanted)

    def close(self) -> None:
        """Ends every process of every site; twice, since one may have been about to start another."""
        for _ in range(2):
            for name in ("", SERVER, *silos_of(self._deployment)):
                self.kill(name)

    def _environment(self, name: str, settings: Mapping[str, str]) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        marks = {MARK: str(self._kits / name), "PATH": path, "PYTHONPATH": import_path()}
        return {**os.environ, **CALM, **marks, **settings}


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
    checkpoint = kits / SERVER / "state"
    told: list[RoundSummary] = []
    moments = [time.monotonic()]
    with Loopback(kits, deployment) as sites, ending_on_signals():
        sites.start_all()
        sites.run_script("run.sh")
        while len(told) < plan.rounds:
            time.sleep(_INTERVAL)
            sites.check()
            for summary in history_of(checkpoint, plan)[len(told) :]:
                told.append(summary)
                moments.append(time.monotonic())
                on_round(summary)
            if time.monotonic() - moments[-1] > stall:
                raise EngineError(f"no round was finished for {stall:g} s. The logs are in {kits}/*/output.log")
    model = Coordinator.read(checkpoint, plan).model
    return {"history": told, "model": model, "seconds": moments[-1] - moments[min(1, len(moments) - 1)]}


def history_of(state: Path, plan: Plan) -> tuple[RoundSummary, ...]:
    """Returns what became of the rounds that are over, by the server's checkpoint."""
    return tuple(read_checkpoint(state, plan).standing.history) if (state / NAME).exists() else ()


def free_port() -> int:
    """Returns a port of this machine that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
