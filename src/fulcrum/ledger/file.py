"""The file beneath a ledger: its format, and what is written to it and read from it.

What a ledger allows is in `fulcrum.ledger.ledger`, which is the module to use. Why there is a log beside an open file,
and how to copy the two, is in `fulcrum.storage.database`; where large payloads are, in `fulcrum.storage.payloads`.
"""

import contextlib
from typing import Self

from fulcrum.errors import LedgerError, LedgerInUseError
from fulcrum.ledger.entries import Allowance, Entry, EntryRow, entry_of
from fulcrum.storage.database import PathLike
from fulcrum.storage.payloads import FileWithPayloads

FORMAT = 4
"""Of the file. Format 1 has no mark of how far its log goes, format 2 no payloads beside it, format 3 no stamp of them.

All are read but those of format 3 that have payloads beside them.
"""

HASH_FORMAT = 1
"""Of the hashes in it."""

_SCHEMA = """
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
_ENTRY_TYPES = (int, str, int, str, str, float, float, float, float, str)


class LedgerFile(FileWithPayloads):
    """A ledger's file, held and connected to; made by `opened` and `reading`.

    It knows what a ledger holds and how, not what may be put into it. Its methods are called with `lock` taken.
    """

    application = 0x46554C43  # "FULC"
    version = FORMAT
    schema = _SCHEMA
    noun = "a ledger"
    wanted = "the file of the ledger"
    advice = "Restore a copy and compare it with a witness"
    error = LedgerError
    in_use = LedgerInUseError

    @classmethod
    def opened(cls, path: PathLike, *, silo: str, create: bool) -> contextlib.AbstractContextManager[Self]:
        """Opens a file to release from, creating it for the silo where there is none and `create` allows it."""
        return cls.writing(path, ("INSERT INTO silo VALUES (?, NULL)", (silo,)) if create else None)

    def contents(self) -> tuple[str, str | None, dict[str, Allowance], list[Entry]]:
        """Returns the silo, its current plan, all its plans and its entries, each of the type it was written as."""
        damaged = LedgerError(f"{self.path} is damaged: it does not hold what a ledger holds")
        silos = self.connection.execute("SELECT name, plan FROM silo").fetchall()
        if len(silos) != 1 or not isinstance(silos[0][0], str) or not isinstance(silos[0][1], str | None):
            raise damaged
        plans, entries = {}, []
        try:
            for digest, rounds, above, inside in self.connection.execute("SELECT * FROM plan"):
                plans[digest] = Allowance(plan_digest=digest, rounds=rounds, shift_above=above, shift_inside=inside)
            for row in self.connection.execute("SELECT * FROM entry ORDER BY sequence"):
                if tuple(map(type, row)) != _ENTRY_TYPES:
                    raise damaged
                entries.append(entry_of(row))
        except LedgerError:
            raise damaged from None
        if silos[0][1] is not None and silos[0][1] not in plans:
            raise damaged
        return silos[0][0], silos[0][1], plans, entries

    def payload(self, sequence: int) -> object:
        """Returns what is stored as the bytes of an entry, unchecked; None where nothing is."""
        found = self.rows("SELECT bytes FROM payload WHERE sequence = ?", sequence)
        return self.content(found[0][0]) if found else None

    def payload_count(self) -> int:
        """Returns how many payloads are stored."""
        return int(self.rows("SELECT count(*) FROM payload")[0][0])

    def integrity(self) -> list[str]:
        """Returns the first thing that SQLite finds wrong with the file, or "ok"."""
        return [str(row[0]) for row in self.rows("PRAGMA integrity_check(1)")]

    def add_plan(self, allowance: Allowance) -> None:
        """Stores a plan, unless it is there, and makes it the current one; synced when it returns."""
        numbers = (allowance.plan_digest, allowance.rounds, allowance.shift_above, allowance.shift_inside)
        self.write(
            ("INSERT OR IGNORE INTO plan VALUES (?, ?, ?, ?)", numbers),
            ("UPDATE silo SET plan = ?", (allowance.plan_digest,)),
        )

    def add_entry(self, row: EntryRow, held: object) -> None:
        """Stores an entry and its payload, as `keep` returned it; synced when it returns."""
        self.write(
            ("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row),
            ("INSERT INTO payload VALUES (?, ?)", (row[0], held)),
        )
