"""96,000 silos beside 9,600: time a silo and peak memory of the embedded engine, each measured in a process of its own.

python benchmarks/training_scale.py
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
from _workloads import clouds

import fulcrum
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

FEW, MANY, ROUNDS, RECORDS = 9_600, 96_000, 3, 200
MOST_RATIO = 1.5


def measure(silos: int) -> None:
    """Trains so many silos in this process, then prints seconds a silo and peak bytes."""
    task = clouds()
    regions = silos // 100
    tier = fulcrum.Tier(
        name="region", nodes=tuple(map(str, range(regions))), parent_of=np.arange(silos) * regions // silos
    )
    federation = fulcrum.Federation(name="many", sizes=np.full(silos, float(RECORDS)), tiers=(tier,))
    # There are not so many records: silos share a pool here, which only the time and the memory care about.
    part = Partition(
        records=np.random.default_rng(0).integers(0, 25_000, silos * RECORDS).astype(np.intp),
        starts=np.arange(silos) * RECORDS,
        counts=np.full(silos, RECORDS),
        shares=np.full(silos, 0.5),
    )
    arms = Variants.from_plans([fulcrum.plan(federation, rounds=ROUNDS, epsilon=1.0)])
    start = time.perf_counter()
    train_jobs([Job(seed=0, partition=part, variants=arms)], task, LocalTraining(learning_rate=0.2), every_round=False)
    spent = (time.perf_counter() - start) / silos
    sys.stdout.write(f"{spent} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    found = {}
    for silos in (FEW, MANY):
        sys.stderr.write(f"training {silos:,} silos\n")
        done = subprocess.run(
            [sys.executable, __file__, "--measure", str(silos)], check=True, capture_output=True, text=True
        )
        found[silos] = [float(word) for word in done.stdout.split()]
    ratio = found[MANY][0] / found[FEW][0]
    rows = [
        {"figure": f"time a silo, {MANY:,} over {FEW:,}", "value": ratio, "promise": f"at most {MOST_RATIO:g}"},
        {"figure": f"peak memory of {MANY:,} silos, GB", "value": found[MANY][1] / 1e9, "promise": ""},
        {"figure": "memory a silo, KB", "value": (found[MANY][1] - found[FEW][1]) / (MANY - FEW) / 1e3, "promise": ""},
    ]
    columns = (
        Column(key="figure", heading="figure", figures=False),
        Column(key="value", heading="value"),
        Column(key="promise", heading="promise", figures=False),
    )
    show(Result(data=rows, rows=rows, picture=[table("The embedded engine at scale", columns, rows)]), options.format)
    if ratio > MOST_RATIO:
        raise SystemExit("the promise is not kept")


if __name__ == "__main__":
    main()
