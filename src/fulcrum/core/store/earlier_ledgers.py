"""Conversion of ledgers of the formats 1 to 4: read, checked completely, and written to a new file in the format today.

Earlier ledgers have two observers, inside and above the region, and no names of tiers. The charge of every tier comes
from the plans of the releases, so the conversion needs all plans. The figures of an earlier ledger are not enough:
inside the region, a masked release was charged as to the server with one colluding silo, not as to every observer.

A conversion never leaves two ledgers that both allow releases, because a silo could then spend the budget twice:

1. the new file gets its name, complete but marked as unfinished;
2. the old file is marked as converted;
3. the new file is marked as finished.

A second call finishes an interrupted conversion. The old file must have been closed by the version of Fulcrum that
wrote the file: a log beside the old file is not read.
"""

import contextlib
import glob
import hashlib
import io
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from fulcrum.core.store.database import PathLike, Statement
from fulcrum.core.store.disk_sync import sync_file, sync_folder
from fulcrum.core.store.file_holding import lock_file
from fulcrum.core.store.ledger import chain_hash, genesis
from fulcrum.core.store.ledger_checks import checks_of_file
from fulcrum.core.store.ledger_entries import INSIDE, Allowance, Cost, Entry
from fulcrum.core.store.ledger_file import CONVERTED, FORMAT, INSERT_ENTRY, UNFINISHED, LedgerFile, plan_row, row_of
from fulcrum.core.store.ledger_reading import read_only, reading
from fulcrum.core.store.recovery import files_beside
from fulcrum.core.store.sqlite_connection import BoundedConnection
from fulcrum.errors import StorageError, in_one_line

Charges: TypeAlias = Mapping[str, tuple[Cost, Allowance]]
"""By digest of a plan: the cost of a silo's release under the plan, and the plan's allowance."""

