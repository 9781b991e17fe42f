"""The marks of a site's records: a site starts with the records that its operator made, and with no others.

`fulcrum site init` (`fulcrum.aggregation.site_setup`) makes the records of a site once: ledger, masking record,
regional sums. It writes the identity of each record into a mark, `initialised.json`, in the site's folder and in the
folder of the records. A site without a mark, without a record that the mark names, or with another file in the place
of a record does not start: a site that lost its ledger would release the rounds of the past again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fulcrum.core.silo.site import SUMS, Site, ledger_name, record_name
from fulcrum.errors import StorageError

MARK = "initialised.json"
"""The mark, in the site's folder and in the folder of its records."""

FORMAT = "fulcrum.initialised/1"


class IdentifiedRecord(Protocol):
    """A record that is open, or an object that keeps one open."""

    @property
    def identity(self) -> str:
        """The identity that the file was made with."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


_Kind = TypeVar("_Kind", bound=IdentifiedRecord)


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a mark.

    Attributes:
        format: Of the mark.
        records: By record, the identity of its file.
        keys: By record, the public key that the plan of then has for the site.
    """

    format: str
    records: dict[str, str]
    keys: dict[str, str] = {}


def check_initialised(site: Site) -> None:
    """Refuses to start a site whose operator has not made its records."""
    known = read_mark(site.folder).records
    for file in record_files(site):
        if mark_name(site, file) not in known:
            raise _uninitialised(site, file)


def record_files(site: Site) -> list[str]:
    """Returns the names of the files of records that a site needs; research needs the regional sums alone."""
    if site.settings.role == "region":
        return [SUMS]
    if site.settings.role == "silo" and site.settings.purpose == "deployment":
        name = site.settings.name
        return [ledger_name(name), *([record_name(name)] if site.plan.aggregation == "masked" else [])]
    return []


def own_record(site: Site, name: str, opening: Callable[[Path], _Kind]) -> _Kind:
    """Opens a record of a site that was initialised with it; any other file in its place is refused.

    Args:
        site: The site.
        name: Of the file, in the folder of the site's records.
        opening: Opens the file.
    """
    identity = read_mark(site.folder).records.get(mark_name(site, name))
    if identity is None:
        raise _uninitialised(site, name)
    opened = opening(site.state / name)
    if opened.identity != identity:
        opened.close()
        raise StorageError("site.record-replaced", file=site.state / name, folder=site.folder)
    return opened


def _uninitialised(site: Site, name: str) -> StorageError:
    return StorageError("site.uninitialised", folder=site.folder, record=name)


def mark_name(site: Site, file: str) -> str:
    """Returns the name of a record in a mark: regional sums are those of one plan."""
    return f"{file} {site.plan.digest}" if file == SUMS else file


def read_mark(folder: Path) -> Mark:
    """Returns the mark in a folder; an empty one where there is none."""
    path = folder / MARK
    if path.exists() and not path.is_file():  # to read a pipe would wait for ever
        raise StorageError("mark.not-a-file", file=path)
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return Mark(format=FORMAT, records={})
    except OSError as error:
        raise StorageError("mark.file-unreadable", file=path, reason=error.strerror) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError("mark.file-damaged", file=path, reason=error) from None
    if mark.format != FORMAT:
        raise StorageError("mark.format-unknown", file=path, format=mark.format, expected=FORMAT)
    return mark
