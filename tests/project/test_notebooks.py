"""The notebooks of the tutorials run from top to bottom, and are stored without results."""

import ast
import json
from pathlib import Path

import pytest

import fulcrum
from fulcrum.rules import rule_registry

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
SHOWN = {
    "audit": ["Plan", "Audit", "Audit", "DataFrame"],
    "own_allocation_and_server_rule": ["Comparisons", "TrainingRun", "DataFrame"],
    "own_pytorch_model": ["TrainingRun", "TrainingRun", "Comparisons"],
    "plan_a_consortium": ["Plan", "Plan", "DataFrame", "Comparisons"],
}
"""The displays of each notebook, by the class that they show."""


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    pytest.importorskip("myst_parser", reason="reads the pages of the site")
    monkeypatch.setattr(rule_registry, "_RULES", dict(rule_registry._RULES))  # a rule of a notebook stays in it
    import notebooks

    return notebooks


def text_of(path):
    return path.read_text(encoding="utf-8")


def packages_of(path):
    return json.loads(text_of(path))["metadata"].get("fulcrum", {}).get("needs", [])


def displays_of(results):
    """Returns the classes that the cells of a notebook show as HTML."""
    shown = [result for result in results if result is not None and result.html]
    return [
        next((name for name in SHOWN_CLASSES if result.text.startswith(f"<{name} of ")), "DataFrame")
        for result in shown
    ]


SHOWN_CLASSES = ("Plan", "Comparisons", "TrainingRun", "Audit")


def test_there_are_four_notebooks():
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if "torch" not in packages_of(path)], ids=lambda p: p.stem)
def test_every_cell_runs_and_shows_its_result(notebooks, path):
    if not notebooks.can_run(text_of(path)):
        pytest.skip(f"needs {packages_of(path)}")
    assert displays_of(notebooks.run_notebook(text_of(path), path.name)) == SHOWN[path.stem]


@pytest.mark.torch
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if "torch" in packages_of(path)], ids=lambda p: p.stem)
def test_every_cell_runs_with_pytorch(notebooks, path):
    assert notebooks.can_run(text_of(path))
    assert displays_of(notebooks.run_notebook(text_of(path), path.name)) == SHOWN[path.stem]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_results(notebooks, path):
    assert text_of(path) == notebooks.without_results(text_of(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_the_form_that_editors_read(path):
    notebook = json.loads(text_of(path))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        code = {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_calls_public_names_that_exist(path):
    cells = ["".join(cell["source"]) for cell in json.loads(text_of(path))["cells"] if cell["cell_type"] == "code"]
    used = {
        node.attr
        for node in ast.walk(ast.parse("\n".join(cells)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fulcrum"
    }
    assert used - set(fulcrum.__all__) == set()


def notebook_of(*cells):
    return json.dumps(
        {"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells], "metadata": {}, "nbformat": 4}
    )


def test_a_cell_that_fails_is_noticed_with_its_place(notebooks):
    with pytest.raises(ZeroDivisionError) as failure:
        notebooks.run_notebook(notebook_of(("markdown", "words"), ("code", "1 / 0")), "wrong.ipynb")
    assert str(failure.traceback[-1].path) == "wrong.ipynb cell 2"


def test_the_value_of_the_last_expression_is_shown(notebooks):
    source = notebook_of(("code", "x = 2\nprint('printed')\nx + 1"), ("code", "None"), ("code", "x;"))
    first, second, third = notebooks.run_notebook(source, "right.ipynb")
    assert (first.printed, first.text, first.html) == ("printed\n", "3", "")
    assert (second.text, third.text) == ("", "")


def test_a_page_shows_code_and_results_and_says_what_is_left_out(notebooks):
    source = notebook_of(("markdown", "# Title"), ("code", "print('```')"))
    page = notebooks.page_of(source, notebooks.run_notebook(source, "right.ipynb"))
    assert page == "# Title\n\n````python\nprint('```')\n````\n\n````text\n```\n````\n"
    needy = source.replace('"metadata": {}', '"metadata": {"fulcrum": {"needs": ["no_such_package"]}}')
    assert not notebooks.can_run(needy)
    assert "ran without `no_such_package`" in notebooks.page_of(needy)


def test_results_of_an_editor_are_removed(notebooks):
    source = json.dumps(
        {
            "cells": [
                {
                    "cell_type": "code",
                    "id": "a",
                    "metadata": {"collapsed": True},
                    "source": ["1"],
                    "outputs": [{"output_type": "execute_result"}],
                    "execution_count": 7,
                }
            ],
            "metadata": {"widgets": {}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    stored = json.loads(notebooks.without_results(source))
    assert stored["cells"][0]["outputs"] == []
    assert stored["cells"][0]["execution_count"] is None
    assert set(stored["metadata"]) == {"kernelspec", "language_info"}
