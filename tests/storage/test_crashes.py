"""Honest crashes, at every step of a write, lose nothing that was recorded."""

import contextlib
import gc
import io
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from logged_files import PLAN, Book, flipped, log_of, opens_with, put, recorded, recording, refused, state

from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import Ledger, verify_ledger
from fulcrum.storage import database
from fulcrum.storage.log_mark import PAGE_BYTES, LogMark

SLOTS = (2 * PAGE_BYTES - 8192, 2 * PAGE_BYTES - 4096)


def test_a_crash_between_the_two_syncs_of_a_write_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    states = recorded(kind, path, 3)
    for number in range(3):  # the log has a write that the file does not know of
        put(path, (states[number][0], states[number + 1][1]))
        opens_with(kind, path, number + 1)
        put(path, (states[number][0], states[number + 1][1][:-7]))
        opens_with(kind, path, number)


def test_a_crash_after_the_fold_and_before_the_log_is_emptied_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    log = recorded(kind, path, 3)[-1][1]
    log_of(path).write_bytes(log)
    opens_with(kind, path, 3)


def test_a_crash_while_a_log_is_begun_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    recorded(kind, path, 3)
    closed = path.read_bytes()
    with contextlib.closing(kind.open(path)):
        begun = log_of(path).read_bytes()
    for log in (begun, begun[:32], begun[:100], begun[:-1], b""):
        put(path, (closed, log))
        opens_with(kind, path, 3)


def test_an_old_log_that_was_only_begun_is_not_folded_into_a_whole_file(kind, tmp_path):
    path = tmp_path / kind.name
    begun = recorded(kind, path, 3)[0][1][: 32 + 24 + PAGE_BYTES]
    log_of(path).write_bytes(begun)
    opens_with(kind, path, 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_within_a_fold_needs_the_whole_log_and_then_loses_nothing(kind, tmp_path, seed):
    path, rng = tmp_path / kind.name, random.Random(seed)
    file, log = recorded(kind, path, 3)[-1]
    folded = path.read_bytes()
    pages = [page for page in range(len(folded) // PAGE_BYTES) if page != 1]  # the mark's page is written last
    for _ in range(5):
        half = bytearray(file.ljust(len(folded), b"\0"))
        for page in rng.sample(pages, rng.randrange(1, len(pages) + 1)):
            place = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
            half[place] = folded[place]
        for damaged in (None, log[: len(log) // 2], flipped(log, 50), flipped(log, len(log) // 2)):
            put(path, (bytes(half), damaged))
            refused(kind, path, "was not closed")
        put(path, (bytes(half), log))
        opens_with(kind, path, 3)


def test_a_torn_mark_leaves_the_one_before_it(kind, tmp_path):
    path = tmp_path / kind.name
    states = recorded(kind, path, 3)
    for number, saved in enumerate([*states, (path.read_bytes(), None)]):
        newest = LogMark.read(io.BytesIO(saved[0]))
        assert newest.whole == (number == 4)
        slot = SLOTS[newest.serial % 2]
        torn = saved[0][: slot + 40] + bytes(30) + saved[0][slot + 70 :]
        assert LogMark.read(io.BytesIO(torn)).serial == newest.serial - 1
        if number < 4:
            put(path, (torn, saved[1]))
            opens_with(kind, path, number)
    both = bytearray(states[3][0])
    for slot in SLOTS:
        both[slot : slot + 8] = bytes(8)
    put(path, (bytes(both), states[3][1]))
    refused(kind, path, "does not say how far its log goes", kind.advice)


def test_folding_while_open_loses_nothing_at_any_moment(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LOG_BYTES", 200_000)
    path = tmp_path / kind.name
    states = recorded(kind, path, 9)
    assert len({log[16:24] for _, log in states}) >= 3  # several logs, one after the other
    for number, saved in enumerate(states):
        put(path, saved)
        opens_with(kind, path, number)
        put(path, (saved[0], None))
        refused(kind, path, "is missing")


def test_a_file_that_is_forgotten_and_never_closed_opens_again(kind, tmp_path):
    path = tmp_path / kind.name
    kind.record(opened := kind.open(path), 1)
    del opened
    gc.collect()
    opens_with(kind, path, 1)


def test_a_process_that_ends_without_closing_leaves_what_it_recorded(kind, tmp_path):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end="without closing"), check=True)
    assert log_of(path).exists()  # SQLite would have folded it in, and the file not known
    opens_with(kind, path, 2)


def test_a_mark_that_cannot_be_synced_is_no_release(tmp_path, monkeypatch):
    path = tmp_path / "lyon.ledger"
    ledger = Book().open(path)
    Book().record(ledger, 1)

    def fails(handle):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, fails)
        with pytest.raises(LedgerError, match=r"nothing may be sent \(Input/output error\)"):
            Book().record(ledger, 2)
    assert ledger.sequence == 1
    with pytest.raises(LedgerError, match="Open it again"):
        Book().record(ledger, 3)
    ledger.close()
    with Book().open(path) as again:
        assert again.stored(PLAN, 2, "model") == b"round 2"  # charged, and what any retry sends


def test_a_file_that_cannot_be_folded_when_it_is_closed_keeps_its_log(kind, tmp_path, monkeypatch):
    path, copy = tmp_path / kind.name, tmp_path / "copy" / kind.name
    copy.parent.mkdir()
    opened = kind.open(path)
    kind.record(opened, 1)

    def fails(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        opened.close()
    with pytest.raises(
        kind.error, match=r"could not be closed in this process when its disk failed. Start the process anew"
    ):
        kind.open(path)
    put(copy, state(path))
    assert log_of(copy).stat().st_size > 0
    opens_with(kind, copy, 1)
    check = "import sys; sys.path.insert(0, sys.argv[1]); import logged_files as t; from pathlib import Path;"
    check += "t.opens_with(getattr(t, sys.argv[2])(), Path(sys.argv[3]), 1)"
    where = [str(Path(__file__).parent), type(kind).__name__, str(path)]
    subprocess.run([sys.executable, "-c", check, *where], check=True)  # in another process


FORKED = """
import os, sys
from pathlib import Path
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

path = Path(sys.argv[1])
plan = Allowance(plan_digest="p", rounds=9, shift_above=9.0, shift_inside=9.0)
ledger = Ledger.open(path, silo="lyon")
ledger.enter_plan(plan)

def record(number):
    ledger.record(plan, round_number=number, basis="m", payload=b"x", cost=Cost(shift_above=0.1, shift_inside=0.1))

def files():
    return path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()

record(1)
before = files()
child = os.fork()
if child == 0:
    END
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert files() == before, "the child folded the log of its parent"
    record(2)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("end", ["sys.exit(0)", "pass", "del ledger", "ledger.close()"])
def test_a_forked_child_that_ends_as_programs_do_leaves_the_log_of_its_parent_whole(tmp_path, end):
    path = tmp_path / "lyon.ledger"
    command = [sys.executable, "-c", FORKED.replace("END", end), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stderr) == (-9, "")
    with Ledger.read(path) as ledger:
        assert ledger.sequence == 2
    assert all(check.holds for check in verify_ledger(path, least_sequence=2))
