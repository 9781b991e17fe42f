"""What the joint recipe promises: accuracy at strong noise, for the worst region, in conflict, and its price elsewhere.

Every block is trained under 40 seeds that chose nothing, with exact accounting, and holds the recipe beside its first
form ("before": least influence 0, the same shrinkage for every input) and the paper's optimum at clip norm 1. On frozen
embeddings the recipe's server reads the variances of the inputs over the training split, which no epsilon counts; a
deployment takes them from public data.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from _experiments import SIZE_LAWS, SWAPPED, Arm, Setting
from _measured import Estimate, Measured, Measurements
from _printed import report
from _workers import (
    Outcome,
    PersonWork,
    Trained,
    Work,
    Workers,
    by_seed,
    chosen_names,
    in_points,
    run_works,
    work_parser,
)
from rich.console import RenderableType

from fulcrum.arrays import FloatArray
from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

REPORTED_FROM = 7000
"""The first seed that is reported."""

TASKS = ("agnews", "cifar10")
WIDE = 384  # components: d = 770
LARGEST_SHARE = 60 / 96  # of the records, in the largest region of the severe profile

_Work = Work | PersonWork
_Rows = Callable[[Trained, Sequence[int], Measurements], list[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of what is promised.

    Attributes:
        name: Its name for `--cells`.
        works: What it trains under one seed.
        rows: What it shows.
    """

    name: str
    works: Callable[[int], list[_Work]]
    rows: _Rows


def _arm(parts: str, epsilon: float) -> Arm:
    return Arm(allocation="optimal", variant="exact", epsilon=epsilon, parts=parts)


def _setting(base: Setting, epsilons: Sequence[float], parts: Sequence[str]) -> Setting:
    return replace(base, arms=tuple(_arm(part, epsilon) for epsilon in epsilons for part in parts))


def _of(*settings: Setting) -> Callable[[int], list[_Work]]:
    return lambda seed: [Work(setting=setting, seed=seed) for setting in settings]


SEVERE_PARTS = {
    "sizes": "optimum",
    "joint": "before",
    "recipe, no prior": "recipe without prior",
    "recipe, several scales": "recipe, several scales",
    "recipe, disputes unheard": "recipe, disputes unheard",
    "recipe, least 0": "recipe, least influence 0",
    "recipe": "recipe",
}
SEVERE_EPSILONS = (0.3, 0.99, 3, 10)


def severe(task: str, law: str) -> Block:
    """Returns the severe profile with equal or lognormal sizes."""
    setting = _setting(Setting(task=task, profile="severe", size_law=law), SEVERE_EPSILONS, tuple(SEVERE_PARTS))
    return _accuracy_block(f"{task}, severe, {law}", setting, SEVERE_EPSILONS, SEVERE_PARTS)


def wide(task: str) -> Block:
    """Returns the severe profile with 384 components."""
    base = Setting(task=task, profile="severe", components=WIDE)
    return _accuracy_block(
        f"{task}, d = 770", _setting(base, (0.3, 0.99), tuple(SEVERE_PARTS)), (0.3, 0.99), SEVERE_PARTS
    )


def one_group(task: str) -> Block:
    """Returns all silos of the severe profile masked as one group."""
    parts = {"as one": "paper's weights, one group", "masked recipe, no prior": "no prior", "masked recipe": "recipe"}
    setting = _setting(Setting(task=task, profile="severe"), (0.3, 0.99), tuple(parts))
    return _accuracy_block(f"{task}, one masked group", setting, (0.3, 0.99), parts)


def _accuracy_block(name: str, setting: Setting, epsilons: Sequence[float], parts: dict[str, str]) -> Block:
    """Returns a block of accuracies, and of the gains of the last part over each other part."""

    def rows(trained: Trained, seeds: Sequence[int], printed: Measurements) -> list[Measured]:
        found = []
        for epsilon in epsilons:
            section = f"{name}, epsilon {epsilon:g}"
            values = {words: by_seed(trained, setting, _arm(part, epsilon), seeds) for part, words in parts.items()}
            for words, accuracy in values.items():
                found.append(printed.row(section, words, Estimate.of(accuracy)))
                found += printed.at_least(section, words, Estimate.of(accuracy))
            last = values["recipe"]
            for words, accuracy in values.items():
                if words != "recipe":
                    found += _gain(printed, section, f"recipe over {words}, points", last, accuracy)
        return found

    return Block(name=name, works=_of(setting), rows=rows)


def _gain(printed: Measurements, section: str, quantity: str, first: FloatArray, second: FloatArray) -> list[Measured]:
    gain = in_points(first, second)
    return [printed.row(section, quantity, gain), *printed.at_least(section, quantity, gain)]


