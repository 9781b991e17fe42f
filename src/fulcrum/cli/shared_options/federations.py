"""The federation of a command line: argument, meaning of columns, and notes on stderr."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from fulcrum.cli.shared_options.options import INPUT, option, several
from fulcrum.core.topology import Topology
from fulcrum.errors import listing
from fulcrum.readers.federation_reader import FederationReading, reading_of
from fulcrum.readers.spreadsheets.column_names import parse_column_options
from fulcrum.readers.spreadsheets.written_numbers import Thousands
from fulcrum.views.terminal.screen import working
from fulcrum.words.numbers import printable

ColumnOption = Annotated[
    tuple[str, ...],
    several(
        "Meaning of a column of the federation's table: silo=hospital, ignore=phone; may be repeated.",
        INPUT,
        name="--column",
    ),
]

ThousandsOption = Annotated[
    Thousands | None,
    option(
        "Sign between thousands in the federation's table; the other sign is decimal. Default: the column decides.",
        INPUT,
    ),
]

NameOption = Annotated[
    str | None, option("Name of the federation in plan and report. Default: the name of its file.", INPUT)
]

ScheduleOption = Annotated[
    Path | None,
    option(
        "Table of the rounds in which each silo takes part, with the columns silo and rounds (4 6-9 12-/3). Default: "
        "the columns from, until and every of the federation's table, else all rounds.",
        INPUT,
    ),
]


def add_schedule(federation: Topology, schedule: Path | None) -> Topology:
    """Returns the federation with the rounds of a schedule file, if a file is given."""
    if schedule is None:
        return federation
    from fulcrum.readers.schedule_file import (
        with_schedule,  # loads the figures of plans, which most commands do not need
    )

    return with_schedule(federation, schedule)


def federation_argument(
    source: str, column: Sequence[str], thousands: Thousands | None = None, name: str | None = None
) -> FederationReading:
    """Returns the federation of a command line, and writes notes on doubtful columns to stderr."""
    with working("Reading the federation"):
        reading = reading_of(source, columns=parse_column_options(column), thousands=thousands, name=name)
    _tell(reading.notes)
    return reading


def note_on_coalitions(federation: Topology, *, colluders: int, dropouts: int) -> list[str]:
    """Returns a note, also on stderr, on regions too small to conceal a silo beside colluding and missing silos.

    Planning goes on: a silo's own noise always counts, and every silo of the region gets the noise of a lone silo.
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
    options = " and ".join(f"--{name} {count}" for name, count in counts if count)
    options += " leave" if colluders and dropouts else " leaves"
    note = (
        f"{options} nobody to conceal a silo in {inner.name} {listing(named, 3)}: there every silo is "
        f"protected by its own noise alone, as if it were the only one of its {inner.name}"
    )
    _tell([note])
    return [note]


def note_on_rounds(federation: Topology) -> list[str]:
    """Returns a note, also on stderr, if silos have rounds of their own and figures take all silos together."""
    if federation.stays is None:
        return []
    note = "these figures take all silos together: the rounds of silos count in a plan alone"
    _tell([note])
    return [note]


def note_on_same_rounds(before: Topology, federation: Topology) -> list[str]:
    """Returns a note, also on stderr, if a replan has the schedule of the plan before, whose rounds are now shifted."""
    from fulcrum.planning.theory.scheduling import repeats_rounds

    if not repeats_rounds(before, federation):
        return []
    note = "the silos have the same rounds as in the plan before, and rounds count from round 1 of the new plan"
    _tell([f"{note}: subtract the rounds that are done from every first and last round"])
    return [note]


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        sys.stderr.write(f"note: {printable(note)}\n")
