"""A log that does not belong to its file, or no longer all of it, is refused; the checksum that tells."""

import contextlib
import struct

import pytest
from logged_files import Book, flipped, log_of, opens_with, put, recorded, refused, state

from fulcrum.storage.log_mark import PAGE_BYTES, _chained


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda log: None, "is missing"),
        (lambda log: b"", "not the one that it was left with"),
        (lambda log: log[:31], "not the one that it was left with"),
        (lambda log: log[:32], "is cut short"),
        (lambda log: log[:-1], "is cut short"),
        (lambda log: log[: -PAGE_BYTES - 24], "is cut short"),
        (lambda log: log[:-PAGE_BYTES] + bytes(PAGE_BYTES), "is damaged"),
        (lambda log: flipped(log, 17), "not the one that it was left with"),
        (lambda log: flipped(log, 40), "is damaged"),
        (lambda log: flipped(log, 1000), "is damaged"),
        (lambda log: flipped(log, len(log) // 2), "is damaged"),
        (lambda log: flipped(log, len(log) - 1), "is damaged"),
        (lambda log: flipped(log, len(log) - PAGE_BYTES - 20), "is damaged"),
    ],
)
def test_a_log_lost_cut_short_or_damaged_is_refused_until_it_is_put_back(kind, tmp_path, damage, word):
    path = tmp_path / kind.name
    file, log = recorded(kind, path, 3)[-1]
    put(path, (file, damage(log)))
    refused(kind, path, "was not closed", f"{path.name}-wal", word, "Put back the log")
    put(path, (file, log))
    opens_with(kind, path, 3)


def test_a_stale_log_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    first = recorded(kind, path, 3)
    with contextlib.closing(kind.open(path)) as opened:
        for number in (4, 5):
            kind.record(opened, number)
        last = state(path)
    for _, stale in first:
        put(path, (last[0], stale))
        refused(kind, path, "not the one that it was left with")
    for number in range(3):  # of the same log, before it went on
        put(path, (first[3][0], first[number][1]))
        refused(kind, path, "is cut short")
    put(path, last)
    opens_with(kind, path, 5)


def test_a_log_that_parts_from_the_marked_one_in_its_last_frame_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    file, log = recorded(kind, path, 3)[-1]
    place = len(log) - PAGE_BYTES - 24
    (sums,) = struct.iter_unpack(">II", log[place - PAGE_BYTES - 8 : place - PAGE_BYTES])
    frame = flipped(log[place:], 5000)
    first, second = sums
    words = struct.unpack(f"{'>' if log[3] & 1 else '<'}{(8 + PAGE_BYTES) // 4}I", frame[:8] + frame[24:])
    for x, y in zip(words[::2], words[1::2], strict=True):
        first = (first + x + second) % 2**32
        second = (second + y + first) % 2**32
    forged = log[:place] + frame[:16] + struct.pack(">II", first, second) + frame[24:]
    put(path, (file, forged))  # SQLite would take it
    refused(kind, path, "not the one that it was left with")


def test_another_files_log_is_refused(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "other"
    mine, theirs = recorded(kind, path, 3)[-1], recorded(kind, other, 3)[-1]
    other.unlink()
    put(path, (mine[0], theirs[1]))
    refused(kind, path, "not the one that it was left with")
    put(path, mine)
    opens_with(kind, path, 3)


def test_a_whole_file_refuses_a_log_that_is_not_its_own_and_leaves_it(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "other"
    recorded(kind, path, 3)
    theirs = recorded(kind, other, 2)[-1][1]
    other.unlink()
    log_of(path).write_bytes(theirs)
    with pytest.raises(kind.error, match="is the log of another file, or of this one at another time") as error:
        kind.open(path)
    assert str(error.value).startswith(str(log_of(path)))
    assert log_of(path).read_bytes() == theirs
    log_of(path).unlink()
    opens_with(kind, path, 3)


def test_a_stray_journal_is_refused_and_undoes_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    recorded(kind, path, 2)
    path.with_name(f"{path.name}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with pytest.raises(kind.error, match=r"-journal is not of Fulcrum's making.* Move it away"):
        kind.open(path)
    path.with_name(f"{path.name}-journal").unlink()
    opens_with(kind, path, 2)


def test_the_checksum_is_sqlites_word_by_word(tmp_path):
    log = recorded(Book(), tmp_path / "lyon.ledger", 2, size=10)[-1][1]
    first, second = struct.unpack(">II", log[24:32])
    order = ">" if log[3] & 1 else "<"
    for place in range(32, len(log), PAGE_BYTES + 24):
        frame = log[place : place + PAGE_BYTES + 24]
        after = _chained(frame, (first, second), log[:32])
        covered = frame[:8] + frame[24:]
        words = struct.unpack(f"{order}{len(covered) // 4}I", covered)
        for x, y in zip(words[::2], words[1::2], strict=True):
            first = (first + x + second) % 2**32
            second = (second + y + first) % 2**32
        assert after == (first, second) == struct.unpack(">II", frame[16:24])
