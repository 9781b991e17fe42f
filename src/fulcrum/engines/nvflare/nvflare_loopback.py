"""All sites of a deployment on one machine: started, watched, and stopped without a process left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fulcrum.core.store.database import ClosedAtTheEnd
from fulcrum.engines.child_processes import CALM, check_running, end_all, ending_on_signals, import_path, processes
from fulcrum.engines.nvflare.console import follow
from fulcrum.engines.nvflare.failures import Failures
from fulcrum.engines.nvflare.job_messages import FOLDER
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.errors import EngineError
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.run_results import RoundResult

_CLIENT = "nvflare.private.fed.app.client.client_train"
_SERVER = "nvflare.private.fed.app.server.server_train"


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
                env=os.environ | CALM | {"PYTHONPATH": import_path()} | (environment or {}),
            )

    def start_all(self, environment: dict[str, str] | None = None) -> None:
        """Starts the server, then everyone else."""
        for name in self._deployment.sites:
            self.start(name, environment)

    def check(self) -> None:
        """Raises `EngineError` if a site's process has ended by itself."""
        check_running(self._processes, self._kits)

    def kill(self, name: str) -> None:
        """Kills a site: its own process and its job processes."""
        end_all(lambda: processes_of(self._kits / name))
        process = self._processes.pop(name, None)
        if process is not None:
            process.wait()

    def close(self) -> None:
        """Ends every process of every site."""
        for name in list(self._deployment.sites):
            self.kill(name)
        for name in self._deployment.sites:  # a launcher may have been about to start its job process again
            self.kill(name)


def processes_of(kit: Path) -> list[int]:
    """Returns the processes that work in a kit: those whose command line names it."""
    return processes("cmdline", str(kit.resolve()).encode())


def run_here(deployment: Deployment, kits: Path, *, on_round: Callable[[RoundResult], None], stall: float) -> LocalRun:
    """Starts every site of some kits here, runs the plan to its last round, and stops them all.

    It is given up where training fails at every silo in a round: what would follow is noise.

    Args:
        deployment: What the kits were made from.
        kits: As `write_kits` made them.
        on_round: Told what came of each round.
        stall: Seconds without a finished round after which it is given up.
    """
    plan = read_plan(kits / "plan.json")
    moments, failures = [time.monotonic()], Failures(kits, plan.federation.silo_names.tolist())
    processes_of(kits)  # refused here where they could not be stopped
    with Loopback(kits, deployment) as sites, ending_on_signals():
        sites.start_all()

        def hear(found: RoundResult) -> None:
            moments.append(time.monotonic())
            on_round(found)

        def tick() -> None:
            sites.check()
            failures.look()
            if failures.everywhere:
                raise EngineError(failures.in_words())
            if time.monotonic() - moments[-1] > stall:
                raise EngineError(f"no round was finished for {stall:g} s. The logs are in {kits}/*/output.log")

        run = follow(kits, tick=tick, on_round=hear)
        tick()
    if run is None:
        raise EngineError(f"the server tells nothing of its rounds. See {kits}/{SERVER}/output.log")
    done = Coordinator.read(kits / SERVER / "local" / FOLDER / "state", plan)
    seconds = moments[-1] - moments[min(1, len(moments) - 1)]
    return LocalRun(run=run, history=done.history, model=done.model, seconds=seconds, failed=failures.in_words())


def free_port() -> int:
    """Returns a port that is free here, with a free one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("", port + 1))
            except OSError:
                continue
            return port
