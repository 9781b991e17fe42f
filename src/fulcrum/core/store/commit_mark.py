"""The mark in an SQLite file that names the rollback journal of a commit, so that a lost journal is detected.

SQLite writes the old pages into `<name>-journal`, syncs the journal, and only then writes the new pages into the file.
A process that dies meanwhile leaves a file of old and new pages, and the journal makes the file whole again. SQLite
cannot distinguish a lost journal from a journal that was never needed, and plays back any valid journal:

- a file that was moved, mounted or linked under a new name stays half written: the ledger may forget a sent release;
- a journal that was cut short or damaged is played back in part;
- an old journal, restored by a backup, takes the file back to the rows of that time.

A commit therefore takes four steps. This module adds the steps 1, 2 and 4; SQLite takes step 3:

1. the journal, which holds every page that will change, is synced;
2. the mark "this commit needs the journal with this digest" is written into the file and synced;
3. SQLite syncs the journal, writes and syncs the file, and then zeroes the header of the journal: the commit is done;
4. the mark "whole" is written into the file and synced, and the journal is emptied.

An interrupted commit leaves the mark of step 2 and the journal of step 3, before or after the header was zeroed. Any
other journal is refused. `journal_mode=DELETE` is no alternative: SQLite's deletion at the end of a commit, and a
stranger's deletion in the middle of a commit, leave the same trace. `PERSIST` zeroes the header instead.

The mark has two slots in separate blocks of the disk, written in turns: a power cut tears at most one slot. No
statement changes the page of the mark, so no journal holds the mark. The format of a journal is documented at
https://sqlite.org/fileformat2.html#the_rollback_journal.
"""

import enum
import hashlib
import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fulcrum.core.store.disk_sync import sync_file
from fulcrum.errors import StorageError

PAGE_BYTES = 65_536
"""The size of a page, the largest that SQLite allows: payloads are large, and every page is a separate write."""

IDENTITY_BYTES = 16
"""The length of the random number that distinguishes a file from all files of the same kind."""

SCHEMA = "CREATE TABLE mark (identity BLOB NOT NULL, bytes BLOB NOT NULL);"
"""The table of the mark, the first table of a file: the table owns the second page, and its value ends the page."""

_SLOT_BYTES = 4096
_PLACE = 2 * PAGE_BYTES - 2 * _SLOT_BYTES
_FIELDS = struct.Struct(">QQ16s32s")
_DIGEST_BYTES = 32
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER_BYTES = 28
_COUNT_END = 12  # magic and number of records, which SQLite writes last
_STEP_BYTES = 2**22


