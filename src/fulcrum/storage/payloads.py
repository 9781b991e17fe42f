"""Large payloads beside an SQLite file: written once, synced, and only then known to a row.

In the log of an SQLite file a payload is copied, summed up and written, and written again when the log is folded. One
of more than `MOST_INSIDE` bytes goes to the file `<name>-payloads` instead. Where a row would hold the bytes it then
holds a whole number, the place where they begin in that file; the table `outside` has the length of every payload.

What a crash leaves: a payload is synced before the row that knows it is written. Bytes that no row knows are cut off,
or overwritten, when the file is opened to write to. A row that is there has all its bytes.

A file of payloads begins with a random number that the SQLite file knows too: one that is missing, cut short or another
file's is refused. Both are held by one lock, and copied and moved together.
"""

import contextlib
import io
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from fulcrum.errors import StorageError
from fulcrum.storage.database import DatabaseFile, PathLike, Statement
from fulcrum.storage.files import sync_file, sync_folder
from fulcrum.storage.log_mark import LogMark

MOST_INSIDE = 2**20
"""Bytes of a payload that is still held in the SQLite file itself."""

_BLOCK_BYTES = 4096  # payloads begin on blocks of their own: no write touches the block of another one
_IDENTITY_BYTES = 32
_STEP_BYTES = 2**22
_ZEROS = memoryview(bytes(_STEP_BYTES))
_TABLE = "CREATE TABLE IF NOT EXISTS outside (place INTEGER PRIMARY KEY, length INTEGER NOT NULL, identity BLOB)"


def payloads_of(file: Path) -> Path:
    """Returns where the large payloads of an SQLite file are."""
    return file.with_name(f"{file.name}-payloads")


