"""The choice of the learning rate.

The paper does not state its learning rate. The choice sees uniform noise on the balanced profile and nothing else: no
gain, no other profile. By the one-standard-error rule it is the lowest rate of the grid whose accuracy, averaged over
tasks, is within one standard error of the highest. The rate of the highest accuracy is shown beside it.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from _experiments import UNIFORM, Setting, Study, run_experiment
from _measured import Estimate, Measured, Measurements
from _printed import report

from fulcrum.training.runs import LEARNING_RATE

GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def rows(study: Study) -> list[Measured]:
    """Returns the accuracy of every rate by task, and how far the recorded one is from the best."""
    printed = Measurements(__file__)
    found = []
    by_rate = []
    for task in study.tasks:
        settings = [
            Setting(task=task, profile="balanced", arms=(UNIFORM,), learning_rate=rate)
            for rate in sorted({*GRID, LEARNING_RATE})
        ]
        runs = study.runs(settings)
        accuracy = {study.rate_of(setting): runs.accuracy(setting, UNIFORM) for setting in settings}
        found += [printed.row(task, f"rate {rate:g}", Estimate.of(values)) for rate, values in accuracy.items()]
        by_rate.append(accuracy)
    mean = {rate: np.mean([accuracy[rate] for accuracy in by_rate], axis=0) for rate in by_rate[0]}
    best = max(mean, key=lambda rate: float(mean[rate].mean()))
    found += [printed.row("all tasks", f"rate {rate:g}", Estimate.of(values)) for rate, values in mean.items()]
    behind = Estimate.of(100 * (mean[best] - mean[LEARNING_RATE]))
    highest = Estimate.of(mean[best])
    as_good = [rate for rate, values in mean.items() if values.mean() >= highest.mean - highest.error]
    found += [
        printed.row("all tasks", "rate of the highest accuracy", best),
        printed.row("all tasks", "rate that the rule picks", min(as_good)),
        printed.row("all tasks", "recorded rate", LEARNING_RATE),
        printed.row("all tasks", "recorded rate behind the highest, points", behind),
        printed.check("all tasks", "recorded rate within one standard error", float(LEARNING_RATE in as_good), 1.0),
    ]
    return found


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints the choice."""
    return report(__doc__, rows(study), chosen.format)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
