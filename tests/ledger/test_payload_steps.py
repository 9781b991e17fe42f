"""A release struck at a line of the storage beneath it: killed, interrupted, or out of disk.

Whatever the line, the release is recorded whole or not at all, and what was recorded is what any retry sends.
`FULCRUM_STRIDE=1` strikes at every line of the storage floor, which takes minutes.
"""

import errno
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forking import forks, in_child
from ledgers import PLAN, holds, opened, release

from fulcrum.core.store import database
from fulcrum.core.store import ledger_file as ledger_file

STRIDE = int(os.environ.get("FULCRUM_STRIDE", "47"))
STORAGE = f"{Path(database.__file__).parent}{os.sep}"


def both(path: Path) -> list[Path]:
    return [path, path.with_name(f"{path.name}-journal")]


def noisy(number: int) -> bytes:
    return random.Random(number).randbytes(9_000 + number)


def struck(work: Callable[[], object], line: int, strike: Callable[[], None]) -> int:
    """Does some work, struck at a line of the storage that it comes to; returns how many lines it came to."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if not frame.f_code.co_filename.startswith(STORAGE):  # a path of every frame would take half of the time
            return None
        if event == "line":
            seen += 1
            if seen == line:
                strike()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupted() -> None:
    raise KeyboardInterrupt


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def releasing(path: Path, number: int) -> Callable[[], None]:
    """Opens a ledger, releases, and closes it; what was sent is in a file of its own."""

    def work() -> None:
        with opened(path) as ledger:
            sent = release(ledger, number, noisy(number)).payload
            path.with_name("sent").write_bytes(sent)

    return work


def checked(path: Path, number: int) -> bool:
    """Returns whether the last release is recorded: with the bytes that were sent, if any were."""
    sent = path.with_name("sent").read_bytes() if path.with_name("sent").exists() else None
    with opened(path) as ledger:
        recorded = ledger.sequence == number
        assert recorded or (ledger.sequence == number - 1 and sent is None)
        for earlier in range(1, number):
            assert ledger.stored_payload(PLAN, earlier, "model") == noisy(earlier)
        again = release(ledger, number, b"fresh noise" * 1_000)
        assert again.fresh != recorded
        assert again.payload == (noisy(number) if recorded else b"fresh noise" * 1_000)
        assert ledger.total_cost.shifts["region"] == 0.25 * number
    assert all(holds(path, least_sequence=number).values())
    return recorded


@pytest.fixture
def tmp_path(in_memory):
    return in_memory


@pytest.fixture(params=["the first", "large", "after a crash"])
def ledger(request, path, tmp_path, monkeypatch):
    """A ledger, the number of its next release, and a function that puts it back as it was."""
    if request.param != "the first":
        monkeypatch.setattr(ledger_file, "MOST_AT_ONCE", 100)  # in two commits
    number = 1 if request.param == "the first" else 2
    with opened(path) as ledger:
        if number == 2:
            release(ledger, 1, noisy(1))
    if request.param == "after a crash":
        in_child(lambda: struck(releasing(path, 2), 150, killed))
    kept = tmp_path / "kept"
    kept.mkdir()
    for place in both(path):
        if place.exists():
            shutil.copy(place, kept)

    def put_back() -> None:
        path.with_name("sent").unlink(missing_ok=True)
        for place in both(path):
            place.unlink(missing_ok=True)
            if (kept / place.name).exists():
                shutil.copy(kept / place.name, place)

    return path, number, put_back


def outcomes(ledger, strike: Callable[[], None]) -> list[bool]:
    """Whether the release was recorded, by the line at which a process that made it was struck."""
    path, number, put_back = ledger
    lines = struck(releasing(path, number), 0, strike)
    assert lines > 150
    found = []
    for line in range(1, lines + 1, STRIDE):
        put_back()
        in_child(lambda line=line: struck(releasing(path, number), line, strike))
        found.append(checked(path, number))
    assert 0 < sum(found) < len(found)
    return found


@forks
def test_a_process_killed_at_any_line_leaves_a_large_release_whole_or_none(ledger):
    found = outcomes(ledger, killed)
    assert found == sorted(found)  # there is one moment at which it is recorded


@forks
@pytest.mark.parametrize("strike", [interrupted, full])
def test_an_error_at_any_line_sends_nothing_and_loses_nothing(ledger, strike):
    outcomes(ledger, strike)
