"""Syncs files and folders to the disk, so that a power cut loses nothing that was written before."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

_SYNC_SECONDS = 0.004


def sync_file(handle: int, *, in_place: bool = False) -> None:
    """Syncs what was written to a file; `in_place` where it was written over and neither size nor mode changed."""
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # past the cache of the drive
    elif in_place and sys.platform != "win32":
        os.fdatasync(handle)
    else:
        os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder, where the system can."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def synced_meanwhile(handle: int) -> Iterator[None]:
    """Syncs a file again and again while the block writes to it, so that the disk does not wait for the last write.

    SQLite hands all pages of a commit to the system and then syncs: at 80 MB the commit takes a fifth less time so.
    Only for writes that may reach the disk in any order.
    """
    done, failures = threading.Event(), []

    def sync() -> None:
        try:
            while not done.wait(_SYNC_SECONDS):
                sync_file(handle, in_place=True)
        except OSError as error:  # an old system might not report the failure to the next sync
            failures.append(error)

    thread = threading.Thread(target=sync)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        yield
        return
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]
