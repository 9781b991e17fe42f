"""A masked round on Flower's simulation beside a plain one with the same client: 96 silos, the severe profile.

A masked round has five stages, each a message to every silo. The aim is that it takes at most 1.5 times as long as
five plain rounds of Flower. Both run the built-in training on the digits, on Ray, one after the other on this machine.
"""

import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fulcrum
from fulcrum.engines.flower.simulation import simulate
from fulcrum.engines.sites import BUILT_IN, Deployment
from fulcrum.masking.aggregation import STAGES

ROUNDS = 4
MOST = 1.5


def masked(folder: Path) -> tuple[float, int]:
    """Returns the seconds of a masked round, and how many silos there are."""
    plan = fulcrum.plan("severe", rounds=ROUNDS, epsilon=1.0, aggregation="masked")
    run = simulate(Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"}), folder)
    assert all(len(summary["summed"]) == 5 for summary in run["history"]), run["history"]
    return run["seconds"] / (ROUNDS - 1), len(plan.federation)


def plain(folder: Path, silos: int) -> float:
    """Returns the seconds of a plain round of Flower: the same client without the mod, averaged by FedAvg."""
    import ray
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    records: Any = importlib.import_module("fulcrum.engines.flower.records")
    built_in: Any = importlib.import_module("fulcrum.engines.flower.app")
    client, server = ClientApp(), ServerApp()
    client.train()(with_metrics(built_in.train))
    moments = []

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        del context
        start = importlib.import_module(BUILT_IN).start({"data": "digits"})
        FedAvg(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=records.as_record(start),
            num_rounds=ROUNDS,
            evaluate_fn=lambda *_: moments.append(time.monotonic()),
        )

    os.environ["FULCRUM_SITES"] = str(folder)
    run_simulation(server, client, num_supernodes=silos)
    ray.shutdown()
    return (moments[-1] - moments[1]) / (ROUNDS - 1)


def with_metrics(train: Any) -> Any:
    """Returns a train function whose reply has what FedAvg weighs by."""

    def trained(message: Any, context: Any) -> Any:
        from flwr.app import MetricRecord

        reply = train(message, context)
        reply.content["metrics"] = MetricRecord({"num-examples": 1})
        return reply

    return trained


def main() -> int:
    """Prints both, and fails where a masked round takes longer than is aimed at."""
    try:
        importlib.import_module("flwr")
    except ImportError:
        print("Flower is not installed: nothing is measured. Run: pip install 'fulcrum-dp[flower]'")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sites = Path(folder) / "sites"
        slow, silos = masked(sites)
        quick = plain(sites, silos)
    stages = len(STAGES)
    print(f"{silos} silos on Ray: a plain round takes {quick:.2f} s, a masked one {slow:.2f} s")
    print(f"a masked round is {slow / quick:.1f} plain rounds, {slow / quick / stages:.2f} a stage (at most {MOST})")
    return int(slow > MOST * stages * quick)


if __name__ == "__main__":
    sys.exit(main())
