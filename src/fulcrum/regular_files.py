"""Files in folders from other people: a pipe or a device in the place of a file is refused, not waited for.

>>> regular_file(Path("/dev/null"))
Traceback (most recent call last):
    ...
OSError: [Errno 22] it is not a regular file: '/dev/null'
"""

import errno
from pathlib import Path


def regular_file(path: Path) -> Path:
    """Returns the path of a file to read, or raises `OSError` for a pipe or a device: the reading may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path
