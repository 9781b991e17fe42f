"""The federation that a command is given: read, with what its columns are said to be, and notes on stderr."""

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from fulcrum.federation.column_names import columns_said
from fulcrum.federation.reading import FederationReading, reading_of
from fulcrum.views.numbers import printable
from fulcrum.views.terminal import working

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
        found = reading_of(source, columns=columns_said(column))
    for note in found.notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    return found
