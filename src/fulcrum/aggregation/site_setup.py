"""The records of a site, made once by the operator and never again: ledger, masking record, regional sums.

A site without its record has forgotten its releases. A record of a foreign maker may hold mask secrets that the maker
knows, or fewer releases than the silo made. Therefore kits hold no records, the start of a site makes no record, and
`fulcrum site init` makes the records once. The command leaves a mark, `initialised.json`, in the site's folder and in
the folder of the records, with the identity of every record. A site does not start without a marked record, or with a
foreign file in the place of a record (`fulcrum.core.silo.site_records`), and `fulcrum site init` refuses such a site:

- a record, or the folder of all records, was deleted: the mark in the site's folder names the record;
- the site has a new folder: the mark in the folder of records names the records, and the operator names the ledger;
- a kit was unpacked over an old kit: mark and records stay, since kits hold no records;
- the next plan gives the silo another name: the marks name the ledger of the silo's releases, or the silo's key; or the
  folder of records has a ledger whose name differs in spelling alone;
- a kit holds records: refused, unless the operator names the ledger as the silo's own.

No mark can reveal an earlier participation if the operator gives the silo new folders and names no ledger.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fulcrum.aggregation.region_store import RegionFile
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.silo.site import STATE, SUMS, Site, SiteSettings, ledger_name, record_name
from fulcrum.core.silo.site_records import FORMAT, MARK, IdentifiedRecord, Mark, mark_name, read_mark, record_files
from fulcrum.core.store.disk_sync import sync_folder
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.store.file_holding import lock_file
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import DataError, FileInUseError, StorageError
from fulcrum.spelling import other_spelling

_UNNAMED = ".init"  # the folder of new records before the marks name them
_LOCK = ".init.lock"  # exists in the folder of records during a call
_LEDGER = ledger_name("")
_BESIDE = re.compile(r"-(journal|wal|shm|payloads)$")
_KINDS = re.compile(rf"(.*\.ledger|.*\.masking|{re.escape(SUMS)})")


class _Opened(IdentifiedRecord, Protocol):
    """An open record."""

    @property
    def is_unused(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A record that a site needs.

    Attributes:
        name: The name in a mark: the file name, for regional sums with the plan.
        path: The file.
        open: Opens a file as this record; with True as second argument, makes the file.
    """

    name: str
    path: Path
    open: Callable[[Path, bool], _Opened]

    @property
    def unnamed_path(self) -> Path:
        """The path of a new record before the marks name the record."""
        return self.path.parent / _UNNAMED / self.path.name

    def give_name(self) -> None:
        """Gives a new record its name; an existing file of the name stays and raises `StorageError`."""
        try:
            self.path.hardlink_to(self.unnamed_path)
        except FileExistsError:
            raise StorageError("site.record-made-meanwhile", file=self.path) from None
        self.unnamed_path.unlink()

    def discard_unnamed(self) -> None:
        """Deletes the remains of a record that no mark names."""
        name = self.path.name
        leftovers = re.compile(rf"{re.escape(name)}(-journal|-wal|-shm)?|\.{re.escape(name)}\.\w+\.new")
        for path in self.unnamed_path.parent.iterdir():
            if leftovers.fullmatch(path.name):
                path.unlink()

    def identity(self, path: Path, *, create: bool = False, used: bool = True) -> str:
        """Opens the record at a path and returns the identity; refuses a used record unless `used` is True."""
        with contextlib.closing(self.open(path, create)) as opened:
            if not used and not opened.is_unused:
                raise _foreign_record_error(path)
            return opened.identity


def init_site(site: Site, *, ledger: Path | None = None) -> list[Path]:
    """Makes the records that a site needs, once, and returns the paths of the new records.

    The next call finishes an interrupted call, and returns the records that the next call named.

    Args:
        site: The site.
        ledger: The ledger of a silo that took part before, in the folder `state` of site.toml. The site adopts the
            ledger and the other records in the folder.

    Raises:
        StorageError: The site was initialised before, a record is lost, or a foreign record exists. No file was made
            or changed.
    """
    try:
        with lock_file(site.folder / "site.toml", exclusive=True), _lock_folder(site.state):  # a single call at a time
            return _init(site, ledger)
    except OSError as error:
        raise StorageError("site.file-unusable", file=error.filename or site.state, reason=error.strerror) from None


