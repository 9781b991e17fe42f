"""Large payloads beside an SQLite file: written once, synced, and only then known to a row.

In the log of an SQLite file a payload is copied, summed up and written, and written again when the log is folded. One
of more than `MOST_INSIDE` bytes goes to the file `<name>-payloads` instead (`fulcrum.storage.payload_file`). Where a
row would hold the bytes it then holds a whole number, the place where they begin in that file; the table `outside` has
the length of every payload.

What a crash leaves: a payload is synced before the row that knows it is written. Bytes that no row knows are cut off,
or overwritten, once a file is opened to write to and found sound. A row that is there has all its bytes.

The two files are copied and moved together, and held by one lock. The table `beside` has the identity of the file of
payloads and the stamp of the last change of it. To write to, a file opens only with the payloads that it was left with:
what is missing, cut short, older, newer or another file's is refused, and nothing is changed. To look at, it opens
unless its payloads show that it is an older copy, which no longer knows what was released.
"""

import contextlib
import io
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from fulcrum.errors import StorageError
from fulcrum.storage.database import DatabaseFile, PathLike, Statement
from fulcrum.storage.log_mark import LogMark
from fulcrum.storage.payload_file import BLOCK_BYTES, FIRST_PLACE, IDENTITY_BYTES, Age, PayloadFile, Stamp

MOST_INSIDE = 2**20
"""Bytes of a payload that is still held in the SQLite file itself."""

_NONCE_BYTES = 16
_TABLES = (
    ("CREATE TABLE beside (identity BLOB NOT NULL, changes INTEGER NOT NULL, nonce BLOB NOT NULL)", ()),
    ("CREATE TABLE outside (place INTEGER PRIMARY KEY, length INTEGER NOT NULL)", ()),
)


