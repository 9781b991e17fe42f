"""Small files with b-trees that never end: refused in one line, in bounded time and memory."""

import contextlib
import json
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from error_codes import coded
from journaled_files import KINDS, PLAN, Book, Rounds

from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.store import sqlite_connection as connections
from fulcrum.core.store.commit_mark import PAGE_BYTES
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError

LEVELS, CHILDREN = 8, 100
_INTERIOR = {13: 5, 10: 2}  # by the kind of a leaf page: a table's, an index's


def make_endless(path, name):
    """Gives a table or index 100^8 rows: every page of its b-tree names one child a hundred times."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchall()
    root = rows[0][0] if rows else 1
    data = bytearray(path.read_bytes())
    page = data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES]
    start = 100 if root == 1 else 0
    kind, cells = page[start], struct.unpack_from(">H", page, start + 3)[0]
    places = struct.unpack_from(f">{cells}H", page, start + 8)
    if root == 1:  # SQLite takes a row of an automatic index as often as it comes
        places = [place for place in places if b"sqlite_autoindex" in page[place : place + 80]][:1]
    leaf = bytearray(PAGE_BYTES)
    leaf[108 + 2 * cells :] = page[108 + 2 * cells :]
    struct.pack_into(f">BHHHB{len(places)}H", leaf, 0, kind, 0, len(places), min(places), 0, *places)
    data += leaf
    key = b"" if kind == 13 else bytes(page[places[0] : places[0] + 1 + page[places[0]]])
    for level in range(LEVELS):
        child = len(data) // PAGE_BYTES
        top = level == LEVELS - 1
        interior = _interior(_INTERIOR[kind], child, key, start if top else 0)
        if top:
            interior[:start] = page[:start]
            data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = interior
        else:
            data += interior
    struct.pack_into(">I", data, 28, len(data) // PAGE_BYTES)
    path.write_bytes(data)


def _interior(kind, child, key, start):
    page, end, places = bytearray(PAGE_BYTES), PAGE_BYTES, []
    for number in range(1, CHILDREN + 1):
        cell = struct.pack(">I", child) + (key or bytes([number]))
        end -= len(cell)
        page[end : end + len(cell)] = cell
        places.append(end)
    struct.pack_into(f">BHHHBI{CHILDREN}H", page, start, kind, 0, CHILDREN, end, 0, child, *places)
    return page


ATTEMPT = """
import contextlib, json, sys
import journaled_files
from fulcrum.errors import FulcrumError
from pathlib import Path

kind = getattr(journaled_files, sys.argv[1])()
for path in map(Path, sys.argv[2:]):
    try:
        with contextlib.closing(kind.open(path, create=False)) as opened:
            kind.found(opened)
            kind.record(opened, 7)
        told = ""
    except FulcrumError as error:
        told = str(error)
    print(json.dumps(told))
"""


def attempts(kind, paths):
    """The messages of a process that opens files, reads them and writes to them; it has a minute for all of them."""
    command = [sys.executable, "-c", ATTEMPT, type(kind).__name__, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=Path(__file__).parent
    ).stdout
    return dict(zip([path.name for path in paths], map(json.loads, done.splitlines()), strict=True))


@pytest.mark.parametrize("kind", [kind() for kind in KINDS], ids=["ledger", "region", "masking"])
def test_a_table_without_an_end_is_refused_in_bounded_time(kind, tmp_path):
    with contextlib.closing(kind.open(tmp_path / kind.name)) as opened:
        kind.record(opened, 1)
    with contextlib.closing(sqlite3.connect(tmp_path / kind.name)) as connection:
        rows = connection.execute("SELECT name, type FROM sqlite_master ORDER BY rowid").fetchall()
    paths = []
    for name in ("sqlite_master", *(name for name, _ in rows)):
        paths.append(tmp_path / name)
        paths[-1].write_bytes((tmp_path / kind.name).read_bytes())
        with contextlib.suppress(IndexError, ValueError):  # a table without rows
            make_endless(paths[-1], name)
    told = attempts(kind, paths)
    read = {
        "ledger": ("silo", "plan", "entry", "payload"),
        "region": ("region", "answer"),
        "masking": ("silo", "round"),
    }
    for name in ("sqlite_master", *read[kind.name.split(".")[1]]):
        assert "is damaged" in told[name], (name, told)
        assert "\n" not in told[name]


def test_an_endless_ledger_is_verified_and_read_in_bounded_time(tmp_path):
    path = tmp_path / "lyon.ledger"
    with Book().open(path) as ledger:
        Book().record(ledger, 1)
    make_endless(path, "entry")
    checks = verify_ledger(path)
    assert [(check.name, check.holds) for check in checks] == [("file", False)]  # its rows are not asked for
    with pytest.raises(LedgerError, check=coded("ledger.content-damaged")):
        read_ledger(path)


def test_a_payload_longer_than_its_file_is_not_read(tmp_path):
    """SQLite would follow a circle of overflow pages for as many bytes as the row says."""
    path = tmp_path / "lyon.ledger"
    with Book().open(path) as ledger:
        Book().record(ledger, 1, bytes(200_000))
    data = bytearray(path.read_bytes())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'payload'").fetchone()
    page = (root - 1) * PAGE_BYTES
    place = page + struct.unpack_from(">H", data, page + 8)[0]
    assert data[place : place + 9] == varint(200_005) + b"\1\5\0" + varint(2 * 200_000 + 12)
    longer = 200_000 + 12 * (PAGE_BYTES - 4)  # as many bytes in the page itself, more in overflow pages
    data[place : place + 9] = varint(longer + 5) + b"\1\5\0" + varint(2 * longer + 12)
    assert len(data) < longer
    path.write_bytes(data)
    with Book().open(path) as ledger, pytest.raises(LedgerError, check=coded("storage.payload-endless")):
        ledger.stored_payload(PLAN, 1, "model")


def varint(number):
    """A number of three bytes, as SQLite writes it."""
    return bytes([number >> 14 | 128, number >> 7 & 127 | 128, number & 127])


@pytest.mark.parametrize("releases", [3, 3000])
def test_an_honest_file_needs_a_small_part_of_its_budget(tmp_path, monkeypatch, releases):
    """With a tenth of the steps a byte, no steps for a small file, and the shortest rows."""
    monkeypatch.setattr(connections, "STEPS_PER_BYTE", connections.STEPS_PER_BYTE / 10)
    monkeypatch.setattr(connections, "LEAST_STEPS", 0)
    monkeypatch.setattr(connections, "_STEPS_A_CALL", 100)
    path = tmp_path / "a.masking"
    rows = [("INSERT INTO silo VALUES (?)", ("a",)), ("BEGIN", ())]
    rows += [("INSERT INTO round VALUES ('p', ?, 1, 'b', 0, NULL)", (number,)) for number in range(releases)]
    MemberStore.build_file(path, [*rows, ("COMMIT", ())]).rename(path)
    with contextlib.closing(MemberStore.open(path, silo="a")) as record:
        assert len(Rounds().found(record)) == releases
        assert record.rows("PRAGMA integrity_check(1)") == [("ok",)]
        record.write(("UPDATE round SET state = NULL WHERE unmasked = 0", ()))
    ledger = tmp_path / "lyon.ledger"
    with Book().open(ledger) as book:
        for number in range(1, 4):
            Book().record(book, number)
    assert all(check.holds for check in verify_ledger(ledger))
