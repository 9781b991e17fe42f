"""The embedded engine beside its peers: one round of 96 silos of 200 records, ten local steps of batch 64, d = 66.

Every figure is a ratio measured in one run: how many of our rounds fit into one of the peer's, alone and shared out
over the arms and seeds of a comparison. The floor is what the machine needs for the bytes that a round must gather
and the multiplications it must do, at the speeds that plain NumPy reaches here; no engine on this machine does better.

The joint recipe's server does more than add up: a line says what that takes, over the paper's recipe on one core.

    python benchmarks/training_speed.py [--without-peers]
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fulcrum
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

sys.path.insert(0, str(Path(__file__).parent))
from _workloads import FEATURES, clouds, seconds
from peers.environments import figures

SILOS, RECORDS, STEPS, BATCH, ROUNDS = 96, 200, 10, 64, 10
ALLOCATIONS = ("optimal", "uniform", "size", "inverse-size", "misallocated")
SEEDS = 10
PROMISES = {  # at least so many of our rounds, alone and shared, in one of the peer's on so many processes
    ("fedjax", 1): (8, 30),
    ("pfl_pytorch", 1): (80, None),
    ("pfl_pytorch", 2): (None, None),
    ("pfl", 1): (None, None),  # its NumPy model with our own local steps in it
    ("flower", 1): (80, None),
}


RECIPE_PROMISE = 1.3  # the joint recipe's time over the paper's, at most
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def jobs_of(task: Task, seeds: int, allocations: tuple[str, ...]) -> list[Job]:
    """The federations of a comparison."""
    return [
        _job(task, seed, [{"epsilon": 1.0, "allocation": name, "seed": seed} for name in allocations])
        for seed in range(seeds)
    ]


def _job(task: Task, seed: int, arms: Sequence[Mapping[str, Any]]) -> Job:
    federation = fulcrum.read_federation("severe")
    plans = [fulcrum.plan(federation, rounds=ROUNDS, **arm) for arm in arms]
    return Job(seed=seed, partition=coupled_partition(task, federation, seed=seed), variants=Variants.from_plans(plans))


def recipe_ratios(task: Task, training: LocalTraining) -> dict[str, float]:
    """The processor time of the joint recipe over the paper's, in turns, of one federation and of a comparison."""

    def spent(jobs: list[Job]) -> float:
        began = time.process_time()
        train_jobs(jobs, task, training, threads=1)
        return time.process_time() - began

    found = {}
    for name, seeds, epsilons in (("alone", 1, EPSILONS[1:2]), ("shared", SEEDS, EPSILONS)):
        jobs = {
            recipe: [
                _job(task, seed, [{"epsilon": epsilon, "recipe": recipe, "parameters": 66} for epsilon in epsilons])
                for seed in range(seeds)
            ]
            for recipe in ("paper", "joint")
        }
        times = [(spent(jobs["paper"]), spent(jobs["joint"])) for _ in range(30 if seeds == 1 else 8)]
        paper, joint = (min(column) for column in zip(*times, strict=True))
        found[name] = joint / paper
    return found


def floor_seconds() -> tuple[float, float]:
    """What one round's gathered bytes and its multiplications take at plain NumPy's speed, on one core."""
    rows, width = SILOS * STEPS * BATCH, FEATURES + 1
    source = np.zeros((rows, width))
    target = np.empty_like(source)
    copying = seconds(lambda: np.copyto(target, source), 30)
    square = np.random.default_rng(0).normal(size=(256, 256))
    multiplying = seconds(lambda: square @ square, 30) / 256**3
    return copying, 2 * rows * width * multiplying  # forward and backward, one column of differences


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--without-peers", action="store_true", help="measure the floor alone")
    options = parser.parse_args()
    task = clouds(mean_records=RECORDS)
    training = LocalTraining(learning_rate=0.2, steps=STEPS, batch=BATCH)
    one, many = jobs_of(task, 1, ("optimal",)), jobs_of(task, SEEDS, ALLOCATIONS)
    alone = seconds(lambda: train_jobs(one, task, training, every_round=False), 15) / ROUNDS
    shared = seconds(lambda: train_jobs(many, task, training, every_round=False), 3) / ROUNDS / SEEDS / len(ALLOCATIONS)
    copying, multiplying = floor_seconds()
    rows: list[dict[str, object]] = [
        {"figure": "one federation's round over its floor", "ratio": alone / (copying + multiplying), "promise": ""},
        {"figure": "  of which bytes gathered", "ratio": copying / (copying + multiplying), "promise": ""},
        {
            "figure": "a round shared over 5 arms and 10 seeds over the floor",
            "ratio": shared / (copying + multiplying),
            "promise": "",
        },
    ]
    broken = []
    for name, ratio in recipe_ratios(task, training).items():
        figure = f"a round by the joint recipe over one by the paper's, {name}"
        rows.append({"figure": figure, "ratio": ratio, "promise": f"at most {RECIPE_PROMISE}"})
        broken += ["joint recipe"] if ratio > RECIPE_PROMISE else []
    for (peer, processes), promises in {}.items() if options.without_peers else PROMISES.items():
        theirs = figures(peer, processes)
        for name, mine, promise in zip(("alone", "shared"), (alone, shared), promises, strict=True):
            ratio = theirs["seconds_per_round"] / mine
            workers = f" on {processes} processes" if processes > 1 else ""
            figure = f"{peer} {theirs['version']}{workers} over one round {name}"
            rows.append({"figure": figure, "ratio": ratio, "promise": f"at least {promise}" if promise else ""})
            broken += [peer] if promise and ratio < promise else []
    columns = (
        Column(key="figure", heading="figure", figures=False),
        Column(key="ratio", heading="ratio"),
        Column(key="promise", heading="promise", figures=False),
    )
    title = f"{SILOS} silos of {RECORDS} records, d = 66, {STEPS} steps of batch {BATCH}"
    show(Result(data=rows, rows=rows, picture=[table(title, columns, rows)]), options.format)
    if broken:
        raise SystemExit(f"a promise is not kept: {', '.join(broken)}")


if __name__ == "__main__":
    main()
