"""Power cuts: of what a ledger wrote and did not sync, any part may be lost, in whatever order it was written.

After each step of a process that releases, the files are put together as a disk may have them. `FULCRUM_STRIDE=1` cuts
after every step.
"""

import hashlib
import os
import random
import sys
from pathlib import Path

from ledgers import PLAN, holds, opened, release
from recorded_disk import Disk, needs_strace, steps

from fulcrum.core.store import ledger_file as ledger_file

STRIDE = int(os.environ.get("FULCRUM_STRIDE", "2"))

RELEASES = """
import hashlib, os, sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path
from ledgers import opened, release
from fulcrum.core.store import ledger_file as file

file.MOST_AT_ONCE = 100
for sizes in ((9_000, 50), (50_000, 40_000)):
    with opened(Path(sys.argv[2])) as ledger:
        for size in sizes:
            number = ledger.sequence + 1
            sent = release(ledger, number, os.urandom(size)).payload
            os.write(1, b"%d %s" % (number, hashlib.sha256(sent).hexdigest().encode()))
"""


@needs_strace
def test_a_power_cut_loses_no_release_that_was_sent_and_leaves_none_by_half(path, tmp_path, monkeypatch):
    command = [sys.executable, "-c", RELEASES, str(Path(__file__).parent), str(path)]
    disk, rng, folder, cuts, recorded = Disk(tmp_path), random.Random(1), tmp_path / "cut", 0, set()
    monkeypatch.setattr(ledger_file, "MOST_AT_ONCE", 100)
    relevant = 0
    for step in steps(command, tmp_path / "trace"):
        if not disk.take(step):
            continue
        relevant += 1
        if relevant % STRIDE:
            continue
        disk.cut(folder, (0.0, 0.5, 1.0)[relevant // STRIDE % 3], rng)
        sent = dict(told.split() for told in disk.told)
        if not (folder / path.name).exists():
            assert not sent
            continue
        cuts += 1
        with opened(folder / path.name) as ledger:
            recorded.add(ledger.sequence)
            assert len(sent) <= ledger.sequence <= len(sent) + 1
            for number, digest in sent.items():
                assert hashlib.sha256(ledger.stored_payload(PLAN, int(number), "model")).hexdigest() == digest.decode()
            if ledger.sequence < PLAN.rounds - 1:
                release(ledger, ledger.sequence + 1, os.urandom(9_000))
        assert all(holds(folder / path.name, least_sequence=len(sent)).values())
    assert len(disk.told) == 4
    assert recorded == {0, 1, 2, 3, 4}
    assert cuts > 100 // STRIDE
