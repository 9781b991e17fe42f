"""The SQLite file of a ledger: format, rows and payloads.

The rules of a ledger are in `fulcrum.core.store.ledger`, the module to use. Locking, syncing and copying of the file
are in `fulcrum.core.store.database`.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

from fulcrum.core.store.database import Content, DatabaseFile, PathLike, Statement
from fulcrum.core.store.disk_sync import running_thread
from fulcrum.core.store.ledger_entries import Allowance, Assumptions, Cost, Entry
from fulcrum.errors import LedgerError, LedgerInUseError, StorageError

FORMAT = 5
"""Of the file. Earlier formats have two observers and no names of tiers; `fulcrum ledger convert` writes a new file."""

MOST_AT_ONCE = 2**20
"""The largest payload, in bytes, that is written in one commit with the entry.

The digest of a larger payload is computed while SQLite writes and syncs the payload, and the entry follows in a second
commit: at 80 MB two commits take a third less time.
"""

UNFINISHED, CONVERTED = 0, 2**31 - 1
"""In the place of the format: a ledger that a conversion is writing, and a ledger that was converted."""

_SCHEMA = """
CREATE TABLE silo (name TEXT NOT NULL, plan TEXT, entries INTEGER NOT NULL, head TEXT NOT NULL);
CREATE TABLE plan (digest TEXT PRIMARY KEY, rounds INTEGER NOT NULL, shifts TEXT NOT NULL, assumptions TEXT);
CREATE TABLE entry (
    sequence INTEGER PRIMARY KEY, plan TEXT NOT NULL, round INTEGER NOT NULL, basis TEXT NOT NULL,
    payload_digest TEXT NOT NULL, cost TEXT NOT NULL, spent TEXT NOT NULL, former_hash TEXT, hash TEXT NOT NULL,
    UNIQUE (plan, round)
);
CREATE TABLE payload (sequence INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
"""
_PLANS = "SELECT digest, rounds, shifts, assumptions FROM plan"
_Row: TypeAlias = tuple[int, str, int, str, str, str, str, str | None, str]
_TYPES: tuple[Any, ...] = (int, str, int, str, str, str, str, str | None, str)


class Contents(NamedTuple):
    """The content of a ledger: silo, current plan, number and head of the entries, all plans, all entries."""

    silo: str
    plan: str | None
    recorded: int
    head: str
    plans: dict[str, Allowance]
    entries: list[Entry]


class LedgerFile(DatabaseFile):
    """A ledger's file, locked and connected to; made by `opening` and `reading`.

    The class stores the content of a ledger, and does not know the rules. Callers of the methods hold `lock`.
    """

    application = 0x46554C43  # "FULC"
    version = FORMAT
    schema = _SCHEMA
    noun = "a ledger"
    wanted = "the file of the ledger"
    advice = "Restore a copy and compare it with a witness"
    older = "Run: fulcrum ledger convert OLD NEW"
    error = LedgerError
    in_use = LedgerInUseError

    @classmethod
    def check_format(cls, file: Path, version: int) -> None:
        """Refuses a file of another format, a converted ledger, and a ledger of an unfinished conversion."""
        if version == UNFINISHED != cls.version:
            raise StorageError("ledger.conversion-unfinished", file=file)
        if version == CONVERTED:
            raise StorageError("ledger.converted", file=file)
        super().check_format(file, version)

    @classmethod
    def opening(cls, path: PathLike, *, silo: str, head: str, create: bool) -> contextlib.AbstractContextManager[Self]:
        """Opens a file to release from; makes a new file for the silo if none exists and `create` is true."""
        return cls.writing(path, first_row(silo, head) if create else None)

    def contents(self) -> Contents:
        """Returns all content except payloads; raises `LedgerError` for a value of another type than was written."""
        damaged = LedgerError("ledger.content-damaged", file=self.path)
        silos = self.rows("SELECT name, plan, entries, head FROM silo")
        if len(silos) != 1 or not _are(silos[0], (str, str | None, int, str)):
            raise damaged
        plans, entries = {}, []
        try:
            for digest, rounds, shifts, assumed in self.rows(_PLANS):
                plans[digest] = Allowance(
                    plan_digest=digest,
                    rounds=rounds,
                    shifts=Cost.from_text(shifts).shifts,
                    assumptions=None if assumed is None else Assumptions.from_text(assumed),
                )
            for row in self.rows("SELECT * FROM entry ORDER BY sequence"):
                if not _are(row, _TYPES):
                    raise damaged
                entries.append(_entry_of(row))
        except LedgerError:
            raise damaged from None
        if silos[0][1] is not None and silos[0][1] not in plans:
            raise damaged
        silo, plan, recorded, head = silos[0]
        return Contents(silo=silo, plan=plan, recorded=recorded, head=head, plans=plans, entries=entries)

    def payload(self, sequence: int) -> bytes | None:
        """Returns the payload of an entry, unchecked; None if there is no payload."""
        return self.content("payload", sequence)

    def payload_numbers(self) -> list[Any]:
        """Returns the numbers of entries with payloads; after an interrupted release, also the next number."""
        return [row[0] for row in self.rows("SELECT sequence FROM payload ORDER BY sequence")]

    def integrity(self) -> list[str]:
        """Returns the first fault that SQLite finds in the file, or "ok"."""
        return [str(row[0]) for row in self.rows("PRAGMA integrity_check(1)")]

    def add_plan(self, allowance: Allowance) -> None:
        """Stores a plan, unless the plan is stored, and makes the plan the current plan; synced at the return."""
        row = plan_row(allowance)
        self.write(
            ("INSERT OR IGNORE INTO plan VALUES (?, ?, ?, ?)", row),
            ("UPDATE silo SET plan = ?", (allowance.plan_digest,)),
            proofs=(
                (_PLANS + " WHERE digest = ?", row[:1], [row]),
                ("SELECT plan FROM silo", (), [row[:1]]),
            ),
        )

    def store_payload(self, sequence: int, payload: bytes) -> tuple[str, bytes | None]:
        """Stores a large payload, synced and read back at the return; the next entry makes the payload a release.

        Returns:
            The digest, and a small payload, which is still to be stored together with the entry.
        """
        sha = hashlib.sha256()
        if len(payload) <= MOST_AT_ONCE:
            sha.update(payload)
            return sha.hexdigest(), payload
        with running_thread(lambda: sha.update(payload)) as started:
            if not started:
                sha.update(payload)
            self.write(content=_content(sequence, payload))
        return sha.hexdigest(), None

    def add_entry(self, entry: Entry, payload: bytes | None) -> None:
        """Stores an entry, together with a payload that is not stored yet; synced and read back at the return."""
        row = row_of(entry)
        last = (entry.sequence, entry.chain_hash)
        self.write(
            (INSERT_ENTRY, row),
            ("UPDATE silo SET entries = ?, head = ?", last),
            content=None if payload is None else _content(entry.sequence, payload),
            proofs=(
                ("SELECT * FROM entry WHERE sequence = ?", row[:1], [row]),
                # Not by the index: opening has read every row of the table, but SQLite would count a forged, endless
                # index for ever, without a call to the handler that limits work.
                ("SELECT count(*) FROM entry NOT INDEXED", (), [row[:1]]),
                ("SELECT entries, head FROM silo", (), [last]),
            ),
        )

    def forget_unrecorded(self, count: int) -> None:
        """Erases the payload of an interrupted release: the payload has no entry, and was never sent."""
        if any(number > count for number in self.payload_numbers()):
            self.write(("DELETE FROM payload WHERE sequence > ?", (count,)))
            self.in_doubt = False


def _content(sequence: int, payload: bytes) -> Content:
    return Content("payload", "INSERT OR REPLACE INTO payload VALUES (?, zeroblob(?))", (sequence,), payload)


INSERT_ENTRY = "INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def first_row(silo: str, head: str) -> Statement:
    """Returns the statement for the first row of a silo's new ledger."""
    return "INSERT INTO silo VALUES (?, NULL, 0, ?)", (silo, head)


def plan_row(allowance: Allowance) -> tuple[str, int, str, str | None]:
    """Returns the row of a plan in the file, in the order of the columns."""
    assumed = None if allowance.assumptions is None else allowance.assumptions.to_text()
    return allowance.plan_digest, allowance.rounds, Cost(shifts=allowance.shifts).to_text(), assumed


def row_of(entry: Entry) -> _Row:
    """Returns the row of an entry in the file, in the order of the columns."""
    release = (entry.sequence, entry.plan_digest, entry.round_number, entry.input_digest, entry.payload_digest)
    return (*release, entry.cost.to_text(), entry.spent.to_text(), entry.former_hash, entry.chain_hash)


def _entry_of(row: _Row) -> Entry:
    return Entry(
        sequence=row[0],
        plan_digest=row[1],
        round_number=row[2],
        input_digest=row[3],
        payload_digest=row[4],
        cost=Cost.from_text(row[5]),
        spent=Cost.from_text(row[6]),
        former_hash=row[7],
        chain_hash=row[8],
    )


def _are(values: tuple[object, ...], types: tuple[Any, ...]) -> bool:
    return all(isinstance(value, kind) for value, kind in zip(values, types, strict=True))
