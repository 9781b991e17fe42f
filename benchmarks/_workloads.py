"""What benchmarks share: how work is timed, and data to train on."""

import statistics
import time
from collections.abc import Callable

import numpy as np

from fulcrum.simulation.data.tasks import Task

FEATURES = 32


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of some work, after one run to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def clouds(records: int = 25_000, mean_records: int | None = None) -> Task:
    """Two overlapping clouds: what is learnt does not matter here."""
    rng = np.random.default_rng(0)
    labels = np.arange(records) % 2
    features = rng.normal(size=(records, FEATURES)) + 0.5 * labels[:, None]
    return Task(
        name="clouds",
        features_train=features,
        labels_train=labels,
        features_test=features[:100],
        labels_test=labels[:100],
        classes=("no", "yes"),
        records=mean_records,
    )
