"""Honest crashes, at every step of a write, lose nothing that was recorded."""

import contextlib
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from error_codes import coded
from journaled_files import PLAN, Book, Watched, commits, journal_of, opens_with, put, recording, refused, state

from fulcrum.core.store import recovery, sqlite_connection
from fulcrum.core.store.commit_mark import CommitMark
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError

unix = pytest.mark.skipif(sys.platform == "win32", reason="needs limits of Unix")


def test_a_file_that_is_forgotten_and_never_closed_opens_again(kind, tmp_path):
    path = tmp_path / kind.name
    kind.record(opened := kind.open(path), 1)
    del opened
    gc.collect()
    opens_with(kind, path, 1)


@pytest.mark.parametrize("end", ["killed", "without closing"])
def test_a_process_that_ends_without_closing_leaves_what_it_recorded(kind, tmp_path, end):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end=end), check=True)
    assert journal_of(path).exists()
    saved = state(path)
    opens_with(kind, path, 2)
    put(path, (saved[0], None))  # between two commits the file is whole by itself
    opens_with(kind, path, 2)


@unix
def test_a_process_killed_in_a_commit_leaves_what_it_recorded_before(kind, tmp_path):
    path = tmp_path / kind.name
    done = subprocess.run(recording(kind, path, 2, end="in a commit"), capture_output=True, text=True)
    assert done.returncode < 0, done.stderr  # by a signal
    saved = state(path)
    assert saved[1][:8] == bytes.fromhex("d9d505f920a163d7")
    put(path, (saved[0], None))
    refused(kind, path, "was left in the middle of a commit")
    put(path, saved)
    if isinstance(kind, Book):
        with read_ledger(path) as ledger:  # takes it back as well
            assert ledger.sequence == 2
        put(path, saved)
    opens_with(kind, path, 2)


def fails(handle):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_a_sync_of_journal_or_mark_that_fails_is_no_release(tmp_path, monkeypatch, name):
    path = tmp_path / "lyon.ledger"
    ledger = Book().open(path)
    Book().record(ledger, 1)
    before = (ledger.entries(), ledger.head, ledger.total_cost)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fails)
        with pytest.raises(LedgerError, check=coded("storage.operation-failed")):
            Book().record(ledger, 2)
    assert (ledger.entries(), ledger.head, ledger.total_cost) == before
    with pytest.raises(LedgerError, check=coded("ledger.in-doubt")):
        Book().record(ledger, 3)
    ledger.close()
    opens_with(Book(), path, 1)


def test_a_mark_that_cannot_be_synced_after_the_commit_is_no_release_and_charged(tmp_path, monkeypatch):
    path = tmp_path / "lyon.ledger"
    ledger = Book().open(path)

    class FailsAfter(Watched):
        def execute(self, sql, *values):
            done = super().execute(sql, *values)
            if sql == "COMMIT":
                monkeypatch.setattr(os, "fdatasync", fails)
            return done

    ledger._file.connection = FailsAfter(ledger._file.connection, path, [])
    with pytest.raises(LedgerError, check=coded("storage.operation-failed")):
        Book().record(ledger, 1)
    assert ledger.sequence == 0
    ledger.close()
    monkeypatch.undo()
    with contextlib.closing(Book().open(path)) as again:
        assert again.stored_payload(PLAN, 1, "model") == b"round 1"  # what any retry sends


FORKED = """
import os, sys
from pathlib import Path
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger

path = Path(sys.argv[1])
plan = Allowance(plan_digest="p", rounds=9, shifts={"silo": 9.0, "region": 9.0})
ledger = Ledger.open(path, silo="lyon")
ledger.enter_plan(plan)

def record(number):
    cost = Cost(shifts={"silo": 0.1, "region": 0.1})
    ledger.record(plan, round_number=number, input_digest="m", payload=b"x", cost=cost)

def files():
    return path.read_bytes(), path.with_name(path.name + "-journal").read_bytes()

record(1)
before = files()
child = os.fork()
if child == 0:
    END
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert files() == before, "the child changed the files of its parent"
    record(2)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("end", ["sys.exit(0)", "pass", "del ledger", "ledger.close()"])
def test_a_forked_child_that_ends_as_programs_do_leaves_the_files_of_its_parent_alone(tmp_path, end):
    path = tmp_path / "lyon.ledger"
    command = [sys.executable, "-c", FORKED.replace("END", end), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stderr) == (-9, "")
    with read_ledger(path) as ledger:
        assert ledger.sequence == 2
    assert all(check.holds for check in verify_ledger(path, least_sequence=2))


FORKED_IN_A_COMMIT = """
import os, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import journaled_files

