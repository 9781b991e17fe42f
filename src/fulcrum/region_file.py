"""The file beneath a region: its format, and that it is bound to one region and plan.

What a region takes in and sends up is in `fulcrum.regional`, which is the module to use. How the file is held, synced
and copied is in `fulcrum.database_file`.
"""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from fulcrum.database_file import DatabaseFile, PathLike, Statement
from fulcrum.errors import ExchangeError, LedgerError

FORMAT = 1
"""Of the file."""

_SCHEMA = """
CREATE TABLE region (name TEXT NOT NULL, plan TEXT NOT NULL, layout BLOB);
CREATE TABLE release (
    round INTEGER NOT NULL, silo TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB, PRIMARY KEY (round, silo)
);
CREATE TABLE answer (round INTEGER PRIMARY KEY, status TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB NOT NULL);
"""


class RegionFile(DatabaseFile):
    """The file of a region, held and connected to; made by `bound`."""

    application = 0x46554C52  # "FULR"
    version = FORMAT
    schema = _SCHEMA

    @classmethod
    def bound(cls, path: PathLike, *, region: str, plan_digest: str) -> Self:
        """Opens the file of a region under a plan, creating it where there is none."""
        with cls.writing(path, ("INSERT INTO region VALUES (?, ?, NULL)", (region, plan_digest))) as file:
            file.connection.execute("PRAGMA secure_delete=ON")  # releases are overwritten once their sum is there
            if file.connection.execute("SELECT name, plan FROM region").fetchall() != [(region, plan_digest)]:
                raise ExchangeError(f"{file.path} is that of another region or plan than {region!r} under this one")
        return file

    @classmethod
    def check_held(cls, file: Path, hold: io.FileIO) -> None:
        """Refuses what does not begin as an SQLite file does, an empty file too."""
        if hold.read(16) != b"SQLite format 3\0":
            raise LedgerError(f"{file} is not the file of a region, or its first bytes are damaged")

    @classmethod
    def check_kind(cls, file: Path, application: int, version: int) -> None:
        """Refuses what is not the file of a region of this format."""
        if (application, version) != (cls.application, FORMAT):
            raise LedgerError(f"{file} is an SQLite file, but not that of a region of format {FORMAT}")

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Keeps other threads out, and refuses where the file cannot be relied on."""
        with self.lock:
            if self.closed or self.in_doubt or os.getpid() != self.process:
                raise LedgerError(f"{self.path} is closed, was opened before a fork, or failed a write. Open it again")
            yield

    def write(self, *statements: Statement) -> None:
        """Writes in one transaction; synced when it returns. Nothing is kept in memory that could disagree with it."""
        super().write(*statements)
        self.in_doubt = False
