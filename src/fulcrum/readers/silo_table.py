"""The rules for a table of silos from any source: the meanings of columns, the contents of cells.

>>> silos = Silos(["region"], lambda row: f"silos.csv line {row + 2}")
>>> silos.add(["lille", "lyon"], ["800", "1200"], {"region": ["north", "south"]}, None)
>>> silos.federation("hospitals", "silos.csv").weights.tolist()
[0.4, 0.6]
"""

import difflib
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray, IntArray, NameArray
from fulcrum.core.choices import MOST_ROUNDS
from fulcrum.core.rosters import Stay
from fulcrum.core.topology import KNOWN_COLUMNS, SILO, STAY_COLUMNS, Tier, reserved_problem, tier_name_problem
from fulcrum.errors import FederationError, in_one_line, listing
from fulcrum.readers.federation import Federation
from fulcrum.readers.spreadsheets.column_names import IGNORE, SITE, column_option, expected_tier, without_accents

REQUIRED_COLUMNS = (SILO, "region")
"""Columns that every table must have."""

NUMBER_COLUMNS = ("records", "epsilon", "weight", *STAY_COLUMNS)
"""Columns of numbers."""

USUAL_COLUMNS = (SILO, "records", "region")
"""Columns that most tables have; without `records` sizes are not declared."""

MOST_RECORDS = 2**53
"""The largest size of a silo: above 2^53, floating point no longer counts single records."""

Numbers: TypeAlias = Sequence[Any] | FloatArray
"""A column of numbers as read: cells of any type, or an array with NaN for missing numbers."""

Labels: TypeAlias = Sequence[str] | tuple[IntArray, Sequence[str]]
"""A column of labels, or codes into the distinct labels in the order of rows."""


def checked_header(header: Sequence[str], where: str, declared: Container[str] = ()) -> list[str]:
    """Returns the column names, stripped; refuses a header that breaks a rule for tables of silos.

    `silo` and `region` are required; `records`, `epsilon`, `group`, `weight`, `site`, `from`, `until` and `every` may
    stand anywhere; `share` is reserved. All further columns are outer tiers. An outer tier must stand after `region`,
    unless the name is usual for outer tiers or is among the names that the user has `declared`.

    >>> checked_header(["silo", "records", "region", "country"], "silos.csv line 1")
    ['silo', 'records', 'region', 'country']
    """
    names = [name.strip() for name in header]
    for k, name in enumerate(names):
        if not name:
            raise FederationError("sheet.column-unnamed", place=where, column=k + 1)
        if name in names[:k]:
            raise FederationError("sheet.column-repeated", place=where, column=name)
        if alike := [earlier for earlier in names[:k] if without_accents(earlier) == without_accents(name)]:
            raise FederationError(
                "sheet.columns-alike", place=where, first=alike[0], second=name, option=column_option(IGNORE, name)
            )
        if reserved := reserved_problem(name):
            raise FederationError("sheet.column-reserved", place=where, column=name, reason=reserved)
        if name.endswith("noise_multiplier"):
            raise FederationError("sheet.column-of-plan", place=where, column=name)
    for usual in USUAL_COLUMNS:
        meant = "" if usual in names else _stand_in(usual, names)
        if meant or (usual not in names and usual in REQUIRED_COLUMNS):
            meant = meant or f" Every table needs {listing(REQUIRED_COLUMNS)}. {_other_names(names)}"
            raise FederationError("sheet.column-missing", place=where, column=usual, suggestion=meant)
    for k, name in enumerate(names):
        if name in (*KNOWN_COLUMNS, "region", SITE):
            continue
        near = misspelt(name, KNOWN_COLUMNS)
        if near is not None:
            raise FederationError("sheet.column-misspelt", place=where, column=name, suggestion=near)
        if k < names.index("region") and name not in declared and not expected_tier(name):
            raise FederationError(
                "sheet.column-unknown",
                place=where,
                column=name,
                known=listing((*KNOWN_COLUMNS, "region")),
                region_option=column_option("region", name),
                ignore_option=column_option(IGNORE, name),
            )
        if problem := tier_name_problem(name):
            raise FederationError("sheet.column-not-tier", place=where, reason=problem)
    return names


