"""The marks of a site's records: a site starts only with the records that its operator made.

`fulcrum site init` (`fulcrum.aggregation.site_setup`) makes the records of a site once: ledger, masking record,
regional sums. The command writes the identity of every record into a mark, `initialised.json`, in the site's folder and
in the folder of the records. A site does not start without a mark, without a record that the mark names, or with a
foreign file in the place of a record: a site that lost its ledger would release past rounds again, with new noise.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fulcrum.core.silo.site import SUMS, Site, ledger_name, record_name
from fulcrum.errors import StorageError

MARK = "initialised.json"
"""The file name of a mark, in the site's folder and in the folder of the records."""

FORMAT = "fulcrum.initialised/1"


class IdentifiedRecord(Protocol):
    """An open record, or an object that holds an open record."""

    @property
    def identity(self) -> str:
        """The identity that the file received when the file was made."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


_Kind = TypeVar("_Kind", bound=IdentifiedRecord)


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a mark.

    Attributes:
        format: The format of the mark.
        records: The identity of the file, by record.
        keys: The site's public key in the plan at the time of `fulcrum site init`, by record.
    """

    format: str
    records: dict[str, str]
    keys: dict[str, str] = {}


def check_initialised(site: Site) -> None:
    """Raises `StorageError` unless the operator has made the records of the site."""
    marked = read_mark(site.folder).records
    for file in record_files(site):
        if mark_name(site, file) not in marked:
            raise _initialisation_error(site, file)


def record_files(site: Site) -> list[str]:
    """Returns the file names of the records that a site needs; in research only a region needs a record."""
    if site.settings.role == "region":
        return [SUMS]
    if site.settings.role == "silo" and site.settings.purpose == "deployment":
        name = site.settings.name
        return [ledger_name(name), *([record_name(name)] if site.plan.is_masked else [])]
    return []


def own_record(site: Site, name: str, opening: Callable[[Path], _Kind]) -> _Kind:
    """Opens a record that the site was initialised with; refuses every other file in the place of the record.

    An old copy or a file of a kit's maker has another identity. Such a file may miss releases, or hold mask secrets
    that the maker knows.

    Args:
        site: The site.
        name: The file name, in the folder of the site's records.
        opening: The function that opens the file.
    """
    identity = read_mark(site.folder).records.get(mark_name(site, name))
    if identity is None:
        raise _initialisation_error(site, name)
    opened = opening(site.state / name)
    if opened.identity != identity:
        opened.close()
        raise StorageError("site.record-replaced", file=site.state / name, folder=site.folder)
    return opened


def _initialisation_error(site: Site, name: str) -> StorageError:
    return StorageError("site.uninitialised", folder=site.folder, record=name)


def mark_name(site: Site, file: str) -> str:
    """Returns the name of a record in a mark; the name of regional sums includes the plan."""
    return f"{file} {site.plan.digest}" if file == SUMS else file


def read_mark(folder: Path) -> Mark:
    """Returns the mark in a folder, or an empty mark for a folder without a mark."""
    path = folder / MARK
    if path.exists() and not path.is_file():  # reading a pipe would block for ever
        raise StorageError("mark.not-a-file", file=path)
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return Mark(format=FORMAT, records={})
    except OSError as error:
        raise StorageError("file.unreadable", file=path, reason=error.strerror) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError("mark.file-damaged", file=path, reason=error) from None
    if mark.format != FORMAT:
        raise StorageError("mark.format-unknown", file=path, format=mark.format, expected=FORMAT)
    return mark
