"""The pages run: what README.md, the pages beside it and docs/*.md show is what the commands and the code in them really do.

Each page runs from top to bottom in an empty directory of its own, with one Python namespace. The conventions:

- A block right after `<!-- file: hospitals.toml -->` is written to that file, and not run.
- A ```python block runs; with >>> prompts it is a doctest, and its output must be the one shown.
- In a ```console or ```sh block, a line `$ fulcrum ...` runs (a backslash continues it). What stands below it, up to the
  next prompt, must be its output; where nothing stands there, only the exit code is checked. Other commands (`$ pip ...`)
  are not run. The terminal is 100 columns wide.
- The exit code must be 0, or that of `<!-- exit: 2 -->` right before the block.
- A block right after `<!-- needs: sklearn -->` runs where that package is installed, or all of several; else it is left
  out. A page with blocks that need PyTorch runs twice: without these blocks, and with them by `make test-torch`.
- Blanks at line ends do not count, and `...` stands for any text.
"""

import ast
import contextlib
import doctest
import importlib.util
import io
import re
import shlex
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest
from test_package import LAYERS, MODULES, SOURCE, tree_of

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.errors import error_messages
from fulcrum.rules import rule_registry

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]

FILE_ENDINGS = ("toml", "json", "csv", "html", "md", "sh", "yml", "cff", "db", "ledger")
NOT_OURS = ("torch", "pytest", "context", "flare", "received")
"""Packages of others, the context that Flower hands to an app, and the model that NVIDIA FLARE hands to a script."""


