"""Numbers as people write them: 2631, 2 631, 2'631, 2.631,00 or 0,5, and what they are where their column settles it.

>>> column = settle_column(["1.234.567", "2.631", "850"], "records", str)
>>> column.cells, column.notes
(['1234567', '2631', '850'], ['records: dots separate thousands, as in 1.234.567'])
>>> settle_column(["850", "2.631"], "records", lambda row: f"sites.csv line {row + 2}")
Traceback (most recent call last):
    ...
fulcrum.errors.FederationError: sites.csv line 3: records=2.631 can be 2631 or 2.631. Write the one that is meant, ...

One dot or comma before three digits, as in 2.631, can separate thousands or decimals. It is read where another cell of
its column settles which: 1.234.567 and 1.234,50 can only have dots between thousands, 0,5 and 12,50
only a decimal comma. In `epsilon` and `weight`, which are fractions by nature, dots are decimal where
commas separate the cells of the file and no cell of the column holds one.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fulcrum.errors import FederationError

MISSING = frozenset({"na", "n/a", "#n/a", "#nv", "null", "none", "-", "–", "—"})
"""How programs and people write that there is no number."""

_SPACED = re.compile(r"[+-]?[0-9]{1,3}(['’ \xa0\u202f\u2009])[0-9]{3}(?:\1[0-9]{3})*(?:[.,][0-9]*)?")
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?P<dot>\.)[0-9]{3}(?:\.[0-9]{3})*|(?P<comma>,)[0-9]{3}(?:,[0-9]{3})*)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+[.,][0-9]*|[.,][0-9]+)(?:[eE][+-]?[0-9]+)?")
_POWER = re.compile(r"[0-9.]+[eE]\+?[0-9]{1,2}")
_SIGNS = {".": "dots", ",": "commas"}
_USUAL = str.maketrans("", "", "0123456789.eE+-")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenColumn:
    """A column of numbers in plain digits with a decimal point, and how it was read."""

    cells: list[str]
    notes: list[str]


def is_plain(cells: Sequence[str], column: str, *, point: bool = True) -> bool:
    """Says whether a column needs no settling: digits alone, or in `epsilon` and `weight` numbers with a point.

    `point` says whether dots in these two are decimal where nothing says otherwise.
    """
    joined = "".join(cells)
    if joined.isascii() and (joined.isdigit() or not joined):
        return True
    return column != "records" and not joined.translate(_USUAL) and (point or "." not in joined)


def settle_column(
    cells: Sequence[str], column: str, locate: Callable[[int], str], *, point: bool = True
) -> WrittenColumn:
    """Returns a column of numbers in plain digits; what is no number stays as it is, "" stands for a missing one.

    Args:
        cells: The numbers as they are written.
        column: Its name: `records` are whole.
        locate: Says where a row stands.
        point: Whether dots in `epsilon` and `weight` are decimal where nothing says otherwise.

    Raises:
        FederationError: A number can be read in two ways and nothing settles which.
    """
    notes: list[str] = []
    found = [_unspaced(cell) for cell in cells]
    if spaced := next((cell for cell, bare in zip(cells, found, strict=True) if bare != cell), None):
        word = "apostrophes" if re.search("['’]", spaced) else "spaces"
        notes.append(f"{column}: {word} separate thousands, as in {_shown(spaced)}")
    if missing := next((cell for cell in found if cell.lower() in MISSING), None):
        notes.append(f"{column}: {missing!r} is read as missing")
        found = ["" if cell.lower() in MISSING else cell for cell in found]
    thousands, decimal = _evidence(found, column, locate)
    for row, cell in enumerate(found):
        sign = _open_sign(cell)
        by_nature = point and column != "records" and sign == "." and "," not in (*decimal, *thousands)
        if sign and sign not in thousands and sign not in decimal and not by_nature:
            raise FederationError(
                "sheet.number-ambiguous",
                place=locate(row),
                column=column,
                cell=_shown(cells[row]),
                first=cell.replace(sign, ""),
                second=cell.replace(sign, "."),
            )
    for sign, row in thousands.items():
        notes.append(f"{column}: {_SIGNS[sign]} separate thousands, as in {_shown(cells[row])}")
    if "," in decimal:
        notes.append(f"{column}: commas separate decimals, as in {_shown(cells[decimal[',']])}")
    plain = [_plain(cell, thousands) for cell in found]
    if column == "records" and (power := next(filter(_POWER.fullmatch, plain), None)):
        notes.append(f"{column}: {power} is read as {float(power):.0f}")
    return WrittenColumn(cells=plain, notes=notes)


def _unspaced(cell: str) -> str:
    """Returns a number without the spaces or apostrophes between its thousands."""
    return re.sub("['’\\s]", "", cell) if _SPACED.fullmatch(cell) else cell


def _evidence(cells: Sequence[str], column: str, locate: Callable[[int], str]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the signs that can only separate thousands, and those that can only be decimal, with a row of each."""
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
    """Returns the sign between the thousands of a number; nothing where there is none, or it does not fit."""
    found = _GROUPED.fullmatch(text)
    return "" if found is None else "." if found["dot"] else ","


def _open_sign(cell: str) -> str:
    """Returns the sign of a number that can be read in two ways, such as 2.631."""
    return _grouped_by(cell) if cell.count(".") + cell.count(",") == 1 else ""


def _plain(cell: str, thousands: Iterable[str]) -> str:
    """Returns a number in plain digits with a decimal point; whatever is none stays as it is."""
    if "." not in cell and "," not in cell:
        return cell
    bare = cell
    for sign in thousands:
        whole, last, rest = bare.rpartition("," if sign == "." else ".")
        left = whole if last else rest
        if _grouped_by(left) == sign:
            bare = left.replace(sign, "") + last + (rest if last else "")
    return bare.replace(",", ".") if _DECIMAL.fullmatch(bare) else bare


def _shown(cell: str) -> str:
    return " ".join(cell.split())  # spaces that do not break cannot be printed
