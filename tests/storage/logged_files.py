"""A ledger and a region's file, each with the log beside it: recorded in, put back as a crash leaves them, opened."""

import contextlib
import random
import sys
from pathlib import Path

import pytest

from fulcrum.errors import LedgerError, StorageError
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger
from fulcrum.roles.region_file import RegionFile

COST = Cost(shift_above=0.25, shift_inside=1.0)
PLAN = Allowance(plan_digest="plan-a", rounds=50, shift_above=100.0, shift_inside=800.0)


class Book:
    """A ledger: what is recorded, and what is found again."""

    name, advice, error = "lyon.ledger", "witness", LedgerError

    def open(self, path):
        ledger = Ledger.open(path, silo="lyon")
        ledger.enter_plan(PLAN)
        return ledger

    def record(self, ledger, number, payload=b""):
        ledger.record(PLAN, round_number=number, basis="model", payload=payload or b"round %d" % number, cost=COST)

    def found(self, ledger):
        return [entry.round_number for entry in ledger.entries()]


class Sums:
    """A region's file: likewise."""

    name, advice, error = "north.region", "new plan", StorageError

    def open(self, path):
        return RegionFile.bound(path, region="north", plan_digest="p")

    def record(self, file, number, payload=b""):
        file.write(("INSERT INTO answer VALUES (?, 'summed', 'd', ?)", (number, payload or b"round %d" % number)))

    def found(self, file):
        return [row[0] for row in file.rows("SELECT round FROM answer ORDER BY round")]


def log_of(path):
    return path.with_name(f"{path.name}-wal")


def state(path):
    """A file and its log as they are now."""
    log = log_of(path)
    return path.read_bytes(), log.read_bytes() if log.exists() else None


def put(path, saved):
    """Leaves a file and its log as a killed process does; None is no log."""
    for place, data in zip((path, log_of(path)), saved, strict=True):
        place.unlink(missing_ok=True)
        if data is not None:
            place.write_bytes(data)


def recorded(kind, path, rounds, size=50_000):
    """The states after every write, in turn, by rounds recorded; then the file is closed."""
    states = [(0, None)]
    with contextlib.closing(kind.open(path)) as opened:
        states[0] = state(path)
        for number in range(1, rounds + 1):
            kind.record(opened, number, random.Random(number).randbytes(size))
            states.append(state(path))
    return states


def refused(kind, path, *words):
    """Opening says in one line what is wrong, changes nothing, and so does reading a ledger."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    works = [kind.open] + ([verify_ledger] if isinstance(kind, Book) else [])
    for work in works:
        with pytest.raises(kind.error) as error:
            work(path)
        said = str(error.value)
        assert "\n" not in said
        assert str(path.resolve()) in said
        assert all(word in said for word in words), said
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


def opens_with(kind, path, rounds):
    with contextlib.closing(kind.open(path)) as opened:
        assert kind.found(opened) == list(range(1, rounds + 1))
    if isinstance(kind, Book):
        assert all(check.holds for check in verify_ledger(path, least_sequence=rounds))


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


RECORD = """
import os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import logged_files

kind = getattr(logged_files, sys.argv[2])()
opened = kind.open(Path(sys.argv[3]))
for number in range(1, int(sys.argv[4]) + 1):
    kind.record(opened, number)
if sys.argv[5] == "killed":
    os._exit(0)
"""


def recording(kind, path, rounds, end="killed"):
    """The command that records in a process of its own, which then ends as if killed, or never closes the file."""
    return [sys.executable, "-c", RECORD, str(Path(__file__).parent), type(kind).__name__, str(path), str(rounds), end]