class Journal(enum.Enum):
    """The states of SQLite's rollback journal, the file `<name>-journal`, as judged by the file's commit mark."""

    UNNEEDED = "the file is whole, and the journal holds nothing that SQLite would play back"
    NEEDED = "the file may be half written, and the journal takes it back to the state before"
    LOST = "the file may be half written, and the journal that it was left with is not there"
    FOREIGN = "the file is whole, and SQLite would undo commits with the journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMark:
    """A description of the journal that a running commit needs; or the statement that no commit is running.

    Attributes:
        serial: The number of the mark in the file; the mark with the highest serial is valid.
        length: The bytes of the journal; 0 if no commit is running.
        header: The end of the journal's header: a random number, the pages before the commit, sizes.
        digest: SHA-256 of the journal after the header.
    """

    serial: int = 1
    length: int = 0
    header: bytes = bytes(_HEADER_BYTES - _COUNT_END)
    digest: bytes = bytes(_DIGEST_BYTES)

    @property
    def whole(self) -> bool:
        """True if no commit is running."""
        return self.length == 0

    @classmethod
    def of_commit(cls, journal: io.FileIO, *, serial: int) -> Self:
        """Syncs the journal with the old pages of a commit, and returns the mark of the commit.

        Raises:
            StorageError: The journal holds no whole page.
        """
        length = os.fstat(journal.fileno()).st_size
        header = _read(journal, _HEADER_BYTES)
        mark = cls(
            serial=serial, length=length, header=header[_COUNT_END:], digest=_digest(journal, _HEADER_BYTES, length)
        )
        if len(header) < _HEADER_BYTES or mark._records < 1:
            raise StorageError("storage.journal-without-pages", file=journal.name)
        sync_file(journal.fileno())
        return mark

    def next_whole(self) -> "CommitMark":
        """Returns the mark after a commit."""
        return CommitMark(serial=self.serial + 1)

    def to_bytes(self) -> bytes:
        """Returns the bytes of the mark in the file."""
        fields = _FIELDS.pack(self.serial, self.length, self.header, self.digest)
        return fields + hashlib.sha256(fields).digest()

    def write(self, file: io.FileIO) -> None:
        """Writes the mark into the file, over the last mark but one, and syncs the file."""
        file.seek(_PLACE + self.serial % 2 * _SLOT_BYTES)
        if file.write(data := self.to_bytes()) != len(data):
            raise StorageError("storage.mark-not-written", file=file.name)
        sync_file(file.fileno(), in_place=True)

    @classmethod
    def read(cls, file: io.FileIO) -> Self | None:
        """Returns the valid mark of a file; None if both slots are damaged."""
        file.seek(_PLACE)
        slots = file.read(2 * _SLOT_BYTES) or b""
        marks = []
        for data in (slots[:_SLOT_BYTES], slots[_SLOT_BYTES:]):
            fields, digest = data[: _FIELDS.size], data[_FIELDS.size : _FIELDS.size + _DIGEST_BYTES]
            if hashlib.sha256(fields).digest() == digest:
                serial, length, header, body = _FIELDS.unpack(fields)
                marks.append(cls(serial=serial, length=length, header=header, digest=body))
        return max(marks, key=lambda mark: mark.serial, default=None)

    def judge(self, journal: Path) -> Journal:
        """Returns the relation of the journal beside the file to this mark; `journal` is a regular file, or missing."""
        if not journal.exists():
            return Journal.UNNEEDED if self.whole else Journal.LOST
        with io.FileIO(journal) as file:
            header = _read(file, _HEADER_BYTES)
            if self.whole:  # the header of a journal begins with zeros until SQLite syncs the journal
                return Journal.FOREIGN if any(header[:_COUNT_END]) else Journal.UNNEEDED
            if _digest(file, _HEADER_BYTES, self.length) != self.digest or self._records < 1:
                return Journal.LOST
            file.seek(self.length - len(_MAGIC))
            if file.read(len(_MAGIC)) == _MAGIC:  # a super-journal's name: SQLite would delete the named file
                return Journal.LOST
        if not any(header):
            return Journal.UNNEEDED  # the commit was finished, or taken back
        # A crash may tear the writing, or the zeroing, of the header. The digest has identified the journal.
        full = _MAGIC + header[len(_MAGIC) : _COUNT_END] + self.header
        return (
            Journal.NEEDED
            if all(byte in (0, whole) for byte, whole in zip(header, full, strict=True))
            else Journal.LOST
        )

    def arm(self, journal: Path) -> None:
        """Prepares a journal that `judge` calls needed: SQLite will play back every page of the journal.

        SQLite writes the number of pages into the header last, so a crash may leave a wrong number. Playing back an
        unchanged page is harmless; leaving out a changed page would leave the file half written.
        """
        with io.FileIO(journal, "r+") as file:
            file.truncate(self.length)  # SQLite would also play back pages that a stranger appended
            file.write(_MAGIC + struct.pack(">I", self._records) + self.header)
            sync_file(file.fileno())

    @property
    def _records(self) -> int:
        """The number of pages in the journal; 0 for a part of a page, or for pages of another size than the file's."""
        _, _, sector, page = struct.unpack(">IIII", self.header.ljust(16, b"\0"))
        pages, rest = divmod(self.length - sector, page + 8)
        return pages if page == PAGE_BYTES and sector >= _HEADER_BYTES and rest == 0 else 0


def first_value() -> bytes:
    """Returns the value of the mark's table in a new file."""
    return b"".join(data.ljust(_SLOT_BYTES, b"\0") for data in (b"", CommitMark().to_bytes()))


def _read(file: io.FileIO, size: int) -> bytes:
    file.seek(0)
    return file.read(size) or b""


def _digest(file: io.FileIO, begin: int, end: int) -> bytes:
    sha = hashlib.sha256()
    file.seek(begin)
    while begin < end and (data := file.read(min(end - begin, _STEP_BYTES))):
        sha.update(data)
        begin += len(data)
    return sha.digest() if begin >= end else b""
