"""Reads a federation: a built-in name, a TOML, CSV, Parquet or NVFLARE project file, or any data frame.

>>> read_federation("severe").node_count("region")
5
>>> import polars
>>> frame = polars.DataFrame({"silo": ["lille", "lyon"], "records": [800, 1200], "region": ["north", "south"]})
>>> read_federation(frame).weights.tolist()
[0.4, 0.6]

Every message names the file and the line, or the row. An unknown column is refused, never ignored: a misspelt `epsilon`
would otherwise drop the preferences of all silos without a word.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.topology import SILO, Tier, Topology
from fulcrum.errors import FederationError, MissingExtraError, check_known, listing, suggestion
from fulcrum.readers.profiles import PROFILES, profile
from fulcrum.readers.sheets import sheet_federation
from fulcrum.readers.silo_table import NUMBER_COLUMNS, Numbers, Silos, checked_header, label_columns
from fulcrum.readers.spreadsheets.column_names import IGNORE, Columns, Meaning, column_option, expected_tier, meaning_of
from fulcrum.readers.spreadsheets.near_names import MOST_NAMES, remarks_on
from fulcrum.readers.spreadsheets.sheet_text import WORKBOOKS, how_to_export, not_utf8
from fulcrum.readers.spreadsheets.total_rows import called_total, silent_sums, summed_silo
from fulcrum.readers.spreadsheets.workbooks import READABLE, workbook_text
from fulcrum.readers.spreadsheets.written_numbers import THOUSANDS, Thousands
from fulcrum.readers.tree_files import nvflare_federation, toml_federation

_TABLES = (".csv", ".tsv", ".txt")
_KINDS = (".toml", *_TABLES, *READABLE, ".parquet", ".yml", ".yaml")
_BATCH = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationReading:
    """A federation, with notes on how the description was read.

    Attributes:
        federation: The federation; `federation_csv` writes a clean table of the federation.
        notes: A sentence on every unclear part of the description and on how the part was read, for the author of the
            file to confirm.
    """

    federation: Topology
    notes: tuple[str, ...] = ()


def read_federation(
    source: Any, *, columns: Columns | None = None, thousands: Thousands | None = None, name: str | None = None
) -> Topology:
    """Returns the federation that `source` describes; `reading_of` adds notes on how `source` was read.

    Args:
        source: A name of `PROFILES`; the path of a .toml, .csv, .tsv, .txt, .xlsx, .ods, .parquet, .yml or .yaml file;
            a data frame that narwhals accepts, eager or lazy (pandas, Polars, DuckDB, PyArrow, PySpark); or a
            federation, returned unchanged. A built-in name wins over a file of the same name; write ./severe for the
            file.
        columns: By meaning the name of a column in the table: {"silo": "hospital", "ignore": ["phone", "remarks"]}.
        thousands: The sign between thousands in a text table, "dot" or "comma"; by default the column decides.
        name: The name of the federation in place of the file's.

    Raises:
        FederationError: The description is wrong or cannot be read.
        MissingExtraError: The format needs a package that is not installed.

    The formats are described in docs/federation-files.md.
    """
    return reading_of(source, columns=columns, thousands=thousands, name=name).federation


def reading_of(
    source: Any, *, columns: Columns | None = None, thousands: Thousands | None = None, name: str | None = None
) -> FederationReading:
    """Returns the federation that `source` describes, with notes; the arguments are those of `read_federation`."""
    if thousands is not None:
        check_known("thousands", thousands, THOUSANDS)
    reading = _reading_of(source, columns, thousands)
    if name is None:
        return reading
    if not name.strip() or not name.isprintable():
        raise FederationError("federation.name-invalid", name=name)
    return replace(reading, federation=replace(reading.federation, name=name.strip()))


def _reading_of(source: Any, columns: Columns | None, thousands: Thousands | None) -> FederationReading:
    if isinstance(source, str) and source in PROFILES:
        source = profile(source)
    if isinstance(source, Topology):
        _refuse_columns(columns, source.name)
        return FederationReading(federation=source)
    if isinstance(source, str | Path):
        return _read_file(Path(source), str(source), columns, thousands)
    return _read_frame(source, columns)


def reading_of_bytes(
    data: bytes, file: str, *, columns: Columns | None = None, thousands: Thousands | None = None
) -> FederationReading:
    r"""Returns the federation of a table, workbook or TOML file from bytes; the suffix of `file` decides.

    >>> reading = reading_of_bytes(b"hospital;region\nlille;north\nlyon;south", "sites.csv")
    >>> reading.federation.silo_names.tolist()
    ['lille', 'lyon']
    >>> reading.notes
    ('cells are separated by semicolons', "columns are read as: silo from 'hospital'")

    Raises:
        FederationError: The description is wrong, or the name ends in another suffix than those of tables, workbooks
            and TOML.
    """
    path = Path(file)
    if path.suffix.lower() in (*_TABLES, *READABLE, ".toml"):
        return _parse_file(data, path, file, columns, thousands)
    raise FederationError("federation.suffix-not-text", file=file, advice=_export(path))


def _read_file(path: Path, source: str, columns: Columns | None, thousands: Thousands | None) -> FederationReading:
    file = path.name if path.name.isprintable() else repr(path.name)
    try:
        _check_kind(path, source, file)
        if path.suffix.lower() == ".parquet":
            return _read_parquet(path, file, columns)
        return _parse_file(path.read_bytes(), path, file, columns, thousands)
    except OSError as error:
        raise FederationError("file.unreadable", file=file, reason=error.strerror or str(error)) from None


def _check_kind(path: Path, source: str, file: str) -> None:
    """Raises `FederationError` if the file does not exist or has an unknown suffix."""
    if not source or not path.exists():
        near = suggestion(source, [*PROFILES, *_files_beside(path)])
        raise FederationError("federation.name-unknown", source=source, known=listing(PROFILES), suggestion=near)
    if path.is_dir():
        raise FederationError("federation.file-is-folder", source=source, suffixes=listing(_KINDS))
    if path.suffix.lower() not in _KINDS:
        raise FederationError(
            "federation.suffix-unknown", file=file, suffix=path.suffix, known=listing(_KINDS), advice=_export(path)
        )


def _files_beside(path: Path) -> list[str]:
    """Returns the files of a folder that can be read as a federation, with the folder as the user wrote the folder."""
    folder = path.parent
    return (
        [str(folder / file.name) for file in folder.iterdir() if file.suffix.lower() in _KINDS and file.is_file()]
        if folder.is_dir()
        else []
    )


def _export(path: Path) -> str:
    """Returns advice on a file of an unknown kind: how to export the file as CSV."""
    return how_to_export(path.suffix.lower()) if path.suffix.lower() in WORKBOOKS else "Save it as CSV"


def _parse_file(
    data: bytes, path: Path, file: str, columns: Columns | None, thousands: Thousands | None
) -> FederationReading:
    """Returns the reading of a text file or workbook with a known suffix."""
    chosen: list[str] = []
    if path.suffix.lower() in READABLE:
        data, chosen = workbook_text(data, file)
    if path.suffix.lower() in (*_TABLES, *READABLE):
        federation, notes = sheet_federation(data, file, _stem(path), columns, thousands=thousands)
        notes = [*chosen, *notes]
        return _reading(federation, file, notes, columns)
    _refuse_columns(columns, file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise not_utf8(data, file) from None
    if path.suffix.lower() == ".toml":
        tree = toml_federation(text, file, _stem(path))
        return FederationReading(federation=tree, notes=tuple(remarks_on(tree)))
    project, missing = nvflare_federation(text, file, _stem(path))
    return FederationReading(federation=project, notes=(*missing, *remarks_on(project)))


def _refuse_columns(columns: Columns | None, source: str) -> None:
    if columns:
        raise FederationError("federation.source-not-table", source=source, meaning=next(iter(columns)))


def _reading(federation: Topology, where: str, notes: Sequence[str], columns: Columns | None) -> FederationReading:
    """Returns the reading of a table, with notes on doubtful names and on columns that may be tiers by accident."""
    tiers = [_doubt(tier, federation) for tier in federation.tiers[1:] if tier.name not in (columns or {})]
    return FederationReading(
        federation=federation,
        notes=(*notes, *filter(None, tiers), *_totals(federation, where), *remarks_on(federation)),
    )


def _doubt(tier: Tier, federation: Topology) -> str:
    """Returns a note on a column that was read as a tier and may be no tier; "" if there is no doubt."""
    figures = all(re.fullmatch(r"[-+0-9 .,'/()%]+", label) for label in tier.nodes)
    if expected_tier(tier.name) and not figures:
        return ""
    records = (
        "" if federation.sizes_known or not figures else f"; if it holds records: {column_option('records', tier.name)}"
    )
    return (
        f"the column {tier.name!r} is read as an outer tier, with {listing(map(repr, tier.nodes), 3)}. "
        f"If it is none: {column_option(IGNORE, tier.name)}{records}"
    )


def _totals(federation: Topology, where: str) -> list[str]:
    """Returns a note on every silo with the name of a sum; refuses a silo with the records of a sum."""
    if len(federation) > MOST_NAMES:
        return []
    names, sizes = federation.silo_names.tolist(), federation.sizes.tolist()
    summed = summed_silo(names, sizes) if federation.sizes_known else None
    if summed is not None:
        raise FederationError("sheet.silo-is-sum", place=where, silo=summed)
    inner = federation.innermost
    regions = [inner.nodes[place] for place in inner.parent_of.tolist()]
    silent = silent_sums(names, sizes, regions) if federation.sizes_known else []
    return [
        f"silo {name!r} is read as a silo. If it is a sum of others, remove it"
        for name in dict.fromkeys([*filter(called_total, names), *silent])
    ]


def _text(cell: Any) -> str:
    """Returns the text of a cell; whole numbers are fine as names."""
    if isinstance(cell, str):
        return cell.strip()
    if cell is None:
        return ""
    if isinstance(cell, float):
        return "" if math.isnan(cell) else f"{cell:.15g}"
    return cell.decode("utf-8", "backslashreplace").strip() if isinstance(cell, bytes) else str(cell)


def _numbers(columns: Mapping[str, Any], read: Callable[[Any], Numbers]) -> dict[str, Numbers | None]:
    """Returns by name the columns of numbers as `read` converts them, None for a column that the table lacks."""
    return {name: read(columns[name]) if name in columns else None for name in NUMBER_COLUMNS}


def _read_parquet(path: Path, file: str, columns: Columns | None) -> FederationReading:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("extra.pyarrow-missing") from None
    with path.open("rb"):  # Arrow's error does not name the reason if a file cannot be opened
        pass
    try:
        with pa.parquet.ParquetFile(path) as table:
            meaning = _checked_meaning(table.schema_arrow.names, file, columns)
            header = [name for name in meaning.names if name is not None]
            silos = Silos(label_columns(header), lambda row: f"{file} row {row + 1}", table.metadata.num_rows)
            for batch in table.iter_batches(batch_size=_BATCH):
                cells_by_name = {name: cells for name, cells in zip(meaning.names, batch.columns, strict=True) if name}
                labels = {name: _arrow_labels(cells_by_name[name]) for name in label_columns(header)}
                silo = _arrow_strings(cells_by_name[SILO]).to_numpy(zero_copy_only=False).tolist()
                silos.add(silo, labels=labels, **_numbers(cells_by_name, _arrow_numbers))
    except FederationError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        raise FederationError("federation.parquet-damaged", file=file) from None
    return _reading(silos.federation(_stem(path), file), file, meaning.notes, columns)


def _checked_meaning(header: Sequence[str], where: str, columns: Columns | None) -> Meaning:
    """Returns the meaning of the columns of a table, after the checks for every table."""
    meaning = meaning_of(header, where, columns)
    checked_header([name for name in meaning.names if name is not None], where, meaning.declared)
    return meaning


def _arrow_strings(column: Any) -> Any:
    """Returns a column of a batch as trimmed strings, "" for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type):
        raise FederationError("sheet.label-type", type=column.type)
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type) or "string" in str(column.type):
        column = column.cast(pa.large_string())
    else:
        column = pa.array(map(_text, column.to_pylist()), pa.large_string())
    return pc.utf8_trim_whitespace(column).fill_null("")


