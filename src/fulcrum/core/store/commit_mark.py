"""The mark in an SQLite file that tells which rollback journal a commit needs: a lost journal is noticed.

SQLite writes the old pages into `<name>-journal`, syncs the journal, and only then writes the new pages into the file.
A process that dies meanwhile leaves a file of old and new pages, which the journal makes whole. SQLite cannot tell a
journal that is gone from a journal that was never needed, and plays back whatever valid journal it finds:

- a file that was moved, mounted or linked under another name stays half written, and rows that left may be missing;
- a journal that was cut short or damaged is played back in part;
- an old journal, put back by a backup, takes the file back to the rows of that time.

So a commit takes these steps. The first two and the last are this module's, all others are SQLite's own:

1. the journal, which holds every page that will change, is synced;
2. the mark "this commit needs the journal with this digest" is written into the file and synced;
3. SQLite syncs the journal, writes and syncs the file, and then zeroes the header of the journal: the commit is done;
4. the mark "whole" is written into the file and synced, and the journal is emptied.

An interrupted commit leaves the mark of step 2 and the journal of step 3, before or after its header was zeroed. Any
other journal is refused. `journal_mode=DELETE` cannot serve: a journal that SQLite deleted at the end of a commit, and
a journal that somebody else deleted in the middle of one, leave the same trace. `PERSIST` zeroes the header instead.

The mark has two slots, written in turns, each in a block of its own: one torn by a power cut leaves the other. It lies
in a page that no statement changes, so no journal holds it. The format of a journal is documented at
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
"""Of the file, the most that SQLite takes: payloads are large, and each page is a write of its own."""

IDENTITY_BYTES = 16
"""Of the random number that tells a file from every other file of its kind."""

SCHEMA = "CREATE TABLE mark (identity BLOB NOT NULL, bytes BLOB NOT NULL);"
"""The table of the mark. The first of a file: it has the second page for itself, and its one value ends that page."""

_SLOT_BYTES = 4096
_PLACE = 2 * PAGE_BYTES - 2 * _SLOT_BYTES
_FIELDS = struct.Struct(">QQ16s32s")
_DIGEST_BYTES = 32
_MAGIC = bytes.fromhex("d9d505f920a163d7")
_HEADER_BYTES = 28
_COUNT_END = 12  # magic and number of records, which SQLite writes last
_STEP_BYTES = 2**22


class Journal(enum.Enum):
    """How the journal beside a file stands to the file's mark."""

    UNNEEDED = "the file is whole, and the journal holds nothing that SQLite would play back"
    NEEDED = "the file may be half written, and the journal takes it back to the state before"
    LOST = "the file may be half written, and the journal that it was left with is not there"
    FOREIGN = "the file is whole, and SQLite would undo commits with the journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMark:
    """The journal that a commit under way needs, or that no commit is under way.

    Attributes:
        serial: Counts the marks of a file; the highest holds.
        length: Bytes of the journal; 0 where no commit is under way.
        header: The end of the journal's header: a random number, the pages before the commit, sizes.
        digest: SHA-256 of all that follows the header.
    """

    serial: int = 1
    length: int = 0
    header: bytes = bytes(_HEADER_BYTES - _COUNT_END)
    digest: bytes = bytes(_DIGEST_BYTES)

    @property
    def whole(self) -> bool:
        """True where no commit is under way."""
        return self.length == 0

    @classmethod
    def of_commit(cls, journal: io.FileIO, *, serial: int) -> Self:
        """Returns the mark of a commit whose old pages are in the journal, which is synced when it returns."""
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
        """Returns the mark as it is in the file."""
        fields = _FIELDS.pack(self.serial, self.length, self.header, self.digest)
        return fields + hashlib.sha256(fields).digest()

    def write(self, file: io.FileIO) -> None:
        """Writes the mark into the file, over the one before the last, and syncs it."""
        file.seek(_PLACE + self.serial % 2 * _SLOT_BYTES)
        if file.write(data := self.to_bytes()) != len(data):
            raise StorageError("storage.mark-not-written", file=file.name)
        sync_file(file.fileno(), in_place=True)

    @classmethod
    def read(cls, file: io.FileIO) -> Self | None:
        """Returns the mark that holds in a file; None where both slots are damaged."""
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
        """Returns how the journal beside the file stands to this mark; the journal is a file, or is not there."""
        if not journal.exists():
            return Journal.UNNEEDED if self.whole else Journal.LOST
        with io.FileIO(journal) as file:
            header = _read(file, _HEADER_BYTES)
            if self.whole:  # before SQLite syncs a journal, the beginning of its header is zeros
                return Journal.FOREIGN if any(header[:_COUNT_END]) else Journal.UNNEEDED
            if _digest(file, _HEADER_BYTES, self.length) != self.digest or self._records < 1:
                return Journal.LOST
            file.seek(self.length - len(_MAGIC))
            if file.read(len(_MAGIC)) == _MAGIC:  # SQLite would delete a file that the journal names
                return Journal.LOST
        if not any(header):
            return Journal.UNNEEDED  # the commit was done, or taken back
        begun = header[: len(_MAGIC)] == _MAGIC or not any(header[:_COUNT_END])
        return Journal.NEEDED if begun and header[_COUNT_END:] == self.header else Journal.LOST

    def arm(self, journal: Path) -> None:
        """Has SQLite play back every page of a journal that `judge` found to be needed.

        SQLite writes the number of pages into the header last. To play back a page that was not changed changes
        nothing; to leave out a page because that number is damaged would.
        """
        with io.FileIO(journal, "r+") as file:
            file.truncate(self.length)  # SQLite would go on with whatever else follows
            file.write(_MAGIC + struct.pack(">I", self._records))
            sync_file(file.fileno())

    @property
    def _records(self) -> int:
        """How many pages the journal holds; 0 where that is no whole number, or pages are not of our size."""
        _, _, sector, page = struct.unpack(">IIII", self.header.ljust(16, b"\0"))
        pages, rest = divmod(self.length - sector, page + 8)
        return pages if page == PAGE_BYTES and sector >= _HEADER_BYTES and rest == 0 else 0


def first_value() -> bytes:
    """Returns the value that the table of the mark has in a new file."""
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
