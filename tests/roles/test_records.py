"""The records of a site: made once by its operator, and a lost one stops the site for good."""

import contextlib
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

from fulcrum.aggregation import site_setup
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import FORMAT, SUMS, Site, SiteSettings, read_site
from fulcrum.core.silo.site_records import MARK
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import FulcrumError, StorageError


@pytest.fixture
def kit(silo):
    """The folder of a silo as it comes in a kit: not initialised."""
    (silo / MARK).unlink()
    shutil.rmtree(silo / "state")
    (silo / "state").mkdir(mode=0o700)
    return silo


def refused(work, *codes, kind=FulcrumError, file=None):
    """Checks the code of a refusal and, where a file is at fault, the name of the file."""
    with pytest.raises(kind, check=coded(*codes)) as error:
        work()
    assert file is None or Path(error.value.details["file"]).name == file


def started(home, model, number=1):
    """The answer of a site that is started anew."""
    return SiloStation(read_site(home, "silo")).answer(pack_model(model), number)


def moved_out(home, folder):
    """The records of a site in a folder of their own, and site.toml says so."""
    (home / "state").rename(folder)
    rewritten(home, 'state = "state"', f'state = "{folder}"')


def test_a_site_that_was_not_initialised_does_not_start_and_makes_nothing(kit, model):
    for _ in range(2):
        refused(lambda: started(kit, model), "site.uninitialised")
    assert list((kit / "state").iterdir()) == []
    assert not (kit / MARK).exists()


def test_a_site_is_initialised_once(kit, model):
    assert init_site(read_site(kit)) == [kit / "state" / "a.ledger"]
    assert (kit / "state" / "a.ledger").stat().st_mode & 0o777 == 0o600
    assert json.loads((kit / MARK).read_text()) == json.loads((kit / "state" / MARK).read_text())
    sent = started(kit, model)
    refused(lambda: init_site(read_site(kit)), "site.already-initialised", kind=StorageError)
    assert released(kit) == [1]
    assert len(sent) == len(started(kit, model))


def test_a_lost_ledger_stops_the_site_and_is_not_made_again(silo, model):
    started(silo, model)
    (silo / "state" / "a.ledger").unlink()
    refused(lambda: started(silo, model, 2), "site.ledger-missing")
    refused(lambda: init_site(read_site(silo)), "site.record-lost", file="a.ledger")
    assert not (silo / "state" / "a.ledger").exists()


def test_a_folder_of_records_that_was_deleted_whole_stops_the_site(silo, model):
    shutil.rmtree(silo / "state")
    refused(lambda: started(silo, model), "site.ledger-missing")
    refused(lambda: init_site(read_site(silo)), "site.record-lost")
    (silo / "state").mkdir()
    refused(lambda: init_site(read_site(silo)), "site.record-lost")


def test_another_folder_for_the_records_does_not_begin_them_anew(silo, model, tmp_path):
    started(silo, model)
    (tmp_path / "other").mkdir()
    rewritten(silo, 'state = "state"', f'state = "{tmp_path / "other"}"')
    refused(lambda: started(silo, model, 2), "site.ledger-missing")
    refused(lambda: init_site(read_site(silo)), "site.record-lost")