class FileWithPayloads(DatabaseFile):
    """A file held and connected to, whose large payloads are beside it; made by `writing` and `reading`.

    Attributes:
        overwrites: Whether bytes that no row knows are overwritten when the file is opened, and not only cut off.
    """

    overwrites: ClassVar[bool] = False

    def __init__(
        self, path: Path, connection: sqlite3.Connection, hold: io.FileIO, *, mark: LogMark | None = None
    ) -> None:
        super().__init__(path, connection, hold, mark=mark)
        self._payloads: io.FileIO | None = None

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write to, as `DatabaseFile.writing` does, and what is beside it."""
        with super().writing(path, first) as file:
            file._clear_unknown()
            yield file

    def keep(self, data: bytes | memoryview, sha: Any = None) -> tuple[object, tuple[Statement, ...]]:
        """Makes a payload durable where it is large; a row that is written next holds it.

        Args:
            data: The payload.
            sha: A hash of `hashlib` that the payload is added to, at the same time as it is written.

        Returns:
            What a row holds in its place, and what must be written together with that row.
        """
        if len(data) <= MOST_INSIDE:
            if sha is not None:
                sha.update(data)
            return data, ()
        with self.translated(self.path, "written, so nothing may be sent"), _meanwhile(sha, data):
            file, place = self._opened(), self._free(len(data))
            self.in_doubt = True  # until the row is written too
            _write(file, place, memoryview(data))
            sync_file(file.fileno())
        return place, (("INSERT INTO outside VALUES (?, ?, NULL)", (place, len(data))),)

    def content(self, held: object) -> object:
        """Returns the payload that a row holds, unchecked; None where its bytes are not there."""
        if not isinstance(held, int):
            return held
        found = self.rows("SELECT length FROM outside WHERE place = ? AND identity IS NULL", held)
        if not found:
            return None
        with self.translated(self.path, "read"):
            file = self._opened()
            file.seek(held)
            data = file.read(found[0][0])
            return data if data is not None and len(data) == found[0][0] else None

    def overwrite(self, places: list[int]) -> tuple[Statement, ...]:
        """Overwrites payloads that are no longer needed; synced when it returns.

        Returns:
            What must be written next, together with the change of the rows that hold these places.
        """
        if not places:
            return ()
        with self.translated(self.path, "cleared of what it no longer needs"):
            file = self._opened()
            self.in_doubt = True  # until no row knows them
            for place in places:
                for (length,) in self.rows("SELECT length FROM outside WHERE place = ?", place):
                    _overwrite(file, place, place + length)
            sync_file(file.fileno())
        return tuple(("DELETE FROM outside WHERE place = ?", (place,)) for place in places)

    def written_files(self) -> list[tuple[Path, io.FileIO | None]]:
        """Returns the files that a write goes to, by name."""
        beside = [] if self._payloads is None else [(payloads_of(self.path), self._payloads)]
        return [*super().written_files(), *beside]

    def let_go(self) -> bool:
        """Lets go of the file, and of what is beside it; returns whether there was anything to do."""
        done = super().let_go()
        if done and self._payloads is not None:
            self._payloads.close()
        return done

    def _places(self) -> list[tuple[int, int, bytes | None]]:
        """Returns from where to where the payloads outside are, in order; the first is the file's own beginning."""
        if not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'outside'"):
            return []
        found = self.rows("SELECT place, length, identity FROM outside ORDER BY place")
        return [(place, place + length, identity) for place, length, identity in found]

    def _free(self, length: int) -> int:
        """Returns the first place with room for a payload."""
        end = 0
        for begin, stop, _ in self._places():
            if begin - end >= length:
                break
            end = -(-stop // _BLOCK_BYTES) * _BLOCK_BYTES
        return end

    def _opened(self) -> io.FileIO:
        """Returns the file of payloads, opened or made when it is first needed."""
        if self._payloads is None:
            places, path = self._places(), payloads_of(self.path)
            if not places and self.writable:
                identity = secrets.token_bytes(_IDENTITY_BYTES)
                first = ("INSERT INTO outside VALUES (0, ?, ?)", (_IDENTITY_BYTES, identity))
                self.write((_TABLE, ()), first)  # before there is a file: one that is there is this file's or it is not
                self.in_doubt = False  # nobody's memory but the file's
                places = self._places()
            begun = len(places) == 1 and self.writable and _is_blank(path)
            self._payloads = _made(path, places[0][2]) if begun else self._found(path, places)
        return self._payloads

    def _found(self, path: Path, places: list[tuple[int, int, bytes | None]]) -> io.FileIO:
        """Opens the file of payloads that is there; refuses one that is not this file's, or not whole."""
        advice = f"Put back the one that {self.path.name} was left with" if len(places) > 1 else "Move it away"
        if path.exists() and not path.is_file():
            raise StorageError(f"{path} is no file, and stands where the payloads of {self.path.name} belong. {advice}")
        try:
            file = io.FileIO(path, "r+" if self.writable else "r")
        except FileNotFoundError:
            raise StorageError(f"{path} is missing, with payloads of {self.path.name}. {advice}") from None
        if not places or file.read(_IDENTITY_BYTES) != places[0][2]:
            wrong = f"does not hold the payloads of {self.path.name}"
        elif os.fstat(file.fileno()).st_size < places[-1][1]:
            wrong = f"is cut short: it lacks payloads of {self.path.name}"
        else:
            return file
        file.close()
        raise StorageError(f"{path} {wrong}. {advice}")

    def _clear_unknown(self) -> None:
        """Clears what a crash left and no row knows; refuses a file of payloads that lacks what a row knows."""
        places, path = self._places(), payloads_of(self.path)
        if not places or (len(places) == 1 and not path.exists()):
            return  # it has none yet
        file = self._opened()
        size, end = os.fstat(file.fileno()).st_size, 0
        if self.overwrites:
            for begin, stop, _ in [*places, (size, size, None)]:
                if _holds_any(file, end, begin):
                    _overwrite(file, end, begin)
                    sync_file(file.fileno())
                end = max(end, stop)
        if size > places[-1][1]:
            file.truncate(places[-1][1])
            sync_file(file.fileno())


@contextlib.contextmanager
def _meanwhile(sha: Any, data: bytes | memoryview) -> Iterator[None]:
    """Adds data to a hash in a thread of its own, and waits for it."""
    if sha is None:
        yield
        return
    thread = threading.Thread(target=sha.update, args=(data,))
    try:
        thread.start()
    except RuntimeError:  # no more threads
        sha.update(data)
        yield
        return
    try:
        yield
    finally:
        thread.join()


def _is_blank(path: Path) -> bool:
    """Returns whether nothing was written under a name yet: no file, or one that a crash left with zeros at most."""
    if not path.exists():
        return True
    if not path.is_file():
        return False
    with io.FileIO(path) as file:
        return not _holds_any(file, 0, os.fstat(file.fileno()).st_size)


def _made(path: Path, identity: bytes | None) -> io.FileIO:
    """Makes a file of payloads that holds none yet, for its owner's eyes alone; synced when it returns."""
    file = io.FileIO(path, "w+", opener=lambda name, flags: os.open(name, flags, 0o600))
    _write(file, 0, memoryview(identity or b""))
    sync_file(file.fileno())
    sync_folder(path.parent)
    return file


def _write(file: io.FileIO, place: int, left: memoryview) -> None:
    file.seek(place)
    left = left.cast("B")
    while left:
        left = left[file.write(left[:_STEP_BYTES]) or 0 :]


def _overwrite(file: io.FileIO, begin: int, end: int) -> None:
    for place in range(begin, end, _STEP_BYTES):
        _write(file, place, _ZEROS[: end - place])


def _holds_any(file: io.FileIO, begin: int, end: int) -> bool:
    """Returns whether a part of a file holds anything but zeros."""
    file.seek(begin)
    left = end - begin
    while left > 0 and (data := file.read(min(left, _STEP_BYTES))):
        if data.count(0) != len(data):
            return True
        left -= len(data)
    return False