def _arrow_labels(column: Any) -> tuple[IntArray, Sequence[str]]:
    """Returns codes and labels; encodes anew, because labels must be in the order of rows."""
    encoded = _arrow_strings(column).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.intp), encoded.dictionary.to_pylist()


def _arrow_numbers(column: Any) -> Numbers:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values: FloatArray = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return values
    return [cell.strip() if isinstance(cell, str) else cell for cell in column.to_pylist()]


def _read_frame(source: Any, columns: Columns | None) -> FederationReading:
    try:
        frame = nw.from_native(source)
        original = frame.collect_schema().names()
    except TypeError:
        raise FederationError("federation.source-type", type=type(source).__name__) from None
    except nw.exceptions.DuplicateError:
        raise FederationError("sheet.frame-column-repeated") from None
    meaning = _checked_meaning([str(name) for name in original], "data frame", columns)
    header = [name for name in meaning.names if name is not None]
    try:
        eager = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FederationError("sheet.frame-query-failed", reason=reason) from error
    silos = Silos(label_columns(header), lambda row: f"data frame row {row + 1}", len(eager))
    for start in range(0, len(eager), _BATCH):
        rows = eager[start : start + _BATCH]
        cells_by_name = {name: rows.get_column(key) for name, key in zip(meaning.names, original, strict=True) if name}
        labels = {name: list(map(_text, _cells(cells_by_name[name]))) for name in label_columns(header)}
        silos.add(
            list(map(_text, _cells(cells_by_name[SILO]))), labels=labels, **_numbers(cells_by_name, _frame_numbers)
        )
    return _reading(silos.federation("federation", "data frame"), "data frame", meaning.notes, columns)


def _cells(column: nw.Series[Any]) -> list[Any]:
    """Returns the cells of a column, None for every missing value of the column's library."""
    cells, missing = column.to_list(), column.is_null()
    if not missing.any():
        return cells
    return [None if gone else cell for cell, gone in zip(cells, missing.to_list(), strict=True)]


def _frame_numbers(column: nw.Series[Any]) -> Numbers:
    if column.dtype.is_numeric():
        values: FloatArray = np.asarray(column.cast(nw.Float64).to_numpy(), dtype=np.float64)
        return values
    return [cell.strip() if isinstance(cell, str) else cell for cell in _cells(column)]


def _stem(path: Path) -> str:
    return path.stem if path.stem.isprintable() else "federation"
