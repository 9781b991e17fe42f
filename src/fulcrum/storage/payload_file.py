"""The file of large payloads itself: whose it is, which change of it was the last, and bytes at their places.

It begins with four blocks: the identity that the SQLite file knows too, two stamps of changes that were intended,
written in turns, and the stamp of the last change that was recorded. A change has a stamp of its own:

1. the stamp is written as intended, then the payload, and both are synced;
2. the SQLite file takes the rows of the payload, and with them the same stamp, in one transaction;
3. the stamp is written as recorded, which the next sync makes durable.

So the file of payloads can tell an interrupted change, which may be cleared, from one that an older copy of the SQLite
file has forgotten, which may not. A power cut can undo the third step, until the next change or until the file is
closed. If a copy of the SQLite file from just before the last change is put back then, that looks interrupted.
"""

import enum
import hashlib
import io
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fulcrum.errors import StorageError
from fulcrum.storage.files import sync_file, sync_folder

BLOCK_BYTES = 4096
"""Whatever is written begins on a block of its own: no write touches the block of another one."""

FIRST_PLACE = 4 * BLOCK_BYTES
"""Where the first payload begins."""

IDENTITY_BYTES = 32
"""Of the random number that a file of payloads begins with."""

_RECORDED = 3 * BLOCK_BYTES
_STEP_BYTES = 2**22
_ZEROS = memoryview(bytes(_STEP_BYTES))
_DIGEST_BYTES = 32
_STAMP = struct.Struct(f">Q{_DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Of a change of the payloads.

    Attributes:
        number: Counts the changes; 0 before the first.
        digest: Of a number drawn for the change, and of where there are payloads after it.
    """

    number: int = 0
    digest: bytes = bytes(_DIGEST_BYTES)

    @classmethod
    def of(cls, number: int, nonce: bytes, places: list[tuple[int, int]]) -> Self:
        """Returns the stamp of a change.

        Args:
            number: Counts the changes.
            nonce: Drawn for it: a copy of the files that goes its own way draws another.
            places: From where to where there are payloads after it, in order.
        """
        told = struct.pack(f">{2 * len(places)}Q", *(place for both in places for place in both))
        return cls(number=number, digest=hashlib.sha256(nonce + told).digest()) if number else cls()


class Age(enum.Enum):
    """How a file of payloads stands to the stamp that the SQLite file knows."""

    SAME = "of the same change, but for one that was interrupted"
    OLDER = "of an earlier change"
    NEWER = "of a later change, or of a copy that went its own way"


class PayloadFile:
    """An open file of payloads.

    Attributes:
        path: Where it is.
        file: The descriptor.
    """

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self.path = path
        self.file = file
        self._unsynced = False

    @classmethod
    def opened(cls, path: Path, *, writable: bool) -> Self:
        """Opens a file that is there; one to write to must be a plain file of one name."""
        about = path.lstat() if writable else path.stat()
        if not stat.S_ISREG(about.st_mode):
            what = "a link" if stat.S_ISLNK(about.st_mode) else "no file"
            raise StorageError(f"{path} is {what}. Put the file itself there")
        if writable and about.st_nlink > 1:
            raise StorageError(f"{path} has another name, under which it could be written to. Remove that name")
        try:
            return cls(path, io.FileIO(path, "r+" if writable else "r"))
        except PermissionError:
            closed = "read-only" if writable else "unreadable"
            raise StorageError(f"{path} is {closed} for this user. Change its permissions") from None

    @classmethod
    def made(cls, path: Path, identity: bytes) -> Self:
        """Makes a file that holds no payload yet, for its owner's eyes alone; synced when it returns.

        What a crash left of making it, and nothing else, is written over.
        """
        if os.path.lexists(path):
            found = cls.opened(path, writable=True)
        else:
            found = cls(path, io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, 0o600)))
        try:
            found.write(0, memoryview(identity.ljust(FIRST_PLACE, b"\0")))
            found.sync()
            sync_folder(path.parent)
        except BaseException:
            found.file.close()
            raise
        return found

    @property
    def size(self) -> int:
        """Its bytes."""
        return os.fstat(self.file.fileno()).st_size

    def is_of(self, identity: bytes) -> bool:
        """Returns whether it begins with this identity."""
        return self.read(0, IDENTITY_BYTES) == identity

    def is_begun(self, identity: bytes) -> bool:
        """Returns whether it is what a crash leaves of a file being made: a beginning of the identity, then zeros."""
        data = self.read(0, FIRST_PLACE + 1) or b""
        written = data[:IDENTITY_BYTES].rstrip(b"\0")
        return len(data) <= FIRST_PLACE and identity.startswith(written) and not any(data[IDENTITY_BYTES:])

    def age(self, known: Stamp) -> Age:
        """Returns how it stands to the stamp that the SQLite file knows."""
        intended = [self._stamp(BLOCK_BYTES), self._stamp(2 * BLOCK_BYTES)]
        last, before = sorted(intended, key=lambda stamp: stamp.number, reverse=True)
        interrupted = last.number == known.number + 1 and before == known and self._stamp(_RECORDED) != last
        if last == known or interrupted:
            return Age.SAME
        return Age.OLDER if last.number < known.number else Age.NEWER

    def intend(self, stamp: Stamp) -> None:
        """Writes the stamp of a change before it is made; what syncs the change syncs it too."""
        self._write_stamp(BLOCK_BYTES * (1 + stamp.number % 2), stamp)

    def recorded(self, stamp: Stamp) -> None:
        """Writes the stamp of a change that the SQLite file holds; the next sync makes it durable."""
        if self._stamp(_RECORDED) != stamp:
            self._write_stamp(_RECORDED, stamp)
            self._unsynced = True

    def read(self, place: int, length: int) -> bytes | None:
        """Returns the bytes at a place; fewer where the file ends."""
        self.file.seek(place)
        return self.file.read(length)

    def write(self, place: int, data: memoryview) -> None:
        """Writes bytes at a place."""
        self.file.seek(place)
        left = data.cast("B")
        while left:
            left = left[self.file.write(left[:_STEP_BYTES]) or 0 :]

    def overwrite(self, begin: int, end: int) -> None:
        """Writes zeros from one place to another."""
        for place in range(begin, end, _STEP_BYTES):
            self.write(place, _ZEROS[: end - place])

    def holds_any(self, begin: int, end: int) -> bool:
        """Returns whether there is anything but zeros from one place to another."""
        self.file.seek(begin)
        left = end - begin
        while left > 0 and (data := self.file.read(min(left, _STEP_BYTES))):
            if data.count(0) != len(data):
                return True
            left -= len(data)
        return False

    def cut(self, end: int) -> None:
        """Cuts off all that is after a place; synced when it returns."""
        self.file.truncate(end)
        self.sync()

    def sync(self) -> None:
        """Makes durable what was written."""
        sync_file(self.file.fileno())
        self._unsynced = False

    def close(self) -> None:
        """Lets the file go, what was recorded synced where the disk allows it."""
        try:
            if self._unsynced:
                self.sync()
        finally:
            self.file.close()

    def _stamp(self, place: int) -> Stamp:
        """Returns the stamp at a place; the first of all where there is none, or a torn one."""
        data = self.read(place, _STAMP.size + _DIGEST_BYTES) or b""
        fields = data[: _STAMP.size]
        if hashlib.sha256(fields).digest() != data[_STAMP.size :]:
            return Stamp()
        number, digest = _STAMP.unpack(fields)
        return Stamp(number=number, digest=digest)

    def _write_stamp(self, place: int, stamp: Stamp) -> None:
        fields = _STAMP.pack(stamp.number, stamp.digest)
        self.write(place, memoryview(fields + hashlib.sha256(fields).digest()))
