"""Docstrings and names read well: few pronouns, no vague names, no name twice."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import fulcrum

# ruff: noqa: SIM905 (lists of words read better in one text)
SOURCE = Path(fulcrum.__file__).parent
PRONOUNS = set(
    "what whatever who whoever whom whose which that this these those it its they them their one ones such so where"
    " there here whether each either neither none nobody nothing somebody something another other others".split()
)
MOST_PRONOUNS = 0.06
VAGUE = set("found told said made asked given known kept one each".split())
IRREGULAR = set(
    "begun made told said found given known kept taken spoken shown drawn sent seen held built written left lost met"
    " spent stood chosen broken frozen heard shrunk bound done gone hidden laid grown fallen forgotten".split()
)
VERBS_IN_ED = {"proceed", "exceed", "need", "feed", "seed", "embed"}
BAD_BEGINNINGS = re.compile(
    r"(What|Whatever|Whoever|Whether|Who|Whom|Whose|Where|One|Returns what|Returns whether what)\b"
)


@cache
def trees():
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if "templates" not in path.parts]
    return {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield getattr(node, "name", "module"), ast.get_docstring(node) or ""


def words_of(docstring):
    """Returns the words of a docstring without its examples."""
    return re.findall(r"[A-Za-z']+", re.sub(r"(?m)^\s*(>>>|\.\.\.).*$", "", docstring))


def test_pronouns_and_relatives_are_at_most_six_of_a_hundred_words_in_every_folder():
    words, pronouns = Counter(), Counter()
    for path, tree in trees().items():
        folder = path.parent.as_posix()
        for _, docstring in docstrings(tree):
            spoken = words_of(docstring)
            words[folder] += len(spoken)
            pronouns[folder] += sum(word.lower() in PRONOUNS for word in spoken)
    shares = {folder: pronouns[folder] / words[folder] for folder in words if words[folder] >= 50}
    assert {folder: f"{share:.1%}" for folder, share in shares.items() if share > MOST_PRONOUNS} == {}


def test_no_docstring_begins_with_a_relative():
    wrong = [
        f"{path}: {name}: {docstring.splitlines()[0]}"
        for path, tree in trees().items()
        for name, docstring in docstrings(tree)
        if BAD_BEGINNINGS.match(docstring)
    ]
    assert wrong == []


def test_no_function_is_named_by_a_participle_alone():
    wrong = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                word = node.name.strip("_")
                if word in IRREGULAR or (re.fullmatch("[a-z]+ed", word) and word not in VERBS_IN_ED):
                    wrong.append(f"{path}: {node.name}")
    assert wrong == []


def names_bound(tree):
    """Yields every name that an assignment, a loop, a parameter or a pattern binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name, node.lineno


def test_no_variable_has_a_vague_name():
    wrong = [
        f"{path}:{line} {name}" for path, tree in trees().items() for name, line in names_bound(tree) if name in VAGUE
    ]
    assert wrong == []


def test_no_module_name_occurs_twice():
    places = defaultdict(list)
    for path in trees():
        if not path.stem.startswith("__"):
            places[path.stem].append(path.as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
