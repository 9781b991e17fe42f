"""All sites of a Flower federation on one machine, started by the scripts that operators run.

`follow_run` follows a run of an app on this machine, simulated or not: stages and rounds as they come.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from fulcrum.core.silo.site import Site, read_site
from fulcrum.engines.flower.kits.flower_sites import silos_of
from fulcrum.engines.flower.server_side.flower_version import check_version
from fulcrum.engines.flower.server_side.run_recorder import local_run, run_of
from fulcrum.engines.flower.server_side.stage_progress import StageProgress, read_progress
from fulcrum.engines.local_sites import LocalSites, RoundWatch, ending_on_signals, free_port, processes, wait_for_ports
from fulcrum.engines.log_reasons import end_of
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.engines.training_failures import Failures
from fulcrum.errors import EngineError, MissingExtraError
from fulcrum.planning.engine_limits import SERVER
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
        """Returns the script that a site's operator runs; for the folder of all kits, the script that runs the app."""
        return ["bash", str(self.kits / (f"{name}/start.sh" if name else "run.sh")), *([] if name else ["--stream"])]

    def environment(self, name: str) -> dict[str, str]:
        """Returns ports, the number of the node, the mark of the site's processes, and the folder of commands."""
        values = {"CONTROL_PORT": str(self._control), MARK: str(self.kits / name), "PATH": command_path()}
        if name == SERVER:
            return values | {"HOST": "127.0.0.1"}
        silos = silos_of(self.deployment)
        if name in silos:  # apps for a simulation choose their records by number, and run here unchanged
            values["NODE_CONFIG"] = f"partition-id={silos.index(name)} num-partitions={len(silos)}"
        return values | {"RUNTIME_PORT": str(free_port())}

    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site: the processes whose environment has the site's mark."""
        return processes("environ", f"{MARK}={self.kits / name}".encode())

    def start_all(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Starts the server, registers the silos' nodes there, and starts the silos; `say` takes each step in words."""
        silos = silos_of(self.deployment)
        say("starting the SuperLink")
        self.start(SERVER)
        self.wait_for_server()
        say(f"registering the nodes of {len(silos)} silos")
        self.run_script("register.sh")
        say(f"starting {len(silos)} SuperNodes")
        for name in silos:
            self.start(name)

    def check(self) -> None:
        """Raises `EngineError` if the process of a site has ended by itself; the run of the app is no site."""
        run = self._processes.pop("", None)
        super().check()
        if run is not None:
            self._processes[""] = run

    def start_run(self, app: Path | None = None) -> None:
        """Submits an app, by default the app of the kits; the output of the run goes to output.log beside the kits."""
        self.start("", {} if app is None else {"APP": str(app.resolve())})

    def run_has_ended(self) -> bool:
        """Returns True once the run of the app has ended, successfully or not."""
        return self._processes[""].poll() is not None

    def wait_for_server(self) -> None:
        """Waits until the server listens, for SuperNodes and for runs."""
        wait_for_ports([self.deployment.port, self._control], self.check, self.kits / SERVER / "output.log")

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
            reason = end_of(done.stderr or done.stdout)
            raise EngineError("flower.script-failed", script=self.kits / name, reason=reason)
        return done.stdout


class RunningApp(Protocol):
    """The processes of a run on this machine, for `follow_run`."""

    def check(self) -> None:
        """Raises `EngineError` if the process of a site has ended by itself."""

    def run_has_ended(self) -> bool:
        """Returns True once the run of the app has ended."""


def run_here(
    deployment: Deployment,
    kits: Path,
    *,
    on_round: Callable[[RoundResult], None],
    stall: float,
    app: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> LocalRun:
    """Starts every site of some kits here, runs the plan to the last round, and stops all sites.

    Args:
        deployment: The deployment that the kits were made from.
        kits: The folder that `write_kits` wrote.
        on_round: Called with the result of every round and the server's metrics.
        stall: Seconds without a finished round after which the run is given up.
        app: The folder of a user's app; by default the app of the kits.
        say: Called with every step in words.
    """
    check_version()
    server = read_site(kits / SERVER, "server")
    watch = RoundWatch(kits, on_round=on_round, stall=stall)
    failures = Failures({silo: kits / silo for silo in silos_of(deployment)})
    with ending_on_signals(), FlowerSites(kits, deployment) as sites:
        sites.start_all(say)
        say("submitting the app")
        sites.start_run(app)
        follow_run(sites, server, watch, say, log=kits / "output.log", failures=failures)
    return local_run(server, watch.seconds, failures.in_words())


def follow_run(
    running: RunningApp,
    server: Site,
    watch: RoundWatch,
    say: Callable[[str], None],
    *,
    log: Path,
    failures: Failures,
) -> None:
    """Follows the run of an app until the plan's last round, and tells of every stage and every round.

    Args:
        running: The processes of the run.
        server: The server's site, where the app writes progress and results.
        watch: Called with the results of rounds.
        say: Called with every stage in words, and the time left by the stages so far.
        log: The log of the run, for the error of an app that ends early.
        failures: Failures of training in the logs of silos, whose owner is the owner of this machine.

    Raises:
        EngineError: A process ended, no round was finished for too long, the app ended before the last round, or
            training failed at every silo in a round: later rounds would add noise alone.
    """
    rounds, heard, before, began = server.plan.rounds, 0, None, 0.0
    while heard < rounds:
        has_ended = running.run_has_ended()  # before the results are read: the last result is written before the end
        time.sleep(_INTERVAL)
        progress = read_progress(server.folder)
        if progress is not None and progress != before:
            began = time.monotonic() if before is None or not before.stage else began
            say(progress.in_words() + _time_left(progress, time.monotonic() - began))
            before = progress
        run = run_of(server)
        for result in [] if run is None else run.rounds[heard:]:
            heard += 1
            watch.hear(result)
        failures.look()
        if failures.everywhere:
            raise EngineError("engine.training-failed", failures=failures.in_words())
        if has_ended and heard < rounds:
            reason = failures.in_words() or _reason_in(log)
            raise EngineError("flower.run-ended", finished=heard, rounds=rounds, reason=reason, log=log)
        running.check()
        watch.check()


def _time_left(progress: StageProgress, seconds: float) -> str:
    """Returns the time left in words, by the mean time of a stage so far; nothing before the end of a stage.

    >>> _time_left(StageProgress(round_number=1, rounds=2, stage=3, doing="", begun=2, left=7), 6.0)
    ' (about 24 s left)'
    """
    if not progress.begun:
        return ""
    return f" (about {seconds / progress.begun * (progress.left + 1):.0f} s left)"


def _reason_in(log: Path) -> str:
    return end_of(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else "the log is empty"


def command_path() -> str:
    """Returns the folders of commands, with the folder of Flower's commands first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
