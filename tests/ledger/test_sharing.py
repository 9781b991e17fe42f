"""One ledger and several processes, forks or threads."""

import contextlib
import gc
import os
import shutil
import signal
import sqlite3
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from error_codes import coded
from forking import forks, in_child
from ledgers import holds, opened, release

from fulcrum.core.store.ledger import Allowance
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerInUseError


@forks
def test_a_second_process_is_refused_until_the_first_lets_go(path):
    ledger = opened(path)
    for work in (lambda: opened(path), lambda: verify_ledger(path)):
        said = in_child(work)
        assert said.startswith("LedgerInUseError: ")
        assert "is in use by another process" in said
    ledger.close()
    assert in_child(lambda: opened(path).sequence) == "0"


def test_a_second_opening_in_one_process_is_refused(path):
    with opened(path):
        for work in (opened, verify_ledger):
            with pytest.raises(LedgerInUseError, check=coded("storage.open-here")):
                work(path)
    opened(path).close()


def test_a_reader_keeps_writers_out_and_lets_readers_in(path):
    opened(path).close()
    with read_ledger(path), read_ledger(path) as second:
        assert second.sequence == 0
        with pytest.raises(LedgerInUseError, check=coded("storage.file-in-use")):
            opened(path)
    opened(path).close()


@forks
def test_copying_an_open_ledger_does_not_let_a_second_process_in(path, tmp_path):
    # POSIX drops SQLite's locks when the process closes any descriptor of the file.
    with opened(path) as ledger:
        shutil.copy(path, tmp_path / "copy")
        assert in_child(lambda: opened(path)).startswith("LedgerInUseError: ")
        release(ledger, 1)
    assert all(holds(path).values())


@forks
def test_other_sqlite_programs_cannot_write_to_an_open_ledger(path):
    def work():
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("DELETE FROM entry")

    with opened(path):
        assert "locked" in in_child(work)


@forks
def test_a_forked_child_may_not_use_the_ledger_and_does_not_keep_it(path):
    ledger = opened(path)
    release(ledger, 1)
    assert "opened before a fork" in in_child(lambda: release(ledger, 2))
    assert in_child(ledger.close) == "None"

    def dropped():
        del ledger._file.connection
        return gc.collect() >= 0

    assert in_child(dropped) == "True"
    assert in_child(lambda: opened(path)).startswith("LedgerInUseError: ")
    release(ledger, 2)

    with living_child():
        ledger.close()
        with opened(path) as again:
            assert again.sequence == 2


@forks
def test_a_child_does_not_hold_a_ledger_that_its_parent_looked_at(path):
    opened(path).close()
    reader = read_ledger(path)
    with living_child():
        reader.close()
        with opened(path) as again:
            assert again.sequence == 0


@contextlib.contextmanager
def living_child():
    """A forked process that lives as long as the block."""
    receive, send = os.pipe()
    alive, living = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.write(living, b".")
        os.close(send)
        os.read(receive, 1)
        os._exit(0)
    os.read(alive, 1)
    try:
        yield
    finally:
        for end in (send, receive, alive, living):
            os.close(end)
        os.waitpid(child, 0)


@forks
def test_a_killed_process_lets_the_ledger_go(path):
    opened(path).close()
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        kept = opened(path)
        os.write(send, b"%d" % kept.sequence)
        threading.Event().wait(60)
        os._exit(0)
    os.read(receive, 1)
    try:
        with pytest.raises(LedgerInUseError):
            opened(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receive)
        os.close(send)
    opened(path).close()


def test_threads_share_a_ledger(path):
    plan = Allowance(plan_digest="p", rounds=40, shifts={"silo": 40.0, "region": 40.0})
    with opened(path, plan) as ledger:

        def work(job):
            return release(ledger, job % 40 + 1, os.urandom(2_000))

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(120)))
        by_round = {}
        for job, result in enumerate(results):
            by_round.setdefault(job % 40, []).append(result)
        for same in by_round.values():
            assert len({result.payload for result in same}) == 1
            assert sum(result.fresh for result in same) == 1
        assert ledger.total_cost.shifts["region"] == 10.0
    assert all(holds(path).values())


def test_threads_that_create_one_ledger_get_it_once(path):
    def work(_):
        try:
            return opened(path)
        except LedgerInUseError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [ledger for ledger in pool.map(work, range(8)) if ledger is not None]
    assert len(made) == 1
    made[0].close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
