"""A federation from a user's regions or columns: the topology, with the place of every mistake.

>>> federation = Federation.from_sizes({"north": [120, 80], "south": [300]})
>>> federation.weights.tolist()
[0.24, 0.16, 0.6]

`fulcrum.core.topology` has the part of a federation that silos need; no silo imports `fulcrum.readers`.
"""

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from fulcrum.arrays import FloatArray, NameArray
from fulcrum.core.rosters import Stay
from fulcrum.core.topology import BATCH, Tier, Topology, name_problem, tier_name_problem
from fulcrum.errors import FederationError, OverlapError, listing, suggestion


class Federation(Topology):
    """Silos, sizes, and the tree of aggregation, made from regions or from the columns of a table."""

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for tier in self.tiers:  # more strictly than a plan file of an earlier version
            if problem := tier_name_problem(tier.name):
                raise FederationError("federation.tier-name", reason=problem)

    def __getattr__(self, name: str) -> Any:
        """Answers the earlier name of `with_weights`, with a warning."""
        if name != "weighted":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn("Federation.weighted goes with version 0.3. Use with_weights", DeprecationWarning, stacklevel=2)
        return self.with_weights

    @classmethod
    def from_sizes(
        cls,
        regions: Mapping[str, Sequence[float] | Mapping[str, float]],
        *,
        outer: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
        name: str = "federation",
    ) -> Self:
        """Returns the federation of `regions`.

        Args:
            regions: By region the sizes of silos, as a list or as a mapping from silo name to size.
            outer: By outer tier, inner to outer, the nodes and the names of their children.
            name: For messages and file names.

        >>> nested = Federation.from_sizes(
        ...     {"north": {"lille": 120, "metz": 80}, "south": [300], "east": [90]},
        ...     outer={"country": {"france": ["north", "south"], "poland": ["east"]}},
        ... )
        >>> nested.silo_names.tolist()
        ['lille', 'metz', 'south-1', 'east-1']
        >>> nested.membership("country").tolist()
        [0, 0, 0, 1]
        """
        names: list[str] = []
        sizes: list[float] = []
        labels: list[str] = []
        for region, members in regions.items():
            if not isinstance(region, str) or not isinstance(members, (Mapping, Sequence, np.ndarray)):
                raise FederationError("federation.regions-type", region=region, members=members)
            named = members if isinstance(members, Mapping) else {f"{region}-{k}": s for k, s in enumerate(members, 1)}
            names += named
            sizes += [_as_size(size, silo) for silo, size in named.items()]
            labels += [region] * len(named)
        columns: dict[str, Sequence[str]] = {"region": labels}
        children: Sequence[str] = labels
        for tier, nodes in (outer or {}).items():
            above = _parents(tier, nodes, set(children))
            columns[tier] = children = [above[child] for child in children]
        return cls.from_columns(silo=names, records=np.array(sizes, float), tiers=columns, name=name)

    @classmethod
    def from_columns(
        cls,
        *,
        silo: Sequence[str] | NameArray | None,
        records: FloatArray | None,
        tiers: Mapping[str, Sequence[str] | Tier],
        epsilon: FloatArray | None = None,
        group: Sequence[str] | Tier | None = None,
        weight: FloatArray | None = None,
        site: Sequence[str] | None = None,
        stays: tuple[tuple[Stay, ...], ...] | None = None,
        name: str = "federation",
        locate: Callable[[int], str] = lambda row: f"row {row + 1}",
    ) -> Self:
        """Returns the federation of a table with a row for every silo: the way in for every file format.

        Args:
            silo: The names of the silos; None gives the names silo-1, silo-2 and so on.
            records: The sizes of the silos; None if not declared.
            tiers: By tier name, inner to outer, the node of every silo.
            epsilon: Declared preferences, NaN for silos without a preference.
            group: The organisational group of every silo.
            weight: The weight of every silo, in any unit.
            site: The technical name of every silo's site on an engine, "" for the transliterated name.
            stays: The rounds of every silo; None if all silos take part in all rounds.
            name: For messages and file names.
            locate: Returns the place of a row for messages: "silos.csv line 17".
        """
        if not tiers:
            raise FederationError("federation.tier-missing", name=name)
        names = None if silo is None else _checked_names(silo, locate)
        if names is not None:
            duplicate = _first_duplicate(names)
            if duplicate is not None:
                _refuse_duplicate(names, duplicate, tiers, locate)
        if epsilon is not None:
            epsilon = np.array(epsilon, dtype=np.float64)
            bad = ~(np.isnan(epsilon) | ((epsilon > 0) & np.isfinite(epsilon)))
            if bad.any():
                row = int(np.argmax(bad))
                raise FederationError("federation.epsilon-range", place=locate(row), epsilon=epsilon[row])
        levels: list[Tier] = []
        for tier_name, labels in tiers.items():
            tier = _in_order(labels) if isinstance(labels, Tier) else Tier.from_labels(tier_name, labels)
            levels.append(_nest(tier, levels, locate))
        if group is not None:
            labelled = _in_order(group) if isinstance(group, Tier) else Tier.from_labels("group", group)
            group = _nest(labelled, [], locate)
        silos = len(levels[0].parent_of)
        return cls(
            name=name,
            sizes=np.ones(silos) if records is None else np.array(records, dtype=np.float64),
            tiers=tuple(levels),
            preferences=epsilon,
            group=group,
            declared_names=names,
            sizes_known=records is not None,
            declared_weights=None if weight is None else np.array(weight, dtype=np.float64),
            declared_sites=np.array(site, dtype=np.dtypes.StringDType()) if site and any(site) else None,
            stays=stays,
        )


