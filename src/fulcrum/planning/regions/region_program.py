"""The best regions within limits on moves and allowed regions, by an integer program with a proven bound.

Silos that differ in nothing are one class: the program counts the silos of every class in every slot. A slot is a
region of today, or a new region. For the kind `largest` a binary variable marks the leading class of every slot, the
class with the largest (w q)²; for gains by number of silos a binary variable marks the number of silos of every slot.
If the noise is 1 over a sum, tangents bound the noise from below. HiGHS solves the program and proves the bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.planning.regions.region_costs import Structure
from fulcrum.planning.regions.region_limits import Room

MOST_VARIABLES = 60_000
"""The largest program; above, a first answer takes minutes."""

_TANGENTS = 60
_LEAST_GAP = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramResult:
    """Regions of an integer program.

    Attributes:
        region_of: By silo, the slot; None if the time was too short for a first answer.
        bound: A proven lower bound on noise and costs of aggregators together.
    """

    region_of: IntArray | None
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Classes:
    """Silos by class, the class with the largest leading value first."""

    members: Sequence[IntArray]
    first: FloatArray
    second: FloatArray

    @property
    def counts(self) -> IntArray:
        return np.array([len(members) for members in self.members])


class _Program:
    """Variables, constraints and costs of a mixed-integer linear program, gathered row by row."""

    def __init__(self) -> None:
        self._cost: list[FloatArray] = []
        self._lower: list[FloatArray] = []
        self._upper: list[FloatArray] = []
        self._whole: list[FloatArray] = []
        self.size = 0
        self._rows: list[IntArray] = []
        self._columns: list[IntArray] = []
        self._values: list[FloatArray] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variables(
        self,
        shape: tuple[int, ...],
        *,
        upper: FloatArray | float,
        whole: bool,
        cost: FloatArray | float = 0.0,
        lower: FloatArray | float = 0.0,
    ) -> IntArray:
        """Returns the columns of new variables from `lower` to `upper`."""
        count = int(np.prod(shape))
        self._cost.append(np.broadcast_to(cost, shape).ravel().astype(np.float64))
        self._lower.append(np.broadcast_to(lower, shape).ravel().astype(np.float64))
        self._upper.append(np.broadcast_to(upper, shape).ravel().astype(np.float64))
        self._whole.append(np.full(count, float(whole)))
        self.size += count
        return np.arange(self.size - count, self.size).reshape(shape)

    def add(self, terms: Sequence[tuple[IntArray, FloatArray | float]], low: float, high: float) -> None:
        """Adds the row low <= sum of values * variables <= high."""
        for columns, values in terms:
            flat = np.ravel(columns)
            self._rows.append(np.full(len(flat), len(self._low)))
            self._columns.append(flat)
            self._values.append(np.broadcast_to(values, np.shape(columns)).ravel().astype(np.float64))
        self._low.append(low)
        self._high.append(high)

    def solve(self, seconds: float) -> tuple[FloatArray | None, float]:
        """Returns the best values, None without any, and the proven bound; -inf without a bound, inf if infeasible."""
        matrix = coo_array(
            (np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))),
            shape=(len(self._low), self.size),
        )
        result = milp(
            np.concatenate(self._cost),
            integrality=np.concatenate(self._whole),
            bounds=Bounds(np.concatenate(self._lower), np.concatenate(self._upper)),
            constraints=LinearConstraint(matrix.tocsr(), self._low, self._high),
            options={"time_limit": seconds, "mip_rel_gap": _LEAST_GAP},
        )
        if result.status == 2:
            return None, np.inf
        bound = getattr(result, "mip_dual_bound", None)
        return result.x, -np.inf if bound is None else float(bound)


def solve_regions(
    room: Room, structure: Structure, *, least: int, price: float, seconds: float
) -> ProgramResult | None:
    """Returns the best regions in the time; None if the program would be too large.

    An infinite bound is a proof that no regions keep the limits.

    Args:
        room: The limits.
        structure: The kind `largest`, `sizes`, or `mass` with equal masses.
        least: The fewest silos of a region.
        price: The cost of a region, as noise.
        seconds: The time for the solver.
    """
    nodes, named = room.slots(least)
    slots, classes = len(nodes), _classes_of(room, structure)
    counts, largest = classes.counts, structure.kind == "largest"
    sizes = np.arange(least, room.most + 1)
    size_variables = slots * (len(counts) if largest else len(sizes))
    if len(counts) * slots + size_variables > MOST_VARIABLES:
        return None
    scale = _scale_of(structure, room)
    program = _Program()
    first_of = np.array([members[0] for members in classes.members])
    may = room.node_of[first_of][:, None] == nodes[None, :]
    if room.permitted is not None:
        may &= room.permitted[first_of]
    x = program.variables((len(counts), slots), upper=may * counts[:, None], whole=True)
    for row, count in enumerate(counts.tolist()):
        program.add([(x[row], 1.0)], count, count)
    if room.limits.move_at_most is not None:
        away = np.ones((len(counts), slots))
        away[np.arange(len(counts)), room.region_now[first_of]] = 0.0
        program.add([(x, away)], 0, room.limits.move_at_most)
    if largest:
        led = _add_leaders(program, room, structure, classes, x, price=price / scale, scale=scale)
        for slot in range(slots):
            program.add([(x[:, slot], 1.0), (led[-1:, slot], -float(room.most))], -np.inf, 0)
            program.add([(x[:, slot], 1.0), (led[-1:, slot], -float(least))], 0, np.inf)
        ranks, marks = np.ones(len(counts)), led
    else:
        marks = _add_sizes(program, structure, x, sizes, room, price / scale, scale)
        ranks = sizes.astype(np.float64)
    for slot in range(named, slots - 1):  # new regions of a node are alike: the first have the larger leaders or sizes
        if nodes[slot] == nodes[slot + 1]:
            program.add([(marks[:, slot], ranks), (marks[:, slot + 1], -ranks)], 0, np.inf)
    values, bound = program.solve(seconds)
    if structure.inverse and not price and np.isfinite(bound):  # the program has the largest gain, not the least noise
        bound = structure.factor / -bound if bound < 0 else 0.0
    if values is None:
        return ProgramResult(region_of=None, bound=bound * scale)
    return ProgramResult(region_of=_assign(room, classes, np.rint(values[x]).astype(np.intp)), bound=bound * scale)


def _classes_of(room: Room, structure: Structure) -> _Classes:
    """Returns the classes of silos with the same figures, the same region of today and the same allowed regions."""
    keep = room.limits.move_at_most is not None
    columns = [room.node_of, structure.second, structure.first]
    columns += [room.region_now] if keep else []
    if room.permitted is not None:
        columns.append(np.unique(room.permitted, axis=0, return_inverse=True)[1].ravel())
    if structure.kind != "largest":
        columns = [room.node_of, *columns[3:]]
    group = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(group))[:-1])
    members.sort(key=lambda silos: -structure.first[silos[0]])
    lead = np.array([silos[0] for silos in members])
    return _Classes(members=members, first=structure.first[lead], second=structure.second[lead])


def _scale_of(structure: Structure, room: Room) -> float:
    """Returns the noise of today, so that costs are near 1; of one region for all if today's is no finite number."""
    noise = structure.noise(room.region_now)
    return noise if np.isfinite(noise) and noise > 0 else structure.noise(np.zeros(room.silos, dtype=np.intp))


