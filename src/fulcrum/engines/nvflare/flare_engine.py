"""NVIDIA FLARE as an engine: every silo and region is a client of its own, with mutual TLS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulcrum.engines.engine import Engine
from fulcrum.engines.nvflare.kits.nvflare_kits import check_deployable, write_kits
from fulcrum.engines.nvflare.kits.nvflare_loopback import run_here
from fulcrum.engines.nvflare.site_jobs.job_messages import FOLDER
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.server.run_results import RoundResult


@dataclass(frozen=True, slots=True)
class FlareEngine:
    """The engine `nvflare`; see `Engine`."""

    name: str = "nvflare"
    title: str = "NVIDIA FLARE"
    port: int = 8002
    host_here: str = "localhost"

    def check(self, deployment: Deployment) -> None:
        """Raises `PlanError` unless NVIDIA FLARE can run the plan."""
        check_deployable(deployment)

    def sites(self, deployment: Deployment) -> list[str]:
        """Returns server, regions and silos."""
        return list(deployment.engine_names.values())

    def site_folder(self, kits: Path, name: str) -> Path:
        """Returns the folder in the kit that NVIDIA FLARE reserves for sites."""
        return kits / name / "local" / FOLDER

    def write_kits(self, deployment: Deployment, folder: Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
        """Writes NVIDIA FLARE's own start-up kits, with the plan in place."""
        return write_kits(deployment, folder, issuer_key=issuer_key)

    def run_here(
        self,
        deployment: Deployment,
        kits: Path,
        *,
        on_round: Callable[[RoundResult], None],
        say: Callable[[str], None] = lambda _: None,
    ) -> LocalRun:
        """Runs the plan with every site on this machine."""
        stages = 10 if deployment.plan.is_masked else 1  # five stages, and a second attempt of the round
        stall = 60 + 3 * deployment.patience * stages
        return run_here(deployment, kits, on_round=on_round, stall=stall, say=say)


FLARE: Engine = FlareEngine()
