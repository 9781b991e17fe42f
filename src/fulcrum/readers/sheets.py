r"""A table of silos as spreadsheets export it: read if the meaning is unique, with notes on all unclear parts.

>>> data = "Klinik;Fälle;Region\r\nKöln;850;West\r\nBonn;1 200;West\r\nSumme;2 050;\r\n".encode()
>>> federation, notes = sheet_federation(data, "sites.csv", "sites")
>>> federation.sizes.tolist()
[850.0, 1200.0]
>>> for note in notes:
...     print(note)
cells are separated by semicolons
columns are read as: silo from 'Klinik', records from 'Fälle', region from 'Region'
records: spaces separate thousands, as in 1 200
line 4 is left out: 'Summe' has 2050 records, the sum of the lines above
"""

import re
from array import array
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from fulcrum.core.topology import KNOWN_COLUMNS, SILO, STAY_COLUMNS
from fulcrum.csv_text import plain_cell
from fulcrum.errors import FederationError
from fulcrum.readers.federation import Federation
from fulcrum.readers.silo_table import (
    NUMBER_COLUMNS,
    USUAL_COLUMNS,
    Silos,
    checked_header,
    label_columns,
)
from fulcrum.readers.spreadsheets.column_names import (
    IGNORE,
    SITE,
    Columns,
    check_letters,
    column_option,
    expected_tier,
    meaning_of,
    numbers_rows,
    stands_for,
)
from fulcrum.readers.spreadsheets.sheet_text import HARD_SPACES, LOOKED_AT, SheetText, sheet_text
from fulcrum.readers.spreadsheets.surrounding_lines import lone_cell, without_remarks, without_titles
from fulcrum.readers.spreadsheets.total_rows import called_total, is_total
from fulcrum.readers.spreadsheets.written_numbers import Thousands, WrittenColumn, is_plain, settle_column

BATCH = 1 << 14
"""Rows held as text at a time. With many more rows, Python's search for garbage takes most of the time."""

MOST_MISTAKES = 10
"""The most mistakes of a table that an error names."""

_READ_AGAIN_UP_TO = 4_000_000  # bytes: a larger table is read again for no further mistake
_LINE = re.compile(r" line (\d+)\b")
# Mistakes that appear because a wrong line was left out: a sum that no longer adds up.
_OF_OTHER_LINES = ("sheet.total-wrong", "sheet.silo-is-sum", "sheet.signs-conflict", "sheet.decimals-mixed")
_OF_ALL_LINES = ("table.cells-number", "sheet.number-ambiguous")  # one remedy for the whole table
_MAY_END_EARLY = (None, "", "epsilon", "group", *STAY_COLUMNS)  # old Excel leaves empty cells at the end of a line out
_COMPARED_ROWS = 10_000  # rows in which columns are compared, to find the column that refines the others
_FORMULA_ERROR = re.compile(r"#[^\W\d_¡][\w/]*[!?]|#¡\w+!|#DIV/0!|#N/A|#NV")
_A_FEW = 3  # silos; fewer can have 1 and 2 records by chance
_NUMBER = re.compile(r"[0-9][0-9.,'’\s]*")
_HARD_SPACES = str.maketrans(dict.fromkeys(HARD_SPACES, " "))


