"""Flower as an engine: every silo is a SuperNode, and a region is a masked group without a site."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulcrum.engines.flower.kits.flower_kits import write_kits
from fulcrum.engines.flower.kits.flower_loopback import run_here
from fulcrum.engines.flower.kits.flower_sites import check_deployable, silos_of
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.planning.engine_limits import SERVER
from fulcrum.server.run_results import RoundResult


@dataclass(frozen=True, slots=True)
class FlowerEngine:
    """The engine `flower`; see `Engine`."""

    name: str = "flower"
    title: str = "Flower"
    port: int = 9092
    host_here: str = "127.0.0.1"

    def check(self, deployment: Deployment) -> None:
        """Raises `PlanError` unless Flower can run the plan."""
        check_deployable(deployment)

    def sites(self, deployment: Deployment) -> list[str]:
        """Returns server and silos."""
        return [SERVER, *silos_of(deployment)]

    def site_folder(self, kits: Path, name: str) -> Path:
        """Returns the kit, which is also the site's folder."""
        return kits / name

    def write_kits(self, deployment: Deployment, folder: Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
        """Writes a folder for every site, certificates, and the app to run."""
        return write_kits(deployment, folder, issuer_key=issuer_key)

    def run_here(
        self,
        deployment: Deployment,
        kits: Path,
        *,
        on_round: Callable[[RoundResult], None],
        app: Path | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> LocalRun:
        """Runs the plan with every site on this machine.

        Args:
            deployment: The deployment that the kits were made from.
            kits: The folder of the kits.
            on_round: Called with the result of every round.
            app: The folder of a user's app; by default the app of the kits.
            say: Called with every step in words.
        """
        stall = 60 + 15 * deployment.patience
        return run_here(deployment, kits, on_round=on_round, stall=stall, app=app, say=say)


FLOWER = FlowerEngine()
