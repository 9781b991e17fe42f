"""A spreadsheet on the command line: what its columns are, and how it was read."""

import json

import pytest

from fulcrum.cli.command_line import run

SHEET = "KLINIK;FÄLLE;VERBUND;TELEFON\r\nKöln;1 850;West;0221\r\nBonn;900;West;0228\r\nKiel;700;Nord;0431\r\n"
COLUMNS = ["--column", "region=Verbund", "--column", "ignore=telefon"]
PLAIN = "silo,records,region\nKöln,1850,West\nBonn,900,West\nKiel,700,Nord\n"
TARGET = ["--rounds", "3", "--epsilon", "1"]


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sheet.csv").write_bytes(SHEET.encode("cp1252"))
    (tmp_path / "plain.csv").write_text(PLAIN, encoding="utf-8")

    def call(*arguments):
        code = run(list(arguments))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def notes_in(errors):
    return [line.removeprefix("note: ") for line in errors.splitlines() if line.startswith("note: ")]


@pytest.mark.parametrize(
    "arguments",
    [["exposure"], ["floor"], ["plan", *TARGET], ["compare", *TARGET]],
    ids=lambda arguments: arguments[0],
)
def test_every_command_reads_a_spreadsheet_as_its_clean_table_and_says_how(command, arguments):
    name, *options = arguments
    code, told, errors = command(name, "sheet.csv", *COLUMNS, *options, "--format", "csv")
    assert code == 0
    notes = notes_in(errors)
    assert "cells are separated by semicolons" in notes
    assert "columns are read as: silo from 'KLINIK', records from 'FÄLLE', region from 'VERBUND'" in notes
    assert "records: spaces separate thousands, as in 1 850" in notes
    code, plain, errors = command(name, "plain.csv", *options, "--format", "csv")
    assert (code, told, notes_in(errors)) == (0, plain, [])


def test_a_plan_of_a_spreadsheet_verifies_for_it_and_is_a_plan_file_on_stdout_too(command, tmp_path):
    assert command("plan", "sheet.csv", *COLUMNS, *TARGET, "-o", "plan.json")[0] == 0
    code, out, errors = command("verify", "plan.json", "--federation", "sheet.csv", *COLUMNS, "--format", "json")
    assert code == 0
    assert json.loads(out)["notes"] == notes_in(errors)
    assert "notes" not in json.loads(command("verify", "plan.json", "--format", "json")[1])
    shown = command("plan", "sheet.csv", *COLUMNS, *TARGET, "--format", "json")[1]
    (tmp_path / "shown.json").write_text(shown, encoding="utf-8")
    assert command("verify", "shown.json", "--federation", "plain.csv")[0] == 0


@pytest.mark.parametrize("name", ["exposure", "floor"])
def test_json_carries_the_notes(command, name):
    code, out, errors = command(name, "sheet.csv", *COLUMNS, "--format", "json")
    assert code == 0
    assert json.loads(out)["notes"] == notes_in(errors)
    assert json.loads(command(name, "plain.csv", "--format", "json")[1])["notes"] == []


def test_a_remaining_round_is_planned_from_a_spreadsheet(command, tmp_path):
    assert command("plan", "plain.csv", *TARGET, "-o", "plan.json")[0] == 0
    (tmp_path / "ledgers").mkdir()
    arguments = ["replan", "plan.json", "--federation", "sheet.csv", *COLUMNS, "--ledgers", "ledgers"]
    code, _, errors = command(*arguments)
    assert "cells are separated by semicolons" in notes_in(errors)
    assert code == 2  # nobody has a ledger yet
    assert "ledger" in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["silo"], "--column must be MEANING=COLUMN, such as silo=hospital, got 'silo'"),
        (["=x"], "--column must be MEANING=COLUMN, such as silo=hospital, got '=x'"),
        (["silo=a", "silo=b"], "--column names two columns for 'silo': a and b"),
        (
            ["silo=KLINIKK"],
            "sheet.csv line 1: there is no column 'KLINIKK' to read as 'silo'. The columns are: KLINIK, FÄLLE, VERBUND, TELEFON. "
            "Did you mean 'KLINIK'?",
        ),
        (
            ["silo=klinik", "ignore=KLINIK"],
            "sheet.csv line 1: the column 'KLINIK' cannot be 'silo' and 'ignore'. Choose one meaning",
        ),
        (
            ["silo=KLINIK"],
            "sheet.csv line 1: the column 'region' is missing. Every table needs silo, region. "
            "Where it has another name: --column region=NAME (in Python columns={'region': 'NAME'}), with NAME among: "
            "VERBUND, TELEFON",
        ),
    ],
)
def test_a_column_that_is_not_there_is_refused_in_one_line(command, options, message):
    given = [part for option in options for part in ("--column", option)]
    code, out, errors = command("exposure", "sheet.csv", *given)
    assert (code, out, errors) == (2, "", f"fulcrum: {message}\n")


def test_a_federation_without_columns_takes_none(command):
    code, _, errors = command("exposure", "severe", "--column", "silo=hospital")
    assert code == 2
    assert errors == (
        "fulcrum: severe is not a table and has no column to read as 'silo'. Leave the choice of columns out "
        "(--column)\n"
    )
