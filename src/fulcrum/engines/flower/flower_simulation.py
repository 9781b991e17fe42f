"""A plan on Flower's simulation: every silo is a virtual node on Ray, with the messages of a deployment.

For research, and for testing an app: all sites are on one machine, so no site is protected from the others. The app
runs as by `flwr run`, at a SuperLink for simulations that listens on this machine alone and ends with the run.
"""

import contextlib
import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fulcrum.core.silo.site import read_site
from fulcrum.engines.flower.kits.app_files import app_files
from fulcrum.engines.flower.kits.flower_loopback import MARK, command_path, follow_run
from fulcrum.engines.flower.kits.flower_sites import silos_of, write_sites
from fulcrum.engines.flower.server_side.flower_version import check_version
from fulcrum.engines.flower.server_side.run_recorder import local_run
from fulcrum.engines.local_sites import LocalSites, RoundWatch, ending_on_signals, free_port, processes, wait_for_ports
from fulcrum.engines.site_folders import Deployment, LocalRun, made_whole
from fulcrum.engines.training_failures import ALL_SILOS, Failures
from fulcrum.errors import EngineError, MissingExtraError
from fulcrum.planning.engine_limits import SERVER
from fulcrum.server.run_results import RoundResult

SITES, SITE = "FULCRUM_SITES", "FULCRUM_SITE"
"""The environment variables of a simulation: the folder of all sites, and the server's own."""

_LINK, _RUN = "superlink", "run"
_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"}
_LONGEST_END = 20.0  # seconds for Ray to end by itself


def write_simulated_sites(deployment: Deployment, folder: Path) -> None:
    """Writes the sites of a simulation into a new folder, and the built-in app beside the sites."""
    with made_whole(folder) as work:
        plan, _ = write_sites(replace(deployment, runs_here=True), work)
        for name, text in app_files(plan, virtual=True).items():
            (work / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            (work / "app" / name).write_text(text, encoding="utf-8")


def simulate(
    deployment: Deployment,
    folder: Path,
    *,
    app: Path | None = None,
    on_round: Callable[[RoundResult], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> LocalRun:
    """Runs a plan to the last round with every silo a virtual node, and returns the result.

    Args:
        deployment: The deployment to run; the training module must be importable here.
        folder: A new folder for the sites; ledgers, records, logs and the checkpoint stay there.
        app: The folder of a user's app; by default the built-in app.
        on_round: Called with the result of every round and the server's metrics.
        say: Called with every step in words.
    """
    check_version()
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("engine.not-installed", package="Flower's simulation", extra="flower-simulation")
    write_simulated_sites(deployment, folder)
    server = read_site(folder / SERVER, "server")
    watch = RoundWatch(folder / "flwr", on_round=on_round, stall=60 + 15 * deployment.patience)
    with ending_on_signals(), SimulatedSites(folder, deployment, app or folder / "app") as sites:
        say("starting the SuperLink")
        sites.start_link()
        say("submitting the app, and starting Ray")
        sites.start(_RUN)
        log, failures = sites.kits / _RUN / "output.log", Failures({ALL_SILOS: sites.kits / _RUN})
        follow_run(sites, server, watch, say, log=log, failures=failures)
        sites.wait_for_end()
    failures.look()
    return local_run(server, watch.seconds, failures.in_words())


class SimulatedSites(LocalSites):
    """The processes of a simulation: a SuperLink, and the command that submits the app.

    Args:
        sites: The folder of all sites.
        deployment: The deployment of the sites.
        app: The folder of the app.
    """

    def __init__(self, sites: Path, deployment: Deployment, app: Path) -> None:
        super().__init__(sites / "flwr", deployment, [_RUN, _LINK])
        self._sites, self._app, self._port = sites.resolve(), app.resolve(), free_port()
        for name in (_LINK, _RUN, "home"):
            (self.kits / name).mkdir(parents=True)
        connection = [
            "[superlink]",
            'default = "here"',
            "[superlink.here]",
            f'address = "127.0.0.1:{self._port}"',
            "insecure = true",
        ]
        (self.kits / "home" / "config.toml").write_text("\n".join(connection) + "\n", encoding="utf-8")

    def command(self, name: str) -> list[str]:
        """Returns the command of the SuperLink, or of the run; in the current folder, as a user runs an app."""
        here = ["env", "--chdir", str(Path.cwd())]
        if name == _LINK:
            address = ["--host", "127.0.0.1", "--port", str(self._port), "--insecure"]
            options = ["--simulation", "--disable-runtime-dependency-installation"]
            return [*here, "flower-superlink", *address, *options]
        nodes = f"num-supernodes={len(silos_of(self.deployment))} client-resources-num-cpus=1"
        return [*here, "flwr", "run", str(self._app), "here", "--stream", "--federation-config", nodes]

    def environment(self, name: str) -> dict[str, str]:
        """Returns the mark of the processes, the folder of Flower's commands and files, and the folders of sites."""
        places = {SITES: str(self._sites), SITE: str(self._sites / SERVER), "FLWR_HOME": str(self.kits / "home")}
        return {MARK: str(self.kits / name), "PATH": command_path(), **_QUIET, **places}

    def processes_of(self, name: str) -> list[int]:
        """Returns the processes with a mark in the environment. Flower's processes and Ray's inherit the mark."""
        return processes("environ", f"{MARK}={self.kits / name}".encode())

    def start_link(self) -> None:
        """Starts the SuperLink, and waits until it listens."""
        self.start(_LINK)
        wait_for_ports([self._port], self.check, self.kits / _LINK / "output.log")

    def check(self) -> None:
        """Raises `EngineError` if the SuperLink has ended by itself."""
        link = self._processes[_LINK]
        if link.poll() is not None:
            log = self.kits / _LINK / "output.log"
            raise EngineError("engine.site-ended", site=_LINK, exit_code=link.returncode, log=log)

    def run_has_ended(self) -> bool:
        """Returns True once the run of the app has ended, successfully or not."""
        return self._processes[_RUN].poll() is not None

    def wait_for_end(self) -> None:
        """Waits a while for the end of the app: Ray's own end leaves less behind than a kill."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[_RUN].wait(_LONGEST_END)
