"""Better regions by local search: a silo changes its region, or two silos exchange theirs, as long as noise falls.

The search asks for noise and costs of aggregators together, by the figures of regions or, without them, by the planner
itself. Draws have a fixed seed, and only the time limit makes two searches differ.
"""

import time
from collections.abc import Callable

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.planning.regions.region_costs import Structure, members_of
from fulcrum.planning.regions.region_limits import Room

_ALL_PAIRS, _SOME_PAIRS = 400, 100  # exchanges of a silo: with all silos, or with some of a large federation
_SHARE_OF_MOVES = 0.5  # of random changes; the rest are exchanges
_LEAST_GAIN = 1e-12  # relative; smaller differences are rounding


class Search:
    """A local search within limits.

    Attributes:
        nodes: By slot, its node.
        region_of: By silo, the slot.
        value: Noise and costs of aggregators.
    """

    def __init__(self, room: Room, region_of: IntArray, nodes: IntArray, *, least: int) -> None:
        self._room, self._least = room, least
        self.nodes, self.region_of = nodes, region_of.copy()
        self._counts = np.bincount(region_of, minlength=len(nodes))
        self._moved = room.moves(region_of)

    def by_structure(self, structure: Structure, price: float, deadline: float) -> IntArray:
        """Returns better regions by the figures of regions."""
        figures = np.full((len(self.nodes), 2), np.nan)
        groups = members_of(self.region_of)
        for slot, group in enumerate(groups):
            if len(group):
                figures[slot] = structure.of_members(group)
        members = [set(group.tolist()) for group in groups] + [set() for _ in range(len(groups), len(self.nodes))]

        def value(changed: FloatArray) -> float:
            used = changed[~np.isnan(changed[:, 0])]
            return structure.total(used) + price * len(used)

        best = value(figures)

        def gains(changes: list[tuple[int, int]]) -> bool:
            nonlocal best
            touched: dict[int, set[int]] = {}
            for silo, slot in changes:
                now = int(self.region_of[silo])
                touched.setdefault(now, set(members[now])).discard(silo)
                touched.setdefault(slot, set(members[slot])).add(silo)
            earlier = {slot: figures[slot].copy() for slot in touched}
            for slot, silos in touched.items():
                figures[slot] = structure.of_members(np.array(sorted(silos))) if silos else np.nan
            new = value(figures)
            if new < best * (1 - _LEAST_GAIN):
                best = new
                for slot, silos in touched.items():
                    members[slot] = silos
                return True
            for slot, figure in earlier.items():
                figures[slot] = figure
            return False

        return self._improve(gains, deadline)

    def by_planner(self, noise: Callable[[IntArray], float], price: float, deadline: float) -> IntArray:
        """Returns better regions by the planner's noise."""

        def value(region_of: IntArray) -> float:
            return noise(region_of) + price * len(np.unique(region_of))

        best = value(self.region_of)

        def gains(changes: list[tuple[int, int]]) -> bool:
            nonlocal best
            changed = self.region_of.copy()
            for silo, slot in changes:
                changed[silo] = slot
            new = value(changed)
            if not new < best * (1 - _LEAST_GAIN):
                return False
            best = new
            return True

        return self._improve(gains, deadline)

    def shuffle(self, seed: int) -> IntArray:
        """Returns the regions after a few changes at random that keep the limits."""
        random, silos = np.random.default_rng(seed), self._room.silos
        for _ in range(max(4, silos // 8)):
            silo, other = (int(drawn) for drawn in random.integers(0, silos, 2))
            slots = [slot for slot in self._slots_for(silo) if self._may_move(silo, slot)]
            if slots and random.random() < _SHARE_OF_MOVES:
                self._apply([(silo, slots[int(random.integers(len(slots)))])])
            elif pair := self._exchange(silo, other):
                self._apply(pair)
        if self._room.limits.move_at_most is not None:
            self._return_home(random)
        self._dissolve(random)
        return self.region_of

    def _dissolve(self, random: np.random.Generator) -> None:
        """Takes all silos of a region to regions with room; nothing if the limits forbid the change."""
        used = np.flatnonzero(self._counts)
        region = int(used[random.integers(len(used))])
        room, changes = self._room.most - self._counts, []
        for silo in np.flatnonzero(self.region_of == region).tolist():
            slots = [slot for slot in self._slots_for(silo) if self._counts[slot] and room[slot] > 0]
            if not slots:
                return
            slot = slots[int(random.integers(len(slots)))]
            room[slot] -= 1
            changes.append((silo, slot))
        if self._keeps_moves(changes):
            self._apply(changes)

    def _return_home(self, random: np.random.Generator) -> None:
        """Takes some moved silos back to their region of today, so that other silos may move."""
        for silo in random.permutation(np.flatnonzero(self.region_of != self._room.region_now)).tolist():
            home = int(self._room.region_now[silo])
            if random.random() < _SHARE_OF_MOVES and self._may_move(silo, home):
                self._apply([(silo, home)])

    def _improve(self, gains: Callable[[list[tuple[int, int]]], bool], deadline: float) -> IntArray:
        random, silos = np.random.default_rng(0), self._room.silos
        better = True
        while better:
            better = False
            for silo in random.permutation(silos).tolist():
                for slot in self._slots_for(silo):
                    if time.monotonic() > deadline:
                        return self.region_of
                    if self._may_move(silo, slot) and gains([(silo, slot)]):
                        self._apply([(silo, slot)])
                        better = True
                for other in (
                    random.permutation(silos).tolist() if silos <= 400 else random.integers(0, silos, 100).tolist()
                ):
                    if time.monotonic() > deadline:
                        return self.region_of
                    pair = self._exchange(silo, other)
                    if pair and gains(pair):
                        self._apply(pair)
                        better = True
        return self.region_of

    def _slots_for(self, silo: int) -> list[int]:
        """Returns the slots to which a silo may change; of empty new slots the first alone."""
        open_slots = self.nodes == self._room.node_of[silo]
        if self._room.permitted is not None:
            open_slots &= self._room.permitted[silo]
        open_slots[self.region_of[silo]] = False
        unused = np.flatnonzero(
            open_slots & (self._counts == 0) & (np.arange(len(self.nodes)) >= len(self._room.names))
        )
        open_slots[unused[1:]] = False
        return [int(slot) for slot in np.flatnonzero(open_slots)]

    def _may_move(self, silo: int, slot: int) -> bool:
        now = int(self.region_of[silo])
        if now == slot or not self._least <= self._counts[slot] + 1 <= self._room.most:
            return False
        if 0 < self._counts[now] - 1 < self._least:
            return False
        return self._keeps_moves([(silo, slot)])

    def _exchange(self, silo: int, other: int) -> list[tuple[int, int]]:
        """Returns the exchange of two silos' regions; empty if the limits forbid the exchange."""
        first, second = int(self.region_of[silo]), int(self.region_of[other])
        if first == second or self._room.node_of[silo] != self._room.node_of[other]:
            return []
        permitted = self._room.permitted
        if permitted is not None and not (permitted[silo, second] and permitted[other, first]):
            return []
        pair = [(silo, second), (other, first)]
        return pair if self._keeps_moves(pair) else []

    def _keeps_moves(self, changes: list[tuple[int, int]]) -> bool:
        most, now = self._room.limits.move_at_most, self._room.region_now
        if most is None:
            return True
        return self._moved + self._more_moves(changes, now) <= most

    def _more_moves(self, changes: list[tuple[int, int]], now: IntArray) -> int:
        return sum(int(slot != now[silo]) - int(self.region_of[silo] != now[silo]) for silo, slot in changes)

    def _apply(self, changes: list[tuple[int, int]]) -> None:
        self._moved += self._more_moves(changes, self._room.region_now)
        for silo, slot in changes:
            self._counts[self.region_of[silo]] -= 1
            self._counts[slot] += 1
            self.region_of[silo] = slot