def _init(site: Site, ledger: Path | None) -> list[Path]:
    """Makes the records under the locks of the site's folder and of the folder of records; see `init_site`."""
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
            identities[record.name] = _checked_identity(record, identity, used=ledger is not None)
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
    """Makes records without a name, writes the marks, and then names every record.

    A crash in this order leaves no named record without a mark: the next start would refuse such a record.
    """
    (site.state / _UNNAMED).mkdir(mode=0o700, parents=True, exist_ok=True)
    for record in missing:
        record.discard_unnamed()  # remains of a call that was interrupted before the marks
        identities[record.name] = record.identity(record.unnamed_path, create=True)
    key = {} if (public := site.plan.keys.get(site.settings.name)) is None else dict.fromkeys(identities, public)
    for folder, before in marks:
        mark = Mark(format=FORMAT, records={**before.records, **identities}, keys={**before.keys, **key})
        write_whole(folder / MARK, msgspec.json.format(msgspec.json.encode(mark), indent=2) + b"\n")
    for record in missing:
        record.give_name()
    _remove_unnamed(site)
    sync_folder(site.state)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Locks a folder of records against other calls: several sites of a machine may share the folder.

    A folder that does not exist yet needs no lock: the folder will be in the site's own folder, which is locked.
    """
    if not folder.is_dir():
        yield
        return
    path = folder / _LOCK
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
    try:
        lock = lock_file(path, exclusive=True)
    except (FileInUseError, FileNotFoundError):  # another call has just removed the file
        raise StorageError("site.init-running", folder=folder) from None
    with lock:
        try:
            yield
        finally:
            path.unlink()


def _records_of(site: Site) -> list[_Record]:
    """Returns the records that a site needs; in research only a region needs a record."""
    name, digest = site.settings.name, site.plan.digest
    opening: dict[str, Callable[[Path, bool], _Opened]] = {
        SUMS: lambda path, create: RegionFile.open(path, region=name, plan_digest=digest, create=create),
        ledger_name(name): lambda path, create: Ledger.open(path, silo=name, create=create),
        record_name(name): lambda path, create: MemberStore.open(path, silo=name, create=create),
    }
    return [
        _Record(name=mark_name(site, file), path=site.state / file, open=opening[file]) for file in record_files(site)
    ]


def _check_named(site: Site, ledger: Path) -> None:
    """Refuses a named ledger that is not the file of the site's releases."""
    own = site.state / ledger_name(site.settings.name)
    if site.settings.role != "silo" or not own.exists() or not ledger.exists() or not own.samefile(ledger):
        raise StorageError("site.ledger-foreign", ledger=ledger, expected=own)


def _check_no_strangers(site: Site, here: Mark, needed: list[_Record], *, adopted: bool) -> None:
    """Refuses foreign records in the site's folder, and records of the site's name in the folder of records."""
    own = {record.path.name for record in needed}
    if own and site.settings.role == "silo":
        own |= {ledger_name(site.settings.name), record_name(site.settings.name)}
    trusted = {name.split(" ")[0] for name in here.records} | (own if adopted else set())
    for path in site.folder.rglob("*"):
        name = _BESIDE.sub("", path.name)
        if path.parent != site.state / _UNNAMED and _KINDS.fullmatch(name) and name not in trusted:
            raise _foreign_record_error(path)
        if path.name == MARK and path.parent != site.folder and not trusted:
            raise _foreign_record_error(path)
    for path in site.state.iterdir() if site.state.is_dir() else ():  # several sites may share a folder elsewhere
        if _BESIDE.sub("", path.name) in own - trusted:
            raise _foreign_record_error(path)


def _foreign_record_error(path: Path) -> StorageError:
    return StorageError("site.record-foreign", file=path)


def _check_folder(site: Site) -> None:
    """Refuses a missing folder that the operator named: a mistyped name would begin the records anew."""
    if not site.state.is_dir() and (site.settings.state != STATE or os.path.lexists(site.state)):
        raise StorageError("site.state-missing", folder=site.state)


