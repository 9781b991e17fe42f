"""The glossary names code that exists, and the words that it replaced are gone."""

import ast
import re
from pathlib import Path

import pytest
from test_docs import known_names
from test_words import trees

import fulcrum

ROOT = Path(__file__).parents[2]
SOURCE = Path(fulcrum.__file__).parent
BANNED = re.compile(r"\b(voice\w*|quieten\w*|quietest)\b", re.IGNORECASE)
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]*)\| ([^|]+) \|$")
READABLE = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt"}


def rows():
    """Returns word, meaning, symbol and names in code of each entry."""
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    entries = [match.groups() for line in lines if (match := ROW.match(line))]
    return [tuple(cell.strip() for cell in entry) for entry in entries if entry[0] != "word"]


def public_names():
    """Returns every public class, function, parameter and attribute of the package."""
    names = set(fulcrum.__all__)
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.AnnAssign):
                names.add(ast.unparse(node.target))
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("entry", rows(), ids=lambda entry: entry[0])
def test_the_code_name_of_an_entry_exists(entry):
    names = re.findall(r"`([^`]+)`", entry[3])
    assert names
    for name in names:
        owner, _, attribute = name.rpartition(".")
        assert attribute in (known_names()[owner] if owner else public_names()), name


def test_entries_are_in_order_and_each_word_has_one_entry_of_one_sentence():
    words = [entry[0] for entry in rows()]
    assert len(words) >= 30
    assert words == sorted(set(words))
    for word, meaning, *_ in rows():
        assert re.fullmatch(r"[A-Z].*[^.]\.", meaning), word
        assert ". " not in meaning, word


def texts():
    """Yields the README, the pages and every text of the package."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix in READABLE:
            yield path


def test_no_text_uses_a_word_that_influence_replaced():
    wrong = {
        f"{path.relative_to(ROOT)}:{number}": match[0]
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := BANNED.search(line))
    }
    assert wrong == {}


@pytest.mark.parametrize("text", ["the quietest region", "Less voice", "whom they quieten", "is quietened most"])
def test_a_replaced_word_is_found(text):
    assert BANNED.search(text)
