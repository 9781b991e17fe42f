"""Edits of a federation by hand, region by region: merge, split, add, remove, rename, resize.

>>> north = Federation.from_sizes({"north": [120, 80], "south": [300]})
>>> merge_regions(north, ["north", "south"]).innermost.nodes
('north + south',)
>>> split_region(north, "north").innermost.nodes
('north', 'north 2', 'south')

Every function returns a new federation. Outer tiers follow: a node without regions is removed.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.topology import Tier, Topology
from fulcrum.errors import FederationError, listing, suggestion
from fulcrum.readers.federation import Federation
from fulcrum.readers.schedule_file import stays_by_silo
from fulcrum.readers.silo_table import MOST_RECORDS

MOST_SILOS = 100_000
"""The largest number of silos of a federation edited by hand."""


def merge_regions(federation: Topology, regions: Sequence[str]) -> Federation:
    """Returns the federation with `regions` merged into a single region, in the place of the first region."""
    wanted = [_node(federation, region) for region in dict.fromkeys(regions)]
    if len(wanted) < 2:
        raise FederationError("federation.merge-too-few", tier=federation.innermost.name)
    first = wanted[0]
    nodes = list(federation.innermost.nodes)
    nodes[first] = _free_name(" + ".join(nodes[node] for node in wanted), nodes)
    codes = _by_silo(federation)
    in_merge = np.isin(codes[0], wanted)
    example = int(np.argmax(codes[0] == first))
    for tier in codes:
        tier[in_merge] = tier[example]
    return _rebuild(federation, codes=codes, regions=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A region whose silos a merge takes to a different node of an outer tier.

    Attributes:
        region: The name of the region.
        silos: The number of silos.
        tier: The outer tier.
        left: The node before the merge.
        joined: The node after the merge.
    """

    region: str
    silos: int
    tier: str
    left: str
    joined: str


def moves_of_merge(federation: Topology, regions: Sequence[str]) -> list[Move]:
    """Returns the moves of a merge: on every outer tier, regions follow the first region.

    >>> fed = Federation.from_sizes({"nrw": [9], "tirol": [5, 4]}, outer={"land": {"DE": ["nrw"], "AT": ["tirol"]}})
    >>> [(move.region, move.silos, move.left, move.joined) for move in moves_of_merge(fed, ["nrw", "tirol"])]
    [('tirol', 2, 'AT', 'DE')]
    """
    wanted = [_node(federation, region) for region in dict.fromkeys(regions)]
    codes, silos = _by_silo(federation), np.bincount(federation.innermost.parent_of)
    moves = []
    for level, tier in enumerate(federation.tiers[1:], 1):
        first, *outer_nodes = (int(codes[level][np.argmax(codes[0] == node)]) for node in wanted)
        for node, outer in zip(wanted[1:], outer_nodes, strict=True):
            if outer != first:
                name, joined = federation.innermost.nodes[node], tier.nodes[first]
                moves.append(
                    Move(region=name, silos=int(silos[node]), tier=tier.name, left=tier.nodes[outer], joined=joined)
                )
    return moves


