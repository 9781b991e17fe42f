"""The file of a region's releases and sums."""

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys

import pytest
from error_codes import coded
from regional import MEMBERS, refusal

from fulcrum.aggregation.region_store import RegionFile
from fulcrum.aggregation.regional_aggregator import RegionRound
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FileInUseError, LedgerError, StorageError


def test_a_restart_between_accept_and_close_loses_nothing(world, path):
    sent = {silo: world.release(silo) for silo in MEMBERS}
    for made in sent.values():
        with world.open(path) as region:
            region.accept(world.seal(made), 1)
    with world.open(path) as region:
        assert (region.close_round(1).values == sum(made.values for made in sent.values())).all()


def test_after_a_restart_a_round_has_the_same_bytes(world, path):
    with world.open(path) as region:
        for silo in MEMBERS:
            region.accept(world.sealed(silo), 1)
        data = region.close_round(1).to_bytes()
    for _ in range(2):
        with world.open(path) as region:
            assert region.close_round(1).to_bytes() == data
            assert "is late" in refusal(region.accept, world.sealed("lille"), 1)


def test_releases_are_forgotten_once_they_are_summed(world, path):
    made = {silo: world.release(silo) for silo in MEMBERS}
    with world.open(path) as region:
        for one in made.values():
            region.accept(world.seal(one), 1)
    for one in made.values():
        assert one.values.tobytes() in path.read_bytes()
    with world.open(path) as region:
        region.close_round(1)
    for one in made.values():
        assert one.values.tobytes() not in path.read_bytes()


def test_summed_releases_are_in_neither_the_file_nor_its_journal_while_it_is_open(world, region, path):
    first, second = ({silo: world.release(silo, number) for silo in MEMBERS} for number in (1, 2))
    for number, made in ((1, first), (2, second)):
        for one in made.values():
            region.accept(world.seal(one), number)
            assert one.values.tobytes() in path.read_bytes()
    total = region.close_round(1)
    stored = b"".join(entry.read_bytes() for entry in path.parent.iterdir())
    assert total.to_bytes() in path.read_bytes()
    assert not any(one.values.tobytes() in stored for one in first.values())
    assert all(one.values.tobytes() in stored for one in second.values())
    assert region.close_round(1).to_bytes() == total.to_bytes()


def test_a_sum_outlives_releases_that_cannot_be_erased(world, region, path, monkeypatch):
    made = [world.release(silo) for silo in MEMBERS]
    for one in made:
        region.accept(world.seal(one), 1)
    real = RegionFile.write

    def full(self, *statements, **options):
        if statements and statements[0][0].startswith("UPDATE release"):
            statements = (("SELECT raise_no_such_function()", ()),)
        real(self, *statements, **options)

    with monkeypatch.context() as patch:
        patch.setattr(RegionFile, "write", full)
        assert str(path) in refusal(region.close_round, 1, kind=StorageError)
    assert "failed a write" in refusal(region.close_round, 1, kind=StorageError)
    region.close()
    with world.open(path) as again:
        assert again.is_summed(1)
        assert (again.close_round(1).values == sum(one.values for one in made)).all()
        again.forget()
        stored = b"".join(entry.read_bytes() for entry in path.parent.iterdir())
        assert not any(one.values.tobytes() in stored for one in made)


def test_rounds_are_listed(world, region):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close_round(1)
    region.accept(world.sealed("metz", 2), 2)
    region.close_round(2)
    region.accept(world.sealed("lille", 3), 3)
    region.close_round(4)
    assert region.rounds() == (
        RegionRound(round_number=1, status="summed", members=MEMBERS, missing=()),
        RegionRound(round_number=2, status="withheld", members=("metz",), missing=("caen", "lille")),
        RegionRound(round_number=3, status="gathering", members=("lille",), missing=("caen", "metz")),
        RegionRound(round_number=4, status="withheld", members=(), missing=MEMBERS),
    )


def test_a_file_is_bound_to_its_plan_and_region(world, region, path):
    region.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "another region or plan than 'north'" in refusal(world.open, path, world.tight)
    assert "another region or plan than 'south'" in refusal(world.open, path, region="south")
    world.open(path).close()


def test_a_file_that_is_lost_is_not_made_anew_unless_asked(world, path):
    with pytest.raises(StorageError, check=coded("storage.file-lost", file=path)):
        world.open(path, create=False)
    assert not path.exists()
    world.open(path).close()
    with world.open(path, create=False) as region:
        assert region.rounds() == ()


