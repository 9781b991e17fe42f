"""A ledger beside payloads that it was not left with: refused in one line when it is opened, and nothing is changed."""

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import pytest
from forking import forks, in_child
from large_payloads import beside, large, opens_with, put, state, states, unrecorded
from ledgers import PLAN, holds, opened, release, says

from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import Ledger, verify_ledger
from fulcrum.storage.payload_file import BLOCK_BYTES, FIRST_PLACE

OLDER = "lyon.ledger is an older copy, or damaged: lyon.ledger-payloads was written last beside another state of it"
links = pytest.mark.skipif(sys.platform == "win32", reason="needs links and pipes")


def refused(path: Path, words: str, *works) -> None:
    """Opening, and whatever else is named, says so in one line; nothing is changed, nor anything made."""
    log = path.with_name(f"{path.name}-wal")
    folded = {path, log} if log.exists() else set()  # what was not closed takes in its log, and loses nothing

    def files() -> dict[Path, bytes]:
        return {place: place.read_bytes() for place in set(path.parent.iterdir()) - folded if place.is_file()}

    before = files()
    for work in works or (lambda path: Ledger.open(path, silo="lyon"),):
        with pytest.raises(LedgerError) as error:
            work(path)
        assert words in says(error)
    assert files() == before


def everywhere(path: Path, words: str) -> None:
    refused(path, words, lambda path: Ledger.open(path, silo="lyon"), Ledger.read, verify_ledger)


def closed_states(path: Path, rounds: int) -> list[list[bytes | None]]:
    """The ledger and its payloads after every large release, closed each time."""
    seen = []
    for number in range(rounds + 1):
        with opened(path) as ledger:
            release(ledger, number + 1, large(number + 1) if number else b"small")
        seen.append(state(path))
    return seen


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_an_older_ledger_beside_newer_payloads_is_refused_and_its_payloads_are_whole(path, closed):
    seen = closed_states(path, 3) if closed else states(path, 3)
    for number, older in enumerate(seen[:-1]):
        for newer in seen[number + 1 :]:
            put(path, [older[0], older[1], newer[2]])
            everywhere(path, "knows nothing of it" if older[2] is None else OLDER)
    put(path, seen[-1])
    with opened(path, None) as ledger:
        assert ledger.stored(PLAN, 3, "model") == large(3)


def test_what_a_kill_kept_from_the_payloads_is_made_good_when_the_ledger_is_opened_next(path):
    seen = states(path, 2)
    left = unrecorded(seen[1][2], seen[2][2])
    put(path, [*seen[2][:2], left])  # killed right after the entry was written
    opens_with(path, 2)
    put(path, [*seen[1][:2], beside(path).read_bytes()])
    everywhere(path, OLDER)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_newer_ledger_beside_older_payloads_releases_nothing_and_tells_what_is_spent(path, closed):
    seen = closed_states(path, 3) if closed else states(path, 3)
    for number, older in enumerate(seen[:-1]):
        for newer in seen[number + 1 :]:
            put(path, [newer[0], newer[1], older[2]])
            words = "is missing, with" if older[2] is None else "is cut short: it lacks"
            refused(path, f"{words} payloads of lyon.ledger. Put back the one that lyon.ledger was left with")
            with Ledger.read(path) as ledger:
                assert ledger.spent.shift_above == 0.25 * ledger.sequence > 0
            assert [name for name, sound in holds(path).items() if not sound] == ["payloads"]


def test_two_copies_that_went_their_own_ways_do_not_take_each_others_payloads(path, tmp_path):
    states(path, 1)
    other = tmp_path / "copy" / path.name
    other.parent.mkdir()
    for place in (path, beside(path)):
        shutil.copy(place, other.parent)
    for place, size in ((path, 3), (other, 2)):
        with opened(place) as ledger:
            release(ledger, 2, os.urandom(len(large(2)) * size))
    mine, theirs = state(path), state(other)
    put(path, [mine[0], mine[1], theirs[2]])
    everywhere(path, OLDER)
    put(path, [theirs[0], theirs[1], mine[2]])
    everywhere(path, OLDER)
    with opened(other) as ledger:
        ledger._file.keep(large(3))  # and no row, as if killed
    put(path, [mine[0], mine[1], beside(other).read_bytes()])
    everywhere(path, OLDER)
    put(path, mine)
    with opened(path) as ledger:
        assert ledger.stored(PLAN, 1, "model") == large(1)


def test_a_lost_ledger_is_not_begun_anew_beside_the_payloads_that_it_left(path):
    states(path, 1)
    whole = path.read_bytes()
    path.unlink()
    refused(path, f"{path} is not there, but its payloads lyon.ledger-payloads are. Put back the lyon.ledger")
    assert not path.exists()
    path.write_bytes(whole)
    opens_with(path, 1)


def test_a_ledger_that_is_renamed_or_copied_alone_misses_its_payloads_and_says_so(path):
    states(path, 2)
    other = path.with_name("paris.ledger")
    shutil.copy(path, other)
    refused(other, f"{beside(other)} is missing, with payloads of paris.ledger. Put back the one")
    shutil.copy(beside(path), beside(other))
    opens_with(other, 2)
    opens_with(path, 2)


def leave_a_tail(path: Path) -> bytes:
    """A ledger with two large releases, and what a killed process left of a third."""
    seen = states(path, 2)
    left = seen[2][2] + os.urandom(5_000)
    put(path, [*seen[2][:2], left])
    return left


