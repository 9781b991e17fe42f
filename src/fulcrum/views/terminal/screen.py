"""Results on stdout: as a table for people, as JSON, or as CSV.

A result is its data (for JSON), its rows (for CSV) and a picture (for people); what is too long for a screen is cut
in the picture alone. Every text goes through `printable`.
"""

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fulcrum.csv_text import csv_text
from fulcrum.errors import check_known, listing
from fulcrum.rounding import display_epsilon
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import figure, printable

FORMATS = ("table", "json", "csv")

ROWS_SHOWN = 30
"""Rows of a table that a screen takes."""

QUIET_FOR = 10.0
"""Seconds that long work stays silent at most, where nobody is watching and its result tells the rest."""

# Characters that a terminal obeys: controls but for tab and line feed, and those that turn the direction of writing.
# Not `printable`: CSV is read by programs too, and a name keeps its blanks and joiners of any script.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_NARROWEST = 60

_GAP = 3
"""Characters between two columns."""

_NAME_WIDTHS = (24, 12)
"""Characters that names have at least, while headings take more lines; and then, so that figures fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found.

    Attributes:
        data: For JSON: plain lists, mappings, strings and numbers.
        rows: For CSV.
        fields: The columns of the CSV, where there may be no rows to tell.
        picture: For people.
    """

    data: Any
    rows: Sequence[Mapping[str, Any]]
    fields: Sequence[str] = ()
    picture: Sequence[RenderableType] = field(default_factory=tuple)


def check_format(name: str) -> None:
    """Raises `ParameterError` for an unknown format, before any work is done."""
    check_known("format", name, FORMATS)


def show(result: Result, style: str) -> None:
    """Prints a result to stdout in one of `FORMATS`."""
    if style == "json":
        encoded = msgspec.json.format(msgspec.json.encode(_finite(result.data)), indent=1)
        sys.stdout.write(printable_json(encoded) + "\n")
    elif style == "csv":
        sys.stdout.write(_csv(result))
    else:
        console = Console(highlight=False, soft_wrap=False)
        console.width = _screen_width()
        console.print(Group(*result.picture), crop=False)  # a table that is too wide is wrapped by the terminal


def printable_json(encoded: bytes) -> str:
    r"""Returns JSON with every character that a terminal may obey escaped; JSON itself escapes few of them.

    >>> print(printable_json('"\u202e é"'.encode()))
    "\u202e é"
    """
    return re.sub(
        r"[^\n -~]",
        lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1],
        encoded.decode(),
    )


def table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    note: str = "",
    total: int | None = None,
    elsewhere: str = "see them all with --format csv",
) -> RenderableType:
    """Returns the picture of some rows, cut to what fits on a screen.

    Args:
        title: What the table shows.
        columns: Its columns.
        rows: Its rows, or the first of them.
        note: A line below it.
        total: How many rows there are, where not all were given.
        elsewhere: Where the rows that do not fit are to be seen.
    """
    cells = [[_text(_cell(row.get(column.key), column.epsilon)) for column in columns] for row in rows[:ROWS_SHOWN]]
    headings = [Text("\n".join(map(printable, column.heading.split("\n")))) for column in columns]
    widths = _widths(columns, headings, cells)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=sum(widths) + _GAP * len(widths) - 1)
    for column, heading, width in zip(columns, headings, widths, strict=True):
        drawn.add_column(heading, justify="right" if column.figures else "left", overflow="fold", width=width)
    for row in cells:
        drawn.add_row(*row)
    left = (len(rows) if total is None else total) - ROWS_SHOWN
    if left > 0:
        note = f"{left:,} more not shown; {elsewhere}.{' ' + note if note else ''}"
    below = [Padding(_text(note, style="dim"), (0, 0, 1, 0))] if note else []
    return Group(_text(title, style="bold"), drawn, *below)


def facts(pairs: Sequence[tuple[str, str]]) -> RenderableType:
    """Returns the picture of named figures."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim")
    drawn.add_column()
    for name, value in pairs:
        drawn.add_row(_text(name), _text(value))
    return Padding(drawn, (0, 0, 1, 0))


def remarks(lines: Sequence[tuple[bool, str]]) -> RenderableType:
    """Returns the picture of remarks, each a warning or not."""
    drawn = Table.grid(padding=(0, 1))
    for warning, text in lines:
        drawn.add_row(Text("!", style="bold yellow") if warning else Text("·", style="dim"), _text(text))
    return Padding(drawn, (0, 0, 1, 0))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on stderr that work is under way, where someone is watching."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(_text(what)):
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows on stderr how many of how many are done; yields a callable to be told so."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: console.print(_text(f"{what}: {done} of {total}"))
        return
    with Progress(console=console) as bar:
        job = bar.add_task(escape(printable(what)), total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Shows on stderr how far each phase of some work is, once it has begun: a bar, or at most twenty lines.

    Yields a callable to be told the phase, how many are done, and of how many.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        shares: dict[str, int] = {}

        def line(what: str, done: int, total: int) -> None:
            if (share := 20 * done // total) > shares.get(what, -1):
                shares[what] = share
                console.print(_text(f"{what}: {done} of {total}"))

        yield line
        return
    with Progress(console=console) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape(printable(what)), total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield tell


@contextmanager
def steps(what: str) -> Iterator[Callable[[str], None]]:
    """Shows on stderr what is being done now; yields a callable to be told each step in words."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: console.print(_text(f"{what}: {step}"))
        return
    with console.status(_text(what)) as status:

        def tell(step: str) -> None:
            console.print(_text(f"{what}: {step}"))
            status.update(_text(f"{what}: {step}"))

        yield tell


