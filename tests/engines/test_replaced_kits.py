"""A second `deploy` may replace the kits that the first wrote, and nothing else."""

import json

import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.engines.site_folders import made_whole
from fulcrum.errors import DataError


def write(folder, text, **choices):
    with made_whole(folder, **choices) as work:
        (work / "lille").mkdir()
        (work / "lille" / "site.key").write_text(text)


@pytest.fixture
def kits(tmp_path):
    write(tmp_path / "kits", "first")
    return tmp_path / "kits"


def test_unchanged_kits_are_replaced_if_asked_for(kits):
    write(kits, "second", replaces=True)
    assert (kits / "lille" / "site.key").read_text() == "second"
    write(kits, "third", replaces=True)
    assert (kits / "lille" / "site.key").read_text() == "third"
    assert [path.name for path in kits.parent.iterdir()] == ["kits"]


def test_kits_are_not_replaced_without_asking(kits):
    with pytest.raises(DataError, check=coded("kit.folder-occupied")):
        write(kits, "second")
    assert (kits / "lille" / "site.key").read_text() == "first"


@pytest.mark.parametrize("change", ["add", "edit", "delete", "link", "folder", "no list", "broken list"])
def test_kits_that_anybody_changed_are_never_replaced(kits, change):
    match change:
        case "add":
            (kits / "lille" / "lille.ledger").write_text("spent")
        case "edit":
            (kits / "lille" / "site.key").write_text("mine")
        case "delete":
            (kits / "lille" / "site.key").unlink()
        case "link":
            (kits / "lille" / "state").symlink_to("/nowhere")
        case "folder":
            (kits / "lille" / "state").mkdir()
        case "no list":
            (kits / "written.json").unlink()
        case "broken list":
            (kits / "written.json").write_text("[]")
    before = sorted(kits.rglob("*"))
    with pytest.raises(DataError, check=coded("kit.folder-changed")):
        write(kits, "second", replaces=True)
    assert sorted(kits.rglob("*")) == before


def fail(folder):
    with made_whole(folder, replaces=True) as work:
        (work / "half").mkdir()
        raise ZeroDivisionError


def test_a_failure_leaves_the_earlier_kits(kits):
    with pytest.raises(ZeroDivisionError):
        fail(kits)
    assert (kits / "lille" / "site.key").read_text() == "first"
    assert [path.name for path in kits.parent.iterdir()] == ["kits"]


def test_a_module_without_its_functions_is_refused_before_a_kit_is_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("nvflare")
    pytest.importorskip("cryptography")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_a_module.py").write_text("def start(options):\n    return {}\n")
    federation = fulcrum.Federation.from_sizes({"north": [200, 210], "south": [300, 310]})
    fulcrum.save_plan(fulcrum.plan(federation, rounds=2, epsilon=2.0, parameters=3, purpose="deployment"), "plan.json")
    words = ["deploy", "nvflare", "plan.json", "--train", "half_a_module", "-o", "kits", "--format", "json"]
    assert run(words) == 2
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"]["code"] == "training.function-missing"
    assert not (tmp_path / "kits").exists()
