"""Plans of federations whose membership is known ahead: rosters, the noise of every phase, and the proof of the noise.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.readers.federation import Federation
>>> from dataclasses import replace
>>> federation = replace(
...     Federation.from_sizes({"north": [4, 3, 6]}), stays=(((1, 0, 1),), ((1, 0, 1),), ((3, 0, 1),))
... )
>>> made = plan(federation, rounds=4, epsilon=1.0)
>>> print(f"{1 - made.noise_budget / constant_budget(made.federation, made.requirement):.1%} less than constant noise")
10.0% less than constant noise

`docs/maths.md` has the proofs, "Membership that is known ahead".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fulcrum.arrays import FloatArray, IntArray, read_only
from fulcrum.checks import Check
from fulcrum.core.choices import SMALLEST
from fulcrum.core.phase_noise import concealing_noise, mean_variance, rosters_of
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import largest_by, left_by_coalitions, sum_by
from fulcrum.core.rosters import Rosters
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import FederationError, ParameterError, UnreachableTargetError
from fulcrum.planning.theory.allocation import Requirement

if TYPE_CHECKING:
    from fulcrum.planning.theory.schedule_program import Schedule

MOST_GAP = 1e-4
"""The largest gap of a certificate: the share of the noise by which the optimum may be smaller."""

_NEAR_GAP, _FAR_GAP, _NEAR_UP_TO = 1e-9, 5e-5, 100_000  # gaps that the solver reaches, by silos times phases
_ROUNDING = 1 + 4e-13  # a target is never missed by the rounding of sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sums:
    """The sums of a federation whose membership changes, as the program of the least noise has them.

    Attributes:
        schedule: The sums, with a column for every silo and every observer against whom the silo has a target.
        number: By phase and region, the number of the sum.
        column_of: By observer and silo, the number of the column; -1 without a target.
    """

    schedule: "Schedule"
    number: IntArray
    column_of: IntArray

    def prices_of(self, prices: FloatArray) -> FloatArray:
        """Returns by observer and silo the prices of columns; 0 without a target."""
        return np.where(self.column_of >= 0, prices[self.column_of], 0.0)

    def of_columns(self, prices: FloatArray) -> FloatArray:
        """Returns the prices of columns, from prices by observer and silo."""
        columns = np.zeros(len(self.schedule.allowance))
        columns[self.column_of[self.column_of >= 0]] = prices[self.column_of >= 0]
        return columns


def with_rosters(federation: Topology, rounds: int) -> Topology:
    """Returns a federation with the roster of every round, or unchanged if all silos take part in all rounds.

    Raises:
        FederationError: A stay does not fit the rounds, a region is empty in a round, or a plan's rosters have other
            rounds.
    """
    if federation.stays is not None:
        try:
            ended = {
                listed: [(first, last or rounds, every) for first, last, every in listed]
                for listed in set(federation.stays)
            }
            rosters = Rosters.of_stays([ended[listed] for listed in federation.stays], rounds)
        except FederationError as error:
            raise _naming_silo(error, federation) from None
        return replace(federation, stays=None, rosters=None if rosters.present.all() else rosters)
    if federation.rosters is not None and federation.rosters.rounds != rounds:
        raise FederationError("schedule.rounds-differ", rounds=rounds, scheduled=federation.rosters.rounds)
    return federation


def _naming_silo(error: FederationError, federation: Topology) -> FederationError:
    """Returns an error about a stay with the name of the silo in front."""
    number = error.details.get("number")
    return error if not isinstance(number, int) else FederationError.at(repr(federation.silo_name(number - 1)), error)


def repeats_rounds(before: Topology, after: Topology) -> bool:
    """Returns True if the silos of a plan before have the same rounds of their own again, counted from round 1.

    Args:
        before: The federation of the plan before.
        after: The federation of a new plan, with stays.
    """
    if before.rosters is None or after.stays is None:
        return False
    try:
        again = with_rosters(after, before.rosters.rounds).rosters
    except FederationError:  # other rounds than before
        return False
    places = {name: place for place, name in enumerate(before.silo_names.tolist())}
    common = [(places[name], place) for place, name in enumerate(after.silo_names.tolist()) if name in places]
    if again is None or not common:
        return False
    old_places, new_places = np.array(common).T
    old_phases, new_phases = np.unique([before.rosters.phase_of_round, again.phase_of_round], axis=1)
    present = before.rosters.present[old_phases][:, old_places]
    return bool((present == again.present[new_phases][:, new_places]).all() and not present.all())


def check_supported(settings: Mapping[str, bool]) -> None:
    """Raises `ParameterError` for the first setting that no plan with changing membership has.

    Args:
        settings: By setting, True if the value has a proof under changing membership.
    """
    for setting, supported in settings.items():
        if not supported:
            raise ParameterError("schedule.unsupported", setting=setting)


def check_one_roster(federation: Topology, place: str) -> None:
    """Raises `ParameterError` if membership changes: the function or command at `place` knows one roster alone."""
    if federation.rosters is not None or federation.stays is not None:
        raise ParameterError("schedule.not-here", place=place)


def observers_of(federation: Topology, requirement: Requirement) -> list[tuple[str, FloatArray, int]]:
    """Returns the observers of the innermost tier and inside, each with tier, requirement by silo, and lost silos.

    The tier is the tier whose noise the observer meets. The noise of the lost silos of every region, colluders and
    dropouts, conceals no silo. With masked sums the observer inside is the server with one silo at least.
    """
    inner, observers = federation.innermost.name, []
    for tier in (inner, SILO):
        required = np.broadcast_to(np.asarray(requirement.multiplier.get(tier, 0.0), np.float64), len(federation))
        colluders = requirement.colluders
        if tier == SILO and requirement.masked:
            tier, colluders = inner, max(1, colluders)
        observers.append((tier, required, colluders + requirement.dropouts))
    return observers


def sums_of(federation: Topology, requirement: Requirement) -> Sums:
    """Returns the sums that observers see, each with the number of its rounds.

    All silos of a region draw with one multiplier in a phase: from a sum with noise S an observer meets, for silo i,
    the noise S m_i / V, where V is the squared weights of the roster, and m_i the part of V that conceals the silo. So
    the silo enters the program with w² V / m_i in the place of w², and without colluders and dropouts m_i is V.

    Phases in which a region has the same silos share a sum: their noise is equal at the optimum.
    """
    # Here, and not above: a silo that reads a plan, and most commands, need neither SciPy's matrices nor the solver.
    from scipy.sparse import csr_array, vstack

    from fulcrum.planning.theory.schedule_program import Schedule

    rosters, inner = rosters_of(federation), federation.innermost
    phases = len(rosters.present)
    observers = observers_of(federation, requirement)
    required = np.array([values for _, values, _ in observers])
    bare = ~(np.isfinite(required).all(axis=0) & (required > 0).any(axis=0))
    if bare.any():
        raise UnreachableTargetError("schedule.target-missing", silo=federation.silo_name(int(np.argmax(bare))))
    column_of = np.where(required > 0, np.cumsum(required > 0).reshape(required.shape) - 1, -1)
    columns, with_target = int((required > 0).sum()), np.flatnonzero(required.any(axis=1)).tolist()
    squared, number = federation.weights**2, np.zeros((phases, len(inner.nodes)), dtype=np.intp)
    rows: list[csr_array] = []
    rounds: list[FloatArray] = []
    order = np.argsort(inner.parent_of, kind="stable")
    bounds = np.cumsum(np.bincount(inner.parent_of, minlength=len(inner.nodes)))
    for region, members in enumerate(np.split(order, bounds[:-1])):
        packed = np.packbits(rosters.present[:, members], axis=1)
        _, first, of_phase = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        number[:, region] = len(rows) + of_phase.ravel()
        for phase in first.tolist():
            there = members[rosters.present[phase, members]]
            parts = [_entries(squared[there], *observers[observer][::2]) for observer in with_target]
            places = [column_of[observer, there] for observer in with_target]
            data, indices = np.concatenate(parts), np.concatenate(places)
            data, indices = data[indices >= 0], indices[indices >= 0]
            rows.append(csr_array((data, indices, np.array([0, len(indices)])), shape=(1, columns)))
        rounds.append(sum_by(of_phase.ravel(), rosters.lengths, len(first)))
    lengths = np.concatenate(rounds)
    schedule = Schedule(
        squared_weight=csr_array(vstack(rows)),
        rounds=lengths,
        cost=np.ones(len(lengths)),
        allowance=rosters.rounds / required[required > 0] ** 2,
    )
    return Sums(schedule=schedule, number=number, column_of=column_of)


def _entries(squared: FloatArray, tier: str, lost: int) -> FloatArray:
    """Returns by silo of one roster w² V / m, the squared weight in a sum of which an observer meets only a part."""
    if tier != SILO and not lost:
        return squared
    if tier == SILO:  # single updates: the silo's own noise alone
        return np.full(len(squared), squared.sum())
    left, more = left_by_coalitions(squared, np.zeros(len(squared), dtype=np.intp), 1, lost)
    return np.asarray(squared * squared.sum() / (left[0] + more))


def noise_by_phase(federation: Topology, requirement: Requirement, allocation: object) -> tuple[FloatArray, FloatArray]:
    """Returns by phase and region the multiplier of each silo's noise, and by observer and silo the price of the proof.

    Guarantees:

    - every silo has at least the required effective multiplier over its own rounds, rounding included;
    - by the allocation "optimal" the noise of all rounds is at most the noise of one constant sum for each region, and
      at most the noise of one multiplier for all silos of a region.
    """
    from fulcrum.planning.theory.schedule_program import least_noise_of_schedule

    rosters, mass = rosters_of(federation), mass_by_phase(federation)
    prices = np.zeros((2, len(federation)))
    if allocation == "uniform":
        multiplier = np.ones_like(mass) * np.sqrt(_factor(federation, requirement, np.ones_like(mass)))
        return read_only(multiplier * _ROUNDING), read_only(prices)
    sums = sums_of(federation, requirement)
    gap = _NEAR_GAP if len(federation) * len(rosters.present) <= _NEAR_UP_TO else _FAR_GAP
    solved = least_noise_of_schedule(sums.schedule, gap=gap)
    candidates = [solved.variance[sums.number], np.broadcast_to(_constant_sums(federation, sums), mass.shape)]
    candidates.append(mass * _constant_levels(federation, requirement))
    multipliers = [
        np.sqrt(noise / mass) * np.sqrt(_factor(federation, requirement, np.sqrt(noise / mass))) * _ROUNDING
        for noise in candidates
    ]
    least = min(multipliers, key=lambda multiplier: float(mean_variance(federation, multiplier).sum()))
    relative = sums.prices_of(solved.prices / (float(solved.prices.max()) or 1.0))
    # A price this small proves nothing more, and its products would leave double precision.
    return read_only(least), read_only(np.where(relative >= SMALLEST, relative, 0.0))


def mass_by_phase(federation: Topology) -> FloatArray:
    """Returns by phase and region the sum of the squared weights of the silos in the roster."""
    rosters, inner = rosters_of(federation), federation.innermost
    squared = federation.weights**2
    return np.array([sum_by(inner.parent_of, squared * there, len(inner.nodes)) for there in rosters.present])


def _shortfall(federation: Topology, requirement: Requirement, multiplier: FloatArray) -> FloatArray:
    """Returns by silo the factor on all variances at which multipliers just meet the silo's requirement."""
    factors = np.zeros(len(federation))
    for tier, required, lost in observers_of(federation, requirement):
        if required.any():
            need = (federation.weights * required) ** 2
            factors = np.maximum(factors, need / concealing_noise(federation, multiplier, tier, lost))
    return factors


