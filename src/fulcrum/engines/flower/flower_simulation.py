"""A plan on Flower's simulation: every silo is a virtual node on Ray, with the messages of a deployment.

For research, and for testing an app: all sites are on one machine, so no site is protected from the others.
"""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fulcrum.core.silo.site import read_site
from fulcrum.engines.flower.kits.flower_sites import silos_of, write_sites
from fulcrum.engines.flower.server_side.run_recorder import local_run
from fulcrum.engines.site_folders import Deployment, LocalRun, made_whole
from fulcrum.errors import EngineError, MissingExtraError, in_one_line
from fulcrum.planning.engine_limits import SERVER
from fulcrum.server.run_results import RoundResult

_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}


def simulate(
    deployment: Deployment, folder: Path, *, on_round: Callable[[RoundResult], None] = lambda _: None
) -> LocalRun:
    """Runs a plan to the last round with every silo a virtual node, and returns the result.

    Args:
        deployment: The deployment to run; the training module must be importable here.
        folder: A new folder for the sites; ledgers, records and the checkpoint stay there.
        on_round: Called with the result of every round and the server's metrics.
    """
    with made_whole(folder) as work:
        plan, _ = write_sites(replace(deployment, runs_here=True), work)
    server = read_site(folder / SERVER, "server")
    moments: list[float] = []

    def on_finished(result: RoundResult) -> None:
        moments.append(time.monotonic())
        on_round(result)

    places = {"FULCRUM_SITES": str(folder.resolve()), "FULCRUM_SITE": str(folder.resolve() / SERVER)}
    with _environment(_QUIET | places):
        run_apps(len(silos_of(deployment)), on_finished)
    if len(moments) < plan.rounds:
        raise EngineError("flower.simulation-short", finished=len(moments), rounds=plan.rounds)
    return local_run(server, moments[-1] - moments[0])


def run_apps(nodes: int, on_round: Callable[[RoundResult], None]) -> None:
    """Runs the built-in apps on a number of virtual nodes; the environment names the sites."""
    try:
        import ray
        from flwr.serverapp import ServerApp
        from flwr.simulation import run_simulation

        client_app = importlib.import_module("fulcrum.engines.flower.virtual_app").client_app
        run_plan = importlib.import_module("fulcrum.engines.flower.server_app").run_plan
    except ImportError:
        raise MissingExtraError(
            "engine.not-installed", package="Flower's simulation", extra="flower-simulation"
        ) from None
    server_app = ServerApp()

    @server_app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        del context
        run_plan(grid, on_round)

    try:
        run_simulation(server_app, client_app, num_supernodes=nodes)
    except Exception as error:  # Flower wraps the exception of the server's thread in many kinds
        raise EngineError("flower.simulation-failed", reason=in_one_line(error.__cause__ or error)) from error
    finally:
        ray.shutdown()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for a while: Flower offers no other channel to the apps of server and nodes."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
