"""Interrupted, concurrent and renamed sites: no record is destroyed, and no ledger begins anew beside an old one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from error_codes import coded
from forking import forks, killed_at_line
from masked import MaskedWorld
from site_folder import released, rewritten

from fulcrum.aggregation import site_setup as records
from fulcrum.aggregation.site_setup import init_site
from fulcrum.cli.command_line import run
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.core.silo.site_records import MARK
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import DataError, StorageError


@pytest.fixture
def kit(silo, tmp_path):
    """The folder of a silo as it comes in a kit, whose records will be in a folder elsewhere."""
    (silo / MARK).unlink()
    shutil.rmtree(silo / "state")
    (tmp_path / "records").mkdir()
    rewritten(silo, 'state = "state"', 'state = "../records"')
    return silo


@pytest.fixture
def masked(tmp_path):
    """The folders of silos that mask sums, as they come in kits, and one folder for all of their records."""
    (tmp_path / "records").mkdir()
    world = MaskedWorld(tmp_path)
    for name in ("lille", "lyon"):
        (tmp_path / name / MARK).unlink()
        shutil.rmtree(tmp_path / name / "state")
        rewritten(tmp_path / name, 'state = "state"', 'state = "../records"')
    return world


def refused(work, *codes, kind=StorageError, file=None):
    """Checks the code of a refusal and, where a file is at fault, the name of the file."""
    with pytest.raises(kind, check=coded(*codes)) as error:
        work()
    assert file is None or Path(error.value.details["file"]).name == file


def finished(site):
    """The names of the records that a second call made or gave their names; none where there was nothing to do."""
    try:
        return tuple(path.name for path in init_site(site))
    except StorageError as error:
        return () if "is initialised already" in str(error) else str(error)


@forks
def test_an_initialisation_of_two_records_killed_at_any_line_keeps_both(masked, tmp_path):
    """The records share their folder with those of a site whose own initialisation was interrupted, and goes on."""
    home, shared = tmp_path / "lille", tmp_path / "records"
    other, first = read_site(tmp_path / "lyon"), read_site(home)
    lines = int(killed_at_line(lambda: init_site(first), records, 0))
    assert {path.name for path in shared.iterdir()} == {MARK, "lille.ledger", "lille.masking"}
    made = set()
    for line in range(lines - 75, lines + 1, 2):
        shutil.rmtree(shared)
        shared.mkdir()
        for folder in (home, tmp_path / "lyon"):
            (folder / MARK).unlink(missing_ok=True)
        killed_at_line(lambda: init_site(first), records, line)
        assert len(init_site(other)) == 2
        made.add(finished(first))
        names = {path.name for path in shared.iterdir()}
        assert names == {MARK, *(f"{silo}.{kind}" for silo in ("lille", "lyon") for kind in ("ledger", "masking"))}, (
            line
        )
        known = json.loads((shared / MARK).read_text())["records"]
        for record in records._records_of(first):
            assert record.identity(record.path, used=False) == known[record.name]
    assert made == {(), ("lille.masking",), ("lille.ledger", "lille.masking")}


def test_a_call_that_finishes_an_interrupted_one_names_the_records(kit, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(records._Record, "give_name", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            init_site(read_site(kit))
    assert run(["site", "init", str(kit)]) == 0
    out = capsys.readouterr().out
    assert "a.ledger" in out
    assert "a can be started." in out
    refused(lambda: init_site(read_site(kit)), "site.already-initialised")


@pytest.mark.parametrize("trace", ["a.ledger-journal", "a.ledger-wal", "a.ledger-payloads", "a.masking"])
def test_a_trace_of_the_silo_in_a_folder_of_records_elsewhere_is_refused_by_name(kit, trace, tmp_path):
    path = tmp_path / "records" / trace
    path.write_bytes(bytes(600))
    refused(lambda: init_site(read_site(kit)), "site.record-foreign", file=trace)
    assert [entry.name for entry in (tmp_path / "records").iterdir()] == [trace]
    assert not (kit / MARK).exists()
    path.rename(path.with_name(f"b{trace[1:]}"))  # of another silo that shares the folder
    assert len(init_site(read_site(kit))) == 1


def called(site, name, key="a"):
    """A site whose plan calls the silo by another name, with the same key or with the key of another silo."""
    keys = {**site.plan.keys, name: site.plan.keys[key]}
    settings = msgspec.structs.replace(site.settings, name=name)
    plan = object.__new__(type(site.plan))  # as the next plan would be, which verifies with the key under the new name
    vars(plan).update(vars(site.plan), keys=keys)
    return replace(site, settings=settings, plan=plan)


def test_a_silo_that_is_called_by_another_name_does_not_begin_its_spending_anew(kit, model, tmp_path):
    init_site(read_site(kit))
    SiloStation(read_site(kit, "silo")).answer(pack_model(model), 1)
    refused(lambda: init_site(called(read_site(kit), "b")), "site.silo-renamed")
    again = tmp_path / "again"  # a new kit, and the folder of records as before
    shutil.copytree(kit, again, ignore=shutil.ignore_patterns(MARK))
    refused(lambda: init_site(called(read_site(again), "b")), "site.silo-renamed")
    assert {path.name for path in (tmp_path / "records").iterdir()} == {MARK, "a.ledger", "a.room"}
    stranger = replace(read_site(again), settings=msgspec.structs.replace(read_site(again).settings, name="b"))
    assert len(init_site(stranger)) == 1  # with the key that the plan has for b: another silo of the same machine


@pytest.mark.parametrize(
    ("before", "after"), [("Z\u00fcrich", "Zu\u0308rich"), ("lyon", "Lyon"), ("Stra\u00dfe", "STRASSE")]
)
def test_a_silo_whose_name_is_spelled_in_another_way_does_not_begin_its_spending_anew(kit, before, after, tmp_path):
    """One name has two forms in Unicode, and a table from another machine has the other; kits with new keys come along."""
    assert init_site(called(read_site(kit), before)) == [kit / "../records" / f"{before}.ledger"]
    again = tmp_path / "again"
    shutil.copytree(kit, again, ignore=shutil.ignore_patterns(MARK))
    refused(lambda: init_site(called(read_site(again), after, key="b")), "site.silo-renamed")
    (tmp_path / "records" / MARK).unlink()
    refused(lambda: init_site(called(read_site(again), after, key="b")), "site.silo-renamed")
    assert [path.name for path in (tmp_path / "records").iterdir()] == [f"{before}.ledger"]


def test_two_copies_of_a_kit_do_not_initialise_one_folder_at_a_time(kit, monkeypatch, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(kit, copy)
    check, seen = records._check_nothing_lost, []

    def slow(*arguments):  # the copy is initialised while the first call is at work
        monkeypatch.setattr(records, "_check_nothing_lost", check)
        refused(
            lambda: init_site(read_site(copy)),
            "site.init-running",
        )
        seen.append(True)
        return check(*arguments)

    monkeypatch.setattr(records, "_check_nothing_lost", slow)
    assert len(init_site(read_site(kit))) == 1
    assert seen
    refused(lambda: init_site(read_site(copy)), "site.record-foreign", file="a.ledger")


def test_a_ledger_that_appears_meanwhile_is_not_overwritten(kit, monkeypatch, tmp_path):
    path, write = tmp_path / "records" / "a.ledger", records.write_whole

    def late(*arguments):
        if not path.exists():
            Ledger.open(path, silo="a").close()
        return write(*arguments)

    monkeypatch.setattr(records, "write_whole", late)
    refused(lambda: init_site(read_site(kit)), "site.record-made-meanwhile", file="a.ledger")
    with Ledger.open(path, silo="a", create=False) as ledger:
        assert ledger.identity != json.loads((kit / MARK).read_text())["records"]["a.ledger"]


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), lambda path: path.symlink_to("/nowhere")])
def test_a_file_or_link_in_the_place_of_the_folder_of_new_records_is_refused(kit, make, tmp_path):
    make(tmp_path / "records" / ".init")
    refused(lambda: init_site(read_site(kit)), ("site.init-folder-obstructed"))


def test_a_file_in_the_place_of_the_folder_of_records_is_refused(kit, tmp_path):
    (tmp_path / "records").rmdir()
    (tmp_path / "records").write_text("minutes")
    refused(lambda: init_site(read_site(kit)), "file.unreadable")


def test_a_link_in_the_place_of_the_lock_is_not_followed(kit, tmp_path):
    (tmp_path / "records" / ".init.lock").symlink_to(tmp_path / "theirs")
    refused(lambda: init_site(read_site(kit)), "site.file-unusable")
    assert not Path(tmp_path / "theirs").exists()


def test_a_folder_of_records_with_a_nul_is_refused(silo, model):
    SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    rewritten(silo, 'state = "state"', 'state = "state\\u0000x"')
    refused(lambda: read_site(silo), "site.name-invalid", kind=DataError)
    rewritten(silo, 'state = "state\\u0000x"', 'state = "state"')
    assert released(silo) == [1]