def _parents(tier: str, nodes: Mapping[str, Sequence[str]], children: set[str]) -> dict[str, str]:
    """Returns the node of every child, after a check that every child has exactly one node."""
    above: dict[str, str] = {}
    for node, members in nodes.items():
        for child in members:
            if child not in children:
                raise FederationError(
                    "federation.child-unknown",
                    tier=tier,
                    node=node,
                    child=child,
                    suggestion=suggestion(child, children),
                )
            if above.setdefault(child, node) != node:
                raise FederationError(
                    "federation.child-repeated", child=child, tier=tier, first=above[child], second=node
                )
    for child in children - set(above):
        raise FederationError("federation.child-unplaced", child=child, tier=tier, nodes=listing(nodes))
    return above


def _as_size(size: Any, silo: str) -> float:
    try:
        return float(size)
    except (TypeError, ValueError):
        raise FederationError("federation.size-type", silo=silo, size=size) from None


def _checked_names(names: Sequence[str] | NameArray, locate: Callable[[int], str]) -> NameArray:
    for row, name in enumerate(names):
        if problem := name_problem(name):
            raise FederationError("federation.silo-name", place=locate(row), rule=problem, name=name)
    if isinstance(names, np.ndarray):
        return names
    return np.array(names, dtype=np.dtypes.StringDType())


def _first_duplicate(names: NameArray) -> tuple[int, int] | None:
    """Returns both rows of a repeated name, or None; compares hashes first, so that 10^8 names fit in memory."""
    hashes = np.fromiter(map(hash, names), np.int64, len(names))
    ordered = np.sort(hashes)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return None
    seen: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(hashes, repeated)).tolist():
        first = seen.setdefault(str(names[row]), row)
        if first != row:
            return first, row
    return None


def _refuse_duplicate(
    names: NameArray,
    rows: tuple[int, int],
    tiers: Mapping[str, Sequence[str] | Tier],
    locate: Callable[[int], str],
) -> None:
    first, second = rows
    tier_name, labels = next(iter(tiers.items()))
    here, there = (
        labels.nodes[labels.parent_of[row]] if isinstance(labels, Tier) else labels[row] for row in (second, first)
    )
    if here != there:
        raise OverlapError(
            "federation.silo-overlap", place=locate(second), silo=names[first], tier=tier_name, first=there, second=here
        )
    raise FederationError("federation.silo-repeated", place=locate(second), silo=names[first], first=locate(first))


def _in_order(tier: Tier) -> Tier:
    """Returns a tier with the nodes in the order of first silos, as in every file: digests depend on the order."""
    codes, seen = tier.parent_of, 0
    for start in range(0, len(codes), BATCH):
        piece = codes[start : start + BATCH]
        most = np.maximum.accumulate(np.append(seen - 1, piece))
        if (piece > most[:-1] + 1).any():
            break
        seen = int(most[-1]) + 1
    else:
        return tier
    first = np.full(len(tier.nodes), len(codes))
    first[codes[::-1]] = np.arange(len(codes))[
        ::-1
    ]  # NumPy keeps the last of several values: in reverse, that of the first silo
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Tier(name=tier.name, nodes=tuple(tier.nodes[node] for node in order), parent_of=place[codes])


def _nest(tier: Tier, below: list[Tier], locate: Callable[[int], str]) -> Tier:
    """Returns a tier by child from a tier by silo, after a check that no child has two parents."""
    for label in tier.nodes:
        if problem := name_problem(label):
            row = int(np.argmax(tier.parent_of == tier.nodes.index(label)))
            raise FederationError("federation.node-name", place=locate(row), tier=tier.name, rule=problem, name=label)
    if not below:
        return tier
    child = below[0].parent_of
    for level in below[1:]:
        child = level.parent_of[child]
    inner = below[-1]
    parent = np.empty(len(inner.nodes), dtype=np.intp)
    parent[child[::-1]] = tier.parent_of[
        ::-1
    ]  # reversed, so that the first row of a child decides: NumPy keeps the last value
    clash = parent[child] != tier.parent_of
    if clash.any():
        row = int(np.argmax(clash))
        node = child[row]
        raise FederationError(
            "federation.node-overlap",
            place=locate(row),
            inner=inner.name,
            node=inner.nodes[node],
            tier=tier.name,
            first=tier.nodes[parent[node]],
            second=tier.nodes[tier.parent_of[row]],
            option=shlex.quote(f"ignore={tier.name}"),
            alternative=_or_ignore(inner.name) if len(below) > 1 else "",
        )
    return Tier(name=tier.name, nodes=tier.nodes, parent_of=parent)


def _or_ignore(column: str) -> str:
    """Returns the words for a remedy: to leave a column out."""
    return f", or the column {column!r}: --column {shlex.quote(f'ignore={column}')}"