_FENCE = re.compile(r"^ {0,3}(`{3,})\s*([\w-]*)\s*$")
_NOTE = re.compile(r"^<!--\s*(file|exit|needs):\s*(.+?)\s*-->$")
_SHELL = ("console", "sh")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, its text, the line it begins on, and the notes before it."""

    language: str
    text: str
    line: int
    file: str | None = None
    exit: int = 0
    needs: str = ""

    @property
    def packages(self):
        return self.needs.replace(",", " ").split()


def blocks_of(page):
    """Returns the fenced blocks of a page in order."""
    found, notes, opened, lines, start = [], {}, None, [], 0
    for number, line in enumerate(page.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and fence[2] == "" and len(fence[1]) >= len(opened[0]):
                text = "\n".join(lines) + "\n"
                found.append(Block(language=opened[1], text=text, line=start, **notes))
                opened, notes = None, {}
            else:
                lines.append(line)
        elif fence:
            opened, lines, start = (fence[1], fence[2]), [], number + 1
        elif note := _NOTE.match(line.strip()):
            notes[note[1]] = int(note[2]) if note[1] == "exit" else note[2]
        elif line.strip():
            assert not notes, f"line {number}: the note before it belongs to no block"
    assert opened is None, "a fenced block is not closed"
    assert not notes, "the last note belongs to no block"
    return found


def run_page(page, name, directory, *, without=()):
    """Runs everything that a page shows but the blocks that need some packages, in a directory that is the current one."""
    namespace = {"__name__": "__main__"}
    for block in blocks_of(page):
        where = f"{name}:{block.line}"
        if set(without) & set(block.packages) or not all(map(importlib.util.find_spec, block.packages)):
            continue
        if block.file is not None:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            with forgetting(directory, importable=True):
                run_python(block, namespace, where)
        elif block.language in _SHELL:
            run_console(block, where, directory)


def run_python(block, namespace, where):
    """Runs a block as a doctest where it has prompts, else as a program."""
    if ">>>" not in block.text:
        exec(compile("\n" * (block.line - 1) + block.text, where, "exec"), namespace)
        return
    example = doctest.DocTestParser().get_doctest(block.text, namespace, where, where, block.line - 1)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, verbose=False)
    report = io.StringIO()
    runner.run(example, out=report.write, clear_globs=False)
    namespace.update(example.globs)
    assert runner.failures == 0, report.getvalue()


def run_console(block, where, directory):
    """Runs the fulcrum commands of a block and compares what they print."""
    for command, shown in commands_of(block.text):
        words = shlex.split(command)
        assert not re.fullmatch(r"[A-Z_]+=.*", words[0]), f"{where}: no variable is set before a command"
        if words[:1] != ["fulcrum"]:
            continue
        assert not {"|", ">", ">>", "&&", ";"} & set(words), f"{where}: pipes are not run. Use -o, or ... in the output"
        printed = io.StringIO()
        with forgetting(directory), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = cli.run(words[1:])
        assert code == block.exit, (
            f"{where}: {command}\nexit code {code} in place of {block.exit}\n{printed.getvalue()}"
        )
        wanted, got = trimmed(shown), trimmed(printed.getvalue())
        assert not wanted or same(wanted, got), f"{where}: {command}\n--- shown\n{wanted}\n--- printed\n{got}"


def commands_of(text):
    """Returns each command of a console block with what is shown below it."""
    found = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).removeprefix("> ")
            found.append((command, []))
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(shown)) for command, shown in found]


def trimmed(text):
    """Returns the text without blanks at line ends and without blank lines around it."""
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def same(wanted, got):
    """Whether the output is the one shown, `...` standing for any text."""
    return re.fullmatch(".*?".join(map(re.escape, wanted.split("..."))), got, re.DOTALL) is not None


@contextlib.contextmanager
def forgetting(directory, *, importable=False):
    """Forgets the modules of a directory after; a command finds those of the current one by itself, Python does not."""
    before, known = sys.path[:], set(sys.modules)
    sys.path[:0] = [str(directory)] if importable else []
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if Path(file).is_relative_to(directory):
                del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(
        rule_registry, "_RULES", dict(rule_registry._RULES)
    )  # a rule of a page is not one of the next test
    return tmp_path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_everything_a_page_shows_is_what_happens(path, here):
    run_page(path.read_text(encoding="utf-8"), path.name, here, without=["torch"])


def needs_torch(path):
    return any("torch" in block.packages for block in blocks_of(path.read_text(encoding="utf-8")))


@pytest.mark.torch
@pytest.mark.parametrize("path", [path for path in PAGES if needs_torch(path)], ids=lambda path: path.name)
def test_everything_a_page_shows_with_pytorch_is_what_happens(path, here):
    assert importlib.util.find_spec("torch") is not None
    run_page(path.read_text(encoding="utf-8"), path.name, here)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert "://" in target or (path.parent / target).exists(), target


def names_in(body):
    """Returns the names that the body of a module or a class defines or imports."""
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            names.update(map(ast.unparse, node.targets))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


@cache
def known_names():
    """Returns the names below each module, layer, class and part of a plan file."""
    known, bases = defaultdict(set), defaultdict(set)
    known["fulcrum"] = {*fulcrum.__all__, *LAYERS}
    for module in MODULES:
        tree, (layer, _, below) = tree_of(module), module.partition(".")
        known[layer].add(below)
        known[module.rpartition(".")[0]].add(module.rpartition(".")[2])
        known[layer].add(below.partition(".")[0])
        for owner in {module, module.rpartition(".")[2]}:
            known[owner] |= {"py", *names_in(tree.body)}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                known[node.name] |= names_in(node.body)
                bases[node.name] |= {base.id for base in node.bases if isinstance(base, ast.Name)}
        loggers = re.findall(r'getLogger\("fulcrum\.(\w+)"\)', ast.unparse(tree).replace("'", '"'))
        known["fulcrum"].update(loggers)
    for _ in bases:  # a name of a class is one of the classes that inherit from it, however far away
        for name, above in bases.items():
            known[name] |= set().union(*(known.get(base, set()) for base in above))
    for part, kind in get_type_hints(PlanFile).items():
        known[part] |= set(getattr(kind, "__struct_fields__", ()))
    known["innermost"] = known["Tier"]
    return known


def unknown_names(text):
    """Returns the names with a dot, in a page, that nothing of ours has."""
    unknown = []
    for dotted in re.findall(r"`([A-Za-z_]\w*(?:\.\w+)+)[`(]", text):
        owner, _, name = dotted.rpartition(".")
        if name not in FILE_ENDINGS and owner.partition(".")[0] not in NOT_OURS and dotted not in error_messages():
            unknown += [] if name in known_names().get(owner.removeprefix("fulcrum."), ()) else [dotted]
    return unknown


def missing_files(text):
    """Returns the files of the repository, and the tests in them, that a page names and that do not exist."""
    missing = []
    ours = r"(?:tests|benchmarks|paper|examples)/[\w/]+\.\w+|(?:\w+/)+\w+\.py"
    for file, _, name in re.findall(rf"`({ours})(::(\w+))?`", text):
        place = next((folder / file for folder in (ROOT, SOURCE) if (folder / file).exists()), None)
        if place is None or (name and f"def {name}(" not in place.read_text(encoding="utf-8")):
            missing.append(f"{file}::{name}" if name else file)
    return missing


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_modules_functions_and_files_that_a_page_names_are_there(path):
    text = path.read_text(encoding="utf-8")
    assert unknown_names(text) == []
    assert missing_files(text) == []


def test_a_name_of_nothing_is_found():
    there = "`exports.py` `planning.files.exports` `fulcrum.planning.files.exports.export_plan(` `fulcrum.plan` `fulcrum.alarm` `Plan.saving`"
    assert unknown_names(there + " `settings.rounds` `plan.json` `torch.func` `2.631` `innermost.parent_of`") == []
    gone = ["exporting.py", "reports.plan_drawings", "drawing.theme", "exports.exports", "fulcrum.plam", "Plan.savings"]
    gone += ["settings.round", "planning.exports", "fulcrum.planning.files.exports.exports"]
    assert unknown_names("".join(f"`{name}` " for name in gone)) == gone


def test_a_file_that_does_not_exist_is_found():
    there = "`core/noise/mechanism.py` `tests/project/test_docs.py::missing_files` `paper/expected.toml` `run/run.json`"
    assert missing_files(there) == []
    gone = ["core/noise/clipping.py", "masking/silo.py", "tests/project/test_pages.py", "paper/expected.json"]
    gone += ["tests/project/test_docs.py::test_of_nothing", "core/noise/mechanism.py::sampled"]
    assert missing_files("".join(f"`{name}` " for name in gone)) == gone


def test_the_design_draws_every_layer_and_lists_every_module_once():
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+)\.py` \|", design, re.MULTILINE)
    assert sorted(module.replace("/", ".") for module in listed) == MODULES
    assert set(re.findall(r"^### `(\w+)/`", design, re.MULTILINE)) == set(LAYERS)


def fenced(language, text):
    return f"```{language}\n{text}\n```\n"


DISPERSION = "dispersion of region  88.00% of a uniform budget is waste, a factor 2.89 in the noise multiplier"


@pytest.mark.parametrize(
    "page",
    [
        fenced("console", "$ fulcrum exposure consortium"),
        fenced("console", f"$ fulcrum exposure consortium\n...\n{DISPERSION}"),
        fenced("sh", "$ fulcrum exposure \\\n    consortium"),
        fenced("console", "$ pip install nothing\n$ fulcrum exposure consortium --format csv\ntier,name,..."),
        "<!-- exit: 2 -->\n" + fenced("console", "$ fulcrum exposure nowhere\nfulcrum: no built-in federation ..."),
        "<!-- file: mine.py -->\n"
        + fenced("python", "def flat(federation, requirement):\n    return [1.0] * len(federation)")
        + fenced("console", "$ fulcrum plan mild --rounds 1 --epsilon 1 --allocation mine:flat")
        + fenced("python", "from mine import flat\nassert flat([], None) == []"),
        fenced("python", ">>> x = 2\n>>> x + 1\n3") + fenced("python", "assert x == 2"),
        "````\n```python\nthis is not run\n```\n````\n",
        "<!-- needs: json, no_such_package -->\n" + fenced("python", "assert False"),
    ],
)
def test_a_right_page_passes(page, here):
    run_page(page, "page.md", here)


def test_blocks_that_need_a_package_left_out_do_not_run(here):
    page = "<!-- needs: json, re -->\n" + fenced("python", "assert False")
    run_page(page, "page.md", here, without=["re"])
    with pytest.raises(AssertionError):
        run_page(page, "page.md", here, without=["torch"])


@pytest.mark.parametrize(
    "page",
    [
        fenced("console", "$ fulcrum exposure consortium\n...\n" + DISPERSION.replace("88", "89")),
        fenced("console", "$ fulcrum exposure nowhere"),
        "<!-- exit: 2 -->\n" + fenced("console", "$ fulcrum exposure consortium"),
        fenced("console", "$ fulcrum exposure consortium | head"),
        fenced("console", "$ PYTHONPATH=. fulcrum exposure consortium"),
        fenced("python", ">>> 1 + 1\n3"),
        fenced("python", "assert False"),
        "<!-- needs: json, re -->\n" + fenced("python", "assert False"),
        fenced("python", "from mine import flat"),
        "<!-- file: mine.py -->\nNo block follows.\n",
        "```python\nthe fence is not closed\n",
    ],
)
def test_a_wrong_page_is_refused(page, here):
    with pytest.raises((AssertionError, ImportError)):
        run_page(page, "page.md", here)
