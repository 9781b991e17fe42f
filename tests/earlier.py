"""Ledgers of earlier formats: as versions of then wrote them, and as they would have been for any plan."""

import contextlib
import hashlib
import json
import math
import sqlite3
import zlib
from pathlib import Path

HEAD = "f5bf6e10b145034e3f6aa14cc4b14a75d69b24ee4d1a9a6928eb4e2b869cd3f5"
"""Of the ledgers with two releases, in every format."""

LARGE_HEAD = "f2815945a186bbc7fc363d1147dc774103cd2aa0157936e431282f47c41f4f0b"
LARGE = [b"round 1", b"ab" * 600_000, b"cd" * 700_000]


def unpack(name: str, path: Path) -> Path:
    """Puts a ledger where it is wanted, with what was left beside it."""
    for packed in (Path(__file__).parent / "ledger" / "earlier_ledgers").glob(f"{name}*.zlib"):
        beside = packed.name.removesuffix(".zlib").removeprefix(name)
        if beside in ("", "-wal", "-payloads"):
            path.with_name(path.name + beside).write_bytes(zlib.decompress(packed.read_bytes()))
    return path


def write_format_1(path: Path, silo: str, allowed, releases) -> str:
    """Writes a ledger as the first version did, and returns its head.

    Args:
        path: The file.
        silo: Whose it is.
        allowed: By plan, its rounds and its budgets above and inside.
        releases: Plan, round, basis, payload, and the costs above and inside.
    """
    head = _digest(["fulcrum.ledger", 1, silo])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=32768")
        connection.execute("PRAGMA application_id=0x46554C43")
        connection.execute("PRAGMA user_version=1")
        connection.executescript(TABLES)
        connection.execute("INSERT INTO silo VALUES (?, ?)", (silo, next(reversed(allowed), None)))
        for plan, numbers in allowed.items():
            connection.execute("INSERT INTO plan VALUES (?, ?, ?, ?)", (plan, *numbers))
        costs = []
        for sequence, (plan, number, basis, payload, above, inside) in enumerate(releases, 1):
            costs.append((above, inside))
            spent = [math.fsum(values) for values in zip(*costs, strict=True)]
            facts = [sequence, plan, number, basis, hashlib.sha256(payload).hexdigest()]
            figures = [above, inside, *spent]
            head = _digest([head, *facts, *(figure.hex() for figure in figures)])
            connection.execute("INSERT INTO entry VALUES (?,?,?,?,?,?,?,?,?,?)", (*facts, *figures, head))
            connection.execute("INSERT INTO payload VALUES (?, ?)", (sequence, payload))
    return head


def _digest(parts) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


TABLES = """
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
