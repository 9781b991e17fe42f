"""A masked round on Flower's simulation beside a plain one with the same client: 96 silos, the severe profile.

A masked round has five stages, each a message to every silo. The aim is that it takes at most 1.5 times as long as
five plain rounds of Flower. Both run the built-in training on the digits, on Ray, in turn on this machine; the first
round of each run warms up and is not counted. Beside the clock stands the processor time of all processes, Ray's among
them, which other work on the machine disturbs less.

In the simulation all silos of a group are in few processes, each of which checks a signature once. A silo that is
deployed checks all itself: `python benchmarks/masking.py` has what one silo spends.
"""

import importlib
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import fulcrum
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.engines.flower.flower_simulation import simulate
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.readers.profiles import profile

TURNS = 2
"""Runs of each kind, one after the other in turn."""

MASKED_ROUNDS, PLAIN_ROUNDS = 4, 9
"""Of a run."""

MOST = 1.5
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass
class Rounds:
    """What rounds of one kind took: seconds by the clock, and of processor time."""

    kind: str
    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, moments: list[tuple[float, float]]) -> None:
        """Adds what lies between the ends of a run's rounds."""
        for (clock, processor), (later, more) in pairwise(moments):
            self.clock.append(later - clock)
            self.processor.append(more - processor)
            print(f"{self.kind}: {self.clock[-1]:.2f} s, {self.processor[-1]:.2f} s of processors", file=sys.stderr)


def moment() -> tuple[float, float]:
    """Returns the clock, and the processor time of this process and all that descend from it; 0 where none can tell."""
    parents, spent = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # the name before it may hold anything
        except OSError:  # it has ended
            continue
        parents[int(path.parent.name)] = int(fields[1])
        spent[int(path.parent.name)] = sum(map(int, fields[11:15]))
    total = 0
    for process in spent:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        total += spent[process] if above == os.getpid() else 0
    return time.monotonic(), total / os.sysconf("SC_CLK_TCK")


def masked(folder: Path) -> list[tuple[float, float]]:
    """Returns the ends of masked rounds."""
    plan = fulcrum.plan("severe", rounds=MASKED_ROUNDS, epsilon=1.0, aggregation="masked")
    moments = []
    deployment = Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"})
    run = simulate(deployment, folder, on_round=lambda _: moments.append(moment()))
    assert all(len(summary["summed"]) == 5 for summary in run.history), run.history
    return moments


def plain(folder: Path) -> list[tuple[float, float]]:
    """Returns the ends of plain rounds of Flower: the same client without the mod, averaged by FedAvg."""
    import ray
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    records: Any = importlib.import_module("fulcrum.engines.flower.flower_records")
    built_in: Any = importlib.import_module("fulcrum.engines.flower.virtual_app")
    client, server = ClientApp(), ServerApp()
    client.train()(with_metrics(built_in.train))
    moments = []

    def ended(number: int, _: Any) -> None:
        if number:
            moments.append(moment())

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        del context
        start = importlib.import_module(BUILT_IN).start({"data": "digits"})
        strategy = FedAvg(fraction_evaluate=0.0)
        arrays = records.as_record(start)
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=PLAIN_ROUNDS, evaluate_fn=ended)

    os.environ["FULCRUM_SITES"] = str(folder)
    resources = {"num_cpus": 1, "num_gpus": 0.0}  # as for masked rounds
    run_simulation(
        server, client, num_supernodes=len(profile("severe")), backend_config={"client_resources": resources}
    )
    ray.shutdown()
    return moments


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
        print("Flower is not installed: nothing is measured. Run: pip install 'fulcrum-dp[flower-simulation]'")
        return 0
    os.environ.update(QUIET)
    slow, quick = Rounds("a masked round"), Rounds("a plain round")
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(TURNS):
            sites = Path(folder) / f"sites-{turn}"
            slow.add(masked(sites))
            quick.add(plain(sites))
    print(f"{len(profile('severe'))} silos on Ray, medians of {len(slow.clock)} and {len(quick.clock)} rounds:")
    ratios = []
    for kind, one, other in (
        ("by the clock", quick.clock, slow.clock),
        ("of processor time", quick.processor, slow.processor),
    ):
        usual, asked = statistics.median(one), statistics.median(other)
        if not usual:
            continue
        ratios.append(asked / usual)
        print(f"{kind}, a plain round takes {usual:.2f} s ({min(one):.2f} to {max(one):.2f}), ", end="")
        print(f"a masked one {asked:.2f} s ({min(other):.2f} to {max(other):.2f}): ", end="")
        print(f"{ratios[-1]:.1f} plain rounds, {ratios[-1] / len(STAGES):.2f} a stage (at most {MOST})")
    return int(ratios[0] > MOST * len(STAGES))


if __name__ == "__main__":
    sys.exit(main())
