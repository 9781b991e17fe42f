"""Table "Accuracy gain over uniform allocation", in points: the optimum, size rules, misallocated noise.

With equal silos, where 1/sqrt(m) is the optimum, and with lognormal sizes, where it is not. Lognormal sizes are drawn
anew for every seed, and the plans with them.
"""

import sys
from collections.abc import Sequence

import numpy as np
from _experiments import (
    ARMS,
    INVERSE_SIZE,
    MISALLOCATED,
    OPTIMAL,
    SIZE,
    SIZE_LAWS,
    UNIFORM,
    Arm,
    Runs,
    Setting,
    Study,
    furthest_saving,
    grid,
    table_main,
    worse_than,
)
from _measured import Estimate, Measured, Measurements

SHOWN = {"optimal": OPTIMAL, "1/sqrt m": SIZE, "1/m": INVERSE_SIZE, "misallocated": MISALLOCATED}


def rows(study: Study) -> list[Measured]:
    """Returns the table, and what must hold of it."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        for law in SIZE_LAWS:
            settings = grid(task, size_laws=[law])
            runs, section = study.runs(settings), f"{task}, {law}"
            for setting in settings:
                dispersion = Estimate.of(np.array([run.dispersion for run in runs.of(setting, OPTIMAL)]))
                found.append(
                    printed.row(
                        section,
                        f"{setting.profile}, dispersion",
                        dispersion if law == "lognormal" else dispersion.mean,
                    )
                )
                found += [
                    printed.row(section, f"{setting.profile}, {name}", runs.gain(setting, arm))
                    for name, arm in SHOWN.items()
                ]
            others = [arm for arm in ARMS if arm != OPTIMAL]
            found += [
                printed.check(
                    section, "budget saved less dispersion, most", furthest_saving(runs, settings), 0.0, 1e-9
                ),
                printed.check(
                    section, "rows where another is better", worse_than(runs, settings, OPTIMAL, others), 0.0
                ),
            ]
            if law == "equal":
                found.append(printed.check(section, "optimum less 1/sqrt m, most", _apart(runs, settings, SIZE), 0.0))
            else:
                # Equally sized regions: a rule that knows region sizes alone is uniform noise.
                balanced = settings[:2]
                apart = max(_apart(runs, balanced, arm, UNIFORM) for arm in (SIZE, INVERSE_SIZE))
                found.append(printed.check(section, "balanced, size rules less uniform, most", apart, 0.0))
    return found


def _apart(runs: Runs, settings: Sequence[Setting], arm: Arm, other: Arm = OPTIMAL) -> float:
    """Returns the largest difference in accuracy of any seed between two arms, in points."""
    return max(
        float(100 * np.abs(runs.accuracy(setting, arm) - runs.accuracy(setting, other)).max()) for setting in settings
    )


main = table_main(__doc__, rows)


if __name__ == "__main__":
    sys.exit(main(None))
