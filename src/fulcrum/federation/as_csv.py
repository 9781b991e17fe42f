"""A federation as the CSV file that `fulcrum plan` reads back the same."""

from typing import Any

from fulcrum.csv_text import csv_text
from fulcrum.errors import FederationError
from fulcrum.federation.as_json import roster_of
from fulcrum.federation.silo_table import checked_header
from fulcrum.federation.structure import Federation


def federation_csv(federation: Federation) -> str:
    """Returns a federation as CSV: a line for each silo.

    >>> print(federation_csv(Federation.from_sizes({"north": [120, 80.5], "south": [300]})).splitlines()[:3])
    ['silo,records,region', 'north-1,120,north', 'north-2,80.5,north']

    Raises:
        FederationError: No CSV file has such tiers: the innermost is not called "region".
    """
    roster = roster_of(federation)
    places = [*roster.tiers, *([roster.group] if roster.group else [])]
    columns: dict[str, list[Any]] = {"silo": roster.silos}
    columns |= {} if roster.records is None else {"records": roster.records}
    columns |= {place.name: [place.nodes[code] for code in place.codes] for place in places}
    if roster.epsilon is not None:
        columns["epsilon"] = roster.epsilon  # nothing is written where a silo declares none
    columns |= {} if roster.weight is None else {"weight": roster.weight}
    try:
        checked_header(list(columns), "its header")
    except FederationError as error:
        raise FederationError(f"{federation.name} cannot be written as CSV: {error}") from None
    return csv_text([columns, *zip(*columns.values(), strict=True)])