def test_a_ledger_that_turns_out_to_be_another_silos_has_nothing_cut_off(path):
    left = leave_a_tail(path)
    with pytest.raises(LedgerError, match="is the ledger of silo 'lyon', not of 'nice'"):
        Ledger.open(path, silo="nice")
    assert beside(path).read_bytes() == left
    opens_with(path, 2)
    assert beside(path).read_bytes() == left[:-5_000]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE entry SET round = 9 WHERE sequence = 2", "does not follow from those before it"),
        ("DELETE FROM outside WHERE place = (SELECT max(place) FROM outside)", OLDER),
        ("UPDATE outside SET length = 7 WHERE place = (SELECT max(place) FROM outside)", OLDER),
        ("UPDATE outside SET length = length + 1", "is damaged: it does not say which payloads it has, and where"),
        ("UPDATE outside SET length = 'many'", "is damaged: it does not say which payloads it has, and where"),
        ("UPDATE outside SET length = -1", "is damaged: it does not say which payloads it has, and where"),
        ("UPDATE beside SET identity = NULL", None),
        ("UPDATE beside SET identity = 'text'", "is damaged: it does not say which payloads it has, and where"),
        ("UPDATE beside SET changes = -1", OLDER),
        ("UPDATE beside SET nonce = zeroblob(16)", OLDER),
        ("DELETE FROM beside", "is damaged: it does not say which payloads it has, and where"),
        ("DROP TABLE beside", "has large payloads of format 3"),
        ("DROP TABLE outside", "is damaged"),
    ],
)
def test_a_damaged_ledger_has_nothing_cut_off_from_its_payloads(path, damage, words):
    left = leave_a_tail(path)
    with opened(path, None):
        pass
    beside(path).write_bytes(left)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        try:
            if damage == "UPDATE outside SET length = length + 1":  # so that the first reaches into the second
                connection.execute("UPDATE outside SET length = length + 1000000")
            connection.execute(damage)
        except sqlite3.IntegrityError:
            assert words is None
            return
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA journal_mode = WAL")
    refused(path, words)
    assert beside(path).read_bytes() == left


@links
@pytest.mark.parametrize("what", ["folder", "pipe", "link", "dangling link"])
@pytest.mark.parametrize("rounds", [0, 2])
def test_what_is_no_file_in_the_place_of_the_payloads_is_refused_when_the_ledger_is_opened(path, what, rounds):
    with opened(path) as ledger:
        for number in range(1, rounds + 1):
            release(ledger, number, large(number))
    elsewhere = path.with_name("elsewhere")
    if rounds:
        beside(path).rename(elsewhere)
    if what == "folder":
        beside(path).mkdir()
    elif what == "pipe":
        os.mkfifo(beside(path))
    else:
        beside(path).symlink_to(elsewhere if what == "link" else path.with_name("nowhere"))
    refused(path, f"{beside(path)} is ")
    if rounds:  # what is spent can still be seen
        with Ledger.read(path) as ledger:
            assert ledger.sequence == rounds
    assert not path.with_name("nowhere").exists()


@links
def test_payloads_with_a_second_name_are_not_written_to_and_can_be_looked_at(path):
    states(path, 2)
    other = path.with_name("paris.ledger")
    shutil.copy(path, other)
    beside(other).hardlink_to(beside(path))
    for place in (path, other):
        refused(place, f"{beside(place)} has another name, under which it could be written to. Remove that name")
        assert all(holds(place).values())
    beside(other).unlink()
    opens_with(path, 2)


@forks
@pytest.mark.parametrize(("mode", "reads"), [(0o400, "1"), (0o000, "unreadable for this user. Change its permissions")])
def test_payloads_that_may_not_be_written_are_refused_when_the_ledger_is_opened(mode, reads):
    """Root may write everything, so that a child of root works as somebody else."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lyon.ledger"
        states(path, 1)
        beside(path).chmod(mode)
        somebody = os.geteuid() or 65_534
        for place in (path.parent, path, beside(path)):
            os.chown(place, somebody, -1)

        def opens() -> None:
            os.seteuid(somebody)
            Ledger.open(path, silo="lyon")

        def sequence() -> int:
            os.seteuid(somebody)
            with Ledger.read(path) as ledger:
                return ledger.sequence

        said = in_child(opens)
        assert said.endswith("lyon.ledger-payloads is read-only for this user. Change its permissions")
        assert in_child(sequence).endswith(reads)


@pytest.mark.parametrize("place", [0, 31, BLOCK_BYTES, 2 * BLOCK_BYTES + 20, FIRST_PLACE - BLOCK_BYTES + 3])
def test_a_flipped_bit_in_the_head_of_the_payloads_loses_nothing_and_gives_no_wrong_bytes(path, place):
    states(path, 2)
    whole = beside(path).read_bytes()
    broken = bytearray(whole)
    broken[place] ^= 16
    beside(path).write_bytes(broken)
    if place < BLOCK_BYTES or place // BLOCK_BYTES == 1:  # the second change is the last: the first block of stamps
        refused(path, "lyon.ledger-payloads ")
        beside(path).write_bytes(whole)
    opens_with(path, 2)


def test_large_releases_of_format_3_are_refused_and_small_ones_are_read(path):
    states(path, 1)
    small = path.with_name("small.ledger")
    with opened(small) as ledger:
        release(ledger, 1, b"noisy")
    for place in (path, small):
        with contextlib.closing(sqlite3.connect(place, isolation_level=None)) as connection:
            connection.execute("DROP TABLE IF EXISTS beside")
            connection.execute("PRAGMA user_version = 3")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA journal_mode = WAL")
    refused(path, "has large payloads of format 3, which say too little of themselves")
    with opened(small) as ledger:
        assert ledger.stored(PLAN, 1, "model") == b"noisy"