def _other_names(names: Sequence[str]) -> str:
    """Returns the options that name the required columns, and the columns to choose from."""
    missing = [column for column in REQUIRED_COLUMNS if column not in names]
    others = [name for name in names if name not in (*KNOWN_COLUMNS, "region", SITE)]
    naming = "Where it has another name" if len(missing) == 1 else "Where they have other names"
    options = " ".join(f"--column {column}=NAME" for column in missing)
    choice = f", with NAME among: {in_one_line(listing(others))}" if others else ""
    return f"{naming}: {options} (in Python columns={dict.fromkeys(missing, 'NAME')}){choice}"


def _stand_in(required: str, names: Sequence[str]) -> str:
    """Returns a question about a column with a name like the missing column's; "" if no name is alike."""
    for name in names:
        if name not in (*KNOWN_COLUMNS, "region") and misspelt(name, [required]):
            return f" Did you mean the column {name!r} to be {required!r}?"
    return ""


def label_columns(header: Sequence[str]) -> list[str]:
    """Returns the columns of labels: the tiers, inner to outer, the group, and the sites.

    Outer tiers before `region` stand outermost first, like an address that begins with the country.

    >>> label_columns(["country", "region", "silo", "records"])
    ['region', 'country']
    """
    labels = [name for name in header if name not in (SILO, *NUMBER_COLUMNS)]
    inner = labels.index("region") if "region" in labels else 0
    return labels[inner:] + labels[:inner][::-1]


def misspelt(word: str, choices: Iterable[str]) -> str | None:
    """Returns the choice that `word` most likely misspells, or None if no choice is near.

    >>> misspelt("epsilom", ["epsilon", "group"]), misspelt("eps", ["epsilon"]), misspelt("country", ["epsilon"])
    ('epsilon', 'epsilon', None)
    """
    lower = word.strip().lower()
    if lower in ("eps", "ε") and "epsilon" in choices:
        return "epsilon"
    near = difflib.get_close_matches(lower, list(choices), n=1, cutoff=0.75)
    return near[0] if near else None


def tree_key_problem(key: str) -> str:
    """Returns the reason to refuse a key of a tree file, with a remedy, or an empty string.

    A tree file that ignored the rounds of a silo would plan for a silo in all rounds.

    >>> tree_key_problem("until"), tree_key_problem("records")
    ('rounds of silos stand in a table, or in a schedule file: --schedule', '')
    """
    if key.strip().lower() in STAY_COLUMNS:
        return "rounds of silos stand in a table, or in a schedule file: --schedule"
    return reserved_problem(key)