def _factor(federation: Topology, requirement: Requirement, multiplier: FloatArray) -> float:
    """Returns the factor on all variances at which multipliers meet the requirement exactly, at least for one silo."""
    return float(_shortfall(federation, requirement, multiplier).max())


def _constant_sums(federation: Topology, sums: Sums) -> FloatArray:
    """Returns by region the least noise variance that is the same in all rounds: max of sum of L_s a_is² over B_i."""
    inner, loads = federation.innermost, sums.schedule.loads(np.ones(len(sums.schedule.rounds)))
    by_silo = sums.prices_of(loads).max(axis=0)
    return largest_by(inner.parent_of, by_silo, len(inner.nodes))


def _constant_levels(federation: Topology, requirement: Requirement) -> FloatArray:
    """Returns by region the least squared multiplier of silos that is the same in all rounds."""
    inner = federation.innermost
    ones = np.ones((len(rosters_of(federation).present), len(inner.nodes)))
    return largest_by(inner.parent_of, _shortfall(federation, requirement, ones), len(inner.nodes))


def constant_budget(federation: Topology, requirement: Requirement) -> float:
    """Returns the noise variance of a round with one constant sum for each region, in units of C²."""
    return float(_constant_sums(federation, sums_of(federation, requirement)).sum())


def uniform_budget(federation: Topology, requirement: Requirement) -> float:
    """Returns the mean noise variance of a round with one multiplier for all silos, in units of C²."""
    ones = np.ones((len(rosters_of(federation).present), len(federation.innermost.nodes)))
    return _factor(federation, requirement, ones) * float(mean_variance(federation, ones).sum())


