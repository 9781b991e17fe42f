r"""Lines around a table that are no part of the table: titles above the header, and remarks below the last row.

>>> from fulcrum.readers.spreadsheets.sheet_text import sheet_text
>>> text = without_titles(sheet_text(b"Our network;;\n;;\nKlinik;Patienten;Region\n", "sites.csv"))
>>> next(text.rows())[0], text.notes[-1]
(3, "line 1 is left out: 'Our network' is a title above the header")

A row of a table fills two cells at least, the silo and its region, so a line with a single filled cell is no row.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from fulcrum.errors import in_one_line
from fulcrum.readers.spreadsheets.column_names import SITE, expected_tier, stands_for
from fulcrum.readers.spreadsheets.sheet_text import LOOKED_AT, SheetText
from fulcrum.readers.spreadsheets.total_rows import called_total

_MOST_SHOWN = 60  # letters of a line in a note
_HEADINGS = ("silo", "records", "region", "epsilon", "group", "weight", SITE)


def without_titles(text: SheetText) -> SheetText:
    """Returns a table without the titles above its header, and with a note on each.

    A title is a line with a single filled cell that is no name of a column. Lines with two filled cells stay: such a
    line may be a header with unknown names.
    """
    titles: list[tuple[int, str]] = []
    for line, row in islice(text.rows(), LOOKED_AT):
        filled = _nonempty_cells(row)
        if len(filled) > 1:
            return _without(text, titles, "a title above the header") if titles else text
        if _is_heading(filled[0]):
            break
        titles.append((line, filled[0]))
    return text


def without_remarks(text: SheetText) -> SheetText:
    """Returns a table without the remarks below its last row, and with a note on each.

    A remark is a line with a single filled cell, with letters, after all rows. The line before the first remark is
    empty, or a row with a word for a sum: without either, the line may be a silo that has no region yet.
    """
    remarks: list[tuple[int, str]] = []
    before, apart = 0, False
    is_after_sum = False
    for line, row in text.rows():
        filled = _nonempty_cells(row)
        if len(filled) == 1 and _has_letters(filled[0]):
            apart = apart if remarks else is_after_sum or line > before + 1
            remarks.append((line, filled[0]))
        else:
            remarks.clear()
        before, is_after_sum = line, any(map(called_total, filled))
    if not (remarks and apart):
        return text
    return _without(text, remarks, "a remark below the table")


def lone_cell(text: SheetText, line: int) -> str:
    """Returns the only filled cell of a line; "" if further cells are filled, or the cell has no letter."""
    filled = next((_nonempty_cells(row) for number, row in text.rows() if number == line), [])
    return filled[0] if len(filled) == 1 and _has_letters(filled[0]) else ""


def _nonempty_cells(row: Sequence[str]) -> list[str]:
    return [cell.strip() for cell in row if cell.strip()]


def _has_letters(cell: str) -> bool:
    """Checks that a cell is no number: a number alone is a sum, or a row without the name of its silo."""
    return any(map(str.isalpha, cell))


def _is_heading(cell: str) -> bool:
    """Checks that a cell is a name for a column, as in a table of one column."""
    return cell in _HEADINGS or expected_tier(cell) or any(stands_for(cell, column) for column in _HEADINGS)


def _without(text: SheetText, lines: Sequence[tuple[int, str]], kind: str) -> SheetText:
    notes = (f"line {number} is left out: {in_one_line(cell)[:_MOST_SHOWN]!r} is {kind}" for number, cell in lines)
    return replace(text, skipped=text.skipped.union(number for number, _ in lines), notes=(*text.notes, *notes))