class Silos:
    """Collects batches of rows into arrays; if the number of rows is known, 10^8 rows are never held twice."""

    def __init__(
        self, tiers: Sequence[str], locate: Callable[[int], str], rows: int = 0, *, fractions: bool = False
    ) -> None:
        self.locate = locate
        self.fractions = (
            fractions  # records may be fractions: true for sizes that a program computed, not for files and frames
        )
        self.filled = 0
        self.names: NameArray = np.empty(rows, dtype=np.dtypes.StringDType())
        self.rows = rows
        self.records: FloatArray | None = None
        self.epsilon: FloatArray | None = None
        self.weight: FloatArray | None = None
        self.stay: dict[str, FloatArray] = {}
        self.nodes: dict[str, dict[str, int]] = {tier: {} for tier in tiers}
        self.codes: dict[str, IntArray] = {tier: np.empty(rows, dtype=np.intp) for tier in tiers}

    def add(
        self,
        silo: Sequence[str],
        records: Numbers | None,
        labels: Mapping[str, Labels],
        epsilon: Numbers | None,
        weight: Numbers | None = None,
        **stay: Numbers | None,
    ) -> None:
        """Checks and appends a batch; missing text is "", a missing number None, "" or NaN in an array.

        A column outside of the table is None, in every batch: without `records` sizes are not declared. The columns of
        `stay` are the `STAY_COLUMNS`.
        """
        start, stop = self.filled, self.filled + len(silo)
        if "" in silo:
            raise FederationError("sheet.silo-missing", place=self.locate(start + silo.index("")))
        self.names = _with_room(self.names, stop)
        try:
            self.names[start:stop] = silo
        except UnicodeEncodeError:  # half of a surrogate pair: impossible in a file, possible in a data frame
            row = next(k for k, name in enumerate(silo) if not name.isprintable())
            raise FederationError("sheet.silo-unprintable", place=self.locate(start + row)) from None
        if records is not None:
            self.records = self._numbers(self.records, stop)
            self.records[start:stop] = self._checked_records(silo, records)
        if epsilon is not None:
            self.epsilon = self._numbers(self.epsilon, stop)
            self.epsilon[start:stop] = self._checked_epsilon(epsilon)
        if weight is not None:
            self.weight = self._numbers(self.weight, stop)
            self.weight[start:stop] = self._checked_weight(silo, weight)
        for name, cells in stay.items():
            if cells is not None:
                self.stay[name] = self._numbers(self.stay.get(name), stop)
                self.stay[name][start:stop] = self._checked_rounds(name, cells)
        for tier, column in labels.items():
            codes, distinct = column if isinstance(column, tuple) else _encode(column)
            if "" in distinct and tier not in ("group", SITE):
                row = int(np.argmax(codes == list(distinct).index("")))
                no_tier = "" if expected_tier(tier) else f", or if the column is no tier: {column_option(IGNORE, tier)}"
                raise FederationError(
                    "sheet.node-missing", place=self.locate(start + row), tier=tier, silo=silo[row], alternative=no_tier
                )
            index = self.nodes[tier]
            unified = np.array([index.setdefault(label, len(index)) for label in distinct], dtype=np.intp)
            self.codes[tier] = _with_room(self.codes[tier], stop)
            self.codes[tier][start:stop] = unified[codes]
        self.filled = stop

    def federation(self, name: str, file: str) -> Federation:
        """Returns the federation of all added rows."""
        rows = self.filled
        if rows == 0:
            raise FederationError("sheet.silos-missing", file=file)
        tiers = {
            tier: Tier(name=tier, nodes=tuple(index), parent_of=self.codes[tier][:rows])
            for tier, index in self.nodes.items()
        }
        group, site = tiers.pop("group", None), tiers.pop(SITE, None)
        return Federation.from_columns(
            silo=self.names[:rows],
            records=None if self.records is None else self.records[:rows],
            tiers=tiers,
            epsilon=None if self.epsilon is None else self.epsilon[:rows],
            weight=None if self.weight is None else self.weight[:rows],
            group=None if group is None else self._complete_groups(group),
            site=None if site is None else [site.nodes[code] for code in site.parent_of.tolist()],
            stays=self._stays(),
            name=name,
            locate=self.locate,
        )

    def _stays(self) -> tuple[tuple[Stay, ...], ...] | None:
        """Returns by silo its stay; None if no silo has a limit: an empty cell is the first or last round, or 1."""
        if not self.stay:
            return None
        missing = dict.fromkeys(STAY_COLUMNS, np.zeros(self.filled)) | {"from": np.ones(self.filled)}
        missing["every"] = np.ones(self.filled)
        read = {name: self.stay[name][: self.filled] if name in self.stay else missing[name] for name in STAY_COLUMNS}
        first, last, every = (np.where(np.isnan(read[name]), missing[name], read[name]) for name in STAY_COLUMNS)
        early = (last > 0) & (last < first)
        if early.any():
            row = int(np.argmax(early))
            silo = self.names[row]
            raise FederationError(
                "sheet.stay-order", place=self.locate(row), silo=silo, first=int(first[row]), last=int(last[row])
            )
        if (first == 1).all() and (last == 0).all() and (every == 1).all():
            return None
        listed = zip(first.astype(int).tolist(), last.astype(int).tolist(), every.astype(int).tolist(), strict=True)
        return tuple((stay,) for stay in listed)

    def _checked_rounds(self, column: str, cells: Numbers) -> FloatArray:
        values = _floats(cells)
        for row in np.flatnonzero(~((values >= 1) & (values <= MOST_ROUNDS) & (values == np.floor(values)))).tolist():
            if not _is_missing(cells[row]):
                raise FederationError(
                    "sheet.stay-range",
                    place=self.locate(self.filled + row),
                    column=column,
                    value=_printable_cell(cells[row]),
                    most=MOST_ROUNDS,
                )
        return values

    def _numbers(self, column: FloatArray | None, stop: int) -> FloatArray:
        """Returns a column of numbers with room up to `stop`."""
        longer: FloatArray = _with_room(np.empty(self.rows) if column is None else column, stop)
        return longer

    def _checked_weight(self, silo: Sequence[str], cells: Numbers) -> FloatArray:
        values = _floats(cells)
        good = (values > 0) & np.isfinite(values)
        if good.all():
            return values
        row = int(np.argmin(good))
        where = self.locate(self.filled + row)
        if _is_missing(cells[row]):
            raise FederationError("sheet.weight-missing", place=where, silo=silo[row])
        raise FederationError("sheet.weight-range", place=where, weight=_printable_cell(cells[row]))

    def _checked_records(self, silo: Sequence[str], cells: Numbers) -> FloatArray:
        values = _floats(cells)
        good = (values >= 1) & (values <= MOST_RECORDS)
        whole = good if self.fractions else good & (values == np.floor(values))
        if whole.all():
            return values
        row = int(np.argmin(whole if good.all() else good))
        cell, value, where = cells[row], values[row], self.locate(self.filled + row)
        if _is_missing(cell):
            raise FederationError("sheet.records-missing", place=where, silo=silo[row])
        if not _is_number(cell):
            raise FederationError("sheet.records-type", place=where, records=_printable_cell(cell))
        if good[row]:
            raise FederationError("sheet.records-fraction", place=where, records=_printable_cell(cell))
        rule = "at least 1" if value < 1 else f"at most {MOST_RECORDS}"
        if not math.isfinite(value):
            rule = "a finite number"
        raise FederationError("sheet.records-range", place=where, records=_printable_cell(cell), rule=rule)

    def _checked_epsilon(self, cells: Numbers) -> FloatArray:
        values = _floats(cells)
        for row in np.flatnonzero(np.isnan(values)).tolist():
            if not _is_missing(cells[row]):
                raise FederationError(
                    "sheet.epsilon-type", place=self.locate(self.filled + row), epsilon=_printable_cell(cells[row])
                )
        return values

    def _complete_groups(self, group: Tier) -> Tier | None:
        """Returns the groups; a silo without a group gets a group of its own name. None if no silo has a group."""
        if "" not in group.nodes:
            return group
        if len(group.nodes) == 1:
            return None
        declared = set(group.nodes)
        labels = [group.nodes[code] or str(name) for code, name in zip(group.parent_of, self.names, strict=False)]
        alone = group.nodes.index("")
        for row in np.flatnonzero(group.parent_of == alone).tolist():
            if labels[row] in declared:
                raise FederationError("sheet.group-missing", place=self.locate(row), silo=labels[row])
        return Tier.from_labels("group", labels)