def _check_unnamed(site: Site) -> None:
    """Refuses a file or a link in the place of the folder of new records."""
    unnamed = site.state / _UNNAMED
    if os.path.lexists(unnamed) and (unnamed.is_symlink() or not unnamed.is_dir()):
        raise StorageError("site.init-folder-obstructed", file=unnamed)


def _check_nothing_lost(site: Site, missing: list[_Record], marked: set[str]) -> None:
    """Raises for a missing file of the site, such as the ledger, that existed before: a new file would forget releases.

    A mark beside the files, or another file of the site, proves that the missing file existed.
    """
    for record in missing:
        if record.name in marked:
            raise StorageError("site.record-lost", file=record.path)
        masking = record_name(site.settings.name)
        if record.path.name == ledger_name(site.settings.name) and masking in marked:
            raise StorageError("site.ledger-lost", file=record.path, record=masking)
        if record.path.name == record_name(site.settings.name) and _has_released(site):
            raise StorageError("site.masking-record-lost", file=record.path)


def _has_released(site: Site) -> bool:
    """Returns True if the silo's ledger holds releases of the site's plan."""
    path = site.state / ledger_name(site.settings.name)
    if not path.exists():
        return False
    with read_ledger(path) as ledger:
        return any(entry.plan_digest == site.plan.digest for entry in ledger.entries())


def _checked_identity(record: _Record, identity: str | None, *, used: bool) -> str:
    """Returns the identity of an existing record; refuses a record whose mark has another identity.

    An interrupted call leaves unused records. A used record is adopted only if the operator vouches for the record: a
    hostile kit could bring a mark that looks like the mark of an interrupted call.
    """
    actual = record.identity(record.path, used=used)
    if identity not in (None, actual):
        raise StorageError("site.record-not-initialised", file=record.path)
    return actual


def _finish(record: _Record, identity: str) -> bool:
    """Names a new record of a call that was interrupted after the marks; returns True for a named record."""
    if not os.path.lexists(record.unnamed_path):
        return False
    if os.path.lexists(record.path):
        if record.path.samefile(
            record.unnamed_path
        ):  # interrupted between the new link and the removal of the old link
            record.unnamed_path.unlink()
        return False
    if record.identity(record.unnamed_path, used=False) != identity:
        return False
    record.give_name()
    sync_folder(record.path.parent)
    return True


def _remove_unnamed(site: Site) -> None:
    """Removes the folder of new records if empty: the folder may hold a record of another site."""
    with contextlib.suppress(OSError):
        (site.state / _UNNAMED).rmdir()


def _check_same_silo(site: Site, missing: list[_Record], here: Mark, there: Mark) -> None:
    """Refuses to make a ledger for a site that released under another name: the spent privacy would restart at zero.

    The mark in the site's folder names the site's ledgers. The mark in a folder of records may name ledgers of several
    sites; the site's own ledgers have the site's key.
    """
    own = ledger_name(site.settings.name)
    if own not in (record.path.name for record in missing):
        return
    key = site.plan.keys.get(site.settings.name)
    names = [*here.records, *(name for name in there.records if key is not None and there.keys.get(name) == key)]
    # A folder may serve several sites, with ledgers of other keys. Another spelling of the name is no other site.
    present = [path.name for path in site.state.iterdir()] if site.state.is_dir() else []
    names += filter(None, [other_spelling(own, [*there.records, *present])])
    for name in names:
        if name.endswith(_LEDGER) and name != own:
            silo = name.removesuffix(_LEDGER)
            raise StorageError(
                "site.silo-renamed", folder=site.folder, silo=silo, ledger=name, new_name=site.settings.name
            )


def site_toml(settings: SiteSettings) -> str:
    """Returns the text of site.toml."""
    fields: dict[str, Any] = msgspec.to_builtins(settings)
    options, engine_names = fields.pop("options"), fields.pop("engine_names")
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    if options:
        lines += ["", "[options]", *(f"{name} = {_toml(value)}" for name, value in options.items())]
    if engine_names:
        lines += ["", "[engine_names]", *(f"{_toml(name)} = {_toml(value)}" for name, value in engine_names.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Returns a value as TOML; strings, numbers, booleans and lists of JSON are TOML as well."""
    if isinstance(value, Mapping) or value is None:
        raise DataError("site.option-type", option=value)
    return msgspec.json.encode(value).decode()