_PAGE_BYTES, _SLOT_BYTES, _BLOCK_BYTES = 32_768, 4096, 4096
_MARK = struct.Struct(">QQQ32s24s")
_STAMP = struct.Struct(">Q32s")
_TABLES = """
CREATE TABLE silo (name TEXT NOT NULL, plan TEXT);
CREATE TABLE plan (
    digest TEXT PRIMARY KEY, rounds INTEGER NOT NULL, shift_above REAL NOT NULL, shift_inside REAL NOT NULL
);
CREATE TABLE entry (
    sequence INTEGER PRIMARY KEY, plan TEXT NOT NULL, round INTEGER NOT NULL, basis TEXT NOT NULL,
    payload_digest TEXT NOT NULL, shift_above REAL NOT NULL, shift_inside REAL NOT NULL,
    spent_above REAL NOT NULL, spent_inside REAL NOT NULL, hash TEXT NOT NULL, UNIQUE (plan, round)
);
CREATE TABLE payload (sequence INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
"""
_WITH_MARK = "CREATE TABLE mark (bytes BLOB NOT NULL);" + _TABLES
_WITH_PAYLOADS = _WITH_MARK + (
    "CREATE TABLE beside (identity BLOB NOT NULL, changes INTEGER NOT NULL, nonce BLOB NOT NULL);"
    "CREATE TABLE outside (place INTEGER PRIMARY KEY, length INTEGER NOT NULL);"
)
_ENTRY_TYPES = (int, str, int, str, str, float, float, float, float, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        silo: The silo of the ledger.
        releases: The number of entries.
        former_head: The hash of the last entry in the old ledger; empty without entries.
    """

    silo: str
    releases: int
    former_head: str


def convert_ledger(old: PathLike, new: PathLike, charges_of: Callable[[str], Charges] = lambda _: {}) -> Conversion:
    """Converts a ledger of an earlier format to a new file; afterwards the old file allows no release.

    The chain and every payload are checked before the first write. The new ledger keeps the old hash of every entry, so
    that a witness of the old ledger finds the witnessed hash in the new ledger.

    Args:
        old: The ledger, closed by the version of Fulcrum that wrote the ledger.
        new: The file to write: a missing file, or the unfinished file of an interrupted conversion of the same ledger.
        charges_of: Returns, for a silo and by plan, the cost of a release for every observer, and the allowance.

    Raises:
        LedgerError: The old ledger is damaged, was not closed, or was converted before; or the cost or allowance of a
            plan is not the cost or allowance in the ledger. Both files are unchanged.
    """
    source, target = Path(os.path.realpath(old)), Path(os.path.realpath(new))
    with LedgerFile.translating_errors(source, "converted"), contextlib.ExitStack() as held:
        LedgerFile.check_file(source, writable=True)
        hold = held.enter_context(lock_file(source, exclusive=True))
        version, successor = _header(source, hold)
        unfinished = _check_target(target)
        if version == CONVERTED:
            if not unfinished or _identity(target) != successor:
                raise StorageError("conversion.done-before", file=source)
        else:
            try:
                ledger = _read(source, hold, version)
            except (TypeError, ValueError, struct.error):  # values of other types than those that were written
                raise _damage_error(source, "it does not hold what a ledger holds") from None
            entries, allowances = _convert_entries(source, ledger, charges_of(ledger.silo))
            # The unfinished file may be the only ledger that another silo still has: its old file may be marked.
            if unfinished and not _is_of(target, ledger):
                raise StorageError("conversion.target-of-other-ledger", file=target)
            _write(target, ledger, entries, allowances, replaces=unfinished)
            _patch(hold, struct.pack(">I4xI16s", CONVERTED, LedgerFile.application, _identity(target)))
        with io.FileIO(target, "r+") as new_file:
            _patch(new_file, struct.pack(">I", FORMAT))
    with reading(LedgerFile, target) as ledger_file:
        contents = ledger_file.contents()
    ledger_file.close()
    return Conversion(
        silo=contents.silo,
        releases=len(contents.entries),
        former_head=(contents.entries[-1].former_hash or "") if contents.entries else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Former:
    """The content of a ledger of an earlier format: rows in the order of the columns, and every payload.

    A large payload is in a separate file, `beside`; `payloads` then has the place and length in the file.
    """

    silo: str
    plan: str | None
    plans: list[tuple[str, int, float, float]]
    entries: list[tuple[Any, ...]]
    payloads: list[bytes | tuple[int, int]]
    beside: Path

    def payload(self, index: int) -> bytes:
        """Returns the released bytes of the entry with the number `index`, from 0."""
        held = self.payloads[index]
        if isinstance(held, bytes):
            return held
        with self.beside.open("rb") as file:
            file.seek(held[0])
            return file.read(held[1])


def _header(file: Path, hold: io.FileIO) -> tuple[int, bytes]:
    """Returns a ledger's format, and the identity of the new file of an earlier conversion."""
    hold.seek(0)
    header = hold.read(100)
    version, application, successor = struct.unpack(">I4xI16s", header[60:88]) if len(header) == 100 else (0, 0, b"")
    if not header.startswith(b"SQLite format 3\0") or application != LedgerFile.application:
        raise StorageError("conversion.not-a-ledger", file=file, wanted=LedgerFile.wanted)
    if version != CONVERTED and not 1 <= version < FORMAT:
        raise StorageError("conversion.format-unsupported", file=file, format=version, last=FORMAT - 1)
    return version, successor


class _UnfinishedFile(LedgerFile):
    """A ledger during a conversion. No other class opens the file: after a crash there is no second ledger in use."""

    version = UNFINISHED


def _check_target(target: Path) -> bool:
    """Returns True for an unfinished ledger in the place of the new file; refuses any other file there and beside.

    A journal beside the new file would be detected only after both ledgers are marked, with no way back.
    """
    if not target.parent.is_dir():
        raise StorageError("storage.folder-missing", folder=target.parent)
    for beside in files_beside(target):
        if os.path.lexists(beside):
            raise StorageError("conversion.file-beside", file=beside)
    if not os.path.lexists(target):
        return False
    header = b""
    if stat.S_ISREG(target.lstat().st_mode):  # opening a pipe would wait for ever
        with io.FileIO(target) as hold:
            header = hold.read(100)
    if header[60:64] != bytes(4) or header[68:72] != struct.pack(">I", LedgerFile.application):
        raise StorageError("conversion.target-exists", file=target)
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.new"):
        if path.samefile(target):  # the temporary name: a conversion was killed before removing the name
            path.unlink()
    return True


def _is_of(target: Path, ledger: _Former) -> bool:
    """Returns True if an unfinished file holds the releases of a ledger, compared by the old hashes."""
    with reading(_UnfinishedFile, target) as file, contextlib.closing(file):
        silos = file.rows("SELECT name FROM silo")
        hashes = [row[0] for row in file.rows("SELECT former_hash FROM entry ORDER BY sequence")]
    return silos == [(ledger.silo,)] and hashes == [row[-1] for row in ledger.entries]


def _identity(target: Path) -> bytes:
    with reading(_UnfinishedFile, target) as file, contextlib.closing(file):
        return bytes.fromhex(file.identity)


def _patch(file: io.FileIO, data: bytes) -> None:
    """Writes into the header of a file, from the format on, and syncs; the header lies in one block of the disk."""
    file.seek(60)
    file.write(data)
    sync_file(file.fileno())


def _read(file: Path, hold: io.FileIO, version: int) -> _Former:
    """Returns the content of a closed ledger of an earlier format, with the chain and every payload checked."""
    unclosed = StorageError("conversion.ledger-not-closed", file=file)
    for name in ("-wal", "-journal"):
        beside = file.with_name(file.name + name)
        if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
            raise StorageError("storage.not-a-journal", journal=beside, file=file.name)
        if os.path.lexists(beside) and beside.stat().st_size:
            raise unclosed
    if version > 1 and not _is_marked_whole(hold):
        raise unclosed
    beside = file.with_name(f"{file.name}-payloads")
    schema = _TABLES if version == 1 else _WITH_PAYLOADS if os.path.lexists(beside) else _WITH_MARK
    with contextlib.closing(read_only(file, schema, grown=True)) as connection:
        if (fault := connection.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise _damage_error(file, in_one_line(fault))
        silos = connection.rows("SELECT name, plan FROM silo")
        plans = connection.rows("SELECT digest, rounds, shift_above, shift_inside FROM plan")
        entries = connection.rows("SELECT * FROM entry ORDER BY sequence")
        payloads = connection.rows("SELECT sequence, bytes FROM payload ORDER BY sequence")
        lengths = _lengths(file, beside, connection) if schema == _WITH_PAYLOADS else {}
    if len(silos) != 1 or [number for number, _ in payloads] != list(range(1, len(entries) + 1)):
        raise _damage_error(file, "it does not hold what a ledger holds")
    ledger = _Former(
        silo=silos[0][0],
        plan=silos[0][1],
        plans=plans,
        entries=entries,
        payloads=[(held, lengths.get(held, 0)) if isinstance(held, int) else held for _, held in payloads],
        beside=beside,
    )
    _check(file, ledger)
    return ledger


def _is_marked_whole(hold: io.FileIO) -> bool:
    """Returns True if the mark in an earlier ledger file says that no journal belongs to it."""
    hold.seek(2 * _PAGE_BYTES - 2 * _SLOT_BYTES)
    slots, marks = hold.read(2 * _SLOT_BYTES), []
    for data in (slots[:_SLOT_BYTES], slots[_SLOT_BYTES:]):
        fields = data[: _MARK.size]
        if hashlib.sha256(fields).digest() == data[_MARK.size : _MARK.size + 32]:
            marks.append(_MARK.unpack(fields)[:2])
    return bool(marks) and bool(max(marks)[1])


def _lengths(file: Path, beside: Path, connection: BoundedConnection) -> dict[int, int]:
    """Returns the lengths of large payloads by place; refuses a file of payloads of another ledger or time."""
    identity, changes, nonce = connection.execute("SELECT identity, changes, nonce FROM beside").fetchone()
    lengths = dict(connection.rows("SELECT place, length FROM outside ORDER BY place"))
    ends = [end for place, size in lengths.items() for end in (place, place + size)]
    packed = struct.pack(f">{len(ends)}Q", *ends)
    if not beside.is_file():
        raise StorageError("conversion.payloads-not-a-file", file=beside)
    with beside.open("rb") as payloads:
        head = payloads.read(4 * _BLOCK_BYTES)
    number, digest = _STAMP.unpack(head[3 * _BLOCK_BYTES :][: _STAMP.size].ljust(_STAMP.size, b"\0"))
    if head[: len(identity)] != identity or (
        changes and (number, digest) != (changes, hashlib.sha256(nonce + packed).digest())
    ):
        raise StorageError("conversion.payloads-foreign", file=file, payloads=beside.name)
    return lengths


def _check(file: Path, ledger: _Former) -> None:
    """Refuses a ledger whose chain, sums or payloads contradict each other."""
    previous = _digest(["fulcrum.ledger", 1, ledger.silo])
    rounds = {digest: allowed for digest, allowed, _, _ in ledger.plans}
    if ledger.plan is not None and ledger.plan not in rounds:
        raise _damage_error(file, "it does not hold its current plan")
    for number, row in enumerate(ledger.entries, 1):
        if tuple(map(type, row)) != _ENTRY_TYPES or row[0] != number:
            raise _damage_error(file, f"entry {number} is missing, or not as it was recorded")
        if row[9] != _digest([previous, *row[:5], *(figure.hex() for figure in row[5:9])]):
            raise _damage_error(file, f"entry {number} does not follow from those before it")
        if not 1 <= row[2] <= rounds.get(row[1], 0):
            raise _damage_error(file, f"entry {number} is beyond its plan")
        if hashlib.sha256(ledger.payload(number - 1)).hexdigest() != row[4]:
            raise _damage_error(file, f"the bytes of entry {number} are not those released")
        previous = row[9]
    costs = [Cost(shifts={"inside": row[6], "above": row[5]}) for row in ledger.entries]
    stated = [Cost(shifts={"inside": row[8], "above": row[7]}) for row in ledger.entries[-1:]]
    if costs and [Cost.total(costs, ("inside", "above"))] != stated:
        raise _damage_error(file, "costs do not add up to what its last entry says was spent")


def _convert_entries(file: Path, ledger: _Former, charges: Charges) -> tuple[list[Entry], list[Allowance]]:
    """Returns the entries and allowances of the new ledger, with every observer by name."""
    missing = sorted({plan for _, plan, *_ in ledger.entries if plan not in charges})
    if missing:
        digests = ", ".join(digest[:12] for digest in missing)
        raise StorageError("conversion.plans-missing", file=file, plans=digests)
    allowances, costs = {}, {}
    for digest, rounds, above, inside in ledger.plans:
        allowance = Allowance(plan_digest=digest, rounds=rounds, shifts={INSIDE: inside})
        if digest in charges:
            cost, planned = charges[digest]
            if (planned.rounds, *tuple(planned.shifts.values())[:2]) != (rounds, inside, above):
                raise StorageError("conversion.allowance-differs", plan=digest, file=file, allowance=planned)
            costs[digest], allowance = cost, planned
        allowances[digest] = allowance
    entries: list[Entry] = []

    def charge(entry: Entry, plan: str, observers: Sequence[str]) -> Cost:
        before, later = allowances[entry.plan_digest].assumptions, allowances[plan].assumptions
        return entry.cost.charge_to(observers, before, later)

    for sequence, plan, number, input_digest, digest, above, inside, _, _, former in ledger.entries:
        cost = costs[plan]
        if tuple(cost.shifts.values())[:2] != (inside, above):
            raise StorageError("conversion.cost-differs", plan=plan, file=file, cost=cost)
        observers = tuple(cost.shifts)
        entry = Entry(
            sequence=sequence,
            plan_digest=plan,
            round_number=number,
            input_digest=input_digest,
            payload_digest=digest,
            cost=cost,
            spent=Cost.total([*(charge(entry, plan, observers) for entry in entries), cost], observers),
            former_hash=former,
        )
        previous = entries[-1].chain_hash if entries else genesis(ledger.silo)
        entries.append(replace(entry, chain_hash=chain_hash(previous, entry)))
    return entries, list(allowances.values())


def _write(target: Path, ledger: _Former, entries: list[Entry], allowances: list[Allowance], *, replaces: bool) -> None:
    """Writes and checks the new ledger, then links the file to its name; the file does not open until marked finished.

    Args:
        target: The name of the new ledger.
        ledger: The old ledger.
        entries: The entries of the new ledger.
        allowances: The allowances of the plans.
        replaces: True to replace an unfinished file.
    """

    def statements() -> Iterator[Statement]:
        head = entries[-1].chain_hash if entries else genesis(ledger.silo)
        yield "INSERT INTO silo VALUES (?, ?, ?, ?)", (ledger.silo, ledger.plan, len(entries), head)
        for allowance in allowances:
            yield "INSERT INTO plan VALUES (?, ?, ?, ?)", plan_row(allowance)
        for index, entry in enumerate(entries):
            yield INSERT_ENTRY, row_of(entry)
            yield "INSERT INTO payload VALUES (?, ?)", (entry.sequence, ledger.payload(index))

    new = _UnfinishedFile.build_file(target, statements())
    try:
        for check in checks_of_file(_UnfinishedFile, new):
            if not check.holds:
                raise StorageError("conversion.check-failed", file=target, check=check.name, detail=check.detail)
        if replaces:
            new.replace(target)
        else:
            target.hardlink_to(new)
        sync_folder(target.parent)
    finally:
        new.unlink(missing_ok=True)


def _damage_error(file: Path, what: str) -> StorageError:
    return StorageError("conversion.ledger-damaged", file=file, fault=what)


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
