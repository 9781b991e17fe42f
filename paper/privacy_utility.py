"""Figure "Accuracy against the per-client privacy parameter".

Uniform noise on the balanced profile. Written as privacy_utility.json, a Vega-Lite specification, and as
privacy_utility.svg. Our reference without privacy is the same training, ten rounds of it, with neither clip nor noise.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from _experiments import EPSILON, NO_PRIVACY, Arm, Runs, Setting, Study, run_experiment
from _figures import privacy_utility_figure, task_name, write_figure
from _measured import Estimate, Measured, Measurements
from _printed import report

EPSILONS = (0.1, 0.2, 0.5, EPSILON, 2.0, 5.0, 10.0, 20.0, 50.0)
ARMS = {epsilon: Arm(allocation="uniform", epsilon=epsilon) for epsilon in EPSILONS}
PAPER = {"cifar10": 0.972, "agnews": 0.938}


def _settings(task: str) -> tuple[Setting, Setting]:
    private = Setting(task=task, profile="balanced", arms=tuple(ARMS.values()))
    return private, Setting(task=task, profile="balanced", arms=(NO_PRIVACY,))


def _runs(study: Study) -> Runs:
    return study.runs(setting for task in study.tasks for setting in _settings(task))


def rows(study: Study, runs: Runs) -> list[Measured]:
    """Returns the series by task, and what share of the reference is reached."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        private, bare = _settings(task)
        reference = runs.accuracy(bare, NO_PRIVACY)
        found += [
            printed.row(task, f"epsilon {epsilon:g}", Estimate.of(runs.accuracy(private, arm)))
            for epsilon, arm in ARMS.items()
        ]
        found.append(printed.row(task, "no privacy", Estimate.of(reference)))
        found += [
            printed.row(
                task,
                f"share of the reference, epsilon {epsilon:g}, %",
                Estimate.of(100 * runs.accuracy(private, ARMS[epsilon]) / reference),
            )
            for epsilon in (EPSILON, 10.0)
        ]
    return found


def series(study: Study, runs: Runs) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the points of the figure, and the references."""
    points: list[dict[str, Any]] = []
    references: list[dict[str, Any]] = []
    for task in study.tasks:
        private, bare = _settings(task)
        for epsilon, arm in ARMS.items():
            found = Estimate.of(runs.accuracy(private, arm))
            points.append({"task": task_name(task), "epsilon": epsilon, "accuracy": found.mean, "error": found.error})
        mean = float(runs.accuracy(bare, NO_PRIVACY).mean())
        references.append({"task": task_name(task), "whose": "ours", "accuracy": mean})
        if task in PAPER:
            references.append({"task": task_name(task), "whose": "paper", "accuracy": PAPER[task]})
    return points, references


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Writes the figure and prints its points."""
    runs = _runs(study)
    points, references = series(study, runs)
    spec = privacy_utility_figure(points, references, operating_point=EPSILON)
    write_figure(spec, chosen.figures, "privacy_utility")
    return report(__doc__, rows(study, runs), chosen.format, data={"series": points, "references": references})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
