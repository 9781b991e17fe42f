"""Who holds a file: one process at a time, by one object in it, and no forked child.

A child inherits the descriptors of its parent. It lets go of the locks with them, and the parent keeps them; a write
that is under way when the process forks is waited for.
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
"""Taken while a file is opened, and while the process forks."""


class Holder(Protocol):
    """What holds a file.

    Attributes:
        lock: Taken by whoever uses the file.
        hold: The descriptor whose lock lasts as long as the file is open.
    """

    lock: threading.RLock
    hold: io.FileIO


_HOLDERS: weakref.WeakValueDictionary[tuple[int, int], Holder] = weakref.WeakValueDictionary()  # here, by inode
_READERS: weakref.WeakSet[Holder] = weakref.WeakSet()  # here, of files that are looked at
_FORKING: list[Holder] = []


def taken(file: Path, *, exclusive: bool) -> io.FileIO:
    """Takes the lock of the file's life, beside SQLite's own.

    POSIX drops SQLite's locks as soon as this process closes any other descriptor of the file, after copying it for
    example. A lock of `flock` lasts as long as its own descriptor. Windows has no such trap and needs no second lock.
    """
    if _inode(file) in _HOLDERS:  # looked up first: opening and closing the file here would drop SQLite's lock
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
    """Enters who holds a file to write to, until it is forgotten or let go."""
    _HOLDERS[_inode(file)] = holder


def remember_reader(holder: Holder) -> None:
    """Enters who holds a file to look at."""
    _READERS.add(holder)


def forget(holder: Holder) -> None:
    """Takes out who held a file."""
    with OPENING:
        for key in [key for key, one in _HOLDERS.items() if one is holder]:
            del _HOLDERS[key]


def is_named(path: Path, file: io.FileIO) -> bool:
    """Returns whether an open file is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _inode(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino


def _before_fork() -> None:
    """Waits for writes under way, so that a child does not inherit half of one."""
    OPENING.acquire()
    _FORKING.extend(_HOLDERS.values())
    for holder in _FORKING:
        holder.lock.acquire()


def _after_fork() -> None:
    while _FORKING:
        _FORKING.pop().lock.release()
    OPENING.release()


def _after_fork_in_child() -> None:
    for holder in (*_FORKING, *_READERS):
        holder.hold.close()  # or a child that outlives its parent would keep the file from being opened
    _HOLDERS.clear()
    _READERS.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
