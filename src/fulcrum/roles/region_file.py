"""The file beneath a region: its format, and that it is bound to one region and plan.

What a region takes in and sends up is in `fulcrum.roles.region`, which is the module to use. How the file is held,
synced and copied is in `fulcrum.storage.database`, how it forgets in `fulcrum.storage.erasing`.
"""

from pathlib import Path
from typing import Self

from fulcrum.errors import ExchangeError, StorageError
from fulcrum.storage.database import PathLike
from fulcrum.storage.erasing import ErasingFile

FORMAT = 4
"""Of the file. Format 1 has no mark of how far its log goes, format 2 no payloads beside it, format 3 no stamp of them.

All are read but those of format 3 that have payloads beside them.
"""

_SCHEMA = """
CREATE TABLE region (name TEXT NOT NULL, plan TEXT NOT NULL, layout BLOB);
CREATE TABLE release (
    round INTEGER NOT NULL, silo TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB, PRIMARY KEY (round, silo)
);
CREATE TABLE answer (round INTEGER PRIMARY KEY, status TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB NOT NULL);
"""


class RegionFile(ErasingFile):
    """The file of a region, held and connected to; made by `bound`."""

    application = 0x46554C52  # "FULR"
    version = FORMAT
    schema = _SCHEMA
    noun = "a region's file of sums"
    wanted = "the region's file of sums"
    advice = "Ask for a new plan"
    lost = "the record of the sums that went up"

    @classmethod
    def bound(cls, path: PathLike, *, region: str, plan_digest: str, create: bool = True) -> Self:
        """Opens the file of a region under a plan, creating it where there is none and `create` allows it."""
        first = ("INSERT INTO region VALUES (?, ?, NULL)", (region, plan_digest))
        with cls.erasing(path, first if create else None) as file:  # releases go once their sum is there
            if file.connection.execute("SELECT name, plan FROM region").fetchall() != [(region, plan_digest)]:
                raise ExchangeError(f"{file.path} is that of another region or plan than {region!r} under this one")
        return file


def create_region_file(path: PathLike, *, plan_digest: str, region: str) -> None:
    """Creates the empty file of a region under a plan, which takes no key, and closes it.

    Refuses a file that is there: it may hold sums.
    """
    if (file := Path(path).resolve()).exists():
        raise StorageError(f"{file} is there already, and may hold sums. Name a new file")
    RegionFile.bound(file, region=region, plan_digest=plan_digest).close()
