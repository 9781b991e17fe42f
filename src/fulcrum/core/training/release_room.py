"""Room on the disk and in memory that is kept from training, so that releases can be made and stored after it.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     later = Path(folder, "lille.room")
...     with room_for_release(later, parameters=34, releases=3):
...         later.stat().st_size  # training may fill the disk: two more releases have their room
17472

A process of its own bounds what training does to the silo's memory and files, but not what it writes to a disk that
both share. What a release takes for good is kept in a file with a name, which outlives the process; what it takes on
its way is kept in a file without one, whose room, and whose place among the files of the disk, is free again when
training is over.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fulcrum.errors import StorageError

_DISK = _SPARE = 2 * 2**20
_DISK_OF_A_PARAMETER = 4 * 8
"""Bytes: a release and its masked form, and a journal of the state that the masked form takes the place of.

The spare is for records that grow page by page: a round may take a page or two more than its share.
"""

_PAGE = 2**16
_RECORDS = 2**13
"""Bytes: the last page of a release in the ledger, which is full by half at worst, and what is recorded beside it."""


_FILES = 32
"""Places for open files: opening a ledger takes fewer than ten."""

_MEMORY = 64 * 2**20
_MEMORY_OF_A_PARAMETER = 96
"""Bytes: a release and its way to disk take 52 of Python's, and SQLite's pages a copy or two."""


@contextlib.contextmanager
def room_for_release(later: Path, *, parameters: int, releases: int) -> Iterator[None]:
    """Keeps room for one release on the disk of a silo's ledger, and for the releases after it.

    Args:
        later: The file that keeps the room of the releases after this one, beside the ledger.
        parameters: The number of coordinates of a release.
        releases: How many releases the plan has left, this one among them.

    Raises:
        StorageError: The disk has no room for them even before training.
    """
    kept = (releases - 1) * (8 * parameters + min(8 * parameters, _PAGE) + _RECORDS)
    room = _open_room(later, kept, _DISK + _DISK_OF_A_PARAMETER * parameters)
    identity = file_identity(room)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # training in this process may have closed it, and opened another
            if file_identity(room) == identity:
                os.truncate(room, 0)  # a child that such training forked may hold it too
                os.close(room)


def file_identity(file: int) -> tuple[int, ...]:
    """Returns the numbers that tell an open file from others; its number on the disk alone may be another's by now."""
    about = os.fstat(file)
    return about.st_dev, about.st_ino, about.st_nlink, about.st_size


def _open_room(later: Path, kept: int, size: int) -> int:
    """Has a file keep the room of later releases, and opens one without a name that takes up the room of this one."""
    before = later.stat().st_size if later.exists() else 0
    try:
        _resize(later, kept)
        with tempfile.TemporaryFile(dir=later.parent, buffering=0) as room:
            try:
                _take_up(room.fileno(), size + _SPARE)
            except OSError:
                _take_up(room.fileno(), size)
            return os.dup(room.fileno())
    except (OSError, OverflowError) as error:
        with contextlib.suppress(OSError, OverflowError):
            _resize(later, min(before, kept))  # what was taken of a disk that is too small
        raise StorageError(
            "storage.room-missing",
            folder=later.parent,
            megabytes=(kept + size) / 1e6,
            reason=getattr(error, "strerror", error),
        ) from None


def _resize(file: Path, size: int) -> None:
    """Has a file take up so much of a disk; none where that is nothing."""
    if not size:
        file.unlink(missing_ok=True)
        return
    room = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(room).st_size < size:
            _take_up(room, size)
        os.truncate(room, size)
    finally:
        os.close(room)


def _take_up(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)


@contextlib.contextmanager
def memory_for_release(parameters: int) -> Iterator[None]:
    """Keeps free the memory and the places for open files that one release takes.

    Memory is kept as the operating system counts it for a limit of one process. It is not touched, so it takes none
    from others, and does not help where the system ends a process that has too much.
    """
    memory = blocks_of_memory(_MEMORY + _MEMORY_OF_A_PARAMETER * parameters)
    opened = {file: file_identity(file) for file in _open_files()}
    try:
        yield
    finally:
        for file, identity in opened.items():
            with contextlib.suppress(OSError):  # training may have closed it, and opened another in its place
                if file_identity(file) == identity:
                    os.close(file)
        for block in memory:
            block.close()


def blocks_of_memory(size: int) -> list[mmap.mmap]:
    """Returns blocks of memory of a size in all; less where there is not so much."""
    blocks: list[mmap.mmap] = []
    piece = size
    while size > 0 and piece >= mmap.PAGESIZE:
        try:
            blocks.append(mmap.mmap(-1, piece))
            size -= piece
        except (OSError, MemoryError):
            piece //= 2
    return blocks


def _open_files() -> list[int]:
    """Opens files that are closed again when their places are needed; fewer where there is no place for so many."""
    spare: list[int] = []
    with contextlib.suppress(OSError):
        while len(spare) < _FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    return spare
