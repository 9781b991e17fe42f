import json

import pytest
from error_codes import error_shown
from source_tables import tcga_tables, write_eicu

from fulcrum.cli.command_line import run


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FULCRUM_DATA", raising=False)

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