def test_a_file_is_made_for_a_region_without_its_key(world, path):
    RegionFile.open(path, plan_digest=world.plan.digest, region="north").close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert "another region or plan" in refusal(world.open, path, region="south", create=False)
    with world.open(path, create=False) as region:
        region.accept(world.sealed("lille"), 1)


def test_a_file_of_an_earlier_fulcrum_is_refused_and_left_alone(world, path):
    world.open(path).close()
    older = path.read_bytes()[:60] + (4).to_bytes(4, "big") + path.read_bytes()[64:]
    path.write_bytes(older)
    assert refusal(world.open, path, kind=StorageError) == (
        f"{path} is a region's file of sums of format 4, of an earlier Fulcrum. Finish its plan with the version that "
        "wrote it, or ask for a new plan and begin a new file"
    )
    assert path.read_bytes() == older


def test_one_at_a_time(world, region, path):
    assert "open in this process" in refusal(world.open, path, kind=FileInUseError)
    script = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode != 0
    region.close()
    region.close()
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode == 0
    assert "is closed" in refusal(region.close_round, 1, kind=StorageError)


def test_foreign_and_damaged_files_are_refused(world, tmp_path):
    junk, empty, ledger, other = (tmp_path / name for name in ("junk", "empty", "ledger", "other"))
    junk.write_bytes(b"not a database at all")
    empty.write_bytes(b"")
    Ledger.open(ledger, silo="north").close()
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    for path, code in (
        (junk, "storage.file-kind"),
        (empty, "storage.file-empty"),
        (ledger, "storage.sqlite-kind"),
        (other, "storage.sqlite-kind"),
        (tmp_path, "storage.not-a-file"),
        (tmp_path / "none" / "file", "storage.folder-missing"),
    ):
        with pytest.raises(StorageError, check=coded(code)):
            world.open(path)
    with Ledger.open(ledger, silo="north") as book:
        assert book.sequence == 0
    region = tmp_path / "north"
    world.open(region).close()
    assert "not a ledger" in refusal(Ledger.open, region, silo="north", kind=LedgerError)
    region.write_bytes(region.read_bytes()[:-5])
    assert "damaged" in refusal(world.open, region, kind=StorageError)


def test_nobody_is_told_to_restore_a_copy_of_a_regions_file(world, region, path):
    region.close()
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) - 100))
    said = refusal(world.open, path, kind=StorageError)
    assert "is damaged (" in said
    assert said.endswith("). Ask for a new plan")
    path.write_bytes(data[:16] + bytes(100) + data[116:])
    assert "is not a region's file of sums, or" in refusal(world.open, path, kind=StorageError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_and_not_waited_for(world, path):
    os.mkfifo(path)
    assert refusal(world.open, path, kind=StorageError) == f"{path} is not a file. Name the region's file of sums"


def test_a_read_only_file_is_refused(path, monkeypatch):
    RegionFile.open(path, plan_digest="p", region="north").close()
    monkeypatch.setattr(os, "access", lambda place, mode: place != path)  # root may write to any
    with pytest.raises(StorageError, check=coded("storage.read-only", file=path)):
        RegionFile.open(path, plan_digest="p", region="north")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE release SET bytes = zeroblob(320) WHERE silo = 'lille'",
        "UPDATE release SET bytes = NULL WHERE silo = 'lille'",
        "UPDATE release SET digest = 'f00d' WHERE silo = 'lille'",
        "UPDATE region SET layout = x'00'",
    ],
)
def test_changed_releases_are_not_summed(world, region, path, change):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    with world.open(path, layout=None) as again:
        assert "is not the accepted one" in refusal(again.close_round, 1, kind=StorageError)


def test_a_changed_sum_is_not_sent(world, region, path):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region.close_round(1)
    region.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("UPDATE answer SET bytes = zeroblob(99)")
    with world.open(path) as again:
        assert "is not the answer that was sent" in refusal(again.close_round, 1, kind=StorageError)


def test_a_failed_write_sends_nothing_until_the_file_is_opened_again(world, region, path):
    for silo in MEMBERS:
        region.accept(world.sealed(silo), 1)
    region._file.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50)  # too little for a sum
    assert "nothing may be sent" in refusal(region.close_round, 1, kind=StorageError)
    assert "failed a write" in refusal(region.close_round, 1, kind=StorageError)
    region.close()
    with world.open(path) as again:
        assert again.rounds()[0].status == "gathering"
        assert isinstance(again.close_round(1), RegionalSum)
