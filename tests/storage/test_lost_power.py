"""Power cuts in every kind of file, while it is written and while what a crash left is taken back.

After each step of a process, its files are put together as a disk may have them. `FULCRUM_STRIDE=1` cuts after every
step.
"""

import contextlib
import os
import random
import sys
from pathlib import Path

import pytest
from forking import forks, in_child
from journaled_files import Rounds, Sums, commits, content, half_written, held, hot, opens_with, put
from recorded_disk import Disk, File, needs_strace, steps

from fulcrum.core.store import database

STRIDE = int(os.environ.get("FULCRUM_STRIDE", "2"))

RECORD_AND_ERASE = """
import os, sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path
import journaled_files

kind = getattr(journaled_files, sys.argv[2])()
for numbers in ((1, 2), (3,)):
    file = kind.open(Path(sys.argv[3]))
    for number in numbers:
        journaled_files.kept_by(kind, file, number, journaled_files.content(number, 40_000))
        os.write(1, b"kept %d" % number)
        if number < 3:
            journaled_files.forgotten_by(kind, file, number)
            os.write(1, b"erased %d" % number)
    file.close()
"""


def cuts(command, folder, cut, disk):
    """Cuts the power after every few steps of a process; yields after each, with the files in `cut`.

    In turns nothing that was not synced is kept, half of it, and all of it.
    """
    rng, relevant = random.Random(2), 0
    for step in steps(command, folder / "trace"):
        if disk.take(step):
            relevant += 1
            if relevant % STRIDE == 0:
                disk.cut(cut, (0.0, 0.5, 1.0)[relevant // STRIDE % 3], rng)
                yield
    assert relevant > 15


@needs_strace
@pytest.mark.parametrize("kind", [Sums, Rounds])
def test_a_power_cut_loses_nothing_that_was_kept_and_brings_nothing_back_that_was_erased(tmp_path, kind):
    path, cut, disk = tmp_path / kind.name, tmp_path / "cut", Disk(tmp_path)
    command = [sys.executable, "-c", RECORD_AND_ERASE, str(Path(__file__).parent), kind.__name__, str(path)]
    for _ in cuts(command, tmp_path, cut, disk):
        told = [word.split() for word in disk.told]
        if not (cut / path.name).exists():
            assert not told
            continue
        with contextlib.closing(kind().open(cut / path.name, create=False)) as file:
            table, column = ("release", "round") if kind is Sums else ("round", "number")
            numbers = {row[0] for row in file.rows(f"SELECT {column} FROM {table}")}
            assert file.rows("PRAGMA integrity_check") == [("ok",)]
        kept = {int(number) for word, number in told if word == b"kept"}
        erased = {int(number) for word, number in told if word == b"erased"}
        assert kept <= numbers <= kept | {max(kept, default=0) + 1}
        assert not any(held(cut / path.name, content(number, 40_000)) for number in erased)
        assert all(held(cut / path.name, content(number, 40_000)) for number in kept - erased if number == 3)
    assert len(disk.told) == 5


OPEN = """
import sys
sys.path[:0] = sys.argv[1:2]
from pathlib import Path
import journaled_files

getattr(journaled_files, sys.argv[2])().open(Path(sys.argv[3]), create=False).close()
"""


@needs_strace
def test_a_power_cut_while_a_commit_is_taken_back_loses_nothing(kind, tmp_path):
    path, cut, disk = tmp_path / kind.name, tmp_path / "cut", Disk(tmp_path)
    (before, journal), (after, _) = commits(kind, path, 3)[2]
    put(path, (half_written(before, after, random.Random(7)), hot(journal)))
    for file in (path, path.with_name(f"{path.name}-journal")):
        disk.names[str(file)] = disk.durable[str(file)] = File(bytearray(file.read_bytes()))
    command = [sys.executable, "-c", OPEN, str(Path(__file__).parent), type(kind).__name__, str(path)]
    for _ in cuts(command, tmp_path, cut, disk):
        opens_with(kind, cut / path.name, 2)
    opens_with(kind, path, 2)


STORAGE = Path(database.__file__).parent


def struck(work, line):
    """Does some work, and kills the process at a line of the storage floor; returns how many lines it came to."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if Path(frame.f_code.co_filename).parent != STORAGE:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                os._exit(9)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return seen


@forks
def test_a_process_killed_at_any_line_while_it_takes_a_commit_back_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    (before, journal), (after, _) = commits(kind, path, 3)[2]
    left = (half_written(before, after, random.Random(7)), hot(journal))

    def work():
        kind.open(path, create=False).close()

    put(path, left)
    lines = int(in_child(lambda: struck(work, 0)))
    opens_with(kind, path, 2)
    for line in range(1, lines, 9 * STRIDE):
        put(path, left)
        in_child(lambda line=line: struck(work, line))
        opens_with(kind, path, 2)
