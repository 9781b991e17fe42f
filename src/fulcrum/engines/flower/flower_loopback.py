"""All sites of a Flower federation on one machine: started, watched, and stopped without one left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fulcrum.core.silo.site import Site, read_site
from fulcrum.core.store.database import ClosedAtTheEnd
from fulcrum.engines.child_processes import CALM, check_running, end_all, ending_on_signals, import_path, processes
from fulcrum.engines.flower.flower_sites import silos_of
from fulcrum.engines.flower.run_recorder import local_run, run_of
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.errors import EngineError, MissingExtraError, in_one_line
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.run_results import RoundResult

MARK = "FULCRUM_KIT"
"""The environment variable by which the processes of a kit are known, those that Flower starts among them."""

_LONGEST_START = 120.0
_LONGEST_FOR_A_SILO = 60.0  # Flower starts a process to register each
_INTERVAL = 0.5


class Loopback(ClosedAtTheEnd):
    """The processes of a deployment on this machine, none of which outlives the `with`."""

    def __init__(self, kits: Path, deployment: Deployment) -> None:
        self._kits, self._deployment = kits.resolve(), deployment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._control = free_port()  # where runs are submitted, on this machine alone
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
        """Waits until the server listens, for SuperNodes and for runs."""
        deadline = time.monotonic() + _LONGEST_START
        while not all(map(_listens, (self._deployment.port, self._control))):
            self.check()
            if time.monotonic() > deadline:
                raise EngineError(f"the server does not listen. See {self._kits / SERVER / 'output.log'}")
            time.sleep(_INTERVAL)

    def run_script(self, name: str, *arguments: str) -> str:
        """Runs a script of whoever runs the plan, and returns what it says."""
        limit = _LONGEST_START + _LONGEST_FOR_A_SILO * len(silos_of(self._deployment))
        try:
            done = subprocess.run(  # noqa: S603 our own script
                ["bash", str(self._kits / name), *arguments],  # noqa: S607
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
                env=self._environment("", {}),
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self._kits / name} did not end within {limit:g} s") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).splitlines()
            told = [line.strip(" │") for line in lines if any(map(str.isalnum, line))]  # Flower draws frames
            raise EngineError(f"{self._kits / name} failed: {in_one_line(told[-1] if told else 'nothing was said')}")
        return done.stdout

    def check(self) -> None:
        """Raises `EngineError` if a site's process has ended by itself."""
        check_running(self._processes, self._kits)

    def kill(self, name: str) -> None:
        """Kills a site: its own process, and those that Flower started for it."""
        process = self._processes.pop(name, None)
        end_all(lambda: self.processes_of(name))
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
        return {**os.environ, **CALM, **marks, "CONTROL_PORT": str(self._control), **settings}


def run_here(deployment: Deployment, kits: Path, *, on_round: Callable[[RoundResult], None], stall: float) -> LocalRun:
    """Starts every site of some kits here, runs the plan to its last round, and stops them all.

    Args:
        deployment: What the kits were made from.
        kits: As `write_kits` made them.
        on_round: Told what became of each round, and what the server measured after it.
        stall: Seconds without a finished round after which it is given up.
    """
    plan = read_plan(kits / "plan.json")
    server = read_site(kits / SERVER, "server")
    told: list[RoundResult] = []
    moments = [time.monotonic()]
    with Loopback(kits, deployment) as sites, ending_on_signals():
        sites.start_all()
        sites.run_script("run.sh")
        while len(told) < plan.rounds:
            time.sleep(_INTERVAL)
            sites.check()
            for found in _rounds_told(server)[len(told) :]:
                told.append(found)
                moments.append(time.monotonic())
                on_round(found)
            if time.monotonic() - moments[-1] > stall:
                raise EngineError(f"no round was finished for {stall:g} s. The logs are in {kits}/*/output.log")
    return local_run(server, moments[-1] - moments[min(1, len(moments) - 1)])


def _rounds_told(server: Site) -> list[RoundResult]:
    """Returns what the server tells of the rounds that are over, once it has measured the model after them."""
    run = run_of(server)
    return [] if run is None else run.rounds


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Returns a port of this machine that is free."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
