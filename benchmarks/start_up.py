"""How long the command line takes to start, beside importing NumPy, which no command that computes can do without.

Each is a fresh interpreter, timed in turns in one run; the figures to quote are the medians of the ratios.

    python benchmarks/start_up.py
"""

import argparse
import statistics
import subprocess
import sys
import time

from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

REPEATS = 15
IMPORT = ("-c", "import numpy")
MOST = {"--help": 3.0, "exposure severe": 5.0}


def seconds(*arguments: str) -> float:
    """The time of one interpreter from its start to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def ratio(command: str) -> float:
    """The time of a command over that of the import, the median over runs in turns."""
    words = ("-m", "fulcrum.cli", *command.split())
    seconds(*words)  # compiles what was never compiled
    return statistics.median(seconds(*words) / seconds(*IMPORT) for _ in range(REPEATS))


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    style = parser.parse_args().format
    found = {command: ratio(command) for command in MOST}
    rows = [
        {"command": f"fulcrum {command}", "ratio": found[command], "promise": f"at most {most:g}"}
        for command, most in MOST.items()
    ]
    columns = (
        Column(key="command", heading="command", figures=False),
        Column(key="ratio", heading="over `import numpy`"),
        Column(key="promise", heading="promise", figures=False),
    )
    show(Result(data=rows, rows=rows, picture=[table("The command line's start", columns, rows)]), style)
    if any(found[command] > most for command, most in MOST.items()):
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
