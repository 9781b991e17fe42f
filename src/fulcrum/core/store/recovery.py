"""Repair of a file after a crash: the journal beside the file is judged, played back if needed, and removed.

SQLite deletes a journal that it played back, also if an error or Ctrl-C then stops the repair before the file is marked
as whole. The next repair would refuse the file as one that lost its journal. During a repair the journal therefore has
a second name, `<name>-journal-kept`, which SQLite does not know.
"""

import contextlib
import io
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from fulcrum.core.store.commit_mark import PAGE_BYTES, CommitMark, Journal
from fulcrum.core.store.disk_sync import sync_file, sync_folder
from fulcrum.core.store.sqlite_connection import rolled_back
from fulcrum.errors import StorageError


def journal_of(file: Path) -> Path:
    """Returns the rollback journal of a file."""
    return file.with_name(f"{file.name}-journal")


def kept_journal_of(file: Path) -> Path:
    """Returns the second name that a file's journal has during a repair."""
    return file.with_name(f"{file.name}-journal-kept")


def files_beside(file: Path) -> tuple[Path, Path, Path]:
    """Returns the names of a file's journal, log and index of the log, by SQLite's rules."""
    return journal_of(file), file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")


def mark_and_journal(file: Path, hold: io.FileIO, advice: str) -> tuple[CommitMark, Journal]:
    """Returns a file's mark, and the relation of the journal beside the file to the mark; changes no file.

    Args:
        file: The file.
        hold: The file, open.
        advice: The remedy for a damaged file, in messages.

    Raises:
        StorageError: The file needs a journal that is missing or damaged, the journal is of another file or time, or a
            log or a special file stands beside the file.
    """
    journal, *logs = files_beside(file)
    for log in logs:
        if os.path.lexists(log):  # an attacker's log would change the rows: SQLite reads a log without asking
            raise StorageError("storage.log-foreign", file=log)
    if os.path.lexists(journal) and not stat.S_ISREG(journal.lstat().st_mode):  # opening a pipe would wait for ever
        raise StorageError("storage.not-a-journal", journal=journal, file=file.name)
    if (mark := CommitMark.read(hold)) is None:
        raise StorageError("storage.mark-damaged", file=file, advice=advice)
    verdict = mark.judge(journal)
    if verdict is Journal.LOST and _has_kept_journal(file):
        verdict = mark.judge(kept_journal_of(file))
    if verdict is Journal.FOREIGN:
        raise StorageError("storage.journal-foreign", journal=journal)
    if verdict is Journal.LOST:
        raise StorageError("storage.journal-lost", file=file, journal=journal.name)
    return mark, verdict


def settle(file: Path, hold: io.FileIO, *, schema: str, advice: str, erases: bool) -> CommitMark:
    """Takes back an interrupted commit, marks the file as whole, removes the journal, and returns the mark.

    Guarantees:

    - SQLite sees a journal only after proof that the journal is whole and belongs to the file;
    - a refused file is unchanged;
    - a crash at any step leaves a file that the next call repairs.

    Args:
        file: The file.
        hold: The file, open and locked.
        schema: The tables of the file.
        advice: The remedy for a damaged file, in messages.
        erases: True if content of the interrupted commit must be gone from the disk.
    """
    mark, verdict = mark_and_journal(file, hold, advice)
    journal, second = journal_of(file), kept_journal_of(file)
    if not mark.whole:
        if not journal.exists():  # a repair was killed after SQLite had deleted the journal
            second.rename(journal)
        if verdict is Journal.NEEDED:
            mark.arm(journal)
        elif journal.exists():  # a killed process may leave its zeros in memory alone, and a power cut would undo them
            with io.FileIO(journal, "r+") as zeroed:
                sync_file(zeroed.fileno())
        with _kept_in_repair(journal, second), rolled_back(file, schema, check=erases):
            if mark.judge(journal) is not Journal.UNNEEDED:
                raise StorageError("storage.rollback-failed", file=file)
            if erases:
                _zero_free_pages(hold)
            mark = mark.next_whole()
            mark.write(hold)
    journal.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a folder of this name, made by a stranger, disturbs no repair
        second.unlink(missing_ok=True)
    return mark


def _has_kept_journal(file: Path) -> bool:
    """Returns True if the journal has lost its own name, and a regular file has the second name."""
    second = kept_journal_of(file)
    return not os.path.lexists(journal_of(file)) and os.path.lexists(second) and stat.S_ISREG(second.lstat().st_mode)


@contextlib.contextmanager
def _kept_in_repair(journal: Path, second: Path) -> Iterator[None]:
    """Gives the journal a second name for the block, and gives its own name back if the block fails.

    A file system without hard links has no second name. There an error during the repair still costs the journal.
    """
    with contextlib.suppress(OSError):
        second.unlink(missing_ok=True)
        os.link(journal, second)
        sync_folder(journal.parent)
    try:
        yield
    except BaseException:
        if not os.path.lexists(journal):
            with contextlib.suppress(OSError):
                second.rename(journal)
        raise


def _zero_free_pages(file: io.FileIO) -> None:
    """Overwrites the pages without rows, and syncs: the commit that was taken back may have left secrets there."""
    file.seek(32)
    trunk = int.from_bytes(file.read(4), "big")
    while trunk:
        file.seek((trunk - 1) * PAGE_BYTES)
        page = file.read(PAGE_BYTES)
        trunk, count = struct.unpack(">II", page[:8])
        for leaf in struct.unpack(f">{count}I", page[8 : 8 + 4 * count]):
            file.seek((leaf - 1) * PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))
    sync_file(file.fileno())
