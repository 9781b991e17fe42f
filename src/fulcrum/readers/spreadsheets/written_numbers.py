"""Numbers as people write numbers: 2631, 2 631, 2'631, 2.631,00 or 0,5. The whole column settles the meaning.

>>> column = settle_column(["1.234.567", "2.631", "850"], "records", str)
>>> column.cells, column.notes
(['1234567', '2631', '850'], ['records: dots separate thousands, as in 1.234.567'])
>>> settle_column(["850", "2.631"], "records", str).notes
['records: dots separate thousands, as in 2.631, as records are whole numbers. If not: --thousands comma']
>>> settle_column(["850", "2.631"], "weight", lambda row: f"sites.csv line {row + 2}", point=False)
Traceback (most recent call last):
    ...
fulcrum.errors.FederationError: sites.csv line 3: weight=2.631 can be 2631 or 2.631. Write the intended number ...

A single dot or comma before three digits, as in 2.631, can separate thousands or decimals. A second cell of the column
settles the meaning: 1.234.567 and 1.234,50 can only have dots between thousands, 0,5 and 12,50 only a decimal comma.
`records` are whole numbers: where every dot of the column stands before exactly three digits, not always zeros, dots
separate thousands, with a note; the same holds for commas, and `thousands` decides otherwise. `epsilon` and `weight`
are fractions by nature: dots are decimal if commas separate the cells of the file and no cell of the column holds a
comma. A guess instead would be wrong by a factor of 1,000, so an unsettled number is refused.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fulcrum.errors import FederationError

MISSING = frozenset({"na", "n/a", "#n/a", "#nv", "null", "none", "-", "–", "—"})
"""Words of programs and people for a missing number."""

Thousands: TypeAlias = Literal["dot", "comma"]
THOUSANDS: dict[str, str] = {"dot": ".", "comma": ","}
"""The signs between thousands that a user can declare."""

_SPACED = re.compile(r"[+-]?[0-9]{1,3}(['’ \xa0\u202f\u2009])[0-9]{3}(?:\1[0-9]{3})*(?:[.,][0-9]*)?")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?P<dot>\.)[0-9]{3}(?:\.[0-9]{3})*|(?P<comma>,)[0-9]{3}(?:,[0-9]{3})*)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+[.,][0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
_POWER = re.compile(r"[0-9.]+[eE]\+?[0-9]{1,2}")
_SIGNS = {".": "dots", ",": "commas"}
_OTHER = {".": "comma", ",": "dot"}
_USUAL = str.maketrans("", "", "0123456789.eE+-")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumn:
    """A column of numbers in plain digits with a decimal point, with notes on how the column was read."""

    cells: list[str]
    notes: list[str]


def is_plain(cells: Sequence[str], column: str, *, point: bool = True) -> bool:
    """Returns True if a column needs no settling: digits alone, or in `epsilon` and `weight` numbers with a point.

    With `point`, dots in `epsilon` and `weight` are decimal by default.
    """
    joined = "".join(cells)
    if joined.isascii() and (joined.isdigit() or not joined):
        return True
    return column != "records" and not joined.translate(_USUAL) and (point or "." not in joined)


def settle_column(
    cells: Sequence[str],
    column: str,
    locate: Callable[[int], str],
    *,
    point: bool = True,
    thousands: Thousands | None = None,
) -> WrittenColumn:
    """Returns a column of numbers in plain digits; a cell without a number stays unchanged, "" is a missing number.

    Args:
        cells: The numbers as written.
        column: The name of the column: `records` are whole.
        locate: Returns the place of a row.
        point: True if dots in `epsilon` and `weight` are decimal by default.
        thousands: The sign between thousands of all columns, as the user declares; the other sign is decimal.

    Raises:
        FederationError: A number has two readings, and no cell of the column settles the reading.
    """
    notes: list[str] = []
    bare_cells = [_without_spaces(cell) for cell in cells]
    if spaced := next((cell for cell, bare in zip(cells, bare_cells, strict=True) if bare != cell), None):
        word = "apostrophes" if re.search("['’]", spaced) else "spaces"
        notes.append(f"{column}: {word} separate thousands, as in {_with_plain_spaces(spaced)}")
    if missing := next((cell for cell in bare_cells if cell.lower() in MISSING), None):
        notes.append(f"{column}: {missing!r} is read as missing")
        bare_cells = ["" if cell.lower() in MISSING else cell for cell in bare_cells]
    grouping, decimal = _evidence(bare_cells, column, locate)
    open_signs = {row: sign for row, cell in enumerate(bare_cells) if (sign := _open_sign(cell))}
    guessed = ""
    if thousands is not None:
        for row, sign in open_signs.items():
            (grouping if sign == THOUSANDS[thousands] else decimal).setdefault(sign, row)
    elif column == "records" and not (decimal or grouping) and len(signs := set(open_signs.values())) == 1:
        # 1.000, 2.000 and so on may be whole numbers with three decimals, so some cell must end in other digits.
        guessed = "" if all(bare_cells[row].endswith("000") for row in open_signs) else next(iter(signs))
        grouping |= {guessed: next(iter(open_signs))} if guessed else {}
    for row, sign in open_signs.items():
        cell = bare_cells[row]
        by_nature = point and column != "records" and sign == "." and "," not in (*decimal, *grouping)
        if sign not in grouping and sign not in decimal and not by_nature:
            raise FederationError(
                "sheet.number-ambiguous",
                place=locate(row),
                column=column,
                cell=_with_plain_spaces(cells[row]),
                first=cell.replace(sign, ""),
                second=cell.replace(sign, "."),
            )
    for sign, row in grouping.items():
        why = f", as records are whole numbers. If not: --thousands {_OTHER[sign]}" if sign == guessed else ""
        notes.append(f"{column}: {_SIGNS[sign]} separate thousands, as in {_with_plain_spaces(cells[row])}{why}")
    if "," in decimal:
        notes.append(f"{column}: commas separate decimals, as in {_with_plain_spaces(cells[decimal[',']])}")
    plain = [_plain(cell, grouping) for cell in bare_cells]
    if column == "records" and (power := next(filter(_POWER.fullmatch, plain), None)):
        notes.append(f"{column}: {power} is read as {float(power):.0f}")
    return WrittenColumn(cells=plain, notes=notes)


def _without_spaces(cell: str) -> str:
    """Returns a number without spaces or apostrophes between thousands."""
    return re.sub("['’\\s]", "", cell) if _SPACED.fullmatch(cell) else cell


def _evidence(cells: Sequence[str], column: str, locate: Callable[[int], str]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns signs that can only separate thousands, and signs that can only be decimal, with a row of the sign."""
    thousands: dict[str, int] = {}
    decimal: dict[str, int] = {}
    for row, cell in enumerate(cells):
        if "." not in cell and "," not in cell:
            continue
        last = "." if cell.rfind(".") > cell.rfind(",") else ","
        whole, _, _ = cell.rpartition(last)
        other = "," if last == "." else "."
        if other in whole:
            if last not in whole and _grouped_by(whole) == other:
                thousands.setdefault(other, row)
                decimal.setdefault(last, row)
        elif last in whole:
            if _grouped_by(cell) == last:
                thousands.setdefault(last, row)
        elif not _open_sign(cell) and _DECIMAL.fullmatch(cell):
            decimal.setdefault(last, row)
    for sign in set(thousands) & set(decimal):
        raise FederationError(
            "sheet.signs-conflict",
            place=locate(decimal[sign]),
            column=column,
            cell=cells[decimal[sign]],
            sign=sign,
            other=cells[thousands[sign]],
            other_place=locate(thousands[sign]),
        )
    if len(decimal) == 2:
        dot, comma = decimal["."], decimal[","]
        raise FederationError(
            "sheet.decimals-mixed",
            place=locate(comma),
            column=column,
            cell=cells[comma],
            other=cells[dot],
            other_place=locate(dot),
        )
    return thousands, decimal


def _grouped_by(text: str) -> str:
    """Returns the sign between the thousands of a number; "" if there is no sign, or a misplaced sign."""
    match = _GROUPED.fullmatch(text)
    return "" if match is None else "." if match["dot"] else ","


def _open_sign(cell: str) -> str:
    """Returns the sign of a number with two readings, such as 2.631, else ""."""
    return _grouped_by(cell) if cell.count(".") + cell.count(",") == 1 else ""


def _plain(cell: str, thousands: Iterable[str]) -> str:
    """Returns a number in plain digits with a decimal point; a cell without a number stays unchanged."""
    if "." not in cell and "," not in cell:
        return cell
    bare = cell
    for sign in thousands:
        whole, last, rest = bare.rpartition("," if sign == "." else ".")
        left = whole if last else rest
        if _grouped_by(left) == sign:
            bare = left.replace(sign, "") + last + (rest if last else "")
    return bare.replace(",", ".") if _DECIMAL.fullmatch(bare) else bare


def _with_plain_spaces(cell: str) -> str:
    return " ".join(cell.split())  # hard spaces are not printable
