"""Files written whole: after a power cut a file has the old content or the new content, never a part.

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
    """Writes a file whole: the content goes to a temporary file, is synced, and then replaces the file in one step.

    Guarantees at the return:

    - file and name are synced;
    - a new file has the permissions of the process for new files; an old file keeps its permissions;
    - a private file has the permissions 600 from the first byte on, also in the place of an old file;
    - a link stays a link, and the file behind the link has the new content.

    Args:
        path: The file.
        data: The content, or a function that writes the content into an open file, to save memory for large content.
        private: True for a file that the owner alone may read, such as a key.

    Raises:
        StorageError: The file cannot be written, and is unchanged; or the file is written and the folder cannot be
            synced, so that a power cut may bring the old content back.
    """
    try:
        target, mode = _target(path)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        if private:
            mode = 0o600
        # Not chmod alone: others could open the file between its making and chmod. The kernel takes the umask off.
        at_first = 0o666 if mode is None else 0o600
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
    """Raises `StorageError` for a path that `write_whole` could not write; call it before hours of work."""
    try:
        target, _ = _target(path)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise StorageError("storage.not-writable", file=path, reason=error.strerror) from None


def _target(path: str | Path) -> tuple[Path, int | None]:
    """Returns the file behind a path, and the permissions of an old file; None for a new file."""
    target = Path(path).resolve()  # a link stays, and the file behind the link is replaced
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    if mode is not None and not target.is_file():
        what = "a folder" if target.is_dir() else "not a regular file"
        raise StorageError("storage.target-not-a-file", file=path, kind=what)
    return target, mode
