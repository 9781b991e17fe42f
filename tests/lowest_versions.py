"""Prints the lowest versions that pyproject.toml allows, as pins for pip; `make test-lowest` tests with these versions.

Without arguments: the pins of the core dependencies. `lowest_versions.py pytest polars` adds the pins of packages of the test group.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
CORE = PROJECT["project"]["dependencies"]
# An engine is pinned exactly for its tests, and has no lowest version here.
TESTS = [line for line in PROJECT["dependency-groups"]["test"] if isinstance(line, str) and "==" not in line]


def pins(requirements):
    """Returns `name==1.2` for each `name>=1.2`. The lowest version must exist, and no requirement has a ceiling."""
    pinned = {}
    for line in requirements:
        lowest = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", line)
        if lowest is None:
            raise SystemExit(f"pyproject.toml: {line!r} must be a name, >= and the lowest version that works")
        pinned[lowest[1]] = f"{lowest[1]}=={lowest[2]}"
    return pinned


def main(arguments):
    """Prints the pins."""
    named = pins(TESTS)
    print(*pins(CORE).values(), *(named[name] for name in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
