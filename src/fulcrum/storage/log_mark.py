"""How far the log beside an SQLite file goes, kept in the file itself: a log that lacks something is noticed.

SQLite takes the `<name>-wal` that it finds beside a file for the file's log. Where there is none, or an older one, or
one that breaks off, it goes on from what it has: a file moved without its log, opened under another of its names, or
mounted alone would forget its last writes. So the file carries a mark: whether it is whole by itself and, where it is
not, which log belongs to it, how long that is, and the checksum that its last frame has over all of it. The mark is
written and synced after the log is, and before a write counts as done. Thus a log may go further than its mark says,
by a write that was never told of; it may not fall short of it.

There are two marks, written in turns, each in a block of its own: one torn by a power cut leaves the other.

The format of a log is documented at https://sqlite.org/fileformat2.html#the_write_ahead_log.
"""

import contextlib
import functools
import hashlib
import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from fulcrum.errors import StorageError
from fulcrum.storage.files import sync_file

PAGE_BYTES = 32_768
"""Of the file: payloads are large, and this is an eighth of the pages, and of the writes, of SQLite's default."""

SCHEMA = "CREATE TABLE mark (bytes BLOB NOT NULL);"
"""The table of the marks. The first of a file: it has the second page for itself, and its one value ends that page."""

_SLOT_BYTES = 4096
_PLACE = 2 * PAGE_BYTES - 2 * _SLOT_BYTES
_FIELDS = struct.Struct(">QQQ32s24s")
_DIGEST_BYTES = 32
_HEAD_BYTES, _FRAME_HEAD_BYTES = 32, 24
_FRAME_BYTES = _FRAME_HEAD_BYTES + PAGE_BYTES
_FRAMES_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """How far a log goes.

    Attributes:
        serial: Counts the marks of a file; the highest holds.
        whole: Whether the file by itself holds everything, all of this log included.
        length: Bytes of the log.
        head: The log's header; random numbers in it tell it from every other log.
        tail: The header of its last frame, with a checksum over the whole log up to there.
    """

    serial: int = 1
    whole: bool = True
    length: int = 0
    head: bytes = bytes(_HEAD_BYTES)
    tail: bytes = bytes(_FRAME_HEAD_BYTES)

    @classmethod
    def after(cls, log: io.FileIO, *, serial: int) -> Self:
        """Returns the mark of a log as it is now."""
        length = os.fstat(log.fileno()).st_size
        head, tail = _read(log, 0, _HEAD_BYTES), _read(log, length - _FRAME_BYTES, _FRAME_HEAD_BYTES)
        if length < _HEAD_BYTES + _FRAME_BYTES or _salts(tail, 8) != _salts(head, 16) or not _commits(tail):
            raise StorageError(f"{log.name} does not end in what was written last. Open the file again")
        return cls(serial=serial, whole=False, length=length, head=head, tail=tail)

    def to_bytes(self) -> bytes:
        """Returns the mark as it is in the file."""
        fields = _FIELDS.pack(self.serial, self.whole, self.length, self.head, self.tail)
        return fields + hashlib.sha256(fields).digest()

    def write(self, file: io.FileIO) -> None:
        """Writes the mark into the file, over the one before the last, and syncs it."""
        file.seek(_PLACE + self.serial % 2 * _SLOT_BYTES)
        if file.write(data := self.to_bytes()) != len(data):
            raise StorageError(f"{file.name} cannot be written, so nothing may be sent (its mark was cut short)")
        sync_file(file.fileno(), in_place=True)

    @classmethod
    def read(cls, file: io.FileIO) -> Self | None:
        """Returns the mark that holds in a file; None where both are damaged."""
        slots = _read(file, _PLACE, 2 * _SLOT_BYTES)
        found = []
        for data in (slots[:_SLOT_BYTES], slots[_SLOT_BYTES:]):
            fields, digest = data[: _FIELDS.size], data[_FIELDS.size : _FIELDS.size + _DIGEST_BYTES]
            if hashlib.sha256(fields).digest() == digest:
                serial, whole, length, head, tail = _FIELDS.unpack(fields)
                found.append(cls(serial=serial, whole=bool(whole), length=length, head=head, tail=tail))
        return max(found, key=lambda mark: mark.serial, default=None)

    def lacking(self, log: Path) -> str | None:
        """Returns what is wrong with the log of a file that is not whole; None where it holds all that it must."""
        if not log.exists():
            return "is missing"
        with log.open("rb") as file:
            if file.read(_HEAD_BYTES) != self.head:
                return "is not the one that it was left with"
            frames, tail = (self.length - _HEAD_BYTES) // _FRAME_BYTES, b""
            sums: tuple[int, ...] | None = struct.unpack(">II", self.head[24:])
            while frames and sums is not None:
                data = file.read(min(frames, _FRAMES_AT_ONCE) * _FRAME_BYTES)
                if len(data) % _FRAME_BYTES or not data:
                    return "is cut short"
                frames -= len(data) // _FRAME_BYTES
                sums, tail = _chained(data, sums, self.head), data[-_FRAME_BYTES:][:_FRAME_HEAD_BYTES]
            if sums is None:
                return "is damaged"
        return None if tail == self.tail else "is not the one that it was left with"

    def is_foreign(self, log: Path) -> bool:
        """Returns whether what is beside a file that is whole is neither its last log nor the beginning of its next.

        A log that was begun and never marked holds one write, which changed nothing.
        """
        with contextlib.suppress(FileNotFoundError), io.FileIO(log) as file:
            head = _read(file, 0, _HEAD_BYTES)
            if len(head) < _HEAD_BYTES or _salts(head, 16) == _salts(self.head, 16):
                return False
            places = range(_HEAD_BYTES, os.fstat(file.fileno()).st_size, _FRAME_BYTES)
            frames = (_read(file, place, _FRAME_HEAD_BYTES) for place in places)
            return sum(_commits(frame) and _salts(frame, 8) == _salts(head, 16) for frame in frames) > 1
        return False