class _NotPlainError(Exception):
    """A column of numbers needs all cells at once to be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The header of a sheet.

    Attributes:
        line: The line of the header.
        headings: The names of the columns in the file.
        names: By column the meaning; "" for a column that has no name or only numbers the rows, None for an ignored
            column.
        notes: Sentences on how the header was read.
    """

    line: int
    headings: Sequence[str]
    names: Sequence[str | None]
    notes: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The meanings of all columns that are read."""
        return [name for name in self.names if name]


def sheet_federation(
    data: bytes, file: str, name: str, columns: Columns | None = None, *, thousands: Thousands | None = None
) -> tuple[Federation, list[str]]:
    """Returns the federation of a table as spreadsheets export it, and notes on how the table was read.

    Args:
        data: The bytes of the file.
        file: The name of the file, for messages.
        name: The name of the federation.
        columns: By meaning the name of a column.
        thousands: The sign between thousands, if declared.

    Raises:
        FederationError: The table is wrong, or has two possible meanings. The error names up to `MOST_MISTAKES`
            mistakes, each in its line.
    """
    text = without_titles(sheet_text(data, file))
    header = _header(text, columns)
    try:
        return _read_rows(text, header, name, thousands)
    except FederationError as error:
        mistake = error
    if (bare := without_remarks(text)) is not text:  # looked for in a refused table alone: each row is read for it
        text = bare
        try:
            return _read_rows(text, header, name, thousands)
        except FederationError as error:
            mistake = error
    raise _all_mistakes(mistake, text, header, thousands) from None


def _read_rows(
    text: SheetText, header: _Header, name: str, thousands: Thousands | None
) -> tuple[Federation, list[str]]:
    try:
        return _federation(text, header, name, {})
    except _NotPlainError:
        return _federation(text, header, name, _settle_numbers(text, header, thousands))


def _all_mistakes(
    first: FederationError, text: SheetText, header: _Header, thousands: Thousands | None
) -> FederationError:
    """Returns the error on a table with the mistakes of all lines: the table is read again without the wrong lines."""
    first = _of_lone_cell(first, text)
    mistakes, skipped = [first], set(text.skipped)
    if first.code in _OF_ALL_LINES:
        return first
    while len(mistakes) < MOST_MISTAKES and len(text.data) <= _READ_AGAIN_UP_TO:
        line = _line_of(mistakes[-1], text)
        if line <= header.line:
            break
        if ignorable := _column_to_ignore(mistakes[-1]):  # this remedy mends every line
            header = _without_column(header, ignorable)
        else:
            skipped.add(line)
        try:
            _read_rows(replace(text, skipped=frozenset(skipped)), header, "federation", thousands)
        except FederationError as error:
            if error.code in (*_OF_OTHER_LINES, *_OF_ALL_LINES) or _line_of(error, text) in (0, *skipped):
                break
            mistakes.append(_of_lone_cell(error, text))
        else:
            break
    if len(mistakes) == 1:
        return first
    listed = " ".join(f"({number}) {mistake}." for number, mistake in enumerate(mistakes, start=1))
    more = "at least " if len(mistakes) == MOST_MISTAKES else ""
    return FederationError("sheet.several-mistakes", file=text.file, more=more, count=len(mistakes), listed=listed)


def _of_lone_cell(error: FederationError, text: SheetText) -> FederationError:
    """Returns the error on a line with a single filled cell, such as a remark; of another line the error itself."""
    if error.code not in ("sheet.records-missing", "sheet.node-missing"):
        return error
    cell = lone_cell(text, line := _line_of(error, text))
    return FederationError("sheet.cell-alone", file=text.file, line=line, cell=cell[:40]) if cell else error


def _column_to_ignore(error: FederationError) -> str:
    """Returns the column, such as beds, that hardly is a tier and causes a mistake in many lines; "" if none is."""
    if error.code == "sheet.node-missing" and error.details["alternative"]:
        return str(error.details["tier"])
    if error.code == "federation.node-overlap":
        columns = (str(error.details["tier"]), str(error.details["inner"]))
        return next((column for column in columns if not expected_tier(column)), "")
    return ""


def _without_column(header: _Header, name: str) -> _Header:
    """Returns a header with an ignored column."""
    return replace(header, names=[None if column == name else column for column in header.names])


def _header(text: SheetText, columns: Columns | None) -> _Header:
    line, first = next(text.rows(), (1, []))
    if not first:
        raise FederationError("sheet.empty", file=text.file, columns=",".join(USUAL_COLUMNS))
    where = f"{text.file} line {line}"
    if all(name.strip()[:1] == "'" == name.strip()[-1:] for name in first):
        raise FederationError("sheet.apostrophes", place=where)
    headings = [plain_cell(name.strip()) for name in first]
    try:
        meaning = meaning_of(headings, where, columns, finest=lambda places: _finest(text, places))
    except FederationError as error:
        if error.code == "sheet.column-not-found":
            _refuse_title(text, line, columns)
        raise
    names = list(meaning.names)
    is_free = names[0] not in (None, *KNOWN_COLUMNS, "region", *meaning.declared)
    if SILO in names and is_free and numbers_rows(headings[0]):
        names[0] = ""
    empty = [place for place in _doubtful_places(names, meaning.declared) if _is_empty(text, place)]
    names = [None if place in empty else name for place, name in enumerate(names)]
    notes = (*meaning.notes, *(f"column {headings[place]!r} is empty and is left out" for place in empty))
    header = _Header(line=line, headings=headings, names=names, notes=notes)
    try:
        checked_header(header.columns, where, meaning.declared)
    except FederationError as error:
        if SILO not in names or "region" not in names:
            _refuse_title(text, line, columns)
        if error.code == "sheet.column-unknown" and "records" not in names:
            _refuse_numbers(text, where, names.index(str(error.details["column"])), headings)
        raise
    return header


def _refuse_numbers(text: SheetText, where: str, place: int, headings: Sequence[str]) -> None:
    """Raises `FederationError` if a column of unknown meaning holds numbers: it may be the column of records."""
    cells = [cell.strip() for _, row in islice(text.rows(), 1, _COMPARED_ROWS) for cell in row[place : place + 1]]
    filled = [cell for cell in cells if cell]
    if filled and all(_NUMBER.fullmatch(cell) for cell in filled):
        name = headings[place]
        raise FederationError(
            "sheet.column-of-numbers",
            place=where,
            column=name,
            records_option=column_option("records", name),
            ignore_option=column_option(IGNORE, name),
        )


def _doubtful_places(names: Sequence[str | None], declared: Container[str]) -> list[int]:
    """Returns the places of columns that would be outer tiers without a usual name for a tier, such as remarks."""
    usual = (*KNOWN_COLUMNS, "region", SITE, *NUMBER_COLUMNS)
    return [
        place
        for place, name in enumerate(names)
        if name and name not in usual and name not in declared and not expected_tier(name)
    ]


def _is_empty(text: SheetText, place: int) -> bool:
    """Checks that no cell of a column below its heading has a text; a table without rows has no empty column."""
    rows = islice(text.rows(), 1, None)
    first = next(rows, None)
    return first is not None and not any(
        cell.strip() for _, row in chain([first], rows) for cell in row[place : place + 1]
    )


def _finest(text: SheetText, places: Sequence[int]) -> int | None:
    """Returns the column that refines the others: equal cells there have equal cells in every other column."""
    rows = [row for _, row in islice(text.rows(), 1, _COMPARED_ROWS) if len(row) > max(places)]
    cells = {place: [row[place].strip() for row in rows if row[place].strip()] for place in places}
    for place in places:
        others = [other for other in places if other != place]
        pairs = {
            other: {(row[place].strip(), row[other].strip()) for row in rows if row[place].strip()} for other in others
        }
        count = len(set(cells[place]))
        if all(len(pairs[other]) == count > len(set(cells[other])) for other in others):
            return place
    return None


def _refuse_title(text: SheetText, line: int, columns: Columns | None) -> None:
    """Raises `FederationError` if a later line is a header and the first line, such as a title, is none."""
    for number, row in islice(text.rows(), 1, LOOKED_AT):
        try:
            headings = [plain_cell(name.strip()) for name in row]
            meant = meaning_of(headings, "", columns, finest=lambda places: places[0]).names
        except FederationError:
            continue
        if SILO in meant and "region" in meant:
            raise FederationError("sheet.header-not-first", file=text.file, line=line, header_line=number)


def _fit_row(row: list[str], line: int, text: SheetText, header: _Header) -> list[str]:
    """Returns a row with as many cells as the header; only empty cells at the end of the row may differ."""
    width = len(header.names)
    if len(row) > width and not any(map(str.strip, row[width:])):
        return row[:width]
    if len(row) < width and all(name in _MAY_END_EARLY for name in header.names[len(row) :]):
        return row + [""] * (width - len(row))
    advice = f"Give one cell to each column, and quote a name that holds a {text.separator_word}"
    if len(row) == width + 1 and row[0].isdigit():
        advice += "; in R, write the table with row.names = FALSE"
    raise FederationError("table.cells-number", file=text.file, line=line, cells=len(row), columns=width, advice=advice)


def _line_of(error: FederationError, text: SheetText) -> int:
    """Returns the line of a mistake; 0 for a mistake of the whole table."""
    match = _LINE.match(str(error).removeprefix(text.file))
    return int(match[1]) if match else 0


def _settle_numbers(text: SheetText, header: _Header, thousands: Thousands | None) -> dict[str, WrittenColumn]:
    """Returns the columns of numbers by name, in plain digits; all cells of a column decide between comma and point."""
    places = [(name, header.names.index(name)) for name in NUMBER_COLUMNS if name in header.names]
    cells: dict[str, list[str]] = {name: [] for name, _ in places}
    lines = array("q")
    for line, row in islice(text.rows(), 1, None):
        fitted = row if len(row) == len(header.names) else _fit_row(row, line, text, header)
        lines.append(line)
        for name, place in places:
            cells[name].append(fitted[place].strip())
    point = text.separator == ","
    return {
        name: settle_column(
            column, name, lambda row: f"{text.file} line {lines[row]}", point=point, thousands=thousands
        )
        for name, column in cells.items()
    }


def _federation(
    text: SheetText, header: _Header, name: str, numbers: Mapping[str, WrittenColumn]
) -> tuple[Federation, list[str]]:
    lines = array("q")
    silos = Silos(label_columns(header.columns), lambda row: f"{text.file} line {lines[row]}")
    reader = _Reader(text=text, header=header, silos=silos, numbers=numbers)
    batch: list[list[str]] = []
    width, early = len(header.names), 0
    for line, row in islice(text.rows(), 1, None):
        batch.append(row if len(row) == width else _fit_row(row, line, text, header))
        early = line if len(row) < width and not early else early
        lines.append(line)
        if len(batch) > BATCH:
            reader.add(batch[:-1])
            del batch[:-1]
    reader.add(batch[:-1])
    left_out = reader.total(batch[-1]) if batch else ""
    if batch and not left_out:
        reader.add(batch[-1:])
    notes = [*text.notes, *header.notes, *(note for column in numbers.values() for note in column.notes)]
    notes += ["column 1 is left out: it only numbers the rows"] if reader.numbered else []
    notes += _doubted_records(header, silos)
    notes += [f"line {early} ends early: the cells that it lacks are taken as empty"] if early else []
    notes += [f"line {lines[-1]} is left out: {left_out}"] if left_out else []
    return silos.federation(name, text.file), notes


def _doubted_records(header: _Header, silos: Silos) -> list[str]:
    """Returns a note if records may be numbers of rows: 1, 2, 3 and so on in the first column."""
    name = header.headings[0]
    if header.names[0] != "records" or name == "records" or silos.records is None or silos.filled < _A_FEW:
        return []
    if not np.array_equal(silos.records[: silos.filled], np.arange(1, silos.filled + 1)):
        return []
    return [f"records are 1, 2, 3 and so on. If column 1 only numbers the rows: {column_option(IGNORE, name)}"]


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Hands the rows of a sheet to a table of silos.

    Attributes:
        text: The text of the sheet.
        header: The header of the sheet.
        silos: The table.
        numbers: Columns of numbers that were settled from all of their cells, by name.
        numbered: True once a first column was met that only numbers the rows.
    """

    text: SheetText
    header: _Header
    silos: Silos
    numbers: Mapping[str, WrittenColumn]
    numbered: bool = False

    def add(self, rows: Sequence[Sequence[str]]) -> None:
        """Adds rows to the table."""
        if not rows:
            return
        columns: dict[str, list[str]] = {}
        for place, (name, cells) in enumerate(zip(self.header.names, zip(*rows, strict=True), strict=True)):
            if name:
                columns[name] = list(map(str.strip, cells))
            elif name == "":
                self._check_unnamed(place, cells)
        labels = {name: self._labels(name, columns[name]) for name in label_columns(self.header.columns)}
        silo = self._labels(SILO, columns[SILO])
        for names in (silo, *labels.values()):
            check_letters(names, lambda row: self.silos.locate(self.silos.filled + row))
        if "records" not in columns:
            self._refuse_header(silo, labels["region"])
        if "" in labels["region"]:
            self._refuse_subtotal(silo, labels["region"])
        numbers = {name: self._numbers(name, columns.get(name)) for name in NUMBER_COLUMNS}
        self.silos.add(silo, labels=labels, **numbers)

    def total(self, row: Sequence[str]) -> str:
        """Returns the reason to leave the last row out, a sum of the rows above; "" if the last row is a silo."""
        cells = [(name, cell.strip()) for name, cell in zip(self.header.names, row, strict=True)]
        words = [
            cell
            for name, cell in cells
            if cell and name not in (None, *NUMBER_COLUMNS, "group") and not (name == "" and cell.isdigit())
        ]
        if not self.silos.filled or not all(map(is_total, words)):
            return ""
        word = f"{words[0]!r}" if words else "it"
        written = self._numbers("records", [cell for name, cell in cells if name == "records"])
        if self.silos.records is None or not written or not written[0]:
            return f"{word} names no silo" if words else ""
        above = float(self.silos.records[: self.silos.filled].sum())
        try:
            stated = float(written[0])
        except ValueError:
            return ""
        if stated == above:
            return f"{word} has {above:.0f} records, the sum of the lines above"
        if words:
            where = self.silos.locate(self.silos.filled)
            raise FederationError("sheet.total-wrong", place=where, word=word, stated=stated, above=above)
        return ""

    def _labels(self, name: str, cells: list[str]) -> list[str]:
        plain = list(map(plain_cell, cells)) if "'" in self.text.rare else cells
        if self.text.rare.intersection(HARD_SPACES):
            plain = [cell.translate(_HARD_SPACES) for cell in plain]
        if "#" in self.text.rare and (wrong := next(filter(_FORMULA_ERROR.fullmatch, plain), None)):
            where = self.silos.locate(self.silos.filled + plain.index(wrong))
            raise FederationError("sheet.formula-error", place=where, column=name, cell=wrong)
        return plain

    def _numbers(self, name: str, cells: list[str] | None) -> list[str] | None:
        if cells is None:
            return None
        if name in self.numbers:
            return self.numbers[name].cells[self.silos.filled : self.silos.filled + len(cells)]
        if not is_plain(cells, name, point=self.text.separator == ","):
            raise _NotPlainError
        return cells

    def _check_unnamed(self, place: int, cells: Sequence[str]) -> None:
        """Refuses a filled column without a name, unless the column is the first and numbers the rows, as R writes."""
        filled = [cell.strip() for cell in cells if cell.strip()]
        if filled and not (place == 0 and all(cell.isascii() and cell.isdigit() for cell in filled)):
            where = f"{self.text.file} line {self.header.line}"
            name = self.header.headings[place]
            if name:
                raise FederationError("sheet.column-not-numbering", place=where, column=place + 1, name=name)
            raise FederationError("sheet.column-unnamed", place=where, column=place + 1)
        self.numbered = self.numbered or bool(filled)

    def _refuse_header(self, silo: Sequence[str], region: Sequence[str]) -> None:
        """Refuses a repeated header: without a column of records, no number tells a header from a silo."""
        headings = dict(zip(self.header.names, self.header.headings, strict=True))
        again = headings[SILO], headings["region"]
        for row, pair in enumerate(zip(silo, region, strict=True)):
            if pair == again:
                where = self.silos.locate(self.silos.filled + row)
                raise FederationError("sheet.header-repeated", place=where)
        if not self.silos.filled and stands_for(silo[0], SILO) and stands_for(region[0], "region"):
            raise FederationError("sheet.header-second", place=self.silos.locate(0), silo=silo[0], region=region[0])

    def _refuse_subtotal(self, silo: Sequence[str], region: Sequence[str]) -> None:
        for row, (name, where) in enumerate(zip(silo, region, strict=True)):
            if not where and called_total(name):
                raise FederationError(
                    "sheet.row-is-subtotal", place=self.silos.locate(self.silos.filled + row), silo=name
                )
