"""Files that are written whole and last: what is there after a power cut is the old content or the new, never half.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_whole(f"{folder}/plan.json", b"{}")
...     Path(f"{folder}/plan.json").read_bytes()
b'{}'
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from fulcrum.core.store.disk_sync import sync_file, sync_folder
from fulcrum.errors import StorageError


def write_whole(path: str | Path, data: bytes | Callable[[IO[bytes]], object], *, private: bool = False) -> None:
    """Writes a file so that it is there whole or not at all; what stood there stays until then. Synced when it returns.

    A new file gets the permissions that the process gives to new files, one that stood there keeps its own. A private
    one is for its owner's eyes alone, whatever stood there.

    Args:
        path: The file.
        data: What it holds, or what writes that into a file: large content then need not be in memory twice.
        private: Whether it is for its owner's eyes alone.
    """
    try:
        target, mode = _target(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        if private:
            mode = 0o600
        at_first = 0o666 if mode is None else 0o600  # the kernel takes the umask off
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, at_first)) as file:
            try:
                if mode is not None:
                    temporary.chmod(mode)
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                file.flush()
                sync_file(file.fileno())
                file.close()
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise StorageError("storage.write-failed", file=path, reason=error.strerror) from None
    try:
        sync_folder(target.parent)
    except OSError as error:
        raise StorageError("storage.folder-not-synced", file=path, reason=error.strerror) from None


def check_writable(path: str | Path) -> None:
    """Raises `StorageError` where `write_whole` would, so that nobody waits for what cannot be written in the end."""
    try:
        target, _ = _target(path)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise StorageError("storage.not-writable", file=path, reason=error.strerror) from None


def _target(path: str | Path) -> tuple[Path, int | None]:
    """Returns the file that is written, and the permissions of the one that stands there; None where none does."""
    target = Path(path).resolve()  # a link stays, and what it points to is written
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    if mode is not None and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"
        raise StorageError("storage.target-not-a-file", file=path, kind=what)
    return target, mode
