"""Section "Behaviour at higher model dimension": a head of d = 258.

The budget saved is the same at any d; the accuracy that it buys is not.
"""

import argparse
import sys
from collections.abc import Sequence

from _experiments import OPTIMAL, UNIFORM, Study, furthest_saving, grid, run_experiment
from _measured import Estimate, Measured, Measurements
from _printed import report

COMPONENTS = {"digits": 64}
"""128, or as many as the task has."""


def rows(study: Study) -> list[Measured]:
    """Returns accuracy, gain and budget saved of the larger head, with what changed from the smaller one."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        small = grid(task, size_laws=["equal"])
        large = grid(task, size_laws=["equal"], components=COMPONENTS.get(task, 128))
        runs = study.runs([*small, *large])
        for before, after in zip(small, large, strict=True):
            name = after.profile
            found += [
                printed.row(task, f"{name}, uniform", Estimate.of(runs.accuracy(after, UNIFORM))),
                printed.row(task, f"{name}, gain", runs.gain(after, OPTIMAL)),
                printed.row(task, f"{name}, budget saved %", 100 * runs.mean(after, OPTIMAL, "saving")),
                printed.row(
                    task,
                    f"{name}, uniform less that of d = {runs.of(before, UNIFORM)[0].identity.parameters}",
                    Estimate.of(runs.accuracy(after, UNIFORM) - runs.accuracy(before, UNIFORM)),
                ),
            ]
        moved = max(
            abs(runs.mean(after, OPTIMAL, "saving") - runs.mean(before, OPTIMAL, "saving"))
            for before, after in zip(small, large, strict=True)
        )
        found += [
            printed.check(task, "budget saved, changed by d", moved, 0.0),
            printed.check(task, "budget saved less dispersion, most", furthest_saving(runs, large), 0.0, 1e-9),
        ]
    return found


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints the comparison."""
    return report(__doc__, rows(study), chosen.format)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments, tasks=["cifar10"])


if __name__ == "__main__":
    sys.exit(main())
