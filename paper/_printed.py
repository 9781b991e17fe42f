"""What the scripts share: the paper's printed values, and ours beside them.

A script returns rows. Each holds our value and, from `expected.toml`, the paper's, or where the paper prints none a
check value of the theory; with the tolerance within which they must agree.
"""

import argparse
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from fulcrum.views.terminal.screen import FORMATS, Result, remarks, show, table
from fulcrum.views.terminal.table_columns import Column

ROUNDING_LEFT = 1e-12
"""What rounding leaves of an exact agreement is no difference."""

EXPECTED = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity.

    Attributes:
        quantity: What it is, with its unit.
        ours: The value computed here.
        paper: The value that the paper prints, or None.
        theory: A check value computed elsewhere of what the paper does not print, or None.
        tolerance: How far ours may be off; None where there is nothing to compare with.
        note: Which choice that the paper leaves open explains the difference.
        error: The standard error of ours, where it was measured.
        section: The table that the row is printed in; its quantity begins with it.
    """

    quantity: str
    ours: float
    paper: float | None = None
    theory: float | None = None
    tolerance: float | None = None
    note: str = ""
    error: float | None = None
    section: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, or less the theory's where the paper prints none."""
        expected = self.theory if self.paper is None else self.paper
        if expected is None:
            return None
        same = math.isclose(self.ours, expected, rel_tol=ROUNDING_LEFT, abs_tol=ROUNDING_LEFT)
        return 0.0 if same else self.ours - expected

    @property
    def outside(self) -> bool:
        """Whether the value misses its tolerance; one that is not a number does."""
        return self.difference is not None and not abs(self.difference) <= (self.tolerance or 0.0)

    @property
    def off(self) -> bool:
        """Whether the value misses its tolerance where it may not."""
        return self.outside

    def entry(self) -> dict[str, Any]:
        """Returns the row for JSON and CSV."""
        return {
            "quantity": self.quantity,
            "paper": self.paper,
            "theory": self.theory,
            "ours": self.ours,
            "difference": self.difference,
            "tolerance": self.tolerance,
            "off": self.off,
            "note": self.note,
        }


REPORTED: list[Row] = []
"""Every row that this process has printed."""


LEFT_OUT: list[str] = []
"""The parts of scripts that this process left out for want of data."""


class Printed:
    """The expected values of one script, by quantity."""

    def __init__(self, script: str) -> None:
        """Reads the values that stand under the script's name, its path or a bare name."""
        self._name = Path(script).stem
        self._values: Mapping[str, Mapping[str, Any]] = tomllib.loads(EXPECTED.read_text("utf-8"))[self._name]

    def row(self, quantity: str, ours: float, note: str = "") -> Row:
        """Returns the row of a quantity that `expected.toml` has a value for."""
        if quantity not in self._values:
            raise KeyError(
                f"{EXPECTED.name} has no {quantity!r} under [{self._name}]. Known: {', '.join(self._values)}"
            )
        return Row(quantity=quantity, ours=float(ours), note=note, **self._values[quantity])


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns the arguments that every script takes; the first line of its docstring describes it."""
    described = argparse.ArgumentParser(description=title_of(doc))
    described.add_argument("--format", choices=FORMATS, default="table", help="how to print")
    return described


def title_of(doc: str | None) -> str:
    """Returns the first line of a script's docstring."""
    return (doc or "").strip().partition("\n")[0].rstrip(".")


def report(
    doc: str | None,
    rows: Sequence[Row],
    style: str,
    *,
    pictures: Sequence[RenderableType] = (),
    data: Mapping[str, Any] | None = None,
) -> int:
    """Prints the rows and returns the exit status: 1 if a value is off by more than its tolerance.

    Args:
        doc: The script's docstring.
        rows: What was found.
        style: One of `FORMATS`.
        pictures: What to draw before the rows.
        data: What else JSON holds.
    """
    REPORTED.extend(rows)
    off = [row for row in rows if row.off]
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    drawn = [_drawn(row, notes) for row in rows]
    columns = [Column(key="quantity", heading="quantity", figures=False)]
    columns += [
        Column(key=key, heading=key)
        for key in ("paper", "ours", "±", "differs", "allowed", "note")
        if any(row[key] not in ("", None) for row in drawn)
    ]
    sections = [
        (section, [shown for row, shown in zip(rows, drawn, strict=True) if row.section == section])
        for section in dict.fromkeys(row.section for row in rows)
    ]
    remarked = [(False, f"note {k}: {note}") for k, note in enumerate(notes, 1)]
    if any(row.theory is not None for row in rows):
        remarked.append((False, "In brackets: a check value of the theory, which the paper does not print."))
    remarked += [
        (True, f"{row.quantity} is off: it differs by {row.difference:.3g}, and {row.tolerance or 0:g} is allowed.")
        for row in off
    ]
    entries = [row.entry() for row in rows]
    result = Result(
        data={"title": title_of(doc), "off": len(off), "rows": entries, **(data or {})},
        rows=entries,
        picture=[
            *pictures,
            *(table(f"{title_of(doc)}: {name}" if name else title_of(doc), columns, part) for name, part in sections),
            *([remarks(remarked)] if remarked else []),
        ],
    )
    show(result, style)
    return 1 if off else 0


def _drawn(row: Row, notes: Sequence[str]) -> dict[str, Any]:
    """Returns the row for people: short enough for a line of 80 characters, its note by number."""
    ours = 0.0 if abs(row.ours) < ROUNDING_LEFT else row.ours
    return {
        "quantity": row.quantity.removeprefix(f"{row.section}, "),
        "paper": f"({row.theory:g})" if row.theory is not None else "" if row.paper is None else f"{row.paper:g}",
        "ours": ours if row.error is None else f"{ours:.4f}" if abs(ours) < 1 else f"{ours:.2f}",
        "±": "" if row.error is None else f"{row.error:.2g}",
        "differs": "" if row.difference is None else f"{row.difference:+.4f}" if row.difference else "0",
        "allowed": "" if row.tolerance is None else f"{row.tolerance:.3g}",
        "note": notes.index(row.note) + 1 if row.note else None,
    }


def main(doc: str | None, rows: Callable[[], list[Row]], arguments: Sequence[str] | None = None) -> int:
    """Runs a script that takes no arguments of its own and returns its exit status."""
    chosen = parser(doc).parse_args(arguments)
    return report(doc, rows(), chosen.format)
