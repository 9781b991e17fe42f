"""Results on stdout: as a table for people, as JSON, or as CSV.

A result is its data (for JSON), its rows (for CSV) and a picture (for people). The picture alone is cut to a screen's
length. Every text goes through `printable`.
"""

import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

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
from fulcrum.errors import listing
from fulcrum.rounding import display_epsilon
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import figure, printable

Format: TypeAlias = Literal["table", "json", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""The formats of a result: for people, or for programs."""

ROWS_SHOWN = 30
"""The most rows of a table on a screen."""

QUIET_FOR = 10.0
"""The most seconds without a line about long work, if no terminal is open and the result lists the rounds."""

# Characters that a terminal obeys: controls except tab and line feed, and marks that turn the direction of writing.
# `printable` would also escape blanks and joiners of foreign scripts, which programs that read CSV need unchanged.
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_NARROWEST = 60

_GAP = 3
"""Characters between two columns."""

_NAME_WIDTHS = (24, 12)
"""The least width of names: first while headings take more lines, and then so that figures fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a command.

    Attributes:
        data: The result for JSON: plain lists, mappings, strings and numbers.
        rows: The result for CSV.
        fields: The columns of the CSV, for a result that may have no rows.
        picture: The result for people, as tables and text for a terminal.
    """

    data: Any
    rows: Sequence[Mapping[str, Any]]
    fields: Sequence[str] = ()
    picture: Sequence[RenderableType] = field(default_factory=tuple)


def show(result: Result, style: str) -> None:
    """Prints a result to stdout in a format of `FORMATS`."""
    if style == "json":
        sys.stdout.write(printable_json(msgspec.json.format(json_of_data(result.data), indent=1)) + "\n")
    elif style == "csv":
        sys.stdout.write(_csv(result))
    else:
        console = Console(highlight=False, soft_wrap=False)
        console.width = _screen_width()
        console.print(Group(*result.picture), crop=False)  # a table that is too wide is wrapped by the terminal


def json_of_data(data: Any) -> bytes:
    r"""Returns data as JSON, whatever the data holds: a NumPy scalar, a path or an own type is its text.

    >>> json_of_data({"file": "\udcff.json", "epsilon": math.inf})
    b'{"file":"\\\\udcff.json","epsilon":null}'
    """
    return msgspec.json.encode(_encodable(data), enc_hook=lambda value: _encodable(str(value)))


def printable_json(encoded: bytes) -> str:
    r"""Returns JSON with escapes for all characters that a terminal may obey; JSON itself escapes few of these.

    >>> print(printable_json('"\u202e é"'.encode()))
    "\u202e é"
    """
    return re.sub(
        r"[^\n -~]",
        lambda match: match[0] if match[0].isprintable() else json.dumps(match[0])[1:-1],
        encoded.decode(),
    )


def table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    note: str = "",
    total: int | None = None,
    elsewhere: str = "--format csv lists all of them",
) -> RenderableType:
    """Returns the picture of a table, cut to `ROWS_SHOWN` rows.

    Args:
        title: The title.
        columns: The columns.
        rows: The rows, or the first rows.
        note: A line below the table.
        total: The number of all rows; by default the number of given rows.
        elsewhere: A hint at the rows that were cut.
    """
    cells = [
        [_text(_printable_cell(row.get(column.key), column.epsilon)) for column in columns] for row in rows[:ROWS_SHOWN]
    ]
    headings = [Text("\n".join(map(printable, column.heading.split("\n")))) for column in columns]
    widths = _widths(columns, headings, cells)
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=sum(widths) + _GAP * len(widths) - 1)
    for column, heading, width in zip(columns, headings, widths, strict=True):
        drawn.add_column(heading, justify="right" if column.figures else "left", overflow="fold", width=width)
    for row in cells:
        drawn.add_row(*map(_broken_at_hyphens, row, widths))
    left = (len(rows) if total is None else total) - ROWS_SHOWN
    if left > 0:
        note = f"{left:,} more not shown; {elsewhere}.{' ' + note if note else ''}"
    below = [Padding(_text(note, style="dim"), (0, 0, 1, 0))] if note else []
    return Group(_text(title, style="bold"), drawn, *below)


def facts(pairs: Sequence[tuple[str, str]]) -> RenderableType:
    """Returns two columns for the terminal: the name of a fact, and the number or text beside the name."""
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="dim")
    drawn.add_column(overflow="fold")  # a long address or path is copied by people, so none is cut
    for name, value in pairs:
        drawn.add_row(_text(name), _text(value))
    return Padding(drawn, (0, 0, 1, 0))


def remarks(lines: Sequence[tuple[bool, str]]) -> RenderableType:
    """Returns the picture of remarks; True marks a warning. Without remarks nothing is drawn."""
    if not lines:
        return Group()
    drawn = Table.grid(padding=(0, 1))
    drawn.add_column()
    drawn.add_column(overflow="fold")
    for warning, text in lines:
        drawn.add_row(Text("!", style="bold yellow") if warning else Text("·", style="dim"), _text(text))
    return Padding(drawn, (0, 0, 1, 0))


def listing_below(heading: str, lines: Sequence[str]) -> RenderableType:
    """Returns the picture of a numbered list below its heading."""
    drawn = Table.grid(padding=(0, 1))
    for number, text in enumerate(lines, start=1):
        drawn.add_row(Text(f"{number}.", style="dim"), _text(text))
    return Padding(Group(Text(heading, style="bold"), drawn), (0, 0, 1, 0))


@contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on stderr that work is under way, if stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(_text(what)):
        yield


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows progress on stderr; yields a callable that takes the numbers of finished and of all parts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: console.print(_text(f"{what}: {done} of {total}"))
        return
    with Progress(console=console) as bar:
        job = bar.add_task(escape(printable(what)), total=None)
        yield lambda done, total: bar.update(job, completed=done, total=total)


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Shows the progress of every phase on stderr: a bar in a terminal, otherwise at most twenty lines.

    Yields a callable that takes the phase, and the numbers of finished and of all parts.
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
    """Shows the current step on stderr; yields a callable that takes a step in words."""
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
    """The progress of training as lines: call the object after every round, and `within` during a long round.

    Args:
        what: The work in words.
        rounds: The number of rounds.
        listed: As for `progress`.
        metric: The name of the metric.
    """

    def __init__(self, what: str, rounds: int, *, listed: bool, metric: str = "accuracy") -> None:
        self._what, self._rounds, self._listed, self._metric = what, rounds, listed, metric
        self._console = Console(stderr=True)
        self._begun = self._told = time.monotonic()

    def __call__(self, done: int, accuracies: Sequence[Any]) -> None:
        """Writes a line about a finished round, with the accuracies of all models in training."""
        if self._listed and self._silent_for() < QUIET_FOR:
            return
        self._tell(f"round {done} of {self._rounds}, {self._metric} {_mean(accuracies):.3f}")

    def within(self, done: float) -> None:
        """Writes a line about a part of a round, after `QUIET_FOR` seconds without a line."""
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
    """The progress of training as a bar in a terminal."""

    def __init__(self, what: str, rounds: int, bar: Progress) -> None:
        super().__init__(what, rounds, listed=False)
        self._bar, self._job = bar, bar.add_task(escape(printable(what)), total=rounds, accuracy="-", shown="0")

    def __call__(self, done: int, accuracies: Sequence[Any]) -> None:
        self._bar.update(self._job, completed=done, accuracy=f"{_mean(accuracies):.3f}", shown=str(done))

    def within(self, done: float) -> None:
        self._bar.update(self._job, completed=done, shown=f"{done:.2f}")


@contextmanager
def progress(what: str, rounds: int, *, listed: bool = False, metric: str = "accuracy") -> Iterator[RoundProgress]:
    """Shows the progress of training on stderr: a bar in a terminal, otherwise a line for every round.

    Args:
        what: The work in words.
        rounds: The number of rounds.
        listed: True for a result that lists the rounds. Without a terminal a line about a round then comes only after
            `QUIET_FOR` seconds without a line, so that a log of both streams has every round once.
        metric: The name of the metric.
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


_WORDS = re.compile(r"\s+")
_PARTS = re.compile(r"\s+|(?<=[^\W\d_]{2}-)(?=[^\W\d_])")  # after hyphens too, where `textwrap` breaks


def _widths(columns: Sequence[Column], headings: Sequence[Text], cells: Sequence[Sequence[Text]]) -> list[int]:
    """Returns the widths of columns: on a narrow screen headings and texts take more lines, figures never."""
    widest = [max((row[index].cell_len for row in cells), default=0) for index in range(len(columns))]
    words = [max(map(cell_len, heading.plain.split()), default=0) for heading in headings]
    widths = [
        max([wide, *map(cell_len, heading.plain.split("\n"))]) for heading, wide in zip(headings, widest, strict=True)
    ]
    whole, parts = (_longest_parts(cells, len(columns), between) for between in (_WORDS, _PARTS))
    room = _screen_width() - _GAP * len(columns) + 1
    # Lines break between words first, then after the hyphens of a long name, and inside the name at last.
    for shortest in (whole, parts, *([width] * len(columns) for width in _NAME_WIDTHS)):
        least = [
            max(word, wide if column.figures else min(wide, short))
            for column, word, wide, short in zip(columns, words, widest, shortest, strict=True)
        ]
        while sum(widths) > room and (wider := [k for k, width in enumerate(widths) if width > least[k]]):
            widths[max(wider, key=lambda k: widths[k])] -= 1
    return widths


def _longest_parts(cells: Sequence[Sequence[Text]], count: int, between: re.Pattern[str]) -> list[int]:
    """Returns by column the width of the longest part of a cell that has no place to break."""
    return [
        max((cell_len(part) for row in cells for part in between.split(row[index].plain)), default=0)
        for index in range(count)
    ]


def _broken_at_hyphens(cell: Text, width: int) -> Text:
    """Returns a cell that breaks a long name, such as Baden-Württemberg, after a hyphen where there is one."""
    text = cell.plain
    if cell_len(text) <= width or "-" not in text or cell_len(text) > len(text):  # some letters take two columns
        return cell
    return Text("\n".join(textwrap.wrap(text, width)), style=cell.style)


def _mean(accuracies: Sequence[Any]) -> float:
    return sum(float(accuracy.mean()) for accuracy in accuracies) / len(accuracies)


def _duration(seconds: float) -> str:
    """Returns a time to wait in words, rounded up."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds > length:
            return f"{math.ceil(10 * seconds / length) / 10:g} {unit}"
    return f"{math.ceil(seconds)} s"


def tell_at_once(note: str) -> None:
    """Writes a note to stderr at once, before long work begins."""
    Console(stderr=True).print(_text(note), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    """Returns a text without markup and without characters that a terminal obeys."""
    return Text(printable(text), style=style)


def _printable_cell(value: Any, epsilon: bool) -> str:
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


def _encodable(data: Any) -> Any:
    """Returns the data with None for infinities: JSON has no infinity, and null means no guarantee.

    Bytes of a file's name that are no UTF-8, which JSON has no place for either, are written out.
    """
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _encodable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_encodable(value) for value in data]
    return data
