"""Figures of the accuracy gain against exposure dispersion, equal and lognormal silos.

Written as gain_figure.json, a Vega-Lite specification, and as gain_figure.svg.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from _experiments import INVERSE_SIZE, MISALLOCATED, OPTIMAL, SIZE, Study, grid, run_experiment
from _figures import gain_figure, task_name, write_figure
from _measured import Measured, Measurements
from _printed import report

SHOWN = {"optimal": OPTIMAL, "1/sqrt m": SIZE, "1/m": INVERSE_SIZE, "misallocated": MISALLOCATED}
SIZES = {"equal": "equal silos", "lognormal": "lognormal silos"}


def series(study: Study) -> list[dict[str, Any]]:
    """Returns the points of the figure; the second balanced profile is left out, as in the paper."""
    points = []
    for task in study.tasks:
        settings = [setting for setting in grid(task) if setting.profile != "balanced-4"]
        runs = study.runs(settings)
        for setting in settings:
            for name, arm in SHOWN.items():
                gain = runs.gain(setting, arm)
                points.append(
                    {
                        "task": task_name(task),
                        "sizes": SIZES[setting.size_law],
                        "profile": setting.profile,
                        "dispersion": runs.mean(setting, arm, "dispersion"),
                        "allocation": name,
                        "gain": gain.mean,
                        "error": gain.error,
                    }
                )
    return points


def rows(points: Sequence[dict[str, Any]]) -> list[Measured]:
    """Returns what the figure must show: a gain that grows with dispersion, and none where there is none."""
    printed = Measurements(__file__)
    found = []
    for task, sizes in dict.fromkeys((point["task"], point["sizes"]) for point in points):
        mine = [point for point in points if (point["task"], point["sizes"]) == (task, sizes)]
        line = sorted((p["dispersion"], p["gain"]) for p in mine if p["allocation"] == "optimal")
        steps = sum(after[1] < before[1] for before, after in pairwise(line))
        found.append(printed.check(f"{task}, {sizes}", "steps where the gain falls", steps, 0.0))
        if sizes == SIZES["equal"]:
            found.append(printed.check(f"{task}, {sizes}", "gain at dispersion 0", line[0][1], 0.0))
    return found


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Writes the figure and prints its check."""
    points = series(study)
    write_figure(gain_figure(points, names=list(SHOWN)), chosen.figures, "gain_figure")
    return report(__doc__, rows(points), chosen.format, data={"series": points})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
