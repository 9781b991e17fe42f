"""What was measured, beside what the paper prints: means over seeds, standard errors, and when a value is off."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _printed import EXPECTED, Row

from fulcrum.arrays import FloatArray

PAPER_SEEDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over seeds and its standard error."""

    mean: float
    error: float
    seeds: int

    @classmethod
    def of(cls, values: FloatArray) -> "Estimate":
        """Returns the mean of one value by seed."""
        error = float(values.std(ddof=1) / math.sqrt(len(values)))
        return cls(mean=float(values.mean()), error=error, seeds=len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Row):
    """A row that was measured: off outside two combined standard errors, unless `expected.toml` explains it.

    Attributes:
        explained: Why it may be off; empty where it may not.
    """

    explained: str = ""

    @property
    def off(self) -> bool:
        """Whether the value misses its tolerance and nothing explains it."""
        return self.outside and not self.explained

    def entry(self) -> dict[str, Any]:
        """Returns the row for JSON and CSV."""
        # `super()` without arguments does not work in a dataclass with slots.
        return {
            "section": self.section,
            **Row.entry(self),
            "standard_error": self.error,
            "outside": self.outside,
        }


class Measurements:
    """The rows of one script: ours by task, beside what the paper prints."""

    def __init__(self, script: str) -> None:
        """Reads the values that stand under the script's name."""
        self._values: Mapping[str, Mapping[str, Any]] = tomllib.loads(EXPECTED.read_text("utf-8"))[Path(script).stem]

    def row(
        self, section: str, quantity: str, ours: Estimate | float, *, tolerance: float | None = None, note: str = ""
    ) -> Measured:
        """Returns a row; without a tolerance of its own it is held to two combined standard errors.

        Args:
            section: The task, and what else the rows of one table have in common.
            quantity: What it is, with its unit.
            ours: What was measured.
            tolerance: How far ours may be off the paper's.
            note: What a reader should know.
        """
        name = f"{section}, {quantity}"
        printed = self._values.get(name, {})
        error = ours.error if isinstance(ours, Estimate) else None
        paper = printed.get("paper")
        if paper is not None and tolerance is None:
            if not isinstance(ours, Estimate):
                tolerance = printed.get("tolerance", 0.0)
            else:
                # Where the paper prints no standard error, ours at its ten seeds stands for it.
                theirs = ours.error * math.sqrt(ours.seeds / PAPER_SEEDS)
                tolerance = 2 * math.hypot(ours.error, printed.get("error", theirs))
        row = Measured(
            quantity=name,
            section=section,
            ours=ours.mean if isinstance(ours, Estimate) else float(ours),
            error=error,
            paper=paper,
            tolerance=tolerance if paper is not None else None,
            note=note,
        )
        if row.outside and "explained" in printed:
            return replace(row, explained=printed["explained"], note=printed["explained"])
        return row

    def at_least(self, section: str, quantity: str, ours: Estimate) -> list[Measured]:
        """Returns a row of how far ours falls short of what is promised; none where nothing is."""
        value = self._values.get(f"{section}, {quantity}", {})
        if "least" not in value:
            return []
        promised, reason = value["least"], value.get("explained", "")
        row = self.check(section, f"{quantity}, short of {promised}", max(0.0, promised - ours.mean), 0.0)
        return [replace(row, explained=reason, note=reason) if row.outside else row]

    def check(self, section: str, quantity: str, ours: float, theory: float, tolerance: float = 0.0) -> Measured:
        """Returns a row that the theory, not the paper's print, holds ours to."""
        return Measured(
            quantity=f"{section}, {quantity}", section=section, ours=float(ours), theory=theory, tolerance=tolerance
        )
