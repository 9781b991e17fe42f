"""The SQLite file of ledgers, masked rounds and regional sums: making, opening, reading and writing the file.

Stock SQLite: a rollback journal, rows and payloads in one file. A payload is written once; a write-ahead log would
write a payload twice. SQLite does not detect that the journal of an interrupted commit was lost, damaged, or restored
from another time. The mark of `fulcrum.core.store.commit_mark` detects all three. A commit has six syncs: two of marks,
and the four of SQLite at `synchronous=FULL`, of which Fulcrum takes the first, of the journal, before the first mark.
The first commit of an open file has a seventh, of the folder: SQLite syncs the folder of a new journal.

While a file is open, and after a process was killed, the journal `<name>-journal` lies beside the file: copy or move
both files or, better, a closed file, which has no journal.
"""

import contextlib
import io
import os
import secrets
import sqlite3
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from fulcrum.core.store.commit_mark import IDENTITY_BYTES, PAGE_BYTES, SCHEMA, CommitMark, first_value
from fulcrum.core.store.disk_sync import sync_file, sync_folder, synced_meanwhile
from fulcrum.core.store.file_holding import OPENING, forget, is_named, lock_file, remember
from fulcrum.core.store.recovery import files_beside, journal_of, settle
from fulcrum.core.store.sqlite_connection import BoundedConnection, exclusive
from fulcrum.errors import FileInUseError, FulcrumError, StorageError, in_one_line

MOST_BYTES = 900_000_000
"""The largest payload: 10^8 parameters and a header. SQLite takes values of up to 10^9 bytes."""

PathLike: TypeAlias = str | os.PathLike[str]
"""The name of a file."""

Statement: TypeAlias = tuple[str, tuple[object, ...]]
"""SQL, and the values of the placeholders."""


class Content(NamedTuple):
    """A row with a payload, the bytes in the row's last column.

    Attributes:
        table: The table of the row.
        sql: The statement that inserts the row. Its last value is `zeroblob(?)`, which makes room for as many bytes as
            the payload has; the payload is then written into that room.
        values: The values of all placeholders before the last.
        data: The payload.
    """

    table: str
    sql: str
    values: tuple[object, ...]
    data: bytes | memoryview


Proof: TypeAlias = tuple[str, tuple[object, ...], Sequence[tuple[object, ...]]]
"""A query, the values of the placeholders, and the rows that the query must return after a write."""

_HEADER = (  # of every file: size of pages, no log, the fourth format of schemas, no vacuum, UTF-8
    (16, struct.pack(">HBBB", 1, 1, 1, 0)),  # 1 stands for 65,536
    (44, struct.pack(">I", 4)),
    (52, struct.pack(">II", 0, 1)),
    (64, bytes(4)),
    (72, bytes(20)),
)
_FAILURES = (sqlite3.Error, OSError, MemoryError, OverflowError, UnicodeDecodeError, struct.error)
_STEP_BYTES = 2**22
_ENDS_BYTES = 2**16
_PAYLOAD = "bytes"  # the column that holds a payload, in every table that has one