def first_value() -> bytes:
    """Returns what the table of the marks holds in a new file."""
    return b"".join(data.ljust(_SLOT_BYTES, b"\0") for data in (b"", LogMark().to_bytes()))


def _read(file: io.FileIO, place: int, size: int) -> bytes:
    file.seek(max(place, 0))
    return file.read(size) or b""


def _salts(header: bytes, place: int) -> bytes:
    return header[place : place + 8]


def _commits(frame_head: bytes) -> bool:
    return frame_head[4:8] != bytes(4)


def _chained(data: bytes, sums: tuple[int, ...], head: bytes) -> tuple[int, int] | None:
    """Returns the running checksum after some frames; None where one of them does not carry it, or is another log's."""
    frames = np.frombuffer(data, dtype=np.uint8).reshape(-1, _FRAME_BYTES)
    covered = np.concatenate([frames[:, :8], frames[:, _FRAME_HEAD_BYTES:]], axis=1)
    order = ">u4" if head[3] & 1 else "<u4"
    weights, (carry_first, carry_second) = _weights()
    parts = covered.view(order).astype(np.uint32) @ weights  # modulo 2^32, as the checksum is
    first, second = sums
    for frame, (part_first, part_second) in zip(frames, parts.tolist(), strict=True):
        first, second = (
            (carry_first[0] * first + carry_second[0] * second + part_first) % 2**32,
            (carry_first[1] * first + carry_second[1] * second + part_second) % 2**32,
        )
        header = frame[:_FRAME_HEAD_BYTES].tobytes()
        if header[8:] != head[16:24] + struct.pack(">II", first, second):
            return None
    return first, second


@functools.cache
def _weights() -> tuple[np.ndarray[Any, Any], tuple[tuple[int, int], tuple[int, int]]]:
    """Returns how the checksum of a frame depends on its words, and on the checksum before it.

    A pair of words (x, y) takes the sums (s, t) to (s + t + x, s + 2t + x + y). That is linear: after all pairs, each
    word has been multiplied as often as pairs follow it.
    """
    words = (8 + PAGE_BYTES) // 4
    weights = np.empty((words, 2), dtype=np.uint32)
    x, y = (1, 1), (0, 1)
    for place in range(words - 2, -1, -2):
        weights[place], weights[place + 1] = x, y
        x, y = (((s + t) % 2**32, (s + 2 * t) % 2**32) for s, t in (x, y))
    return weights, (((x[0] - y[0]) % 2**32, (x[1] - y[1]) % 2**32), y)
