"""The gallery's tables are compared with what was trained: a cell that differs, and a row that is missing, is named."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "federations.md").read_text("utf-8")


@pytest.fixture
def script():
    specification = importlib.util.spec_from_file_location("_page_tables", ROOT / "paper" / "_page_tables.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def measured(cell):
    mean, _, error = cell.partition(" ± ")
    return {"mean": float(mean) if mean else None, "error": float(error) if error else None}


def comparison_of(table, metric):
    """Returns the comparison that has exactly the values of a table."""
    rows = []
    for label, cells in table.items():
        unit, _, name = label.partition(", ") if label.startswith(("person,", "silo,")) else ("", "", label)
        epsilons = [cells[words] for words in ("ε above", "ε inside, trusted", "ε inside, masked")]
        row = dict(zip(("epsilon_above", "epsilon_inside", "epsilon_masked"), epsilons, strict=True))
        row = {key: float(cell) if cell else None for key, cell in row.items()}
        for key, words in (
            ("overall", metric),
            ("gain", "gain over silos alone"),
            ("worst_region", "worst region"),
            ("worst_silo", "worst silo"),
        ):
            row[key] = measured(cells.get(words, ""))
        rows.append({"unit": unit, "name": name} | row)
    return {"metric": metric, "rows": rows}


@pytest.mark.parametrize(
    ("name", "metric", "tables"), [("eicu", "auc", 2), ("tcga-brca", "concordance", 2), ("heart", "accuracy", 1)]
)
def test_every_cell_of_the_page_is_compared(script, name, metric, tables):
    page = script.page_tables(name, PAGE)
    assert [len(table) for table in page] == [14, 7][:tables]
    whole = comparison_of(page[0], metric)
    assert script.page_differences(page[0], whole) == []
    changes = 0
    for row in whole["rows"]:
        for key in ("epsilon_above", "epsilon_inside", "epsilon_masked"):
            if row[key] is not None:
                changes += only_difference(script, page[0], whole, row, key, row[key] * 1.002)
        for key in ("overall", "gain", "worst_region", "worst_silo"):
            if row[key]["mean"] is not None and not (key == "worst_region" and name == "heart"):
                changes += only_difference(
                    script, page[0], whole, row, key, row[key] | {"mean": row[key]["mean"] + 0.003}
                )
    assert changes == sum(bool(cell) for cells in page[0].values() for cell in cells.values())


def only_difference(script, table, comparison, row, key, value):
    """Checks that a changed value alone is named, and restores the value."""
    value, row[key] = row[key], value
    differences = script.page_differences(table, comparison)
    row[key] = value
    assert len(differences) == 1, (row, key)
    assert differences[0].startswith(script.row_label(row))
    return 1


def test_a_row_on_one_side_alone_is_named(script):
    whole, short = script.page_tables("eicu", PAGE)
    comparison = comparison_of(whole, "auc")
    *rows, last = comparison["rows"]
    differences = script.page_differences(whole, comparison | {"rows": rows})
    assert differences == ["each silo alone is on the page alone"]
    missing = {label: cells for label, cells in whole.items() if label != "silo, joint"}
    assert script.page_differences(missing, comparison) == ["silo, joint is not on the page"]
    other = [row | {"overall": measured(short.get(script.row_label(row), {"auc": ""})["auc"])} for row in [*rows, last]]
    assert script.page_differences(short, comparison | {"rows": other}) == []


def test_the_readme_has_the_numbers_of_the_page(script):
    rows = script.page_tables("eicu", PAGE)[0]
    readme = (ROOT / "README.md").read_text("utf-8")
    lines = re.search(r"\| noise \| AUC \| ε inside \|\n\|.*\n((?:\|.*\n)+)", readme)[1].splitlines()
    shown = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    chosen = (
        ("each silo alone", ""),
        ("person, each silo for itself", "ε inside, trusted"),
        ("person, optimal", "ε inside, trusted"),
        ("person, one masked group", "ε inside, masked"),
        ("no privacy, person", ""),
    )
    assert [row[1:] for row in shown] == [
        [rows[label]["auc"], rows[label].get(epsilon, "")] for label, epsilon in chosen
    ]
