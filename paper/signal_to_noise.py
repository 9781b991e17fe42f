"""How well the predicted signal to noise says what a model will learn.

Before training, `fulcrum plan --parameters` predicts the signal to noise over all rounds, sqrt(T / (d U)), with the
noise U that enters the model by the plan's own weights and server. Here stands what models then learnt: as a share of
what they learn without privacy, both above guessing. Profiles, widths and epsilons vary, for the paper's optimum and
for the joint recipe; once the components are whitened, so that noise matters alike in all of them. The prediction knows
nothing of the data.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from _experiments import NO_PRIVACY, TASKS, Arm, Setting, Study, run_experiment
from _measured import Measured, Measurements
from _printed import report
from rich.console import RenderableType
from scipy.stats import spearmanr

from fulcrum.planning.content.learning_signal import STRONG_SIGNAL, WEAK_SIGNAL
from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

EPSILONS = (0.03, 0.1, 0.3, 0.99, 3, 10)
RECIPES = {"sizes": "optimum", "joint": "joint"}
PROFILES = ("balanced", "severe", "tcga-brca")
WIDER = (128, 384)  # components: d = 258, 770
SEEDS = 5
HALF, NEARLY_ALL = 0.5, 0.8
ZONES = {
    f"below {WEAK_SIGNAL:g}": (0.0, WEAK_SIGNAL),
    f"{WEAK_SIGNAL:g} to {STRONG_SIGNAL:g}": (WEAK_SIGNAL, STRONG_SIGNAL),
    f"from {STRONG_SIGNAL:g}": (STRONG_SIGNAL, np.inf),
}
"""By name, from which prediction to which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One plan: what was predicted of it, and what a model learnt under it.

    Attributes:
        task: The data's name.
        recipe: One of `RECIPES`.
        predicted: The signal to noise.
        learnt: The share of what is learnt without privacy, both above guessing; mean over seeds.
    """

    task: str
    recipe: str
    predicted: float
    learnt: float


def settings(task: str) -> list[Setting]:
    """Returns what is trained on one task: every profile; the severe one also wider, and whitened."""
    arms = tuple(
        Arm(allocation="optimal", variant="exact", epsilon=epsilon, parts=parts)
        for epsilon in EPSILONS
        for parts in RECIPES
    )
    severe = Setting(task=task, profile="severe", arms=arms)
    wider = [replace(severe, components=width) for width in WIDER if task != "digits"]
    return [*(replace(severe, profile=name) for name in PROFILES), *wider, replace(severe, whitened=True)]


def cells(study: Study) -> list[Cell]:
    """Returns every plan with its prediction and with what was learnt."""
    found = []
    for task in study.tasks:
        for setting in settings(task):
            bare = replace(setting, arms=(NO_PRIVACY,))
            runs = study.runs([setting, bare], seeds=study.seeds[:SEEDS])
            guess = 1 / len(study.task_of(setting).classes)
            reach = runs.mean(bare, NO_PRIVACY, "accuracy") - guess
            found += [
                Cell(
                    task=task,
                    recipe=arm.parts,
                    predicted=runs.mean(setting, arm, "signal_to_noise"),
                    learnt=(runs.mean(setting, arm, "accuracy") - guess) / reach,
                )
                for arm in setting.arms
            ]
    return found


def _within(found: Sequence[Cell], zone: str) -> list[Cell]:
    low, high = ZONES[zone]
    return [cell for cell in found if low <= cell.predicted < high]


def rows(study: Study, found: Sequence[Cell]) -> list[Measured]:
    """Returns by task and recipe how prediction and accuracy agree, and where the prediction was wrong."""
    printed = Measurements(__file__)
    made = []
    for task in study.tasks:
        for recipe, name in RECIPES.items():
            mine = [cell for cell in found if (cell.task, cell.recipe) == (task, recipe)]
            agreement = spearmanr([cell.predicted for cell in mine], [cell.learnt for cell in mine]).statistic
            made.append(printed.row(task, f"{name}, rank correlation", float(agreement)))
            for zone in ZONES:
                learnt = [cell.learnt for cell in _within(mine, zone)]
                made += [
                    printed.row(task, f"{name}, {zone}, {what}", value)
                    for what, value in (("least", min(learnt)), ("mean", float(np.mean(learnt))), ("most", max(learnt)))
                    if learnt
                ]
    weak, _, strong = ZONES
    after_all = sum(cell.learnt >= HALF for cell in _within(found, weak))
    fell_short = sum(cell.learnt < NEARLY_ALL for cell in _within(found, strong))
    section = f"of {len(found)} plans"
    if set(study.tasks) != set(TASKS):  # what plans say was measured on these
        return made
    return [
        *made,
        printed.check(section, f"{weak}, learnt half or more", after_all, 0.0),
        printed.check(section, f"{strong}, learnt less than {NEARLY_ALL:g}", fell_short, 0.0),
    ]


def picture(study: Study, found: Sequence[Cell]) -> list[RenderableType]:
    """Returns one table: by prediction what was learnt, for each task and recipe."""
    lines = []
    for task in study.tasks:
        for recipe, name in RECIPES.items():
            mine = [cell for cell in found if (cell.task, cell.recipe) == (task, recipe)]
            agreement = spearmanr([cell.predicted for cell in mine], [cell.learnt for cell in mine]).statistic
            line = {"who": f"{task}, {name}", "agreement": f"{agreement:.2f}"}
            for zone in ZONES:
                learnt = [cell.learnt for cell in _within(mine, zone)]
                line[zone] = f"{min(learnt):.2f} to {max(learnt):.2f}" if learnt else ""
            lines.append(line)
    columns = [
        Column(key="who", heading="", figures=False),
        *(Column(key=zone, heading=f"predicted\n{zone}") for zone in ZONES),
        Column(key="agreement", heading="rank\ncorrelation"),
    ]
    note = f"Learnt: the share of what is learnt without privacy, above guessing; {len(found)} plans."
    return [table("What models learnt, by the signal to noise predicted", columns, lines, note=note)]


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints what was predicted beside what was learnt."""
    found = cells(study)
    made = rows(study, found)
    if chosen.format != "table":
        return report(__doc__, made, chosen.format)
    checked = [row for row in made if row.theory is not None]
    return report(__doc__, checked, chosen.format, pictures=picture(study, found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
