"""Ledgers of earlier formats, written anew: nothing is lost, and the old file releases nothing any more."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from earlier import HEAD, LARGE, LARGE_HEAD, unpack, write_format_1
from forking import forks, killed_at_line
from ledgers import COST, PLAN, holds, opened, release, says

from fulcrum.core.store import earlier_ledgers as earlier_formats
from fulcrum.core.store.earlier_ledgers import convert_ledger
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_entries import Allowance, Cost
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError


@pytest.fixture
def tmp_path(tmp_path_factory):
    """In memory: nothing here waits for a disk."""
    return tmp_path_factory.mktemp("conversion")


@pytest.fixture
def new(tmp_path):
    return tmp_path / "new.ledger"


def named(silo):
    """The charges of the ledgers' plan, by name."""
    assert silo == "lyon"
    return {"plan-a": (COST, PLAN)}


def refused(work, *words):
    with pytest.raises(LedgerError) as error:
        work()
    said = says(error)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_ledger_of_every_earlier_format_is_converted_whole(path, new, number):
    unpack(f"format{number}", path)
    done = convert_ledger(path, new, named)
    assert (done.silo, done.releases, done.former_head) == ("lyon", 2, HEAD)
    assert all(holds(new, least_sequence=2, witnessed_hash=HEAD).values())
    with opened(new) as ledger:
        assert [entry.cost for entry in ledger.entries()] == [COST, COST]
        assert ledger.entries()[-1].former_hash == HEAD
        assert ledger.stored_payload(PLAN, 2, "model") == b"round 2"
        assert not release(ledger, 2, b"other noise").fresh
        assert release(ledger, 3).fresh
    assert all(holds(new, least_sequence=3, witnessed_hash=HEAD).values())
    assert sorted(entry.name for entry in new.parent.iterdir()) == [path.name, new.name]


def test_large_releases_are_taken_over_from_the_file_beside_it(path, new):
    unpack("format4-large", path)
    assert convert_ledger(path, new, named).former_head == LARGE_HEAD
    with opened(new) as ledger:
        assert [ledger.stored_payload(PLAN, number, "model") for number in (1, 2, 3)] == LARGE
    assert all(holds(new, least_sequence=3, witnessed_hash=LARGE_HEAD).values())


def test_the_old_ledger_releases_nothing_any_more_and_is_not_converted_twice(path, new, tmp_path):
    unpack("format4", path)
    convert_ledger(path, new, named)
    with opened(new) as ledger:
        release(ledger, 3, b"sent")
    for work in (lambda: opened(path), lambda: read_ledger(path), lambda: verify_ledger(path)):
        refused(
            work,
            "was converted, and a converted ledger records no further release. Use the ledger that the conversion wrote",
        )
    for target in (tmp_path / "second", new):
        refused(lambda target=target: convert_ledger(path, target, named))
    assert not (tmp_path / "second").exists()
    with opened(new) as ledger:
        assert ledger.stored_payload(PLAN, 3, "model") == b"sent"


def test_a_version_of_then_refuses_a_ledger_that_was_converted(path, new):
    unpack("format4", path)
    convert_ledger(path, new, named)
    assert int.from_bytes(path.read_bytes()[60:64], "big") > 4  # "of format ..., this Fulcrum knows format 4"


def test_releases_of_plans_that_are_not_given_are_not_converted(path, new):
    """A masked release was charged inside as against one colluding silo: that is not what everybody learned of it."""
    unpack("format1", path)
    before = path.read_bytes()
    refused(lambda: convert_ledger(path, new), "releases of plans that were not given: plan-a. Name the files")
    assert path.read_bytes() == before
    assert not new.exists()


