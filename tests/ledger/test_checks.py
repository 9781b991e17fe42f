"""The chain of entries and its verification."""

import contextlib
import dataclasses
import hashlib
import json
import math
import shutil
import sqlite3

import pytest
from error_codes import coded
from ledgers import COST, PLAN, holds, opened, release, says

from fulcrum.core.store.ledger import Cost, genesis
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError


def test_entries_tell_what_was_released_and_chain_up(path):
    with opened(path) as ledger:
        empty = ledger.head
        release(ledger, 1, b"one")
        release(ledger, 2, b"two", input_digest="model-1")
        first, second = ledger.entries()
        assert (first.sequence, first.plan_digest, first.round_number, first.input_digest) == (1, "plan-a", 1, "model")
        assert second.payload_digest == hashlib.sha256(b"two").hexdigest()
        assert (second.cost, second.spent) == (COST, ledger.total_cost)
        assert len({empty, first.chain_hash, second.chain_hash}) == 3
        assert ledger.head == second.chain_hash


def test_the_hash_covers_the_silo_and_every_field(tmp_path):
    heads = set()
    for number, (silo, plan, round_number, basis, payload, cost) in enumerate(
        [
            ("lyon", "p", 1, "m", b"x", COST),
            ("nice", "p", 1, "m", b"x", COST),
            ("lyon", "q", 1, "m", b"x", COST),
            ("lyon", "p", 2, "m", b"x", COST),
            ("lyon", "p", 1, "n", b"x", COST),
            ("lyon", "p", 1, "m", b"y", COST),
            ("lyon", "p", 1, "m", b"x", Cost(shifts={"silo": math.nextafter(1.0, 2), "region": 0.25})),
            ("lyon", "p", 1, "m", b"x", Cost(shifts={"silo": 1.0, "region": math.nextafter(0.25, 1)})),
        ]
    ):
        with opened(tmp_path / f"{number}", dataclasses.replace(PLAN, plan_digest=plan), silo) as ledger:
            release(ledger, round_number, payload, basis, cost)
            heads.add(ledger.head)
    assert len(heads) == 8


def test_a_sound_ledger_passes_every_check(path):
    with opened(path) as ledger:
        assert all(check.holds for check in verify_ledger(ledger))
        release(ledger, 1)
        release(ledger, 2)
        head = ledger.head
        assert all(check.holds for check in verify_ledger(ledger, least_sequence=2, witnessed_hash=head))
    seen = holds(path, least_sequence=2, witnessed_hash=head)
    assert list(seen) == [
        "file", "sequence", "chain", "sums", "rounds", "allowance", "payloads", "witness", "witnessed hash",
    ]  # fmt: skip
    assert all(seen.values())


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ("UPDATE entry SET basis = 'other' WHERE sequence = 2", {"chain"}),
        ("UPDATE entry SET plan = 'plan-z' WHERE sequence = 2", {"chain", "allowance"}),
        ("UPDATE entry SET round = 4 WHERE sequence = 2", {"chain"}),
        ("UPDATE entry SET cost = replace(cost, '0x1.0', '0x1.4') WHERE sequence = 2", {"chain", "sums"}),
        ("UPDATE entry SET spent = cost WHERE sequence = 3", {"chain", "sums"}),
        (
            'UPDATE entry SET cost = \'[["silo","0x1.0000000000000p+0"]]\' WHERE sequence = 3',
            {"chain", "sums", "allowance"},
        ),
        ("UPDATE entry SET former_hash = 'f00d' WHERE sequence = 3", {"chain"}),
        ("UPDATE entry SET hash = 'f00d' WHERE sequence = 3", {"chain"}),
        ("DELETE FROM entry WHERE sequence = 1", {"sequence", "chain", "sums", "payloads"}),
        ("DELETE FROM entry WHERE sequence = 2", {"sequence", "chain", "sums", "payloads"}),
        ("DELETE FROM entry WHERE sequence = 3", {"sequence", "chain", "payloads"}),
        ("DELETE FROM entry WHERE sequence = 3; DELETE FROM payload WHERE sequence = 3", {"sequence", "chain"}),
        ("UPDATE silo SET entries = 2", {"sequence"}),
        ("UPDATE silo SET entries = 4", {"sequence"}),
        ("UPDATE silo SET head = (SELECT hash FROM entry WHERE sequence = 2)", {"chain"}),
        ("INSERT INTO payload VALUES (5, x'00')", {"payloads"}),
        ("INSERT INTO payload VALUES (0, x'00')", {"payloads"}),
        ("UPDATE payload SET bytes = x'00' WHERE sequence = 2", {"payloads"}),
        ("DELETE FROM payload WHERE sequence = 2", {"payloads"}),
        ("UPDATE plan SET rounds = 2", {"allowance"}),
        ("UPDATE silo SET name = 'nice'", {"chain"}),
        (
            "UPDATE entry SET sequence = 9 WHERE sequence = 1; UPDATE entry SET sequence = 1 WHERE sequence = 2;"
            "UPDATE entry SET sequence = 2 WHERE sequence = 9",
            {"chain", "payloads"},
        ),
    ],
)
def test_a_changed_removed_or_reordered_entry_is_noticed(path, change, failing):
    with opened(path) as ledger:
        for number in (1, 2, 3):
            release(ledger, number)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    assert {name for name, held in holds(path).items() if not held} == failing
    if failing != {"payloads"}:
        for work in (opened, read_ledger):  # what is forged is neither released from nor shown
            with pytest.raises(LedgerError, match=r"damaged|is the ledger of silo") as error:
                work(path)
            says(error)


