"""Notebooks as pages of the site: read, run cell by cell, and shown with the results of every cell.

The notebooks in docs/tutorials are stored without results, so that a difference between two versions is a difference
of words or code. The build of the site runs a notebook in an empty folder, and tests run every notebook. A notebook
with needs beyond Fulcrum, such as PyTorch, names the packages in its metadata (`fulcrum.needs`); without the packages,
the page of the notebook shows the code alone.

`python docs/_ext/notebooks.py` removes the results that an editor has stored.

Why not a kernel? The cells are plain Python without magic commands, so `exec` runs them in seconds and without ten more
packages.
"""

import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from myst_parser.parsers.sphinx_ import MystParser

FOLDER = Path(__file__).resolve().parents[1] / "tutorials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The results of a cell: printed text, and the value of the last expression as text and as HTML."""

    printed: str = ""
    text: str = ""
    html: str = ""


def cells_of(source):
    """Returns the cells of a notebook's JSON as pairs of kind and text."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(source)["cells"]]


def packages_of(source):
    """Returns the packages that a notebook needs beyond Fulcrum, by the names that Python imports."""
    return json.loads(source)["metadata"].get("fulcrum", {}).get("needs", [])


def can_run(source):
    """Returns True if all packages of a notebook are installed."""
    return all(map(importlib.util.find_spec, packages_of(source)))


def run_notebook(source, name):
    """Runs all cells in an empty folder; returns the results by cell, None for a cell of words."""
    namespace = {"__name__": "__main__"}
    results = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (kind, text) in enumerate(cells_of(source), 1):
                results.append(_run_cell(text, f"{name} cell {number}", namespace) if kind == "code" else None)
        finally:
            os.chdir(before)
    return results


def _run_cell(text, place, namespace):
    """Runs a cell as a notebook does: the value of a last expression is shown, unless it is None."""
    body = ast.parse(text, place).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) and not text.rstrip().endswith(";") else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), place, "exec"), namespace)  # noqa: S102, the project's own notebook
        value = None if last is None else eval(compile(ast.Expression(last.value), place, "eval"), namespace)  # noqa: S307
    if value is None:
        return Shown(printed=printed.getvalue())
    html = getattr(value, "_repr_html_", None)
    return Shown(printed=printed.getvalue(), text=repr(value), html="" if html is None else html() or "")


def page_of(source, results=None):
    """Returns a notebook as MyST: words as they are, code as blocks, and the results below the code."""
    parts = []
    cells = cells_of(source)
    for (kind, text), shown in zip(cells, results or [None] * len(cells), strict=True):
        if kind == "markdown":
            parts.append(text)
            continue
        parts.append(_fenced("python", text))
        if shown is None:
            continue
        if shown.printed:
            parts.append(_fenced("text", shown.printed.rstrip("\n")))
        if shown.html:
            parts.append(_fenced("{raw} html", f'<div class="cell-result">\n{shown.html}\n</div>'))
        elif shown.text:
            parts.append(_fenced("text", shown.text))
    if results is None:
        needed = " and ".join(f"`{package}`" for package in packages_of(source))
        parts.insert(1, f"*This build of the site ran without {needed}, so the results of the cells are left out.*")
    return "\n\n".join(parts) + "\n"


def _fenced(language, text):
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def without_results(source):
    """Returns a notebook's JSON without results, counts of cells and the settings of an editor."""
    notebook = json.loads(source)
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    kept = ("fulcrum", "kernelspec", "language_info")
    metadata = {name: notebook["metadata"][name] for name in kept if name in notebook["metadata"]}
    metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata["language_info"] = {"name": "python"}
    notebook["metadata"] = metadata
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


class NotebookParser(MystParser):
    """Reads a notebook as a page of MyST."""

    supported = ("ipynb", "notebook")

    def parse(self, inputstring, document):
        """Runs the notebook if its packages are there, and reads the page."""
        name = Path(str(document.get("source"))).name
        results = run_notebook(inputstring, name) if can_run(inputstring) else None
        super().parse(page_of(inputstring, results), document)


def setup(app):
    """Registers notebooks as sources."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": False, "parallel_write_safe": True}  # the current folder changes while cells run


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        path.write_text(without_results(path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"docs/tutorials/{path.name} has no results\n")
