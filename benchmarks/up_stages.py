"""The time of `fulcrum up` from its start to its end, by steps, on both engines: four silos in two regions.

Every step is a line that the command prints on stderr, so a person waits for a line as long as the longest step. With
`--beside` another version of Fulcrum runs in turn, and the ratios are the figures to quote: the processes of all sites
share the machine with all other processes there.

    python benchmarks/up_stages.py
    git worktree add ../before COMMIT && python benchmarks/up_stages.py --beside ../before/src
"""

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fulcrum.views.terminal.screen import FORMATS, Result, show, table
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
LONGEST_SILENCE = 0.5
"""The most of the whole command without a line."""

_ENDED = re.compile(r"round (\d+) of \d+: \d+ regional")


@dataclass
class Lines:
    """The lines of a run of the command, with the seconds since its start."""

    times: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    whole: float = 0.0

    def parts(self, rounds: int) -> dict[str, float]:
        """Returns the seconds of every part in `PARTS`."""
        ends = [at for at, words in zip(self.times, self.words, strict=True) if _ENDED.search(words)]
        if len(ends) != rounds:
            raise SystemExit(f"a run reported {len(ends)} of {rounds} rounds: {self.words[-1:]}")
        moments = [0.0, *self.times, self.whole]
        return {
            "first round": ends[0],
            "a round": (ends[-1] - ends[0]) / (rounds - 1),
            "end": self.whole - ends[-1],
            "whole": self.whole,
            "silence": max(later - earlier for earlier, later in pairwise(moments)),
        }


def run_up(engine: str, folder: Path, source: str | None, rounds: int) -> Lines:
    """Plans, and runs the plan on an engine, by this version of Fulcrum or by the version in another source folder."""
    path = [source, os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "COLUMNS": "200"}
    (folder / "fed.csv").write_text(FEDERATION)
    fulcrum = (sys.executable, "-m", "fulcrum.cli")
    plan = ["plan", "fed.csv", "--rounds", str(rounds), "--epsilon", "5", *PLANS[engine], "-o", "plan.json"]
    subprocess.run([*fulcrum, *plan], cwd=folder, env=environment, check=True, capture_output=True)
    lines, start = Lines(), time.monotonic()
    command = [*fulcrum, "up", engine, "plan.json", "--data", "digits"]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():
            lines.times.append(time.monotonic() - start)
            lines.words.append(line.strip())
            print(f"{lines.times[-1]:8.2f} s  {line.rstrip()}", file=sys.stderr)
    lines.whole = time.monotonic() - start
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
    rows, is_kept = [], True
    for engine in options.engine or installed:
        found: dict[str | None, list[dict[str, float]]] = {source: [] for source in sources}
        for _ in range(options.turns):
            for source in sources:
                with tempfile.TemporaryDirectory() as folder:
                    found[source].append(run_up(engine, Path(folder), source, options.rounds).parts(options.rounds))
        for part, words in PARTS.items():
            seconds = {source: statistics.median(parts[part] for parts in found[source]) for source in sources}
            row = {"engine": engine, "part": f"{part}: {words}", "seconds": seconds[None]}
            rows.append(
                row
                | (
                    {"before": seconds[sources[1]], "ratio": seconds[None] / seconds[sources[1]]}
                    if options.beside
                    else {}
                )
            )
        silence = statistics.median(parts["silence"] / parts["whole"] for parts in found[None])
        is_kept = is_kept and silence <= LONGEST_SILENCE
    headings = [("engine", False), ("part", False), ("seconds", True), ("before", True), ("ratio", True)]
    columns = [Column(key=key, heading=key, figures=figures) for key, figures in headings if key in rows[0]]
    show(Result(data=rows, rows=rows, picture=[table("fulcrum up, four silos", columns, rows)]), options.format)
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