def strong(task: str) -> Block:
    """Returns the severe profile whose regions alone set class shares, to 0.05 or 0.95: accuracy and worst region."""
    epsilons = (0.99, 3, 10)
    setting = _setting(Setting(task=task, profile="severe", shares="strong"), epsilons, tuple(SEVERE_PARTS))

    def rows(trained: Trained, seeds: Sequence[int], printed: Measurements) -> list[Measured]:
        found = []
        for epsilon in epsilons:
            section = f"{task}, strong, epsilon {epsilon:g}"
            for figure, suffix in (("accuracy", ""), ("worst_region", ", worst region")):
                values = {
                    words: by_seed(trained, setting, _arm(part, epsilon), seeds, figure)
                    for part, words in SEVERE_PARTS.items()
                }
                found += [printed.row(section, f"{words}{suffix}", Estimate.of(v)) for words, v in values.items()]
                for words in ("before", "optimum"):
                    what = f"recipe over {words}{suffix}, points"
                    found += _gain(printed, section, what, values["recipe"], values[words])
        return found

    return Block(name=f"{task}, strong", works=_of(setting), rows=rows)


CONFLICT_PARTS = {
    "sizes": "optimum",
    "joint": "before",
    "recipe, no prior": "recipe without prior",
    "recipe, several scales": "recipe, several scales",
    "recipe, disputes unheard": "recipe, disputes unheard",
    "recipe, least 0": "recipe, least influence 0",
    "recipe": "recipe",
    "recipe, least 1": "recipe, least influence 1",
}


def conflict(task: str) -> Block:
    """Returns the severe profile whose largest region has swapped labels: accuracy over regions, each by its own."""
    epsilons = (0.99, 3, 10)
    setting = _setting(Setting(task=task, profile="severe", shares=SWAPPED), epsilons, tuple(CONFLICT_PARTS))

    def rows(trained: Trained, seeds: Sequence[int], printed: Measurements) -> list[Measured]:
        found = []
        for epsilon in epsilons:
            section = f"{task}, conflict, epsilon {epsilon:g}"
            values = {
                words: by_seed(trained, setting, _arm(part, epsilon), seeds, "over_regions")
                for part, words in CONFLICT_PARTS.items()
            }
            found += [printed.row(section, words, Estimate.of(accuracy)) for words, accuracy in values.items()]
            more = {words: accuracy - values["before"] for words, accuracy in values.items() if words != "before"}
            found += [
                printed.row(section, f"{words} over before, points", Estimate.of(100 * lead))
                for words, lead in more.items()
            ]
            for part in ("sizes", "recipe, disputes unheard", "recipe", "recipe, least 1"):
                records = over_records(by_seed(trained, setting, _arm(part, epsilon), seeds))
                found.append(printed.row(section, f"{CONFLICT_PARTS[part]}, over records", Estimate.of(records)))
            most = _share(more["recipe, least influence 1"], more["optimum"])
            found.append(printed.row(section, "share regained by least influence 1", most))
            regained = _share(more["recipe"], more["optimum"])
            found.append(printed.row(section, "share of the loss regained", regained))
            found += printed.at_least(section, "share of the loss regained", regained)
        return found

    return Block(name=f"{task}, conflict", works=_of(setting), rows=rows)


def over_records(accuracy: FloatArray) -> FloatArray:
    """Returns the accuracy over all records, each by its region's labels, where the largest region's are swapped.

    Args:
        accuracy: By the labels of the other regions.
    """
    return LARGEST_SHARE * (1 - accuracy) + (1 - LARGEST_SHARE) * accuracy


def _share(part: FloatArray, whole: FloatArray) -> Estimate:
    """Returns the ratio of two means over seeds, with its standard error to first order."""
    ratio = float(part.mean() / whole.mean())
    error = Estimate.of(part - ratio * whole).error / abs(float(whole.mean()))
    return Estimate(mean=ratio, error=error, seeds=len(part))


def digits(profile: str, *, every_class: bool) -> Block:
    """Returns what the prior would cost on the digits, which are no embedding, so that the recipe leaves it out."""
    epsilons = (0.3, 0.99, 3, 10)
    parts = {"recipe, no prior": "today's shrinkage", "recipe": "recipe", "recipe, prior": "prior all the same"}
    setting = _setting(Setting(task="digits", profile=profile, every_class=every_class), epsilons, tuple(parts))
    name = f"digits, {profile}, every class" if every_class else f"digits, {profile}"

    def rows(trained: Trained, seeds: Sequence[int], printed: Measurements) -> list[Measured]:
        found = []
        for epsilon in epsilons:
            section = f"{name}, epsilon {epsilon:g}"
            values = {w: by_seed(trained, setting, _arm(part, epsilon), seeds) for part, w in parts.items()}
            found += [printed.row(section, words, Estimate.of(accuracy)) for words, accuracy in values.items()]
            before = values["today's shrinkage"]
            for words in ("recipe", "prior all the same"):
                found.append(printed.row(section, f"{words}, points", in_points(values[words], before)))
            lost = 100 * float((before - values["recipe"]).mean())
            found.append(printed.check(section, "points lost, beyond 0.2", max(0.0, lost - 0.2), 0.0))
        return found

    return Block(name=name, works=_of(setting), rows=rows)


