"""Reads a federation: a built-in name, a TOML, CSV, Parquet or NVFLARE project file, or any data frame.

>>> read_federation("severe").node_count("region")
5
>>> import polars
>>> frame = polars.DataFrame({"silo": ["lille", "lyon"], "records": [800, 1200], "region": ["north", "south"]})
>>> read_federation(frame).weights.tolist()
[0.4, 0.6]

Every message names the file and the line, or the row. A column that is not known is refused, never ignored.
"""

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import narwhals as nw
import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.csv_text import plain_cell
from fulcrum.errors import FederationError, MissingExtraError, listing, suggestion
from fulcrum.federation.profiles import PROFILES, profile
from fulcrum.federation.silo_table import USUAL_COLUMNS, Numbers, Silos, checked_header, label_columns
from fulcrum.federation.structure import SILO, Federation
from fulcrum.federation.tree_files import nvflare_federation, toml_federation

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_BATCH = 1 << 18


def read_federation(source: Any) -> Federation:
    """Returns the federation that `source` describes.

    Args:
        source: A name of `PROFILES`; the path of a .toml, .csv, .parquet, .yml or .yaml file; a data frame that
            narwhals accepts, eager or lazy (pandas, Polars, DuckDB, PyArrow, PySpark); or a federation,
            which is returned unchanged. A built-in name wins over a file so named; write ./severe for the file.

    Raises:
        FederationError: The description is wrong or cannot be read.
        MissingExtraError: The format needs a package that is not installed.

    The formats are described in docs/federation-files.md.
    """
    if isinstance(source, Federation):
        return source
    if isinstance(source, str) and source in PROFILES:
        return profile(source)
    if isinstance(source, str | Path):
        return _read_file(Path(source), str(source))
    return _read_frame(source)


def federation_from_bytes(data: bytes, file: str) -> Federation:
    r"""Returns the federation of a CSV or TOML file that is at hand as bytes; its name decides which of them it is.

    >>> federation_from_bytes(b"silo,records,region\nlille,800,north\nlyon,1200,south", "sites.csv").weights.tolist()
    [0.4, 0.6]

    Raises:
        FederationError: The description is wrong, or the name ends in neither .csv nor .toml.
    """
    path = Path(file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _not_utf8(data, file) from None
    if path.suffix.lower() == ".toml":
        return toml_federation(text, file, _stem(path))
    if path.suffix.lower() == ".csv":
        return _csv_federation(io.StringIO(text, newline=""), file, _stem(path))
    raise FederationError(f"{file}: it must be a CSV or TOML file, and its name end in .csv or .toml. Save it as CSV")


def _read_file(path: Path, given: str) -> Federation:
    file = path.name if path.name.isprintable() else repr(path.name)
    try:
        return _reader_of(path, given, file)(path, file)
    except OSError as error:
        raise FederationError(f"{file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _not_utf8(path.read_bytes(), file) from None


def _reader_of(path: Path, given: str, file: str) -> Callable[[Path, str], Federation]:
    """Returns the reader of a file's format, or raises when there is no such file or format."""
    if not given or not path.exists():
        near = suggestion(given, PROFILES)
        raise FederationError(f"no built-in federation or file {given!r}. Known: {listing(PROFILES)}.{near}")
    if path.is_dir():
        raise FederationError(f"{given!r} is a directory. Give a file: {listing(_READERS)}")
    if path.suffix.lower() not in _READERS:
        raise FederationError(
            f"{file}: files that end in {path.suffix!r} cannot be read. Known: {listing(_READERS)}. Save it as CSV"
        )
    return _READERS[path.suffix.lower()]


def _not_utf8(data: bytes, file: str) -> FederationError:
    try:
        data.decode("utf-8")
        start = 0
    except UnicodeDecodeError as error:
        start = error.start
    line = data[:start].replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
    return FederationError(f"{file} line {line} is not UTF-8. Save it as UTF-8")


def _text(cell: Any) -> str:
    """Returns a cell of a text column; whole numbers are fine as names."""
    if isinstance(cell, str):
        return cell.strip()
    if cell is None:
        return ""
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.15g}"
    return cell.decode("utf-8", "backslashreplace").strip() if isinstance(cell, bytes) else str(cell)


def _read_csv(path: Path, file: str) -> Federation:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return _csv_federation(stream, file, _stem(path))


def _csv_federation(stream: TextIO, file: str, name: str) -> Federation:
    lines = array("q")
    rows = _csv_rows(csv.reader(stream, strict=True), file)
    line, first = next(rows, (1, []))
    if not first:
        raise FederationError(f"{file} is empty. Its first line must be: {','.join(USUAL_COLUMNS)}")
    for separator, word in _SEPARATORS.items():
        if len(first) == 1 and separator in first[0]:
            raise FederationError(f"{file} line {line}: columns are separated by {word}. Separate them by commas")
    header = checked_header([plain_cell(name.strip()) for name in first], f"{file} line {line}")
    silos = Silos(label_columns(header), lambda row: f"{file} line {lines[row]}")
    batch: list[list[str]] = []
    for line, row in rows:
        if len(row) != len(header):
            raise FederationError(
                f"{file} line {line}: {len(row)} cells in place of {len(header)}. "
                f"Give one to each column, and quote a name that holds a comma"
            )
        lines.append(line)
        batch.append(row)
        if len(batch) == _BATCH:
            _add_cells(silos, header, batch)
            batch.clear()
    if batch:
        _add_cells(silos, header, batch)
    return silos.federation(name, file)


def _csv_rows(reader: Any, file: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows that are not blank, with the line each begins on."""
    line = 1
    try:
        for row in reader:
            if len(row) > 1 or (row and row[0].strip()):
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise FederationError(f"{file} line {line}: {error}. Check the quotes") from None


def _add_cells(silos: Silos, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    columns = dict(zip(header, (list(map(str.strip, column)) for column in zip(*rows, strict=True)), strict=True))
    labels = {name: list(map(plain_cell, columns[name])) for name in label_columns(header)}
    silos.add(list(map(plain_cell, columns[SILO])), labels=labels, **_numbers(columns, lambda cells: cells))


def _numbers(columns: Mapping[str, Any], read: Callable[[Any], Numbers]) -> dict[str, Numbers | None]:
    """Returns the columns of numbers, None for one that the table does not have."""
    return {name: read(columns[name]) if name in columns else None for name in ("records", "epsilon", "weight")}


def _read_parquet(path: Path, file: str) -> Federation:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("reading Parquet needs pyarrow. Run: pip install 'fulcrum-dp[parquet]'") from None
    with path.open("rb"):  # says why a file cannot be opened, which Arrow does not
        pass
    try:
        with pa.parquet.ParquetFile(path) as table:
            header = checked_header(table.schema_arrow.names, file)
            silos = Silos(label_columns(header), lambda row: f"{file} row {row + 1}", table.metadata.num_rows)
            for batch in table.iter_batches(batch_size=_BATCH):
                columns = dict(zip(header, batch.columns, strict=True))
                labels = {name: _arrow_labels(columns[name]) for name in label_columns(header)}
                silo = _arrow_strings(columns[SILO]).to_numpy(zero_copy_only=False).tolist()
                silos.add(silo, labels=labels, **_numbers(columns, _arrow_numbers))
    except FederationError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise FederationError(f"{file} is not a Parquet file, or it is damaged. Write it again") from None
    return silos.federation(_stem(path), file)


def _arrow_strings(column: Any) -> Any:
    """Returns a column of a batch as trimmed strings, "" where it is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type):
        raise FederationError(f"a column of type {column.type} cannot name silos or regions. Give strings or integers")
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type) or "string" in str(column.type):
        column = column.cast(pa.large_string())
    else:
        column = pa.array(map(_text, column.to_pylist()), pa.large_string())
    return pc.utf8_trim_whitespace(column).fill_null("")


