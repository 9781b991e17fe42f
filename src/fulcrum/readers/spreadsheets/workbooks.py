"""Workbooks (.xlsx, .ods and others) as CSV text, by python-calamine; the reader of tables then reads the text.

Numbers of a workbook have no separators, so the text has plain digits and decimal points. A row of the text is a row of
the sheet, so messages name the row of the sheet.
"""

import csv
import io
from datetime import date, time, timedelta
from typing import Any

from fulcrum.errors import FederationError, MissingExtraError

READABLE = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
"""Suffixes of the workbooks that are read."""

_MOST_CELLS = 20_000_000


def workbook_text(data: bytes, file: str) -> tuple[bytes, list[str]]:
    """Returns the first sheet with content as CSV in UTF-8, and a note on the chosen sheet.

    Raises:
        FederationError: The bytes are no workbook, or no sheet has content.
        MissingExtraError: The package python-calamine is not installed.
    """
    try:
        from python_calamine import CalamineWorkbook
    except ImportError:
        raise MissingExtraError("extra.calamine-missing", file=file) from None
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
        for name in book.sheet_names:
            sheet = book.get_sheet_by_name(name)
            large = sheet.total_height * sheet.total_width > _MOST_CELLS
            rows = [] if large else sheet.to_python(skip_empty_area=False)
            if large or any(_cell_text(cell) for row in rows for cell in row):
                break
        else:
            name, rows, large = "", [], False
    except Exception:  # the package has an exception of its own for each kind of file
        raise FederationError("sheet.workbook-damaged", file=file) from None
    if large:
        raise FederationError("sheet.workbook-large", file=file, sheet=name)
    if not rows:
        raise FederationError("sheet.workbook-empty", file=file)
    sheets = len(book.sheet_names)
    return _csv_of(rows), [f"sheet {name!r} is read, of {sheets} sheets"] if sheets > 1 else []


def _csv_of(rows: list[list[Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        cells = [_cell_text(cell) for cell in row]
        # The first line decides the number of columns, so an empty row stays an empty line.
        if any(cells):
            writer.writerow(cells)
        else:
            stream.write("\n")
    return stream.getvalue().encode()


def _cell_text(cell: Any) -> str:
    """Returns the text of a cell in one line; whole numbers have no decimal point."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        text = cell.isoformat() if isinstance(cell, (date, time)) else str(cell)
        return " ".join(text.split()) if not isinstance(cell, timedelta) else str(cell)
    return f"{int(cell)}" if float(cell).is_integer() else repr(float(cell))
