"""A ledger, a masking record and a region's file: recorded in, left as a crash leaves them, opened again."""

import contextlib
import random
import struct
import sys
from pathlib import Path

import pytest

from fulcrum.aggregation.region_store import RegionFile
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.store.commit_mark import PAGE_BYTES
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.errors import LedgerError, StorageError

COST = Cost(shifts={"silo": 1.0, "region": 0.25})
PLAN = Allowance(plan_digest="plan-a", rounds=50, shifts={"silo": 800.0, "region": 100.0})
MAGIC = bytes.fromhex("d9d505f920a163d7")


class Book:
    """A ledger: what is recorded, and what is found again."""

    name, advice, error = "lyon.ledger", "witness", LedgerError

    def open(self, path, *, create=True):
        ledger = Ledger.open(path, silo="lyon", create=create)
        ledger.enter_plan(PLAN)
        return ledger

    def record(self, ledger, number, payload=b""):
        ledger.record(
            PLAN, round_number=number, input_digest="model", payload=payload or b"round %d" % number, cost=COST
        )

    def found(self, ledger):
        return [entry.round_number for entry in ledger.entries()]

    def file(self, ledger):
        return ledger._file


class Sums:
    """A region's file: likewise."""

    name, advice, error = "north.region", "new plan", StorageError

    def open(self, path, *, create=True):
        return RegionFile.open(path, region="north", plan_digest="p", create=create)

    def record(self, file, number, payload=b""):
        file.set_answer(number, "summed", "d", payload or b"round %d" % number)

    def found(self, file):
        return [row[0] for row in file.rows("SELECT round FROM answer ORDER BY round")]

    def file(self, opened):
        return opened


class Rounds:
    """A silo's record of masked rounds: likewise."""

    name, advice, error = "lyon.masking", "new plan", StorageError

    def open(self, path, *, create=True):
        return MemberStore.open(path, silo="lyon", create=create)

    def record(self, file, number, payload=b""):
        row = ("p", number, 1, "model", 0, payload or b"round %d" % number)
        file.write(
            ("INSERT INTO round VALUES (?, ?, ?, ?, ?, ?)", row),
            proofs=[("SELECT * FROM round WHERE number = ?", (number,), [row])],
        )
        file.in_doubt = False

    def found(self, file):
        return [row[0] for row in file.rows("SELECT number FROM round ORDER BY number")]

    def file(self, opened):
        return opened


KINDS = [Book, Sums, Rounds]


def journal_of(path):
    return path.with_name(f"{path.name}-journal")


def state(path):
    """A file and its journal as they are now."""
    journal = journal_of(path)
    return path.read_bytes(), journal.read_bytes() if journal.exists() else None


def put(path, saved):
    """Leaves a file and its journal as a killed process does; None is no journal."""
    for place, data in zip((path, journal_of(path)), saved, strict=True):
        place.unlink(missing_ok=True)
        if data is not None:
            place.write_bytes(data)


class Watched:
    """A connection that notes the file and its journal right before and right after each commit."""

    def __init__(self, connection, path, seen):
        self.connection, self.path, self.seen = connection, path, seen

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *values):
        if sql != "COMMIT":
            return self.connection.execute(sql, *values)
        before = state(self.path)
        done = self.connection.execute(sql)
        self.seen.append((before, state(self.path)))
        return done


def commits(kind, path, rounds, size=50_000):
    """The states before and after each commit of so many rounds; then the file is closed."""
    seen = []
    with contextlib.closing(kind.open(path)) as opened:
        file = kind.file(opened)
        file.connection = Watched(file.connection, path, seen)
        for number in range(1, rounds + 1):
            kind.record(opened, number, random.Random(number).randbytes(size))
    return seen


def hot(journal):
    """A journal as it is when SQLite has synced it: pages of the file may be written from then on."""
    return MAGIC + struct.pack(">I", (len(journal) - 512) // (PAGE_BYTES + 8)) + journal[12:]


def half_written(before, after, rng):
    """A file of which a commit wrote some pages, the mark's page never."""
    pages = [page for page in range(len(after) // PAGE_BYTES) if page != 1]
    half = bytearray(before.ljust(len(after), b"\0"))
    for page in rng.sample(pages, rng.randrange(1, len(pages) + 1)):
        place = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        half[place] = after[place]
    return bytes(half)


def content(seed, size=200_000):
    return random.Random(seed).randbytes(size)


def pieces(data):
    return [data[begin : begin + 100] for begin in range(0, len(data), 3_000)] or [data]


def held(path, data):
    """How many pieces of some content are in any file of the folder."""
    files = b"".join(entry.read_bytes() for entry in path.parent.iterdir())
    return sum(piece in files for piece in pieces(data))


def kept_by(kind, file, number, data):
    if isinstance(kind, Sums):
        file.add_release(number, "lille", "d", memoryview(data))
    else:
        kind.record(file, number, data)


def forgotten_by(kind, file, number):
    if isinstance(kind, Sums):
        file.set_answer(number, "summed", "d", b"sum")
        file.forget_releases("summed")
    else:
        file.write(("UPDATE round SET state = NULL WHERE number = ?", (number,)))
        file.in_doubt = False


def refused(kind, path, *words):
    """Opening says in one line what is wrong, changes nothing, and so does reading a ledger."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()}
    works = [kind.open] + ([verify_ledger] if isinstance(kind, Book) else [])
    for work in works:
        with pytest.raises(kind.error) as error:
            work(path)
        said = str(error.value)
        assert "\n" not in said
        assert str(path.resolve()) in said
        assert all(word in said for word in words), said
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir() if entry.is_file()} == before


def opens_with(kind, path, rounds):
    with contextlib.closing(kind.open(path, create=False)) as opened:
        assert kind.found(opened) == list(range(1, rounds + 1))
        assert kind.file(opened).rows("PRAGMA integrity_check") == [("ok",)]
    assert not journal_of(path).exists()
    if isinstance(kind, Book):
        assert all(check.holds for check in verify_ledger(path, least_sequence=rounds))


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


RECORD = """
import os, resource, signal, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import journaled_files

kind, path = getattr(journaled_files, sys.argv[2])(), Path(sys.argv[3])
opened = kind.open(path)
for number in range(1, int(sys.argv[4]) + 1):
    kind.record(opened, number)
if sys.argv[5] == "in a commit":
    # The system kills the process at the first page that SQLite writes past the end of the file.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, resource.RLIM_INFINITY))
    kind.record(opened, number + 1, os.urandom(150_000))
if sys.argv[5] == "killed":
    os._exit(0)
"""


def recording(kind, path, rounds, end="killed"):
    """The command that records in a process of its own, which ends as if killed, or never closes the file."""
    return [sys.executable, "-c", RECORD, str(Path(__file__).parent), type(kind).__name__, str(path), str(rounds), end]