@pytest.mark.parametrize(
    ("cost", "allowance"),
    [
        ({"silo": 1.0, "region": 0.125}, {}),
        ({"silo": 2.0, "region": 0.25}, {}),
        ({}, {"shifts": {"silo": 8.0, "region": 2.0}}),
        ({}, {"rounds": 6}),
    ],
)
def test_a_plan_that_charges_other_than_the_ledger_holds_is_refused(path, new, cost, allowance):
    unpack("format4", path)
    before = path.read_bytes()
    wrong = Allowance(
        plan_digest="plan-a", rounds=allowance.get("rounds", 5), shifts=allowance.get("shifts", PLAN.shifts)
    )
    charges = {"plan-a": (Cost(shifts=cost or COST.shifts), wrong)}
    refused(lambda: convert_ledger(path, new, lambda silo: charges), "plan plan-a", "Give the plan file with which")
    assert not new.exists()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET basis = 'other' WHERE sequence = 2",
        "UPDATE entry SET shift_above = 0.125 WHERE sequence = 1",
        "UPDATE entry SET spent_inside = 1 WHERE sequence = 2",
        "DELETE FROM entry WHERE sequence = 1",
        "DELETE FROM entry WHERE sequence = 2",
        "UPDATE payload SET bytes = x'00' WHERE sequence = 2",
        "DELETE FROM payload WHERE sequence = 1",
        "INSERT INTO payload VALUES (3, x'00')",
        "UPDATE plan SET rounds = 1",
        "UPDATE silo SET name = 'nice'",
        "UPDATE silo SET plan = 'none'",
        "DELETE FROM silo",
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN SELECT 1; END",
        "CREATE TABLE more (x)",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE payload; CREATE VIEW payload AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
        "SELECT x AS sequence, x'00' AS bytes FROM c",
    ],
)
@pytest.mark.parametrize("number", [1, 4])
def test_a_damaged_ledger_is_not_converted_and_left_alone(path, new, change, number):
    unpack(f"format{number}", path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(change)
        connection.execute("PRAGMA journal_mode=DELETE")
        if number > 1:
            connection.execute("PRAGMA journal_mode=WAL")
    before = path.read_bytes()
    refused(lambda: convert_ledger(path, new, named), "damaged")
    assert path.read_bytes() == before
    assert [entry.name for entry in new.parent.iterdir()] == [path.name]


def test_a_ledger_that_was_not_closed_is_refused_and_left_alone(path, new):
    unpack("format4-killed", path)
    before = [path.read_bytes(), Path(f"{path}-wal").read_bytes()]
    words = "was not closed. Open and close the ledger once with the version of Fulcrum"
    refused(lambda: convert_ledger(path, new, named), words)
    Path(f"{path}-wal").rename(f"{path}-moved")
    refused(lambda: convert_ledger(path, new, named), words)  # the file alone says that it is not whole
    Path(f"{path}-moved").rename(f"{path}-wal")
    assert [path.read_bytes(), Path(f"{path}-wal").read_bytes()] == before


def test_an_older_copy_beside_newer_payloads_and_payloads_of_another_ledger_are_refused(path, new, tmp_path):
    unpack("format4-large", path)
    beside = Path(f"{path}-payloads")
    whole = beside.read_bytes()
    stamp = 3 * 4096
    for content in (
        whole[:stamp] + bytes(7) + b"\x09" + whole[stamp + 8 :],  # of a later change
        bytes(32) + whole[32:],  # of another ledger
        b"",
        whole[:-1],
        whole[:-5] + b"xxxxx",
    ):
        beside.write_bytes(content)
        refused(lambda: convert_ledger(path, new, named))
    beside.unlink()
    refused(lambda: convert_ledger(path, new, named), "damaged")
    unpack("format4", path)
    beside.write_bytes(whole)
    refused(lambda: convert_ledger(path, new, named), "damaged")
    assert not new.exists()


def test_what_is_no_ledger_of_an_earlier_format_is_refused(path, new, tmp_path):
    opened(path).close()
    refused(lambda: convert_ledger(path, new), "is a ledger of format 5, and only formats 1 to 4 can be converted")
    (tmp_path / "text").write_bytes(b"minutes of the board" * 30)
    refused(lambda: convert_ledger(tmp_path / "text", new), "is not a ledger")
    refused(lambda: convert_ledger(tmp_path / "nowhere", new), "No such file")
    refused(lambda: convert_ledger(tmp_path, new), "is a folder")
    unpack("format4", path)
    new.write_bytes(b"minutes of the board")
    refused(lambda: convert_ledger(path, new), "exists already. Name a new file")
    assert new.read_bytes() == b"minutes of the board"
    refused(lambda: convert_ledger(path, path), "exists already")


@forks
def test_a_conversion_killed_at_any_line_leaves_one_ledger_that_releases_and_is_finished_by_the_next_call(
    path, new, tmp_path
):
    unpack("format4", path)
    whole, outcomes = path.read_bytes(), []
    lines = int(killed_at_line(lambda: convert_ledger(path, new, named), earlier_formats, 0))
    for line in sorted({*range(1, lines, 3), *range(lines - 16, lines + 1)}):
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(whole)
        killed_at_line(lambda: convert_ledger(path, new, named), earlier_formats, line)
        usable = []
        if new.exists():
            with contextlib.suppress(LedgerError):
                Ledger.open(new, silo="lyon", create=False).close()
                usable.append("new")
        if path.read_bytes() == whole:
            usable.append("old")
        assert usable in ([], ["new"], ["old"]), line  # never both
        outcomes.append(tuple(usable))
        if usable != ["new"]:
            convert_ledger(path, new, named)
        assert all(holds(new, least_sequence=2, witnessed_hash=HEAD).values())
        refused(lambda: opened(path), "was converted")
    assert {("old",), (), ("new",)} == set(outcomes)


def test_an_unfinished_conversion_to_another_file_is_not_finished_beside_the_one_in_use(path, new, tmp_path):
    """Two ledgers that both release would charge one budget twice."""
    unpack("format4", path)
    whole = path.read_bytes()
    convert_ledger(path, new, named)
    other = tmp_path / "other"
    other.write_bytes(whole)
    convert_ledger(other, tmp_path / "theirs", named)
    theirs = tmp_path / "theirs"
    theirs.write_bytes(theirs.read_bytes()[:60] + bytes(4) + theirs.read_bytes()[64:])
    refused(lambda: convert_ledger(path, theirs, named), "was converted before")
    refused(lambda: opened(theirs), "to an interrupted conversion")


def interrupted(path, new, monkeypatch):
    """Converts a ledger, interrupted after the old one was marked and before the new one is."""
    patch = earlier_formats._patch

    def interrupt(file, data):
        if Path(file.name) == new:
            raise KeyboardInterrupt
        patch(file, data)

    with monkeypatch.context() as change:
        change.setattr(earlier_formats, "_patch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert_ledger(path, new, named)


def test_the_unfinished_ledger_of_another_silo_is_not_replaced(path, new, tmp_path, monkeypatch):
    """It is the one ledger of that silo that is left."""
    unpack("format4", path)
    interrupted(path, new, monkeypatch)
    before, other = new.read_bytes(), tmp_path / "paris.ledger"
    for silo in ("paris", "lyon"):
        other.unlink(missing_ok=True)
        write_format_1(other, silo, {"q": (5, 1.0, 8.0)}, [])
        refused(lambda: convert_ledger(other, new), "belongs to an interrupted conversion of another ledger")
        assert new.read_bytes() == before
    assert convert_ledger(path, new, named).releases == 2


def test_an_unfinished_ledger_of_the_same_source_is_replaced(path, new, monkeypatch):
    """With another set of plans, for example."""
    unpack("format4", path)
    whole = path.read_bytes()
    interrupted(path, new, monkeypatch)
    path.write_bytes(whole)  # as it was before it was marked
    assert convert_ledger(path, new, named).releases == 2


def test_a_conversion_that_is_killed_while_it_checks_leaves_nothing_that_releases(path, new, tmp_path, monkeypatch):
    unpack("format4", path)
    files = []

    def stop(kind, made):
        files.append((made.name, made.read_bytes()))
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(earlier_formats, "checks_of_file", stop)
        with pytest.raises(KeyboardInterrupt):
            convert_ledger(path, new, named)
    (tmp_path / files[0][0]).write_bytes(files[0][1])  # as a killed process leaves it
    refused(lambda: opened(tmp_path / files[0][0]), "belongs to an interrupted conversion")
    assert convert_ledger(path, new, named).releases == 2


def test_the_first_name_of_an_unfinished_ledger_is_removed(path, new, monkeypatch):
    unpack("format4", path)
    interrupted(path, new, monkeypatch)
    first = new.with_name(f".{new.name}.abc.new")
    first.hardlink_to(new)
    convert_ledger(path, new, named)
    assert not first.exists()


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_a_file_beside_the_new_ledger_is_refused_before_anything_is_converted(path, new, suffix):
    unpack("format4", path)
    before = path.read_bytes()
    beside = new.with_name(new.name + suffix)
    beside.write_bytes(b"x" * 600)
    refused(lambda: convert_ledger(path, new, named), f"{beside} would change the new ledger. Move the file away")
    assert (path.read_bytes(), new.exists()) == (before, False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_in_the_place_of_files_are_refused(path, new):
    unpack("format4", path)
    os.mkfifo(new)
    refused(lambda: convert_ledger(path, new, named), "exists already. Name a new file")
    new.unlink()
    os.mkfifo(f"{path}-wal")
    refused(
        lambda: convert_ledger(path, new, named),
        "-wal is not a file, and has the name of SQLite's journal of lyon.ledger",
    )
    assert not new.exists()


def test_a_conversion_that_lacks_a_plan_of_earlier_releases_names_it(path, new):
    releases = [("early", 1, "m", b"x", 0.25, 1.0), ("plan-a", 1, "m", b"y", 0.25, 1.0)]
    write_format_1(path, "lyon", {"early": (3, 1.0, 8.0), "plan-a": (5, 1.0, 8.0)}, releases)
    before = path.read_bytes()
    refused(
        lambda: convert_ledger(path, new, named),
        "holds releases of plans that were not given: early. Name the files of these plans with --plan",
    )
    assert (path.read_bytes(), new.exists()) == (before, False)


def test_a_ledger_with_spending_that_is_infinite_is_converted(path, new):
    inf = float("inf")
    head = write_format_1(
        path, "lyon", {"p": (3, 1.0, inf)}, [("p", 1, "m", b"x", 0.5, inf), ("p", 2, "m", b"y", 0.5, inf)]
    )
    allowed = Allowance(plan_digest="p", rounds=3, shifts={"silo": inf, "region": 1.0})
    charges = {"p": (Cost(shifts={"silo": inf, "region": 0.5}), allowed)}
    assert convert_ledger(path, new, lambda _: charges).former_head == head
    with read_ledger(new) as ledger:
        assert ledger.total_cost.shifts == {"silo": inf, "region": 1.0}


def test_an_empty_ledger_is_converted(path, new):
    write_format_1(path, "lyon", {}, [])
    done = convert_ledger(path, new)
    assert (done.releases, done.former_head) == (0, "")
    with opened(new) as ledger:
        assert release(ledger, 1).fresh
