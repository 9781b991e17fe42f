"""The gallery of docs/federations.md: real federations, their noise, and every way to train them.

The first table has the noise of each structure beside the closed forms: the paper's optimum, weights of least noise,
and persons as the unit, with built-in sizes. Where FULCRUM_DATA names a folder with the tables of a source (in the
folder itself, or in its folder `federations`), the commands of the gallery follow for the source: the counts of the
tables, the exposure of the tree, the plan for patients with its report, and the comparison of all rows. Every cell of
the page's tables is then compared with these comparisons.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _page_tables import PAGE, page_differences, page_tables
from _printed import LEFT_OUT, Printed, Row, parser, report

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError
from fulcrum.simulation.data.real_federations import REAL, read_real_federation

STRUCTURES = ("eicu", "tcga-brca", "heart", "fets", "kits19")
ROUNDS, DELTA = 10, 1e-5
SPLITS = 20
WAYS: dict[str, dict[str, Any]] = {
    "Theorem 3": {},
    "least noise": {"weights": "least-noise"},
    "joint": {"recipe": "joint", "parameters": 52, "least_influence": 0.0},
}
OTHER_WAYS: dict[str, dict[str, Any]] = {
    "one multiplier": {"allocation": "uniform"},
    "equal within regions": {"weights": "equal"},
}
"""The arguments of a plan for silos by way: least influence 0 is the least noise of the joint recipe."""

EPSILONS = {"eicu": (1, 8), "tcga-brca": (1, 8), "heart": (1,)}
"""The targets of the comparisons."""

REPORTS = Path("out", "federations")


def rows() -> list[Row]:
    """Returns the noise of every structure, in q² C² for silos, and as a ratio for persons."""
    printed = Printed(__file__)
    needed = fulcrum.noise_for(1.0, rounds=ROUNDS, delta=DELTA) ** 2
    found: list[Row] = []
    for name in STRUCTURES:
        federation = fulcrum.read_federation(name)
        for words, settings in (WAYS | (OTHER_WAYS if name == "tcga-brca" else {})).items():
            made = fulcrum.plan(federation, rounds=ROUNDS, delta=DELTA, epsilon=1.0, **settings)
            found.append(printed.row(f"{name}, {words}", made.model_noise / needed))
        persons: dict[str, Any] = {"rounds": ROUNDS, "delta": DELTA, "unit": "person"}
        regional = fulcrum.plan(federation, epsilon=1.0, **persons)
        alone = fulcrum.plan(federation, epsilon={"aggregator": 1.0}, **persons)
        one = fulcrum.plan(federation, epsilon={"federation": 1.0}, aggregation="masked", **persons)
        found.append(printed.row(f"{name}, persons, by region", regional.noise_budget / alone.noise_budget))
        found.append(printed.row(f"{name}, persons, one sum", one.noise_budget / alone.noise_budget))
    eicu = fulcrum.read_federation("eicu")
    inside = {
        way: fulcrum.plan(eicu, rounds=ROUNDS, delta=DELTA, epsilon=1.0, unit="person", aggregation=way)
        for way in ("trusted", "masked")
    }
    large = np.bincount(eicu.innermost.parent_of).argmax() == eicu.innermost.parent_of
    found += [
        printed.row(f"eicu, ε inside, {way}", float(made.epsilon_inside[large].max())) for way, made in inside.items()
    ]
    return found


def show_gallery(name: str) -> int:
    """Runs the commands of a federation's section and returns the worst exit status."""
    count = REAL[name].silos_per_person
    persons = f"--unit person --unit-name patient --silos-per-person {count}"
    REPORTS.mkdir(parents=True, exist_ok=True)
    table, plan = REPORTS / f"{name}.csv", REPORTS / f"{name}.json"
    commands = [
        f"data {name} --unit person -o {table}",
        f"exposure {table}",
        f"plan {table} --rounds {ROUNDS} --epsilon 1 {persons} -o {plan}",
        f"report {plan} -o {REPORTS / name}.html",
        *(
            f"compare {name} --rounds {ROUNDS} --epsilon {e} --train --splits {SPLITS} -o {REPORTS / name}-{e}"
            for e in EPSILONS[name]
        ),
    ]
    status = 0
    for command in commands:
        print(f"\n$ fulcrum {command}", flush=True)
        status = max(status, run(shlex.split(command)))
    return max(status, check_page(name)) if status == 0 else status


def check_page(name: str) -> int:
    """Compares the page's tables of a federation with the comparisons in `REPORTS`; returns 1 if a cell differs."""
    checked: list[Row] = []
    tables = page_tables(name, PAGE.read_text("utf-8"))
    for epsilon, cells in zip(EPSILONS[name], tables, strict=True):
        comparison = json.loads((REPORTS / f"{name}-{epsilon}" / "sites.json").read_bytes())
        differences = page_differences(cells, comparison)
        for difference in differences:
            print(f"{name}, epsilon {epsilon}: {difference}", file=sys.stderr)
        quantity = f"{name}, epsilon {epsilon}, cells of the page that differ"
        checked.append(Row(quantity=quantity, ours=len(differences), theory=0.0, tolerance=0.0))
    return report(f"{PAGE.name} beside the comparisons above", checked, "table")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the noise, then the gallery of every federation whose tables are present; returns the exit status."""
    described = parser(__doc__)
    described.add_argument("--only", choices=REAL, help="the gallery of one federation alone")
    chosen = described.parse_args(arguments)
    status = 0 if chosen.only else report(__doc__, rows(), chosen.format)
    for name in [chosen.only] if chosen.only else REAL:
        try:
            read_real_federation(name)
        except DataError as error:
            LEFT_OUT.append(f"the gallery of {name}")
            print(f"Left out: the gallery of {name}. {error}", file=sys.stderr)
            continue
        status = max(status, show_gallery(name))
    return status


if __name__ == "__main__":
    sys.exit(main())
