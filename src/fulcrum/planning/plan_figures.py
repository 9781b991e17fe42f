"""The figures of a plan: noise, epsilon against every observer, influence and savings, each computed when asked for.

>>> from fulcrum.planning.planner import plan
>>> made = plan("severe", rounds=10, epsilon=0.99, accountant="renyi")
>>> round(made.saving, 4), round(made.worst_epsilon("silo"), 2)
(0.7917, 10.06)

Figures are functions of the data and are cached. None of them solves for an allocation, prints or writes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.choices import BY_SILO
from fulcrum.core.plan import figures
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import PlanError
from fulcrum.planning.server_settings import requirement_of, server_rule_of
from fulcrum.planning.targets import Target
from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
from fulcrum.planning.theory.calibration import shift_of
from fulcrum.planning.theory.epsilon_table import epsilon_of_shifts
from fulcrum.planning.theory.exposure import dispersion
from fulcrum.planning.theory.leakage import information_of_shift, mechanism_information
from fulcrum.planning.theory.noise_bound import noise_lower_bound
from fulcrum.planning.theory.observer_power import ObserverPower, observer_power_of_shift
from fulcrum.rules.server_rule import ServerRule


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: figures are cached when first asked for
class PlanFigures(PlanData):
    """The data of a plan, with its figures."""

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
        )

    @cached_property
    def requirement(self) -> Requirement:
        """The effective multiplier that the target requires of each silo, by tier."""
        return requirement_of(self)

    @property
    def weights_given(self) -> bool:
        """True where weights of silos were declared, or given by silo, so that they may follow from sizes."""
        return self.federation.declared_weights is not None or self.weights_rule == BY_SILO

    @cached_property
    def server_rule(self) -> ServerRule:
        """The rule by which the server moves the model, with all that it knows of the regions beforehand."""
        return server_rule_of(self)

    @cached_property
    def influence(self) -> FloatArray:
        """By silo, its share of the model; they add up to 1.

        With a server that pools this is the share where regions agree; as they differ it moves toward that by size.
        """
        factors = self.server_rule.region_factors()
        if factors is None:
            return self.weights
        return read_only(self.weights * factors[self.federation.innermost.parent_of])  # type: ignore[no-any-return]

    def node_influence(self, tier: str) -> FloatArray:
        """Returns by node of a tier its share of the model; see `influence`."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.influence, federation.node_count(tier))

    @property
    def group_tier(self) -> str:
        """The tier whose sums are masked, where sums are: the root where it alone has a target."""
        return figures.group_tier(self)

    @property
    def one_group(self) -> bool:
        """True where all silos are masked as one group: the global sum is then the only sum that anybody sees."""
        return figures.is_one_group(self)

    @property
    def smallest_group(self) -> int:
        """How many silos the smallest sum holds that is masked, where sums are."""
        return int(np.bincount(self.federation.membership(self.group_tier)).min())

    @property
    def continues_previous_plan(self) -> bool:
        """True where silos released before this plan; its epsilons include those releases."""
        return bool(self.spent)

    @property
    def floor_declared(self) -> bool:
        """True where a lateral floor was declared; without one, information counts what the releases add and no more.

        A target on information alone is planned with a floor of 0, which declares nothing.
        """
        return self.coupling is not None or (self.floor is not None and bool(self.floor.any()))

    @cached_property
    def noise_variance(self) -> FloatArray:
        """By silo, the noise variance that it brings into its sum, w² sigma², in units of C²."""
        return figures.noise_variance(self)

    def effective_multiplier(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the noise multiplier that an observer of `tier` meets; see `figures.effective_multiplier`."""
        return figures.effective_multiplier(
            self, tier, colluders=colluders, dropouts=dropouts, variance=self.noise_variance
        )

    @property
    def outermost_complete_tier(self) -> str:
        """The outermost tier whose sums always hold the noise of every region below them."""
        return figures.outermost_complete_tier(self)

    def epsilon(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the epsilon against an observer of `tier`; see `effective_multiplier`."""
        shift = self._shift(tier, colluders=colluders, dropouts=dropouts)
        delta = self.target.accounted_delta
        spent = epsilon_of_shifts(shift, delta=delta, accountant=self.accountant)
        declared = self.federation.preferences
        if declared is not None:
            # Many silos are read off a table, which errs upward; those with a preference of their own are solved for.
            own = ~np.isnan(declared)
            spent[own] = epsilon_of_shifts(shift[own], delta=delta, accountant=self.accountant)
        return spent

    def worst_epsilon(self, tier: str | None = None) -> float:
        """Returns the largest epsilon of any silo against an observer of `tier`, solved for that silo alone."""
        worst = self.worst_shift(tier)
        return float(epsilon_of_shift(worst, delta=self.target.accounted_delta, accountant=self.accountant))

    def worst_shift(self, tier: str | None = None) -> float:
        """Returns the largest mu of any silo against an observer of `tier`, over all rounds and all released before."""
        return float(self._shift(tier).max())

    def observer_power(self, tier: str | None = None) -> ObserverPower:
        """Returns what the best observer of `tier` can do to the silo worst off, all that was released before included.

        In research the tight figures of continuous noise; in deployment what is proven for the lattice noise drawn.
        """
        accountant = "renyi" if self.purpose == "deployment" else "exact"
        worst = self.worst_shift(tier)
        return observer_power_of_shift(worst, accountant=accountant, distance=self.reserve)

    def _shift(self, tier: str | None, *, colluders: int | None = None, dropouts: int | None = None) -> FloatArray:
        """By silo, mu over all rounds and whatever was spent before."""
        multiplier = self.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)
        shift = shift_of(multiplier, rounds=self.rounds, unit=self.unit)
        before = self.spent.get(self.federation.innermost.name if tier is None else tier)
        return np.asarray(shift if before is None else np.sqrt(shift**2 + before))

    @cached_property
    def lattice_steps(self) -> FloatArray | None:
        """By region, the step of the lattice that its silos release on, the same for all; None in research."""
        steps = figures.lattice_steps(self)
        return None if steps is None else read_only(steps)

    @cached_property
    def epsilon_above(self) -> FloatArray:
        """By silo, against anyone outside its region who sees the sums of the innermost tier.

        Where all silos are masked as one group: against anyone outside the federation who sees the global sum. A silo
        of another region sees that sum as well and knows its own noise, so `epsilon_inside` is the epsilon against it.
        """
        return read_only(self.epsilon())  # type: ignore[no-any-return]

    @cached_property
    def epsilon_inside(self) -> FloatArray:
        """By silo, against whoever is inside: sees its own update, such as a curious regional aggregator.

        Where sums are masked, inside is the server together with one silo of its region at least; of each region,
        where all silos are masked as one group.
        """
        return read_only(self.epsilon(SILO))  # type: ignore[no-any-return]

    @cached_property
    def mechanism_information(self) -> FloatArray:
        """By silo, nats that all its releases reveal of its class concentration above its region, beyond the floor."""
        found = mechanism_information(
            self.effective_multiplier(), rounds=self.rounds, bound=self.bound, parameters=self.parameters
        )
        return np.asarray(found + self.information_before(self.federation.innermost.name))

    def information_before(self, tier: str) -> FloatArray:
        """Returns by silo the nats that its releases before this plan reveal to an observer of `tier`, at most."""
        spent = self.spent.get(tier, np.zeros(len(self.federation)))
        return np.asarray(information_of_shift(spent, bound=self.bound))

    @cached_property
    def noise_budget(self) -> float:
        """U: the noise variance entering the global model, in units of C²."""
        return float(self.noise_variance.sum())

    @cached_property
    def model_noise(self) -> float:
        """The noise variance entering the model, in units of C²: each region's sum by what it counts for.

        `noise_budget` where the server adds the sums up; with one that pools them, where regions agree. With momentum
        it is what a server that adds up would have for the same ratio of signal to noise after all rounds.
        """
        rule, inner = self.server_rule, self.federation.innermost
        if rule.region_factors() is None:
            return self.noise_budget * rule.noise_factor()
        scale = self.node_influence(inner.name) / sum_by(inner.parent_of, self.weights, len(inner.nodes))
        return float((scale**2 * self.node_noise(inner.name)).sum()) * rule.noise_factor()

    @cached_property
    def uniform_noise_budget(self) -> float:
        """The budget that one multiplier for all needs to meet the same target."""
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
        if self.server_rule.region_factors() is None:  # the rule's factor counts for both alike
            return self.saving
        return 1 - self.model_noise / self.uniform_model_noise

    @cached_property
    def noise_lower_bound(self) -> float:
        """A proven bound on U: no allocation with these weights meets every target with less noise."""
        return noise_lower_bound(self.federation, self.requirement)

    @cached_property
    def attainable_saving(self) -> float:
        """The largest share of the uniform budget that any allocation can save at these targets, by a proven bound."""
        return max(0.0, 1 - self.noise_lower_bound / self.uniform_noise_budget)

    @cached_property
    def dispersion(self) -> float:
        """The exposure dispersion of the innermost tier, whatever the targets are.

        It is what the optimum saves where that tier alone has a target, the same for every silo. For the targets that
        there are, `attainable_saving` is what can be saved.
        """
        return dispersion(self.federation, colluders=self.colluders, dropouts=self.dropouts)

    def lattice_width(self, silo: int) -> float:
        """Returns how wide a silo's noise is in lattice steps; deployment alone has a lattice."""
        return float(self.noise_multiplier[silo] * self.lattice_signal(silo))

    def lattice_signal(self, silo: int) -> float:
        """Returns how large a coordinate of a silo's clipped, weighted update may be, w C, in lattice steps."""
        if self.lattice_steps is None:
            raise PlanError("plan.lattice-missing")
        step = float(self.lattice_steps[self.federation.innermost.parent_of[silo]])
        return float(self.federation.weights[silo] * self.clip_norm / step)

    def node_noise(self, tier: str) -> FloatArray:
        """Returns S by node of a tier: the noise variance in each sum its observer sees, in units of C²."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.noise_variance, federation.node_count(tier))


_Plan = TypeVar("_Plan", bound=PlanFigures)


def with_noise(plan: _Plan, allocation: str, noise_multiplier: FloatArray) -> _Plan:
    """Returns the same promise with other noise, as silos would draw it; where aggregators draw it, with their sums.

    Nothing is checked: the result shows what other noise would give.
    """
    own, injected = drawn_noise(plan.federation, noise_multiplier, plan.injection)
    return replace(plan, allocation=allocation, noise_multiplier=own, aggregator_noise_multiplier=injected)


def with_uniform_noise(plan: _Plan) -> _Plan:
    """Returns the same promise kept with one multiplier for all silos."""
    return with_noise(plan, "uniform", allocate(plan.federation, plan.requirement, "uniform"))


def drawn_noise(federation: Topology, multiplier: FloatArray, injection: str) -> tuple[FloatArray, FloatArray | None]:
    """Returns the noise multipliers that silos draw, and those that aggregators draw in their place, if they do.

    Where aggregators inject, silos draw nothing, and each region's sum has the noise that it would have had.
    """
    if injection == "silo":
        return read_only(multiplier), None
    inner = federation.innermost
    in_sum = sum_by(inner.parent_of, noise_variance(federation, multiplier), len(inner.nodes))
    return read_only(np.zeros(len(federation))), read_only(np.sqrt(in_sum))
