"""The choice of the learning rate.

The paper does not state its learning rate. Ours is the rate of the grid with the highest accuracy under uniform noise
on the balanced profile, averaged over both tasks; no gain and no other profile enters. How far it leads the runner-up
is shown as a paired difference.
"""

import sys

import numpy as np
from _experiments import TASKS, UNIFORM, Setting, Study, table_main
from _measured import Estimate, Measured, Measurements

from fulcrum.simulation.training_runs import LEARNING_RATE

GRID = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def rows(study: Study) -> list[Measured]:
    """Returns the accuracy of every rate by task and on average, and whether the recorded rate is the best."""
    printed = Measurements(__file__)
    found = []
    by_task = []
    for task in study.tasks:
        settings = {rate: Setting(task=task, profile="balanced", arms=(UNIFORM,), learning_rate=rate) for rate in GRID}
        runs = study.runs(settings.values())
        by_task.append([runs.accuracy(setting, UNIFORM) for setting in settings.values()])
        found += [
            printed.row(task, f"rate {rate:g}", Estimate.of(accuracy))
            for rate, accuracy in zip(GRID, by_task[-1], strict=True)
        ]
    accuracy_of = dict(zip(GRID, np.mean(by_task, axis=0), strict=True))
    best, runner_up = sorted(GRID, key=lambda rate: -accuracy_of[rate].mean())[:2]
    lead = Estimate.of(100 * (accuracy_of[best] - accuracy_of[runner_up]))
    section = "mean over tasks"
    found += [printed.row(section, f"rate {rate:g}", Estimate.of(accuracy)) for rate, accuracy in accuracy_of.items()]
    found += [
        printed.row(section, "best rate", best),
        printed.row(section, "runner-up", runner_up),
        printed.row(section, "best over runner-up, points", lead),
    ]
    if set(study.tasks) == set(TASKS):  # the rule is about these tasks
        found.append(printed.check(section, "recorded rate is the best", float(best == LEARNING_RATE), 1.0))
    return found


main = table_main(__doc__, rows)


if __name__ == "__main__":
    sys.exit(main(None))
