import csv
import io
import json

import numpy as np
import pytest
from error_codes import error_shown
from source_tables import tcga_tables, write_eicu, write_heart

from fulcrum.cli.command_line import run
from fulcrum.simulation.data.heart_disease import ROWS


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FULCRUM_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "140")

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    return write_eicu(folder, tcga_tables(), name="{}.csv")


def test_the_command_counts_and_writes_a_federation_to_plan(command, tables):
    code, out, err = command(
        "data", "tcga-brca", "--from", tables, "--no-check-counts", "-o", "brca.csv", "--format", "json"
    )
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert (shown["silos"], shown["persons"], shown["events"], shown["metric"]) == (2, 4, 2, "concordance")
    assert shown["left_out"] == {"patient of a site without a region": 1}
    assert [row["region"] for row in shown["regions"]] == ["West", "South"]
    code, out, _ = command("plan", "brca.csv", "--rounds", 3, "--epsilon", 1, "--format", "json")
    assert code == 0
    assert [silo["silo"] for silo in json.loads(out)["silos"]] == ["site-AA", "site-BB"]


def test_without_files_the_command_names_source_and_licence(command, tmp_path):
    code, _, err = command("data", "eicu", "--format", "json")
    error = error_shown(err)
    assert (code, error["code"]) == (2, "source.folder-unset")
    for address in (error["details"]["address"], error["details"]["licence"]):
        assert address in error["message"]
    code, _, err = command("data", "heart", "--from", tmp_path, "--format", "json")
    assert (code, error_shown(err)["code"]) == (2, "source.file-missing")
    code, _, err = command("data", "hart", "--format", "json")
    assert code == 2
    assert "heart" in error_shown(err)["message"]


def test_a_mistake_in_a_table_is_one_line(command, tables):
    text = (tables / "brca.csv").read_text().replace("TCGA-AA-0002", "TCGA-AA-0001")
    (tables / "brca.csv").write_text(text)
    code, out, err = command("data", "tcga-brca", "--from", tables, "--no-check-counts")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "line 3" in err


def test_compare_trains_a_real_federation_on_its_own_data(command, tmp_path, monkeypatch):
    heart = tmp_path / "heart"
    heart.mkdir()
    random = np.random.default_rng(0)
    rows = {
        hospital: [
            f"{age},1,{pain},130,200,0,0,{160 - 2 * pain * sick},0,{sick},?,?,?,{sick}"
            for age, pain, sick in zip(
                random.integers(30, 70, 12), random.integers(1, 5, 12), random.integers(0, 2, 12), strict=True
            )
        ]
        for hospital in ROWS
    }
    write_heart(heart, rows)
    arguments = ["compare", "heart", "--rounds", 2, "--epsilon", 8, "--train", "--splits", 1, "--data-dir", heart]
    code, _, err = command(*arguments, "--format", "json")
    assert (code, error_shown(err)["code"]) == (2, "source.count-differs")
    arguments.append("--no-check-counts")
    code, out, err = command(*arguments, "-o", "run", "--format", "json")
    assert code == 0, err
    shown = json.loads(out)
    assert shown == json.loads((tmp_path / "run" / "sites.json").read_text())
    assert [row["name"] for row in shown["rows"]][-1] == "each silo alone"
    assert shown["command"].startswith("fulcrum compare heart --rounds 2 --epsilon 8")
    assert "--no-check-counts" in shown["command"]
    for words, expected in (
        ("--splits 0", "number.whole-range"),
        ("--delta 2", "accounting.delta-range"),
        ("--silos-per-person 0", "unit.silos-per-person-range"),
    ):
        wrong = [word for word in arguments if word not in ("--splits", 1)] + words.split()
        code, _, err = command(*wrong, "--format", "json")
        assert (code, error_shown(err)["code"]) == (2, expected)
    code, out, _ = command(*arguments, "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == len(shown["rows"])
    code, out, _ = command(*arguments)
    assert code == 0
    assert "each silo alone" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--weights equal --train", "cli.real-option-unneeded"),
        ("--seeds 3 --train", "cli.real-training-unneeded"),
        ("--learning-rate 3 --train", "cli.real-training-unneeded"),
        ("--conflict --train", "cli.real-option-unneeded"),
        ("--column silo=site --train", "cli.real-option-unneeded"),
        ("--thousands comma --train", "cli.real-option-unneeded"),
        ("--name mine --train", "cli.real-option-unneeded"),
        ("--splits 3", "cli.splits-unneeded"),
        ("--no-check-counts", "cli.splits-unneeded"),
        ("--train", "source.folder-unset"),
    ],
)
def test_options_that_do_not_fit_a_real_federation_are_refused(command, words, expected):
    code, _, err = command("compare", "eicu", "--rounds", 2, "--epsilon", 1, *words.split(), "--format", "json")
    assert (code, error_shown(err)["code"]) == (2, expected)
    code, _, err = command("compare", "eicu", "--rounds", 2, "--epsilon", "region=1", "--train", "--format", "json")
    assert (code, error_shown(err)["code"]) == (2, "cli.real-epsilon-form")
