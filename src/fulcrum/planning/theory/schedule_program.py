"""The least noise of sums whose rosters change: a convex program, solved with a dual certificate.

Four rounds of one region. Two silos take part in all rounds, a third silo in rounds 3 and 4:

>>> noise = least_noise_of_schedule(
...     Schedule(
...         squared_weight=csr_array([[0.16, 0.09, 0.0], [0.16, 0.09, 0.36]]),
...         rounds=np.array([2.0, 2.0]),
...         cost=np.ones(2),
...         allowance=np.ones(3),
...     )
... )
>>> noise.variance.round(6).tolist(), round(noise.total, 6)
([0.576, 0.72], 2.592)

Constant noise would need 2.88. A sum is what an observer sees at a region in a phase of rounds with the same roster.
With noise variance S_s in every round of sum s, an observer of all sums meets the squared shift mu_i² = 4 C² sum over s
of L_s a_is² / S_s, where L_s is the number of rounds and a_is the weight of silo i. A target allows silo i the sum
B_i = mu_i² / (4 C²):

    minimise sum of L_s c_s S_s   subject to   sum over s of L_s a_is² / S_s <= B_i for every silo i.

`docs/maths.md` derives the solver. Prices lambda_i of silos prove a lower bound on the noise, so a reader checks noise
and gap without the solver (`certified_gap`). Rosters, weights and noise must be fixed before the first release.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.remaining_noise import largest_by, sum_by
from fulcrum.errors import ParameterError

MOST_STEPS = 200_000
"""The most steps of the solver; few schedules need more than some hundred."""

_STEPS_BETWEEN_GAPS = 10
_ROUNDING = 1 + 1e-13  # noise is raised by this much, so that rounding in sums never leaves a silo short


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The sums that observers see, with the silos of every sum.

    Attributes:
        squared_weight: By sum and silo the squared weight a_is², a sparse array; 0 for a silo that takes no part.
        rounds: By sum the number of rounds L_s.
        cost: By sum the coefficient c_s of its noise in the model; 1 if the server adds sums up.
        allowance: By silo the largest allowed sum B_i, the squared shift divided by 4 C².
    """

    squared_weight: csr_array
    rounds: FloatArray
    cost: FloatArray
    allowance: FloatArray

    def __post_init__(self) -> None:
        sums, silos = self.squared_weight.shape
        for name, values, length in (
            ("rounds", self.rounds, sums),
            ("cost", self.cost, sums),
            ("allowance", self.allowance, silos),
        ):
            if values.shape != (length,) or not ((values > 0) & np.isfinite(values)).all():
                raise ParameterError("schedule.values-range", name=name, length=length)
        weights = self.squared_weight.data
        if not ((weights >= 0) & np.isfinite(weights)).all():
            raise ParameterError("schedule.weights-range")
        by_sum = np.asarray(self.squared_weight.sum(axis=1)).ravel()
        if not by_sum.all():
            raise ParameterError("schedule.sum-empty", number=int(np.argmin(by_sum)) + 1)
        by_silo = np.asarray(self.squared_weight.sum(axis=0)).ravel()
        if not by_silo.all():
            raise ParameterError("schedule.silo-absent", number=int(np.argmin(by_silo)) + 1)

    def loads(self, variance: FloatArray) -> FloatArray:
        """Returns by silo the sum over its rounds of a_is² / S_s, divided by the allowance; at most 1 is allowed."""
        return np.asarray(self.squared_weight.T @ (self.rounds / variance)) / self.allowance

    def total(self, variance: FloatArray) -> float:
        """Returns the noise variance that enters the model over all rounds."""
        return float((self.rounds * self.cost * variance).sum())

    def lower_bound(self, prices: FloatArray) -> float:
        """Returns a lower bound on the noise of every solution, by any prices of silos of at least 0.

        By Cauchy and Schwarz, (sum of L_s sqrt(c_s y_s))² with y_s the sum of lambda_i a_is² is at most the noise times
        the sum of L_s y_s / S_s, which is at most the sum of lambda_i B_i. A factor on all prices changes nothing, so
        prices count over the largest: products of prices near the limits of double precision would prove too much.
        """
        largest = float(prices.max())
        if not 0 < largest < np.inf:  # nan too
            return 0.0
        prices = prices / largest
        valued = np.asarray(self.squared_weight @ prices)
        paid = float((prices * self.allowance).sum())
        return float((self.rounds * np.sqrt(self.cost * valued)).sum()) ** 2 / paid if paid > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScheduleNoise:
    """The noise of a schedule, with its certificate.

    Attributes:
        variance: By sum the noise variance S_s, in units of C².
        prices: By silo the price lambda_i of the certificate.
        total: The noise variance that enters the model over all rounds.
        bound: A lower bound on the total of every solution, by the prices.
    """

    variance: FloatArray
    prices: FloatArray
    total: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of the noise by which the optimum may be smaller."""
        return max(0.0, 1 - self.bound / self.total)


def least_noise_of_schedule(schedule: Schedule, *, gap: float = 1e-9, most_steps: int = MOST_STEPS) -> ScheduleNoise:
    """Returns the least noise at which every silo keeps its allowance, up to a gap.

    Guarantees, also if the steps end before the gap is reached:

    - no load exceeds 1;
    - the bound is a proven lower bound, so `ScheduleNoise.gap` is true;
    - sums that share no silo with another sum have their noise in closed form, L max over i of a_i² / B_i.

    Args:
        schedule: The sums and allowances.
        gap: The share of the noise at which the solver stops.
        most_steps: The most steps of the solver.
    """
    variance = np.empty(len(schedule.rounds))
    prices = np.zeros(len(schedule.allowance))
    sum_part, silo_part, sizes = _parts(schedule)
    alone = sizes[sum_part] == 1
    _solve_single_sums(schedule, alone, variance, prices)
    if not alone.all():
        rows, columns = np.flatnonzero(~alone), np.flatnonzero(sizes[silo_part] > 1)
        rest = Schedule(
            squared_weight=csr_array(schedule.squared_weight[rows][:, columns]),
            rounds=schedule.rounds[rows],
            cost=schedule.cost[rows],
            allowance=schedule.allowance[columns],
        )
        numbers = np.cumsum(sizes > 1) - 1  # of the parts with several sums, from 0
        parts = numbers[sum_part[rows]], numbers[silo_part[columns]]
        variance[rows], prices[columns] = _ascend(rest, *parts, gap, most_steps)
    return ScheduleNoise(
        variance=variance, prices=prices, total=schedule.total(variance), bound=schedule.lower_bound(prices)
    )


def certified_gap(schedule: Schedule, variance: FloatArray, prices: FloatArray) -> float:
    """Returns the gap of noise by a certificate, without the solver; infinite if a silo exceeds its allowance."""
    valid = (variance > 0).all() and (prices >= 0).all() and np.isfinite(prices).all()
    if not valid or not float(schedule.loads(variance).max()) <= 1:
        return float("inf")
    return max(0.0, 1 - schedule.lower_bound(prices) / schedule.total(variance))


def _parts(schedule: Schedule) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the connected part of every sum and of every silo, and by part the number of sums."""
    sums, silos = schedule.squared_weight.shape
    row, column = schedule.squared_weight.tocoo().coords
    edges = csr_array((np.ones(len(row), dtype=np.int8), (row, sums + column)), shape=(sums + silos, sums + silos))
    labels: IntArray = connected_components(edges, directed=False)[1].astype(np.intp)
    sizes = np.bincount(labels[:sums], minlength=int(labels.max()) + 1)
    return labels[:sums], labels[sums:], sizes