def test_records_elsewhere_are_made_there_and_a_lost_one_stops_the_site(kit, model, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    rewritten(kit, 'state = "state"', 'state = "../elsewhere"')
    refused(lambda: init_site(read_site(kit)), "site.state-missing")  # a name mistyped?
    elsewhere.mkdir()
    assert init_site(read_site(kit)) == [kit / "../elsewhere" / "a.ledger"]
    started(kit, model)
    shutil.rmtree(elsewhere)
    refused(lambda: started(kit, model, 2), "site.ledger-missing")
    refused(lambda: init_site(read_site(kit)), "site.record-lost")


def new_kit(home, folder):
    """A second kit of the same silo, with the signed plan, in a folder of its own."""
    folder.mkdir()
    for name in ("site.toml", "plan.json", "plan.json.sig", "site.key"):
        shutil.copy(home / name, folder)
    (folder / "state").mkdir()
    return folder


def test_a_silo_that_took_part_before_names_its_ledger_and_goes_on_from_what_it_spent(silo, model, tmp_path):
    started(silo, model)
    again = new_kit(silo, tmp_path / "again")
    kept = tmp_path / "kept"
    (silo / "state").rename(kept)
    rewritten(again, 'state = "state"', f'state = "{kept}"')
    refused(lambda: started(again, model), "site.uninitialised")
    refused(lambda: init_site(read_site(again)), "site.record-foreign", file="a.ledger")
    other = tmp_path / "other.ledger"
    Ledger.open(other, silo="a").close()
    refused(lambda: init_site(read_site(again), ledger=other), "site.ledger-foreign")
    assert init_site(read_site(again), ledger=kept / "a.ledger") == []
    started(again, model, 2)
    with read_ledger(kept / "a.ledger") as ledger:
        assert [entry.round_number for entry in ledger.entries()] == [1, 2]
    refused(lambda: init_site(read_site(again), ledger=kept / "a.ledger"), "site.already-initialised")


def test_a_silo_that_took_part_before_and_lost_its_ledger_is_not_begun_anew_in_a_new_kit(silo, model, tmp_path):
    kept, again = tmp_path / "kept", new_kit(silo, tmp_path / "again")
    (silo / "state").rename(kept)
    (kept / "a.ledger").unlink()
    rewritten(again, 'state = "state"', f'state = "{kept}"')
    refused(lambda: init_site(read_site(again)), "site.record-lost", file="a.ledger")
    refused(lambda: init_site(read_site(again), ledger=kept / "a.ledger"), "site.ledger-foreign")
    Ledger.open(kept / "a.ledger", silo="a").close()  # a fresh one in its place
    refused(
        lambda: init_site(read_site(again), ledger=kept / "a.ledger"),
        "site.record-not-initialised",
    )


def test_a_kit_unpacked_over_an_old_one_changes_nothing(silo, model, tmp_path):
    started(silo, model)
    fresh = new_kit(silo, tmp_path / "fresh")
    shutil.copytree(fresh, silo, dirs_exist_ok=True)
    refused(lambda: init_site(read_site(silo)), "site.already-initialised")
    started(silo, model, 2)
    assert released(silo) == [1, 2]


def test_a_site_that_was_moved_goes_on(silo, model, tmp_path):
    started(silo, model)
    moved = tmp_path / "moved"
    silo.rename(moved)
    refused(lambda: init_site(read_site(moved)), "site.already-initialised")
    started(moved, model, 2)
    assert released(moved) == [1, 2]


@pytest.mark.parametrize(
    "name",
    [
        "state/a.ledger",
        "state/a.ledger-journal",
        "state/a.ledger-payloads",
        "state/a.ledger-wal",
        "state/b.ledger",
        "state/a.masking",
        "state/sums.db",
        "state/sums.db-journal",
        "a.ledger",
        "more/deep/a.masking",
        "state/initialised.json",
    ],
)
def test_a_kit_that_holds_records_or_their_mark_is_refused_by_name(kit, model, name):
    path = kit / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "state/a.ledger":
        Ledger.open(path, silo="a").close()
    elif name == "state/a.masking":
        MemberStore.open(path, silo="a", create=True).close()
    else:
        path.write_text('{"format": "fulcrum.initialised/1", "records": {"a.ledger": "00"}}')
    before = sorted(kit.rglob("*"))
    refused(lambda: init_site(read_site(kit)), "site.record-foreign", file=path.name)
    refused(lambda: started(kit, model), "site.uninitialised")
    assert sorted(kit.rglob("*")) == before


def test_a_kit_whose_settings_name_records_that_it_brings_is_refused_by_name(kit, tmp_path):
    """Beside the site's folder, but in the kit: whoever made it may know the secrets in it."""
    (tmp_path / "brought").mkdir()
    Ledger.open(tmp_path / "brought" / "a.ledger", silo="a").close()
    rewritten(kit, 'state = "state"', 'state = "../brought"')
    refused(lambda: init_site(read_site(kit)), "site.record-foreign", file="a.ledger")


def test_another_ledger_in_the_place_of_the_sites_own_releases_nothing(silo, model):
    started(silo, model)
    path = silo / "state" / "a.ledger"
    path.unlink()
    Ledger.open(path, silo="a").close()
    for number in (1, 2):
        refused(lambda number=number: started(silo, model, number), "site.record-replaced")
    refused(lambda: init_site(read_site(silo)), "site.already-initialised")
    with read_ledger(path) as ledger:
        assert ledger.sequence == 0


def test_records_and_marks_that_look_like_an_interrupted_initialisation_are_not_taken_over_once_used(kit, model):
    """A kit could bring them: a masking record whose secrets its maker knows."""
    init_site(read_site(kit))
    started(kit, model)
    (kit / "state" / MARK).unlink()
    refused(lambda: init_site(read_site(kit)), "site.record-foreign", file="a.ledger")
    (kit / "state" / ".init").mkdir()
    (kit / "state" / "a.ledger").rename(kit / "state" / ".init" / "a.ledger")
    refused(lambda: init_site(read_site(kit)), "site.record-foreign", file="a.ledger")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "fulcrum.initialised/2", "records": {}}', '{"a": 1}'])
