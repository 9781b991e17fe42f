"""All sites of a deployment on NVIDIA FLARE on one machine: NVIDIA FLARE's own processes, in the kits."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fulcrum.engines.local_sites import LocalSites, RoundWatch, ending_on_signals, processes, wait_for_ports
from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.engines.nvflare.kits.flare_progress import FlareProgress
from fulcrum.engines.nvflare.site_jobs.job_messages import FOLDER, RUNNING_JOB
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.engines.training_failures import Failures
from fulcrum.errors import EngineError
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.run_results import RoundResult

_CLIENT = "nvflare.private.fed.app.client.client_train"
_SERVER = "nvflare.private.fed.app.server.server_train"


class FlareSites(LocalSites):
    """The processes of NVIDIA FLARE on this machine."""

    def __init__(self, kits: Path, deployment: Deployment) -> None:
        super().__init__(kits, deployment, list(deployment.engine_names.values()))

    def command(self, name: str) -> list[str]:
        """Returns the command that starts a site: the kit's own command, without the script that restarts the site."""
        module, settings = (_SERVER, "fed_server.json") if name == SERVER else (_CLIENT, "fed_client.json")
        about = ["secure_train=true", "org=fulcrum", "config_folder=config"]
        about += [] if name == SERVER else [f"uid={name}"]
        kit = str(self.kits / name)
        return [sys.executable, "-u", "-m", module, "-m", kit, "-s", settings, "--set", *about]

    def processes_of(self, name: str) -> list[int]:
        """Returns the processes of a site and its jobs: the processes whose command line names the kit."""
        return processes("cmdline", str(self.kits / name).encode())

    def start(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts a site."""
        (self.kits / name / "transfer").mkdir(exist_ok=True)
        super().start(name, environment)

    def start_all(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Starts the server, and all other sites once the server listens; `say` takes each step in words.

        A site that finds no server waits for one to two seconds before the next try, and so does its registration.
        """
        others = [name for name in self.deployment.engine_names.values() if name != SERVER]
        say("starting the server")
        self.start(SERVER)
        wait_for_ports([self.deployment.port], self.check, self.kits / SERVER / "output.log")
        say(f"starting {len(others)} sites")
        for name in others:
            self.start(name)


def run_here(
    deployment: Deployment,
    kits: Path,
    *,
    on_round: Callable[[RoundResult], None],
    stall: float,
    say: Callable[[str], None] = lambda _: None,
) -> LocalRun:
    """Starts every site of some kits here, runs the plan to the last round, and stops all sites.

    The run is given up if training fails at every silo in a round: later rounds would add noise alone.

    Args:
        deployment: The deployment that the kits were made from.
        kits: The folder that `write_kits` wrote.
        on_round: Called with the result of every round.
        stall: Seconds without a finished round after which the run is given up.
        say: Called with every step in words.
    """
    plan = read_plan(kits / "plan.json")
    watch = RoundWatch(kits, on_round=on_round, stall=stall)
    technical = deployment.engine_names
    silos = {silo: kits / technical[silo] for silo in plan.federation.silo_names.tolist()}
    failures, progress = Failures(silos), FlareProgress(kits / SERVER, silos.values(), plan.rounds, say)
    with ending_on_signals(), FlareSites(kits, deployment) as sites:
        sites.processes_of(SERVER)  # raises on machines where the processes could not be stopped
        sites.start_all(say)
        say("submitting the job, which begins when every site runs it")

        def tick() -> None:
            sites.check()
            failures.look()
            progress.look()
            if failures.everywhere:
                raise EngineError("engine.training-failed", failures=failures.in_words())
            watch.check()

        def hear(result: RoundResult) -> None:
            progress.hear()
            watch.hear(result)

        # NVIDIA FLARE takes about ten seconds to end a job. Results, checkpoint and ledgers are stored before the last
        # round is reported, so nothing is lost when the sites are killed now.
        run = follow(kits, tick=tick, on_round=hear, last_round=plan.rounds)
        tick()
    for name in technical.values():  # a killed site leaves the credentials of its job, for a restart that never comes
        (kits / name / RUNNING_JOB).unlink(missing_ok=True)
    if run is None:
        raise EngineError("flare.rounds-unreported", kits=kits, site=SERVER)
    done = Coordinator.read(kits / SERVER / "local" / FOLDER / "state", plan)
    return LocalRun(run=run, history=done.history, model=done.model, seconds=watch.seconds, failed=failures.in_words())
