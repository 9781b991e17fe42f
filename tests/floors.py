"""Prints the lowest versions that pyproject.toml allows, as pins for pip; `make test-floors` tests with them.

Without arguments those of the core dependencies; `floors.py pytest polars` adds those of the test group.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
CORE = PROJECT["project"]["dependencies"]
TESTS = [line for line in PROJECT["dependency-groups"]["test"] if isinstance(line, str)]


def pins(requirements):
    """Returns `name==1.2` for each `name>=1.2`: a floor must be a version that there is, and has no ceiling beside it."""
    found = {}
    for line in requirements:
        floor = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)", line)
        if floor is None:
            raise SystemExit(f"pyproject.toml: {line!r} must be a name, >= and the lowest version that works")
        found[floor[1]] = f"{floor[1]}=={floor[2]}"
    return found


def main(arguments):
    """Prints the pins."""
    named = pins(TESTS)
    print(*pins(CORE).values(), *(named[name] for name in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
