"""Every table and figure of the paper, one script after the other; ends by saying what was checked and what differs."""

import os
import runpy
import sys
from pathlib import Path

from _figures import WRITTEN
from _printed import LEFT_OUT, REPORTED

BY_THEMSELVES = ("recipe_promises", "recipe_suite")
"""The scripts of an hour of processor time, which are run by themselves."""


def main() -> int:
    """Runs every script but those of `BY_THEMSELVES` and returns the worst exit status."""
    status, skipped = 0, 0
    for script in (script for script in scripts() if script.stem not in BY_THEMSELVES):
        before = len(REPORTED)
        status = max(status, _run(script))
        skipped += len(REPORTED) == before
    print(summary(skipped))
    return status


def scripts() -> list[Path]:
    """Returns the scripts of tables and figures; a script `make_...` makes data and needs files that users download."""
    return [script for script in sorted(Path(__file__).parent.glob("[a-z]*.py")) if not script.stem.startswith("make_")]


def summary(skipped: int) -> str:
    """Returns what was checked, what differs, and where the figures are."""
    checked = [row for row in REPORTED if row.difference is not None]
    printed = sum(row.paper is not None for row in checked)
    theory = len(checked) - printed
    off = sum(row.off for row in checked)
    explained = sum(row.outside for row in checked) - off
    said = [
        f"Not run: {' and '.join(f'paper/{name}.py' for name in BY_THEMSELVES)}, which take an hour on one core.",
        f"Checked {len(checked):,} values: {printed:,} that the paper prints, {theory:,} of the theory.",
        f"Off: {off:,}; {explained:,} more differ for a reason that stands beside them.",
    ]
    if skipped:
        said.append(f"Skipped: {skipped} scripts, which need the data folder.")
    if LEFT_OUT:
        said.append(f"Left out: {', '.join(LEFT_OUT)}, whose tables are not here.")
    if WRITTEN:
        said.append(f"Figures in {os.path.relpath(WRITTEN[0].parent)}: {', '.join(path.name for path in WRITTEN)}.")
    return "\n".join(said)


def _run(script: Path) -> int:
    """Runs one script as from the command line and returns its exit status."""
    sys.argv = [str(script)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