def test_a_mark_that_cannot_be_read_stops_the_site(silo, model, content):
    (silo / MARK).write_text(content)
    refused(lambda: started(silo, model), "mark.file-damaged", "mark.format-unknown", kind=StorageError)
    refused(lambda: init_site(read_site(silo)), "mark.file-damaged", "mark.format-unknown", kind=StorageError)


def test_a_server_and_a_research_silo_keep_no_records(kit, tmp_path):
    rewritten(kit, 'role = "silo"', 'role = "server"')
    assert init_site(read_site(kit)) == []
    assert not (kit / MARK).exists()


@pytest.fixture
def masked(tmp_path):
    return MaskedWorld(tmp_path)


def test_a_masked_silo_has_two_records_and_either_lost_stops_it(masked):
    home = masked.folder / "lille"
    names = {"lille.ledger", "lille.masking"}
    assert set(json.loads((home / MARK).read_text())["records"]) == names
    masked.run(masked.round())
    for name in names:
        path = home / "state" / name
        path.rename(home / "aside")
        masked.restart()
        requests = masked.round(2).requests()
        refused(
            lambda requests=requests: masked.answer("lille", requests["lille"]),
            "storage.file-lost",
            "site.ledger-missing",
        )
        refused(lambda: init_site(read_site(home)), "site.record-lost", file=name)
        if name == "lille.masking":  # a new one in its place would give a second sum of a round
            MemberStore.open(path, silo="lille", create=True).close()
            refused(lambda requests=requests: masked.answer("lille", requests["lille"]), "site.record-replaced")
            path.unlink()
        (home / "aside").rename(path)
    masked.restart()
    masked.run(masked.round(2))
    assert [entry.round_number for entry in masked.ledger("lille")] == [1, 2]


def test_a_silo_whose_next_plan_is_masked_gets_the_record_that_it_lacks_alone(masked):
    home = masked.folder / "lille"
    site = read_site(home)
    before = json.loads((home / MARK).read_text())["records"]["lille.ledger"]
    (home / "state" / "lille.masking").unlink()
    for folder in (home, home / "state"):
        (folder / MARK).write_text(json.dumps({"format": "fulcrum.initialised/1", "records": {"lille.ledger": before}}))
    refused(lambda: MaskedSilo(read_site(home)), "site.uninitialised")
    assert init_site(site) == [home / "state" / "lille.masking"]
    assert json.loads((home / MARK).read_text())["records"]["lille.ledger"] == before
    masked.run(masked.round())


