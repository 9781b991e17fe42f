"""Recording a release durably, beside the floor: writing the same bytes to a file of their own and syncing it.

No ledger can do with less than one write and one sync of the payload. Both are measured in one run, in turns, now the
one first and now the other, in the same folder; the figures to quote are the difference and the ratio of the medians.
A release is one commit of SQLite's, with a mark before and after it (`fulcrum.core.store.commit_mark`); what the two
marks take is told apart. A large one is committed before its entry is, while its digest is computed. Put the folder on
the disk that matters: one in memory syncs for nothing, and a busy machine or disk distorts the ratio.

    python benchmarks/ledger_overhead.py [--folder .]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

REPEATS = {10_000: 100, 1_000_000: 100, 10_000_000: 30, 80_000_000: 21, 400_000_000: 5, 800_000_000: 3}
PROMISED_BYTES, MOST_MILLISECONDS = 1_000_000, 5.0
LARGE_BYTES, MOST_RATIO = 80_000_000, 2.0  # 10^7 parameters


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
    cost = Cost(shifts={"silo": 1e-2, "region": 1e-3})
    start = time.perf_counter()
    ledger.record(allowance, round_number=number, input_digest=f"model-{number}", payload=payload, cost=cost)
    return time.perf_counter() - start


def mark_seconds(ledger: Ledger) -> float:
    """The time of the two marks that every commit includes: a few bytes written over in the file, and synced."""
    file = ledger._file
    start = time.perf_counter()
    for _ in range(2):
        file.mark = file.mark.next_whole()
        file.mark.write(file.hold)
    return time.perf_counter() - start


def times(folder: Path, size: int, repeats: int) -> tuple[list[float], list[float], list[float]]:
    """The times of the floor, a release, and a mark, in milliseconds, taken in turns after one of each to warm up."""
    floors, records, marks = [], [], []
    with Ledger.open(folder / f"{size}.ledger", silo="bench") as ledger:
        allowance = Allowance(plan_digest="bench", rounds=repeats + 1, shifts={"silo": 10.0, "region": 1.0})
        ledger.enter_plan(allowance)
        for number in range(1, repeats + 2):
            payload, beside = os.urandom(size), folder / f"{size}-{number}"
            for which in ("floor", "release") if number % 2 else ("release", "floor"):
                if which == "floor":
                    floors.append(floor_seconds(beside, payload))
                else:
                    records.append(record_seconds(ledger, allowance, number, payload))
            marks.append(mark_seconds(ledger))
            beside.unlink()
    for left in folder.glob(f"{size}.ledger*"):
        left.unlink()
    first, second, third = ([1e3 * value for value in values[1:]] for values in (floors, records, marks))
    return first, second, third


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write; a subfolder is made and removed")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    promises = {PROMISED_BYTES: f"at most {MOST_MILLISECONDS:g} ms over", LARGE_BYTES: f"ratio at most {MOST_RATIO:g}"}
    rows: list[dict[str, Any]] = []
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
                    "mean_ratio": statistics.mean(records) / statistics.mean(floors),
                    "promise": promises.get(size, ""),
                }
            )
    columns = (
        Column(key="bytes", heading="payload, bytes"),
        Column(key="floor", heading="write and sync, ms"),
        Column(key="overhead", heading="release over it, ms"),
        Column(key="ratio", heading="ratio"),
        Column(key="mark", heading="its marks, ms"),
        Column(key="mean_ratio", heading="ratio of means"),
        Column(key="promise", heading="promise", figures=False),
    )
    show(Result(data=rows, rows=rows, picture=[table("A durable release", columns, rows)]), options.format)
    found = {row["bytes"]: row for row in rows}
    if found[PROMISED_BYTES]["overhead"] > MOST_MILLISECONDS or found[LARGE_BYTES]["ratio"] > MOST_RATIO:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
