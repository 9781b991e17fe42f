"""The columns of a table of records, CSV or Parquet, by name; cells of a CSV file with the place of every mistake."""

import csv
import gzip
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, MissingExtraError, listing, suggestion
from fulcrum.regular_files import regular_file
from fulcrum.simulation.data.sources.images import decode_images

MISSING = ("", "?")
"""Cells without a value."""

WRONG_CELLS = "Give the row a cell for every column, or download or export the file again"
"""The remedy for a row with too few or too many cells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CsvTable:
    """The cells of a CSV file as text.

    Attributes:
        file: The file, for messages.
        columns: The cells by name of the column.
        lines: The line of every row in the file.
    """

    file: Path
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]

    def words(self, column: str, *, required: bool = False) -> list[str]:
        """Returns the cells of a column without spaces around them; a cell has printable letters alone.

        Args:
            column: The name of the column.
            required: True refuses an empty cell.
        """
        if column not in self.columns:
            raise DataError(
                "table.column-missing",
                file=self.file,
                column=column,
                columns=listing(self.columns),
                suggestion=suggestion(column, self.columns),
            )
        words = [cell.strip() for cell in self.columns[column]]
        unprintable = next((row for row, word in enumerate(words) if not word.isprintable()), None)
        if unprintable is not None:  # a damaged file: the cell could become the name of a silo or a region
            raise self.cell_error(unprintable, column, "printable text")
        if required and "" in words:
            raise self.cell_error(words.index(""), column, "a name")
        return words

    def numbers(
        self,
        column: str,
        *,
        limits: tuple[float, float] | None = None,
        missing: float | None = None,
        words: Mapping[str, float] | None = None,
    ) -> FloatArray:
        """Returns a column as numbers, NaN for a missing value; raises `DataError` for any other cell.

        Args:
            column: The name of the column.
            limits: The least and the largest of whole numbers that stand for codes; None for measurements.
            missing: A number that stands for a missing value, besides the cells of `MISSING`.
            words: The numbers of cells that are words.
        """
        rule = "a number" if limits is None else "a whole number from {:g} to {:g}".format(*limits)
        values = np.full(len(self.lines), math.nan)
        for row, word in enumerate(self.words(column)):
            if word in MISSING:
                continue
            try:
                number = words[word] if words and word in words else float(word)
            except ValueError:
                number = math.nan
            if number == missing:
                continue
            coded = limits is None or (number.is_integer() and limits[0] <= number <= limits[1])
            if not (math.isfinite(number) and coded):
                raise self.cell_error(row, column, rule)
            values[row] = number
        return values

    def cell_error(self, row: int, column: str, rule: str) -> DataError:
        """Returns the error of a cell that breaks a rule, with file, line and column."""
        cell = self.columns[column][row].strip()
        return DataError("table.cell-wrong", file=self.file, line=self.lines[row], column=column, rule=rule, cell=cell)

    def check_unique(self, *columns: str) -> None:
        """Raises `DataError` for two rows with the same cells in all of these columns."""
        lines: dict[tuple[str, ...], int] = {}
        for line, key in zip(self.lines, zip(*map(self.words, columns), strict=True), strict=True):
            first = lines.setdefault(key, line)
            if first != line:
                words = " ".join(f"{column}={cell!r}" for column, cell in zip(columns, key, strict=True))
                raise DataError("table.row-repeated", file=self.file, line=line, row=words, first=first)

    def check_reference(self, column: str, other: "CsvTable") -> None:
        """Raises `DataError` for a cell that is not in the same column of another table."""
        present = set(other.words(column))
        for line, word in zip(self.lines, self.words(column, required=True), strict=True):
            if word not in present:
                raise DataError(
                    "table.reference-unknown", file=self.file, line=line, column=column, cell=word, other=other.file
                )


def csv_table(path: Path, *, header: Sequence[str] = ()) -> CsvTable:
    """Returns a CSV file in UTF-8, unpacked if the name ends with .gz; every row must have as many cells as the header.

    Args:
        path: The file.
        header: The names of the columns of a file without a header.
    """
    names, lines, rows = list(header), list[int](), list[list[str]]()
    try:
        with (
            gzip.open(regular_file(path), "rt", newline="", encoding="utf-8-sig")
            if path.suffix == ".gz"
            else regular_file(path).open(newline="", encoding="utf-8-sig")
        ) as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                if not names:
                    names = row
                    continue
                if len(row) != len(names):
                    raise DataError(
                        "table.cells-number",
                        file=path,
                        line=reader.line_num,
                        cells=len(row),
                        columns=len(names),
                        advice=WRONG_CELLS,
                    )
                rows.append(row)
                lines.append(reader.line_num)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError("table.gzip-unreadable", file=path, reason=error) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("table.csv-unreadable", file=path, reason=error) from None
    if not names or (header and not rows):
        raise DataError("table.file-empty", file=path)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError("table.column-repeated", file=path, column=twice)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    return CsvTable(file=path, columns=columns, lines=lines)


def csv_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    """Returns the columns of a CSV file in UTF-8; every row must have as many cells as the header."""
    return csv_table(path).columns


def parquet_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    """Returns the columns of a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("extra.pyarrow-missing") from None
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise DataError("table.parquet-unreadable", file=path, reason=error) from None
    return {name: table[name].to_pylist() for name in table.column_names}


def image_column(path: Path, values: Sequence[Any]) -> Any:
    """Returns the images of a column as arrays; a cell is encoded bytes or a group with a field `bytes`."""
    cells: list[Any] = [value.get("bytes") if isinstance(value, dict) else value for value in values]
    names = [f"{path} record {number}: its image" for number in range(1, len(cells) + 1)]
    missing = next((name for name, cell in zip(names, cells, strict=True) if not isinstance(cell, bytes)), None)
    if missing is not None:
        raise DataError("image.bytes-missing", image=missing)
    return decode_images(cells, names)


def text_column(path: Path, values: Sequence[Any]) -> list[str]:
    """Returns the texts of a column, or raises `DataError` for a record without a text."""
    for number, value in enumerate(values, 1):
        if not isinstance(value, str) or not value.strip():
            raise DataError("text.words-missing", file=path, record=number, value=value)
    return list(values)
