"""Beyond the paper, with its own weights: better accounting, and a curious aggregator.

Beside the paper's optimum and uniform noise, both at epsilon 0.99 by Renyi accounting: the same epsilon by exact
accounting; the same K = 0.88 nats by the capacity bound, whose epsilon is larger and stands beside it; and the plan
that also holds epsilon 8 against whoever sees single updates, such as a curious regional aggregator.
"""

import argparse
import sys
from collections.abc import Sequence

from _experiments import OPTIMAL, UNIFORM, Arm, Setting, Study, run_experiment
from _measured import Estimate, Measured, Measurements
from _printed import report
from rich.console import RenderableType

from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

SHOWN = {
    "uniform": UNIFORM,
    "optimum": OPTIMAL,
    "exact": Arm(allocation="optimal", variant="exact"),
    "capacity": Arm(allocation="optimal", variant="capacity"),
    "curious": Arm(allocation="optimal", variant="curious"),
}
WORDS = {
    "uniform": "uniform, as the paper",
    "optimum": "optimum, as the paper",
    "exact": "optimum, exact accounting",
    "capacity": "optimum, same K by capacity",
    "curious": "optimum, and 8 inside",
}
CASES = (("balanced", "equal"), ("mild", "equal"), ("severe", "equal"), ("severe", "lognormal"))


def _settings(task: str) -> list[Setting]:
    return [Setting(task=task, profile=name, size_law=law, arms=tuple(SHOWN.values())) for name, law in CASES]


def rows(study: Study) -> list[Measured]:
    """Returns gains over uniform noise and over the paper's optimum in points, and what each plan promises."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        settings = _settings(task)
        runs = study.runs(settings)
        for setting in settings:
            section = f"{task}, {setting.profile}, {setting.size_law}"
            for name, arm in SHOWN.items():
                found.append(printed.row(section, f"{name}, accuracy", Estimate.of(runs.accuracy(setting, arm))))
                if arm != UNIFORM:
                    found.append(printed.row(section, f"{name}, over uniform", runs.gain(setting, arm)))
                if arm not in (UNIFORM, OPTIMAL):
                    found.append(printed.row(section, f"{name}, over the optimum", runs.gain(setting, arm, OPTIMAL)))
                found += [
                    printed.row(section, f"{name}, budget", runs.mean(setting, arm, "noise_budget")),
                    printed.row(section, f"{name}, epsilon", max(run.epsilon for run in runs.of(setting, arm))),
                    printed.row(
                        section, f"{name}, epsilon inside", max(run.epsilon_inside for run in runs.of(setting, arm))
                    ),
                ]
        kept = all(run.epsilon_inside <= 8 for setting in settings for run in runs.of(setting, SHOWN["curious"]))
        found.append(printed.check(task, "8 is held inside", float(kept), 1.0))
        for name in ("exact", "capacity"):
            lost = sum(runs.gain(setting, SHOWN[name], OPTIMAL).mean < 0 for setting in settings)
            found.append(printed.check(task, f"rows where {name} is worse than the optimum", lost, 0.0))
    return found


def picture(found: Sequence[Measured]) -> list[RenderableType]:
    """Returns a table for each federation, a line for each plan."""
    tables: list[RenderableType] = []
    columns = [
        Column(key="plan", heading="plan", figures=False),
        Column(key="accuracy", heading="accuracy"),
        Column(key="over uniform", heading="over uniform"),
        Column(key="over the optimum", heading="over optimum"),
        Column(key="budget", heading="budget, C²"),
        Column(key="epsilon", heading="epsilon"),
        Column(key="epsilon inside", heading="inside"),
    ]
    for section in dict.fromkeys(row.section for row in found if row.theory is None):
        lines = []
        for name, words in WORDS.items():
            line: dict[str, object] = {"plan": words}
            for row in found:
                prefix = f"{section}, {name}, "
                if row.quantity.startswith(prefix):
                    digits = 3 if row.ours < 1 and row.quantity.endswith("accuracy") else 2
                    error = "" if row.error is None else f" ±{row.error:.{digits}f}"
                    line[row.quantity.removeprefix(prefix)] = f"{row.ours:.{digits}f}{error}"
            lines.append(line)
        tables.append(table(section, columns, lines))
    return tables


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints the plans by federation, and the checks."""
    found = rows(study)
    if chosen.format != "table":
        return report(__doc__, found, chosen.format)
    return report(__doc__, [row for row in found if row.theory is not None], chosen.format, pictures=picture(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