def rechain(connection):
    """Gives every entry the hash that its columns have."""
    (silo,) = connection.execute("SELECT name FROM silo").fetchone()
    head = genesis(silo)
    for row in connection.execute("SELECT * FROM entry ORDER BY sequence").fetchall():
        head = hashlib.sha256(json.dumps([head, *row[:-1]], separators=(",", ":")).encode()).hexdigest()
        connection.execute("UPDATE entry SET hash = ? WHERE sequence = ?", (head, row[0]))
    connection.execute("UPDATE silo SET head = ?", (head,))


def test_a_round_released_twice_is_noticed(path):
    with opened(path) as ledger:
        release(ledger, 1)
        release(ledger, 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        kept = connection.execute(
            "SELECT rowid, * FROM sqlite_master WHERE name = 'sqlite_autoindex_entry_1'"
        ).fetchone()
        sql = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'entry'").fetchone()[0]
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, ',\n    UNIQUE (plan, round)', '') WHERE name = 'entry'"
        )
        connection.execute("DELETE FROM sqlite_master WHERE rowid = ?", kept[:1])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE entry SET round = 1")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(
            "INSERT INTO sqlite_master (rowid, type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?, ?)", kept
        )
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'entry'", (sql,))
        rechain(connection)
    assert holds(path) == {"file": False}
    with pytest.raises(LedgerError, check=coded("ledger.check-failed", fault="1 releases of a round already released")):
        opened(path)


def test_a_restored_old_copy_is_noticed_by_whoever_saw_the_newer_number(path, tmp_path):
    with opened(path) as ledger:
        release(ledger, 1)
    copy = shutil.copy(path, tmp_path / "backup")
    with opened(path) as ledger:
        release(ledger, 2, b"sent")
        seen, head = ledger.sequence, ledger.head
    assert all(holds(path, least_sequence=seen, witnessed_hash=head).values())
    shutil.copy(copy, path)
    assert all(holds(path).values())
    assert [name for name, held in holds(path, least_sequence=seen).items() if not held] == ["witness"]
    with opened(path) as ledger:
        release(ledger, 2, b"something else")
    assert all(holds(path, least_sequence=seen).values())
    assert not holds(path, witnessed_hash=head)["witnessed hash"]


def test_the_method_that_made_the_checks_before_tells_of_the_function(tmp_path):
    with opened(tmp_path / "lyon.ledger") as ledger:
        with pytest.deprecated_call(match=r"Use fulcrum.verify_ledger\(ledger\)"):
            before = ledger.checks(least_sequence=0)
        assert before == verify_ledger(ledger, least_sequence=0)
