"""`make bench` runs every benchmark, or says which it left out and why."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def every():
    spec = importlib.util.spec_from_file_location("every_benchmark", ROOT / "benchmarks" / "_every_benchmark.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_benchmark_that_fails_or_is_left_out_is_named_and_stops_no_other(every, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(every.INSTALLED_BY, "another", "make test-another")
    for name, text in {
        "_shared": "raise SystemExit('this is no benchmark')",
        "a_failing": "raise SystemExit(3)",
        "b_needing": "def main():\n    import another.one, no_such_package",
        "c_passing": "import _shared_by_others, json\nprint('measured')",
        "_shared_by_others": "",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert every.main(tmp_path) == 1
    assert capfd.readouterr().out.splitlines()[-4:] == [
        "---",
        "a_failing.py: failed with status 3",
        "b_needing.py: left out: needs another and no_such_package. Run: make test-another and pip install no_such_package",
        "c_passing.py: ran",
    ]


def test_make_runs_them_all():
    recipe = re.search(r"^bench:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)[1]
    assert recipe == "\t@$(BIN)/python benchmarks/_every_benchmark.py\n"


def test_benchmarks_of_pytorch_and_flower_need_packages_that_make_test_does_not_install(every, monkeypatch):
    monkeypatch.setattr(every.importlib.util, "find_spec", lambda name: None if name in ("torch", "ray") else name)
    missing = {path.name: every.packages_missing(path) for path in (ROOT / "benchmarks").glob("[a-z]*.py")}
    assert {name: packages for name, packages in missing.items() if packages} == {
        "flower_round.py": ["ray"],
        "person_gradients.py": ["torch"],
        "torch_round.py": ["torch"],
    }
