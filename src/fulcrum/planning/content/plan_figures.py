"""The figures of a plan: noise, epsilon against every observer, influence and savings, each computed on demand.

>>> from fulcrum.planning.planner import plan
>>> made = plan("severe", rounds=10, epsilon=0.99, accountant="renyi")
>>> round(made.saving, 4), round(made.worst_epsilon("silo"), 2)
(0.7917, 10.06)

Figures are functions of the data and are cached. No figure solves for an allocation, prints or writes.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from fulcrum.arrays import FloatArray, IntArray, read_only
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.choices import BY_SILO
from fulcrum.core.lattice import check_parameters, delta_reserve
from fulcrum.core.plan import figures
from fulcrum.core.plan.guarantee import NO_PROTECTION
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.privacy_unit import ratio_of_conventions, whole_silo_ratio
from fulcrum.core.remaining_noise import largest_by, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError, PlanError, listing, suggestion
from fulcrum.planning.inputs.server_settings import requirement_of, server_rule_of
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
from fulcrum.planning.theory.calibration import shift_of
from fulcrum.planning.theory.epsilon_table import epsilon_of_shifts
from fulcrum.planning.theory.exposure import dispersion
from fulcrum.planning.theory.leakage import information_of_shift, mechanism_information
from fulcrum.planning.theory.noise_bound import noise_lower_bound
from fulcrum.planning.theory.observer_power import ObserverPower, observer_power_of_shift
from fulcrum.planning.theory.scheduling import (
    check_one_roster,
    largest_multiplier,
    noise_by_phase,
    proven_budget,
    uniform_budget,
)
from fulcrum.rules.server_rule import ServerRule


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: figures are cached when first asked for
class PlanFigures(PlanData):
    """The settings and noise of a plan (`PlanData`), with the numbers that follow from both.

    The numbers: target and requirement; effective multipliers and epsilons against every observer; influence by silo
    and by node; information; noise budget, saving and lower bound; lattice steps and widths.

    Attributes:
        solved_advice: The advice on the plan, once `advice_on` of `fulcrum.planning.content.advice` has solved for it;
            None before that, and in a changed copy.
    """

    solved_advice: tuple[Any, ...] | None = field(default=None, init=False, repr=False)

    @cached_property
    def target(self) -> Target:
        """The promise: rounds, delta, accountant, epsilon by tier, information bound."""
        return Target(
            rounds=self.rounds,
            delta=self.delta,
            accountant=self.accountant,
            epsilon=self.epsilon_target,
            information=self.information,
            floor=self.floor,
            coupling=self.coupling,
            bound=self.bound,
            parameters=self.parameters,
            budget=self.budget,
            colluders=self.colluders,
            dropouts=self.dropouts,
            aggregation=self.aggregation,
            reserve=self.reserve,
            spent=self.spent,
            unit=self.unit,
            persons_per_silo=self.persons_per_silo,
            silo_clip=self.silo_clip,
            silo_epsilon=self.silo_epsilon,
        )

    @cached_property
    def requirement(self) -> Requirement:
        """The effective multiplier that the target requires of each silo, by tier."""
        return requirement_of(self)

    @property
    def weights_given(self) -> bool:
        """True if weights of silos were declared, or given by silo, and may therefore follow from sizes."""
        return self.federation.declared_weights is not None or self.weights_rule == BY_SILO

    @cached_property
    def server_rule(self) -> ServerRule:
        """The rule by which the server moves the model, with the server's prior knowledge of the regions."""
        return server_rule_of(self)

    @cached_property
    def region_factors(self) -> FloatArray | None:
        """By region, the factor of the sum in the model; None for factors 1, as with a single sum of the federation."""
        return None if self.one_group else self.server_rule.region_factors()

    @cached_property
    def influence(self) -> FloatArray:
        """The share of each silo in the model; the shares add up to 1.

        With a server that pools, the shares hold if regions agree; as regions differ, the shares move toward the shares
        by size.
        """
        factors, shares = self.region_factors, self.federation.shares
        if factors is None:
            return shares
        return read_only(shares * factors[self.federation.innermost.parent_of])  # type: ignore[no-any-return]

    def node_influence(self, tier: str) -> FloatArray:
        """Returns the share of each node of a tier in the model; see `influence`."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.influence, federation.node_count(tier))

    @property
    def group_tier(self) -> str:
        """The tier of the masked sums, for a masked plan: the root if the root alone has a target."""
        return figures.group_tier(self)

    @property
    def one_group(self) -> bool:
        """True if all silos are masked as one group: the global sum is then the only sum that any party sees."""
        return figures.is_one_group(self)

    @property
    def smallest_group(self) -> int:
        """The number of silos in the smallest masked sum of any round, for a masked plan."""
        node_of, rosters = self.federation.membership(self.group_tier), self.federation.rosters
        if rosters is None:
            return int(np.bincount(node_of).min())
        return min(int(np.bincount(node_of[present]).min()) for present in rosters.present)

    @property
    def continues_previous_plan(self) -> bool:
        """True if silos released before this plan; the epsilons include the earlier releases."""
        return bool(self.spent)

    @property
    def floor_declared(self) -> bool:
        """True if an information floor was declared; otherwise information counts the releases alone.

        A target on information alone is planned with a floor of 0, which declares nothing.
        """
        return self.coupling is not None or (self.floor is not None and bool(self.floor.any()))

    @cached_property
    def noise_variance(self) -> FloatArray:
        """The variance of each silo's noise in the sum of its region, w² sigma², in units of C²."""
        return figures.noise_variance(self)

    def effective_multiplier(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the noise multiplier that an observer of `tier` meets; see `figures.effective_multiplier`.

        Raises:
            ParameterError: No observer of the plan stands at `tier`.
        """
        names = self.federation.tier_names
        if tier is not None and tier not in names:
            near = suggestion(str(tier), names)
            raise ParameterError("plan.observer-unknown", observer=tier, known=listing(names), suggestion=near)
        return figures.effective_multiplier(
            self, tier, colluders=colluders, dropouts=dropouts, variance=self.noise_variance
        )

    @property
    def outermost_complete_tier(self) -> str:
        """The outermost tier whose sums always hold the noise of every region below."""
        return figures.outermost_complete_tier(self)

    def epsilon(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the epsilon against an observer of `tier`; see `effective_multiplier`."""
        shift = self._shift(tier, colluders=colluders, dropouts=dropouts)
        if self.unit.silos_per_person > 1:  # a person of the silo may also be in the silo with the largest shift
            shift = np.full_like(shift, shift.max())
        delta = self.target.accounted_delta
        spent = epsilon_of_shifts(shift, delta=delta, accountant=self.accountant)
        declared = self.federation.preferences
        if declared is not None:
            # Epsilons of many silos come from a table, which errs upward. A declared preference is a promise, so the
            # epsilon of such a silo is solved for.
            own = ~np.isnan(declared)
            spent[own] = epsilon_of_shifts(shift[own], delta=delta, accountant=self.accountant)
        return spent

    def worst_epsilon(self, tier: str | None = None) -> float:
        """Returns the largest epsilon of any silo against an observer of `tier`, solved for that silo alone."""
        worst = self.worst_shift(tier)
        return float(epsilon_of_shift(worst, delta=self.target.accounted_delta, accountant=self.accountant))

    def worst_shift(self, tier: str | None = None) -> float:
        """Returns the largest mu of any silo against an observer of `tier`, earlier releases included."""
        return float(self._shift(tier).max())

    def observer_power(self, tier: str | None = None) -> ObserverPower:
        """Returns the power of the best observer of `tier` against the worst-off silo, earlier releases included.

        In research the tight figures of continuous noise; in deployment the figures proven for lattice noise.
        """
        accountant = "renyi" if self.is_deployment else "exact"
        worst = self.worst_shift(tier)
        return observer_power_of_shift(worst, accountant=accountant, distance=self.reserve)

    def _shift(self, tier: str | None, *, colluders: int | None = None, dropouts: int | None = None) -> FloatArray:
        """Returns mu by silo, over all rounds and the earlier spending."""
        multiplier = self.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)
        kappa = figures.sensitivity(self, tier)
        shift = shift_of(multiplier / (kappa / self.unit.sensitivity), rounds=self.rounds, unit=self.unit)
        before = self.spent.get(self.federation.innermost.name if tier is None else tier)
        return np.asarray(shift if before is None else np.sqrt(shift**2 + before))

    @cached_property
    def lattice_steps(self) -> FloatArray | None:
        """The step of the lattice, one entry for each region, used by all silos of the region; None in research."""
        steps = figures.lattice_steps(self)
        return None if steps is None else read_only(steps)

    @cached_property
    def epsilon_above(self) -> FloatArray:
        """The epsilon by silo against any observer outside the silo's region who sees the sums of the innermost tier.

        If all silos are masked as one group: against any observer outside the federation who sees the global sum. A
        silo of another region sees the global sum as well and knows its own noise, so the epsilon against such a silo
        is `epsilon_inside`.
        """
        return read_only(self.epsilon())  # type: ignore[no-any-return]

    @cached_property
    def epsilon_inside(self) -> FloatArray:
        """The epsilon by silo against an observer inside the region, such as a curious aggregator.

        An aggregator sees single releases. With masked sums the observer inside is the server together with at least
        one silo of the region; of each region, if all silos are masked as one group.
        """
        return read_only(self.epsilon(SILO))  # type: ignore[no-any-return]

    @cached_property
    def person_epsilons(self) -> dict[str, float]:
        """The further worst epsilons of a plan for persons, by field of `PlanSummary`; empty if silos are protected.

        Above and inside in the second convention of neighbours, above for a person with records in two silos (where the
        plan provides for one silo), and above for a silo as a whole. In deployment an epsilon for which the reserve of
        delta does not cover the distance of lattice noise is infinite; above `NO_PROTECTION` a silo as a whole has the
        epsilon of Gaussian noise, which words call no protection.
        """
        further = self.gaussian_person_epsilons
        if self.purpose != "deployment":
            return further
        uncovered = {name for name, epsilon in further.items() if self.further_reserve(epsilon) > self.reserve}
        if further.get("whole_silo_above", 0.0) > NO_PROTECTION:
            uncovered.discard("whole_silo_above")
        return {name: math.inf if name in uncovered else epsilon for name, epsilon in further.items()}

    def further_reserve(self, epsilon: float) -> float:
        """Returns the part of delta that lattice noise costs at a further epsilon, in a sum of all silos."""
        return delta_reserve(
            rounds=self.rounds,
            parameters=check_parameters(self.parameters),
            members=len(self.federation),
            epsilon=epsilon,
        )

    @cached_property
    def gaussian_person_epsilons(self) -> dict[str, float]:
        """The further epsilons of persons, for Gaussian noise; see `person_epsilons`."""
        if not self.unit.is_within_silo:
            return {}
        inner, ratio = self.federation.innermost.name, ratio_of_conventions(self.unit)
        nothing = np.zeros(len(self.federation))

        def other(tier: str) -> float:
            past = self.spent.get(tier, nothing)
            shift = np.sqrt(np.maximum(self._shift(tier) ** 2 - past, 0.0))
            return float(np.hypot(ratio * shift, max(1.0, ratio) * np.sqrt(past)).max())

        shift, past = self._shift(inner), self.spent.get(inner, nothing)
        own = shift * self.unit.sensitivity / figures.sensitivity(self, inner)
        whole = math.inf if past.any() else float((own * self.largest_sums).max()) * whole_silo_ratio(self.unit)
        worst = {
            "other_neighbours_above": other(inner),
            "other_neighbours_inside": other(SILO),
            "whole_silo_above": whole,
        }
        if self.unit.silos_per_person == 1 and len(self.federation) > 1:
            node_of = self.federation.membership(figures.observed_tier(self, inner))
            worst["two_silos_above"] = _largest_pair(shift, np.zeros_like(node_of) if past.any() else node_of)
        delta = self.target.accounted_delta
        return {
            name: float(epsilon_of_shift(mu, delta=delta, accountant=self.accountant)) for name, mu in worst.items()
        }

    @cached_property
    def mechanism_information(self) -> FloatArray:
        """The nats by silo that all releases reveal of the silo's class concentration, beyond the floor.

        The observer stands above the silo's region.
        """
        information = mechanism_information(
            self.effective_multiplier(), rounds=self.rounds, bound=self.bound, parameters=self.parameters
        )
        return np.asarray(information + self.information_before(self.federation.innermost.name))

    def information_before(self, tier: str) -> FloatArray:
        """Returns by silo the nats that releases before this plan reveal to an observer of `tier`, at most."""
        spent = self.spent.get(tier, np.zeros(len(self.federation)))
        return np.asarray(information_of_shift(spent, bound=self.bound))

    @cached_property
    def noise_budget(self) -> float:
        """U: the noise variance entering the global model, in units of C²; where membership changes, mean of rounds."""
        return float(self.noise_variance.sum())

    @cached_property
    def model_noise(self) -> float:
        """The noise variance entering the model, in units of C²: the noise of regional sums by influence.

        Equal to `noise_budget` if the server adds the sums up; with a server that pools, the figure holds if regions
        agree. With momentum the figure is the noise of a server that adds up, at the same ratio of signal to noise
        after all rounds.
        """
        rule, inner = self.server_rule, self.federation.innermost
        if self.region_factors is None:
            return self.noise_budget * rule.noise_factor()
        scale = self.node_influence(inner.name) / sum_by(inner.parent_of, self.federation.shares, len(inner.nodes))
        return float((scale**2 * self.node_noise(inner.name)).sum()) * rule.noise_factor()

    @cached_property
    def uniform_noise_budget(self) -> float:
        """The budget that one multiplier for all needs to meet the same target; with rosters, the mean of rounds."""
        if self.phase_multiplier is not None:
            return uniform_budget(self.federation, self.requirement)
        uniform = allocate(self.federation, self.requirement, "uniform")
        return float(uniform[0] ** 2 * (self.federation.weights**2).sum())

    @property
    def uniform_model_noise(self) -> float:
        """The noise of one multiplier for all, counted as `model_noise` is: by the factor of the server's rule."""
        return self.uniform_noise_budget * self.server_rule.noise_factor()

    @cached_property
    def saving(self) -> float:
        """The share of the uniform budget that this plan does not need."""
        return 1 - self.noise_budget / self.uniform_noise_budget

    @cached_property
    def model_saving(self) -> float:
        """The share of uniform noise that does not enter the model: `saving`, unless the server pools sums."""
        if self.region_factors is None:  # the rule's factor cancels in the ratio
            return self.saving
        return 1 - self.model_noise / self.uniform_model_noise

    @cached_property
    def noise_lower_bound(self) -> float:
        """A proven bound on U: no allocation with these weights meets every target with less noise."""
        if self.phase_multiplier is not None:
            return proven_budget(self)
        return noise_lower_bound(self.federation, self.requirement)

    @cached_property
    def attainable_saving(self) -> float:
        """The largest share of the uniform budget that any allocation can save at these targets, by a proven bound."""
        return max(0.0, 1 - self.noise_lower_bound / self.uniform_noise_budget)

    @cached_property
    def dispersion(self) -> float:
        """The exposure dispersion of the innermost tier, for any targets.

        Dispersion is the saving of the optimum if the innermost tier alone has a target, the same for every silo. For
        the plan's own targets, see `attainable_saving`.
        """
        return dispersion(self.federation, colluders=self.colluders, dropouts=self.dropouts)

    def lattice_width(self, silo: int) -> float:
        """Returns the width of a silo's noise in lattice steps; deployment alone has a lattice."""
        return float(self.noise_multiplier[silo] * self.lattice_signal(silo) / self.largest_sums[silo])

    def lattice_signal(self, silo: int) -> float:
        """Returns the largest coordinate of a silo's clipped, weighted update, in lattice steps: w C for one unit."""
        if self.lattice_steps is None:
            raise PlanError("plan.lattice-missing")
        step = float(self.lattice_steps[self.federation.innermost.parent_of[silo]])
        return float(self.federation.weights[silo] * self.clip_norm / step * self.largest_sums[silo])

    def node_noise(self, tier: str) -> FloatArray:
        """Returns S by node of a tier: the noise variance in each sum of the tier, in units of C²."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.noise_variance, federation.node_count(tier))


def _largest_pair(shift: FloatArray, node_of: IntArray) -> float:
    """Returns the largest mu of a person in two silos: changes add up in one sum, their squares in two sums."""
    order = np.lexsort((-shift, node_of))
    node, sorted_shift = node_of[order], shift[order]
    together = np.where(node[1:] == node[:-1], sorted_shift[1:] + sorted_shift[:-1], 0.0)
    largest = np.sort(largest_by(node_of, shift, int(node_of.max()) + 1))[-2:]
    apart = float(np.hypot(*largest)) if len(largest) == 2 else 0.0
    return max(float(together.max()), apart)


_Plan = TypeVar("_Plan", bound=PlanFigures)


def changed_copy(plan: _Plan, **fields: Any) -> _Plan:
    """Returns a copy of a plan with other fields, for example keys; nothing is solved and nothing is checked.

    Every copy of a plan is made here, and every variant that is planned anew by `fulcrum.planning.planner.variant`.
    """
    return replace(plan, **fields)


def as_research(plan: _Plan) -> _Plan:
    """Returns a plan with the same noise in floating point, seeded: the lattice changes no figure of noise."""
    return changed_copy(plan, purpose="research")


def with_noise(plan: _Plan, allocation: str, noise_multiplier: FloatArray) -> _Plan:
    """Returns the same promise with other noise, drawn by silos or, under that injection, by aggregators.

    Nothing is checked: the result shows the figures of other noise. Where membership changes, one multiplier for each
    silo is no plan, and the call is refused.
    """
    check_one_roster(plan.federation, "other noise")
    own, injected = drawn_noise(plan.federation, noise_multiplier, plan.injection)
    return changed_copy(plan, allocation=allocation, noise_multiplier=own, aggregator_noise_multiplier=injected)


def with_uniform_noise(plan: _Plan) -> _Plan:
    """Returns the same promise kept with one multiplier for all silos."""
    if plan.federation.rosters is None:
        return with_noise(plan, "uniform", allocate(plan.federation, plan.requirement, "uniform"))
    by_phase, prices = noise_by_phase(plan.federation, plan.requirement, "uniform")
    largest = largest_multiplier(plan.federation, by_phase)
    return changed_copy(plan, allocation="uniform", noise_multiplier=largest, phase_multiplier=by_phase, prices=prices)


def drawn_noise(federation: Topology, multiplier: FloatArray, injection: str) -> tuple[FloatArray, FloatArray | None]:
    """Returns the noise multipliers of silos, and the noise multipliers of aggregators if aggregators draw the noise.

    If aggregators inject, silos draw nothing, and each region's sum has the same noise as before.
    """
    if injection == "silo":
        return read_only(multiplier), None
    inner = federation.innermost
    in_sum = sum_by(inner.parent_of, noise_variance(federation, multiplier), len(inner.nodes))
    return read_only(np.zeros(len(federation))), read_only(np.sqrt(in_sum))