path, kind = Path(sys.argv[2]), journaled_files.Book()
ledger = kind.open(path)
work = threading.Thread(target=lambda: [kind.record(ledger, number) for number in range(1, 20)])
work.start()
children = 0
while work.is_alive():
    child = os.fork()
    if child == 0:
        del ledger, work
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    children += 1
work.join()
assert children and ledger.sequence == 19, (children, ledger.sequence)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_forked_while_another_thread_releases_take_nothing_from_it(tmp_path):
    path = tmp_path / "lyon.ledger"
    command = [sys.executable, "-W", "ignore", "-c", FORKED_IN_A_COMMIT, str(Path(__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stderr) == (-9, "")
    opens_with(Book(), path, 19)


def test_a_journal_of_zeros_is_synced_before_the_file_is_marked_as_whole(kind, tmp_path, monkeypatch):
    """A killed process may leave the zeros in memory alone: after a power cut the journal would be another time's."""
    path, events = tmp_path / kind.name, []
    put(path, commits(kind, path, 2)[1][1])
    real_sync, real_write = recovery.sync_file, CommitMark.write

    def sync(handle):
        same = os.path.samestat(os.fstat(handle), journal_of(path).stat())
        events.append("journal" if same else "file")
        real_sync(handle)

    def write(mark, file):
        events.append("whole" if mark.whole else "commit")
        real_write(mark, file)

    monkeypatch.setattr(recovery, "sync_file", sync)
    monkeypatch.setattr(CommitMark, "write", write)
    kind.open(path, create=False).close()
    assert events.index("journal") < events.index("whole")


def steps_of_a_repair(monkeypatch, strike):
    """Lets `strike` see every step of a repair: statements, marks and syncs, before and after each."""
    for place, name in (
        (sqlite_connection.BoundedConnection, "execute"),
        (CommitMark, "write"),
        (CommitMark, "arm"),
        (recovery, "sync_file"),
        (recovery, "sync_folder"),
    ):
        real = getattr(place, name)

        def struck(*arguments, real=real, **options):
            strike()
            result = real(*arguments, **options)
            strike()
            return result

        monkeypatch.setattr(place, name, struck)


@unix
@pytest.mark.parametrize("strike", [OSError, KeyboardInterrupt])
def test_a_repair_that_fails_at_any_step_is_repeated_by_the_next_opening(kind, tmp_path, strike):
    """SQLite deletes the journal of a failed repair: without a second name the file would be refused for good."""
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end="in a commit"), capture_output=True)
    saved, failures = state(path), 0
    for step in itertools.count():
        put(path, saved)
        with pytest.MonkeyPatch.context() as patch:
            steps = itertools.count()

            def at_step(steps=steps, step=step):
                if next(steps) == step:
                    raise strike(5, "Input/output error")  # a new object: a traceback would keep the connection

            steps_of_a_repair(patch, at_step)
            try:
                kind.open(path, create=False).close()
            except (KeyboardInterrupt, kind.error):
                failures += 1
        gc.collect()  # the traceback of an error may hold a statement, and the statement SQLite's lock
        opens_with(kind, path, 2)
        assert not recovery.kept_journal_of(path).exists()
        if next(steps) <= step:  # the opening ended before this step
            break
    assert failures > 20


@unix
def test_a_repair_that_is_killed_after_the_journal_is_gone_is_repeated(kind, tmp_path):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end="in a commit"), capture_output=True)
    saved, kept = state(path), recovery.kept_journal_of(path)
    journal_of(path).rename(kept)
    if isinstance(kind, Book):
        with read_ledger(path) as ledger:
            assert ledger.sequence == 2
        put(path, saved)
        journal_of(path).rename(kept)
    opens_with(kind, path, 2)
    assert not kept.exists()


@unix
def test_a_journal_with_a_torn_header_is_played_back(kind, tmp_path):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end="in a commit"), capture_output=True)
    file, journal = state(path)
    for torn in (1, 8, 12, 20):  # a header of zeros alone says that the commit was finished
        put(path, (file, bytes(torn) + journal[torn:]))
        opens_with(kind, path, 2)
        put(path, (file, journal[:torn] + bytes(28 - torn) + journal[28:]))
        opens_with(kind, path, 2)
