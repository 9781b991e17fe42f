"""The SQLite file beneath ledgers and regional sums: how it is made, held, read and written, and what can go wrong.

Why a write-ahead log (`WAL` at `synchronous=FULL`): a release is one append and one sync, which is the least that any
durable write costs, where a rollback journal takes four syncs. Each frame of the log carries a checksum over all before
it, so a commit that a kill or a power cut tore apart is seen and dropped as a whole. While a file is open its last
writes may be in the log alone (`<name>-wal`): copy or move both files or, better, a closed file. Closing folds the log
into the file, and opening does so first of all after a crash: what is closed is one file.
"""

import contextlib
import ctypes
import io
import os
import sqlite3
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from fulcrum.errors import FulcrumError, LedgerError, LedgerInUseError

if sys.platform != "win32":
    import fcntl

MOST_BYTES = 900_000_000
"""The largest payload: SQLite holds up to 10^9 bytes in a row."""

PathLike: TypeAlias = str | os.PathLike[str]
"""What names a file."""

Statement: TypeAlias = tuple[str, tuple[object, ...]]
"""SQL, and the values in it."""

_PAGE_BYTES = 32_768  # payloads are large: an eighth of the pages, and of the writes, of SQLite's default
_FAILURES = (sqlite3.Error, OSError, MemoryError, OverflowError)


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
        path: Where it is.
        connection: SQLite's.
        hold: The descriptor whose lock lasts as long as the file is open.
        writable: Whether it was opened to write to.
        lock: Keeps threads, and forks, from meeting in it.
        process: The one that opened it.
        closed: Whether it was let go.
        in_doubt: Whether a write failed, or is not yet known to whoever asked for it.
    """

    application: ClassVar[int]
    version: ClassVar[int]
    schema: ClassVar[str]
    noun: ClassVar[str]
    wanted: ClassVar[str]
    advice: ClassVar[str]

    def __init__(self, path: Path, connection: sqlite3.Connection, hold: io.FileIO, *, writable: bool) -> None:
        self.path = path
        self.connection = connection
        self.hold = hold
        self.writable = writable
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.closed = False
        self.in_doubt = False

    @classmethod
    def check_file(cls, file: Path, *, writable: bool) -> None:
        """Refuses what is no file, is empty, or cannot be written to where it must be."""
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise LedgerError(f"{file} is {'a folder' if file.is_dir() else 'not a file'}. Name {cls.wanted}")
        if about.st_size == 0:  # a new file appears under its name complete, so this one was emptied
            raise LedgerError(f"{file} is empty: it was {cls.noun} that lost its content, or never was one")
        for place in (file, file.parent) if writable else ():
            if not os.access(place, os.W_OK):
                raise LedgerError(f"{place} is read-only: a release cannot be recorded. Make it writable")

    @classmethod
    def check_held(cls, file: Path, hold: io.FileIO) -> None:
        """Refuses what SQLite need not look at, once it is held. Nothing here; a subclass may say more."""

    @classmethod
    def check_kind(cls, file: Path, application: int, version: int) -> None:
        """Refuses an SQLite file of another kind or format."""
        if application != cls.application:
            raise LedgerError(f"{file} is an SQLite file but not {cls.noun}")
        if version != cls.version:
            known = f"this Fulcrum knows format {cls.version}. Update Fulcrum"
            raise LedgerError(f"{file} is {cls.noun} of format {version}, {known}")

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write to, creating it where there is none; it stays open if the block ends well.

        The block checks what the file holds, what a killed process left folded in; only then is a new log begun.

        Args:
            path: The file.
            first: What is written into a new one; None creates none.
        """
        file = Path(path).resolve()
        with cls.translated(file, "opened"), _REGISTRY:
            if first is not None and not file.exists():
                cls._create(file, first)
            cls.check_file(file, writable=True)
            with contextlib.ExitStack() as undo:
                hold = undo.enter_context(_held(file, exclusive=True))
                cls.check_held(file, hold)
                connection = undo.enter_context(contextlib.closing(cls._folded(file)))
                held = cls(file, connection, hold, writable=True)
                yield held
                if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                    raise LedgerError(f"{file} is on a disk that cannot keep a write-ahead log beside it")
                connection.execute("SELECT name FROM sqlite_master").fetchone()  # makes the log
                sync_folder(file.parent)  # SQLite does so for the log too, and ignores it where that fails
                _LIVE[_inode(file)] = held
                undo.pop_all()

    @classmethod
    @contextlib.contextmanager
    def reading(cls, path: PathLike) -> Iterator[Self]:
        """Opens a file to look at, what a killed process left folded in; it stays open if the block ends well."""
        file = Path(path).resolve()
        with cls.translated(file, "read"), _REGISTRY, contextlib.ExitStack() as undo:
            cls.check_file(file, writable=False)
            beside = (file.with_name(f"{file.name}-{kind}") for kind in ("wal", "journal"))
            crashed = any(other.exists() and other.stat().st_size > 0 for other in beside)
            hold = undo.enter_context(_held(file, exclusive=crashed))
            cls.check_held(file, hold)
            if crashed:
                with contextlib.closing(cls._folded(file)) as connection:
                    _tidy(connection)
            # A log left empty, or folded in by a process that ended without closing, must not be looked for.
            connection = undo.enter_context(contextlib.closing(_connected(file, "mode=ro&immutable=1")))
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")
            cls.check_kind(file, *_pragmas(connection, "application_id", "user_version"))
            _check_size(connection, file)
            yield cls(file, connection, hold, writable=False)
            undo.pop_all()

    def close(self) -> None:
        """Lets the file go; closing it again, or in a forked child, does nothing. It takes the lock itself."""
        with self.lock:
            if self.closed or os.getpid() != self.process:
                return
            self.closed = True
            if self.writable:
                _tidy(self.connection)
            self.connection.close()
            self.hold.close()
        with _REGISTRY:
            for key in [key for key, file in _LIVE.items() if file is self]:
                del _LIVE[key]

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Returns what a query finds."""
        with self.translated(self.path, "read"):
            return self.connection.execute(sql, values).fetchall()

    def write(self, *statements: Statement) -> None:
        """Writes in one transaction and syncs. The caller takes the doubt away once memory agrees with the disk."""
        self.in_doubt = True  # an interrupt too leaves it so, wherever it strikes
        try:
            with self.translated(self.path, "written, so nothing may be sent"):
                self.connection.execute("BEGIN IMMEDIATE")
                for sql, values in statements:
                    self.connection.execute(sql, values)
                self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # else the next to open drops it
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            raise

    @classmethod
    @contextlib.contextmanager
    def translated(cls, file: Path, done: str) -> Iterator[None]:
        """Turns what SQLite and the system raise into one line."""
        try:
            yield
        except _FAILURES as error:
            if isinstance(error, FulcrumError):
                raise
            name = getattr(error, "sqlite_errorname", "")
            said = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise LedgerInUseError(_in_use(file)) from error
            if name == "SQLITE_NOTADB":
                raise LedgerError(f"{file} is not {cls.noun}, or its first bytes are damaged") from error
            if name.startswith("SQLITE_CORRUPT") or (isinstance(error, sqlite3.Error) and not name):
                raise LedgerError(f"{file} is damaged ({said}). {cls.advice}") from error
            if name == "SQLITE_FULL":
                said = "the disk is full"
            elif name.startswith("SQLITE_READONLY"):
                said = "it is read-only"
            raise LedgerError(f"{file} cannot be {done} ({said})") from error

    @classmethod
    def _create(cls, file: Path, first: Statement) -> None:
        """Makes a new file under another name and links it into place: a name never stands for half a file."""
        if not file.parent.is_dir():
            raise LedgerError(f"the folder {file.parent} does not exist. Make it first")
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".new", dir=file.parent)
        os.close(handle)
        made = Path(name)
        try:
            with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as connection:
                connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
                connection.execute("PRAGMA journal_mode=OFF")
                connection.execute(f"PRAGMA application_id={cls.application}")
                connection.execute(f"PRAGMA user_version={cls.version}")
                connection.executescript(cls.schema)
                connection.execute(*first)
            with made.open("rb+") as written:
                os.fsync(written.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its file is the one to open
                file.hardlink_to(made)
        finally:
            made.unlink()

    @classmethod
    def _folded(cls, file: Path) -> sqlite3.Connection:
        """Takes SQLite's lock for good, recovers what a killed process left, and makes the file alone the whole."""
        with contextlib.ExitStack() as undo:
            connection = undo.enter_context(contextlib.closing(_connected(file, "mode=rw")))
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # before the log is touched: no shared memory beside it
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA fullfsync=ON")  # macOS: past the cache of the drive
            connection.execute("PRAGMA checkpoint_fullfsync=ON")
            connection.execute("BEGIN EXCLUSIVE")
            cls.check_kind(file, *_pragmas(connection, "application_id", "user_version"))
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode=TRUNCATE")
            _check_size(connection, file)
            undo.pop_all()
        return connection


