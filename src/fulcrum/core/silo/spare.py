"""What is kept free while training runs, so that the release can be made after it: files, memory, room on the disk.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, set_aside(Path(folder), parameters=34):
...     pass  # training may use up all that is left

Training that uses up what the operating system allows, because its records are many or large, must not keep its silo
from answering: an observer would see that. What it is kept from is given back when it ends, however it ends.
"""

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fulcrum.errors import StorageError

_FILES = 32
"""Opening a ledger takes fewer than ten."""

_MEMORY = 64 * 2**20
_MEMORY_OF_A_PARAMETER = 96
"""Bytes: a release and its way to disk take 52 of Python's, and SQLite's pages a copy or two."""

_DISK = 4 * 2**20
_DISK_OF_A_PARAMETER = 4 * 8
"""Bytes: a release and its masked form, and a journal of the state that the masked form takes the place of."""


@contextlib.contextmanager
def set_aside(state: Path, *, parameters: int) -> Iterator[None]:
    """Keeps free what one release takes.

    Memory is kept as the operating system counts it for a limit of one process. It is not touched, so it takes none
    from others, and does not help where the system ends a process that has too much.

    Args:
        state: Where the silo's ledger is.
        parameters: How many numbers are released.

    Raises:
        StorageError: The disk has no room for a release even before training.
    """
    room = _room(state, _DISK + _DISK_OF_A_PARAMETER * parameters)  # first: no memory stays taken where there is none
    memory = _memory(_MEMORY + _MEMORY_OF_A_PARAMETER * parameters)
    opened = {file: _told_apart(file) for file in (room, *_open_files())}
    try:
        yield
    finally:
        for file, about in opened.items():
            with contextlib.suppress(OSError):  # training may have closed it, and opened another in its place
                if _told_apart(file) == about:
                    if file == room:
                        os.truncate(file, 0)  # a child that training forked may hold it too
                    os.close(file)
        for block in memory:
            block.close()


def _told_apart(file: int) -> tuple[int, ...]:
    """Returns what tells an open file from others; its number on the disk alone may be another's by now."""
    about = os.fstat(file)
    return about.st_dev, about.st_ino, about.st_nlink, about.st_size


def _memory(size: int) -> list[mmap.mmap]:
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


def _room(folder: Path, size: int) -> int:
    """Opens a file without a name that takes up so much of a disk."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as room:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(room.fileno(), 0, size)
            return os.dup(room.fileno())
    except OSError as error:
        raise StorageError(
            f"{folder} has no room for a release, which may take {size / 1e6:.1f} MB on its way: {error.strerror}. "
            "Make room there"
        ) from None


def _open_files() -> list[int]:
    """Opens files that are closed again when their places are needed; fewer where there is no place for so many."""
    spare: list[int] = []
    with contextlib.suppress(OSError):
        while len(spare) < _FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    return spare
