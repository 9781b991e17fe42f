"""The code that each deployed entry point imports, held to a budget of lines that a security officer can read.

`python tests/project/test_import_budget.py` prints the table of docs/design.md.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fulcrum"

ENTRY_POINTS = {
    "`fulcrum.release`": (("core.silo.releasing",), 5_405),
    "the silo of NVIDIA FLARE": (("engines.nvflare.flare_silo", "engines.nvflare.site_launcher"), 6_680),
    "the silo of NVIDIA FLARE, with masks": (
        ("engines.nvflare.flare_masked_silo", "engines.nvflare.site_launcher"),
        7_610,
    ),
    "the silo of Flower, with masks": (("engines.flower.client_app",), 7_385),
}
"""By entry point: the modules that kits and users name, and the most lines of code that they and all that they import
may have. A silo on NVIDIA FLARE has two processes: one that stays, and one for each job."""

CLIENTS_OF_THE_CORE = {
    "aggregation",
    "audit",
    "cli",
    "planning",
    "readers",
    "rules",
    "server",
    "simulation",
    "views",
    "words",
}
"""Folders of which a silo's process imports nothing: no solver, no simulator, no picture, no server."""


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of this package that a module names, at its top, in a function, or for type checkers alone."""
    names = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name.removeprefix("fulcrum.") for name in names if name.removeprefix("fulcrum.") in modules())


def imported_by(*entries: str) -> set[str]:
    """The modules that are imported with an entry point, itself and the folders on the way included."""
    seen, todo = set(), list(entries)
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        parts = module.split(".")
        todo += [".".join(parts[:end]) for end in range(1, len(parts))]
        todo += imports(module)
    return seen


@cache
def lines_of_code(module: str) -> int:
    """Lines of a module that hold code: no blank line, no comment, no docstring."""
    return code_lines(modules()[module].read_text(encoding="utf-8"))


def code_lines(source: str) -> int:
    texts = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            texts |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in empty:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def table() -> str:
    rows = ["| entry point | modules | lines of code | budget |", "|---|---|---|---|"]
    for name, (entries, budget) in ENTRY_POINTS.items():
        found = [module for module in imported_by(*entries) if lines_of_code(module)]
        rows.append(f"| {name} | {len(found)} | {sum(map(lines_of_code, found)):,} | {budget:,} |")
    return "\n".join(rows)


def lines_by_folder(*entries: str) -> Counter[str]:
    """The lines of code that an entry point imports, by folder; the modules of `core/` itself are one folder."""
    lines: Counter[str] = Counter()
    for module in imported_by(*entries):
        path = modules()[module].relative_to(SOURCE).parts[:-1]
        lines["/".join(path[: 1 if path[:1] == ("engines",) else 2]) or "base"] += lines_of_code(module)
    return +lines


def folder_table() -> str:
    """The lines by folder, with a column for each entry point."""
    counts = [lines_by_folder(*entries) for entries, _ in ENTRY_POINTS.values()]
    rows = [f"| folder | {' | '.join(ENTRY_POINTS)} |", f"|---|{'---|' * len(counts)}"]
    for folder in sorted({folder for count in counts for folder in count}):
        rows.append(
            f"| `{folder}/` | {' | '.join(f'{count[folder]:,}' for count in counts)} |".replace("`base/`", "base")
        )
    return "\n".join(rows)


def test_lines_of_code_are_counted_without_words():
    assert (
        code_lines('"""A text."""\n\nx = 1  # why\n\n\ndef f():\n    """Says."""\n    return (\n        x\n    )\n')
        == 5
    )


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_an_entry_point_keeps_to_its_budget(name):
    entries, budget = ENTRY_POINTS[name]
    assert sum(map(lines_of_code, imported_by(*entries))) <= budget


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_a_silo_imports_no_client_of_the_core(name):
    folders = {module.split(".")[0] for module in imported_by(*ENTRY_POINTS[name][0])}
    assert not folders & CLIENTS_OF_THE_CORE
    assert "core" in folders


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_a_process_loads_what_was_counted_and_nothing_else(name):
    entries, _ = ENTRY_POINTS[name]
    for engine in ("nvflare", "flower"):
        if f"engines.{engine}" in imported_by(*entries):
            pytest.importorskip({"nvflare": "nvflare", "flower": "flwr"}[engine])
    imports = "; ".join(f"import fulcrum.{entry}" for entry in entries)
    script = f"import sys; {imports}; print(*(name for name in sys.modules if name.startswith('fulcrum.')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("fulcrum.") for name in done.stdout.split()}
    assert set(entries) <= loaded <= imported_by(*entries)


def test_kits_name_the_entry_points_that_are_counted():
    counted = {f"fulcrum.{entry}" for entries, _ in ENTRY_POINTS.values() for entry in entries}
    app = (SOURCE / "engines/templates/flower/app/fulcrum_app/client_app.py.jinja").read_text(encoding="utf-8")
    [named] = re.findall(r"^from (fulcrum\S+) import", app, re.MULTILINE)
    assert named in counted
    kits = pytest.importorskip("fulcrum.engines.nvflare.kits.nvflare_kits", reason="needs the extra nvflare")
    resources = [component["path"] for component in kits._CLIENT_RESOURCES["components"]]
    admitted = [*kits._ADMITTED["silo"], *kits._ADMITTED_MASKED["silo"]]
    named = [*resources, *(f"fulcrum.engines.nvflare.{path}" for path in admitted)]
    assert {path.rpartition(".")[0] for path in named if path.startswith("fulcrum.")} <= counted


def test_the_design_shows_the_table():
    shown = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+) \| \d+ \| ([\d,]+) \| ([\d,]+) \|$", shown, re.MULTILINE)
    budgets = {name: int(budget.replace(",", "")) for name, _, budget in cells}
    assert budgets == {name: budget for name, (_, budget) in ENTRY_POINTS.items()}
    for name, lines, _ in cells:
        real = sum(map(lines_of_code, imported_by(*ENTRY_POINTS[name][0])))
        assert int(lines.replace(",", "")) == pytest.approx(real, rel=0.02), (
            "run: python tests/project/test_import_budget.py"
        )


def test_the_design_shows_the_table_by_folder():
    shown = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\S+/`|base) \| (\d[\d,]*(?: \| \d[\d,]*){3}) \|$", shown, re.MULTILINE)
    real = re.findall(r"^\| (`\S+/`|base) \| (.*) \|$", folder_table(), re.MULTILINE)
    assert [folder for folder, _ in rows] == [folder for folder, _ in real]
    for (folder, stated), (_, counted) in zip(rows, real, strict=True):
        for here, there in zip(stated.split(" | "), counted.split(" | "), strict=True):
            numbers = [int(text.replace(",", "")) for text in (here, there)]
            assert numbers[0] == pytest.approx(numbers[1], rel=0.05, abs=10), f"{folder}: print the table again"


if __name__ == "__main__":
    print(table(), folder_table(), sep="\n\n")
