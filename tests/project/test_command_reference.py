"""docs/commands.md lists every command and option as the command line has them."""

import re
from pathlib import Path

import pytest
from cyclopts import App

from fulcrum.cli.command_line import app, run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import command_reference

    return command_reference


def test_the_page_is_made_from_the_commands(reference):
    stored = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert stored == reference.page(), "run: python docs/_ext/command_reference.py"


def sections(page):
    """Returns the text below the heading of each command."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_option_of_a_help_is_on_the_page(reference, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    listed = sections(reference.page())
    assert len(listed) == len(list(reference.commands())) > 20
    for name, text in listed.items():
        assert run([*name.split()[1:], "--help"]) == 0
        shown = set(
            re.findall(r"^│ (?:\* )? {0,4}(?:[A-Z-]+ )?(--[a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE)
        )
        rows = set(re.findall(r"^\| `(--[a-z-]+)`", text, flags=re.MULTILINE))
        positional = {f"--{row.lower()}" for row in re.findall(r"^\| `([A-Z-]+)`", text, flags=re.MULTILINE)}
        negative = {f"--no-{row.removeprefix('--')}" for row in rows}  # on a line of its own where a column is narrow
        assert shown - {"--help", "--version"} - negative == rows | positional, name


def test_words_of_an_option_cannot_become_markup(reference):
    assert reference._escaped("a *b* | `c|d` <e> --f-g") == r"a \*b\* \| `c\|d` \<e> `--f-g`"


def test_a_new_command_is_on_the_page(reference):
    added = App(name="fulcrum")
    added.command(lambda: None, name="novel", help="Do nothing.", help_epilogue="Example: fulcrum novel")
    assert [name for name, _ in reference.commands(added)] == ["fulcrum novel"]
    assert "fulcrum plan" in {name for name, _ in reference.commands(app)}
