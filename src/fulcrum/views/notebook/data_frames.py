"""The figures of plans, comparisons, runs and audits as data frames of the user's own library.

>>> from fulcrum.planning.planner import plan
>>> silos = frame_of(plan("isic-paper", rounds=10, epsilon=1.0), "polars")
>>> silos.shape, silos.columns[:3]
((6, 9), ['silo', 'records', 'region'])

Narwhals makes the frame. Fulcrum itself needs neither Polars nor pandas.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import narwhals as nw

from fulcrum.audit.evidence.findings import EVERY_COLUMN, Audit
from fulcrum.errors import MissingExtraError, check_known
from fulcrum.planning.comparisons.comparison import Comparisons
from fulcrum.planning.files.exports import silo_rows
from fulcrum.planning.plan import Plan
from fulcrum.simulation.training_runs import TrainingRun

Library: TypeAlias = Literal["polars", "pandas"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
"""The libraries of data frames, the preferred library first."""


def frame_of(result: Any, library: str | None = None) -> Any:
    """Returns the figures of a plan, comparison, run or audit as a data frame.

    Args:
        result: A `Plan`, `Comparisons`, `TrainingRun` or `Audit`.
        library: A name of `LIBRARIES`; by default the imported library, else the installed library.
    """
    return nw.from_dict(columns_of(result), backend=library_of(library)).to_native()


def library_of(library: str | None) -> Library:
    """Returns the library of a data frame: as named, else imported, else installed."""
    if library is not None:
        check_known("library of data frames", library, LIBRARIES)
    installed = [name for name in LIBRARIES if name in sys.modules or find_spec(name) is not None]
    names = installed if library is None else [name for name in installed if name == library]
    if not names:
        raise MissingExtraError("frame.library-missing", library=library or "Polars or pandas")
    return next((name for name in names if name in sys.modules), names[0])


def columns_of(result: Any) -> dict[str, list[Any]]:
    """Returns the figures of a result by column."""
    if isinstance(result, Plan):
        header, *rows = silo_rows(result)
        return {name: [row[index] for row in rows] for index, name in enumerate(header)}
    if isinstance(result, Comparisons):
        return _columns([asdict(row) for row in result])
    if isinstance(result, TrainingRun):
        return _columns(_round_rows(result))
    if isinstance(result, Audit):
        measured = [row | {"further": ", ".join(row.get("further", ()))} for row in result.every_row()]
        return _columns(measured, EVERY_COLUMN)
    raise TypeError(f"no data frame shows a {type(result).__name__}")


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Returns rows as columns; a row without a value has None."""
    return {name: [row.get(name) for row in rows] for name in names or rows[0]}


def _round_rows(run: TrainingRun) -> list[dict[str, Any]]:
    """Returns a row for every seed and round, with the metric under its own name."""
    return [
        {"seed": seed, "round": number, run.metric: value, "reference": reference}
        for seed, values, reference in zip(run.seeds, run.accuracy.tolist(), run.reference.tolist(), strict=True)
        for number, value in enumerate(values, 1)
    ]