_LIVE: weakref.WeakValueDictionary[tuple[int, int], DatabaseFile] = weakref.WeakValueDictionary()  # open here, by inode
_REGISTRY = threading.RLock()
_FORKING: list[DatabaseFile] = []


def _before_fork() -> None:
    """Waits for writes under way, so that a child does not inherit half of one."""
    _REGISTRY.acquire()
    _FORKING.extend(_LIVE.values())
    for file in _FORKING:
        file.lock.acquire()


def _after_fork() -> None:
    while _FORKING:
        _FORKING.pop().lock.release()
    _REGISTRY.release()


def _after_fork_in_child() -> None:
    for file in _FORKING:
        # SQLite does not notice a fork: closed in the child, it would fold in and delete the log under the parent.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(file.connection))
        file.hold.close()  # or a child that outlives its parent would keep the file from being opened
    _LIVE.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _check_size(connection: sqlite3.Connection, file: Path) -> None:
    """SQLite itself reads a last page that was cut short as if it ended in zeros."""
    pages, page_bytes = _pragmas(connection, "page_count", "page_size")
    if (size := file.stat().st_size) != pages * page_bytes:
        raise LedgerError(f"{file} is damaged: it has {size:,} bytes, its header says {pages * page_bytes:,}")


def _pragmas(connection: sqlite3.Connection, *names: str) -> list[int]:
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


