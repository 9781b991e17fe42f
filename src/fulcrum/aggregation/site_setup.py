"""The records of a site, made once by its operator and never again: ledger, masking record, regional sums.

A site whose record is gone has forgotten what left it, and a record that somebody else made may hold anything: secrets
of masks that its maker knows, or fewer releases than there were. So kits hold no records, starting a site makes none,
and `fulcrum site init` makes them once. It leaves a mark, `initialised.json`, in the site's folder and in the folder of
its records, with the identity of each record. Without a record that a mark names, or with another in its place, a site
does not start (`fulcrum.core.silo.site_records`), and `fulcrum site init` refuses it:

- a record was deleted, or the folder of all records was: the mark in the site's folder names it;
- the site has a new folder: the mark in the folder of its records names them, and its operator names the ledger;
- a kit was unpacked over an old one: mark and records stay, since no kit holds any;
- the next plan calls the silo by another name: the marks name the ledger that it released from, or its key;
- a kit holds records: refused by name, unless the operator names the ledger as that of this silo.

No mark can tell that a silo took part before whose operator gives it new folders and names no ledger.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from fulcrum.aggregation.region_store import RegionFile
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.silo.site import STATE, SUMS, Site, ledger_name, record_name
from fulcrum.core.silo.site_records import FORMAT, MARK, IdentifiedRecord, Mark, mark_name, read_mark, record_files
from fulcrum.core.store.disk_sync import sync_folder
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.store.file_holding import lock_file
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FileInUseError, StorageError

_UNNAMED = ".init"  # the folder of new records that no mark names yet
_LOCK = ".init.lock"  # in the folder of records, while a call is under way
_LEDGER = ledger_name("")
_BESIDE = re.compile(r"-(journal|wal|shm|payloads)$")
_KINDS = re.compile(rf"(.*\.ledger|.*\.masking|{re.escape(SUMS)})")


class _Opened(IdentifiedRecord, Protocol):
    """A record that is open."""

    @property
    def is_unused(self) -> bool: ...


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

    def give_name(self) -> None:
        """Gives a new record its name; a file that has the name already stays."""
        try:
            self.path.hardlink_to(self.unnamed)
        except FileExistsError:
            raise StorageError("site.record-made-meanwhile", file=self.path) from None
        self.unnamed.unlink()

    def discard_unnamed(self) -> None:
        """Deletes what is left of a record that no mark names."""
        name = self.path.name
        leftovers = re.compile(rf"{re.escape(name)}(-journal|-wal|-shm)?|\.{re.escape(name)}\.\w+\.new")
        for path in self.unnamed.parent.iterdir():
            if leftovers.fullmatch(path.name):
                path.unlink()

    def identity(self, path: Path, *, create: bool = False, used: bool = True) -> str:
        """Opens the record at a path and returns its identity; refuses one that was used, unless it may be."""
        with contextlib.closing(self.open(path, create)) as opened:
            if not used and not opened.is_unused:
                raise _stranger(path)
            return opened.identity


def init_site(site: Site, *, ledger: Path | None = None) -> list[Path]:
    """Makes the records that a site needs, once, and returns them; none where it needs none.

    A call that was interrupted is finished by the next one, which returns the records that it gave their names.

    Args:
        site: The site.
        ledger: The ledger of a silo that took part before, in the folder that `state` in site.toml names. It is taken
            over, and so are the other records in its folder.

    Raises:
        StorageError: The site was initialised before, a record is lost, or a record is there that the site did not
            make. Nothing was made or changed.
    """
    try:
        with lock_file(site.folder / "site.toml", exclusive=True), _locked(site.state):  # one at a time
            return _init(site, ledger)
    except OSError as error:
        raise StorageError("site.file-unusable", file=error.filename or site.state, reason=error.strerror) from None


def _init(site: Site, ledger: Path | None) -> list[Path]:
    """Does the work of `init_site` under the locks of the site's folder and of the folder of its records."""
    needed = _records_of(site)
    if ledger is not None:
        _check_named(site, ledger)
    here, there = read_mark(site.folder), read_mark(site.state)
    _check_unnamed(site)
    _check_no_strangers(site, here, needed, adopted=ledger is not None)
    missing, finished, identities = [], [], {}
    for record in needed:
        identity = here.records.get(record.name, there.records.get(record.name))
        if identity is not None and _finish(record, identity):
            finished.append(record)
        if not os.path.lexists(record.path):
            missing.append(record)
        elif record.name not in here.records or record.name not in there.records:
            identities[record.name] = _checked(record, identity, used=ledger is not None)
    _remove_unnamed(site)
    if missing or identities:
        _check_nothing_lost(site, missing, {*here.records, *there.records, *identities})
        _check_same_silo(site, missing, here, there)
        _check_folder(site)
        _make(site, missing, identities, ((site.folder, here), (site.state, there)))
    elif needed and not finished:
        raise StorageError("site.already-initialised", folder=site.folder, state=site.state)
    named = {record.name for record in (*missing, *finished)} | ({*identities} if ledger is None else set())
    return [record.path for record in needed if record.name in named]


