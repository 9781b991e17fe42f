"""Large releases: written and synced before their entry, whose digest is computed meanwhile, and never without it."""

import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from error_codes import coded
from forking import forks, in_child
from ledgers import PLAN, holds, opened, release

from fulcrum.core.store import disk_sync as files
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_file import MOST_AT_ONCE
from fulcrum.errors import LedgerError

SIZE = MOST_AT_ONCE + 5_000


def large(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE + 7 * number)


def opens_with(path, rounds):
    with opened(path, None) as ledger:
        assert ledger.sequence == rounds
        for number in range(1, rounds + 1):
            assert ledger.stored_payload(PLAN, number, "model") == large(number)
    assert all(holds(path, least_sequence=rounds).values())


def unrecorded(path, number):
    """Leaves the payload of a release that was interrupted before its entry was written."""
    with opened(path) as ledger:
        ledger._file.store_payload(number, large(number))


def test_a_large_release_comes_back_bit_for_bit(path):
    with opened(path) as ledger:
        release(ledger, 1, b"small")
        release(ledger, 2, large(2))
        release(ledger, 3, bytes(MOST_AT_ONCE))
        assert ledger.entries()[1].payload_digest == hashlib.sha256(large(2)).hexdigest()
        assert ledger.stored_payload(PLAN, 2, "model") == large(2)
    with opened(path) as ledger:
        assert not release(ledger, 2, b"other noise").fresh
        assert [ledger.stored_payload(PLAN, number, "model") for number in (1, 2, 3)] == [
            b"small", large(2), bytes(MOST_AT_ONCE),
        ]  # fmt: skip
    assert all(holds(path).values())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_large_release_that_was_interrupted_before_its_entry_is_erased_and_was_no_release(path):
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        head = ledger.head
    unrecorded(path, 2)
    pieces = [large(2)[begin : begin + 500] for begin in range(0, SIZE, 20_000)]
    assert sum(piece in path.read_bytes() for piece in pieces) > 40
    assert all(holds(path, least_sequence=1, witnessed_hash=head).values())
    with opened(path) as ledger:
        assert (ledger.sequence, ledger.head) == (1, head)
        assert ledger.stored_payload(PLAN, 2, "model") is None
    assert not any(piece in path.read_bytes() for piece in pieces)  # it was not charged, so nobody is to have it
    opens_with(path, 1)
    unrecorded(path, 2)
    with opened(path) as ledger:
        assert release(ledger, 2, large(2)).fresh
    opens_with(path, 2)


def test_an_interrupted_release_gives_way_to_the_next_one_in_the_same_process(path):
    with opened(path) as ledger:
        ledger._file.store_payload(1, large(7))
        ledger._file.in_doubt = False
        assert release(ledger, 1, large(1)).fresh
        assert ledger.stored_payload(PLAN, 1, "model") == large(1)
    opens_with(path, 1)


def test_a_flipped_byte_of_a_large_release_is_noticed_and_never_resent(path):
    with opened(path) as ledger:
        for number in (1, 2):
            release(ledger, number, large(number))
    broken = bytearray(path.read_bytes())
    broken[broken.index(large(2)[-20_000:-19_000]) + 5] ^= 1
    path.write_bytes(broken)
    assert [name for name, sound in holds(path).items() if not sound] == ["payloads"]
    with opened(path) as ledger:
        assert ledger.stored_payload(PLAN, 1, "model") == large(1)
        with pytest.raises(LedgerError, check=coded("ledger.payload-damaged", entry=2)):
            ledger.stored_payload(PLAN, 2, "model")


def test_a_payload_that_is_text_or_lost_is_noticed_and_never_resent(path):
    with opened(path) as ledger:
        for number in (1, 2):
            release(ledger, number, b"round %d" % number)
    for change in ("UPDATE payload SET bytes = 7 WHERE sequence = 2", "DELETE FROM payload WHERE sequence = 2"):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(change)
        with opened(path) as ledger, pytest.raises(LedgerError, check=coded("ledger.payload-damaged", entry=2)):
            ledger.stored_payload(PLAN, 2, "model")


def test_a_sync_that_fails_while_sqlite_writes_is_no_release(path, monkeypatch):
    ledger = opened(path)
    release(ledger, 1, large(1))
    payload = random.Random(2).randbytes(6_000_000)
    real = files.sync_file

    def fails(handle, **options):
        if threading.current_thread() is not threading.main_thread():
            raise OSError(5, "Input/output error")
        real(handle, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_SYNC_SECONDS", 0.0)
        patch.setattr(files, "sync_file", fails)
        with pytest.raises(LedgerError, check=coded("storage.operation-failed")):
            release(ledger, 2, payload)
    assert ledger.sequence == 1
    ledger.close()
    opens_with(path, 1)


def test_a_large_release_is_recorded_where_no_thread_can_be_started(path, monkeypatch):
    def refuses(thread):
        raise RuntimeError("can't start new thread")

    payload = random.Random(2).randbytes(6_000_000)
    with opened(path) as ledger:
        monkeypatch.setattr(threading.Thread, "start", refuses)
        assert release(ledger, 1, payload).fresh
        assert ledger.stored_payload(PLAN, 1, "model") == payload
    assert all(holds(path).values())


@forks
@pytest.mark.parametrize("room", [0, 40_000, 500_000])
def test_a_full_disk_takes_no_large_release_and_loses_nothing(path, room):
    with opened(path) as ledger:
        release(ledger, 1, large(1))

    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = opened(path)
        limit = path.stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            release(ledger, 2, large(2))
        except LedgerError as error:
            said = str(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        size = path.stat().st_size
        ledger.close()
        return json.dumps([said, ledger.sequence, limit - room, size])

    said, sequence, before, after = json.loads(in_child(work))
    assert "cannot be written, so nothing may be sent (" in said
    assert sequence == 1
    assert after == before  # the disk gets back at once what was not recorded
    opens_with(path, 1)


def test_a_large_release_is_held_in_memory_once_and_so_is_one_that_comes_back(path):
    payload = random.Random(0).randbytes(20_000_000)
    with opened(path) as ledger:
        release(ledger, 1, large(1))
        for work, copies in (
            (lambda: release(ledger, 2, payload), 0.5),  # steps that are read back
            (lambda: ledger.stored_payload(PLAN, 2, "model"), 1),
            (lambda: release(ledger, 2, b"other noise"), 1),
            (lambda: verify_ledger(ledger), 1),
        ):
            tracemalloc.start()
            work()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < (copies + 0.1) * len(payload)


@forks
def test_sqlite_holds_a_large_release_once_on_its_way_to_the_disk(path):
    payload = os.urandom(60_000_000)

    def work():
        import resource

        with opened(path) as ledger:
            release(ledger, 1, large(1))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            release(ledger, 2, payload)
            return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(payload)

    assert float(in_child(work)) < 1.5


def test_threads_that_release_one_round_all_send_the_bytes_of_the_first(path):
    with opened(path) as ledger, ThreadPoolExecutor(8) as pool:
        for number in (1, 2):
            done = list(pool.map(lambda seed, number=number: release(ledger, number, large(seed)), range(8)))
            assert sum(one.fresh for one in done) == 1
            assert len({one.payload for one in done}) == 1
    assert all(holds(path, least_sequence=2).values())
