"""A second `deploy` may replace the kits that the first wrote, and nothing else."""

import json
import os
from pathlib import Path

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


@pytest.mark.parametrize(
    "change", ["add", "edit", "delete", "link", "folder", "same name as the list", "no list", "broken list"]
)
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
        case "same name as the list":
            (kits / "lille" / "written.json").write_text("mine")
        case "no list":
            (kits / "written.json").unlink()
        case "broken list":
            (kits / "written.json").write_text("[]")
    before = sorted(kits.rglob("*"))
    with pytest.raises(DataError, check=coded("kit.folder-changed")):
        write(kits, "second", replaces=True)
    assert sorted(kits.rglob("*")) == before


def test_a_ledger_made_while_new_kits_are_written_stops_the_replacement(kits):
    def replace_slowly():
        with made_whole(kits, replaces=True) as work:
            (work / "new").mkdir()
            (kits / "lille" / "lille.ledger").write_text("spent")

    with pytest.raises(DataError, check=coded("kit.folder-changed")):
        replace_slowly()
    assert (kits / "lille" / "lille.ledger").read_text() == "spent"
    assert [path.name for path in kits.parent.iterdir()] == ["kits"]


def test_a_ledger_made_during_the_replacement_itself_stays_on_disk(kits, monkeypatch):
    unlink = Path.unlink

    def unlink_as_a_site_writes(path, **choices):
        (path.parent / "lille.ledger").write_text("spent")
        unlink(path, **choices)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink_as_a_site_writes)
        write(kits, "second", replaces=True)
    assert (kits / "lille" / "site.key").read_text() == "second"
    (left,) = kits.parent.rglob("lille/lille.ledger")
    assert left.read_text() == "spent"


def test_a_site_with_records_is_never_replaced_even_if_the_records_are_listed(tmp_path):
    def write_with_records(text):
        with made_whole(tmp_path / "kits", replaces=True) as work:
            (work / "lille").mkdir()
            (work / "lille" / "initialised.json").write_text(text)
            (work / "lille" / "lille.ledger").write_text(text)

    write_with_records("first")
    with pytest.raises(DataError, check=coded("kit.folder-changed")):
        write_with_records("second")
    assert (tmp_path / "kits" / "lille" / "lille.ledger").read_text() == "first"


def test_a_link_to_kits_is_never_replaced(kits):
    link = kits.parent / "link"
    link.symlink_to(kits)
    with pytest.raises(DataError, check=coded("kit.folder-changed")):
        write(link, "second", replaces=True)
    assert sorted(path.name for path in kits.parent.iterdir()) == ["kits", "link"]
    assert (link / "lille" / "site.key").read_text() == "first"


def test_kits_with_a_folder_that_cannot_be_read_are_never_replaced(tmp_path, monkeypatch):
    scan = os.scandir

    def scan_as_another_user(path):
        if Path(path).name == "state":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    def write_with_state():
        with made_whole(tmp_path / "kits", replaces=True) as work:
            (work / "lille" / "state").mkdir(parents=True)

    write_with_state()
    (tmp_path / "kits" / "lille" / "state" / "lille.ledger").write_text("spent")
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan_as_another_user)
        with pytest.raises(DataError, check=coded("kit.folder-changed")):
            write_with_state()
    assert (tmp_path / "kits" / "lille" / "state" / "lille.ledger").read_text() == "spent"


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
