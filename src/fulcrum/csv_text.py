r"""Tables as CSV that no spreadsheet runs, and back: what begins like a formula has an apostrophe before it.

>>> csv_text([["silo", "change"], ["=1+1", -0.5]])
"silo,change\n'=1+1,-0.5\n"
>>> plain_cell("'=1+1"), plain_cell("'s-Hertogenbosch")
('=1+1', "'s-Hertogenbosch")

A spreadsheet takes a cell for a formula by its first letter, quoted or not, and runs what someone else called a silo.
Numbers stay numbers. A name that begins with apostrophes and then like a formula gets one more, so that every name
comes back as it was.
"""

import csv
import re
from collections.abc import Iterable
from numbers import Number
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # the wide ones are signs to spreadsheets of East Asia


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Returns rows as CSV, nothing for None; `plain_cell` gives each text back."""
    lines = _Lines()
    # Letters of the line's end are quoted inside a cell, and a bare return would end the line too.
    csv.writer(lines, lineterminator="\r\n").writerows(map(_safe, row) for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def plain_cell(cell: str) -> str:
    """Returns the text that `csv_text` wrote as this cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


class _Lines(list[str]):
    """Lines as a file that is written to, one at a time."""

    write = list.append


def _safe(value: Any) -> Any:
    if value is None or isinstance(value, Number):
        return value
    text = str(value)
    return f"'{text}" if _FORMULA.match(text) else text
