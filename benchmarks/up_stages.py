"""The time of `fulcrum up` from its start to its end, by steps, on both engines: four silos in two regions.

Every step is a line that the command prints on stderr, so a person waits for a line as long as the longest step. With
`--beside` another version of Fulcrum runs in turn, and the ratios are the figures to quote: the processes of all sites
share the machine with all other processes there. On a busy machine the ratio of processor seconds says how much work
was saved, and a wait without work is in the ratio of clock seconds alone.

    python benchmarks/up_stages.py
    git worktree add ../before COMMIT && python benchmarks/up_stages.py --beside ../before/src
"""

import argparse
import contextlib
import ctypes
import importlib.util
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fulcrum.views.terminal.screen import FORMATS, Result, remarks, show, table
from fulcrum.views.terminal.table_columns import Column

PLANS = {"nvflare": (), "flower": ("--aggregation", "masked")}
FEDERATION = "silo,records,region\nlille,1200,north\namiens,800,north\nnice,1500,south\ncannes,900,south\n"
PARTS = {
    "first round": "from the start to the result of round 1",
    "a round": "from one result to the next, the mean",
    "end": "from the last result to the end of the command",
    "whole": "the whole command",
    "silence": "the longest time without a line",
}
KINDS = (("seconds", "before", "ratio"), ("processor_seconds", "processor_before", "processor_ratio"))
HEADINGS = {"processor_seconds": "CPU seconds", "processor_before": "CPU before", "processor_ratio": "CPU ratio"}
LONGEST_SILENCE = 0.5
"""The most of the whole command without a line."""

_ENDED = re.compile(r"round (\d+) of \d+: \d+ (?:regional )?sum")
_SET_CHILD_SUBREAPER = 36  # of Linux's prctl: processes without a parent become children of this process
_TICKS = os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants: their processor time would be lost with a killed site."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def processor_seconds() -> float:
    """Returns the processor time of all processes that descend from this process, including ended processes."""
    parents, seconds = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                seconds[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS  # own and collected children's
    family, found = {os.getpid()}, 0
    while len(family) > found:
        found = len(family)
        family |= {process for process, parent in parents.items() if parent in family}
    collected = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(seconds[process] for process in family if process in seconds and process != os.getpid())
    return collected.ru_utime + collected.ru_stime + running


def collect_orphans() -> None:
    """Waits for all ended descendants, so that their processor time is counted once and no zombie stays."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass


@dataclass
class Lines:
    """The lines of a run of the command, with the clock and processor seconds since its start."""

    words: list[str] = field(default_factory=list)
    moments: list[tuple[float, float]] = field(default_factory=list)
    """The moments of all lines, and the end of the command."""

    def parts(self, rounds: int) -> dict[str, tuple[float, ...]]:
        """Returns the clock seconds and processor seconds of every part in `PARTS`, and the silence by the clock."""
        lines = zip(self.moments, self.words, strict=False)
        ends = [moment for moment, words in lines if _ENDED.search(words)]
        if len(ends) != rounds:
            raise SystemExit(f"a run reported {len(ends)} of {rounds} rounds: {self.words[-1:]}")
        clock = [0.0, *(moment[0] for moment in self.moments)]
        first, last, whole = ends[0], ends[-1], self.moments[-1]
        return {
            "first round": first,
            "a round": tuple((b - a) / (rounds - 1) for a, b in zip(first, last, strict=True)),
            "end": tuple(b - a for a, b in zip(last, whole, strict=True)),
            "whole": whole,
            "silence": (max(later - earlier for earlier, later in pairwise(clock)),),
        }


def run_up(engine: str, folder: Path, source: str | None, rounds: int) -> Lines:
    """Plans, and runs the plan on an engine, by this version of Fulcrum or by the version in another source folder."""
    path = [source, os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "COLUMNS": "200"}
    (folder / "fed.csv").write_text(FEDERATION)
    fulcrum = (sys.executable, "-m", "fulcrum.cli")
    plan = ["plan", "fed.csv", "--rounds", str(rounds), "--epsilon", "5", *PLANS[engine], "-o", "plan.json"]
    subprocess.run([*fulcrum, *plan], cwd=folder, env=environment, check=True, capture_output=True)
    lines, start, used = Lines(), time.monotonic(), processor_seconds()
    command = [*fulcrum, "up", engine, "plan.json", "--data", "digits"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            lines.moments.append((time.monotonic() - start, processor_seconds() - used))
            lines.words.append(line.strip())
            clock, processor = lines.moments[-1]
            print(f"{clock:8.2f} s {processor:8.2f} CPU-s  {line.rstrip()}", file=sys.stderr)
    whole = time.monotonic() - start
    collect_orphans()
    lines.moments.append((whole, processor_seconds() - used))
    if process.returncode:
        raise SystemExit(f"fulcrum up {engine} ended with status {process.returncode}")
    return lines


def main() -> int:
    """Prints the parts of each engine; fails if a person waits for a line for more than half of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", help="folder with another version of the package fulcrum, to run in turn")
    parser.add_argument("--engine", choices=sorted(PLANS), action="append", help="default: all that are installed")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="at least 2")
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    packages = {"nvflare": "nvflare", "flower": "flwr"}
    installed = [engine for engine, package in packages.items() if importlib.util.find_spec(package)]
    sources = [None, *([str(Path(options.beside).resolve())] if options.beside else [])]
    adopt_orphans()
    rows, is_kept = [], True
    for engine in options.engine or installed:
        found: dict[str | None, list[dict[str, tuple[float, ...]]]] = {source: [] for source in sources}
        for _ in range(options.turns):
            for source in sources:
                with tempfile.TemporaryDirectory() as folder:
                    found[source].append(run_up(engine, Path(folder), source, options.rounds).parts(options.rounds))
        for part in PARTS:
            row: dict[str, str | float] = {"engine": engine, "part": part}
            for position, (key, before, ratio) in enumerate(KINDS):
                medians = [
                    statistics.median(parts[part][position] for parts in found[source])
                    for source in sources
                    if len(found[source][0][part]) > position
                ]
                row |= dict(zip((key, before), medians, strict=False))
                if len(medians) > 1 and medians[1]:
                    row[ratio] = medians[0] / medians[1]
            rows.append(row)
        silence = statistics.median(parts["silence"][0] / parts["whole"][0] for parts in found[None])
        is_kept = is_kept and silence <= LONGEST_SILENCE
    headings = [("engine", False), ("part", False), *((key, True) for kind in KINDS for key in kind)]
    columns = [Column(key=key, heading=HEADINGS.get(key, key), figures=figures) for key, figures in headings]
    columns = [column for column in columns if column.key in rows[0]]
    meanings = remarks([(False, f"{part}: {words}") for part, words in PARTS.items()])
    picture = [table("fulcrum up, four silos", columns, rows), meanings]
    show(Result(data=rows, rows=rows, picture=picture), options.format)
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
