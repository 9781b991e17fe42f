"""The design of regions: the least noise at a target within limits, beside the regions of today.

>>> result = design("tcga-brca", rounds=10, epsilon=1.0, most=20)
>>> f"{result.saving:.1%} less noise in {len(result.federation.innermost.nodes)} regions, by {result.method}"
'55.5% less noise in 2 regions, by sorting'
>>> result.gap
0.0

The planner gives the noise of every proposal, so a proposed federation has in `fulcrum.plan` the noise that the design
states. A design is never worse than the regions of today, if these keep the limits.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import draft_plan
from fulcrum.planning.regions.consecutive_regions import consecutive, largest_of_region, squared_sum_of_region
from fulcrum.planning.regions.region_costs import PlannedNoise, Structure
from fulcrum.planning.regions.region_limits import RegionLimits, Room
from fulcrum.planning.regions.region_search import Search
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.readers.editing import regroup_silos
from fulcrum.readers.federation_reader import read_federation

Method = Literal["sorting", "integer program", "local search", "today"]

SECONDS = 8.0
"""The time for solvers, in seconds."""

_SAME = 1e-9  # relative; rounding of the solver and of needs that the planner raises
_KICKS = 16  # local searches from changed regions, against optima that single changes do not leave
_SHARE_FOR_PROGRAM = 0.6  # of the time; the local search has the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloMove:
    """A silo with another region than today.

    Attributes:
        silo: The name of the silo.
        left: The region of today.
        joined: The proposed region.
    """

    silo: str
    left: str
    joined: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionDesign:
    """Proposed regions beside the regions of today, at the same target.

    Attributes:
        federation: The federation with the proposed regions.
        today: The plan for the regions of today.
        proposed: The plan for the proposed regions.
        moves: The silos with another region than today.
        method: The source of the proposal: "sorting" (optimal by proof), "integer program", "local search", or "today"
            if nothing better was reached.
        bound: A proven bound: no regions within the limits need less noise, costs of aggregators included.
        price: The cost of an aggregator, as noise.
        violation: The limit that the regions of today violate, in words; empty if they keep all limits.
    """

    federation: Topology
    today: Plan
    proposed: Plan
    moves: tuple[SiloMove, ...]
    method: Method
    bound: float
    price: float
    violation: str

    @property
    def saving(self) -> float:
        """The saved share of the noise of today's regions."""
        return 1 - self.proposed.model_noise / self.today.model_noise

    @cached_property
    def gap(self) -> float:
        """The share of noise and costs of aggregators by which the proposal may exceed the optimum, proven."""
        value = self.proposed.model_noise + self.price * len(self.federation.innermost.nodes)
        gap = 1 - self.bound / value
        return float(gap) if gap > _SAME else 0.0

    @property
    def costs(self) -> dict[str, dict[str, float]]:
        """The trust in single aggregators by plan: the most silos, and the largest share of the model, of a region."""
        return {name: _largest_region(plan) for name, plan in (("today", self.today), ("proposed", self.proposed))}


def design(
    federation: Any,
    *,
    most: int | None = None,
    least: int = 1,
    allowed: Mapping[str, Sequence[str]] | None = None,
    within: str | None = None,
    move_at_most: int | None = None,
    cost_of_aggregator: float = 0.0,
    seconds: float = SECONDS,
    **settings: Any,
) -> RegionDesign:
    """Returns the regions of least noise at a target, with the proven gap to the optimum.

    Args:
        federation: A `Federation`, or any value that `read_federation` takes.
        most: The most silos of a region.
        least: The fewest silos of a region.
        allowed: By silo, the regions that the silo may belong to; a silo without an entry keeps its region.
        within: The tier within whose nodes silos stay; by default the first tier above the regions.
        move_at_most: The most silos that change their region.
        cost_of_aggregator: The cost of a region, as a share of the noise of today's regions.
        seconds: The time for the integer program and the local search.
        **settings: The settings of `fulcrum.plan`: rounds, epsilon, weights, unit and all others.

    Raises:
        ParameterError: A limit is wrong, no limit is given, or no regions keep the limits.
    """
    topology = read_federation(federation)
    check_one_roster(topology, "a design of regions")
    limits = RegionLimits(
        most=most,
        least=least,
        allowed=allowed,
        within=within,
        move_at_most=move_at_most,
        cost_of_aggregator=cost_of_aggregator,
    )
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.number)) or not 0 < seconds <= 86_400:
        raise ParameterError("design.seconds-range", seconds=seconds)
    return design_regions(topology, limits, settings, seconds=float(seconds))