def _inode(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino


def _held(file: Path, *, exclusive: bool) -> io.FileIO:
    """Takes the lock of the file's life, beside SQLite's own.

    POSIX drops SQLite's locks as soon as this process closes any other descriptor of the file, after copying it for
    example. A lock of `flock` lasts as long as its own descriptor. Windows has no such trap and needs no second lock.
    """
    if _inode(file) in _LIVE:  # looked up first: opening and closing the file here would drop SQLite's lock
        raise LedgerInUseError(f"{file} is open in this process. Close it first")
    hold = io.FileIO(file, "r+" if exclusive else "r")
    if sys.platform != "win32":
        try:
            fcntl.flock(hold, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.close()
            raise LedgerInUseError(_in_use(file)) from None
        except OSError:
            hold.close()
            raise
    return hold


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=0
    )
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def _tidy(connection: sqlite3.Connection) -> None:
    """Leaves one file behind where the disk allows it; where it does not, the log stays and nothing is lost."""
    with contextlib.suppress(sqlite3.Error):
        for setting in ("journal_mode=TRUNCATE", "locking_mode=NORMAL", "journal_mode=DELETE"):
            connection.execute(f"PRAGMA {setting}")


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder, where the system can."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _in_use(file: Path) -> str:
    return f"{file} is in use by another process, or on a network drive that cannot lock it. Close it there first"