class ClosedAtTheEnd:
    """An object that a `with` statement closes at the end."""

    def close(self) -> None:
        """Closes the object; subclasses define the work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DatabaseFile:
    """A locked and connected file; made by `writing`. A subclass defines the content of the file.

    Callers hold `lock`, except where a method says that the method takes the lock.

    Guarantees, on a disk that keeps synced writes:

    - a write that returned is on disk and was read back;
    - after a failed write, `in_doubt` is true, and the next opening finds the state before or after the write;
    - no code in a file runs, and no file of any content takes endless work (`fulcrum.core.store.sqlite_connection`);
    - one process at a time has a file open to write (`fulcrum.core.store.file_holding`).

    Attributes:
        application: The kind of the file, a number in the header that no other kind of SQLite file has.
        version: The format of the file, a number in the header.
        schema: The tables of an empty file.
        noun: The kind of the file, in messages.
        wanted: The file to name in place of a wrong file, in messages.
        advice: The remedy for a damaged file, in messages.
        older: The remedy for a file of an earlier format, in messages.
        lost: The knowledge that is lost with the file, in messages.
        erases: True if overwritten content must be gone from the disk when a write returns.
        error: The type of errors about the file.
        in_use: The type of the error for a file that another process holds.
        path: The file.
        connection: The connection of SQLite.
        hold: The descriptor of the file; the file's lock lasts until the descriptor is closed.
        journal: The rollback journal; None for a file opened to read.
        mark: The mark in the file.
        lock: The lock for every use of the file, and for a fork of the process.
        process: The process that opened the file.
        closed: True after the file was closed.
        in_doubt: True after a write failed, and until the caller of a write has updated the caller's own memory.
    """

    application: ClassVar[int]
    version: ClassVar[int]
    schema: ClassVar[str]
    noun: ClassVar[str]
    wanted: ClassVar[str]
    advice: ClassVar[str]
    older: ClassVar[str]
    lost: ClassVar[str] = ""
    erases: ClassVar[bool] = False
    error: ClassVar[type[FulcrumError]] = StorageError
    in_use: ClassVar[type[FulcrumError]] = FileInUseError

    def __init__(
        self,
        path: Path,
        connection: BoundedConnection,
        hold: io.FileIO,
        *,
        journal: io.FileIO | None = None,
        mark: CommitMark | None = None,
    ) -> None:
        self.path = path
        self.connection = connection
        self.hold = hold
        self.journal = journal
        self.mark = mark or CommitMark()
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.closed = False
        self.in_doubt = False

    @classmethod
    def whole_schema(cls) -> str:
        """Returns the tables of a file, with the table of the mark."""
        return SCHEMA + cls.schema

    @property
    def writable(self) -> bool:
        """True if the file was opened to write."""
        return self.journal is not None

    @property
    def identity(self) -> str:
        """The random number of the file, drawn when the file was made: a file in its place has another number."""
        rows = self.rows("SELECT identity FROM mark")
        if len(rows) != 1 or not isinstance(rows[0][0], bytes):
            raise self.error("storage.identity-damaged", file=self.path, advice=self.advice)
        return str(rows[0][0].hex())

    @classmethod
    def check_file(cls, file: Path, *, writable: bool) -> None:
        """Refuses a path without a file, an empty file, and a read-only file that must be written."""
        if cls.lost and not os.path.lexists(file):
            raise StorageError("storage.file-lost", file=file, lost=cls.lost, advice=cls.advice)
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            kind = "a folder" if file.is_dir() else "not a file"
            raise StorageError("storage.not-a-file", file=file, kind=kind, wanted=cls.wanted)
        if about.st_size == 0:  # a new file gets its name when complete, so an empty file has lost its content
            raise StorageError("storage.file-empty", file=file, noun=cls.noun)
        for place in (file, file.parent) if writable else ():
            if not os.access(place, os.W_OK):
                raise StorageError("storage.read-only", file=place)

    @classmethod
    def check_header(cls, file: Path, hold: io.FileIO) -> None:
        """Refuses a file of another kind or format, and a file with a log; SQLite has not read the file yet."""
        hold.seek(0)
        header = hold.read(100)
        if not header.startswith(b"SQLite format 3\0") or header[21:24] != b"\x40\x20\x20" or len(header) < 100:
            text = "a text file: it is " if min(header) >= ord("\t") else ""  # binary files have lower bytes early on
            raise StorageError("storage.file-kind", file=file, text=text, noun=cls.noun, wanted=cls.wanted)
        version, application = struct.unpack(">I4xI", header[60:72])
        if application != cls.application:
            raise StorageError("storage.sqlite-kind", file=file, noun=cls.noun)
        cls.check_format(file, version)
        if any(header[place : place + len(data)] != data for place, data in _HEADER):
            raise StorageError("storage.header-damaged", file=file, advice=cls.advice)

    @classmethod
    def check_format(cls, file: Path, version: int) -> None:
        """Refuses a file of another format than the format of this class."""
        if version > cls.version:
            raise StorageError("storage.format-later", file=file, noun=cls.noun, format=version, known=cls.version)
        if version < cls.version:
            raise StorageError("storage.format-earlier", file=file, noun=cls.noun, format=version, advice=cls.older)

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write, and makes a missing file; the file stays open if the block ends without an error.

        The unfinished commit of a killed process is taken back first. The block checks the content of the file.

        Args:
            path: The file.
            first: The first row of a new file; None makes no file.
        """
        file = Path(os.path.realpath(path))  # `check_file` refuses a circle of links
        with cls.translating_errors(file, "opened"), OPENING, contextlib.ExitStack() as undo:
            if first is not None and not file.exists():
                # The target of the link is lost, or its disk is not mounted: a new file would forget what was sent.
                if Path(path).is_symlink() and not file.is_symlink():
                    raise StorageError("storage.link-broken", link=path, file=file, advice=cls.advice)
                cls._create(file, first)
            cls.check_file(file, writable=True)
            hold = undo.enter_context(lock_file(file, exclusive=True))
            cls.check_header(file, hold)
            mark = cls.settle(file, hold)
            journal = undo.enter_context(_new_file(journal_of(file), stat.S_IMODE(file.stat().st_mode)))
            undo.callback(journal_of(file).unlink, missing_ok=True)
            sync_folder(file.parent)  # the journal's name: a mark is worthless if a power cut loses the journal
            connection = undo.enter_context(contextlib.closing(exclusive(file, cls.whole_schema())))
            held = cls(file, connection, hold, journal=journal, mark=mark)
            undo.pop_all()
            undo.callback(held.let_go)
            yield held
            remember(file, held)
            undo.pop_all()

    @classmethod
    def settle(cls, file: Path, hold: io.FileIO) -> CommitMark:
        """Takes back the unfinished commit of a killed process, and returns the mark of the file."""
        return settle(file, hold, schema=cls.whole_schema(), advice=cls.advice, erases=cls.erases)

    def close(self) -> None:
        """Closes and unlocks the file; takes the lock. A second call, or a call in a forked child, does nothing.

        The journal is removed, unless a write failed: the next opening of the file may need the journal.
        """
        if self.let_go():
            forget(self)

    def let_go(self) -> bool:
        """Does the work of `close` except for the list of open files; returns False if the file was closed before."""
        with self.lock:
            if self.closed or os.getpid() != self.process:
                return False
            self.closed = True
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()
            if self.journal is not None:
                with contextlib.suppress(OSError):
                    if self.mark.whole and is_named(journal_of(self.path), self.journal):
                        journal_of(self.path).unlink()
                self.journal.close()
            self.hold.close()
            return True

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.let_go()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Holds the lock during a `with` block; refuses a file that is closed, in doubt, or opened before a fork."""
        with self.lock:
            if self.closed or self.in_doubt or os.getpid() != self.process:
                raise StorageError("storage.file-unusable", file=self.path)
            yield

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Returns the rows of a query; refuses more rows than the file has room for."""
        with self.translating_errors(self.path, "read"):
            return self.connection.rows(sql, values)

    def content(self, table: str, row: int) -> bytes | None:
        """Returns the payload of a row, unchecked and copied once; None if there is no payload."""
        with self.translating_errors(self.path, "read"):
            try:
                with self.connection.blobopen(table, _PAYLOAD, row, readonly=True) as blob:
                    if len(blob) > self.path.stat().st_size:  # overflow pages in a circle
                        raise StorageError("storage.payload-endless", file=self.path, advice=self.advice)
                    return blob.read()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_ERROR":  # no such row, or no bytes in it
                    raise
                return None

    def write(self, *statements: Statement, content: Content | None = None, proofs: Iterable[Proof] = ()) -> None:
        """Writes in one transaction, syncs, and reads back. The caller then updates its memory and ends `in_doubt`.

        Args:
            statements: The statements of the transaction.
            content: A row with a payload; SQLite copies the payload only into pages.
            proofs: Queries with the rows that must be in the file after the write. Of a payload, length, beginning and
                end are read back: reading the whole payload would add a third to the time of the write, and every
                payload is compared with a digest before use.

        Raises:
            FulcrumError: An error of the type `error`; nothing may be sent, and `in_doubt` stays true.
        """
        row = 0
        large = content is not None and len(memoryview(content.data).cast("B")) > _STEP_BYTES
        with self._transaction(large=large):
            for sql, values in statements:
                self.connection.execute(sql, values)
            if content is not None:
                row = self._write_content(content)
        proven = all(self.rows(sql, *values) == rows for sql, values, rows in proofs)
        if not proven or (content is not None and not self._holds(content, row)):
            raise self._unproven()

    def _write_content(self, content: Content) -> int:
        """Writes a row with a payload, and returns the number of the row."""
        view = memoryview(content.data).cast("B")
        row = self.connection.execute(content.sql, (*content.values, len(view))).lastrowid or 0
        with self.connection.blobopen(content.table, _PAYLOAD, row) as blob:
            if len(blob) != len(view):
                raise self._unproven()
            for begin in range(0, len(view), _STEP_BYTES):
                blob.write(view[begin : begin + _STEP_BYTES])
        return row

    def _holds(self, content: Content, row: int) -> bool:
        """Returns True if a row holds the payload of the write: length, beginning and end are compared."""
        view = memoryview(content.data).cast("B")
        with self.translating_errors(self.path, "read"), contextlib.ExitStack() as opened:
            blob = opened.enter_context(self.connection.blobopen(content.table, _PAYLOAD, row, readonly=True))
            sound = len(blob) == len(view) and blob.read(_ENDS_BYTES) == bytes(view[:_ENDS_BYTES])
            blob.seek(max(0, len(view) - _ENDS_BYTES))
            return sound and blob.read() == bytes(view[-_ENDS_BYTES:])

    @contextlib.contextmanager
    def _transaction(self, *, large: bool) -> Iterator[None]:
        """Commits the statements of the block, synced and marked; after any failure nothing may be sent."""
        self.in_doubt = True  # set before the first step: an interrupt at any step leaves the file in doubt
        try:
            with self.translating_errors(self.path, "written, so nothing may be sent"):
                self._check_in_place()  # a deleted file or journal would take the release along at the next opening
                self.connection.execute("BEGIN IMMEDIATE")
                yield
                # COMMIT will change the counter in the first page. The same version, written again, puts that page into
                # the journal now, before the mark takes the digest of the journal.
                self.connection.execute(f"PRAGMA user_version={self.version}")
                self._commit(large=large)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # if the rollback fails, the next opening takes the commit back
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            raise

    def _commit(self, *, large: bool) -> None:
        """Takes the steps of `fulcrum.core.store.commit_mark`."""
        if self.journal is None:
            raise StorageError("storage.opened-to-read", file=self.path)
        self._check_in_place()
        self.mark = CommitMark.of_commit(self.journal, serial=self.mark.serial + 1)
        self.mark.write(self.hold)
        with synced_meanwhile(self.hold.fileno()) if large else contextlib.nullcontext():
            self.connection.execute("COMMIT")
        whole = self.mark.next_whole()
        whole.write(self.hold)
        self.mark = whole
        self.journal.truncate(0)
        if self.erases:
            sync_file(self.journal.fileno())
        self._check_in_place()

    def _check_in_place(self) -> None:
        """Refuses a write to a file or journal that was deleted, moved or replaced since the opening."""
        for path, file in ((self.path, self.hold), (journal_of(self.path), self.journal)):
            if file is None or not is_named(path, file):
                raise StorageError("storage.file-moved", file=path)

    def _unproven(self) -> FulcrumError:
        return self.error("storage.write-unproven", file=self.path, advice=self.advice)

    @classmethod
    @contextlib.contextmanager
    def translating_errors(cls, file: Path, done: str) -> Iterator[None]:
        """Turns errors of SQLite, the system and this folder into the file's own type of error, in one line."""
        try:
            yield
        except (StorageError, *_FAILURES) as error:
            trouble = error if isinstance(error, StorageError) else cls._trouble(error, file, done)
            kind = cls.in_use if isinstance(trouble, FileInUseError) else cls.error
            if type(error) is kind:
                raise
            raise kind.at("", trouble) from error

    @classmethod
    def _trouble(cls, error: BaseException, file: Path, done: str) -> StorageError:
        """Returns the error of Fulcrum for an error of SQLite or of the system."""
        name = getattr(error, "sqlite_errorname", "")
        reason = in_one_line(getattr(error, "strerror", None) or error) or type(error).__name__
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return FileInUseError("storage.file-in-use", file=file)
        if name == "SQLITE_NOTADB":
            return StorageError("storage.first-bytes-damaged", file=file, noun=cls.noun)
        if name == "SQLITE_INTERRUPT":  # the budget of `BoundedConnection` alone interrupts statements
            return StorageError("storage.work-endless", file=file, advice=cls.advice)
        unreadable = isinstance(error, sqlite3.Error | UnicodeDecodeError) and not name
        if name.startswith("SQLITE_CORRUPT") or unreadable:
            return StorageError("storage.content-damaged", file=file, reason=reason, advice=cls.advice)
        if name == "SQLITE_FULL":
            reason = "the disk is full"
        elif name.startswith("SQLITE_READONLY"):
            reason = "it is read-only"
        return StorageError("storage.operation-failed", file=file, operation=done, reason=reason)

    @classmethod
    def _create(cls, file: Path, first: Statement) -> None:
        """Makes a new file under a temporary name and links the file into place: no name ever has half a file."""
        if not file.parent.is_dir():
            raise StorageError("storage.folder-missing", folder=file.parent)
        for beside in files_beside(file):
            if os.path.lexists(beside):
                raise StorageError("storage.journal-left", file=file, journal=beside.name, name=file.name)
        new = cls.build_file(file, [first])
        try:
            with contextlib.suppress(FileExistsError):  # another process was first: the other file will be opened
                file.hardlink_to(new)
        finally:
            new.unlink()

    @classmethod
    def build_file(cls, file: Path, statements: Iterable[Statement]) -> Path:
        """Makes a new file under a temporary name in the same folder, filled and synced, and returns the name.

        Args:
            file: The final name of the new file.
            statements: The statements that fill the file.
        """
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".new", dir=file.parent)
        os.close(handle)
        new = Path(name)
        try:
            uri = f"{new.as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum=NONE")  # the second page is the mark's
                connection.execute("PRAGMA journal_mode=OFF")
                connection.execute(f"PRAGMA application_id={cls.application}")
                connection.execute(f"PRAGMA user_version={cls.version}")
                connection.executescript(cls.whole_schema())
                identity = secrets.token_bytes(IDENTITY_BYTES)
                connection.execute("INSERT INTO mark VALUES (?, ?)", (identity, first_value()))
                for sql, values in statements:
                    connection.execute(sql, values)
            with new.open("rb+") as written:
                sync_file(written.fileno())
        except BaseException:
            new.unlink()
            raise
        return new


def _new_file(path: Path, mode: int) -> io.FileIO:
    """Makes a new file with these permissions."""
    return io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, mode))
