"""The schedule of a federation: the rounds in which each silo takes part, from a file or a mapping.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": {"lille": 120, "metz": 80}})
>>> with_schedule(federation, {"lille": "1-", "metz": "1-3 7-/2"}).stays
(((1, 0, 1),), ((1, 3, 1), (7, 0, 2)))

A text of rounds has parts with spaces between them: 4 is a round, 4-9 is a stay, 4- lasts to the end of the plan, and
4-/3 is every third round from round 4 on. A file is a table with the columns silo and rounds, and perhaps region; a
silo may have several rows.
"""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from fulcrum.core.choices import MOST_ROUNDS
from fulcrum.core.messages.membership import regions_of
from fulcrum.core.rosters import Rosters, Stay
from fulcrum.core.topology import Topology
from fulcrum.errors import FederationError, suggestion
from fulcrum.regular_files import regular_file

_PART = re.compile(r"([0-9]{1,9})(?:(-)([0-9]{1,9})?(?:/([0-9]{1,9}))?)?")
_MOST_BYTES = 100_000_000
_COLUMNS = ({"silo", "rounds"}, {"silo", "region", "rounds"})


def with_schedule(federation: Topology, schedule: str | Path | Mapping[str, str]) -> Topology:
    """Returns the federation with the rounds of every silo.

    Args:
        federation: The federation; a table with the columns from, until or every has a schedule already.
        schedule: A file, or by silo the text of its rounds.

    Raises:
        FederationError: A silo is unknown, in another region, or without rounds; a text is no list of rounds; the
            federation has a schedule already.
    """
    if federation.stays is not None or federation.rosters is not None:
        raise FederationError("schedule.twice", federation=federation.name)
    names: list[str] = federation.silo_names.tolist()
    file, rows = _rows(schedule)
    stays: dict[str, list[Stay]] = {}
    regions = regions_of(federation)
    for place, silo, region, text in rows:
        if silo not in regions:
            raise FederationError("schedule.silo-unknown", place=place, silo=silo, suggestion=suggestion(silo, names))
        if region not in ("", regions[silo]):
            raise FederationError(
                "schedule.region-differs", place=place, silo=silo, region=region, expected=regions[silo]
            )
        for stay in parsed_rounds(text, place):
            before = stays.setdefault(silo, [])
            if before and (before[-1][1] == 0 or stay[0] <= before[-1][1]):
                raise FederationError("schedule.stays-overlap", place=place, silo=silo, first=stay[0])
            before.append(stay)
    missing = next((silo for silo in names if silo not in stays), None)
    if missing is not None:
        raise FederationError("schedule.silo-unlisted", place=file, silo=missing)
    return replace(federation, stays=tuple(tuple(stays[silo]) for silo in names))


def parsed_rounds(text: str, place: str) -> list[Stay]:
    """Returns the stays of a text of rounds.

    >>> parsed_rounds("3 5-8 10-/4", "schedule.csv line 2")
    [(3, 3, 1), (5, 8, 1), (10, 0, 4)]
    """
    parts = [(part, _PART.fullmatch(part)) for part in text.split()]
    if not parts:
        raise FederationError("schedule.rounds-missing", place=place)
    stays = []
    for part, match in parts:
        if match is None:
            raise FederationError("schedule.rounds-malformed", place=place, text=part[:40])
        first, every = int(match[1]), int(match[4] or 1)
        last = int(match[3]) if match[3] else 0 if match[2] else first
        if not (first >= 1 and (match[3] is None or first <= last) and every >= 1 and max(first, last) <= MOST_ROUNDS):
            raise FederationError("schedule.rounds-order", place=place, text=part)
        stays.append((first, last, every))
    return stays


def _rows(schedule: str | Path | Mapping[str, str]) -> tuple[str, list[tuple[str, str, str, str]]]:
    """Returns the name of a schedule, and its rows: place, silo, region or "", and rounds."""
    if isinstance(schedule, Mapping):
        return "the schedule", [(f"silo {silo!r}", str(silo), "", str(text)) for silo, text in schedule.items()]
    path = Path(schedule)
    file = path.name or str(path)
    file = file if file.isprintable() else repr(file)
    try:
        with regular_file(path).open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise FederationError("file.unreadable", file=file, reason=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise FederationError("schedule.not-text", file=file) from None
    if len(data) > _MOST_BYTES:
        raise FederationError("schedule.file-too-large", file=file, most=_MOST_BYTES)
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise FederationError("schedule.not-table", file=file, reason=str(error)) from None
    header = [cell.strip().lower() for cell in table[0]] if table else []
    if set(header) not in _COLUMNS or len(set(header)) != len(header):
        raise FederationError("schedule.header", file=file, header=", ".join(header)[:100])
    rows = []
    for line, cells in enumerate(table[1:], 2):
        if not any(map(str.strip, cells)):
            continue
        place = f"{file} line {line}"
        if len(cells) != len(header):
            raise FederationError("schedule.cells", place=place, cells=len(cells), columns=len(header))
        row = dict(zip(header, map(str.strip, cells), strict=True))
        rows.append((place, row["silo"], row.get("region", ""), row["rounds"]))
    return file, rows


def stays_by_silo(rosters: Rosters) -> list[list[Stay]]:
    """Returns by silo the stays: all rounds with one step between them, or one stay for each run of rounds.

    >>> stays_by_silo(Rosters.of_stays([[(1, 8, 1)], [(1, 7, 3)], [(1, 3, 1), (7, 8, 1)]], 8))
    [[(1, 8, 1)], [(1, 7, 3)], [(1, 3, 1), (7, 8, 1)]]
    """
    listed: dict[bytes, list[Stay]] = {}
    columns = np.ascontiguousarray(np.packbits(rosters.present.T, axis=1))
    result = []
    for column, present in zip(columns, rosters.present.T, strict=True):
        key = column.tobytes()
        if key not in listed:
            listed[key] = _stays_of((np.flatnonzero(present[rosters.phase_of_round]) + 1).tolist())
        result.append(listed[key])
    return result


def _stays_of(rounds: list[int]) -> list[Stay]:
    steps = {later - earlier for earlier, later in pairwise(rounds)}
    if len(steps) <= 1:
        return [(rounds[0], rounds[-1], max(steps, default=1))]
    there = set(rounds)
    starts = [number for number in rounds if number - 1 not in there]
    ends = [number for number in rounds if number + 1 not in there]
    return [(first, last, 1) for first, last in zip(starts, ends, strict=True)]
