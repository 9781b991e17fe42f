"""Files that forget what they no longer need: what is overwritten is gone from the file and from its log.

The content of releases and the secrets of a masked round are such. What was erased may still be in a copy of the file,
in a snapshot of the disk, or in cells that a drive has set aside.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from fulcrum.errors import StorageError
from fulcrum.storage.database import PathLike, Statement
from fulcrum.storage.payloads import FileWithPayloads


class ErasingFile(FileWithPayloads):
    """A file held and connected to, in which deleted content is overwritten; made by `erasing`."""

    overwrites = True
    lost: ClassVar[str]
    """What is lost with the file, in words."""

    @classmethod
    def check_file(cls, file: Path, *, writable: bool) -> None:
        """Refuses what is not there, is no file, is empty, or cannot be written to where it must be."""
        try:
            super().check_file(file, writable=writable)
        except FileNotFoundError:
            raise StorageError(f"{file} is not there, and with it {cls.lost}. {cls.advice}") from None

    @classmethod
    @contextlib.contextmanager
    def erasing(cls, path: PathLike, first: Statement | None) -> Iterator[Self]:
        """Opens a file to write to, as `writing` does."""
        with cls.writing(path, first) as file:
            file.connection.execute("PRAGMA secure_delete=ON")
            yield file

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keeps other threads out, and refuses where the file cannot be relied on."""
        with self.lock:
            if self.closed or self.in_doubt or os.getpid() != self.process:
                raise StorageError(f"{self.path} is closed, was opened before a fork, or failed a write. Open it again")
            yield

    def write(self, *statements: Statement, erase: bool = False) -> None:
        """Writes in one transaction; synced when it returns. Nothing is kept in memory that could disagree with it.

        Args:
            statements: What is written.
            erase: Also folds in and empties the log, which otherwise keeps what was overwritten. Where that fails the
                writes are kept, and opening the file again empties the log.
        """
        super().write(*statements)
        if erase:
            with self.translated(self.path, "cleared of what it no longer needs"):
                self.fold_log()
                self.begin_log()
        self.in_doubt = False
