r"""The text of a table as spreadsheets write it: the encoding of the bytes and the separator of the cells.

>>> text = sheet_text("sep=;\r\nKlinik;Fälle;Region\r\nKöln;850;West\r\n".encode("cp1252"), "sites.csv")
>>> next(text.rows())
(2, ['Klinik', 'Fälle', 'Region'])
>>> text.notes[0]
"line 2 is not UTF-8 and was read as Windows-1252: 'Klinik;Fälle;Region'. If a letter is wrong, save the file as UTF-8"
"""

import csv
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from fulcrum.errors import FederationError, in_one_line
from fulcrum.readers.spreadsheets.column_names import stands_for

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Separators of cells, with names."""

WORKBOOKS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
"""Suffixes of workbooks. `fulcrum.readers.spreadsheets.workbooks` reads some of them; people export the others."""

HARD_SPACES = "\xa0\u202f\u2009"
"""Spaces without a line break, which stand between words and between digits."""

RARE = f"{HARD_SPACES}'#"
"""Letters with a meaning in a cell: hard spaces, the apostrophe before a formula, and the sign of an error."""

LOOKED_AT = 12
"""Lines in which a header is looked for."""

_BARE = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le"}  # the same encodings without a byte order mark
_HEAD = 1 << 16  # bytes that decide on encoding and separator
_MARKS_OF_WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx and .ods; .xls
_SAVE = "Save it as UTF-8 (in Excel: 'CSV UTF-8'; in LibreOffice: Text CSV, character set Unicode (UTF-8))"

# Signs of Windows-1252 that no name holds, or no name holds between letters. A text with such a sign was written in a
# different alphabet, such as that of MS-DOS or of old Macintoshes, and read as Windows-1252 would show wrong letters.
_ODD = re.compile(
    r"[\x80-\x9f\u201a\u0192\u201e\u2020\u2021\u02c6\u2030\u0160\u2039\u017d\u2022\u02dc\u2122\u0161\u203a\u017e\u0178"
    r"¢£¤¥¦¨©¬®¯±²³µ¶¸¹¼½¾]|(?<![^\W\d_])ÿ|(?<=[^\W\d_])[\u20ac\u2026\u201c\u201d\u2014¡«»¿°§÷×](?=[^\W\d_])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetText:
    """A table as bytes with a known encoding and separator.

    Attributes:
        data: The bytes.
        file: The name of the file, for messages.
        encoding: The encoding of the bytes.
        separator: The sign between cells.
        opening: Lines before the table: 1 if Excel wrote `sep=;`.
        rare: The letters of `RARE` in the table; a letter outside of `rare` need not be looked for in cells.
        notes: Sentences on every difference from UTF-8 with commas.
        skipped: Lines to leave out.
    """

    data: bytes
    file: str
    encoding: str
    separator: str
    opening: int
    rare: frozenset[str]
    notes: tuple[str, ...]
    skipped: frozenset[int] = frozenset()

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yields the rows with content, after the number of the first line of the row."""
        if self.skipped:
            return ((line, row) for line, row in replace(self, skipped=frozenset()).rows() if line not in self.skipped)
        stream = io.TextIOWrapper(io.BytesIO(self.data), encoding=self.encoding, newline="")
        for _ in range(self.opening):
            stream.readline()
        return _rows(stream, self.separator, self.file, self.opening + 1)

    @property
    def separator_word(self) -> str:
        """The separator as a word, such as "comma"."""
        return SEPARATORS[self.separator].removesuffix("s")


def sheet_text(data: bytes, file: str) -> SheetText:
    """Returns the bytes of a table with the encoding and the separator.

    Raises:
        FederationError: The bytes are a workbook, or have an unknown encoding.
    """
    if data.startswith(_MARKS_OF_WORKBOOKS):
        raise FederationError("sheet.workbook", file=file, advice=how_to_export(".xlsx"))
    encoding, notes = _encoding(data, file)
    head = data[:_HEAD].decode(encoding, "replace")
    first, *_ = head.split("\n", 1)
    declared = re.fullmatch(r'\ufeff?"?sep=(.)"?\r?', first, re.IGNORECASE)
    opening = 1 if declared else 0
    separator = declared[1] if declared else _separator(head, file)
    if separator not in SEPARATORS:
        raise FederationError("sheet.separator-unknown", file=file, separator=separator)
    if separator != ",":
        notes.append(f"cells are separated by {SEPARATORS[separator]}")
    return SheetText(
        data=data,
        file=file,
        encoding=encoding,
        separator=separator,
        opening=opening,
        rare=frozenset(letter for letter in RARE if letter.encode(_BARE.get(encoding, encoding), "replace") in data),
        notes=tuple(notes),
    )