def _with_room(values: Any, rows: int) -> Any:
    """Returns the array, or a copy of twice the length if the array is too short."""
    if rows <= len(values):
        return values
    longer = np.empty(max(rows, 2 * len(values)), dtype=values.dtype)
    longer[: len(values)] = values
    return longer


def _encode(labels: Sequence[str]) -> tuple[IntArray, Sequence[str]]:
    tier = Tier.from_labels("", labels)
    return tier.parent_of, tier.nodes


def _floats(cells: Numbers) -> FloatArray:
    """Returns the cells as numbers, NaN for a cell that is no number."""
    if isinstance(cells, np.ndarray):
        return cells
    kinds = set(map(type, cells))
    if kinds <= {int, float} or (kinds == {str} and "_" not in "".join(cells)):
        try:
            return np.fromiter(map(float, cells), np.float64, len(cells))
        except (ValueError, OverflowError):
            pass
    return np.fromiter(map(_float, cells), np.float64, len(cells))


def _float(cell: Any) -> float:
    if isinstance(cell, bool | np.bool_) or (isinstance(cell, str) and "_" in cell):
        return math.nan  # Python reads 10_20 as 1020
    try:
        return float(cell)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def _is_missing(cell: Any) -> bool:
    """Returns True for a missing number: None, "", or a NaN of an array; a NaN that a person wrote is not missing."""
    if isinstance(cell, np.floating):
        return bool(np.isnan(cell))
    return cell is None or (isinstance(cell, str) and not cell)


def _is_number(cell: Any) -> bool:
    written = cell.lower().lstrip("+-") if isinstance(cell, str) else cell
    return not math.isnan(_float(cell)) or written == "nan" or isinstance(cell, float)


def _printable_cell(cell: Any) -> str:
    """Returns a cell for a message: numbers as written, all further cells quoted and cut short."""
    if isinstance(cell, str):
        return cell if _is_number(cell) and len(cell) <= 40 and cell.isprintable() else repr(cell[:40])
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return f"{_float(cell):.15g}"
    return repr(cell)[:40] if isinstance(cell, bool) else f"({type(cell).__name__})"
