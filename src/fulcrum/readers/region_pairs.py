r"""Allowed regions by silo, from a CSV file with the columns silo and region: a line for every allowed pair.

>>> pairs_of("silo,region\nlille,north\nlille,east\n", "pairs.csv")
{'lille': ['north', 'east']}
"""

import csv
from pathlib import Path

from fulcrum.errors import FederationError

_COLUMNS = ("silo", "region")


def read_pairs(path: str | Path) -> dict[str, list[str]]:
    """Returns by silo the allowed regions of a file; `pairs_of` has the form.

    Raises:
        FederationError: The file cannot be read, a column is missing, or a cell is empty.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise FederationError("file.unreadable", file=path, reason=error.strerror) from None
    except UnicodeDecodeError:
        raise FederationError("pairs.not-text", file=path) from None
    return pairs_of(text, str(path))


def pairs_of(text: str, name: str) -> dict[str, list[str]]:
    """Returns by silo the allowed regions of CSV text; further columns are ignored.

    Args:
        text: The CSV, with a header.
        name: The name of the file, for messages.
    """
    rows = csv.reader(text.splitlines())
    header = [cell.strip().lower() for cell in next(rows, [])]
    for column in _COLUMNS:
        if column not in header:
            raise FederationError("pairs.column-missing", file=name, column=column)
    places = [header.index(column) for column in _COLUMNS]
    pairs: dict[str, list[str]] = {}
    for line, row in enumerate(rows, 2):
        if not any(cell.strip() for cell in row):
            continue
        cells = [row[place].strip() if place < len(row) else "" for place in places]
        if not all(cells):
            raise FederationError("pairs.cell-empty", file=name, line=line)
        regions = pairs.setdefault(cells[0], [])
        if cells[1] not in regions:
            regions.append(cells[1])
    return pairs