def _solve_single_sums(schedule: Schedule, alone: BoolArray, variance: FloatArray, prices: FloatArray) -> None:
    """Sets the noise of sums that share no silo with another sum, and the price of the silo that decides the noise."""
    entries = schedule.squared_weight.tocoo()
    row, column = entries.coords
    needs = entries.data / schedule.allowance[column]
    order = np.lexsort((needs, row))  # the last entry of a row is the largest need
    last = order[np.append(row[order][1:] != row[order][:-1], True)]
    of_sum = np.empty(len(variance), dtype=np.intp)
    of_sum[row[last]] = last
    chosen = of_sum[alone]
    noise = schedule.rounds[alone] * needs[chosen] * _ROUNDING
    variance[alone] = noise
    prices[column[chosen]] = schedule.cost[alone] * noise**2 / entries.data[chosen]


def _ascend(
    schedule: Schedule, part_of_sum: IntArray, part_of_silo: IntArray, gap: float, most_steps: int
) -> tuple[FloatArray, FloatArray]:
    """Returns noise and prices by multiplicative steps: every price times the squared load of its silo.

    The step is the exact minimisation of a majorant of the negative dual, so the dual value never falls. Parts share no
    silo and no sum, so the gap of every part is closed by itself, and a part leaves the steps once its gap is closed.

    Args:
        schedule: Sums and silos in parts of at least two sums.
        part_of_sum: By sum, the number of its part.
        part_of_silo: By silo, the number of its part.
        gap: The share of the noise of a part at which the part is done.
        most_steps: The most steps.
    """
    parts = int(part_of_sum.max()) + 1
    variance, prices = np.ones(len(schedule.rounds)), 1 / schedule.allowance
    total, bound = np.full(parts, np.inf), np.zeros(parts)
    sums, silos = np.arange(len(schedule.rounds)), np.arange(len(schedule.allowance))
    now, price = _Steps.of(schedule, part_of_sum, part_of_silo), prices.copy()
    for step in range(most_steps):
        noise = np.sqrt((now.weights @ price) / now.cost)
        loads = (now.weights_by_silo @ (now.rounds / noise)) / now.allowance
        if step % _STEPS_BETWEEN_GAPS == 0 or step == most_steps - 1:
            feasible = noise * (largest_by(now.part_of_silo, loads, parts) * _ROUNDING)[now.part_of_sum]
            needed = sum_by(now.part_of_sum, now.rounds * now.cost * feasible, parts)
            valued = sum_by(now.part_of_sum, now.rounds * now.cost * noise, parts)
            paid = sum_by(now.part_of_silo, price * now.allowance, parts)
            proven = np.divide(valued**2, paid, out=np.zeros(parts), where=paid > 0)
            better = np.where(needed > 0, needed, np.inf) < total
            variance[sums[better[now.part_of_sum]]] = feasible[better[now.part_of_sum]]
            total = np.where(better, needed, total)
            tighter = proven > bound
            # At this scale the bounds of parts add up to the bound of the whole schedule.
            scale = np.divide(valued, paid, out=np.zeros(parts), where=paid > 0) ** 2
            of_silo = tighter[now.part_of_silo]
            prices[silos[of_silo]] = (price * scale[now.part_of_silo])[of_silo]
            bound = np.where(tighter, proven, bound)
            going = bound < (1 - gap) * total
            if not going[now.part_of_sum].any():
                break
            rows, columns = going[now.part_of_sum], going[now.part_of_silo]
            if 2 * np.count_nonzero(columns) <= len(columns):
                now, price, loads = now.among(rows, columns), price[columns], loads[columns]
                sums, silos = sums[rows], silos[columns]
        price = price * loads**2
    return variance, prices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """The parts of a schedule whose gap is not closed yet; fields as in `Schedule`."""

    weights: csr_array
    weights_by_silo: csr_array
    rounds: FloatArray
    cost: FloatArray
    allowance: FloatArray
    part_of_sum: IntArray
    part_of_silo: IntArray

    @classmethod
    def of(cls, schedule: Schedule, part_of_sum: IntArray, part_of_silo: IntArray) -> Self:
        """Returns all parts of a schedule."""
        return cls(
            weights=schedule.squared_weight,
            weights_by_silo=csr_array(schedule.squared_weight.T),
            rounds=schedule.rounds,
            cost=schedule.cost,
            allowance=schedule.allowance,
            part_of_sum=part_of_sum,
            part_of_silo=part_of_silo,
        )

    def among(self, sums: BoolArray, silos: BoolArray) -> Self:
        """Returns some of the parts."""
        weights = csr_array(self.weights[np.flatnonzero(sums)][:, np.flatnonzero(silos)])
        return type(self)(
            weights=weights,
            weights_by_silo=csr_array(weights.T),
            rounds=self.rounds[sums],
            cost=self.cost[sums],
            allowance=self.allowance[silos],
            part_of_sum=self.part_of_sum[sums],
            part_of_silo=self.part_of_silo[silos],
        )
