"""The limits on regions that a design must keep: sizes, allowed regions, outer nodes, and the number of moved silos.

>>> from fulcrum.readers.profiles import profile
>>> room = Room(profile("consortium"), RegionLimits(most=10, least=2))
>>> room.first_violation(room.region_now)
"'country-1' has 30 silos, and at most 10 are allowed"

A slot is a place for a region: a region of today under its name, or a new region without a name. Silos and regions are
numbers in the order of the federation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fulcrum.arrays import BoolArray, IntArray
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError, check_known, listing, suggestion

MOST_COST = 1e6
"""The largest cost of an aggregator, as a multiple of today's noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLimits:
    """The limits on regions.

    Attributes:
        most: The most silos of a region; None for no limit.
        least: The fewest silos of a region.
        allowed: By silo, the regions that the silo may belong to; a silo without an entry keeps its region. None allows
            every region.
        within: The tier within whose nodes silos stay; by default the first tier above the regions, if there is any.
        move_at_most: The most silos that change their region; None for no limit.
        cost_of_aggregator: The cost of a region, as a share of the noise of today's regions.
    """

    most: int | None = None
    least: int = 1
    allowed: Mapping[str, Sequence[str]] | None = field(default=None, repr=False)
    within: str | None = None
    move_at_most: int | None = None
    cost_of_aggregator: float = 0.0

    def __post_init__(self) -> None:
        for name, value, smallest in (
            ("most", self.most, 1),
            ("least", self.least, 1),
            ("move_at_most", self.move_at_most, 0),
        ):
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if value is not None and not (whole and value >= smallest):
                raise ParameterError("number.whole-range", name=name, least=smallest, value=value)
        if self.most is not None and self.least > self.most:
            raise ParameterError("design.sizes-crossed", least=self.least, most=self.most)
        cost = self.cost_of_aggregator
        if isinstance(cost, bool) or not isinstance(cost, (int, float, np.number)) or not 0 <= cost <= MOST_COST:
            raise ParameterError("design.cost-range", most=MOST_COST, cost=cost)


class Room:
    """The choices that limits leave to the silos of a federation.

    Attributes:
        limits: The limits.
        region_now: By silo, the region of today.
        node_of: By silo, the node of the tier within whose nodes silos stay.
        names: The names of the slots with a name: the regions of today, then further regions of the allowed pairs.
        slot_node: By slot with a name, the node of the tier within whose nodes silos stay.
        permitted: By silo and slot with a name, True if the silo may belong to the slot; None if all combinations
            within a node are permitted.
    """

    def __init__(self, federation: Topology, limits: RegionLimits) -> None:
        inner = federation.innermost
        self.limits, self.silos = limits, len(federation)
        self.region_now: IntArray = inner.parent_of
        self.tier = self._tier(federation, limits.within)
        self.node_of: IntArray = np.zeros(self.silos, dtype=np.intp)
        self.node_names: tuple[str, ...] = (federation.name,)
        if self.tier is not None:
            self.node_of, self.node_names = federation.membership(self.tier), federation.tier(self.tier).nodes
        self.names: list[str] = list(inner.nodes)
        self.slot_node = np.zeros(len(inner.nodes), dtype=np.intp)
        self.slot_node[self.region_now] = self.node_of
        self.permitted = None if limits.allowed is None else self._read_pairs(federation, limits.allowed)
        if limits.most is None and limits.move_at_most is None and limits.allowed is None:
            raise ParameterError("design.limit-missing")

    @property
    def is_anonymous(self) -> bool:
        """True if names of regions limit nothing: no allowed pairs, and no limit on moves."""
        return self.permitted is None and self.limits.move_at_most is None

    @property
    def most(self) -> int:
        """The most silos of a region."""
        return self.silos if self.limits.most is None else min(self.limits.most, self.silos)

    def moves(self, region_of: IntArray) -> int:
        """Returns the number of silos in another slot than today."""
        return int((region_of != self.region_now).sum())

    def first_violation(self, region_of: IntArray) -> str:
        """Returns the first violated limit of regions in words, or an empty string; regions are slots with names."""
        counts = np.bincount(region_of)
        for slot in np.flatnonzero(counts).tolist():
            name = self.names[slot] if slot < len(self.names) else "a new region"
            if counts[slot] > self.most:
                return f"{name!r} has {counts[slot]} silos, and at most {self.most} are allowed"
            if counts[slot] < self.limits.least:
                return f"{name!r} has {counts[slot]} silos, and at least {self.limits.least} are asked"
        if self.permitted is not None:
            bad = ~self.permitted[np.arange(self.silos), region_of]
            if bad.any():
                return f"{int(bad.sum())} silos are in a region that their allowed pairs leave out"
        return ""

    def slots(self, least: int) -> tuple[IntArray, int]:
        """Returns by slot its node, and the number of slots with a name, which come first.

        Two regions whose silos fit into one region never need less noise than the one region. Some optimum therefore
        has, in every node, at most one region of at most half of the most silos, and the slots are enough.

        Args:
            least: The fewest silos of a region.
        """
        if self.permitted is not None:
            return self.slot_node, len(self.names)
        silos = np.bincount(self.node_of, minlength=len(self.node_names))
        new = np.minimum(silos // least, 2 * -(-silos // self.most) + 1)
        if self.limits.move_at_most is None:
            return np.repeat(np.arange(len(new)), new), 0
        new = np.minimum(new, self.limits.move_at_most // least)
        return np.append(self.slot_node, np.repeat(np.arange(len(new)), new)), len(self.names)

    def _tier(self, federation: Topology, within: str | None) -> str | None:
        names = [tier.name for tier in federation.tiers]
        if within is not None:
            check_known("tier", within, names)
            return within
        return names[1] if len(names) > 1 else None

    def _read_pairs(self, federation: Topology, allowed: Mapping[str, Sequence[str]]) -> BoolArray:
        """Returns by silo and slot the permission; names of regions that are new get slots of their own."""
        silos = {name: place for place, name in enumerate(federation.silo_names.tolist())}
        for silo in allowed:
            if silo not in silos:
                near = suggestion(str(silo), list(silos))
                raise ParameterError("design.allowed-silo-unknown", silo=silo, suggestion=near)
            if isinstance(allowed[silo], str) or not len(allowed[silo]):
                raise ParameterError("design.allowed-regions-missing", silo=silo)
        pairs = [(silos[silo], str(region)) for silo, regions in allowed.items() for region in regions]
        first_silo = {region: silo for silo, region in reversed(pairs)}
        for region in dict.fromkeys(region for _, region in pairs):
            if region not in self.names:
                self.names.append(region)
                self.slot_node = np.append(self.slot_node, self.node_of[first_silo[region]])
        place = {name: slot for slot, name in enumerate(self.names)}
        permitted = np.zeros((self.silos, len(self.names)), dtype=bool)
        permitted[np.arange(self.silos), self.region_now] = True
        for silo, regions in allowed.items():
            row = silos[silo]
            permitted[row] = False
            permitted[row, [place[str(region)] for region in regions]] = True
        apart = permitted & (self.node_of[:, None] != self.slot_node[None, :])
        if apart.any():
            row, slot = (int(value) for value in np.argwhere(apart)[0])
            raise ParameterError(
                "design.allowed-across",
                silo=federation.silo_name(row),
                region=self.names[slot],
                tier=self.tier,
                node=self.node_names[self.node_of[row]],
                known=listing([self.names[other] for other in np.flatnonzero(self.slot_node == self.node_of[row])]),
            )
        return permitted
