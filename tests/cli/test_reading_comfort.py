"""Help by the word help, completion of the shell, and tables that fit a screen."""

import re

import pytest

import fulcrum
from fulcrum.cli.command_line import app, run
from fulcrum.views.terminal.screen import Result, show, table
from fulcrum.views.terminal.table_columns import Column


@pytest.mark.parametrize("words", [["plan"], ["deploy", "nvflare"], []])
def test_help_and_a_command_is_the_help_of_the_command(words, capsys):
    assert run(["help", *words]) == 0
    by_word = capsys.readouterr().out
    assert run([*words, "--help"]) == 0
    assert by_word == capsys.readouterr().out
    assert "Usage" in by_word


def test_the_shell_completes_commands(capsys):
    assert run(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out
    script = app.generate_completion(prog_name="fulcrum", shell="bash")
    assert "read-settings" in script


@pytest.fixture
def plans(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(fulcrum.plan("severe", rounds=10, epsilon=1.0), "a.json")
    fulcrum.save_plan(fulcrum.plan("severe", rounds=10, epsilon=1.0001), "b.json")


def test_a_difference_has_six_digits_and_fits_100_columns(plans, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["diff", "a.json", "b.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    (budget,) = [line.split()[-2:] for line in lines if " noise_budget " in line]
    assert budget[0] != budget[1]
    assert all(len(re.sub("[^0-9]", "", value).lstrip("0")) == 6 for value in budget)


def test_no_table_breaks_inside_a_word_at_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["Universitätsklinikum Tübingen, Innere Medizin", "Krankenhaus der Barmherzigen Brüder"]
    columns = [Column(key=key, heading=key, figures=False) for key in ("silo", "region", "kit")]
    rows = [{"silo": name, "region": f"Land {name}", "kit": "kits/a"} for name in names]
    show(Result(data=rows, rows=rows, picture=[table("t", columns, rows)]), "table")
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for word in " ".join(names).split():
        assert word in printed


def test_no_share_is_printed_as_minus_zero(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fed.csv").write_text("silo,records,region\na,1,x\nb,1,y\nc,1,z\n")
    assert fulcrum.plan("fed.csv", rounds=5, epsilon=3.0).model_saving < 0  # by rounding alone
    assert run(["plan", "fed.csv", "--rounds", "5", "--epsilon", "3"]) == 0
    assert "0.00% against uniform; dispersion 0.00%" in capsys.readouterr().out.replace("-0.00%", "minus zero")
