"""Syncs files and folders to the disk, so that a power cut loses no earlier write."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

if sys.platform == "darwin":
    import fcntl

_SYNC_SECONDS = 0.004


def sync_file(handle: int, *, in_place: bool = False) -> None:
    """Syncs the writes to a file.

    Args:
        handle: The descriptor of the file.
        in_place: True if bytes were overwritten and neither size nor mode changed: the system then syncs data alone.
    """
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync of macOS leaves data in the cache of the drive
    elif in_place and sys.platform != "win32":
        os.fdatasync(handle)
    else:
        os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder; Windows cannot, and does nothing."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def synced_meanwhile(handle: int) -> Iterator[None]:
    """Syncs a file in a thread, every few milliseconds, while the block writes to the file.

    SQLite hands all pages of a commit to the system and syncs at the end. With syncs in between, the disk works from
    the first page on: a commit of 80 MB takes a fifth less time. Use only where a power cut may leave any part of the
    writes on the disk, as a commit that a journal can take back. A failed sync raises `OSError` after the block.
    """
    done, failures = threading.Event(), []

    def sync() -> None:
        try:
            while not done.wait(_SYNC_SECONDS):
                sync_file(handle, in_place=True)
        except OSError as error:  # an old system reports a failure once: SQLite's own sync might not see the failure
            failures.append(error)

    with running_thread(sync):
        try:
            yield
        finally:
            done.set()
    if failures:
        raise failures[0]


@contextlib.contextmanager
def running_thread(work: Callable[[], object]) -> Iterator[bool]:
    """Runs `work` in a thread during the block, then joins the thread; yields False if no thread can be started."""
    thread = threading.Thread(target=work)
    try:
        thread.start()
    except RuntimeError:
        yield False
        return
    try:
        yield True
    finally:
        thread.join()
