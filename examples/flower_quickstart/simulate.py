"""Runs the plain or the private app on Flower's simulation, 50 nodes on this machine: python simulate.py private."""

import importlib
import os
import sys
import tempfile
from pathlib import Path

import fulcrum
from fulcrum.engines.flower.kits.flower_sites import write_sites
from fulcrum.engines.site_folders import Deployment

HERE = Path(__file__).parent
NODES = 50


def main(which: str) -> None:
    """Runs one of the two."""
    sys.path.insert(0, str(HERE / which))
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        if which == "private":
            write_sites(Deployment(plan=private_plan(), train="quickstart", runs_here=True), Path(folder))
            os.environ |= {"FULCRUM_SITES": folder, "FULCRUM_SITE": str(Path(folder) / "server")}
        run()


def private_plan() -> fulcrum.Plan:
    """Returns the plan: all silos are masked as one group, and whoever sees its sums is promised epsilon 8."""
    return fulcrum.plan(
        str(HERE / "federation.csv"), rounds=5, epsilon={"federation": 8.0}, aggregation="masked", clip_norm=1.0
    )


def run() -> None:
    """Runs the app that stands first on the path."""
    import ray
    from flwr.simulation import run_simulation

    client, server = (importlib.import_module(f"quickstart.{name}_app") for name in ("client", "server"))
    run_simulation(server.app, client.app, num_supernodes=NODES)
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
