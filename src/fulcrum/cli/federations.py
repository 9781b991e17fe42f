"""The federation that a command is given: read, with what its columns are said to be, and notes on it on stderr."""

import sys
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from fulcrum.core.topology import Topology
from fulcrum.errors import listing
from fulcrum.readers.federation_reader import FederationReading, reading_of
from fulcrum.readers.spreadsheets.column_names import parse_column_options
from fulcrum.views.terminal.screen import working
from fulcrum.words.numbers import printable

ColumnOption = Annotated[
    tuple[str, ...],
    Parameter(
        name="--column",
        help="What a column of a table is: silo=hospital, ignore=phone; may be repeated.",
        negative=(),
        show_default=False,
    ),
]


def given_federation(source: str, column: Sequence[str]) -> FederationReading:
    """Returns the federation of a command line, and says on stderr how it was read where that is not plain."""
    with working("Reading the federation"):
        found = reading_of(source, columns=parse_column_options(column))
    _tell(found.notes)
    return found


def told_of_coalitions(federation: Topology, *, colluders: int, dropouts: int) -> list[str]:
    """Says on stderr, and returns, in which regions so many colluding or missing silos leave nobody to conceal one.

    A silo's own noise always counts, so planning goes on: it asks for as much there as of a silo that is alone.
    """
    excluded_silos, inner = colluders + dropouts, federation.innermost
    sizes = np.bincount(inner.parent_of, minlength=len(inner.nodes)).tolist()
    named = [
        f"{name!r} ({size} silos)"
        for name, size in zip(inner.nodes, sizes, strict=True)
        if 1 < size <= excluded_silos + 1
    ]
    if not named:
        return []
    counts = (("colluders", colluders), ("dropouts", dropouts))
    given = " and ".join(f"--{name} {count}" for name, count in counts if count)
    given += " leave" if colluders and dropouts else " leaves"
    note = (
        f"{given} nobody to conceal a silo in {inner.name} {listing(named, 3)}: there every silo is "
        f"protected by its own noise alone, as if it were the only one of its {inner.name}"
    )
    _tell([note])
    return [note]


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        sys.stderr.write(f"note: {printable(note)}\n")
