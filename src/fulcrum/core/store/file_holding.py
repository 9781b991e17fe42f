"""Locks on files: one process at a time holds a file, by one object, and never a forked child.

A forked child inherits the descriptors of the parent, and so the parent's locks. The child closes the descriptors; the
parent keeps the locks. A fork waits for the end of a write, so that no child inherits half a write.
"""

import io
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import Protocol

from fulcrum.errors import FileInUseError

if sys.platform != "win32":
    import fcntl

OPENING = threading.RLock()
"""The lock for opening a file and for forking the process."""


class Holder(Protocol):
    """An object that holds a file.

    Attributes:
        lock: The lock for every use of the file.
        hold: The descriptor of the file; the file's lock lasts until the descriptor is closed.
    """

    lock: threading.RLock
    hold: io.FileIO


_HOLDERS: weakref.WeakValueDictionary[tuple[int, int], Holder] = (
    weakref.WeakValueDictionary()
)  # of this process, by inode
_FORKING: list[Holder] = []


def lock_file(file: Path, *, exclusive: bool) -> io.FileIO:
    """Opens and locks a file until the descriptor is closed, in addition to SQLite's own lock.

    POSIX drops SQLite's locks as soon as the process closes any other descriptor of the file, for example after a copy.
    A lock of `flock` lasts as long as the descriptor of the lock. Windows needs no second lock.

    Raises:
        FileInUseError: This process or another process holds the file, or another file has taken the name meanwhile.
    """
    # Looked up before the file is opened: closing a second descriptor would drop SQLite's lock in this process.
    if _inode(file) in _HOLDERS:
        raise FileInUseError("storage.open-here", file=file)
    hold = io.FileIO(file, "r+" if exclusive else "r")
    if sys.platform != "win32":
        try:
            fcntl.flock(hold, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.close()
            raise FileInUseError("storage.file-in-use", file=file) from None
        except OSError:
            hold.close()
            raise
    if not is_named(file, hold):
        hold.close()
        raise FileInUseError("storage.file-replaced", file=file)
    return hold


def remember(file: Path, holder: Holder) -> None:
    """Enters the holder of a file opened to write, until `forget` or the holder's end."""
    _HOLDERS[_inode(file)] = holder


def forget(holder: Holder) -> None:
    """Removes the holder of a file."""
    with OPENING:
        for key in [key for key, entry in _HOLDERS.items() if entry is holder]:
            del _HOLDERS[key]


def is_named(path: Path, file: io.FileIO) -> bool:
    """Returns True if an open file is still the file at `path`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _inode(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino


def _before_fork() -> None:
    """Waits for the end of every write, so that a child does not inherit half a write."""
    OPENING.acquire()
    _FORKING.extend(_HOLDERS.values())
    for holder in _FORKING:
        holder.lock.acquire()


def _after_fork() -> None:
    while _FORKING:
        _FORKING.pop().lock.release()
    OPENING.release()


def _after_fork_in_child() -> None:
    for holder in _FORKING:
        holder.hold.close()  # a child that outlives the parent would otherwise keep the file locked
    _HOLDERS.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
