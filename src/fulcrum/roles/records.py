"""The records of a site, made once by its operator and never again: ledger, masking record, regional sums.

A site whose record is gone has forgotten what left it, and a record that somebody else made may hold anything: secrets
of masks that its maker knows, or fewer releases than there were. So kits hold no records, starting a site makes none,
and `fulcrum site init` makes them once. It leaves a mark, `initialised.json`, in the site's folder and in the folder of
its records, with the identity of each record. Without a record that a mark names, or with another in its place, a site
does not start, and `fulcrum site init` refuses it:

- a record was deleted, or the folder of all records was: the mark in the site's folder names it;
- the site has a new folder: the mark in the folder of its records names them, and its operator names the ledger;
- a kit was unpacked over an old one: mark and records stay, since no kit holds any;
- a kit holds records: refused by name, unless the operator names the ledger as that of this silo.

No mark can tell that a silo took part before whose operator gives it new folders and names no ledger.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fulcrum.errors import StorageError
from fulcrum.ledger.ledger import Ledger
from fulcrum.masking.record import MaskingRecord
from fulcrum.roles.region_file import RegionFile
from fulcrum.roles.site import STATE, SUMS, Site, ledger_name, record_name
from fulcrum.storage.files import sync_folder, write_whole
from fulcrum.storage.holding import taken

MARK = "initialised.json"
"""The mark, in the site's folder and in the folder of its records."""

_FORMAT = "fulcrum.initialised/1"
_UNNAMED = ".init"  # the folder of new records that no mark names yet
_BESIDE = re.compile(r"-(journal|wal|shm|payloads)$")
_KINDS = re.compile(rf"(.*\.ledger|.*\.masking|{re.escape(SUMS)})")


class _Identified(Protocol):
    """A record that is open, or an object that keeps one open."""

    @property
    def identity(self) -> str: ...

    def close(self) -> None: ...


class _Opened(_Identified, Protocol):
    """A record that is open."""

    @property
    def unused(self) -> bool: ...


_Kind = TypeVar("_Kind", bound=_Identified)


class _Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a mark: by record, the identity of its file."""

    format: str
    records: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A record that a site needs.

    Attributes:
        name: In a mark: that of its file, and for regional sums the plan.
        path: Its file.
        open: Opens a file as this record; the second argument is True to make it.
    """

    name: str
    path: Path
    open: Callable[[Path, bool], _Opened]

    @property
    def unnamed(self) -> Path:
        """The file of a new record until the marks name it."""
        return self.path.parent / _UNNAMED / self.path.name

    def identity(self, path: Path, *, create: bool = False, used: bool = True) -> str:
        """Opens the record at a path and returns its identity; refuses one that was used, unless it may be."""
        with contextlib.closing(self.open(path, create)) as opened:
            if not used and not opened.unused:
                raise _stranger(path)
            return opened.identity


def init_site(site: Site, *, ledger: Path | None = None) -> list[Path]:
    """Makes the records that a site needs, once, and returns them; none where it needs none.

    Args:
        site: The site.
        ledger: The ledger of a silo that took part before, in the folder that `state` in site.toml names. It is taken
            over, and so are the other records in its folder.

    Raises:
        StorageError: The site was initialised before, a record is lost, or a record is there that the site did not
            make. Nothing was made or changed.
    """
    needed = _records_of(site)
    if ledger is not None:
        _check_named(site, ledger)
    with taken(site.folder / "site.toml", exclusive=True):  # one at a time
        here, there = _read(site.folder), _read(site.state)
        _check_no_strangers(site, here, adopted=() if ledger is None else (record.path for record in needed))
        missing, known = [], {}
        for record in needed:
            identity = here.get(record.name, there.get(record.name))
            if identity is not None and not os.path.lexists(record.path):
                _finish(record, identity)
            if not os.path.lexists(record.path):
                missing.append(record)
            elif record.name not in here or record.name not in there:
                known[record.name] = _checked(record, identity, used=ledger is not None)
        if not missing and not known:
            if needed:
                raise StorageError(
                    f"{site.folder} is initialised already: its records are in {site.state}. If nobody here did that, "
                    "do not start it, and ask for another kit"
                )
            return []
        _check_nothing_lost(site, missing, {*here, *there, *known})
        _check_folder(site)
        shutil.rmtree(site.state / _UNNAMED, ignore_errors=True)  # of a call that was interrupted before the marks
        (site.state / _UNNAMED).mkdir(mode=0o700, parents=True)
        for record in missing:
            known[record.name] = record.identity(record.unnamed, create=True)
        for folder, before in ((site.folder, here), (site.state, there)):
            content = msgspec.json.encode(_Mark(format=_FORMAT, records={**before, **known}))
            write_whole(folder / MARK, msgspec.json.format(content, indent=2) + b"\n")
        for record in missing:
            record.unnamed.rename(record.path)
        (site.state / _UNNAMED).rmdir()
        sync_folder(site.state)
    return [record.path for record in missing]


def check_initialised(site: Site) -> None:
    """Refuses to start a site whose operator has not made its records."""
    known = _read(site.folder)
    for record in _records_of(site):
        if record.name not in known:
            raise _uninitialised(site, record.path.name)


def own_record(site: Site, name: str, opening: Callable[[Path], _Kind]) -> _Kind:
    """Opens a record of a site that was initialised with it; any other file in its place is refused.

    Args:
        site: The site.
        name: Of the file, in the folder of the site's records.
        opening: Opens the file.
    """
    identity = _read(site.folder).get(_name(site, name))
    if identity is None:
        raise _uninitialised(site, name)
    opened = opening(site.state / name)
    if opened.identity != identity:
        opened.close()
        raise StorageError(
            f"{site.state / name} is not the one that {site.folder} was initialised with. Put that one back, or ask "
            "for a new plan"
        )
    return opened