def _make(site: Site, missing: list[_Record], identities: dict[str, str], marks: Iterable[tuple[Path, Mark]]) -> None:
    """Makes records without a name, writes the marks, and then gives each record its name."""
    (site.state / _UNNAMED).mkdir(mode=0o700, parents=True, exist_ok=True)
    for record in missing:
        record.discard_unnamed()  # of a call that was interrupted before the marks
        identities[record.name] = record.identity(record.unnamed, create=True)
    key = {} if (public := site.plan.keys.get(site.settings.name)) is None else dict.fromkeys(identities, public)
    for folder, before in marks:
        mark = Mark(format=FORMAT, records={**before.records, **identities}, keys={**before.keys, **key})
        write_whole(folder / MARK, msgspec.json.format(msgspec.json.encode(mark), indent=2) + b"\n")
    for record in missing:
        record.give_name()
    _remove_unnamed(site)
    sync_folder(site.state)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps other calls out of a folder of records: several sites of one machine may share it.

    A folder that does not exist yet is in the site's own, which is locked.
    """
    if not folder.is_dir():
        yield
        return
    path = folder / _LOCK
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
    try:
        lock = lock_file(path, exclusive=True)
    except (FileInUseError, FileNotFoundError):  # the other call has just removed the file
        raise StorageError("site.init-running", folder=folder) from None
    with lock:
        try:
            yield
        finally:
            path.unlink()


def _records_of(site: Site) -> list[_Record]:
    """Returns the records that a site needs: in research a region's alone."""
    name, digest = site.settings.name, site.plan.digest
    opening: dict[str, Callable[[Path, bool], _Opened]] = {
        SUMS: lambda path, create: RegionFile.bound(path, region=name, plan_digest=digest, create=create),
        ledger_name(name): lambda path, create: Ledger.open(path, silo=name, create=create),
        record_name(name): lambda path, create: MemberStore.open(path, silo=name, create=create),
    }
    return [
        _Record(name=mark_name(site, file), path=site.state / file, open=opening[file]) for file in record_files(site)
    ]


def _check_named(site: Site, ledger: Path) -> None:
    """Refuses a ledger that is not the one that the site would release from."""
    own = site.state / ledger_name(site.settings.name)
    if site.settings.role != "silo" or not own.exists() or not ledger.exists() or not own.samefile(ledger):
        raise StorageError("site.ledger-foreign", ledger=ledger, expected=own)


def _check_no_strangers(site: Site, here: Mark, needed: list[_Record], *, adopted: bool) -> None:
    """Refuses records in the site's folder, and those of its name in the folder of its records, unless it made them."""
    own = {record.path.name for record in needed}
    if own and site.settings.role == "silo":
        own |= {ledger_name(site.settings.name), record_name(site.settings.name)}
    known = {name.split(" ")[0] for name in here.records} | (own if adopted else set())
    for path in site.folder.rglob("*"):
        name = _BESIDE.sub("", path.name)
        if path.parent != site.state / _UNNAMED and _KINDS.fullmatch(name) and name not in known:
            raise _stranger(path)
        if path.name == MARK and path.parent != site.folder and not known:
            raise _stranger(path)
    for path in site.state.iterdir() if site.state.is_dir() else ():  # a folder elsewhere may be of several sites
        if _BESIDE.sub("", path.name) in own - known:
            raise _stranger(path)


def _stranger(path: Path) -> StorageError:
    return StorageError("site.record-foreign", file=path)


def _check_folder(site: Site) -> None:
    """Refuses a folder of the operator's own that does not exist: a name mistyped would begin the records anew."""
    if not site.state.is_dir() and (site.settings.state != STATE or os.path.lexists(site.state)):
        raise StorageError("site.state-missing", folder=site.state)


def _check_unnamed(site: Site) -> None:
    """Refuses a file or a link in the place of the folder of new records."""
    unnamed = site.state / _UNNAMED
    if os.path.lexists(unnamed) and (unnamed.is_symlink() or not unnamed.is_dir()):
        raise StorageError("site.init-folder-obstructed", file=unnamed)


def _check_nothing_lost(site: Site, missing: list[_Record], known: set[str]) -> None:
    """Refuses to make a record that a mark names, or beside others that tell of it."""
    for record in missing:
        if record.name in known:
            raise StorageError("site.record-lost", file=record.path)
        masking = record_name(site.settings.name)
        if record.path.name == ledger_name(site.settings.name) and masking in known:
            raise StorageError("site.ledger-lost", file=record.path, record=masking)
        if record.path.name == record_name(site.settings.name) and _has_released(site):
            raise StorageError("site.masking-record-lost", file=record.path)


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
        raise StorageError("site.record-not-initialised", file=record.path)
    return found


def _finish(record: _Record, identity: str) -> bool:
    """Gives a new record its name if a call was interrupted after the marks named it; returns True if it did."""
    if not os.path.lexists(record.unnamed):
        return False
    if os.path.lexists(record.path):
        if record.path.samefile(record.unnamed):  # interrupted between the new name and the end of the old one
            record.unnamed.unlink()
        return False
    if record.identity(record.unnamed, used=False) != identity:
        return False
    record.give_name()
    sync_folder(record.path.parent)
    return True


def _remove_unnamed(site: Site) -> None:
    """Removes the folder of new records once it is empty: it may hold a record of another site that shares it."""
    with contextlib.suppress(OSError):
        (site.state / _UNNAMED).rmdir()


def _check_same_silo(site: Site, missing: list[_Record], here: Mark, there: Mark) -> None:
    """Refuses to make a ledger for a site that has released under another name: its spending would begin at zero.

    The mark in the site's folder names the site's ledgers. The mark in a folder of records may name ledgers of several
    sites, and this site's are those with its key.
    """
    own = ledger_name(site.settings.name)
    if own not in (record.path.name for record in missing):
        return
    key = site.plan.keys.get(site.settings.name)
    names = [*here.records, *(name for name in there.records if key is not None and there.keys.get(name) == key)]
    for name in names:
        if name.endswith(_LEDGER) and name != own:
            silo = name.removesuffix(_LEDGER)
            raise StorageError(
                "site.silo-renamed", folder=site.folder, silo=silo, ledger=name, new_name=site.settings.name
            )
