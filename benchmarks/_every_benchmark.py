"""Runs every benchmark beside this file in turn, and then names those that failed or were left out, and why.

A benchmark is left out where a package that it imports is not installed: PyTorch and Ray are no part of the environment
of `make bench`. A benchmark that fails does not keep the next one from running.

    python benchmarks/_every_benchmark.py
"""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
INSTALLED_BY = {"torch": "make test-torch", "ray": "make test-flower"}


def packages_missing(script: Path) -> list[str]:
    """Returns the packages that a script imports, at once or later, and that are not installed."""
    names = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    beside = {path.stem for path in script.parent.iterdir()}
    return sorted(name for name in names - beside if importlib.util.find_spec(name) is None)


def outcome_of(script: Path) -> str:
    """Runs a benchmark, and returns in words how it ended."""
    missing = packages_missing(script)
    if missing:
        commands = " and ".join(INSTALLED_BY.get(name, f"pip install {name}") for name in missing)
        return f"left out: needs {' and '.join(missing)}. Run: {commands}"
    print(f"--- {script.name}", flush=True)
    status = subprocess.run([sys.executable, script], check=False).returncode
    return "ran" if status == 0 else f"failed with status {status}"


def main(folder: Path) -> int:
    """Runs the benchmarks of a folder; returns 1 where one failed."""
    outcomes = {script.name: outcome_of(script) for script in sorted(folder.glob("[a-z]*.py"))}
    print("---", *(f"{name}: {outcome}" for name, outcome in outcomes.items()), sep="\n")
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main(HERE))