def payloads_of(file: Path) -> Path:
    """Returns where the large payloads of an SQLite file are."""
    return file.with_name(f"{file.name}-payloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What an SQLite file knows of its payloads.

    Attributes:
        identity: What the file of payloads begins with.
        changes: How often it was changed.
        nonce: Drawn for the last change.
        places: From where to where there are payloads, in order.
    """

    identity: bytes
    changes: int
    nonce: bytes
    places: list[tuple[int, int]]

    @property
    def stamp(self) -> Stamp:
        """Of the last change."""
        return Stamp.of(self.changes, self.nonce, self.places)

    @property
    def end(self) -> int:
        """Where the last payload ends."""
        return self.places[-1][1] if self.places else FIRST_PLACE

    @property
    def unused(self) -> bool:
        """Whether there was no payload yet, and perhaps no file for them."""
        return self.changes == 0

    def free(self, length: int) -> int:
        """Returns the first place with room for a payload."""
        end = FIRST_PLACE
        for begin, stop in self.places:
            if begin - end >= length:
                break
            end = -(-stop // BLOCK_BYTES) * BLOCK_BYTES
        return end


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
        self._beside: PayloadFile | None = None
        self._change: tuple[Stamp, tuple[Statement, ...]] | None = None  # beside the file, and not yet in it

    @classmethod
    @contextlib.contextmanager
    def writing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write to, as `DatabaseFile.writing` does, and what is beside it.

        What a crash left and no row knows is cleared after the block, when the file is known to be sound.
        """
        with super().writing(path, first) as file:
            known = file._known()
            if known is None:
                file._check_alone()
            elif not known.unused or os.path.lexists(payloads_of(file.path)):
                file._opened()
            yield file
            file._clear_unknown()

    @classmethod
    @contextlib.contextmanager
    def reading(cls, path: PathLike) -> Iterator[Self]:
        """Opens a file to look at, as `DatabaseFile.reading` does; refuses one that has forgotten payloads."""
        with super().reading(path) as file:
            known = file._known()
            if known is None:
                file._check_alone()
            elif payloads_of(file.path).is_file():
                with contextlib.closing(PayloadFile.opened(payloads_of(file.path), writable=False)) as beside:
                    if beside.is_of(known.identity) and beside.age(known.stamp) is Age.NEWER:
                        raise StorageError(file._newer())
            yield file

    def keep(self, data: bytes | memoryview, sha: Any = None) -> object:
        """Makes a payload durable where it is large; the next `write` has the row that holds it.

        Args:
            data: The payload.
            sha: A hash of `hashlib` that the payload is added to, at the same time as it is written.

        Returns:
            What a row holds in its place.
        """
        if (size := memoryview(data).nbytes) <= MOST_INSIDE:
            if sha is not None:
                sha.update(data)
            return data
        with self.translated(payloads_of(self.path), "written, so nothing may be sent"), _meanwhile(sha, data):
            file = self._opened()
            known = self._sure()
            place = known.free(size)
            statement = ("INSERT INTO outside VALUES (?, ?)", (place, size))
            self._change_to(sorted([*known.places, (place, place + size)]), statement)
            try:
                file.write(place, memoryview(data))
                file.sync()
            except BaseException:
                with contextlib.suppress(OSError):  # a full disk gets back what no row will know
                    file.cut(known.end)
                raise
        return place

    def content(self, held: object) -> object:
        """Returns the payload that a row holds, unchecked; None where its bytes are not there."""
        if not isinstance(held, int):
            return held
        found = [stop - begin for begin, stop in self._sure().places if begin == held]
        if not found:
            return None
        with self.translated(payloads_of(self.path), "read"):
            data = self._opened().read(held, found[0])
            return data if data is not None and len(data) == found[0] else None

    def overwrite(self, places: list[int]) -> None:
        """Overwrites payloads that are no longer needed; synced when it returns.

        The next `write` has the change of the rows that hold these places.
        """
        if not places:
            return
        with self.translated(payloads_of(self.path), "cleared of what it no longer needs"):
            file, known = self._opened(), self._sure()
            left = [both for both in known.places if both[0] not in places]
            self._change_to(left, *(("DELETE FROM outside WHERE place = ?", (place,)) for place in places))
            for begin, stop in set(known.places) - set(left):
                file.overwrite(begin, stop)
            file.sync()

    def write(self, *statements: Statement) -> None:
        """Writes in one transaction and syncs, as `DatabaseFile.write` does, with what was changed beside the file."""
        stamp, more = self._change or (None, ())
        super().write(*statements, *more)
        self._change = None
        if stamp is not None and self._beside is not None:
            with contextlib.suppress(OSError):  # the rows are there; only an older copy of them would be missed
                self._beside.recorded(stamp)

    def written_files(self) -> list[tuple[Path, io.FileIO | None]]:
        """Returns the files that a write goes to, by name."""
        beside = [] if self._beside is None else [(self._beside.path, self._beside.file)]
        return [*super().written_files(), *beside]

    def let_go(self) -> bool:
        """Lets go of the file, and of what is beside it; returns whether there was anything to do."""
        done = super().let_go()
        if done and self._beside is not None:
            with contextlib.suppress(OSError):
                self._beside.close()
        return done

    @classmethod
    def _create(cls, file: Path, first: Statement) -> None:
        """Makes a new file, unless the payloads of a lost one are there."""
        if os.path.lexists(beside := payloads_of(file)):
            lost = f"{file} is not there, but its payloads {beside.name} are"
            raise StorageError(f"{lost}. Put back the {file.name} that they belong to, or name another file")
        super()._create(file, first)

    def _known(self) -> _Known | None:
        """Returns what the file knows of its payloads; None where it never had any."""
        tables = self.rows("SELECT name FROM sqlite_master WHERE name IN ('beside', 'outside')")
        if not tables:
            return None
        if tables == [("outside",)]:
            told = "which say too little of themselves to be relied on. Use the version of Fulcrum that wrote them"
            raise StorageError(f"{self.path} has large payloads of format 3, {told}")
        damaged = StorageError(
            f"{self.path} is damaged: it does not say which payloads it has, and where. {self.advice}"
        )
        if len(tables) == 1:
            raise damaged
        found = self.rows("SELECT identity, changes, nonce FROM beside")
        if len(found) != 1 or tuple(map(type, found[0])) != (bytes, int, bytes):
            raise damaged
        places, end = [], FIRST_PLACE
        for place, length in self.rows("SELECT place, length FROM outside ORDER BY place"):
            if not isinstance(length, int) or place < end or length < 1:
                raise damaged
            places.append((place, end := place + length))
        identity, changes, nonce = found[0]
        return _Known(identity=identity, changes=changes, nonce=nonce, places=places)

    def _sure(self) -> _Known:
        """Returns what the file knows of its payloads, which there are."""
        if (known := self._known()) is None:
            raise StorageError(f"{self.path} is damaged: it does not know of any payloads. {self.advice}")
        return known

    def _check_alone(self) -> None:
        """Refuses whatever stands where the payloads of a file belong that never had any."""
        if os.path.lexists(path := payloads_of(self.path)):
            unknown = f"{path} is there, and {self.path.name} knows nothing of it"
            whose = f"It is another file's, or of a newer {self.path.name}. Put that back, or move {path.name} away"
            raise StorageError(f"{unknown}. {whose}")

    def _opened(self) -> PayloadFile:
        """Returns the file of payloads, opened or made when it is first needed."""
        if self._beside is None:
            known, path = self._known(), payloads_of(self.path)
            if known is None:
                self._check_alone()
                values = (secrets.token_bytes(IDENTITY_BYTES), b"")
                self.write(*_TABLES, ("INSERT INTO beside VALUES (?, 0, ?)", values))
                self.in_doubt = False  # nobody's memory but the file's
                known = self._sure()
            if known.unused and self.writable and not os.path.lexists(path):
                self._beside = PayloadFile.made(path, known.identity)
            else:
                self._beside = self._found(path, known)
        return self._beside

    def _found(self, path: Path, known: _Known) -> PayloadFile:
        """Opens the file of payloads that is there; refuses one that is not this file's, or not of the same time."""
        advice = "Move it away" if known.unused else f"Put back the one that {self.path.name} was left with"
        try:
            beside = PayloadFile.opened(path, writable=self.writable)
        except FileNotFoundError:
            raise StorageError(f"{path} is missing, with payloads of {self.path.name}. {advice}") from None
        with contextlib.ExitStack() as undo:
            undo.callback(beside.close)
            if known.unused and self.writable and beside.is_begun(known.identity):
                return PayloadFile.made(path, known.identity)
            if not beside.is_of(known.identity):
                raise StorageError(f"{path} does not hold the payloads of {self.path.name}. {advice}")
            if (age := beside.age(known.stamp)) is Age.NEWER:
                raise StorageError(self._newer())
            if beside.size < known.end:
                raise StorageError(f"{path} is cut short: it lacks payloads of {self.path.name}. {advice}")
            if age is Age.OLDER:
                raise StorageError(f"{path} is an older copy: it lacks payloads of {self.path.name}. {advice}")
            undo.pop_all()
        return beside

    def _newer(self) -> str:
        """What is said where the payloads are of a later change than this file knows, or of another one."""
        name, beside = self.path.name, payloads_of(self.path).name
        seen = f"{beside} was written last beside another state of it"
        return f"{self.path} is an older copy, or damaged: {seen}. Put back the {name} that {beside} was left with"

    def _change_to(self, places: list[tuple[int, int]], *statements: Statement) -> None:
        """Announces a change of the payloads; the next write has the statements that make it known."""
        if self._change is not None:
            raise StorageError(f"{self.path} has a payload that no row holds yet. Write that first")
        self.check_in_place()  # before the bytes go to a file that nobody will find
        self.in_doubt = True  # until the rows are written too
        changes, nonce = self._sure().changes + 1, secrets.token_bytes(_NONCE_BYTES)
        stamp = Stamp.of(changes, nonce, places)
        self._change = (stamp, (("UPDATE beside SET changes = ?, nonce = ?", (changes, nonce)), *statements))
        self._opened().intend(stamp)

    def _clear_unknown(self) -> None:
        """Clears what a crash left and no row knows."""
        if self._beside is None:
            return
        beside, known = self._beside, self._sure()
        beside.recorded(known.stamp)
        if self.overwrites:
            end = FIRST_PLACE
            for begin, stop in [*known.places, (beside.size, beside.size)]:
                if beside.holds_any(end, begin):
                    beside.overwrite(end, begin)
                    beside.sync()
                end = max(end, stop)
        if beside.size > known.end:
            beside.cut(known.end)


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
