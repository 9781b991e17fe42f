"""Table "Accuracy at a matched worst-case per-client guarantee": epsilon 0.99, 96 silos.

Accuracies of the optimal allocation and of uniform noise, gains of the optimal and of the misallocated one over uniform
noise in points with the standard error of the paired difference, and the budget saved, which is the dispersion.
"""

import sys
from collections.abc import Sequence

from _experiments import (
    MISALLOCATED,
    OPTIMAL,
    UNIFORM,
    Runs,
    Setting,
    Study,
    furthest_saving,
    grid,
    table_main,
    worse_than,
)
from _measured import Estimate, Measured, Measurements


def rows(study: Study) -> list[Measured]:
    """Returns the table, and what must hold of it."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        settings = grid(task, size_laws=["equal"])
        runs = study.runs(settings)
        for setting in settings:
            name = setting.profile
            for arm in (OPTIMAL, UNIFORM):
                found.append(printed.row(task, f"{name}, {arm.allocation}", Estimate.of(runs.accuracy(setting, arm))))
            found += [
                printed.row(task, f"{name}, gain", runs.gain(setting, OPTIMAL)),
                printed.row(task, f"{name}, misallocated", runs.gain(setting, MISALLOCATED)),
                printed.row(task, f"{name}, budget saved %", 100 * runs.mean(setting, OPTIMAL, "saving")),
            ]
        found += [
            printed.check(task, "largest gain where balanced", _largest_gain(runs, settings[:2]), 0.0),
            printed.check(task, "budget saved less dispersion, most", furthest_saving(runs, settings), 0.0, 1e-9),
            printed.check(
                task, "rows where another is better", worse_than(runs, settings, OPTIMAL, (UNIFORM, MISALLOCATED)), 0.0
            ),
        ]
    return found


def _largest_gain(runs: Runs, settings: Sequence[Setting]) -> float:
    """Returns the largest gain of any seed in absolute value, in points."""
    gaps = [100 * abs(runs.accuracy(setting, OPTIMAL) - runs.accuracy(setting, UNIFORM)).max() for setting in settings]
    return float(max(gaps))


main = table_main(__doc__, rows)


if __name__ == "__main__":
    sys.exit(main(None))
