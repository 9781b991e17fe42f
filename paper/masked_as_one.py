"""What masking buys: all silos masked as one group need the noise of one sum, where five regions need that of five.

The 96 equal silos of the severe profile, each with the same records throughout, at the same epsilon by exact
accounting. Beside the paper's optimum, whose target is on every regional sum, stand two ways of masking all silos as
one group, so that nobody sees a regional sum: the paper's own weights, clip and server with the target on the
federation's sum; and the joint recipe, whose server pools rounds and shrinks, with all silos planned as one region.
"""

import argparse
import sys
from collections.abc import Sequence

from _experiments import NO_PRIVACY, ONE_REGION, Arm, Runs, Setting, Study, run_experiment
from _measured import Estimate, Measured, Measurements
from _printed import report
from rich.console import RenderableType

from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

EPSILONS = (0.3, 0.99)
PROFILE = "severe"
COLUMNS = {
    "regions": "paper's optimum,\nfive regions",
    "one group": "the same,\none masked group",
    "joint": "joint recipe,\none masked region",
    "no privacy": "no\nprivacy",
}


def settings(task: str) -> tuple[Setting, Setting, Setting]:
    """Returns what is trained: with regions, as one region, and without privacy."""
    parts = ("sizes", "as one")
    by_region = tuple(_arm(part, epsilon) for epsilon in EPSILONS for part in parts)
    as_one = tuple(_arm("masked joint", epsilon) for epsilon in EPSILONS)
    return (
        Setting(task=task, profile=PROFILE, arms=by_region),
        Setting(task=task, profile=PROFILE + ONE_REGION, arms=as_one),
        Setting(task=task, profile=PROFILE, arms=(NO_PRIVACY,)),
    )


def _arm(parts: str, epsilon: float) -> Arm:
    return Arm(allocation="optimal", variant="exact", epsilon=epsilon, parts=parts)


def rows(study: Study) -> list[Measured]:
    """Returns accuracies, gains over the paper's optimum and noise by task and epsilon, and the promises."""
    printed, found = Measurements(__file__), []
    for task in study.tasks:
        runs = study.runs(settings(task))
        for epsilon in EPSILONS:
            found += _of_epsilon(printed, runs, task, epsilon)
    return found


def _of_epsilon(printed: Measurements, runs: Runs, task: str, epsilon: float) -> list[Measured]:
    by_region, as_one, bare = settings(task)
    optimum, group, joint = (_arm(part, epsilon) for part in ("sizes", "as one", "masked joint"))
    reached = {
        "regions": runs.accuracy(by_region, optimum),
        "one group": runs.accuracy(by_region, group),
        "joint": runs.accuracy(as_one, joint),
        "no privacy": runs.accuracy(bare, NO_PRIVACY),
    }
    noise = runs.mean(by_region, group, "noise_budget") / runs.mean(by_region, optimum, "noise_budget")
    section = f"{task}, epsilon {epsilon:g}"
    found = [printed.row(section, name, Estimate.of(values)) for name, values in reached.items()]
    for name in ("one group", "joint"):
        gain = Estimate.of(100 * (reached[name] - reached["regions"]))
        found.append(printed.row(section, f"{name}, points over the optimum", gain))
        found += printed.at_least(section, name, Estimate.of(reached[name]))
    # One sum has the noise of a fifth of five sums of the same target.
    found.append(printed.check(section, "noise of one group over the optimum's", noise, 1 / 5, 1e-9))
    return found


def picture(found: Sequence[Measured], tasks: Sequence[str]) -> list[RenderableType]:
    """Returns the table of accuracies with their standard errors."""
    value = {row.quantity: f"{row.ours:.3f} ±{row.error or 0:.3f}" for row in found}
    lines = [
        {"what": f"{task}, ε {epsilon:g}"} | {name: value[f"{task}, epsilon {epsilon:g}, {name}"] for name in COLUMNS}
        for task in tasks
        for epsilon in EPSILONS
    ]
    columns = [Column(key=name, heading=heading) for name, heading in COLUMNS.items()]
    head = Column(key="what", heading="", figures=False)
    return [table("96 equal silos: accuracy", [head, *columns], lines)]


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints the table, the promises and the checks."""
    found = rows(study)
    if chosen.format != "table":
        return report(__doc__, found, chosen.format)
    checked = [row for row in found if row.theory is not None]
    return report(__doc__, checked, chosen.format, pictures=picture(found, study.tasks))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