def requirement_of(plan: PlanData) -> Requirement:
    """Returns the requirement of a plan, by its settings."""
    return Requirement(
        multiplier=dict(plan.required_multiplier),
        colluders=plan.colluders,
        dropouts=plan.dropouts,
        masked=plan.is_masked,
    )


def proven_budget(plan: PlanData) -> float:
    """Returns a proven lower bound on the noise variance of a round, by the prices of a plan; 0 without prices."""
    if plan.prices is None or not plan.prices.any():
        return 0.0
    sums = sums_of(plan.federation, requirement_of(plan))
    return sums.schedule.lower_bound(sums.of_columns(plan.prices)) / plan.rounds


def certificate_checks(plan: PlanData) -> Iterator[Check]:
    """Yields the check of the certificate of a plan whose membership changes; nothing for any other plan.

    No silo needs the check: a silo checks that its noise is enough, and more noise than the least harms no silo. No
    solver runs: the prices of the plan prove a lower bound on the noise of every plan that meets the targets. With
    colluders, dropouts or a target inside, these are the plans with one multiplier for each region and phase.
    """
    if plan.phase_multiplier is None or plan.prices is None or plan.allocation != "optimal":
        return
    from fulcrum.planning.theory.schedule_program import certified_gap

    sums = sums_of(plan.federation, requirement_of(plan))
    schedule, prices = sums.schedule, sums.of_columns(plan.prices)
    by_phase = plan.phase_multiplier**2 * mass_by_phase(plan.federation)
    noise = np.zeros(len(schedule.rounds))
    np.maximum.at(noise, sums.number, by_phase)
    spent = float(rosters_of(plan.federation).lengths @ by_phase.sum(axis=1))
    gap = certified_gap(schedule, noise * (1 + 1e-9), prices)  # multipliers meet targets up to rounding
    if np.isfinite(gap):
        gap = 1 - schedule.lower_bound(prices) / spent
    share = f"the least noise is at most {max(gap, 1e-12):.1e} of this noise below it"
    detail = share if np.isfinite(gap) else "a silo has less noise than its target needs"
    yield Check(name="certificate", holds=bool(abs(gap) <= MOST_GAP), detail=detail)


def largest_multiplier(federation: Topology, multiplier: FloatArray) -> FloatArray:
    """Returns by silo the largest noise multiplier of all rounds in which the silo takes part."""
    drawn = multiplier[:, federation.innermost.parent_of]
    return np.asarray(np.where(rosters_of(federation).present, drawn, 0.0).max(axis=0))


def least_multiplier(federation: Topology, multiplier: FloatArray) -> FloatArray:
    """Returns by silo the least noise multiplier of all rounds in which the silo takes part."""
    drawn = multiplier[:, federation.innermost.parent_of]
    return np.asarray(np.where(rosters_of(federation).present, drawn, np.inf).min(axis=0))
