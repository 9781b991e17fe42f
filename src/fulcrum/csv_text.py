r"""Tables as CSV without formulas, and back: a cell that begins like a formula gets an apostrophe in front.

>>> csv_text([["silo", "change"], ["=1+1", -0.5]])
"silo,change\n'=1+1,-0.5\n"
>>> plain_cell("'=1+1"), plain_cell("'s-Hertogenbosch")
('=1+1', "'s-Hertogenbosch")

A spreadsheet recognises a formula by the first letter of a cell, quoted or not: the name of a silo, chosen by a
stranger, would run as a formula (CSV injection). Numbers stay numbers. A name of apostrophes followed by the start of a
formula gets a further apostrophe, so that `plain_cell` restores every name.
"""

import csv
import re
from collections.abc import Iterable
from numbers import Number
from typing import Any

_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")  # spreadsheets of East Asia also read the wide signs


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Returns rows as CSV, with empty cells for None; `plain_cell` restores the text of a cell."""
    lines = _Lines()
    # csv.writer quotes a cell for the letters of `lineterminator`. A bare return ends a line for some readers, so both
    # letters must be among them, although the lines here end with a newline alone.
    csv.writer(lines, lineterminator="\r\n").writerows(map(_safe, row) for row in rows)
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def plain_cell(cell: str) -> str:
    """Returns the original text of a cell: without the apostrophe that `csv_text` put before a formula."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


class _Lines(list[str]):
    """A list of lines with the method `write` of a file."""

    write = list.append


def _safe(value: Any) -> Any:
    if value is None or isinstance(value, Number):
        return value
    text = str(value)
    return f"'{text}" if _FORMULA.match(text) else text
