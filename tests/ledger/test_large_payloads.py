"""Releases too large for the ledger's own file: beside it, durable before their entry, and never without it."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forking import forks, in_child
from large_payloads import SIZE, beside, large, opens_with, put, state, states, unrecorded
from ledgers import PLAN, holds, opened, release, says

from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import Ledger, verify_ledger
from fulcrum.storage.payload_file import BLOCK_BYTES, FIRST_PLACE
from fulcrum.storage.payloads import MOST_INSIDE


def test_a_large_release_is_beside_the_ledger_and_comes_back_bit_for_bit(path):
    with opened(path) as ledger:
        release(ledger, 1, b"small")
        assert not beside(path).exists()
        release(ledger, 2, large(2))
        release(ledger, 3, bytes(MOST_INSIDE))
        assert ledger.entries()[1].payload_digest == hashlib.sha256(large(2)).hexdigest()
        assert ledger.stored(PLAN, 2, "model") == large(2)
    assert large(2) in beside(path).read_bytes()
    assert path.stat().st_size < MOST_INSIDE + 500_000  # the third alone
    with opened(path) as ledger:
        assert not release(ledger, 2, b"other noise").fresh
        assert [ledger.stored(PLAN, number, "model") for number in (1, 2, 3)] == [
            b"small", large(2), bytes(MOST_INSIDE),
        ]  # fmt: skip
    assert all(holds(path).values())
    if sys.platform != "win32":
        assert stat.S_IMODE(beside(path).stat().st_mode) == 0o600


def test_a_large_release_is_synced_before_its_entry_is(path, syncs):
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        inode, file = beside(path).stat().st_ino, path.stat().st_ino
        for number in (2, 3):
            del syncs[:]
            release(ledger, number, large(number))
            assert [sync.inode for sync in syncs] == [inode, file]  # SQLite syncs the log between the two
            assert syncs[0].size == beside(path).stat().st_size


def test_the_name_of_a_file_of_payloads_is_synced_before_the_first_entry_in_it(path, syncs):
    with opened(path) as ledger:
        del syncs[:]
        release(ledger, 1, large(1))
    inode, folder, file = beside(path).stat().st_ino, path.parent.stat().st_ino, path.stat().st_ino
    assert [sync.inode for sync in syncs[:5]] == [file, inode, folder, inode, file]
    assert syncs[2].names[beside(path).name] == inode


def test_a_crash_at_any_step_of_a_large_release_leaves_it_whole_or_leaves_nothing(path):
    seen = states(path, 3)
    for number in range(3):
        before, after = seen[number], seen[number + 1]
        known, left = len(before[2]), unrecorded(before[2], after[2])
        for written in (known, known + 1, known + 4096, known + SIZE // 2, len(after[2])):
            torn = left[:written].ljust(len(left), b"\0") if written % 2 else left[:written]
            put(path, [before[0], before[1], torn])
            opens_with(path, number)
            assert len(beside(path).read_bytes()) == known  # nothing is left of what was not recorded
        for payloads in (left, after[2]):
            put(path, [before[0], after[1], payloads])  # the mark alone is missing
            opens_with(path, number + 1)
        put(path, after)
        opens_with(path, number + 1)


@pytest.mark.parametrize("content", [b"", bytes(4096), 1, 31, 32, 5_000, FIRST_PLACE], ids=str)
def test_a_crash_while_the_file_of_payloads_is_made_leaves_a_ledger_that_releases(path, content):
    with opened(path) as ledger:
        ledger._file._opened()
        saved = state(path)
    if isinstance(content, int):
        content = saved[2][:content]
    for left in (None, content):
        put(path, [saved[0], saved[1], left])
        with opened(path) as ledger:
            release(ledger, 1, large(1))
        opens_with(path, 1)


def test_a_ledger_without_its_payloads_releases_nothing_and_still_tells_what_is_spent(path, tmp_path):
    states(path, 2)
    whole, other = beside(path).read_bytes(), tmp_path / "other"
    states(other, 2)
    for content, words in (
        (None, "is missing"),
        (whole[: FIRST_PLACE + SIZE], "is cut short"),
        (b"", "does not hold the payloads"),
        (beside(other).read_bytes(), "does not hold the payloads"),
    ):
        beside(path).unlink(missing_ok=True)
        if content is not None:
            beside(path).write_bytes(content)
        before = state(path)
        with pytest.raises(LedgerError, match=words) as error:
            opened(path, None)
        assert f"{beside(path)} " in says(error)
        assert "Put back the one that lyon.ledger was left with" in says(error)
        with Ledger.read(path) as ledger:
            assert ledger.sequence == 2
            assert ledger.spent.shift_above == 0.5
        assert [name for name, sound in holds(path).items() if not sound] == ["payloads"]
        assert state(path) == before
    beside(path).write_bytes(whole)
    opens_with(path, 2)


def test_a_flipped_byte_of_a_large_release_is_noticed_and_never_resent(path):
    states(path, 2)
    broken = bytearray(beside(path).read_bytes())
    broken[-1] ^= 1
    beside(path).write_bytes(broken)
    assert [name for name, sound in holds(path).items() if not sound] == ["payloads"]
    with opened(path) as ledger:
        assert ledger.stored(PLAN, 1, "model") == large(1)
        with pytest.raises(LedgerError, match="the bytes of entry 2 are not those released"):
            ledger.stored(PLAN, 2, "model")


def test_a_file_of_somebody_else_in_the_place_of_the_payloads_is_refused_at_once_and_left_alone(path):
    with opened(path) as ledger:
        release(ledger, 1)
    beside(path).write_bytes(b"minutes of the board")
    for work in (opened, Ledger.read, verify_ledger):
        with pytest.raises(LedgerError, match=r"lyon.ledger knows nothing of it. It is another file's") as error:
            work(path)
        says(error)
    assert beside(path).read_bytes() == b"minutes of the board"
    beside(path).unlink()
    with opened(path) as ledger:
        assert ledger.sequence == 1
        beside(path).write_bytes(b"minutes of the board")  # put there just now
        with pytest.raises(LedgerError, match="knows nothing of it"):
            release(ledger, 2, large(2))
        assert beside(path).read_bytes() == b"minutes of the board"
        beside(path).unlink()
        assert release(ledger, 2, large(2)).fresh


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps open files in place")
@pytest.mark.parametrize("change", ["deleted", "moved", "replaced"])
def test_a_large_release_into_a_file_that_is_no_longer_in_its_place_is_not_sent(path, change):
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        copy = shutil.copy(beside(path), path.with_name("copy"))
        if change == "deleted":
            beside(path).unlink()
        elif change == "moved":
            beside(path).rename(path.with_name("elsewhere"))
        else:
            Path(copy).replace(beside(path))
        with pytest.raises(
            LedgerError, match=r"was deleted, moved or replaced while it was open, so nothing may be sent"
        ):
            release(ledger, 2, large(2))
        assert ledger.sequence == 1
        if change == "moved":  # nothing was charged, nor written where nobody finds it
            path.with_name("elsewhere").rename(beside(path))
            assert release(ledger, 2, large(2)).fresh


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_a_sync_that_fails_is_no_release(path, monkeypatch, name):
    ledger = opened(path)
    release(ledger, 1, large(1))
    before = (ledger.entries(), ledger.head, ledger.spent)

    def fails(handle):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails)
        with pytest.raises(LedgerError, match=r"nothing may be sent \(Input/output error\)"):
            release(ledger, 2, large(2))
    assert (ledger.entries(), ledger.head, ledger.spent) == before
    with pytest.raises(LedgerError, match="Open it again"):
        release(ledger, 2, large(2))
    ledger.close()
    # Where the payload was synced and the mark was not, it is charged, and what any retry sends.
    opens_with(path, 1 if name == "fsync" else 2)


@forks
@pytest.mark.parametrize("room", [0, 4_096, 500_000])
def test_a_full_disk_takes_no_large_release_and_loses_nothing(path, room):
    with opened(path) as ledger:
        release(ledger, 1, large(1))

    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = opened(path)
        limit = beside(path).stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            release(ledger, 2, large(2))
        except LedgerError as error:
            said = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        size = beside(path).stat().st_size
        ledger.close()
        return json.dumps([said, ledger.sequence, size])

    said, sequence, size = json.loads(in_child(work))
    assert "cannot be written, so nothing may be sent (" in said
    assert sequence == 1
    assert size == FIRST_PLACE + len(large(1))  # the disk gets back at once what was not recorded
    opens_with(path, 1)
    assert beside(path).stat().st_size == size


def test_a_ledger_of_format_2_takes_large_releases_and_is_of_format_4_from_then_on(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        head = ledger.head
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA user_version = 2")
        connection.execute("PRAGMA journal_mode = WAL")
    assert all(holds(path, least_sequence=1, witnessed_hash=head).values())
    with opened(path) as ledger:
        assert (ledger.head, ledger.stored(PLAN, 1, "model")) == (head, b"noisy")
        release(ledger, 2, large(2))
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)
    assert all(holds(path, least_sequence=2, witnessed_hash=head).values())


def test_a_small_release_beside_large_ones_asks_for_no_more_syncs_and_closing_for_one(path, syncs):
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        inode, file = beside(path).stat().st_ino, path.stat().st_ino
        del syncs[:]
        release(ledger, 2, b"small")
        assert [sync.inode for sync in syncs] == [file]
        del syncs[:]
    assert [sync.inode for sync in syncs] == [file, inode]  # that the last large one is recorded, durably
    with opened(path) as ledger:
        del syncs[:]
    assert inode not in [sync.inode for sync in syncs]


def test_a_large_release_is_held_in_memory_once_and_so_is_one_that_comes_back(path):
    payload = random.Random(0).randbytes(20_000_000)
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        for work, copies in (
            (lambda: release(ledger, 2, payload), 0),
            (lambda: ledger.stored(PLAN, 2, "model"), 1),
            (lambda: release(ledger, 2, b"other noise"), 1),
            (ledger.checks, 1),
        ):
            tracemalloc.start()
            work()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < (copies + 0.1) * len(payload)


def test_threads_that_release_one_round_all_send_the_bytes_of_the_first(path):
    with opened(path) as ledger, ThreadPoolExecutor(8) as pool:
        for number in (1, 2):
            done = list(pool.map(lambda seed, number=number: release(ledger, number, large(seed)), range(8)))
            assert sum(one.fresh for one in done) == 1
            assert len({one.payload for one in done}) == 1
    assert all(holds(path, least_sequence=2).values())
    assert beside(path).stat().st_size < FIRST_PLACE + 2 * (SIZE + 100 + BLOCK_BYTES)


@pytest.mark.parametrize("place", [0, 1, 4096, SIZE // 2, SIZE - 1])
def test_large_releases_cut_short_anywhere_are_noticed_at_once(path, place):
    states(path, 2)
    whole = beside(path).read_bytes()
    second = FIRST_PLACE + -(-len(large(1)) // BLOCK_BYTES) * BLOCK_BYTES
    assert whole[second:] == large(2)
    for end in (second + place, FIRST_PLACE + place, BLOCK_BYTES + place % FIRST_PLACE):
        beside(path).write_bytes(whole[:end])
        with pytest.raises(LedgerError, match=r"is cut short|is an older copy") as error:
            opened(path, None)
        says(error)
        assert beside(path).read_bytes() == whole[:end]
    beside(path).write_bytes(whole)
    opens_with(path, 2)
