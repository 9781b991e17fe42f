"""Connections to the SQLite files of ledgers, masked rounds and regional sums: settings, and allowed statements.

A file may come from an attacker, and SQLite runs code inside of a file: triggers, views, generated columns, defaults
and expressions of indexes. Two defences: no row is read before the schema equals Fulcrum's schema, text by text; and
an authorizer denies every action that Fulcrum's own statements do not need, and every action of a trigger or a view.

A b-tree whose pages name the same child a hundred times has 100^8 rows in a file of 1 MB, and would keep a silo busy
for ever. Every statement therefore has a budget of steps, and every query a budget of bytes. Both budgets grow with the
size of the file, and no honest file comes near a budget.
"""

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fulcrum.errors import StorageError, in_one_line

STEPS_PER_BYTE = 8
"""Steps of SQLite's virtual machine that a statement may take, for every byte of the file.

Measured on files of 20,000 and 200,000 of the shortest rows: at most 0.6 for `integrity_check`, 0.4 for an update of
all rows, 0.2 for a query. Longer rows take fewer steps a byte.
"""

LEAST_STEPS = 1_000_000
"""Steps that a statement may take on a file of any size: about 30 milliseconds."""

_STEPS_A_CALL = 10_000  # between two looks at the budget
_ROW_BYTES = 4  # of the shortest row in a page: place, length, number and header

_EVERYWHERE = {
    "trusted_schema": "OFF",
    "cell_size_check": "ON",
    "mmap_size": "0",  # a stranger's change on the disk must not change a page in memory after its check
}
_TO_WRITE = {
    "locking_mode": "EXCLUSIVE",
    # Not FULL, which syncs the journal twice before the commit: `CommitMark.of_commit` has synced the same bytes. Not
    # EXTRA, which also syncs the folder after the journal is deleted: no commit deletes the journal.
    "synchronous": "NORMAL",
    "fullfsync": "ON",  # macOS: past the cache of the drive
    "cache_spill": "OFF",  # no page of a commit is written before the commit's mark
    "temp_store": "MEMORY",  # a temporary file on the disk would keep secrets
    "secure_delete": "ON",
}
TO_READ = {"query_only": "ON"}
# Not DELETE, see `fulcrum.core.store.commit_mark`. With PERSIST a forked child's end leaves the parent's journal alone.
_JOURNAL = {"journal_mode": "PERSIST"}
_SETTINGS = _EVERYWHERE | _TO_WRITE | TO_READ | _JOURNAL
_ASKED = ("page_count", "page_size", "user_version", "integrity_check", *_SETTINGS)
_FUNCTIONS = frozenset({"count", "length", "zeroblob"})
_WRITES = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
_SCHEMA, _MARK = "sqlite_master", "mark"


