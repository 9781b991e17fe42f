"""The SQLite file beneath ledgers and regional sums: how it is made, opened, read and written, and what can go wrong.

Why a write-ahead log (`WAL` at `synchronous=FULL`): a write is one append and one sync, which is the least that any
durable write costs, where a rollback journal takes four syncs. Each frame of the log carries a checksum over all before
it, so a commit that a kill or a power cut tore apart is seen and dropped as a whole. A second sync, of a few bytes in
the file, marks how far the log goes (`fulcrum.storage.log_mark`): without the log that it was left with, a file does
not open.

While a file is open its last writes may be in the log alone (`<name>-wal`): copy or move both files or, better, a
closed file. The log is folded into the file when it has grown to `LOG_BYTES`, when the file is closed, and when it is
opened after a crash: a closed file has no log. One with large payloads has them in a second file, which stays
(`fulcrum.storage.payloads`).
"""

import contextlib
import io
import os
import sqlite3
import stat
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from fulcrum.errors import FileInUseError, FulcrumError, StorageError, in_one_line
from fulcrum.storage.connection import (
    check_size,
    exclusive,
    folded,
    freed,
    journal_of,
    kept,
    log_of,
    read_only,
)
from fulcrum.storage.files import sync_file, sync_folder
from fulcrum.storage.holding import OPENING, forget, in_use, is_named, never_closed, remember, remember_reader, taken
from fulcrum.storage.log_mark import PAGE_BYTES, SCHEMA, LogMark, first_value

MOST_BYTES = 900_000_000
"""The largest payload: 10^8 parameters, and what goes with them."""

LOG_BYTES = 256_000_000
"""A log that has grown to this is folded into the file before the next write."""

PathLike: TypeAlias = str | os.PathLike[str]
"""What names a file."""

Statement: TypeAlias = tuple[str, tuple[object, ...]]
"""SQL, and the values in it."""

_UNMARKED = 1  # the version of files that carry no mark
_FAILURES = (sqlite3.Error, OSError, MemoryError, OverflowError, UnicodeDecodeError)


