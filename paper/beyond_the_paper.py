"""Beyond the paper: weights, clip and server chosen together with the noise.

The noise that the paper calibrates is kept to the same epsilon throughout, by exact accounting. What differs is what
silos count for, how updates are clipped, and what the server does with the sums: the parts of the joint recipe, added
one after the other on the severe profile, and together with one factor at a time changed. Beside the accuracy on the
test split stands that of the worst region: on test records mixed by class as the region's own are.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from _experiments import NO_PRIVACY, SIZE_LAWS, Arm, Runs, Setting, Study, run_experiment
from _measured import Estimate, Measured, Measurements
from _printed import report
from rich.console import RenderableType

from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

EPSILONS = (0.3, 0.99, 3, 10, 50, 200)
STEPS = {
    "sizes": "paper\noptimum",
    "least noise": "least-noise\nweights",
    "equal": "equal\nweights",
    "pooled": "+ pooled",
    "clipped": "+ clip\nand step",
    "joint": "+ shrunk:\njoint",
}
"""The parts, in the order in which the recipe adds them up; least-noise weights stand alone."""

FACTORS = ("sizes", "least noise", "joint")
NETWORK = ("sizes", "least noise", "clipped")  # without shrinkage, which holds networks back
WIDER = {"cifar10": (128, 384, 512), "agnews": (128, 384)}  # components: d = 258, 770, 1,026
HIDDEN = 16
MAY_LOSE = 0.3  # points, beyond two standard errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting at one epsilon.

    Attributes:
        section: The table that it stands in.
        name: Its line.
        setting: What is trained.
        epsilon: What every arm promises.
        parts: Those compared, the paper's first, the recipe last.
    """

    section: str
    name: str
    setting: Setting
    epsilon: float
    parts: tuple[str, ...]

    def arm(self, parts: str) -> Arm:
        """Returns the arm of some parts at the cell's epsilon."""
        return _arm(parts, self.epsilon)


def _arm(parts: str, epsilon: float) -> Arm:
    return Arm(allocation="optimal", variant="exact", epsilon=epsilon, parts=parts)


def _cells(section: str, name: str, setting: Setting, epsilons: Sequence[float], parts: Sequence[str]) -> list[Cell]:
    """One cell an epsilon, all trained together: they share batches and noise draws."""
    arms = tuple(_arm(part, epsilon) for epsilon in epsilons for part in parts)
    whole = replace(setting, arms=arms)
    return [
        Cell(
            section=section,
            name=f"{name}, epsilon {epsilon:g}".removeprefix(", "),
            setting=whole,
            epsilon=epsilon,
            parts=tuple(parts),
        )
        for epsilon in epsilons
    ]


def steps(task: str) -> list[Cell]:
    """Returns the severe profile by size law and epsilon, the parts added one after the other."""
    return [
        cell
        for law in SIZE_LAWS
        for cell in _cells(
            f"{task}, severe, {law}",
            "",
            Setting(task=task, profile="severe", size_law=law),
            EPSILONS,
            tuple(STEPS),
        )
    ]


def factors(task: str) -> list[Cell]:
    """Returns the cells that differ from the severe profile with equal silos in one factor."""
    severe = Setting(task=task, profile="severe")
    found = [
        _cells(task, name, Setting(task=task, profile=name), [0.99], FACTORS)
        for name in ("balanced", "mild", "consortium")
    ]
    found.append(_cells(task, "tcga-brca", Setting(task=task, profile="tcga-brca"), [8], FACTORS))
    found += [
        _cells(task, f"d = {2 * (width + 1):,}", replace(severe, components=width), [0.99], FACTORS)
        for width in WIDER.get(task, ())
    ]
    found.append(_cells(task, "every class", replace(severe, every_class=True), [0.99, 3, 10], FACTORS))
    found.append(_cells(task, "strong", replace(severe, shares="strong"), [0.99, 3, 10], FACTORS))
    found.append(_cells(task, f"network of {HIDDEN}", replace(severe, hidden=HIDDEN), [3], NETWORK))
    return [cell for cells in found for cell in cells]


def rows(study: Study) -> list[Measured]:
    """Returns accuracies and gains over the paper's optimum, the promises, and where the recipe falls behind."""
    printed = Measurements(__file__)
    found = []
    for task in study.tasks:
        cells = [*steps(task), *factors(task)]
        bare = [Setting(task=task, profile="severe", size_law=law, arms=(NO_PRIVACY,)) for law in SIZE_LAWS]
        runs = study.runs([*dict.fromkeys(cell.setting for cell in cells), *bare])
        found += [
            printed.row(
                f"{task}, severe, {setting.size_law}", "no privacy", Estimate.of(runs.accuracy(setting, NO_PRIVACY))
            )
            for setting in bare
        ]
        for cell in cells:
            found += _of_cell(printed, runs, cell)
        for name, what in (("accuracy", "accuracy"), ("worst_region", "the worst region")):
            lost = sum(_lost(runs, cell, name) for cell in cells)
            found.append(printed.check(task, f"cells of {len(cells)} behind the optimum in {what}", lost, 0.0))
    return found


def _of_cell(printed: Measurements, runs: Runs, cell: Cell) -> list[Measured]:
    """Returns what a cell shows, and how far it falls short of its promise."""
    setting, task = cell.setting, cell.setting.task
    paper, recipe = cell.arm(cell.parts[0]), cell.arm(cell.parts[-1])

    def row(what: str, value: Estimate | float) -> Measured:
        return printed.row(cell.section, f"{cell.name}, {what}", value)

    reached = {part: Estimate.of(runs.accuracy(setting, cell.arm(part))) for part in cell.parts}
    at_worst = {part: Estimate.of(runs.figure(setting, cell.arm(part), "worst_region")) for part in cell.parts}
    promised = f"{cell.section}, {cell.name}".removeprefix(f"{task}, ")
    return [
        *(row(part, value) for part, value in reached.items()),
        *(row(f"{part}, worst region", value) for part, value in at_worst.items()),
        row("over the optimum", runs.gain(setting, recipe, paper)),
        row("over the optimum, worst region", runs.gain(setting, recipe, paper, "worst_region")),
        row("noise over the optimum's", _ratio(runs, cell)),
        row("least influence", min(runs.figure(setting, recipe, "least_influence").tolist())),
        *printed.at_least(task, promised, reached[cell.parts[-1]]),
    ]


def _ratio(runs: Runs, cell: Cell) -> float:
    first, last = (runs.mean(cell.setting, cell.arm(part), "noise_budget") for part in (cell.parts[0], cell.parts[-1]))
    return last / first


def _lost(runs: Runs, cell: Cell, name: str) -> bool:
    """Whether the recipe is behind the paper's optimum by more than it may, beyond two standard errors."""
    gain = runs.gain(cell.setting, cell.arm(cell.parts[-1]), cell.arm(cell.parts[0]), name)
    return gain.mean < -MAY_LOSE - 2 * gain.error


def _short(cell: Cell) -> str:
    return cell.name.replace("epsilon", "ε")


def picture(found: Sequence[Measured], cells: Sequence[Cell]) -> list[RenderableType]:
    """Returns two tables a section: accuracy by part, and the gains beside the loss of influence."""
    value = {row.quantity: row for row in found}

    def shown(cell: Cell, name: str, digits: int = 3) -> str:
        row = value[f"{cell.section}, {cell.name}, {name}"]
        sign = "+" if "over the optimum" in name and "noise" not in name else ""
        return f"{row.ours:{sign}.{digits}f}" + (f" ±{row.error:.{digits}f}" if sign and row.error is not None else "")

    tables: list[RenderableType] = []
    for section in dict.fromkeys(cell.section for cell in cells):
        part = [cell for cell in cells if cell.section == section]
        parts = [name for name in STEPS if any(name in cell.parts for cell in part)]
        by_part = [
            {name: shown(cell, name) if name in cell.parts else "" for name in parts} | {"cell": _short(cell)}
            for cell in part
        ]
        private = value.get(f"{section}, no privacy")
        note = "" if private is None else f"Without privacy: {private.ours:.3f}."
        columns = [Column(key=name, heading=STEPS[name]) for name in parts]
        tables.append(table(section, [Column(key="cell", heading="", figures=False), *columns], by_part, note=note))
        gains = [
            {
                "cell": _short(cell),
                "gain": shown(cell, "over the optimum", 2),
                "paper": shown(cell, f"{cell.parts[0]}, worst region"),
                "joint": shown(cell, f"{cell.parts[-1]}, worst region"),
                "worst": shown(cell, "over the optimum, worst region", 2),
                "noise": shown(cell, "noise over the optimum's"),
                "least_influence": shown(cell, "least influence", 2),
            }
            for cell in part
        ]
        columns = [
            Column(key="gain", heading="gain,\npoints"),
            Column(key="paper", heading="worst\noptimum"),
            Column(key="joint", heading="region:\nrecipe"),
            Column(key="worst", heading="gain,\npoints"),
            Column(key="noise", heading="noise,\ntimes"),
            Column(key="least_influence", heading="least\ninfluence"),
        ]
        head = Column(key="cell", heading="recipe", figures=False)
        tables.append(table(f"{section}: the recipe over the optimum", [head, *columns], gains))
    return tables


def work(study: Study, chosen: argparse.Namespace) -> int:
    """Prints the tables, the promises and the checks."""
    found = rows(study)
    if chosen.format != "table":
        return report(__doc__, found, chosen.format)
    cells = [cell for task in study.tasks for cell in (*steps(task), *factors(task))]
    checked = [row for row in found if row.theory is not None]
    return report(__doc__, checked, chosen.format, pictures=picture(found, cells))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    return run_experiment(__doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main())