class BoundedConnection(sqlite3.Connection):
    """A connection whose statements stop after more work than an honest file of the same size can need.

    SQLite also calls the handler while reading the schema. SQLite does not call the handler while counting all rows of
    a table: count a table only after reading all rows of the table.
    """

    _file: Path
    _calls: int = 0

    def limit_work(self, file: Path) -> None:
        """Stops, from now on, every statement that exceeds the budget of a file."""
        self._file = file
        self.set_progress_handler(self._exceeds, _STEPS_A_CALL)

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        """Executes a statement with a fresh budget."""
        self._calls = 0
        return super().execute(sql, values)

    def rows(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Returns the rows of a query; raises `StorageError` for rows with more bytes than the file."""
        rows, bytes_left = [], self._file.stat().st_size
        for row in self.execute(sql, values):
            bytes_left -= _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))
            if bytes_left < 0:
                raise StorageError("storage.rows-endless", file=self._file)
            rows.append(row)
        return rows

    def _exceeds(self) -> bool:
        self._calls += 1
        return self._calls * _STEPS_A_CALL > LEAST_STEPS + STEPS_PER_BYTE * self._file.stat().st_size


def exclusive(file: Path, schema: str) -> BoundedConnection:
    """Connects to a file to write, with SQLite's lock until the connection closes; the journal must be empty."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(contextlib.closing(connect(file, "mode=rw", schema)))
        apply_settings(connection, _TO_WRITE)
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        apply_settings(connection, _JOURNAL)
        if connection.execute("PRAGMA journal_mode").fetchone() != ("persist",):
            raise StorageError("storage.journal-mode", file=file)
        check_schema(connection, file, schema)
        undo.pop_all()
    return connection


@contextlib.contextmanager
def rolled_back(file: Path, schema: str, *, check: bool) -> Iterator[None]:
    """Lets SQLite play back the journal beside a file if needed, and zero the journal's header, before the block.

    SQLite deletes the journal after the block. The block marks the file as whole: in the other order, a process killed
    between the two steps would leave a file that needs a deleted journal.

    Args:
        file: The file, with a journal that belongs to the file.
        schema: The tables of the file.
        check: True to check every page.
    """
    with contextlib.closing(connect(file, "mode=rw", schema)) as connection:
        apply_settings(connection, _TO_WRITE)
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        check_schema(connection, file, schema)
        if check and (fault := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise StorageError("storage.integrity-failed", file=file, fault=in_one_line(fault))
        yield


def check_schema(connection: BoundedConnection, file: Path, schema: str, *, grown: bool = False) -> None:
    """Raises `StorageError` for other tables than Fulcrum's, or a length of the file that the header contradicts.

    SQLite itself would read zeros in place of the missing end of a last page that was cut short.
    """
    ours = _schema_of(schema)
    theirs = connection.execute(_SELECT_SCHEMA).fetchmany(len(ours) + 1)
    columns = slice(4 if grown else 5)
    if [row[columns] for row in theirs] != [row[columns] for row in ours]:
        raise StorageError("storage.schema-foreign", file=file)
    pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if (size := file.stat().st_size) != pages * page_bytes:
        raise StorageError("storage.size-differs", file=file, bytes=size, expected=pages * page_bytes)


_SELECT_SCHEMA = f"SELECT type, name, tbl_name, sql, rootpage FROM main.{_SCHEMA}"  # noqa: S608 a name of SQLite's


@functools.cache
def _schema_of(schema: str) -> list[tuple[object, ...]]:
    """Returns the schema of a new file with these tables, in SQLite's own form."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(schema)
        return connection.execute(_SELECT_SCHEMA).fetchall()


def connect(file: Path, mode: str, schema: str) -> BoundedConnection:
    """Connects to a file in a mode of SQLite, with every limit against code and endless work in a file."""
    connection = sqlite3.connect(
        f"{file.as_uri()}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=0,
        factory=BoundedConnection,
    )
    connection.limit_work(file)  # before the first statement, which reads the schema
    for name, wanted in (("DEFENSIVE", True), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False)):
        if hasattr(connection, "setconfig"):  # from Python 3.12 on
            connection.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), wanted)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    connection.set_authorizer(_authorizer(frozenset(str(row[2]) for row in _schema_of(schema))))
    apply_settings(connection, _EVERYWHERE)
    return connection


def apply_settings(connection: BoundedConnection, settings: Mapping[str, str]) -> None:
    """Applies settings of a connection; the authorizer knows all of them."""
    for name, value in settings.items():
        connection.execute(f"PRAGMA {name}={value}")


def _may_be_set(name: str, value: str | None) -> bool:
    """Returns True if a statement may read a setting (value None), or set the setting to the value."""
    if value is None:
        return name in _ASKED
    return _SETTINGS.get(name) == value or (name in ("user_version", "integrity_check") and value.isdecimal())


def _authorizer(tables: frozenset[str]) -> Callable[..., int]:
    """Returns the function that allows or denies every action of a statement while SQLite prepares the statement."""

    def allow(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
        if source is not None or database not in (None, "main"):  # inside a trigger or a view; a file attached
            return sqlite3.SQLITE_DENY
        allowed = (
            action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION)
            or (action == sqlite3.SQLITE_READ and first in (*tables, _SCHEMA))
            or (action in _WRITES and first in tables and first != _MARK)  # SQLite's cache holds an old mark
            or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
            or (action == sqlite3.SQLITE_PRAGMA and first is not None and _may_be_set(first, second))
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return allow