def _arrow_labels(column: Any) -> tuple[IntArray, Sequence[str]]:
    """Returns codes and labels; encoded anew, so that labels stand in the order of their rows."""
    encoded = _arrow_strings(column).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.intp), encoded.dictionary.to_pylist()


def _arrow_numbers(column: Any) -> Numbers:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values: FloatArray = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return values
    return [cell.strip() if isinstance(cell, str) else cell for cell in column.to_pylist()]


def _read_frame(source: Any) -> Federation:
    try:
        frame = nw.from_native(source)
        original = frame.collect_schema().names()
    except TypeError:
        raise FederationError(
            f"a federation cannot be read from {type(source).__name__}. Give a built-in name, a path or a data frame"
        ) from None
    except nw.exceptions.DuplicateError:
        raise FederationError("data frame: a column name stands there twice. Remove or rename one") from None
    header = checked_header([str(name) for name in original], "data frame")
    try:
        eager = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FederationError(f"data frame: its own query failed: {reason}") from error
    silos = Silos(label_columns(header), lambda row: f"data frame row {row + 1}", len(eager))
    for start in range(0, len(eager), _BATCH):
        rows = eager[start : start + _BATCH]
        columns = {name: rows.get_column(key) for name, key in zip(header, original, strict=True)}
        labels = {name: list(map(_text, _cells(columns[name]))) for name in label_columns(header)}
        silos.add(list(map(_text, _cells(columns[SILO]))), labels=labels, **_numbers(columns, _frame_numbers))
    return silos.federation("federation", "data frame")


def _cells(column: nw.Series[Any]) -> list[Any]:
    """Returns the cells of a column, None for whatever its library takes for missing."""
    cells, missing = column.to_list(), column.is_null()
    if not missing.any():
        return cells
    return [None if gone else cell for cell, gone in zip(cells, missing.to_list(), strict=True)]


def _frame_numbers(column: nw.Series[Any]) -> Numbers:
    if column.dtype.is_numeric():
        values: FloatArray = np.asarray(column.cast(nw.Float64).to_numpy(), dtype=np.float64)
        return values
    return [cell.strip() if isinstance(cell, str) else cell for cell in _cells(column)]


def _read_toml(path: Path, file: str) -> Federation:
    return toml_federation(path.read_text(encoding="utf-8-sig"), file, _stem(path))


def _read_project(path: Path, file: str) -> Federation:
    return nvflare_federation(path.read_text(encoding="utf-8-sig"), file, _stem(path))


def _stem(path: Path) -> str:
    return path.stem if path.stem.isprintable() else "federation"


_READERS: Mapping[str, Callable[[Path, str], Federation]] = {
    ".toml": _read_toml,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".yml": _read_project,
    ".yaml": _read_project,
}
