"""Files cut short or changed: noticed, and never resent."""

import contextlib
import io
import os
import random
from pathlib import Path

import pytest
from ledgers import PLAN, holds, opened, release, says

from fulcrum.core.store.commit_mark import CommitMark
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.errors import LedgerError


def test_a_truncated_ledger_is_refused(path):
    with opened(path) as ledger:
        release(ledger, 1, os.urandom(100_000))
    whole = path.read_bytes()
    for size in (1, 50, 99, 100, 512, 4096, 32_768, 98_321, len(whole) - 32_768, len(whole) - 1):
        path.write_bytes(whole[:size])
        for work in (opened, verify_ledger):
            with pytest.raises(LedgerError, match=r"damaged|not a ledger") as error:
                work(path)
            says(error)
        assert path.read_bytes() == whole[:size]


def test_a_mark_that_cannot_be_counted_on_takes_no_release_and_is_told(path):
    """Nobody writes so many marks, but somebody may hand out a ledger that says so."""
    opened(path).close()
    with io.FileIO(path, "r+") as file:
        CommitMark(serial=2**64 - 1).write(file)
    with opened(path) as ledger, pytest.raises(LedgerError, match="cannot be written, so nothing may be sent") as error:
        release(ledger, 1)
    says(error)
    with opened(path) as ledger:
        assert ledger.entries() == ()


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_are_noticed_and_never_resent(path, seed):
    payloads = {number: random.Random(number).randbytes(40_000) for number in (1, 2, 3)}
    with opened(path) as ledger:
        for number, payload in payloads.items():
            release(ledger, number, payload)
        before = ledger.entries()
    whole = path.read_bytes()
    rng = random.Random(seed)
    lines = []
    for _ in range(30):
        broken = bytearray(whole)
        # Half of the flips hit the header or a page that holds no payload, where the structure is.
        reach = rng.choice([100, 7 * 32_768, len(whole), len(whole)])
        places = [place for place in range(reach) if whole[place]] if reach < len(whole) else range(reach)
        for place in rng.sample(places, rng.choice([1, 1, 4])):
            broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            sound = all(holds(path).values())
        except LedgerError:
            sound = False
        try:
            with opened(path) as ledger:
                assert ledger.entries() == before
                for number, payload in payloads.items():
                    with contextlib.suppress(LedgerError):
                        assert ledger.stored_payload(PLAN, number, "model") == payload
                    assert not sound or ledger.stored_payload(PLAN, number, "model") == payload
        except LedgerError as error:
            lines.append(str(error))
        for suffix in ("-journal", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert lines
    assert not [line for line in lines if "\n" in line]