def _add_leaders(
    program: _Program, room: Room, structure: Structure, classes: _Classes, x: IntArray, *, price: float, scale: float
) -> IntArray:
    """Adds by class and slot the mark of a leader in the class or an earlier class; returns the columns.

    The differences of marks, times the values of leaders, are the noise. At most as many silos as may move can leave a
    region, so the leader of a region with more silos is bounded: these marks are fixed.
    """
    counts, slots = classes.counts, x.shape[1]
    value = classes.first * structure.factor / scale
    drop = value - np.append(value[1:], 0.0)
    bare, most_moves = not classes.second.any(), room.limits.move_at_most
    cost = np.zeros(x.shape)
    if bare:
        cost += drop[:, None]
    cost[-1] += price
    fixed = np.zeros(x.shape)
    if most_moves is not None:
        home = room.region_now[[members[0] for members in classes.members]]
        for slot in range(len(room.names)):
            stays = np.cumsum(counts * (home == slot)) > most_moves
            fixed[stays, slot] = 1.0
    led = program.variables(x.shape, upper=1.0, lower=fixed, whole=True, cost=cost)
    for slot in range(slots):
        for row in range(len(counts)):
            program.add([(x[row : row + 1, slot], 1.0), (led[row : row + 1, slot], -float(counts[row]))], -np.inf, 0)
            if row:
                program.add([(led[row : row + 1, slot], 1.0), (led[row - 1 : row, slot], -1.0)], 0, np.inf)
    if not bare:
        inside = classes.second * structure.factor / scale
        noise = program.variables((slots,), upper=np.inf, whole=False, cost=1.0)
        for slot in range(slots):
            program.add([(noise[slot : slot + 1], 1.0), (led[:, slot], -drop)], 0, np.inf)
            program.add([(noise[slot : slot + 1], 1.0), (x[:, slot], -inside)], 0, np.inf)
    return led