def _uninitialised(site: Site, name: str) -> StorageError:
    return StorageError(
        f"{site.folder} was not initialised: it knows no {name} for its plan. Run once: fulcrum site init {site.folder}"
    )


def _records_of(site: Site) -> list[_Record]:
    """Returns the records that a site needs: in research a region's alone."""
    name, digest, state = site.settings.name, site.plan.digest, site.state
    opening: dict[str, Callable[[Path, bool], _Opened]] = {}
    if site.settings.role == "region":
        opening[SUMS] = lambda path, create: RegionFile.bound(path, region=name, plan_digest=digest, create=create)
    if site.settings.role == "silo" and site.settings.purpose == "deployment":
        opening[ledger_name(name)] = lambda path, create: Ledger.open(path, silo=name, create=create)
        if site.plan.aggregation == "masked":
            opening[record_name(name)] = lambda path, create: MaskingRecord.bound(path, silo=name, create=create)
    return [_Record(name=_name(site, file), path=state / file, open=opens) for file, opens in opening.items()]


def _name(site: Site, file: str) -> str:
    """Returns the name of a record in a mark: regional sums are those of one plan."""
    return f"{file} {site.plan.digest}" if file == SUMS else file


def _read(folder: Path) -> dict[str, str]:
    """Returns the identities that the mark in a folder names; none where there is no mark."""
    path = folder / MARK
    if path.exists() and not path.is_file():  # to read a pipe would wait for ever
        raise StorageError(f"{path} is not a file. Put the one back that `fulcrum site init` wrote")
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=_Mark)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is damaged: {error}. Put the one back that `fulcrum site init` wrote") from None
    if mark.format != _FORMAT:
        raise StorageError(f"{path} is of format {mark.format!r}, expected {_FORMAT}. Update Fulcrum")
    return mark.records


def _check_named(site: Site, ledger: Path) -> None:
    """Refuses a ledger that is not the one that the site would release from."""
    own = site.state / ledger_name(site.settings.name)
    if site.settings.role != "silo" or not own.exists() or not ledger.exists() or not own.samefile(ledger):
        raise StorageError(
            f"{ledger} is not the ledger that this site releases from, {own}. Write its folder as `state` into "
            "site.toml"
        )


def _check_no_strangers(site: Site, here: dict[str, str], adopted: Iterable[Path]) -> None:
    """Refuses records in the site's folder, and those that it would use, unless the site made them."""
    known = {name.split(" ")[0] for name in here} | {path.name for path in adopted}
    inside = [path for path in site.folder.rglob("*") if path.parent != site.state / _UNNAMED]
    for path in (*inside, *(record.path for record in _records_of(site))):
        name = _BESIDE.sub("", path.name)
        if os.path.lexists(path) and _KINDS.fullmatch(name) and name not in known:
            raise _stranger(path)
        if path.name == MARK and path.parent != site.folder and not known:
            raise _stranger(path)


def _stranger(path: Path) -> StorageError:
    return StorageError(
        f"{path} was not made by this site, and kits hold no records: whoever made it may know its secrets. Ask for "
        "another kit or, if it is of this silo's own past, name its ledger: fulcrum site init FOLDER --ledger LEDGER"
    )


def _check_folder(site: Site) -> None:
    """Refuses a folder of the operator's own that does not exist: a name mistyped would begin the records anew."""
    if site.settings.state != STATE and not site.state.is_dir():
        raise StorageError(
            f"{site.state}, which `state` in site.toml names, does not exist. Name the folder of this site's records, "
            "or make the folder if it has none"
        )


def _check_nothing_lost(site: Site, missing: list[_Record], known: set[str]) -> None:
    """Refuses to make a record that a mark names, or beside others that tell of it."""
    for record in missing:
        lost = f"{record.path} is gone, and with it what left this site"
        if record.name in known:
            raise StorageError(f"{lost}: it was initialised before. Put it back, or ask for a new plan")
        masking = record_name(site.settings.name)
        if record.path.name == ledger_name(site.settings.name) and masking in known:
            raise StorageError(f"{lost}: {masking} is there. Put it back, or ask for a new plan")
        if record.path.name == record_name(site.settings.name) and _has_released(site):
            raise StorageError(f"{lost}: the ledger holds releases of this plan. Put it back, or ask for a new plan")


def _has_released(site: Site) -> bool:
    """Returns True if the silo's ledger holds releases of its plan."""
    path = site.state / ledger_name(site.settings.name)
    if not path.exists():
        return False
    with Ledger.read(path) as ledger:
        return any(entry.plan_digest == site.plan.digest for entry in ledger.entries())


def _checked(record: _Record, identity: str | None, *, used: bool) -> str:
    """Returns the identity of a record that is there; refuses one that a mark names by another.

    A call that was interrupted leaves unused records. Others are taken over only where the operator vouches for them:
    a kit could bring a mark that looks like an interrupted call's.
    """
    found = record.identity(record.path, used=used)
    if identity not in (None, found):
        raise StorageError(f"{record.path} is not the one that this site was initialised with. Put that one back")
    return found


def _finish(record: _Record, identity: str) -> None:
    """Gives a new record its name, where a call was interrupted after the marks named it."""
    if record.unnamed.exists() and record.identity(record.unnamed, used=False) == identity:
        record.unnamed.rename(record.path)
        sync_folder(record.path.parent)
        shutil.rmtree(record.unnamed.parent, ignore_errors=True)
