"""The engines that run a plan on a real federation: their common protocol, and the lookup by name.

>>> engine_names(), engine_named("flower").title
(['flower', 'nvflare'], 'Flower')

An engine is an object that a package names as an entry point of the group "fulcrum.engines". The commands `deploy` and
`up` run every engine by the protocol. `tests/engines/test_engine_conformance.py` checks every engine against the
protocol.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.errors import check_known
from fulcrum.server.run_results import RoundResult

GROUP = "fulcrum.engines"
"""The group of entry points that name engines."""


class Engine(Protocol):
    """A framework that carries messages between the sites of a plan."""

    @property
    def name(self) -> str:
        """The engine's name on the command line: `fulcrum up NAME`."""

    @property
    def title(self) -> str:
        """The engine's name in sentences."""

    @property
    def port(self) -> int:
        """The default port at which sites reach the server; the next port is for the operator who runs the plan."""

    @property
    def host_here(self) -> str:
        """The name under which sites on this machine reach the server."""

    def check(self, deployment: Deployment) -> None:
        """Raises `PlanError` unless this engine can run the plan of a deployment, with a remedy."""

    def sites(self, deployment: Deployment) -> list[str]:
        """Returns the names of all sites that have a kit, the server's first."""

    def site_folder(self, kits: Path, name: str) -> Path:
        """Returns the path of a site's folder, which `fulcrum.core.silo.site` reads, inside the folder of all kits."""

    def write_kits(self, deployment: Deployment, folder: Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
        """Writes a kit for every site into a new or empty folder; a failure leaves no folder.

        Every private key is in the kit of its own site alone. A kit for operators holds no ledger and no records.

        Returns:
            A summary of the kits: `sites`, `plan_digest`, `issuer`, `keys_made`.
        """

    def run_here(
        self,
        deployment: Deployment,
        kits: Path,
        *,
        on_round: Callable[[RoundResult], None],
        say: Callable[[str], None] = lambda _: None,
    ) -> LocalRun:
        """Starts every site of some kits on this machine, runs the plan to the last round, and stops all sites.

        No process outlives the call, on success or failure. A federation that finishes no round is given up with an
        `EngineError` that names the logs. `say` takes every step in words.
        """


def engine_names() -> list[str]:
    """Returns the names of the engines that are installed, in order."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def engine_named(name: str) -> Engine:
    """Returns an engine, and imports the engine's module here alone: importing a framework takes seconds.

    Raises:
        ParameterError: No installed engine has the name.
    """
    check_known("engine", name, engine_names())
    (entry, *_) = entry_points(group=GROUP, name=name)
    return cast(Engine, entry.load())
