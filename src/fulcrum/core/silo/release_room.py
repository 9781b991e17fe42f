"""Room on the disk that is kept free while training runs, so that the release can be stored after it.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, room_for_release(Path(folder), parameters=34):
...     pass  # training may fill the disk

A process of its own bounds what training does to the silo's memory and files, but not what it writes to a disk that
both share.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fulcrum.errors import StorageError

_DISK = 4 * 2**20
_DISK_OF_A_PARAMETER = 4 * 8
"""Bytes: a release and its masked form, and a journal of the state that the masked form takes the place of."""


@contextlib.contextmanager
def room_for_release(state: Path, *, parameters: int) -> Iterator[None]:
    """Keeps room for one release on the disk of a silo's ledger.

    Args:
        state: The folder of the silo's ledger.
        parameters: The number of coordinates of a release.

    Raises:
        StorageError: The disk has no room for a release even before training.
    """
    room = _open_room(state, _DISK + _DISK_OF_A_PARAMETER * parameters)
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


def _open_room(folder: Path, size: int) -> int:
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
