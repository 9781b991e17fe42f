"""Room on the disk and in memory that is reserved before training, so that a release can be made and stored afterwards.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     later = Path(folder, "lille.room")
...     with room_for_release(later, parameters=34, releases=3):
...         later.stat().st_size  # training may fill the disk: two more releases have their room
33856

A silo that cannot store its release stays silent, and a silence that depends on training tells an observer about the
silo's records. A separate process bounds the memory and the open files of training, but not the bytes that training
writes to the disk of the ledger. A file with a name reserves the room of all later releases and outlives the process. A
file without a name reserves the room of the present release; room and inode are free again after training.
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
"""Bytes: a release, the masked form, and the journal of the state that the masked form replaces.

The spare bytes are for stores that grow page by page: a round may take one or two pages more than its share.
"""

_PAGE = 2**16
_RECORDS = 2**13 + 2**13
"""Bytes: the last page of a release in the ledger, at worst half full; the entry of the release; and the silo's own log
of a round with one alarm, because a log beside the ledger grows after training has filled the disk."""

_BLOCK = 2**12
"""Bytes: the block of most file systems."""

_FILES = 32
"""Places for open files: opening a ledger takes fewer than ten."""

_MEMORY = 64 * 2**20
_MEMORY_OF_A_PARAMETER = 96
"""Bytes: Python needs 52 for a parameter of a release on the way to disk, and SQLite copies pages once or twice."""


@contextlib.contextmanager
def room_for_release(later: Path, *, parameters: int, releases: int) -> Iterator[None]:
    """Reserves room for the present release and all later releases on the disk of a silo's ledger.

    Args:
        later: The file beside the ledger that reserves the room of the later releases.
        parameters: The number of coordinates of a release.
        releases: The number of releases that the plan has left, the present release included.

    Raises:
        StorageError: The disk is too small already before training. The refusal depends on no record of the silo.
    """
    later_bytes = (releases - 1) * (8 * parameters + min(8 * parameters, _PAGE) + _RECORDS)
    room = _open_room(later, later_bytes, _DISK + _DISK_OF_A_PARAMETER * parameters)
    identity = file_identity(room)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # training in this process may have closed the file and opened another
            if file_identity(room) == identity:
                os.truncate(room, 0)  # closing is not enough: a child that training forked may hold the file too
                os.close(room)


def file_identity(file: int) -> tuple[int, ...]:
    """Returns the numbers that identify an open file; a new file may have the inode number of a deleted file."""
    about = os.fstat(file)
    return about.st_dev, about.st_ino, about.st_nlink, about.st_size


def _open_room(later: Path, later_bytes: int, size: int) -> int:
    """Reserves the room of later releases in a named file, and opens a nameless file of the present release's size."""
    before = later.stat().st_size if later.exists() else 0
    try:
        _resize(later, later_bytes)
        with tempfile.TemporaryFile(dir=later.parent, buffering=0) as room:
            _take_up(room.fileno(), size)
            _take_up_spare(room.fileno(), size, _SPARE)
            return os.dup(room.fileno())
    except (OSError, OverflowError) as error:
        with contextlib.suppress(OSError, OverflowError):
            _resize(later, min(before, later_bytes))  # gives back the room of a disk that is too small
        needed, reason = (later_bytes + size) / 1e6, getattr(error, "strerror", error)
        raise StorageError("storage.room-missing", folder=later.parent, megabytes=needed, reason=reason) from None


def _resize(file: Path, size: int) -> None:
    """Makes a file take up `size` bytes of the disk; removes the file for size 0."""
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


def _take_up(file: int, size: int, begin: int = 0) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, begin, size)


def _take_up_spare(file: int, begin: int, spare: int) -> None:
    """Makes a file take up as many spare bytes as the disk has, in halves.

    All or nothing would lose the whole spare to the few bytes by which a log has grown since the last round: training
    would fill the rest of the disk, and the next few bytes would silence the silo.
    """
    piece = spare
    while spare > 0 and piece >= _BLOCK:
        try:
            _take_up(file, piece, begin)
            begin, spare = begin + piece, spare - piece
        except OSError:
            piece //= 2


@contextlib.contextmanager
def memory_for_release(parameters: int) -> Iterator[None]:
    """Reserves the memory and the places for open files that one release needs.

    The memory counts against the limit of the process but is never touched. So the reservation takes no memory from
    other processes, and does not help if the operating system kills a process for the memory of the whole machine.
    """
    memory = blocks_of_memory(_MEMORY + _MEMORY_OF_A_PARAMETER * parameters)
    opened = {file: file_identity(file) for file in _open_files()}
    try:
        yield
    finally:
        for file, identity in opened.items():
            with contextlib.suppress(OSError):  # training may have closed the file and opened another in its place
                if file_identity(file) == identity:
                    os.close(file)
        for block in memory:
            block.close()


def blocks_of_memory(size: int) -> list[mmap.mmap]:
    """Returns blocks of memory of `size` bytes in total, or as much as the process may have."""
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
    """Opens `_FILES` files, or as many as the process may have; closing the files frees their places."""
    spare: list[int] = []
    with contextlib.suppress(OSError):
        while len(spare) < _FILES:
            spare.append(os.open(os.devnull, os.O_RDONLY))
    return spare