PERSON_EPSILONS = (0.1, 0.3, 0.99)


def persons(task: str) -> Block:
    """Returns the rows of a comparison that protects persons: every record is a person of its own."""

    def works(seed: int) -> list[_Work]:
        return [PersonWork(task=task, profile="severe", epsilons=PERSON_EPSILONS, seed=seed)]

    def rows(trained: Trained, seeds: Sequence[int], printed: Measurements) -> list[Measured]:
        outcomes: list[dict[tuple[float, str], Outcome]] = [
            {arm: outcome for (work, arm), outcome in trained.items() if work == works(seed)[0]} for seed in seeds
        ]
        found = []
        for epsilon, name in outcomes[0]:
            values = np.array([by_arm[epsilon, name].accuracy for by_arm in outcomes])
            section = f"{task}, persons" if not epsilon else f"{task}, persons, epsilon {epsilon:g}"
            found.append(printed.row(section, name, Estimate.of(values)))
        return found

    return Block(name=f"{task}, persons", works=works, rows=rows)


def blocks() -> list[Block]:
    """Returns all blocks."""
    by_task = (wide, one_group, strong, conflict, persons)
    return [
        *(severe(task, law) for law in SIZE_LAWS for task in TASKS),
        *(block(task) for block in by_task for task in TASKS),
        *(digits(name, every_class=every) for name in ("mild", "severe", "consortium") for every in (False, True)),
    ]


def within_two_points(rows: Sequence[Measured]) -> list[Measured]:
    """Returns how far lognormal sizes are behind equal sizes beyond two points, where both were trained."""
    value, printed = {row.quantity: row for row in rows}, Measurements(__file__)
    found = []
    for task in TASKS:
        for epsilon in (0.3, 0.99):
            equal, drawn = (value.get(f"{task}, severe, {law}, epsilon {epsilon:g}, recipe") for law in SIZE_LAWS)
            if equal is not None and drawn is not None:
                behind = max(0.0, 100 * (equal.ours - drawn.ours) - 2)
                section = f"{task}, severe, lognormal, epsilon {epsilon:g}"
                found.append(printed.check(section, "points behind equal sizes, beyond 2", behind, 0.0))
    return found


def picture(found: Sequence[Measured]) -> list[RenderableType]:
    """Returns a table for each block and structure: what was measured by line, epsilons by column."""
    lines: dict[str, dict[str, dict[str, str]]] = {}
    for row in found:
        if row.theory is None:
            block, _, epsilon = row.section.partition(", epsilon ")
            name = row.quantity.removeprefix(f"{row.section}, ")
            line = lines.setdefault(block, {}).setdefault(name, {"what": name})
            line[epsilon or "none"] = _shown(row)
    tables = []
    for block, by_name in lines.items():
        epsilons = dict.fromkeys(key for line in by_name.values() for key in line if key != "what")
        columns = [Column(key="what", heading="", figures=False)]
        columns += [Column(key=key, heading="no ε" if key == "none" else f"ε {key}") for key in epsilons]
        tables.append(table(block, columns, [dict.fromkeys(epsilons, "") | line for line in by_name.values()]))
    return tables


def _shown(row: Measured) -> str:
    if "points" in row.quantity:
        return f"{row.ours:+.1f} ±{row.error:.1f}"
    return f"{row.ours:.3f} ±{row.error:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    described = work_parser(__doc__, seeds=40, cells="blocks")

    def work(chosen: argparse.Namespace) -> int:
        names = chosen_names((block.name for block in blocks()), chosen.cells)
        asked = [block for block in blocks() if block.name in names]
        seeds = range(REPORTED_FROM, REPORTED_FROM + chosen.seeds)
        works = [one for block in asked for seed in seeds for one in block.works(seed)]
        with Workers(data_dir=chosen.data_dir, processes=chosen.processes) as workers:
            trained = workers.train(works, "Training")
        printed = Measurements(__file__)
        found = [row for block in asked for row in block.rows(trained, seeds, printed)]
        found += within_two_points(found)
        if chosen.format != "table":
            return report(__doc__, found, chosen.format)
        checked = [replace(row, section="") for row in found if row.theory is not None]
        return report(__doc__, checked, chosen.format, pictures=picture(found))

    return run_works(described, work, arguments, names=[block.name for block in blocks()])


if __name__ == "__main__":
    sys.exit(main())