def how_to_export(suffix: str) -> str:
    """Returns advice on how to export a workbook as CSV."""
    if suffix == ".ods":
        return "In LibreOffice: File, Save As, 'Text CSV'; then give that .csv file"
    if suffix == ".numbers":
        return "In Numbers: File, Export To, CSV; then give that .csv file"
    return "In Excel: File, Save As, 'CSV UTF-8 (Comma delimited)'; then give that .csv file"


def not_utf8(data: bytes, file: str) -> FederationError:
    """Returns the error for bytes that are not UTF-8, with the first wrong line."""
    return FederationError("file.not-utf8", file=file, line=_bad_line(data)[0])


def _encoding(data: bytes, file: str) -> tuple[str, list[str]]:
    """Returns the encoding of bytes, with notes on any encoding but UTF-8."""
    head = data[:_HEAD]
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) > len(head) / 4:
        return _wide_encoding(data, file), ["it is UTF-16, which Excel calls Unicode text"]
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        return "utf-8-sig", []
    number, line = _bad_line(data)
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = "\x80"
    if _ODD.search(text):
        raise FederationError("sheet.alphabet-unknown", file=file, line=number, advice=_SAVE)
    excerpt = in_one_line(line.decode("cp1252"))[:60]
    return "cp1252", [
        f"line {number} is not UTF-8 and was read as Windows-1252: {excerpt!r}. "
        "If a letter is wrong, save the file as UTF-8"
    ]


def _wide_encoding(data: bytes, file: str) -> str:
    """Returns the variant of UTF-16 of the bytes."""
    head = data[:_HEAD]
    encoding = "utf-16"
    if not data.startswith((b"\xff\xfe", b"\xfe\xff")):  # in most texts the upper byte of most letters is 0
        encoding = "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FederationError("sheet.encoding-unknown", file=file, advice=_SAVE)
    return encoding


def _bad_line(data: bytes) -> tuple[int, bytes]:
    """Returns the number and the bytes of the first line that is not UTF-8."""
    try:
        data.decode("utf-8")
        start = 0
    except UnicodeDecodeError as error:
        start = error.start
    before = data[:start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    begin = before.rfind(b"\n") + 1
    return before.count(b"\n") + 1, (before[begin:] + data[start : start + 200]).splitlines()[0]


def _separator(head: str, file: str) -> str:
    """Returns the separator that makes one of the first lines a header, else the separator with the most cells."""
    first = {separator: _first_rows(head, separator, file) for separator in SEPARATORS}
    for place in range(LOOKED_AT):  # a title may stand above the header
        for separator, rows in first.items():
            names = rows[place] if place < len(rows) else ()
            if all(any(stands_for(name, column) for name in names) for column in ("silo", "region")):
                return separator
    if re.match(r'\ufeff?"[^"]*" "', head):
        raise FederationError("sheet.separated-by-spaces", file=file)
    widths = {separator: [*map(len, rows), *[0] * (LOOKED_AT - len(rows))] for separator, rows in first.items()}
    wide = next((place for place in range(LOOKED_AT) if max(width[place] for width in widths.values()) > 1), 0)
    return max(SEPARATORS, key=lambda separator: widths[separator][wide])


def _first_rows(head: str, separator: str, file: str) -> list[list[str]]:
    """Returns the first rows with content, up to a row that cannot be read with the separator."""
    stream = io.StringIO(head.removeprefix("\ufeff"), newline="")
    rows: list[list[str]] = []
    with suppress(FederationError):
        rows.extend(row for _, row in islice(_rows(stream, separator, file, 1), LOOKED_AT))
    return rows


def _rows(stream: io.TextIOBase, separator: str, file: str, line: int) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(stream, delimiter=separator, strict=True, skipinitialspace=True)
    before = line - 1
    try:
        for row in reader:
            if row and (row[0].strip() or any(map(str.strip, row))):
                yield line, row
            line = before + reader.line_num + 1
    except csv.Error as error:
        reason = str(error).replace("\t", "tab")
        raise FederationError("sheet.quotes", file=file, line=line, reason=reason) from None
