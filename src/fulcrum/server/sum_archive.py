"""Sums that a server keeps for an audit: every one that it took, as it came, in a folder beside its checkpoint.

A server keeps them where that folder is there, and makes none: it forgets them otherwise, once they are in the model.
They are what the observer above sees, and no more than the server saw anyway.
"""

from collections.abc import Mapping
from pathlib import Path

from fulcrum.core.messages.regional_reply import RegionalSum, answer_from_bytes
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError

SUMS_FOLDER = "sums"
"""The folder in a server's own."""


def keep_sums(folder: Path, sums: Mapping[str, RegionalSum]) -> None:
    """Writes the sums of a round down, where the server keeps any."""
    kept = folder / SUMS_FOLDER
    if kept.is_dir():
        for place, total in enumerate(sums.values()):
            write_whole(kept / f"{total.round_number:06d}-{place:04d}.sum", total.to_bytes())


def read_kept_sums(folder: Path) -> list[RegionalSum]:
    """Returns the sums that a server kept, by round; `folder` is the server's own."""
    found = []
    for path in sorted((folder / SUMS_FOLDER).glob("*.sum")):
        answer = answer_from_bytes(path.read_bytes())
        if not isinstance(answer, RegionalSum):
            raise DataError("server.sum-missing", file=path)
        found.append(answer)
    return found