def design_regions(
    federation: Topology, limits: RegionLimits, settings: Mapping[str, Any], *, seconds: float = SECONDS
) -> RegionDesign:
    """Returns the design for limits and settings; `design` has the promise."""
    room = Room(federation, limits)
    noise = PlannedNoise(federation, settings, room.node_of)
    region_of, bound, method = _Choice(room, noise, seconds).best()
    names = _names_of(room, region_of, federation.innermost.name)
    now = [federation.innermost.nodes[node] for node in federation.innermost.parent_of.tolist()]
    moves = tuple(
        SiloMove(silo=str(silo), left=left, joined=joined)
        for silo, left, joined in zip(federation.silo_names.tolist(), now, names, strict=True)
        if left != joined
    )
    proposed = regroup_silos(federation, names) if moves else federation
    return RegionDesign(
        federation=proposed,
        today=noise.today,
        proposed=draft_plan(proposed, **settings) if moves else noise.today,
        moves=moves,
        method=method,
        bound=bound,
        price=limits.cost_of_aggregator * noise.now,
        violation=room.first_violation(room.region_now),
    )


class _Choice:
    """The choice of regions: by sorting where sorting is optimal, else by integer program and local search."""

    def __init__(self, room: Room, noise: PlannedNoise, seconds: float) -> None:
        self._room, self._noise, self._seconds = room, noise, seconds
        self._deadline = time.monotonic() + seconds
        self._least = max(room.limits.least, noise.smallest_group)
        self._price = room.limits.cost_of_aggregator * noise.now
        self._fewest = sum(-(-int(silos) // room.most) for silos in np.bincount(room.node_of)) or 1
        self._check_sizes()

    def best(self) -> tuple[IntArray, float, Method]:
        """Returns by silo the slot, the proven bound, and the method."""
        structure = self._noise.structure
        if self._room.is_anonymous and (sorted_regions := self._by_sorting(structure, exact=True)) is not None:
            value = self._value(sorted_regions)
            now = self._value(self._room.region_now)
            if np.isfinite(value):
                if self._keeps_limits(self._room.region_now) and now <= value * (1 + _SAME):
                    return self._room.region_now, min(now, value), "today"
                return sorted_regions, value, "sorting"
        candidates: list[tuple[float, IntArray, Method]] = []
        bound = self._sorting_bound(structure)
        program_bound = self._by_program(structure, candidates)
        if self._room.is_anonymous:
            for other in (structure, *self._surrogates()):
                regions = self._by_sorting(other, exact=False)
                if regions is not None:
                    candidates.append((self._value(regions), regions, "local search"))
        if self._keeps_limits(self._room.region_now):
            candidates.append((self._value(self._room.region_now), self._room.region_now, "today"))
        candidates = [candidate for candidate in candidates if np.isfinite(candidate[0])]
        bound = max(bound, program_bound)
        if not candidates:
            if np.isinf(bound) and bound > 0:
                raise ParameterError("design.limits-unreachable")
            raise ParameterError("design.regions-not-reached", seconds=self._seconds)
        candidates.sort(key=lambda candidate: candidate[0] * (1 - (candidate[2] == "today") * _SAME))
        value, region_of, method = candidates[0]
        if value * (1 - _SAME) <= bound:
            return region_of, bound, method
        starts = [start for _, start, _ in candidates[:2]]
        for kick in range(_KICKS):
            start = starts[kick] if kick < len(starts) else self._search_from(region_of).shuffle(kick)
            searched = self._search(start, structure)
            reached = self._value(searched)
            if reached < value * (1 - _SAME):
                value, region_of, method = reached, searched, "local search"
            if value * (1 - _SAME) <= bound or time.monotonic() > self._deadline:
                break
        return region_of, min(bound, value), method

    def _value(self, region_of: IntArray) -> float:
        return self._noise(region_of) + self._price * len(np.unique(region_of))

    def _keeps_limits(self, region_of: IntArray) -> bool:
        return not self._room.first_violation(region_of)

    def _check_sizes(self) -> None:
        """Raises if the silos of a node cannot be divided by the limits on sizes."""
        room = self._room
        if room.permitted is not None or room.limits.most is None:
            return
        for node, silos in enumerate(np.bincount(room.node_of).tolist()):
            if -(-silos // room.most) * self._least > silos:
                raise ParameterError(
                    "design.sizes-unreachable",
                    silos=silos,
                    node=room.node_names[node],
                    least=self._least,
                    most=room.most,
                )

    def _surrogates(self) -> list[Structure]:
        """Returns structures whose noise is a lower bound of the planner's, for a start and for bounds."""
        mass, nothing = self._noise.mass, np.zeros(self._room.silos)
        factor = self._noise.today.server_rule.noise_factor()
        structures = [] if self._noise.largest_need is None else [self._noise.largest_need]
        if mass is not None:
            structures.append(Structure(kind="mass", first=mass, second=nothing, inverse=True, factor=factor))
        return structures

    def _by_sorting(self, structure: Structure, *, exact: bool, least: int | None = None) -> IntArray | None:
        """Returns the best consecutive regions of every node; None if sorting does not apply.

        Args:
            structure: The share of regions in the noise.
            exact: True to return only regions that are optimal by proof.
            least: The fewest silos of a region; by default as many as the limits and masks need.
        """
        additive = structure.kind == "largest" or (structure.kind == "sizes" and not structure.inverse)
        if structure.kind not in ("largest", "mass", "sizes"):
            return None
        if exact and (structure.second.any() or self._least > self._room.limits.least):
            return None
        if exact and self._price and not additive:
            return None
        region_of, regions = np.zeros(self._room.silos, dtype=np.intp), 0
        for node in range(len(self._room.node_names)):
            silos = np.flatnonzero(self._room.node_of == node)
            order = silos[np.argsort(-structure.first[silos], kind="stable")]
            ends = self._divide(structure, order, self._least if least is None else least)
            if ends is None:
                return None
            sizes = np.diff([0, *ends])
            region_of[order] = regions + np.repeat(np.arange(len(sizes)), sizes)
            regions += len(sizes)
        return region_of

    def _divide(self, structure: Structure, order: IntArray, least: int) -> list[int] | None:
        values = structure.first[order]
        if structure.kind == "largest":
            cost = largest_of_region(values * structure.factor, self._price)
        elif structure.kind == "mass":
            cost = squared_sum_of_region(values)
        else:
            table = structure.table if structure.table is not None else np.zeros(1)
            sign = -1.0 if structure.inverse else structure.factor
            price = 0.0 if structure.inverse else self._price

            def cost(start: IntArray, stop: int) -> FloatArray:
                return sign * table[stop - start] + price

        divided = consecutive(len(order), least=least, most=self._room.most, cost=cost)
        return None if divided is None else divided[1]

    def _sorting_bound(self, structure: Structure) -> float:
        """Returns the best bound by sorting; limits on moves and allowed regions are left out, and the noise inside."""
        bounds, least = [0.0], self._room.limits.least
        for other in (structure, *self._surrogates()):
            if other.kind == "largest":  # the noise inside adds up to the same sum for all regions
                bounds.append(float(other.second.sum()) * other.factor + self._price * self._fewest)
            bare = replace(other, second=np.zeros(self._room.silos)) if other.kind == "largest" else other
            regions = self._by_sorting(bare, exact=False, least=least)
            if regions is not None:
                fixed = self._price * (len(np.unique(regions)) if bare.kind == "largest" else self._fewest)
                bounds.append(bare.noise(regions) + fixed)
        return max(bounds)

    def _by_program(self, structure: Structure, candidates: list[tuple[float, IntArray, Method]]) -> float:
        """Adds the regions of integer programs to the candidates; returns the best bound."""
        from fulcrum.planning.regions.region_program import solve_regions  # SciPy's optimizers take half a second

        solved = [other for other in (structure, *self._surrogates()) if _has_program(other)]
        if structure.kind in ("largest", "sizes", "mass") and _has_program(structure):
            solved = solved[:1]
        bound, proves = -np.inf, bool(solved) and self._least == self._room.limits.least
        if not solved:  # any regions within the limits, for a start
            nothing = np.zeros(self._room.silos)
            solved = [Structure(kind="largest", first=nothing + 1, second=nothing)]
        for other in solved:
            seconds = max(0.5, self._seconds * _SHARE_FOR_PROGRAM / len(solved))
            result = solve_regions(self._room, other, least=self._least, price=self._price, seconds=seconds)
            if result is None:
                continue
            if proves or np.isposinf(result.bound):
                bound = max(bound, result.bound)
            if result.region_of is not None:
                method: Method = "integer program" if other is structure else "local search"
                candidates.append((self._value(result.region_of), result.region_of, method))
        return bound

    def _search(self, start: IntArray, structure: Structure) -> IntArray:
        search = self._search_from(start)
        if structure.kind == "other":
            return search.by_planner(self._noise, self._price, self._deadline)
        return search.by_structure(structure, self._price, self._deadline)

    def _search_from(self, start: IntArray) -> Search:
        nodes, _ = self._room.slots(self._least)
        if self._room.is_anonymous:
            start = np.unique(start, return_inverse=True)[1]
            of_start = np.zeros(int(start.max()) + 1, dtype=np.intp)
            of_start[start] = self._room.node_of
            nodes = np.append(of_start, np.arange(len(self._room.node_names)))
        return Search(self._room, start, nodes, least=self._least)


def _has_program(structure: Structure) -> bool:
    if structure.kind == "mass":
        return bool(np.ptp(structure.first) <= _SAME * structure.first.max())
    return structure.kind in ("largest", "sizes")


def _names_of(room: Room, region_of: IntArray, tier: str) -> list[str]:
    """Returns by silo the name of its region.

    If limits name regions, slots have names. Otherwise regions get the names of today so that the fewest silos move.
    """
    from scipy.optimize import linear_sum_assignment

    groups, places = np.unique(region_of, return_inverse=True)
    today = len(np.unique(room.region_now))
    names = dict[int, str]()
    if not room.is_anonymous:
        names = {k: room.names[slot] for k, slot in enumerate(groups.tolist()) if slot < len(room.names)}
    else:
        overlap = np.zeros((len(groups), today))
        np.add.at(overlap, (places, room.region_now), 1)
        rows, columns = linear_sum_assignment(-overlap)
        names = {int(k): room.names[slot] for k, slot in zip(rows, columns, strict=True) if overlap[k, slot]}
    taken = {*room.names, *names.values()}
    for k in range(len(groups)):
        if k not in names:
            most = Counter(room.region_now[places == k].tolist()).most_common(1)[0][0]
            stem = room.names[most] or tier
            names[k] = next(name for number in count(2) if (name := f"{stem} {number}") not in taken)
            taken.add(names[k])
    return [names[k] for k in places.tolist()]


def _largest_region(plan: Plan) -> dict[str, float]:
    inner = plan.federation.innermost
    silos = np.bincount(inner.parent_of)
    share = sum_by(inner.parent_of, plan.influence, len(inner.nodes))
    return {"regions": len(silos), "most_silos": int(silos.max()), "largest_influence": float(share.max())}
