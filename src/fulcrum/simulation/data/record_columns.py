"""The columns of a table of records, CSV or Parquet, by name."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fulcrum.errors import DataError, MissingExtraError
from fulcrum.simulation.data.images import decode_images


def csv_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    """Returns the columns of a CSV file in UTF-8; every row must have as many cells as the header."""
    header: list[str] = []
    rows: list[list[str]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                if not header:
                    header = row
                    continue
                if len(row) != len(header):
                    raise DataError(
                        "table.cells-number", file=path, line=reader.line_num, cells=len(row), columns=len(header)
                    )
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError("table.csv-unreadable", file=path, reason=error) from None
    if not header:
        raise DataError("table.file-empty", file=path)
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise DataError("table.column-repeated", file=path, column=twice)
    return dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())


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
