"""Recording a release durably, beside the floor: writing the same bytes to a file of their own and syncing it.

No ledger can do with less than one write and one sync of the payload. Both are measured in one run, in turns, in the
same folder; the figures to quote are the difference and the ratio of the medians. A release syncs twice: its bytes in
the log, and then a mark in the file of how far the log goes; what the mark takes is told apart. The mean beside them
includes the releases at which the log is folded into the file, one in every 256 MB or so (`database.LOG_BYTES`).
Put the folder on the disk that matters: one in memory syncs for nothing.

    python benchmarks/ledger_overhead.py [--folder .]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from fulcrum.ledger.ledger import Allowance, Cost, Ledger
from fulcrum.views.columns import Column
from fulcrum.views.terminal import FORMATS, Result, show, table

REPEATS = {10_000: 100, 1_000_000: 100, 10_000_000: 15, 100_000_000: 3}
PROMISED_BYTES, MOST_MILLISECONDS = 1_000_000, 5.0


def floor_seconds(path: Path, payload: bytes) -> float:
    """The time to write a new file and sync it."""
    start = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    left = memoryview(payload)
    while left:
        left = left[os.write(handle, left) :]
    os.fsync(handle)
    os.close(handle)
    return time.perf_counter() - start


def record_seconds(ledger: Ledger, allowance: Allowance, number: int, payload: bytes) -> float:
    """The time of one release."""
    cost = Cost(shift_above=1e-3, shift_inside=1e-2)
    start = time.perf_counter()
    ledger.record(allowance, round_number=number, basis=f"model-{number}", payload=payload, cost=cost)
    return time.perf_counter() - start


def mark_seconds(ledger: Ledger) -> float:
    """The time of the mark that every release includes: a few bytes written over in the file, and synced."""
    start = time.perf_counter()
    ledger._file.mark_log()
    return time.perf_counter() - start


def times(folder: Path, size: int, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """The times of the floor, a release, and a mark, in milliseconds, taken in turns after one of each to warm up."""
    floors, records, marks = [], [], []
    with Ledger.open(folder / f"{size}.ledger", silo="bench") as ledger:
        allowance = Allowance(plan_digest="bench", rounds=repeats + 1, shift_above=1.0, shift_inside=10.0)
        ledger.enter_plan(allowance)
        for number in range(1, repeats + 2):
            payload = os.urandom(size)
            floors.append(floor_seconds(folder / f"{size}-{number}", payload))
            records.append(record_seconds(ledger, allowance, number, payload))
            marks.append(mark_seconds(ledger))
            (folder / f"{size}-{number}").unlink()
    (folder / f"{size}.ledger").unlink()
    first, second, third = ([1e3 * value for value in values[1:]] for values in (floors, records, marks))
    return first, second, third


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write; a subfolder is made and removed")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for size, repeats in REPEATS.items():
            floors, records, marks = times(Path(name), size, repeats)
            floor, record = statistics.median(floors), statistics.median(records)
            rows.append(
                {
                    "bytes": size,
                    "floor": floor,
                    "overhead": record - floor,
                    "ratio": record / floor,
                    "mark": statistics.median(marks),
                    "mean": statistics.mean(records) - statistics.mean(floors),
                    "promise": f"at most {MOST_MILLISECONDS:g} ms over" if size == PROMISED_BYTES else "",
                }
            )
    columns = (
        Column(key="bytes", heading="payload, bytes"),
        Column(key="floor", heading="write and sync, ms"),
        Column(key="overhead", heading="release over it, ms"),
        Column(key="ratio", heading="ratio"),
        Column(key="mark", heading="its mark, ms"),
        Column(key="mean", heading="mean over it, ms"),
        Column(key="promise", heading="promise", figures=False),
    )
    show(Result(data=rows, rows=rows, picture=[table("A durable release", columns, rows)]), options.format)
    over = next(row["overhead"] for row in rows if row["bytes"] == PROMISED_BYTES)
    if not isinstance(over, float) or over > MOST_MILLISECONDS:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
