"""The tests can be collected without any one of the optional packages, and those that need PyTorch are marked."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forking import forks
from test_package import OPTIONAL

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "absent_packages.py"


def errors_without(packages, folder):
    """Returns the errors of collecting the tests of a folder, by the package that is absent."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins would load optional packages before us
    child = subprocess.run(
        [sys.executable, SCRIPT, *packages], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@forks
def test_every_module_is_collected_whichever_optional_package_is_absent():
    errors = errors_without(sorted(OPTIONAL), TESTS.parent)
    assert set(errors) == {"", *OPTIONAL}
    assert {package: lines for package, lines in errors.items() if lines} == {}


def test_the_modules_of_engines_are_collected_where_no_test_has_loaded_their_packages_before():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "src/fulcrum/engines"]
    child = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert child.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), child.stdout


PLANTED = {
    "test_direct.py": "import yaml\n",
    "test_by_a_helper.py": "from helper import read\n",
    "helper.py": "from yaml import safe_load\n\ndef read(text):\n    return safe_load(text)\n",
    "test_by_a_call.py": "import lazy\n\nVALUE = lazy.value()\n",
    "lazy.py": "def value():\n    import yaml\n    return yaml.safe_load('1')\n",
    "test_by_a_dependent.py": "import nvflare\n",
    "test_skipped.py": "import pytest\n\npytest.importorskip('yaml')\n",
    "test_later.py": "def test_later():\n    import yaml\n",
    "test_asking_first.py": "from importlib.util import find_spec\n\nif find_spec('yaml'):\n    import yaml\n",
    "test_doctest.py": "'''\n>>> 1 + 1\n2\n'''\n",
}


@forks
def test_a_module_that_cannot_be_loaded_without_a_package_is_found(tmp_path):
    pytest.importorskip("yaml", reason="needs pyyaml")
    pytest.importorskip("nvflare", reason="needs the extra nvflare")
    for name, text in PLANTED.items():
        (tmp_path / name).write_text(text)
    errors = errors_without(["yaml", "sklearn"], tmp_path)
    assert (errors[""], errors["sklearn"]) == ([], [])
    failed = {line.partition(":")[0] for line in errors["yaml"]}
    assert failed == {
        "helper.py",
        *(f"test_{name}.py" for name in ("direct", "by_a_helper", "by_a_call", "by_a_dependent")),
    }


def is_torch_skipped(node):
    """Whether a piece of code skips a test, or a module, where PyTorch is missing."""
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "importorskip"
        and bool(node.args)
        and ast.unparse(node.args[0]).strip("'\"").partition(".")[0] == "torch"
    )


def unmarked(source):
    """Whether tests of a module are skipped without PyTorch, and lack the mark by which `make test-torch` finds them."""
    tree = ast.parse(source)
    marked = any(ast.unparse(node) == "pytestmark = pytest.mark.torch" for node in tree.body)
    return any(map(is_torch_skipped, ast.walk(tree))) and not marked


def test_no_test_is_skipped_without_pytorch_that_make_test_torch_would_not_run():
    assert [path.name for path in sorted(TESTS.rglob("test_*.py")) if unmarked(path.read_text("utf-8"))] == []


def test_a_skipped_test_without_the_mark_is_found():
    skipped = "torch = pytest.importorskip('torch')\n"
    assert unmarked(skipped)
    assert unmarked(f"def test_tensors():\n    {skipped}")
    assert unmarked("nn = pytest.importorskip('torch.nn', reason='networks')\n")
    assert not unmarked(f"{skipped}pytestmark = pytest.mark.torch\n")
    assert not unmarked("pytest.importorskip('torchless')\n")