def _add_sizes(
    program: _Program, structure: Structure, x: IntArray, sizes: IntArray, room: Room, price: float, scale: float
) -> IntArray:
    """Adds the number of silos of every slot with its cost or gain; returns the columns, by number and slot."""
    table = structure.table if structure.table is not None else (structure.first[0] * np.arange(room.silos + 1)) ** 2
    inverse = structure.inverse
    cost = price if inverse else (table[sizes] * structure.factor / scale + price)[:, None]
    if inverse and not price:
        cost = (-table[sizes] * scale)[:, None]  # scale is the noise of today, 1 over a sum of entries
    chosen = program.variables((len(sizes), x.shape[1]), upper=1.0, whole=True, cost=cost)
    for slot in range(x.shape[1]):
        program.add([(chosen[:, slot], 1.0)], 0, 1)
        program.add([(x[:, slot], 1.0), (chosen[:, slot], -sizes.astype(np.float64))], 0, 0)
    if inverse and price:
        largest = max(float((table[sizes] / sizes).max()) * room.silos, float(table[sizes].max()))
        low, high = float(table[1]) * room.silos, largest
        noise = program.variables((1,), upper=np.inf, whole=False, cost=1.0)
        for point in np.geomspace(min(low, high), high, _TANGENTS):
            # 1 / G is convex, so the tangent at `point` bounds the noise from below: 2 / point - G / point².
            gain = table[sizes] * structure.factor / (scale * point**2)
            columns = np.broadcast_to(gain[:, None], chosen.shape)
            program.add([(noise, 1.0), (chosen, columns)], 2 * structure.factor / (scale * point), np.inf)
    return chosen


def _assign(room: Room, classes: _Classes, counts: IntArray) -> IntArray | None:
    """Returns the slot of every silo by the number of silos of each class; silos stay in their region if they can."""
    region_of = np.full(room.silos, -1)
    for members, by_slot in zip(classes.members, counts, strict=True):
        if by_slot.sum() != len(members):
            return None
        free, left = by_slot.copy(), [] if not room.is_anonymous else members.tolist()
        for silo in [] if room.is_anonymous else members.tolist():
            now = int(room.region_now[silo])
            if free[now]:
                region_of[silo], free[now] = now, free[now] - 1
            else:
                left.append(silo)
        region_of[left] = np.repeat(np.arange(len(free)), free)
    return region_of
