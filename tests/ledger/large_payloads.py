"""Ledgers with large releases: what lies beside them, put back as a crash or a careless hand leaves it."""

import random
from pathlib import Path

from ledgers import PLAN, holds, opened, release

from fulcrum.storage.payload_file import BLOCK_BYTES, FIRST_PLACE
from fulcrum.storage.payloads import MOST_INSIDE

SIZE = MOST_INSIDE + 5_000


def large(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE + 7 * number)


def beside(path: Path) -> Path:
    return path.with_name(f"{path.name}-payloads")


def three(path: Path) -> list[Path]:
    return [path, path.with_name(f"{path.name}-wal"), beside(path)]


def state(path: Path) -> list[bytes | None]:
    """A ledger, its log and its payloads as they are now."""
    return [place.read_bytes() if place.exists() else None for place in three(path)]


def put(path: Path, saved: list[bytes | None]) -> None:
    """Leaves them as a killed process does."""
    for place, data in zip(three(path), saved, strict=True):
        place.unlink(missing_ok=True)
        if data is not None:
            place.write_bytes(data)


def states(path: Path, rounds: int) -> list[list[bytes | None]]:
    """The states before and after every large release, in turn."""
    seen = []
    with opened(path) as ledger:
        ledger._file._opened()  # the file of payloads is made, and known, before the first of them
        seen.append(state(path))
        for number in range(1, rounds + 1):
            release(ledger, number, large(number))
            seen.append(state(path))
    return seen


def unrecorded(before: bytes, after: bytes) -> bytes:
    """The payloads as a process leaves them that is killed before its entry is written: the last stamp is missing."""
    stamp = slice(FIRST_PLACE - BLOCK_BYTES, FIRST_PLACE)
    assert before[stamp] != after[stamp]
    return after[: stamp.start] + before[stamp] + after[stamp.stop :]


def opens_with(path: Path, rounds: int) -> None:
    with opened(path, None) as ledger:
        assert ledger.sequence == rounds
        for number in range(1, rounds + 1):
            assert ledger.stored(PLAN, number, "model") == large(number)
    assert all(holds(path, least_sequence=rounds).values())