def split_region(federation: Topology, region: str) -> Federation:
    """Returns the federation with the second half of a region's silos in a new region, beside the first half.

    Regions are in the order of first silos. The silos of both halves are therefore made neighbours in the table.
    """
    node = _node(federation, region)
    members = np.flatnonzero(federation.innermost.parent_of == node)
    if len(members) < 2:
        raise FederationError("federation.split-too-few", tier=federation.innermost.name, region=region)
    nodes = [*federation.innermost.nodes, _numbered_name(region, federation.innermost.nodes, first=2)]
    codes = _by_silo(federation)
    codes[0][members[(len(members) + 1) // 2 :]] = len(nodes) - 1
    others = np.delete(np.arange(len(federation)), members)
    together = np.insert(others, np.searchsorted(others, members[0]), members)
    return _rebuild(federation, codes=codes, regions=nodes, rows=together)


def remove_region(federation: Topology, region: str) -> Federation:
    """Returns the federation without a region and the region's silos."""
    rows = np.flatnonzero(federation.innermost.parent_of != _node(federation, region))
    if not len(rows):
        raise FederationError("federation.last-region", region=region, tier=federation.innermost.name)
    return _rebuild(federation, codes=_by_silo(federation), rows=rows)


def add_region(federation: Topology, *, silos: int = 5) -> Federation:
    """Returns the federation with a new region of silos of the mean size, under the first outer nodes."""
    inner = federation.innermost
    region = _numbered_name(inner.name, inner.nodes)
    codes = [
        np.append(
            tier, np.full(silos, 0 if level else len(inner.nodes))
        )  # node 0 of the tier above; further tiers below
        for level, tier in enumerate(_by_silo(federation))
    ]
    for level in range(2, len(codes)):
        codes[level][-silos:] = codes[level][int(np.argmax(codes[1] == 0))]
    size = _whole(float(federation.sizes.mean()))
    return _rebuild(federation, codes=codes, regions=[*inner.nodes, region], new=(region, silos, size))


def regroup_silos(federation: Topology, regions: Sequence[str]) -> Federation:
    """Returns the federation with the silos in other regions.

    A region that keeps its name keeps its outer nodes; a new region has the outer nodes of its first silo.

    >>> north = Federation.from_sizes({"north": [120, 80], "south": [300]})
    >>> regroup_silos(north, ["north", "south", "south"]).innermost.parent_of.tolist()
    [0, 1, 1]

    Args:
        federation: The federation.
        regions: By silo, the name of the region.
    """
    inner = federation.innermost
    tier = Tier.from_labels(inner.name, regions)
    codes = _by_silo(federation)
    first = {name: int(np.argmax(inner.parent_of == node)) for node, name in enumerate(inner.nodes)}
    example = np.array([first.get(name, int(np.argmax(tier.parent_of == k))) for k, name in enumerate(tier.nodes)])
    codes = [tier.parent_of, *(outer[example][tier.parent_of] for outer in codes[1:])]
    regrouped = _rebuild(federation, codes=codes, regions=tier.nodes)
    return replace(regrouped, declared_sites=federation.declared_sites)  # the silos keep their order


def rename_region(federation: Topology, region: str, name: str) -> Federation:
    """Returns the federation with a new name for a region."""
    node, nodes = _node(federation, region), list(federation.innermost.nodes)
    name = name.strip()
    if name != region and name in nodes:
        raise FederationError("federation.region-exists", tier=federation.innermost.name, name=name)
    nodes[node] = name
    return _rebuild(federation, codes=_by_silo(federation), regions=nodes)


def resize_region(federation: Topology, region: str, *, silos: int) -> Federation:
    """Returns the federation with `silos` silos in a region: the last silos go, or new silos of the mean size come."""
    node, inner = _node(federation, region), federation.innermost
    members = np.flatnonzero(inner.parent_of == node)
    if silos < 1:
        raise FederationError("federation.silos-too-few", tier=inner.name, region=region, silos=silos)
    if silos <= len(members):
        rows = np.delete(np.arange(len(federation)), members[silos:])
        return _rebuild(federation, codes=_by_silo(federation), rows=rows)
    more = silos - len(members)
    if len(federation) + more > MOST_SILOS:
        raise FederationError("federation.silos-too-many", tier=inner.name, region=region, silos=silos, most=MOST_SILOS)
    codes = [np.append(tier, np.full(more, tier[members[0]])) for tier in _by_silo(federation)]
    size = _whole(float(federation.sizes[members].mean()))
    return _rebuild(federation, codes=codes, new=(region, more, size))


def rescale_region(federation: Topology, region: str, *, mean: float) -> Federation:
    """Returns the federation with a mean of `mean` records a silo in a region; proportions stay, in whole records."""
    members = federation.innermost.parent_of == _node(federation, region)
    if not 1 <= mean <= MOST_RECORDS:
        raise FederationError(
            "federation.mean-range", tier=federation.innermost.name, region=region, mean=mean, most=MOST_RECORDS
        )
    if not federation.sizes_known:
        raise FederationError("federation.sizes-undeclared", name=federation.name)
    sizes = federation.sizes.copy()
    sizes[members] = np.clip(np.round(sizes[members] * (mean / sizes[members].mean())), 1, MOST_RECORDS)
    return _rebuild(federation, codes=_by_silo(federation), sizes=sizes)


def _node(federation: Topology, region: str) -> int:
    inner = federation.innermost
    if region not in inner.nodes:
        near = suggestion(region, inner.nodes)
        raise FederationError(
            "federation.region-unknown", tier=inner.name, region=region, known=listing(inner.nodes), suggestion=near
        )
    return inner.nodes.index(region)


def _by_silo(federation: Topology) -> list[IntArray]:
    """Returns by tier, inner to outer, the node of every silo."""
    return [federation.membership(tier.name).copy() for tier in federation.tiers]


def _rebuild(
    federation: Topology,
    *,
    codes: Sequence[IntArray],
    regions: Sequence[str] | None = None,
    sizes: FloatArray | None = None,
    rows: IntArray | None = None,
    new: tuple[str, int, float] | None = None,
) -> Federation:
    """Returns a federation by node of every silo: `new` silos of a region appended, then `rows` alone, in order."""
    names = federation.silo_names.tolist()
    sizes = federation.sizes if sizes is None else sizes
    epsilon, weight = federation.preferences, federation.declared_weights
    groups = None if federation.group is None else [federation.group.nodes[k] for k in federation.group.parent_of]
    if new is not None:
        region, more, size = new
        taken = set(names)
        fresh: list[str] = []
        for number in count(1):
            if len(fresh) == more:
                break
            if (name := f"{region}-{number}") not in taken:
                fresh.append(name)
        names += fresh
        sizes = np.append(sizes, np.full(more, size))
        epsilon = None if epsilon is None else np.append(epsilon, np.full(more, np.nan))
        groups = None if groups is None else groups + fresh
        weight = None if weight is None else np.append(weight, np.full(more, weight.mean()))
    stays = federation.stays
    if stays is None and federation.rosters is not None:
        stays = tuple(map(tuple, stays_by_silo(federation.rosters)))
    if stays is not None:
        stays = (*stays, *((((1, 0, 1),),) * (len(names) - len(stays))))
    rows = np.arange(len(names)) if rows is None else rows
    tiers = {}
    for level, tier in enumerate(federation.tiers):
        nodes = tier.nodes if level or regions is None else regions
        used, places = np.unique(codes[level][rows], return_inverse=True)
        tiers[tier.name] = Tier(name=tier.name, nodes=tuple(nodes[node] for node in used), parent_of=places)
    return Federation.from_columns(
        silo=[names[row] for row in rows],
        records=sizes[rows] if federation.sizes_known else None,
        tiers=tiers,
        epsilon=None if epsilon is None else epsilon[rows],
        group=None if groups is None else [groups[row] for row in rows],
        weight=None if weight is None else weight[rows],
        stays=None if stays is None else tuple(stays[row] for row in rows.tolist()),
        name=federation.name,
        locate=lambda row: f"silo {names[rows[row]]!r}",
    )


def _numbered_name(name: str, taken: Container[str], *, first: int = 1) -> str:
    """Returns the first free name among `name 2`, `name 3` and so on; the search begins after the number `first`."""
    return next(numbered for number in count(first) if (numbered := f"{name} {number}") not in taken)


def _free_name(name: str, taken: Container[str]) -> str:
    short = name if len(name) <= 60 else f"{name[:59]}…"
    return short if short not in taken else _numbered_name(short, taken, first=2)


def _whole(size: float) -> float:
    return max(1.0, float(round(size)))
