"""Files cut short or changed: noticed, and never resent."""

import contextlib
import os
import random
from pathlib import Path

import pytest
from ledgers import PLAN, holds, opened, release, says

from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import verify_ledger


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
                        assert ledger.stored(PLAN, number, "model") == payload
                    assert not sound or ledger.stored(PLAN, number, "model") == payload
        except LedgerError as error:
            lines.append(str(error))
        for suffix in ("-journal", "-wal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert lines
    assert not [line for line in lines if "\n" in line]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_log_gives_no_wrong_bytes_and_loses_nothing(path, tmp_path, seed):
    payloads = {number: random.Random(number).randbytes(40_000) for number in (1, 2, 3)}
    with opened(path) as ledger:
        for number, payload in payloads.items():
            release(ledger, number, payload)
        before = ledger.entries()
        file, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    crashed, rng, refused = tmp_path / "crashed", random.Random(seed), 0
    for _ in range(15):
        broken = bytearray(log[: rng.choice([len(log), rng.randrange(len(log))])])
        for place in rng.sample(range(len(broken)), min(len(broken), rng.choice([0, 1, 3]))):
            broken[place] ^= 1 << rng.randrange(8)
        crashed.write_bytes(file)
        Path(f"{crashed}-wal").write_bytes(broken)
        if broken != log:
            with pytest.raises(LedgerError, match="was not closed, and its log crashed-wal is") as error:
                opened(crashed, None)
            says(error)
            assert (crashed.read_bytes(), Path(f"{crashed}-wal").read_bytes()) == (file, broken)
            Path(f"{crashed}-wal").write_bytes(log)
            refused += 1
        with opened(crashed, None) as ledger:
            assert ledger.entries() == before
            for number, payload in payloads.items():
                assert ledger.stored(PLAN, number, "model") == payload
        assert all(holds(crashed, least_sequence=3).values())
    assert refused
