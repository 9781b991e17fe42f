"""A record as the unit of privacy on frozen features: AG News and CIFAR-10, all classes, 96 silos in five regions.

The structure is "severe", with 200 training records a silo. Every record is a unit of its own, and every silo sends one
sum of clipped gradients a round. Features are scaled by fixed ranges, and nothing is fitted on them. Rows at the same
epsilon: each silo draws noise for its own records, regional sums, one masked sum; last, no privacy. Clip norm, rounds
and learning rate of every row have the highest mean accuracy on seeds that are not reported. The test records are the
same for all seeds: seeds change the records of silos and the noise.

Run: FULCRUM_DATA=... python examples/record_unit.py agnews
"""

import argparse
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.choices import NEIGHBOURS
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import GradientTraining
from fulcrum.simulation.training_runs import train_variants
from fulcrum.words.numbers import with_error

RANGES = {"agnews": "-0.2,0.2", "cifar10": "0,2"}
"""Fixed ranges, not fitted: coordinates of a unit vector of 384, and of a pooled activation."""

REPORTED_SEEDS = range(10)
CHOOSING_SEEDS = range(1000, 1003)
EPSILONS = (0.3, 1.0)
TARGETS: Mapping[str, dict[str, Any]] = {
    "each silo for itself": {"tier": "aggregator"},
    "regional sums": {"tier": "region"},
    "one masked sum": {"tier": "federation", "aggregation": "masked"},
}
NOTHING = "no privacy"
ROWS = tuple(itertools.product(EPSILONS, NEIGHBOURS, TARGETS))
CLIP_NORMS = (0.5, 2.0)
SCHEDULES = tuple(itertools.product((3, 10, 30, 60), (0.25, 1.0, 4.0, 16.0)))


@cache
def task(name: str) -> Task:
    """Returns all classes of a feature file, scaled by the fixed ranges."""
    return fulcrum.load_task(name, every_class=True, ranges=RANGES[name])


def measure(job: tuple[str, int, tuple[float, int, float], Sequence[Any]]) -> dict[Any, float]:
    """Returns the accuracy of rows, and of training without privacy, for one seed and one choice of settings."""
    name, seed, (clip_norm, rounds, rate), rows = job
    plans = []
    for epsilon, neighbours, target in rows:
        chosen = dict(TARGETS[target])
        targets = {chosen.pop("tier"): epsilon}
        common = {"unit": "record", "neighbours": neighbours, "clip_norm": clip_norm}
        plans.append(fulcrum.plan("severe", rounds=rounds, epsilon=targets, **common, **chosen))
    trained = train_variants([plans], task(name), seeds=[seed], training=GradientTraining(learning_rate=rate))
    accuracy = dict(zip(rows, trained.accuracy[0].tolist(), strict=True))
    return accuracy | {NOTHING: float(trained.reference[0])}


def choose(pool: ProcessPoolExecutor, name: str) -> dict[Any, tuple[float, int, float]]:
    """Returns by row the settings of the highest mean accuracy on the choosing seeds."""
    grid = [(clip_norm, *schedule) for clip_norm, schedule in itertools.product(CLIP_NORMS, SCHEDULES)]
    jobs = [(name, seed, settings, ROWS) for settings in grid for seed in CHOOSING_SEEDS]
    values: dict[tuple[Any, Any], list[float]] = {}
    for (_, _, settings, _), accuracy in zip(jobs, pool.map(measure, jobs), strict=True):
        for row, value in accuracy.items():
            values.setdefault((row, settings), []).append(value)
    best = {}
    for row in [*ROWS, NOTHING]:
        means = [float(np.mean(values[row, settings])) for settings in grid]
        best[row] = grid[int(np.argmax(means))]
    return best


def report(pool: ProcessPoolExecutor, name: str, best: Mapping[Any, tuple[float, int, float]]) -> dict[Any, FloatArray]:
    """Returns by row the accuracy for every reported seed, with the settings chosen before."""
    jobs = [
        (name, seed, settings, [row for row in ROWS if best[row] == settings] or [ROWS[0]])
        for settings in dict.fromkeys(best.values())
        for seed in REPORTED_SEEDS
    ]
    values: dict[Any, list[float]] = {}
    for (_, _, settings, _), accuracy in zip(jobs, pool.map(measure, jobs), strict=True):
        for row, value in accuracy.items():
            if best[row] == settings:
                values.setdefault(row, []).append(value)
    return {row: np.array(measured) for row, measured in values.items()}


def lines(values: Mapping[Any, FloatArray], best: Mapping[Any, tuple[float, int, float]]) -> Iterator[str]:
    """Yields the rows of the table."""
    for row in [*ROWS, NOTHING]:
        words = row if isinstance(row, str) else f"{row[0]:g}, {row[1]}: {row[2]}"
        error = float(values[row].std(ddof=1) / np.sqrt(len(values[row])))
        clip_norm, rounds, rate = best[row]
        yield (
            f"{words:40}{with_error(float(values[row].mean()), error):18}clip {clip_norm:g}, T {rounds}, rate {rate:g}"
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=list(RANGES), help="feature file")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="number of processes")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        best = choose(pool, options.data)
        values = report(pool, options.data, best)
    print(f"{options.data}, all classes: accuracy, mean and standard error over {len(REPORTED_SEEDS)} seeds")
    for line in lines(values, best):
        print(line)


if __name__ == "__main__":
    main()
