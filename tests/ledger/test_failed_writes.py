"""Writes that fail: nothing is sent, and nothing is lost."""

import json
import os
import signal
import sqlite3

import pytest
from error_codes import coded
from forking import forks, in_child
from ledgers import COST, PLAN, holds, opened, release

from fulcrum.errors import LedgerError


@forks
@pytest.mark.parametrize("room", [0, 4_096, 50_000, 300_000])
def test_a_full_disk_records_nothing_and_loses_nothing(path, room):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        before = (ledger.entries(), ledger.head, ledger.total_cost)

    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = opened(path)
        limit = path.stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            release(ledger, 2, os.urandom(1_000_000))
        except LedgerError as error:
            first = str(error)
        same = (ledger.entries(), ledger.head, ledger.total_cost) == before
        refused = ledger.would_exceed(PLAN, COST, 2).code
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            release(ledger, 2)
        except LedgerError as error:
            second = error.code
        ledger.close()
        with opened(path, None) as ledger:
            after = (ledger.entries(), ledger.head, ledger.total_cost) == before and ledger.stored_payload(
                PLAN, 1, "model"
            ) == b"noisy"
        return json.dumps([first, same, refused, second, after])

    first, same, refused, second, after = json.loads(in_child(work))
    assert "cannot be written, so nothing may be sent (" in first
    assert refused == second == "ledger.in-doubt"
    assert same
    assert after
    with opened(path) as ledger:
        assert release(ledger, 2, b"second").sequence == 2
    assert all(holds(path, least_sequence=2).values())


@forks
def test_a_disk_too_full_for_a_new_ledger_leaves_no_file(path):
    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        return opened(path)

    assert in_child(work).startswith("LedgerError: ")
    assert not list(path.parent.iterdir())


class FailingCommit:
    """A connection whose commit reports a failed sync, before or after the data reached the file."""

    def __init__(self, connection, *, reached: bool):
        self.connection, self.reached = connection, reached

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *values):
        if sql == "COMMIT":
            if self.reached:
                self.connection.execute(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return self.connection.execute(sql, *values)


@pytest.mark.parametrize("reached", [False, True])
def test_a_failed_sync_is_not_a_release_and_stops_the_ledger_until_it_is_reopened(path, reached):
    ledger = opened(path)
    release(ledger, 1)
    before = (ledger.entries(), ledger.head, ledger.total_cost)
    ledger._file.connection = FailingCommit(ledger._file.connection, reached=reached)
    with pytest.raises(LedgerError, check=coded("storage.content-damaged")):
        release(ledger, 2, b"never sent")
    assert (ledger.entries(), ledger.head, ledger.total_cost) == before
    for work in (
        lambda: release(ledger, 2),
        lambda: release(ledger, 1),
        lambda: ledger.stored_payload(PLAN, 1, "model"),
        lambda: ledger.enter_plan(PLAN),
    ):
        with pytest.raises(LedgerError, check=coded("ledger.in-doubt")):
            work()
    ledger.close()
    with opened(path) as ledger:
        # What reached the file after all is charged, and is what any retry sends.
        assert ledger.sequence == (2 if reached else 1)
        assert ledger.stored_payload(PLAN, 2, "model") == (b"never sent" if reached else None)
        assert release(ledger, 2, b"retry").payload == (b"never sent" if reached else b"retry")
    assert all(holds(path).values())


def test_an_interrupt_inside_a_write_stops_the_ledger_until_it_is_reopened(path):
    class Interrupted(FailingCommit):
        def execute(self, sql, *values):
            if sql.startswith("INSERT OR REPLACE INTO payload"):
                raise KeyboardInterrupt
            return self.connection.execute(sql, *values)

    ledger = opened(path)
    ledger._file.connection = Interrupted(ledger._file.connection, reached=False)
    with pytest.raises(KeyboardInterrupt):
        release(ledger, 1)
    with pytest.raises(LedgerError, check=coded("ledger.in-doubt")):
        release(ledger, 1)
    ledger.close()
    with opened(path) as ledger:
        assert ledger.sequence == 0
