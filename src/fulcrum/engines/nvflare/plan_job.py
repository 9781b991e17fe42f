"""A plan as a job of NVIDIA FLARE, for scripts that use `nvflare.recipe`.

    submission = PlanSubmission(plan="plan.json", train="learning")
    run = submission.execute(LoopbackEnv("out"))            # every site a process on this machine
    run = submission.execute(ProdEnv("kits/admin", username=ADMIN))    # sites that were started from their kits

Other jobs carry settings, filters and code to the sites. The job of a plan names the component for every site and
carries nothing else, since a site follows its own kit: additions to the job are refused, not ignored.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from nvflare.job_config.api import FedJob
from nvflare.recipe import PocEnv, SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fulcrum.engines.local_sites import free_port
from fulcrum.engines.nvflare.flare_engine import FLARE
from fulcrum.engines.nvflare.kits.console import COMPLETED
from fulcrum.engines.nvflare.kits.nvflare_kits import ADMIN, PROJECT, write_job
from fulcrum.engines.site_folders import Deployment
from fulcrum.engines.training_check import check_fits, loaded_module
from fulcrum.errors import EngineError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import Plan
from fulcrum.server.deployed_run import save_deployed_run, save_model
from fulcrum.server.run_results import RoundResult, RunResult, run_folder

__all__ = ["ADMIN", "LoopbackEnv", "PlanJob", "PlanSubmission"]


class PlanJob(FedJob):  # type: ignore[misc]
    """The job of a plan, equal to the job that `fulcrum deploy nvflare` writes into the folder of all kits."""

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(name=PROJECT)
        self.deployment = deployment

    def export_job(self, job_root: str) -> None:
        """Writes the job into a folder with the job's name."""
        write_job(self.deployment, Path(job_root) / self.name)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise EngineError("flare.job-addition")

    to = to_server = to_clients = _refuse
    add_file_to = add_file_to_server = add_file_to_clients = add_file_source = set_app_packages = _refuse
    add_component = add_controller = add_executor = add_filter = add_params = add_resources = _refuse

    def simulator_run(self, *_: Any, **__: Any) -> NoReturn:
        """Raises `EngineError`: the simulator has no regions and no keys."""
        raise EngineError("flare.job-simulated")


class PlanSubmission(Recipe):  # type: ignore[misc]
    """Runs a plan, in the place of NVIDIA FLARE's `FedAvgRecipe` and similar classes.

    Args:
        plan: A plan, or the file of a plan; for deployment, or for research in `LoopbackEnv` alone.
        train: The training module, by the name of its import: `start`, `train` and optionally `evaluate`.
        options: The module's options. In `ProdEnv` every site has its own, in its kit.
        patience: Seconds a region waits for its silos; in `ProdEnv` the setting of the kits.
        policy: The policy file that silos start with in `LoopbackEnv`.
        seed: The seed of a research plan.

    Raises:
        PlanError: NVIDIA FLARE cannot run the plan.
    """

    def __init__(
        self,
        *,
        plan: Plan | str | Path,
        train: str,
        options: Mapping[str, Any] | None = None,
        patience: float = 120.0,
        policy: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        deployment = Deployment(
            plan=plan if isinstance(plan, Plan) else read_plan(plan),
            train=train,
            options=dict(options or {}),
            patience=patience,
            policy=None if policy is None else Path(policy),
            seed=seed,
            port=free_port(following=1),
        )
        FLARE.check(deployment)
        super().__init__(PlanJob(deployment))

    def _validate_before_use(self) -> None:
        if self._job.job.meta_props:
            self._job.to(self._job.job.meta_props)

    def process_env(self, env: ExecEnv) -> None:
        """Refuses environments whose sites have no kit."""
        if isinstance(env, SimEnv | PocEnv):
            raise EngineError("flare.environment-unfit", environment=type(env).__name__)
        if self._job.deployment.plan.is_research and not isinstance(env, LoopbackEnv):
            raise EngineError("flare.plan-research")

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        self._job.to(config)


class LoopbackEnv(ExecEnv):  # type: ignore[misc]
    """Runs a plan with every site a process on this machine and mutual TLS, and stops all sites at the end.

    Args:
        folder: A new folder for kits, logs, model.npz and run.json.
        on_round: Called with the result of every round; by default writes a line to stderr.

    Attributes:
        result: The result of the last run, by round; None before the first run.
    """

    def __init__(self, folder: str | Path, *, on_round: Callable[[RoundResult], None] | None = None) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.result: RunResult | None = None
        self._on_round = on_round

    def deploy(self, job: FedJob) -> str:
        """Runs the job of a plan to the last round, after checking that the training module fits the plan."""
        if not isinstance(job, PlanJob):
            raise EngineError("flare.job-foreign", job=type(job).__name__)
        deployment = job.deployment
        training_module = loaded_module(deployment.train)
        check_fits(training_module, deployment.plan, training_module.starting_model(deployment.options))
        kits = run_folder(self.folder) / "kits"
        FLARE.write_kits(replace(deployment, runs_here=True), kits)

        def tell(result: RoundResult) -> None:
            sys.stderr.write(result.in_words(of=deployment.plan.rounds) + "\n")

        done = FLARE.run_here(deployment, kits, on_round=self._on_round or tell)
        if done.failed:
            sys.stderr.write(f"{done.failed}\n")
        save_model(done.model, self.folder)
        save_deployed_run(done.run, self.folder)
        self.result = done.run
        return str(job.name)

    def get_job_status(self, job_id: str) -> str | None:
        """Returns the status "complete" after a run, else None: `deploy` returns no earlier."""
        del job_id
        return COMPLETED if self.result else None

    def get_job_result(self, job_id: str, timeout: float = 0.0) -> str | None:
        """Returns the folder of the run, which stays on the disk."""
        del job_id, timeout
        return str(self.folder) if self.result else None

    def abort_job(self, job_id: str) -> None:
        """Does nothing: a run is over when `deploy` returns."""
        del job_id
