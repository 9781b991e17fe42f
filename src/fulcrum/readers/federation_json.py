"""A federation as JSON for the page, which holds the JSON and sends it back: the digest stays the same.

>>> from fulcrum.readers.profiles import profile
>>> federation = profile("severe")
>>> sent = msgspec.json.encode(roster_of(federation))
>>> federation_of(msgspec.json.decode(sent, type=Roster)).digest == federation.digest
True
"""

import math

import msgspec
import numpy as np

from fulcrum.core.topology import Topology, tier_name_problem
from fulcrum.errors import FederationError
from fulcrum.readers.federation import Federation
from fulcrum.readers.silo_table import Labels, Silos
from fulcrum.readers.spreadsheets.column_names import MOST_COLUMNS


class Place(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A tier or group: the nodes, and by silo the index of the silo's node."""

    name: str
    nodes: list[str]
    codes: list[int]


class Roster(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A federation in columns; `tiers` are in the order inner to outer, `epsilon` are declared preferences.

    Without `records` sizes are not declared; `weight` has the declared weights of silos, if any.
    """

    name: str
    silos: list[str]
    tiers: list[Place]
    records: list[float] | None = None
    epsilon: list[float | None] | None = None
    group: Place | None = None
    weight: list[float] | None = None


def roster_of(federation: Topology) -> Roster:
    """Returns a federation in columns; refuses the rounds of silos, which the columns do not carry."""
    if federation.stays is not None or federation.rosters is not None:
        raise FederationError("schedule.not-in-columns", federation=federation.name)
    declared, group, weight = federation.preferences, federation.group, federation.declared_weights
    sizes = federation.sizes.tolist() if federation.sizes_known else None
    return Roster(
        name=federation.name,
        silos=federation.silo_names.tolist(),
        records=None if sizes is None else [int(size) if size.is_integer() else size for size in sizes],
        tiers=[
            Place(name=tier.name, nodes=list(tier.nodes), codes=federation.membership(tier.name).tolist())
            for tier in federation.tiers
        ],
        epsilon=None if declared is None else [None if math.isnan(value) else value for value in declared.tolist()],
        group=None if group is None else Place(name="group", nodes=list(group.nodes), codes=group.parent_of.tolist()),
        weight=None if weight is None else weight.tolist(),
    )


def federation_of(roster: Roster) -> Federation:
    """Returns the federation of a roster, after the checks for every table of silos.

    Raises:
        FederationError: The columns of the roster do not fit each other, or break a rule for tables.
    """
    count = len(roster.silos)
    if not (roster.name and roster.name.isprintable() and len(roster.name) <= 200):
        raise FederationError("federation.name-unprintable")
    if any(column is not None and len(column) != count for column in (roster.records, roster.epsilon, roster.weight)):
        raise FederationError("federation.columns-unequal", silos=count)
    if len(roster.tiers) > MOST_COLUMNS:
        raise FederationError("federation.tiers-too-many", tiers=len(roster.tiers), most=MOST_COLUMNS)
    labels: dict[str, Labels] = {}
    for tier in (*roster.tiers, *((roster.group,) if roster.group else ())):
        is_group = tier is roster.group
        problem = "" if is_group else tier_name_problem(tier.name)
        if problem:
            raise FederationError("federation.tier-name", reason=problem)
        if tier.name in labels or (is_group and tier.name != "group"):
            raise FederationError("federation.tier-repeated", tier=tier.name)
        labels[tier.name] = _codes(tier, count), tier.nodes
    silos = Silos(list(labels), lambda row: f"silo {roster.silos[row]!r}", count, fractions=True)
    if count:
        epsilon = None if roster.epsilon is None else np.array([math.nan if e is None else e for e in roster.epsilon])
        records = None if roster.records is None else np.array(roster.records, dtype=np.float64)
        weight = None if roster.weight is None else np.array(roster.weight, dtype=np.float64)
        silos.add(roster.silos, records, labels, epsilon, weight)
    return silos.federation(roster.name, roster.name)


def _codes(tier: Place, count: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Returns the node of every silo, after a check that every index is valid and that no node is repeated."""
    try:
        codes = np.array(tier.codes, dtype=np.intp)
    except OverflowError:
        codes = np.full(count, -1)
    if len(codes) != count or not ((codes >= 0) & (codes < len(tier.nodes))).all():
        raise FederationError("federation.nodes-range", tier=tier.name, silos=count)
    if len(set(tier.nodes)) != len(tier.nodes):
        raise FederationError("federation.node-repeated", tier=tier.name)
    return codes
