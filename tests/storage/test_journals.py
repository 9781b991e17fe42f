"""The journal of an interrupted commit: needed whole, and no other one is played back."""

import contextlib
import hashlib
import random
import sqlite3
import struct

import pytest
from error_codes import coded
from journaled_files import (
    MAGIC,
    commits,
    flipped,
    half_written,
    hot,
    journal_of,
    opens_with,
    put,
    refused,
)

from fulcrum.core.store.commit_mark import PAGE_BYTES, CommitMark


@pytest.fixture
def tmp_path(tmp_path_factory):
    """In memory: what is tested here is put together by hand, and waits for no disk."""
    return tmp_path_factory.mktemp("journals")


LEFT = "was left in the middle of a commit"


def interrupted(kind, path, seed):
    """A file that lost its process in its third commit: half written, with the journal that it needs."""
    (before, journal), (after, _) = commits(kind, path, 3)[2]
    return half_written(before, after, random.Random(seed)), hot(journal)


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_that_was_interrupted_is_taken_back_with_its_journal(kind, tmp_path, seed):
    path = tmp_path / kind.name
    put(path, interrupted(kind, path, seed))
    opens_with(kind, path, 2)


@pytest.mark.parametrize(
    "damage",
    [
        lambda journal: None,
        lambda journal: b"",
        lambda journal: journal[:31],
        lambda journal: journal[:512],
        lambda journal: journal[:-1],
        lambda journal: journal[: -PAGE_BYTES - 8],
        lambda journal: journal[:-PAGE_BYTES] + bytes(PAGE_BYTES),
        lambda journal: bytes(len(journal)),
        lambda journal: flipped(journal, 0),
        lambda journal: flipped(journal, 13),
        lambda journal: flipped(journal, 17),
        lambda journal: flipped(journal, 400),
        lambda journal: flipped(journal, 520),
        lambda journal: flipped(journal, len(journal) // 2),
        lambda journal: flipped(journal, len(journal) - 1),
    ],
)
def test_a_journal_lost_cut_short_or_damaged_is_refused_until_it_is_put_back(kind, tmp_path, damage):
    path = tmp_path / kind.name
    file, journal = interrupted(kind, path, 1)
    put(path, (file, damage(journal)))
    refused(kind, path, LEFT, f"{path.name}-journal", "Put that journal back")
    put(path, (file, journal))
    opens_with(kind, path, 2)


@pytest.mark.parametrize("count", [0, 1, 2, 77, 2**32 - 1])
def test_a_journal_whose_count_of_pages_is_damaged_is_played_back_whole(kind, tmp_path, count):
    """SQLite would leave out pages, and the file would stay half written."""
    path = tmp_path / kind.name
    file, journal = interrupted(kind, path, 2)
    put(path, (file, MAGIC + count.to_bytes(4, "big") + journal[12:]))
    opens_with(kind, path, 2)


def test_what_follows_the_pages_of_a_journal_is_not_played_back(kind, tmp_path):
    path = tmp_path / kind.name
    seen = commits(kind, path, 3)
    (before, journal), (after, _) = seen[2]
    stale = hot(seen[0][0][1])
    put(
        path, (half_written(before, after, random.Random(3)), hot(journal).ljust(-(-len(journal) // 512) * 512) + stale)
    )
    opens_with(kind, path, 2)


def test_a_commit_whose_journal_is_zeroed_is_done_and_one_whose_journal_is_only_prepared_is_not(kind, tmp_path):
    path = tmp_path / kind.name
    for number, (before, after) in enumerate(commits(kind, path, 3), 1):
        assert after[1][:28] == bytes(28)
        put(path, after)  # killed before the file was marked as whole
        opens_with(kind, path, number)
        assert before[1][:12] == bytes(12) != before[1][12:24]
        put(path, before)  # killed before SQLite synced the journal
        opens_with(kind, path, number - 1)


def test_a_stale_journal_and_that_of_another_file_are_refused(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "other"
    theirs = hot(commits(kind, other, 3)[2][0][1])
    other.unlink()
    seen = commits(kind, path, 3)
    (before, journal), (after, _) = seen[2]
    file = half_written(before, after, random.Random(5))
    for wrong in (hot(seen[0][0][1]), hot(seen[1][0][1]), theirs, seen[1][1][1]):
        put(path, (file, wrong))
        refused(kind, path, LEFT)
    put(path, (file, hot(journal)))
    opens_with(kind, path, 2)


def test_a_whole_file_refuses_every_journal_that_would_undo_commits(kind, tmp_path):
    """An old journal of the file itself, put back by a backup, would take it back to its state of then."""
    path, other = tmp_path / kind.name, tmp_path / "other"
    theirs = hot(commits(kind, other, 2)[1][0][1])
    other.unlink()
    seen = commits(kind, path, 3)
    whole = path.read_bytes()
    for stray in (hot(seen[0][0][1]), hot(seen[2][0][1]), theirs, MAGIC + bytes(600), b"minutes of the board"):
        put(path, (whole, stray))
        with pytest.raises(kind.error, check=coded("storage.journal-foreign")) as error:
            kind.open(path)
        assert str(error.value).startswith(str(journal_of(path)))
        assert (path.read_bytes(), journal_of(path).read_bytes()) == (whole, stray)
    for leftover in (b"", bytes(28), seen[2][0][1], seen[2][1][1], bytes(5)):
        put(path, (whole, leftover))
        opens_with(kind, path, 3)


def log_of_another(tmp_path):
    """A write-ahead log that SQLite takes for that of any file."""
    path = tmp_path / "logged"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE stock (name TEXT)")
        log = path.with_name("logged-wal").read_bytes()
    path.unlink()
    return log


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
@pytest.mark.parametrize("content", [b"", b"x" * 100, None], ids=["empty", "text", "log"])
def test_a_log_beside_a_file_is_refused_and_changes_nothing(kind, tmp_path, suffix, content):
    path = tmp_path / kind.name
    planted = log_of_another(tmp_path) if content is None else content
    commits(kind, path, 2)
    path.with_name(path.name + suffix).write_bytes(planted)
    refused(kind, path, f"{suffix} is not a file of Fulcrum, and would change the file beside it. Move ")
    path.with_name(path.name + suffix).unlink()
    opens_with(kind, path, 2)


def test_a_file_that_asks_for_a_log_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    commits(kind, path, 2)
    whole = path.read_bytes()
    for place, byte in ((18, 2), (19, 2), (16, 0x80)):
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        refused(kind, path, "is damaged: its header is not as Fulcrum writes it")
    path.write_bytes(whole)
    opens_with(kind, path, 2)


@pytest.mark.parametrize("leftover", ["-journal", "-wal", "-shm"])
def test_a_file_is_not_begun_anew_beside_what_a_lost_one_left(kind, tmp_path, leftover):
    path = tmp_path / kind.name
    path.with_name(path.name + leftover).write_bytes(b"")
    with pytest.raises(
        kind.error, match=rf"is not there, but {path.name}{leftover} is, which belongs to a file of that"
    ):
        kind.open(path)
    assert not path.exists()


def test_a_torn_mark_leaves_the_one_before_it(kind, tmp_path):
    path = tmp_path / kind.name
    (before, journal), _ = commits(kind, path, 3)[2]
    slots = (2 * PAGE_BYTES - 8192, 2 * PAGE_BYTES - 4096)
    with path.open("rb") as file:
        newest = CommitMark.read(file)
    assert newest.whole
    put(path, (before, journal))
    with path.open("rb") as file:
        busy = CommitMark.read(file)
    assert not busy.whole
    slot = slots[busy.serial % 2]
    torn = before[: slot + 40] + bytes(30) + before[slot + 70 :]  # of a power cut before anything else was written
    put(path, (torn, journal))
    opens_with(kind, path, 2)
    both = bytearray(before)
    for slot in slots:
        both[slot : slot + 8] = bytes(8)
    put(path, (bytes(both), journal))
    refused(kind, path, "does not say whether a commit was under way", kind.advice)


def journal_that_names(victim, pages):
    """A journal of one page whose end SQLite takes for the name of a journal of several files, which it deletes."""
    name = str(victim).encode()
    page = bytearray(PAGE_BYTES)
    end = name + struct.pack(">II", len(name), sum(name)) + MAGIC[:4]
    page[-len(end) :] = end
    nonce = (int.from_bytes(MAGIC[4:], "big") - sum(page[PAGE_BYTES - 200 : 0 : -200])) % 2**32
    header = MAGIC + struct.pack(">IIIII", 1, nonce, pages, 512, PAGE_BYTES)
    return header.ljust(512, b"\0") + struct.pack(">I", pages) + bytes(page) + MAGIC[4:]


def planted_mark(path, journal):
    """Has a file say that a commit was under way which needs this journal."""
    header, digest = journal[12:28], hashlib.sha256(journal[28:]).digest()
    with path.open("r+b", buffering=0) as file:
        CommitMark(serial=10**6, length=len(journal), header=header, digest=digest).write(file)


def test_a_journal_of_somebody_else_deletes_no_file_of_ours(kind, tmp_path):
    """A ledger that is handed over to replan from comes with the journal beside it."""
    path, victim = tmp_path / kind.name, tmp_path / "victim"
    commits(kind, path, 2)
    victim.write_bytes(b"minutes of the board")
    journal = journal_that_names(victim, len(path.read_bytes()) // PAGE_BYTES)
    planted_mark(path, journal)
    journal_of(path).write_bytes(journal)
    refused(kind, path, LEFT)
    assert victim.read_bytes() == b"minutes of the board"


@pytest.mark.parametrize(
    "header",
    [bytes(16), b"\xff" * 16, struct.pack(">IIII", 1, 2, 2**31, PAGE_BYTES), struct.pack(">IIII", 1, 2, 512, 8)],
)
def test_a_mark_that_names_a_journal_of_impossible_size_is_refused_in_one_line(kind, tmp_path, header):
    path = tmp_path / kind.name
    commits(kind, path, 2)
    journal = MAGIC + bytes(4) + header + bytes(5000)
    planted_mark(path, journal)
    journal_of(path).write_bytes(journal)
    refused(kind, path, LEFT)
