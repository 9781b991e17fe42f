"""All sites of a Flower federation on one machine, started by the scripts that operators run."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fulcrum.core.silo.site import read_site
from fulcrum.engines.flower.kits.flower_sites import silos_of
from fulcrum.engines.flower.server_side.run_recorder import local_run, run_of
from fulcrum.engines.local_sites import LocalSites, RoundWatch, ending_on_signals, free_port, processes
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.errors import EngineError, MissingExtraError, in_one_line
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.run_results import RoundResult

MARK = "FULCRUM_KIT"
"""The environment variable that marks the processes of a kit. Processes that Flower starts inherit the mark."""

_LONGEST_START = 120.0
_LONGEST_FOR_A_SILO = 60.0  # Flower starts a process to register a silo
_INTERVAL = 0.5


class FlowerSites(LocalSites):
    """The processes of Flower on this machine: SuperLink, SuperNodes, and the scripts of the operator of the run."""

    def __init__(self, kits: Path, deployment: Deployment) -> None:
        super().__init__(kits, deployment, ["", SERVER, *silos_of(deployment)])
        self._control = free_port()  # where runs are submitted, on this machine alone
        if not (Path(sys.executable).parent / "flower-superlink").exists():
            raise MissingExtraError("engine.not-installed", package="Flower", extra="flower")

    def command(self, name: str) -> list[str]:
        """Returns the script that a site's operator runs."""
        return ["bash", str(self.kits / name / "start.sh")]

    def environment(self, name: str) -> dict[str, str]:
        """Returns ports, the mark of the site's processes, and the folder of Flower's commands."""
        ports = {"CONTROL_PORT": str(self._control)}
        ports |= {"HOST": "127.0.0.1"} if name == SERVER else {"RUNTIME_PORT": str(free_port())}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {MARK: str(self.kits / name), "PATH": path, **ports}

    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site: the processes whose environment has the site's mark."""
        return processes("environ", f"{MARK}={self.kits / name}".encode())

    def start_all(self) -> None:
        """Starts the server, registers the silos' nodes there, and starts the silos."""
        self.start(SERVER)
        self.wait_for_server()
        self.run_script("register.sh")
        for name in silos_of(self.deployment):
            self.start(name)

    def wait_for_server(self) -> None:
        """Waits until the server listens, for SuperNodes and for runs."""
        deadline = time.monotonic() + _LONGEST_START
        while not all(map(_listens, (self.deployment.port, self._control))):
            self.check()
            if time.monotonic() > deadline:
                raise EngineError("flower.server-silent", log=self.kits / SERVER / "output.log")
            time.sleep(_INTERVAL)

    def run_script(self, name: str, *arguments: str) -> str:
        """Runs a script of the operator of the run, and returns the script's output."""
        limit = _LONGEST_START + _LONGEST_FOR_A_SILO * len(silos_of(self.deployment))
        try:
            done = subprocess.run(  # noqa: S603 our own script
                ["bash", str(self.kits / name), *arguments],  # noqa: S607
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=limit,
                env=self.full_environment(""),
            )
        except subprocess.TimeoutExpired:
            raise EngineError("flower.script-timeout", script=self.kits / name, seconds=limit) from None
        if done.returncode:
            lines = (done.stderr or done.stdout).splitlines()
            messages = [line.strip(" │") for line in lines if any(map(str.isalnum, line))]  # Flower draws frames
            raise EngineError(
                "flower.script-failed",
                script=self.kits / name,
                reason=in_one_line(messages[-1] if messages else "nothing was said"),
            )
        return done.stdout


def run_here(deployment: Deployment, kits: Path, *, on_round: Callable[[RoundResult], None], stall: float) -> LocalRun:
    """Starts every site of some kits here, runs the plan to the last round, and stops all sites.

    Args:
        deployment: The deployment that the kits were made from.
        kits: The folder that `write_kits` wrote.
        on_round: Called with the result of every round and the server's metrics.
        stall: Seconds without a finished round after which the run is given up.
    """
    plan = read_plan(kits / "plan.json")
    server = read_site(kits / SERVER, "server")
    watch, heard = RoundWatch(kits, on_round=on_round, stall=stall), 0
    with FlowerSites(kits, deployment) as sites, ending_on_signals():
        sites.start_all()
        sites.run_script("run.sh")
        while heard < plan.rounds:
            time.sleep(_INTERVAL)
            sites.check()
            run = run_of(server)
            for result in [] if run is None else run.rounds[heard:]:
                heard += 1
                watch.hear(result)
            watch.check()
    return local_run(server, watch.seconds)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0):
            return True
    except OSError:
        return False
