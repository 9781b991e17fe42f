"""A file made whole after a crash: the journal beside it is judged, played back if the file needs it, and removed."""

import io
import os
import stat
import struct
from pathlib import Path

from fulcrum.core.store.commit_mark import PAGE_BYTES, CommitMark, Journal
from fulcrum.core.store.disk_sync import sync_file
from fulcrum.core.store.sqlite_connection import rolled_back
from fulcrum.errors import StorageError


def journal_of(file: Path) -> Path:
    """Returns the rollback journal of a file."""
    return file.with_name(f"{file.name}-journal")


def files_beside(file: Path) -> tuple[Path, Path, Path]:
    """Returns the files that SQLite would take for a file's journal, log and index of the log."""
    return journal_of(file), file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")


def mark_and_journal(file: Path, hold: io.FileIO, advice: str) -> tuple[CommitMark, Journal]:
    """Returns a file's mark, and how the journal beside the file stands to it; changes nothing.

    Args:
        file: The file.
        hold: The file, open.
        advice: The remedy for a damaged file, in messages.

    Raises:
        StorageError: The file needs a journal that is not there, or the journal beside the file is not its own.
    """
    journal, *logs = files_beside(file)
    for log in logs:
        if os.path.lexists(log):  # SQLite would read the log of any file
            raise StorageError("storage.log-foreign", file=log)
    if os.path.lexists(journal) and not stat.S_ISREG(journal.lstat().st_mode):  # opening a pipe would wait for ever
        raise StorageError("storage.not-a-journal", journal=journal, file=file.name)
    if (mark := CommitMark.read(hold)) is None:
        raise StorageError("storage.mark-damaged", file=file, advice=advice)
    verdict = mark.judge(journal)
    if verdict is Journal.FOREIGN:
        raise StorageError("storage.journal-foreign", journal=journal)
    if verdict is Journal.LOST:
        raise StorageError("storage.journal-lost", file=file, journal=journal.name)
    return mark, verdict


def settle(file: Path, hold: io.FileIO, *, schema: str, advice: str, erases: bool) -> CommitMark:
    """Takes back a commit that was interrupted, marks the file as whole, removes its journal, and returns the mark.

    SQLite sees a journal only once it is proved to be the file's own and whole. A file that is refused stays as it is.

    Args:
        file: The file.
        hold: The file, open and locked.
        schema: Its tables.
        advice: The remedy for a damaged file, in messages.
        erases: Whether content that the interrupted commit wrote must be gone from the disk.
    """
    mark, verdict = mark_and_journal(file, hold, advice)
    journal = journal_of(file)
    if not mark.whole:
        if verdict is Journal.NEEDED:
            mark.arm(journal)
        with rolled_back(file, schema, check=erases):
            if mark.judge(journal) is not Journal.UNNEEDED:
                raise StorageError("storage.rollback-failed", file=file)
            if erases:
                _zero_free_pages(hold)
            mark = mark.next_whole()
            mark.write(hold)
    journal.unlink(missing_ok=True)
    return mark


def _zero_free_pages(file: io.FileIO) -> None:
    """Overwrites the pages that no row has, and syncs: a commit that was taken back may have written to them."""
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
