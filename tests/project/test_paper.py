"""Every printed value of the paper that needs no training is met, and a value that is not would be reported."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

PAPER = Path(__file__).parents[2] / "paper"
ALL = sorted(path.stem for path in PAPER.glob("[a-z]*.py") if not path.stem.startswith("make_"))
TRAINED = [name for name in ALL if "_experiments" in (PAPER / f"{name}.py").read_text("utf-8")]
SCRIPTS = [name for name in ALL if name not in TRAINED]  # the others have tests of their own


def load(name):
    specification = importlib.util.spec_from_file_location(name, PAPER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PAPER))
        specification.loader.exec_module(module)
    return module


@pytest.fixture
def printed():
    """What the scripts share: importing any of them puts it among the modules."""
    load("wrong_coupling")
    return sys.modules["_printed"]


@cache
def rows_of(name):
    return load(name).rows()


def expected():
    return tomllib.loads((PAPER / "expected.toml").read_text("utf-8"))


def test_there_is_a_script_for_every_table_of_expected_values():
    assert sorted(expected()) == ALL


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_value_is_within_its_tolerance(name):
    assert {row.quantity: row.difference for row in rows_of(name) if row.off} == {}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_expected_value_is_checked_once(name):
    checked = [row.quantity for row in rows_of(name) if row.tolerance is not None]
    assert sorted(checked) == sorted(expected()[name])


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_difference_that_shows_in_print_has_a_note(name):
    for row in rows_of(name):
        if row.paper is not None and row.tolerance > 0.05:
            assert row.note, row.quantity


@pytest.mark.parametrize("name", SCRIPTS)
def test_json_holds_every_row(name, printed, capsys):
    module = load(name)
    status = printed.report(module.__doc__, rows_of(name), "json")
    content = json.loads(capsys.readouterr().out)
    assert status == content["off"] == 0
    assert [row["quantity"] for row in content["rows"]] == [row.quantity for row in rows_of(name)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_table_fits_a_screen(name, printed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    printed.report(load(name).__doc__, rows_of(name), "table")
    out = capsys.readouterr().out
    for row in rows_of(name):
        assert any(line.startswith(f" {row.quantity} ") for line in out.splitlines()), row.quantity
    assert " differs " in out  # no heading is broken over two lines
    assert "more not shown" not in out


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("wrong_coupling", "paper = 1.13", "paper = 1.14"),
        ("wrong_coupling", "theory = 2.2", "theory = 2.3"),
        ("epsilon_by_region", "paper = 0.229", "paper = 0.228"),
        ("wrong_coupling", "paper = 1.13", "paper = nan"),
    ],
)
@pytest.mark.parametrize("style", ["table", "json", "csv"])
def test_a_wrong_expectation_is_reported_and_fails(name, old, new, style, printed, tmp_path, monkeypatch, capsys):
    text = (PAPER / "expected.toml").read_text("utf-8")
    assert text.count(old) == 1
    (tmp_path / "expected.toml").write_text(text.replace(old, new), "utf-8")
    module = load(name)
    assert printed.main(module.__doc__, module.rows, ["--format", style]) == 0
    capsys.readouterr()
    monkeypatch.setattr(printed, "EXPECTED", tmp_path / "expected.toml")
    assert printed.main(module.__doc__, module.rows, ["--format", style]) == 1
    out = capsys.readouterr().out
    if style == "table":
        assert "is off" in out
    elif style == "json":
        assert json.loads(out)["off"] == 1
        assert [row["off"] for row in json.loads(out)["rows"]].count(True) == 1
    else:
        assert out.count(",True,") == 1


def test_a_script_runs_on_its_own_and_says_in_its_status_that_all_agree():
    command = [sys.executable, str(PAPER / "wrong_coupling.py"), "--format", "csv"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("quantity,paper,theory,ours,difference,tolerance,off,note\n")


def test_an_unknown_quantity_is_refused_with_those_known(printed):
    with pytest.raises(KeyError, match=r"no 'overshot' under \[wrong_coupling\]. Known: overshoot"):
        printed.Printed("wrong_coupling").row("overshot", 1.0)


def test_the_figure_is_written_with_its_series(tmp_path, capsys):
    module = load("floor_figure")
    assert module.main(["--format", "json", "--figures", str(tmp_path)]) == 0
    points = json.loads(capsys.readouterr().out)["series"]
    figure = json.loads((tmp_path / "floor_figure.json").read_bytes())
    assert figure["data"]["values"] == points
    assert {point["kappa"] for point in points} == {5, 20, 100}
    assert all(point["floor"] < point["saturation"] for point in points)


def test_no_number_is_folded_at_80_columns(printed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    row = printed.Row(
        quantity="a quantity of a long name, as they are, of some place",
        ours=-123.4567,
        paper=-1234.5678,
        tolerance=2e3,
    )
    printed.report("Title.", [printed.Row(**{**vars_of(row), "error": 0.0123, "note": "a note"})], "table")
    out = capsys.readouterr().out
    assert "-1234.57" in out
    assert "+1111.1111" in out
    assert "-123.46" in out
    assert max(map(len, out.splitlines())) <= 80


def vars_of(row):
    return {name: getattr(row, name) for name in row.__slots__}


@pytest.mark.parametrize("name", ["main_table", "recipe_suite"])
def test_a_data_folder_with_tables_alone_skips_what_needs_features(name, tmp_path):
    (tmp_path / "federations").mkdir()
    ran = subprocess.run(
        [sys.executable, str(PAPER / f"{name}.py")],
        env=os.environ | {"FULCRUM_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith(f"{name}.py: skipped, it needs the folder of ")
    assert "paper/make_features.py" in ran.stderr
    given = [sys.executable, str(PAPER / f"{name}.py"), "--data-dir", str(tmp_path)]
    assert subprocess.run(given, capture_output=True, check=False).returncode == 2


def test_all_of_it_ends_with_how_many_values_were_checked_and_where_the_figures_are():
    environment = {name: value for name, value in os.environ.items() if name != "FULCRUM_DATA"}
    found = subprocess.run(
        [sys.executable, str(PAPER)], cwd=PAPER.parent, env=environment, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    values = sum(row.difference is not None for name in SCRIPTS for row in rows_of(name))
    end = found.stdout.splitlines()[-5:]
    assert end[0].startswith(f"Checked {values} values: ")
    assert end[1].startswith("Off: 0; 0 more")
    alone = [name for name in TRAINED if f"paper/{name}.py" in found.stdout.splitlines()[-6]]
    assert alone == ["recipe_promises", "recipe_suite"]
    assert end[2] == f"Skipped: {len(TRAINED) - len(alone)} scripts, which need the data folder."
    assert (
        end[3]
        == "Left out: the gallery of eicu, the gallery of tcga-brca, the gallery of heart, whose tables are not here."
    )
    assert found.stderr.count("paper/make_features.py") == len(TRAINED) - len(alone)
    assert end[4].startswith(f"Figures in {Path('out', 'paper')}: floor_figure.json")
