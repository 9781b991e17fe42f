"""What is said to SQLite about the files beneath ledgers and regional sums: how it opens them, locks, syncs and folds.

SQLite folds the log into a file when a connection to it ends, and deletes the log. It knows nothing of the mark that
says how far the log goes (`fulcrum.storage.log_mark`), so a connection with a log is kept from ending until `folded`
has marked the file as whole: at the end of the interpreter too, and in a forked child.
"""

import contextlib
import ctypes
import dataclasses
import io
import sqlite3
from pathlib import Path

from fulcrum.errors import StorageError
from fulcrum.storage.log_mark import LogMark


def log_of(file: Path) -> Path:
    """Returns the file that SQLite takes for a file's log."""
    return file.with_name(f"{file.name}-wal")


def journal_of(file: Path) -> Path:
    """Returns the file that SQLite takes for a file's rollback journal, which files with a mark never have."""
    return file.with_name(f"{file.name}-journal")


def read_only(file: Path) -> sqlite3.Connection:
    """Connects to a file that is whole: a log that is still beside it is not looked for."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(contextlib.closing(_connected(file, "mode=ro&immutable=1")))
        connection.execute("PRAGMA query_only=ON")
        connection.execute("BEGIN")
        check_size(connection, file)
        undo.pop_all()
    return connection


def exclusive(file: Path, *, keep: bool) -> sqlite3.Connection:
    """Connects to a file and takes SQLite's lock for as long as the connection lasts.

    Args:
        file: Its log, if there is one, is its own.
        keep: Whether the connection is kept from the start, as it must be where there is a log; even if this fails.
    """
    with contextlib.ExitStack() as undo:
        connection = _connected(file, "mode=rw")
        if keep:
            kept(connection)
        else:
            undo.callback(connection.close)
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # before the log is touched: no shared memory beside it
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: past the cache of the drive
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute("PRAGMA wal_autocheckpoint=0")  # what SQLite folds in by itself is not marked
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
            raise StorageError(f"{file} is on a disk that cannot keep a write-ahead log beside it")
        undo.pop_all()
    return connection


def folded(connection: sqlite3.Connection, hold: io.FileIO, mark: LogMark) -> LogMark:
    """Folds the log into the file, marks that the file is whole, and only then empties the log; all is synced."""
    busy, frames, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if busy or frames != done:
        raise StorageError(f"{hold.name} cannot take in its log. Open it again")
    mark = dataclasses.replace(mark, serial=mark.serial + 1, whole=True)
    mark.write(hold)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return mark


def kept(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Keeps a connection from ending, whatever becomes of its variables, until it is freed.

    A forked child that ends by `sys.exit` would otherwise end the connection, and SQLite delete the log that its
    parent goes on writing to. Python 3.11 cannot tell SQLite to leave the log alone.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    return connection


def freed(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Lets a connection end that was kept: its file is whole."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(connection))
    return connection


def check_size(connection: sqlite3.Connection, file: Path) -> None:
    """SQLite itself reads a last page that was cut short as if it ended in zeros."""
    pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if (size := file.stat().st_size) != pages * page_bytes:
        raise StorageError(f"{file} is damaged: it has {size:,} bytes, its header says {pages * page_bytes:,}")


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=0
    )
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection
