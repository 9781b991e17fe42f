"""The joint recipe against least-noise weights with tuned clip, over 140 cells.

A cell is a data set, its classes and dimension, a structure of regions, sizes and classes, and an epsilon. Least-noise
weights need no more noise than the recipe at least influence 0, so they are the strongest plain rival. Their clip norm
and learning rate are the best of a grid in every cell, by accuracy on the test split under seeds that are not reported:
a choice outside every epsilon, in the rival's favour. The recipe is its default everywhere and tuned nowhere: least
influence 0.5; on frozen embeddings its server reads the input variances of the training split, which no epsilon counts
either. A cell is behind if the recipe's accuracy is lower by more than half a point beyond two standard errors. Cells
that are behind are trained again under other seeds.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from _experiments import Arm, Setting
from _measured import Estimate, Measured, Measurements
from _printed import report
from _workers import Trained, Work, Workers, by_seed, chosen_names, in_points, run_works, work_parser
from rich.console import RenderableType

from fulcrum.simulation.training_runs import LEARNING_RATE
from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

EPSILONS = (0.3, 0.99, 3, 10)
CLIP_NORMS = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)
LEARNING_RATES = (0.1, LEARNING_RATE)
BEHIND = 0.5  # points, beyond two standard errors
MAY_BE_BEHIND = 2  # cells

REPORTED_FROM, CHOOSING_FROM, AGAIN_FROM = 7000, 8000, 9000
"""The first seeds that are reported, that choose clip norm and learning rate, and that train cells behind again."""

OURS = {"recipe": "recipe", "recipe, least 0": "recipe at least influence 0"}
UNSHRUNK = {"clipped": "recipe at least influence 0, without shrinkage"}
"""Reported beside the recipe, and compared with nothing."""

RIVAL = "least noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The cells of one data set, dimension and structure: one an epsilon, trained together."""

    name: str
    base: Setting

    def arms(self, parts: str) -> tuple[Arm, ...]:
        """Returns an arm for every epsilon."""
        return tuple(_arm(parts, epsilon) for epsilon in EPSILONS)

    @property
    def plain(self) -> Setting:
        """The setting of the recipe, and of its rival at clip norm 1."""
        return replace(self.base, arms=tuple(arm for parts in (*OURS, *UNSHRUNK, RIVAL) for arm in self.arms(parts)))

    def grid(self, learning_rate: float) -> Setting:
        """Returns the setting of the rival at every clip norm and one learning rate."""
        arms = tuple(_arm(RIVAL, epsilon, clip_norm) for epsilon in EPSILONS for clip_norm in CLIP_NORMS)
        return replace(self.base, arms=arms, learning_rate=learning_rate)

    def tuned(self, epsilon: float, tuning: "Tuning") -> Setting:
        """Returns the setting of the rival at one epsilon, with its own clip norm and learning rate."""
        arm = _arm(RIVAL, epsilon, tuning.clip_norm)
        return replace(self.base, arms=(arm,), learning_rate=tuning.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A clip norm, and the learning rate that goes with it."""

    clip_norm: float
    learning_rate: float


def _arm(parts: str, epsilon: float, clip_norm: float | None = None) -> Arm:
    return Arm(allocation="optimal", variant="exact", epsilon=epsilon, parts=parts, clip_norm=clip_norm)


def families() -> list[Family]:
    """Returns all families: embeddings with two classes, in more dimensions and with every class; then the digits."""
    return [Family(name=name, base=setting) for name, setting in _settings()]


def _settings() -> Iterator[tuple[str, Setting]]:
    for task in ("agnews", "cifar10"):
        severe = Setting(task=task, profile="severe")
        for name in ("balanced", "mild", "severe", "consortium", "tcga-brca"):
            yield f"{task}, {name}", replace(severe, profile=name)
        yield f"{task}, severe, lognormal", replace(severe, size_law="lognormal")
        yield f"{task}, severe, strong", replace(severe, shares="strong")
        for name in ("balanced", "mild", "severe", "consortium"):
            yield f"{task}, d = 258, {name}", replace(severe, profile=name, components=128)
        yield f"{task}, d = 770, severe", replace(severe, components=384)
        for name in ("mild", "severe"):
            yield f"{task}, every class, {name}", replace(severe, profile=name, every_class=True)
        yield f"{task}, every class, severe, strong", replace(severe, shares="strong", every_class=True)
    for name in ("mild", "severe", "consortium"):
        yield f"digits, {name}", Setting(task="digits", profile=name)
    for name in ("mild", "severe"):
        yield f"digits, every class, {name}", Setting(task="digits", profile=name, every_class=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One family at one epsilon, and what its rival was tuned to."""

    family: Family
    epsilon: float
    tuning: Tuning

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.family.name}, epsilon {self.epsilon:g}"

    @property
    def rival(self) -> Setting:
        """The setting of the tuned rival."""
        return self.family.tuned(self.epsilon, self.tuning)

    def works(self, seeds: Sequence[int]) -> list[Work]:
        """Returns what is to be trained under some seeds; the cells of a family share the works of the recipe."""
        return [Work(setting=setting, seed=seed) for setting in (self.family.plain, self.rival) for seed in seeds]

    def figures(self, trained: Trained, seeds: Sequence[int]) -> "CellFigures":
        """Returns accuracies and leads under some seeds."""
        plain = {
            parts: by_seed(trained, self.family.plain, _arm(parts, self.epsilon), seeds)
            for parts in (*OURS, *UNSHRUNK, RIVAL)
        }
        rival = by_seed(trained, self.rival, self.rival.arms[0], seeds)
        return CellFigures(
            accuracy={"tuned": Estimate.of(rival)} | {parts: Estimate.of(values) for parts, values in plain.items()},
            lead={parts: in_points(plain[parts], rival) for parts in OURS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """What a cell shows.

    Attributes:
        accuracy: By arm; the rival is "tuned", and at clip norm 1 `RIVAL`.
        lead: Of the recipe over the tuned rival in points, by least influence.
    """

    accuracy: Mapping[str, Estimate]
    lead: Mapping[str, Estimate]

    def is_behind(self, parts: str = "recipe") -> bool:
        """Returns true if the recipe is behind by more than `BEHIND` points beyond two standard errors."""
        return self.lead[parts].mean + 2 * self.lead[parts].error < -BEHIND


def best_tuning(trained: Trained, family: Family, epsilon: float, seeds: Sequence[int]) -> Tuning:
    """Returns the clip norm and learning rate of the rival's highest mean accuracy over the choosing seeds."""
    means = {
        Tuning(clip_norm=clip_norm, learning_rate=rate): float(
            by_seed(trained, family.grid(rate), _arm(RIVAL, epsilon, clip_norm), seeds).mean()
        )
        for rate in LEARNING_RATES
        for clip_norm in CLIP_NORMS
    }
    return max(means, key=means.__getitem__)


def measure_cells(chosen: argparse.Namespace) -> tuple[dict[Cell, CellFigures], dict[Cell, CellFigures]]:
    """Returns the figures of all cells, and those of cells that are behind under seeds of their own."""
    names = chosen_names((family.name for family in families()), chosen.cells)
    whole = [family for family in families() if family.name in names]
    choosing = range(CHOOSING_FROM, CHOOSING_FROM + chosen.choosing_seeds)
    grids = [
        Work(setting=family.grid(rate), seed=seed) for family in whole for rate in LEARNING_RATES for seed in choosing
    ]
    with Workers(data_dir=chosen.data_dir, processes=chosen.processes) as workers:
        tried = workers.train(grids, "Tuning least-noise weights")
        cells = [
            Cell(family=family, epsilon=epsilon, tuning=best_tuning(tried, family, epsilon, choosing))
            for family in whole
            for epsilon in EPSILONS
        ]
        figures = _figures(workers, cells, range(REPORTED_FROM, REPORTED_FROM + chosen.seeds), "Training all cells")
        behind = [cell for cell, shown in figures.items() if any(shown.is_behind(parts) for parts in OURS)]
        seeds = range(AGAIN_FROM, AGAIN_FROM + chosen.seeds)
        return figures, _figures(workers, behind, seeds, "Training cells that are behind again")


def _figures(workers: Workers, cells: Sequence[Cell], seeds: Sequence[int], title: str) -> dict[Cell, CellFigures]:
    if not cells:
        return {}
    trained = workers.train([work for cell in cells for work in cell.works(seeds)], title)
    return {cell: cell.figures(trained, seeds) for cell in cells}


def rows(figures: Mapping[Cell, CellFigures], again: Mapping[Cell, CellFigures]) -> list[Measured]:
    """Returns accuracies, tunings and leads of every cell, those of cells trained again, and the count behind."""
    printed = Measurements(__file__)
    found = []
    for seeds, part in (("", figures), (", other seeds", again)):
        for cell, shown in part.items():
            section = f"{cell.name}{seeds}"
            names = {
                "tuned": "least-noise weights, tuned",
                RIVAL: "least-noise weights, clip norm 1",
                **OURS,
                **UNSHRUNK,
            }
            found += [printed.row(section, name, shown.accuracy[parts]) for parts, name in names.items()]
            found += [printed.row(section, f"lead of {name}", shown.lead[parts]) for parts, name in OURS.items()]
            found.append(printed.row(section, "tuned clip norm", cell.tuning.clip_norm))
            found.append(printed.row(section, "tuned learning rate", cell.tuning.learning_rate))
    for parts, name in OURS.items():
        behind = [cell for cell, shown in figures.items() if shown.is_behind(parts)]
        found.append(printed.row("suite", f"{name}: cells behind, of {len(figures)}", len(behind)))
        still = [cell for cell in behind if again[cell].is_behind(parts)]
        found.append(printed.row("suite", f"{name}: cells behind under other seeds too", len(still)))
        leads = [shown.lead[parts] for shown in figures.values()]
        found.append(printed.row("suite", f"{name}: cells ahead", sum(lead.mean > 2 * lead.error for lead in leads)))
    count = sum(shown.is_behind() for shown in figures.values())
    more = max(0, count - MAY_BE_BEHIND)
    found.append(printed.check("suite", f"cells behind beyond {MAY_BE_BEHIND}", more, 0.0))
    return found


def picture(figures: Mapping[Cell, CellFigures], again: Mapping[Cell, CellFigures]) -> list[RenderableType]:
    """Returns a table of each family, and a table of each family with cells behind under other seeds."""
    columns = [
        Column(key="epsilon", heading="ε", figures=False),
        Column(key="rival", heading="least noise,\ntuned"),
        Column(key="clip", heading="clip,\nrate"),
        Column(key="recipe", heading="recipe"),
        Column(key="lead", heading="lead,\npoints"),
        Column(key="lead 0", heading="at least\ninfluence 0"),
        Column(key="unshrunk", heading="without\nshrinkage"),
    ]
    tables = []
    for what, part in (("", figures), (": cells behind, under other seeds", again)):
        for name in dict.fromkeys(cell.family.name for cell in part):
            lines = [_line(cell, shown) for cell, shown in part.items() if cell.family.name == name]
            tables.append(table(f"{name}{what}", columns, lines, note="* behind by more than half a point."))
    return tables


def _line(cell: Cell, shown: CellFigures) -> dict[str, str]:
    def points(parts: str) -> str:
        lead = shown.lead[parts]
        return f"{lead.mean:+.1f} ±{lead.error:.1f}{' *' if shown.is_behind(parts) else ''}"

    return {
        "epsilon": f"{cell.epsilon:g}",
        "rival": f"{shown.accuracy['tuned'].mean:.3f}",
        "clip": f"{cell.tuning.clip_norm:g}, {cell.tuning.learning_rate:g}",
        "recipe": f"{shown.accuracy['recipe'].mean:.3f}",
        "lead": points("recipe"),
        "lead 0": points("recipe, least 0"),
        "unshrunk": f"{shown.accuracy['clipped'].mean:.3f}",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script and returns its exit status."""
    described = work_parser(__doc__, seeds=40, cells="families of cells")
    described.add_argument("--choosing-seeds", type=int, default=10, help="how many choose clip norm and learning rate")

    def work(chosen: argparse.Namespace) -> int:
        figures, again = measure_cells(chosen)
        found = rows(figures, again)
        if chosen.format != "table":
            return report(__doc__, found, chosen.format)
        counts = [row for row in found if row.section == "suite"]
        return report(__doc__, counts, chosen.format, pictures=picture(figures, again))

    return run_works(described, work, arguments, names=[family.name for family in families()])


if __name__ == "__main__":
    sys.exit(main())
