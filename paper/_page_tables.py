"""The tables of docs/federations.md beside comparisons that were trained now.

>>> row_label({"unit": "person", "name": "optimal"}), row_label({"unit": "", "name": "each silo alone"})
('person, optimal', 'each silo alone')

Sums are rounded in another way by another processor, so a metric may differ by `TRAINED`, and an epsilon by its
rounding to four digits. Every row of a whole table must be on both sides.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "federations.md"
SECTIONS = {"eicu": "eICU", "tcga-brca": "TCGA-BRCA", "heart": "Heart disease"}
"""The beginning of a federation's heading on the page."""

TRAINED = 0.002
"""How far a trained mean, or its standard error, may be from the page."""

FOUR_DIGITS = 1e-3
"""How far an epsilon may be from the page, in parts of the epsilon: the page has four digits, rounded up."""

_EPSILONS = {
    "ε above": "epsilon_above",
    "ε inside, trusted": "epsilon_inside",
    "ε inside, masked": "epsilon_masked",
}
_MEASURED = {"gain over silos alone": "gain", "worst region": "worst_region", "worst silo": "worst_silo"}


def page_tables(name: str, page: str) -> list[dict[str, dict[str, str]]]:
    """Returns the tables of a federation's section in order, each as cells by row and heading."""
    section = next(part for part in page.split("\n## ") if part.startswith(SECTIONS[name]))
    tables: list[dict[str, dict[str, str]]] = []
    headings: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            headings = []
        elif not headings:
            headings = cells
            if headings[0] == "unit, row":
                tables.append({})
        elif headings[0] == "unit, row" and not line.startswith("|---"):
            tables[-1][cells[0]] = dict(zip(headings[1:], cells[1:], strict=True))
    return tables


def row_label(row: Mapping[str, Any]) -> str:
    """Returns the name of a row of the comparison, as the page has it."""
    return f"{row['unit']}, {row['name']}" if row["unit"] else str(row["name"])


def page_differences(table: Mapping[str, Mapping[str, str]], comparison: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for every cell of a table that differs from a comparison, and for every missing row.

    Args:
        table: Cells by row and heading. A table without epsilons may leave rows out.
        comparison: The document that `fulcrum compare NAME --train -o` writes.
    """
    rows = {row_label(row): row for row in comparison["rows"]}
    whole = any(heading in _EPSILONS for cells in table.values() for heading in cells)
    differences = [f"{label} is on the page alone" for label in table if label not in rows]
    if whole:
        differences += [f"{label} is not on the page" for label in rows if label not in table]
    for label, cells in table.items():
        for heading, cell in cells.items():
            if label in rows and not _agrees(cell, _values(rows[label], heading, comparison["metric"]), heading):
                values = _values(rows[label], heading, comparison["metric"])
                differences.append(f"{label}, {heading}: {cell or 'empty'} on the page, {values} now")
    return differences


def _values(row: Mapping[str, Any], heading: str, metric: str) -> list[float]:
    """Returns the values of a row under a heading, a mean before its standard error; empty for an empty cell."""
    if heading in _EPSILONS:
        epsilon = row[_EPSILONS[heading]]
        return [] if epsilon is None else [epsilon]
    measured = row["overall" if heading == metric else _MEASURED[heading]]
    if measured["mean"] is None or (heading == "gain over silos alone" and not row["unit"] and "alone" in row["name"]):
        return []
    return [measured["mean"], measured["error"]]


def _agrees(cell: str, values: Sequence[float], heading: str) -> bool:
    words = cell.split(" ± ") if cell else []
    if heading in ("worst region", "worst silo"):
        values = values[:1]  # the page has no error of them
    return len(words) == len(values) and all(
        abs(float(word) - value) <= (FOUR_DIGITS * value if heading in _EPSILONS else TRAINED)
        for word, value in zip(words, values, strict=True)
    )