class ClosedAtTheEnd:
    """What is held by a `with` and let go at its end."""

    def close(self) -> None:
        """Lets it go; a subclass says what."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class DatabaseFile:
    """A file held and connected to; made by `writing` and `reading`. A subclass says what the file holds.

    The methods are called with `lock` taken.

    Attributes:
        application: In the file's header: tells its kind from any other SQLite file.
        version: In the file's header: of its format.
        schema: The tables of an empty file.
        noun: What the file is, in messages.
        wanted: What to name where something else was named, in messages.
        advice: What to do about a damaged file, in messages.
        error: What trouble with the file is raised as.
        in_use: What is raised where somebody else holds it.
        path: Where it is.
        connection: SQLite's.
        hold: The descriptor whose lock lasts as long as the file is open.
        writable: Whether it was opened to write to.
        mark: How far its log goes, as the file says.
        log: The log, to look at.
        lock: Taken by whoever uses the file, and while the process forks.
        process: The one that opened it.
        closed: Whether it was let go.
        in_doubt: Whether a write failed, or is not yet in the memory of the object that asked for it.
    """

    application: ClassVar[int]
    version: ClassVar[int]
    schema: ClassVar[str]
    noun: ClassVar[str]
    wanted: ClassVar[str]
    advice: ClassVar[str]
    error: ClassVar[type[FulcrumError]] = StorageError
    in_use: ClassVar[type[FulcrumError]] = FileInUseError

    def __init__(
        self, path: Path, connection: sqlite3.Connection, hold: io.FileIO, *, mark: LogMark | None = None
    ) -> None:
        self.path = path
        self.connection = connection
        self.hold = hold
        self.writable = mark is not None
        self.mark = mark or LogMark()
        self.log: io.FileIO | None = None
        self._kept: sqlite3.Connection | None = None
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.closed = False
        self.in_doubt = False

    @classmethod
    def check_file(cls, file: Path, *, writable: bool) -> None:
        """Refuses what is no file, is empty, or cannot be written to where it must be."""
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise StorageError(f"{file} is {'a folder' if file.is_dir() else 'not a file'}. Name {cls.wanted}")
        if about.st_size == 0:  # a new file appears under its name complete, so this one was emptied
            raise StorageError(f"{file} is empty: it was {cls.noun} that lost its content, or never was one")
        for place in (file, file.parent) if writable else ():
            if not os.access(place, os.W_OK):
                raise StorageError(f"{place} is read-only: a release cannot be recorded. Make it writable")

    @classmethod
    def format_of(cls, file: Path, hold: io.FileIO) -> int:
        """Returns the version of a file's format, read without SQLite; refuses a file of another kind or version."""
        hold.seek(0)
        header = hold.read(100)
        if not header.startswith(b"SQLite format 3\0") or header[21:24] != b"\x40\x20\x20" or len(header) < 100:
            found = "a text file: it is " if min(header) >= ord("\t") else ""  # binary files have lower bytes early on
            raise StorageError(f"{file} is {found}not {cls.noun}, or its first bytes are damaged. Name {cls.wanted}")
        version, application = struct.unpack(">I4xI", header[60:72])
        if application != cls.application:
            raise StorageError(f"{file} is an SQLite file but not {cls.noun}")
        if not _UNMARKED <= version <= cls.version:
            known = f"this Fulcrum knows format {cls.version}. Update Fulcrum"
            raise StorageError(f"{file} is {cls.noun} of format {version}, {known}")
        if version == _UNMARKED and (_holds_bytes(log_of(file)) or _holds_bytes(journal_of(file))):
            opened = "open and close it once with the version of Fulcrum that wrote it"
            raise StorageError(f"{file} is {cls.noun} of format {version} that was not closed: {opened}")
        return int(version)

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write to, creating it where there is none; it stays open if the block ends well.

        The block checks what the file holds, what a killed process left folded in; only then is a new log begun.

        Args:
            path: The file.
            first: What is written into a new one; None creates none.
        """
        file = Path(os.path.realpath(path))  # a circle of links is refused as a file, further down
        with cls.translated(file, "opened"), OPENING, contextlib.ExitStack() as undo:
            if first is not None and not file.exists():
                cls._create(file, first)
            cls.check_file(file, writable=True)
            hold = undo.enter_context(taken(file, exclusive=True))
            if cls.format_of(file, hold) == _UNMARKED:
                cls._upgrade(file, hold)
                hold = undo.enter_context(taken(file, exclusive=True))
            connection, mark = cls._whole(file, hold)
            held = cls(file, connection, hold, mark=mark)
            undo.callback(held.let_go)
            yield held
            held.begin_log()
            remember(file, held)
            undo.pop_all()

    @classmethod
    @contextlib.contextmanager
    def reading(cls, path: PathLike) -> Iterator[Self]:
        """Opens a file to look at, what a killed process left folded in; it stays open if the block ends well."""
        file = Path(os.path.realpath(path))  # a circle of links is refused as a file, further down
        with cls.translated(file, "read"), OPENING, contextlib.ExitStack() as undo:
            cls.check_file(file, writable=False)
            hold = undo.enter_context(taken(file, exclusive=False))
            if cls.format_of(file, hold) != _UNMARKED and not cls._mark_of(file, hold).whole:
                hold.close()
                hold = undo.enter_context(taken(file, exclusive=True))
                cls._whole(file, hold)[0].close()
            connection = undo.enter_context(contextlib.closing(read_only(file)))
            yield (held := cls(file, connection, hold))
            remember_reader(held)
            undo.pop_all()

    def begin_log(self) -> None:
        """Begins a log with a write that changes nothing, and marks it: all that follows belongs to this log."""
        if self._kept is None:
            self._kept = kept(self.connection)
        self.connection.execute(f"PRAGMA user_version={self.version}")
        if self.log is None:
            self.log = io.FileIO(log_of(self.path))
            sync_folder(self.path.parent)  # SQLite does so too, and ignores it where that fails
        self.mark_log()

    def mark_log(self) -> None:
        """Lets the file know, durably, how far its log goes."""
        if self.log is None:
            raise StorageError(f"{self.path} has no log. Open it again")
        mark = LogMark.after(self.log, serial=self.mark.serial + 1)
        mark.write(self.hold)
        self.mark = mark

    def fold_log(self) -> None:
        """Folds the log into the file and empties it."""
        self.mark = folded(self.connection, self.hold, self.mark)

    def close(self) -> None:
        """Lets the file go; closing it again, or in a forked child, does nothing. It takes the lock itself.

        It leaves no log behind. Where the disk does not allow that the log stays, and nothing is lost: another process
        can open the file, this one cannot any more.
        """
        if self.let_go():
            forget(self)

    def let_go(self) -> bool:
        """Does what `close` does but for the list of open files; returns whether there was anything to do."""
        with self.lock:
            if self.closed or os.getpid() != self.process:
                return False
            self.closed = True
            try:
                if self._kept is not None:
                    self.fold_log()
                    freed(self._kept)
                self.connection.close()
            except (FulcrumError, *_FAILURES):
                never_closed(self.hold)
            for file in (self.log, self.hold):
                if file is not None:
                    file.close()
            return True

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.let_go()

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Returns what a query finds."""
        with self.translated(self.path, "read"):
            return self.connection.execute(sql, values).fetchall()

    def write(self, *statements: Statement) -> None:
        """Writes in one transaction and syncs. The caller ends `in_doubt` once its own memory agrees with that."""
        self.in_doubt = True  # an interrupt too leaves it so, wherever it strikes
        try:
            with self.translated(self.path, "written, so nothing may be sent"):
                if self.mark.length > LOG_BYTES:
                    self.fold_log()
                    self.begin_log()
                self.connection.execute("BEGIN IMMEDIATE")
                for sql, values in statements:
                    self.connection.execute(sql, values)
                self.connection.execute("COMMIT")
                self.mark_log()
                self.check_in_place()
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # else the next to open drops it
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            raise

    def written_files(self) -> list[tuple[Path, io.FileIO | None]]:
        """Returns the files that a write goes to, by name."""
        return [(self.path, self.hold), (log_of(self.path), self.log)]

    def check_in_place(self) -> None:
        """Refuses a write that went into a file or log which nobody will find under its name again."""
        for path, file in self.written_files():
            if file is None or not is_named(path, file):
                lost = "was deleted, moved or replaced while it was open"
                raise StorageError(f"{path} {lost}, so nothing may be sent. Close it, and put the file back")

    @classmethod
    @contextlib.contextmanager
    def translated(cls, file: Path, done: str) -> Iterator[None]:
        """Turns what SQLite, the system and this floor raise into one line, and into the file's own kind of error."""
        try:
            yield
        except (StorageError, *_FAILURES) as error:
            told = error if isinstance(error, StorageError) else cls._trouble(error, file, done)
            kind = cls.in_use if isinstance(told, FileInUseError) else cls.error
            if type(error) is kind:
                raise
            raise kind(str(told)) from error

    @classmethod
    def _trouble(cls, error: BaseException, file: Path, done: str) -> StorageError:
        """What an error of SQLite or of the system means for a file."""
        name = getattr(error, "sqlite_errorname", "")
        said = in_one_line(getattr(error, "strerror", None) or error) or type(error).__name__
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return FileInUseError(in_use(file))
        if name == "SQLITE_NOTADB":
            return StorageError(f"{file} is not {cls.noun}, or its first bytes are damaged")
        unreadable = isinstance(error, sqlite3.Error | UnicodeDecodeError) and not name
        if name.startswith("SQLITE_CORRUPT") or unreadable:
            return StorageError(f"{file} is damaged ({said}). {cls.advice}")
        if name == "SQLITE_FULL":
            said = "the disk is full"
        elif name.startswith("SQLITE_READONLY"):
            said = "it is read-only"
        return StorageError(f"{file} cannot be {done} ({said})")

    @classmethod
    def _create(cls, file: Path, first: Statement) -> None:
        """Makes a new file under another name and links it into place: a name never stands for half a file."""
        if not file.parent.is_dir():
            raise StorageError(f"the folder {file.parent} does not exist. Make it first")
        made = cls._built(file, lambda connection: connection.execute(*first))
        try:
            with contextlib.suppress(FileExistsError):  # another process was first: its file is the one to open
                file.hardlink_to(made)
        finally:
            made.unlink()

    @classmethod
    def _upgrade(cls, file: Path, hold: io.FileIO) -> None:
        """Puts a file of this format in the place of one without a mark, and lets that go; it holds the same."""
        about = os.fstat(hold.fileno())
        if about.st_nlink > 1:
            raise StorageError(f"{file} has another name, under which its old format would go on. Remove that name")

        with contextlib.closing(read_only(file)) as old:
            if (found := old.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise StorageError(f"{file} is damaged ({in_one_line(found)}). {cls.advice}")

        def fill(connection: sqlite3.Connection) -> None:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'mark'")
            connection.execute("ATTACH ? AS old", (f"{file.as_uri()}?mode=ro&immutable=1",))
            for (table,) in tables.fetchall():
                connection.execute(f"INSERT INTO main.{table} SELECT * FROM old.{table}")  # noqa: S608 our own names
            connection.execute("DETACH old")

        made = cls._built(file, fill)
        try:
            made.chmod(stat.S_IMODE(about.st_mode))
            if sys.platform != "win32":
                os.chown(made, about.st_uid, about.st_gid)
            else:
                hold.close()  # Windows replaces no file that is open
            made.replace(file)
        finally:
            hold.close()
            made.unlink(missing_ok=True)

    @classmethod
    def _built(cls, file: Path, fill: Callable[[sqlite3.Connection], object]) -> Path:
        """Returns a new file under a name of its own in the same folder, filled and synced."""
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".new", dir=file.parent)
        os.close(handle)
        made = Path(name)
        try:
            uri = f"{made.as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
                connection.execute("PRAGMA journal_mode=OFF")
                connection.execute(f"PRAGMA application_id={cls.application}")
                connection.execute(f"PRAGMA user_version={cls.version}")
                connection.executescript(SCHEMA + cls.schema)
                connection.execute("INSERT INTO mark VALUES (?)", (first_value(),))
                fill(connection)
                connection.execute("PRAGMA journal_mode=WAL")
            with made.open("rb+") as written:
                sync_file(written.fileno())
        except BaseException:
            log_of(made).unlink(missing_ok=True)
            made.unlink()
            raise
        return made

    @classmethod
    def _mark_of(cls, file: Path, hold: io.FileIO) -> LogMark:
        if (mark := LogMark.read(hold)) is None:
            raise StorageError(f"{file} is damaged (it does not say how far its log goes). {cls.advice}")
        return mark

    @classmethod
    def _whole(cls, file: Path, hold: io.FileIO) -> tuple[sqlite3.Connection, LogMark]:
        """Takes SQLite's lock for good and makes the file alone the whole, with what a killed process left.

        SQLite sees a log only once it is proved to be the file's own and to hold all that was marked. What is refused
        stays as it is, the log too.
        """
        mark, log = cls._mark_of(file, hold), log_of(file)
        for beside in (log, journal_of(file)):
            if beside.exists() and not beside.is_file():  # opening a pipe would wait for ever
                raise StorageError(f"{beside} is no file, and stands where one of {file.name} belongs. Move it away")
        if _holds_bytes(journal := journal_of(file)):
            raise StorageError(
                f"{journal} is not of Fulcrum's making, and would undo what is in the file. Move it away"
            )
        if not mark.whole:
            if lacks := mark.lacking(log):
                left = (
                    "Put back the log that it was left with, or open it by the name and in the folder it was open last"
                )
                raise StorageError(f"{file} was not closed, and its log {log.name} {lacks}. {left}")
            connection = exclusive(file, keep=True)
            mark = folded(connection, hold, mark)
            freed(connection).close()
        if mark.is_foreign(log):
            raise StorageError(f"{log} is the log of another file, or of this one at another time. Move it away")
        log.unlink(missing_ok=True)
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(contextlib.closing(exclusive(file, keep=False)))
            check_size(connection, file)
            undo.pop_all()
        return connection, mark


def _holds_bytes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0
