"""A federation as a CSV file that is read back as the same federation: also the clean copy of a messy spreadsheet."""

from typing import Any

from fulcrum.core.topology import Topology
from fulcrum.csv_text import csv_text
from fulcrum.errors import FederationError
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import reading_of_bytes
from fulcrum.readers.silo_table import checked_header


def federation_csv(federation: Topology) -> str:
    """Returns a federation as CSV, with a line for every silo.

    >>> from fulcrum.readers.federation import Federation
    >>> print(federation_csv(Federation.from_sizes({"north": [120, 80], "south": [300]})).splitlines()[:3])
    ['silo,records,region', 'north-1,120,north', 'north-2,80,north']

    Raises:
        FederationError: The CSV would be read back as a different federation, or refused: records are fractions, the
            innermost tier is not called "region", or a name has a meaning of its own in a table.
    """
    roster = roster_of(federation)
    places = [*roster.tiers, *([roster.group] if roster.group else [])]
    columns: dict[str, list[Any]] = {"silo": roster.silos}
    columns |= {} if roster.records is None else {"records": roster.records}
    columns |= {place.name: [place.nodes[code] for code in place.codes] for place in places}
    if roster.epsilon is not None:
        columns["epsilon"] = roster.epsilon  # None, for a silo without a preference, becomes an empty cell
    columns |= {} if roster.weight is None else {"weight": roster.weight}
    columns |= {} if federation.declared_sites is None else {"site": federation.declared_sites.tolist()}
    try:
        checked_header(list(columns), "its header")
    except FederationError as error:
        raise FederationError.at(f"{federation.name} cannot be written as CSV", error) from None
    table = csv_text([columns, *zip(*columns.values(), strict=True)])
    _check_back(table, federation)
    return table


def _check_back(table: str, federation: Topology) -> None:
    """Raises `FederationError` unless the CSV is read back with the same digest."""
    try:
        copy = reading_of_bytes(table.encode(), "table.csv").federation
    except FederationError as error:
        raise FederationError.at(f"{federation.name} cannot be written as CSV", error) from None
    if copy.digest != federation.digest:
        raise FederationError("federation.csv-ambiguous", federation=federation.name)
