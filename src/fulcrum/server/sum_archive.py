"""An archive of regional sums for an audit: every sum that a server used, unchanged, in a folder beside the checkpoint.

A server writes the archive only if the folder exists, and never makes the folder: without the folder, a sum is
forgotten once the sum is in the model. The archive has the view of the observer above, and no more than the server saw.
"""

from collections.abc import Mapping
from pathlib import Path

from fulcrum.core.messages.regional_reply import RegionalSum, regional_reply_from_bytes
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError

SUMS_FOLDER = "sums"
"""The archive's folder in a server's folder."""


def keep_sums(folder: Path, sums: Mapping[str, RegionalSum]) -> None:
    """Writes the sums of a round to the archive, if the archive's folder exists."""
    archive = folder / SUMS_FOLDER
    if archive.is_dir():
        for place, total in enumerate(sums.values()):
            write_whole(archive / f"{total.round_number:06d}-{place:04d}.sum", total.to_bytes())


def read_kept_sums(folder: Path) -> list[RegionalSum]:
    """Returns the sums in the archive of a server, by round; `folder` is the server's folder."""
    sums = []
    for path in sorted((folder / SUMS_FOLDER).glob("*.sum")):
        answer = regional_reply_from_bytes(path.read_bytes())
        if not isinstance(answer, RegionalSum):
            raise DataError("server.sum-missing", file=path)
        sums.append(answer)
    return sums