def test_a_masking_record_is_not_made_beside_a_ledger_that_tells_of_rounds_of_its_plan(masked):
    home = masked.folder / "lille"
    masked.run(masked.round())
    before = json.loads((home / MARK).read_text())["records"]["lille.ledger"]
    (home / "state" / "lille.masking").unlink()
    for folder in (home, home / "state"):
        (folder / MARK).write_text(json.dumps({"format": "fulcrum.initialised/1", "records": {"lille.ledger": before}}))
    refused(lambda: init_site(read_site(home)), "site.masking-record-lost", file="lille.masking")


def test_a_ledger_is_not_made_beside_a_masking_record_that_tells_of_it(masked):
    home = masked.folder / "lille"
    known = json.loads((home / MARK).read_text())["records"]
    (home / "state" / "lille.ledger").unlink()
    for folder in (home, home / "state"):
        (folder / MARK).write_text(
            json.dumps({"format": "fulcrum.initialised/1", "records": {"lille.masking": known["lille.masking"]}})
        )
    refused(lambda: init_site(read_site(home)), "site.ledger-lost", file="lille.ledger")


@pytest.fixture
def region(world, tmp_path):
    """The site of a region."""
    home = tmp_path / "north"
    home.mkdir()
    settings = SiteSettings(format=FORMAT, role="region", name="north", issuer="")
    (home / "site.toml").write_text(site_toml(settings))
    return Site(folder=home, settings=settings, plan=world.plan)


def test_the_sums_of_a_region_are_those_of_one_plan_and_are_made_once_for_it(region, world):
    assert init_site(region) == [region.state / SUMS]
    refused(lambda: init_site(region), "site.already-initialised")
    (region.state / SUMS).unlink()
    refused(lambda: init_site(region), "site.record-lost", file="sums.db")
    elsewhere = replace(region, settings=msgspec.structs.replace(region.settings, state="second"))
    elsewhere.state.mkdir()
    refused(lambda: init_site(elsewhere), "site.record-lost", file="sums.db")
    next_plan = replace(elsewhere, plan=world.tight)
    assert init_site(next_plan) == [region.folder / "second" / SUMS]


def test_two_silos_may_keep_their_records_in_one_folder(masked, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    for silo in ("lyon", "nice"):
        home = tmp_path / silo
        (home / MARK).unlink()
        shutil.rmtree(home / "state")
        rewritten(home, 'state = "state"', 'state = "../shared"')
        assert len(init_site(read_site(home))) == 2
    assert len(json.loads((shared / MARK).read_text())["records"]) == 4
    (shared / "nice.ledger").unlink()
    refused(lambda: init_site(read_site(tmp_path / "nice")), "site.record-lost", file="nice.ledger")


@forks
def test_an_initialisation_killed_at_any_line_is_finished_by_the_next_one(kit, model):
    aside = kit.parent / "aside"
    shutil.copytree(kit, aside)
    site = read_site(kit)
    lines = int(killed_at_line(lambda: init_site(site), site_setup, 0))
    outcomes = set()
    for line in range(1, lines + 1):
        shutil.rmtree(kit)
        shutil.copytree(aside, kit)
        killed_at_line(lambda: init_site(site), site_setup, line)
        try:
            init_site(read_site(kit))
            outcomes.add("made")
        except StorageError as error:
            outcomes.add(str(error).removeprefix(f"{kit} ")[:22])
        with contextlib.closing(Ledger.open(kit / "state" / "a.ledger", silo="a", create=False)) as ledger:
            assert ledger.sequence == 0
        assert {path.name for path in (kit / "state").iterdir()} - {".init"} == {"a.ledger", MARK}
        SiloStation(read_site(kit, "silo"))
    assert outcomes == {"made", "is initialised already"}
    started(kit, model)
    assert released(kit) == [1]
    assert Path(kit / MARK).exists()