class RoundProgress:
    """How far training is, told as lines: to be called after each round, and `within` a long one.

    Args:
        what: What is being done.
        rounds: How many there are.
        listed: As of `progress`.
        metric: What is measured.
    """

    def __init__(self, what: str, rounds: int, *, listed: bool, metric: str = "accuracy") -> None:
        self._what, self._rounds, self._listed, self._metric = what, rounds, listed, metric
        self._console = Console(stderr=True)
        self._begun = self._told = time.monotonic()

    def __call__(self, done: int, accuracies: Sequence[Any]) -> None:
        """Tells that a round is done, and the accuracies of everything in training."""
        if self._listed and self._silent_for() < QUIET_FOR:
            return
        self._tell(f"round {done} of {self._rounds}, {self._metric} {_mean(accuracies):.3f}")

    def within(self, done: float) -> None:
        """Tells how many rounds are done, parts of one included, where no line was told for a while."""
        if self._silent_for() < QUIET_FOR or not 0 < done < self._rounds:
            return
        left = (time.monotonic() - self._begun) * (self._rounds - done) / done
        share = f"{math.floor(100 * (done % 1))}% of it done"
        self._tell(f"round {int(done) + 1} of {self._rounds}, {share}, about {_duration(left)} left")

    def _silent_for(self) -> float:
        return time.monotonic() - self._told

    def _tell(self, text: str) -> None:
        self._told = time.monotonic()
        self._console.print(_text(f"{self._what}: {text}"))


class _RoundBar(RoundProgress):
    """The same as a bar, where someone is watching."""

    def __init__(self, what: str, rounds: int, bar: Progress) -> None:
        super().__init__(what, rounds, listed=False)
        self._bar, self._job = bar, bar.add_task(escape(printable(what)), total=rounds, accuracy="-", shown="0")

    def __call__(self, done: int, accuracies: Sequence[Any]) -> None:
        self._bar.update(self._job, completed=done, accuracy=f"{_mean(accuracies):.3f}", shown=str(done))

    def within(self, done: float) -> None:
        self._bar.update(self._job, completed=done, shown=f"{done:.2f}")


@contextmanager
def progress(what: str, rounds: int, *, listed: bool = False, metric: str = "accuracy") -> Iterator[RoundProgress]:
    """Shows on stderr how far training is: a bar where someone is watching, else one line a round.

    Args:
        what: What is being done.
        rounds: How many there are.
        listed: Whether the result lists the rounds. Then, where nobody is watching, a round is told only once
            `QUIET_FOR` seconds have passed without a line, so that a log of both streams has each round once.
        metric: What is measured after a round, in words.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield RoundProgress(what, rounds, listed=listed, metric=metric)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[shown]}/{task.total}"))
    with Progress(
        *columns,
        TextColumn(f"{escape(printable(metric))} {{task.fields[accuracy]}}"),
        TimeRemainingColumn(),
        console=console,
    ) as bar:
        yield _RoundBar(what, rounds, bar)


def _screen_width() -> int:
    return max(Console().width, _NARROWEST)


def _widths(columns: Sequence[Column], headings: Sequence[Text], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Returns how wide each column is: headings and texts take more lines where the screen is narrow, figures never."""
    widest = [max((row[index].cell_len for row in cells), default=0) for index in range(len(columns))]
    words = [max(map(cell_len, heading.plain.split()), default=0) for heading in headings]
    widths = [
        max([wide, *map(cell_len, heading.plain.split("\n"))]) for heading, wide in zip(headings, widest, strict=True)
    ]
    room = _screen_width() - _GAP * len(columns) + 1
    for shortest in _NAME_WIDTHS:
        least = [
            max(word, wide if column.figures else min(wide, shortest))
            for column, word, wide in zip(columns, words, widest, strict=True)
        ]
        while sum(widths) > room and (wider := [k for k, width in enumerate(widths) if width > least[k]]):
            widths[max(wider, key=lambda k: widths[k])] -= 1
    return widths


def _mean(accuracies: Sequence[Any]) -> float:
    return sum(float(found.mean()) for found in accuracies) / len(accuracies)


def _duration(seconds: float) -> str:
    """Returns a time to wait in words, rounded up."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds > length:
            return f"{math.ceil(10 * seconds / length) / 10:g} {unit}"
    return f"{math.ceil(seconds)} s"


def tell_at_once(note: str) -> None:
    """Writes to stderr, in one line, what should be known before long work is done."""
    Console(stderr=True).print(_text(note), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    """A text as it is read: no order to the terminal in it, and no markup."""
    return Text(printable(text), style=style)


def _cell(value: Any, epsilon: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return figure(display_epsilon(value) if epsilon else value)
    return str(value)


def _csv(result: Result) -> str:
    fields = list(result.fields or (result.rows[0] if result.rows else ()))
    for row in result.rows:
        if not row.keys() <= set(fields):
            raise ValueError(f"a row has {listing(row)}, and the columns are {listing(fields)}")
    text = csv_text([fields, *([row.get(field) for field in fields] for row in result.rows)])
    return _ORDERS.sub(lambda order: order[0].encode("unicode_escape").decode(), text)


def _finite(data: Any) -> Any:
    """Returns the data with infinities as None: JSON has no word for them, and null is no guarantee."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data
