"""Planning 10^8 silos read from a Parquet file within 12 GB, both epsilons included.

Writes the file to a temporary folder, reads and plans it in a process of its own, and reports that process's peak
memory.

    python benchmarks/planning_scale.py [--silos 100000000]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fulcrum
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

MOST_BYTES = 12 * 10**9
BATCH = 2_000_000


def write_silos(path: Path, silos: int, regions: int) -> None:
    """Writes a roster of unequal silos with names, batch by batch."""
    rng = np.random.default_rng(0)
    names = pa.array([f"region-{k}" for k in range(regions)])
    schema = pa.schema(
        [("silo", pa.string()), ("records", pa.int64()), ("region", pa.dictionary(pa.int32(), pa.string()))]
    )
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, silos, BATCH):
            count = min(BATCH, silos - start)
            silo = pa.array(np.arange(start, start + count)).cast(pa.string())
            records = pa.array(rng.lognormal(5, 0.6, count).astype(np.int64) + 1)
            region = pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, regions, count), pa.int32()), names)
            writer.write_table(pa.table([silo, records, region], schema=schema))


def measure(path: str) -> None:
    """Reads and plans in this process, then prints seconds and peak bytes."""
    start = time.perf_counter()
    federation = fulcrum.read_federation(path)
    read = time.perf_counter() - start
    made = fulcrum.plan(federation, rounds=10, epsilon=1.0)
    worst = made.epsilon_above.max(), made.epsilon_inside.max()
    done = time.perf_counter() - start - read
    if not worst[0] <= 1.0:
        raise SystemExit("the plan overspends")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sys.stdout.write(f"{read} {done} {peak}\n")


def main() -> None:
    """Measures, prints, and fails if the memory promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=100_000_000)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "silos.parquet"
        sys.stderr.write(f"writing {options.silos:,} silos\n")
        write_silos(path, options.silos, max(1, options.silos // 1000))
        sys.stderr.write("reading and planning\n")
        done = subprocess.run([sys.executable, __file__, "--measure", path], check=True, capture_output=True, text=True)
    read, planned, peak = map(float, done.stdout.split())
    rows = [
        {"figure": "silos", "value": options.silos},
        {"figure": "peak memory, GB", "value": peak / 1e9},
        {"figure": "planning over reading", "value": planned / read},
    ]
    columns = (Column(key="figure", heading="figure", figures=False), Column(key="value", heading="value"))
    show(Result(data=rows, rows=rows, picture=[table("From Parquet to both epsilons", columns, rows)]), options.format)
    if options.silos <= 100_000_000 and peak > MOST_BYTES:
        raise SystemExit(f"peak memory {peak / 1e9:.1f} GB is above {MOST_BYTES / 1e9:g} GB")


if __name__ == "__main__":
    main()
