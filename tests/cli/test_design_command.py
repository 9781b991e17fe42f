"""The command that chooses regions: its file is planned, its formats agree, and its refusals are one line."""

import csv
import io
import json

import pytest

import fulcrum
from fulcrum.cli.command_line import run

CSV = "silo,records,region,site\nlille,1200,north,l1\namiens,300,north,\nnice,1500,south,\ntoulon,280,south,\n"
ARGUMENTS = ("--rounds", "10", "--epsilon", "1")


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals.csv").write_text(CSV)

    def call(*arguments):
        code = run(["design", *arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_the_proposed_file_has_in_a_plan_the_noise_that_the_command_states(command, tmp_path):
    code, out, _ = command("hospitals.csv", "--most", "2", *ARGUMENTS, "-o", "proposed.csv", "--format", "json")
    stated = json.loads(out)
    assert code == 0
    assert stated["method"] == "sorting"
    assert stated["gap"] == 0
    proposed = fulcrum.plan(tmp_path / "proposed.csv", rounds=10, epsilon=1.0)
    assert proposed.model_noise == pytest.approx(stated["proposed"]["noise"], rel=1e-15)
    today = fulcrum.plan(tmp_path / "hospitals.csv", rounds=10, epsilon=1.0)
    assert today.model_noise == stated["today"]["noise"]
    assert stated["saving"] == pytest.approx(1 - (1500**2 + 300**2) / (1500**2 + 1200**2), rel=1e-12)
    assert "l1" in (tmp_path / "proposed.csv").read_text()  # the technical name of the site stays


def test_the_csv_has_a_line_for_every_silo(command):
    _, out, _ = command("hospitals.csv", "--most", "2", *ARGUMENTS, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["silo"] for row in rows] == ["lille", "amiens", "nice", "toulon"]
    assert [row["today"] for row in rows] == ["north", "north", "south", "south"]
    assert rows[0]["proposed"] == rows[2]["proposed"] != rows[1]["proposed"]


def test_the_table_says_what_is_traded(command):
    _, out, _ = command("hospitals.csv", "--most", "3", *ARGUMENTS)
    words = " ".join(out.split())
    assert "sorting is optimal here" in words
    assert "up to 3 silos (today 2)" in words


def test_pairs_limit_the_regions_of_a_silo(command, tmp_path):
    (tmp_path / "pairs.csv").write_text("silo,region\nlille,north\nlille,south\n")
    _, out, _ = command("hospitals.csv", "--allowed", "pairs.csv", *ARGUMENTS, "--format", "json")
    stated = json.loads(out)
    assert stated["moves"] == [{"silo": "lille", "left": "north", "joined": "south"}]
    assert stated["method"] == "integer program"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("silo,place\nlille,south\n", "pairs.column-missing"),
        ("silo,region\nlille,\n", "pairs.cell-empty"),
        ("silo,region\nnobody,north\n", "design.allowed-silo-unknown"),
        ("", "pairs.column-missing"),
    ],
)
def test_wrong_pairs_are_one_line_and_exit_code_two(command, tmp_path, text, code):
    (tmp_path / "pairs.csv").write_text(text)
    exit_code, out, err = command("hospitals.csv", "--allowed", "pairs.csv", *ARGUMENTS, "--format", "json")
    assert (exit_code, out) == (2, "")
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["code"] == code
    assert error["remedy"]


def test_a_missing_file_of_pairs_is_one_line(command):
    code, _, err = command("hospitals.csv", "--allowed", "none.csv", *ARGUMENTS)
    assert code == 2
    assert "none.csv" in err.splitlines()[-1]
