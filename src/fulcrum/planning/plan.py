"""The plan itself: noise for every silo, and what it gives against every observer; immutable.

A plan carries all that its numbers follow from; every figure is computed when asked for. `fulcrum.planning.making`
makes plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.errors import ForeignPlanError, PlanError
from fulcrum.estimation.random_effects import mixed, mixing
from fulcrum.estimation.server import ServerRule
from fulcrum.federation.structure import ROOT, SILO, Federation
from fulcrum.fingerprint import fingerprint_of
from fulcrum.planning.advice import Advice, advice_on
from fulcrum.planning.guarantee import Guarantee
from fulcrum.planning.plan_content import content_of, epsilon_entry
from fulcrum.planning.plan_file import PlanFile, content_digest, to_json
from fulcrum.planning.recipes import BY_SILO
from fulcrum.planning.targets import Target
from fulcrum.privacy.accounting import ObserverPower, epsilon_of_shift, observer_power_of_shift
from fulcrum.privacy.allocation import Requirement, allocate, noise_variance
from fulcrum.privacy.exposure import check_count, dispersion, remaining_noise, sum_by
from fulcrum.privacy.lattice import check_parameters, lattice_step
from fulcrum.privacy.leakage import information_of_shift, mechanism_information
from fulcrum.privacy.noise_bound import noise_lower_bound
from fulcrum.privacy.weights import least_noise_of_one_tier, region_shares
from fulcrum.storage.files import write_whole


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: figures are cached when first asked for
class Plan:
    """Noise for every silo, and what it gives against every observer.

    Attributes:
        federation: Who reports to whom.
        target: What was promised: rounds, delta, accountant, epsilon by tier, information bound.
        allocation: The name of the rule that distributed the noise.
        requirement: What the target requires of each silo, by tier.
        noise_multiplier: By silo, in federation order: it adds N(0, (noise_multiplier * clip_norm)²) to each
            coordinate of its clipped update. All zero where aggregators inject.
        aggregator_noise_multiplier: By region, where aggregators inject: noise on the weighted sum over the clip norm.
        clip_norm: C.
        clip_share: The share of the clip norm at which updates are clipped before they are scaled up; 1 clips alone.
        weights_rule: How the federation's weights were chosen.
        least_influence: How much of its share by size every region has of the model at least.
        absent_regions: True where a round goes on without a region that has no sum.
        influence_mix: Which part of the regions' weights is by share, so that they have that much.
        rule_weights: By region, what it counts for by the rule alone; None where no shares are mixed in.
        server: One of `SERVERS`.
        shrink: Whether a server that pools takes off what does not stand out of the noise; one of `SHRINKS`.
        injection: One of `INJECTIONS`.
        seed: Of the allocations that draw.
        purpose: One of `PURPOSES`.
        moved: By silo that changed its region since the plan before, the region it was in.
        keys: Public keys by silo and region name, for those who insist on knowing their peers.
        file_digest: The digest of the file the plan was read from.
        issuer: The public key whose signature of that file was checked.
        as_read: The fingerprint of all of the above when the file was read.
    """

    federation: Federation
    target: Target
    allocation: str
    requirement: Requirement
    noise_multiplier: FloatArray
    aggregator_noise_multiplier: FloatArray | None
    clip_norm: float
    clip_share: float = 1.0
    weights_rule: str | float = "sizes"
    least_influence: float = 0.0
    absent_regions: bool = False
    influence_mix: float = 0.0
    rule_weights: FloatArray | None = None
    server: str = "sum"
    shrink: bool | str = False
    injection: str
    seed: int
    purpose: str = "research"
    moved: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    file_digest: str = field(default="", init=False)  # not copied to a changed plan, which neither is of that file
    issuer: str = field(default="", init=False)
    as_read: str = field(default="", init=False)

    @property
    def weights(self) -> FloatArray:
        """What each silo counts for in the sums; they add up to 1."""
        return self.federation.weights

    @property
    def weights_given(self) -> bool:
        """True where weights of silos were declared, or given by silo, so that they may follow from sizes."""
        return self.federation.declared_weights is not None or self.weights_rule == BY_SILO

    @cached_property
    def server_rule(self) -> ServerRule:
        """What the server does with the sums of the regions, and all that it knows of them beforehand."""
        inner = self.federation.innermost
        regions = len(inner.nodes)
        if self.server == "sum":
            return ServerRule.adding_up(regions)
        above = self.requirement.by_observer(self.federation)[0]
        return ServerRule.pooling(
            shares=read_only(region_shares(self.federation)),
            weight=read_only(sum_by(inner.parent_of, self.weights, regions)),
            variance=read_only(self.node_noise(inner.name) * self.clip_norm**2),
            least_noise=least_noise_of_one_tier(self.federation, above.multiplier, uncounted=above.uncounted),
            scale=self.clip_share,
            rounds=self.rounds,
            clip_norm=self.clip_norm,
            shrinks=self.shrink,
            least_influence=self.least_influence,
        )

    @cached_property
    def influence(self) -> FloatArray:
        """By silo, its share of the model; they add up to 1.

        With a server that pools this is the share where regions agree; as they differ it moves toward that by size.
        """
        if self.server == "sum":
            return self.weights
        inner, rule = self.federation.innermost, self.server_rule
        precision = rule.weight**2 / rule.variance
        share = precision / precision.sum()
        share = mixed(share, rule.shares, mixing(share, rule.shares, self.least_influence))
        return read_only(self.weights * (share / rule.weight)[inner.parent_of])  # type: ignore[no-any-return]

    def node_influence(self, tier: str) -> FloatArray:
        """Returns by node of a tier its share of the model; see `influence`."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.influence, federation.node_count(tier))

    @property
    def rounds(self) -> int:
        """T, the number of releases of each silo."""
        return self.target.rounds

    @property
    def delta(self) -> float:
        """The DP parameter."""
        return self.target.delta

    @property
    def accountant(self) -> str:
        """How noise becomes epsilon."""
        return self.target.accountant

    @property
    def epsilon_target(self) -> Mapping[str, float]:
        """By tier, the epsilon asked for."""
        return self.target.epsilon

    @property
    def colluders(self) -> int:
        """Silos of each region that may share their noise with an observer."""
        return self.target.colluders

    @property
    def dropouts(self) -> int:
        """Silos of each region that may be missing from a sum."""
        return self.target.dropouts

    @property
    def aggregation(self) -> str:
        """How sums are made, one of `AGGREGATIONS`."""
        return self.target.aggregation

    @property
    def group_tier(self) -> str:
        """The tier whose sums are masked, where they are: the root where it alone has a target."""
        return self.requirement.group_tier(self.federation)

    @property
    def one_group(self) -> bool:
        """True where all silos are masked as one group: the global sum is then the only sum that anybody sees."""
        return self.aggregation == "masked" and self.group_tier == ROOT

    @property
    def smallest_group(self) -> int:
        """How many silos the smallest sum holds that is masked, where sums are."""
        return int(np.bincount(self.federation.membership(self.group_tier)).min())

    @property
    def follows(self) -> bool:
        """Whether silos released before this plan, which its epsilons include."""
        return bool(self.target.spent)

    @property
    def parameters(self) -> int | None:
        """d, the number of trainable parameters, where given."""
        return self.target.parameters

    @property
    def floor(self) -> FloatArray | None:
        """The lateral floor by silo, where given."""
        return self.target.floor

    @property
    def floor_declared(self) -> bool:
        """True where a lateral floor was declared; without one, information counts what the releases add and no more.

        A target on information alone is planned with a floor of 0, which declares nothing.
        """
        return self.coupling is not None or (self.floor is not None and bool(self.floor.any()))

    @property
    def coupling(self) -> float | None:
        """The coupling behind the floor, where one was given."""
        return self.target.coupling

    @cached_property
    def noise_variance(self) -> FloatArray:
        """By silo, what it brings into its sum, w² sigma², in units of C²; an aggregator's noise is shared by w²."""
        if self.aggregator_noise_multiplier is None:
            return noise_variance(self.federation, self.noise_multiplier)
        region_of, squared = self.federation.innermost.parent_of, self.federation.weights**2
        mass = sum_by(region_of, squared, len(self.aggregator_noise_multiplier))
        return squared * (self.aggregator_noise_multiplier**2 / mass)[region_of]

    def effective_multiplier(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the noise multiplier that an observer of `tier` meets (the innermost tier by default).

        Args:
            tier: Where the observer stands. "silo" is inside: it sees single updates or, where sums are masked, is the
                server together with one silo of each region at least.
            colluders: Silos of each region that collude with the observer; the plan's own number by default.
            dropouts: Silos of each region that are missing from the sum; the plan's own number by default. Noise that
                aggregators inject is neither colluded away nor missing.
        """
        tier = self.federation.innermost.name if tier is None else tier
        if self.aggregation == "masked" and tier == SILO:
            tier, colluders = self.group_tier, max(1, self.colluders if colluders is None else colluders)
        elif self.one_group:  # nobody sees a sum further in
            tier = ROOT
        if tier == SILO:
            return self.noise_multiplier
        tier = self._tier_of_complete_sums(tier)
        uncounted = 0
        if self.injection == "silo":
            uncounted += self.colluders if colluders is None else check_count("colluders", colluders)
            uncounted += self.dropouts if dropouts is None else check_count("dropouts", dropouts)
        present = remaining_noise(self.federation, self.noise_variance, tier=tier, uncounted=uncounted)
        return np.sqrt(present) / self.federation.weights

    @property
    def outermost_complete_tier(self) -> str:
        """The outermost tier whose sums always hold the noise of every region below them.

        A pooling server's model is a function of single regional sums. Where a round goes on without absent regions,
        the global sum may be the sum of one region. In both cases the epsilon further out is that against an observer
        of this tier. A target counts on complete sums at its own tier. The one sum of silos that are masked as one
        group is unmasked whole or not at all.
        """
        tiers = self.federation.tier_names
        if self.one_group:
            return ROOT
        if self.server != "sum":
            return self.federation.innermost.name
        if not self.absent_regions:
            return tiers[-1]
        return max(self.federation.innermost.name, *self.epsilon_target, key=tiers.index)

    @property
    def needs_every_region(self) -> bool:
        """Whether a round that lacks the sum of one region must add up none.

        With a target on a tier between regions and federation, a round lacks whole nodes of that tier instead.
        """
        return self.outermost_complete_tier == ROOT

    def _tier_of_complete_sums(self, tier: str) -> str:
        """Returns the tier whose sums an observer of `tier` may see at worst."""
        tiers = self.federation.tier_names
        return min(tier, self.outermost_complete_tier, key=tiers.index)

    def epsilon(
        self, tier: str | None = None, *, colluders: int | None = None, dropouts: int | None = None
    ) -> FloatArray:
        """Returns by silo the epsilon against an observer of `tier`; see `effective_multiplier`."""
        shift = self._shift(tier, colluders=colluders, dropouts=dropouts)
        delta = self.target.accounted_delta
        spent = epsilon_of_shift(shift, delta=delta, accountant=self.accountant)
        declared = self.federation.preferences
        if declared is not None:
            # Many silos are read off a table, which errs upward; those with a preference of their own are solved for.
            own = ~np.isnan(declared)
            spent[own] = epsilon_of_shift(shift[own], delta=delta, accountant=self.accountant)
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
        return observer_power_of_shift(worst, accountant=accountant, distance=self.target.reserve)

    def _shift(self, tier: str | None, *, colluders: int | None = None, dropouts: int | None = None) -> FloatArray:
        """By silo, mu over all rounds and whatever was spent before."""
        multiplier = self.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)
        with np.errstate(divide="ignore"):
            shift = 2 * np.sqrt(self.rounds) / multiplier
        before = self.target.spent.get(self.federation.innermost.name if tier is None else tier)
        return np.asarray(shift if before is None else np.sqrt(shift**2 + before))

    def with_noise(self, allocation: str, noise_multiplier: FloatArray) -> "Plan":
        """Returns the same promise with other noise, as silos would draw it; where aggregators inject, with their sums.

        Nothing is checked: this is to look at what other noise would give.
        """
        own, injected = drawn_noise(self.federation, noise_multiplier, self.injection)
        return replace(self, allocation=allocation, noise_multiplier=own, aggregator_noise_multiplier=injected)

    def uniform(self) -> "Plan":
        """Returns the same promise kept with one multiplier for all."""
        return self.with_noise("uniform", allocate(self.federation, self.requirement, "uniform"))

    @cached_property
    def lattice_steps(self) -> FloatArray | None:
        """By region, the step of the lattice that its silos release on, the same for all; None in research."""
        if self.purpose != "deployment":
            return None
        step = lattice_step(
            least_weight=float(self.federation.weights.min()),
            clip_norm=self.clip_norm,
            parameters=check_parameters(self.parameters),
        )
        return read_only(np.full(len(self.federation.innermost.nodes), step))  # type: ignore[no-any-return]

    def cost(self, silo: int) -> dict[str, float]:
        """Returns the squared shift (mu²) that one release of a silo spends, by tier, from the silo outward.

        A tier is charged with the noise that the plan counts on there: at an outer tier, the noise of other regions
        counts only where the server adds up all regional sums or none (`outermost_complete_tier`).
        """
        return {
            tier: float(4 / self.effective_multiplier(tier)[silo] ** 2) if self.noise_multiplier[silo] else np.inf
            for tier in self.federation.tier_names
        }

    def cost_alone(self, silo: int) -> float:
        """Returns the squared shift that one release of a silo spends against somebody who sees its own update."""
        return float(4 / self.noise_multiplier[silo] ** 2) if self.noise_multiplier[silo] else np.inf

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
            self.effective_multiplier(), rounds=self.rounds, bound=self.target.bound, parameters=self.parameters
        )
        return np.asarray(found + self.information_before(self.federation.innermost.name))

    def information_before(self, tier: str) -> FloatArray:
        """Returns by silo the nats that its releases before this plan reveal to an observer of `tier`, at most."""
        spent = self.target.spent.get(tier, np.zeros(len(self.federation)))
        return np.asarray(information_of_shift(spent, bound=self.target.bound))

    @cached_property
    def noise_budget(self) -> float:
        """U: the noise variance entering the global model, in units of C²."""
        return float(self.noise_variance.sum())

    @cached_property
    def model_noise(self) -> float:
        """The noise variance entering the model, in units of C²: each region's sum by what it counts for.

        `noise_budget` where the server adds the sums up; with one that pools them, where regions agree.
        """
        if self.server == "sum":
            return self.noise_budget
        inner = self.federation.innermost.name
        scale = self.node_influence(inner) / self.server_rule.weight
        return float((scale**2 * self.node_noise(inner)).sum())

    @cached_property
    def uniform_noise_budget(self) -> float:
        """The budget that one multiplier for all needs to meet the same target."""
        uniform = allocate(self.federation, self.requirement, "uniform")
        return float(uniform[0] ** 2 * (self.federation.weights**2).sum())

    @cached_property
    def saving(self) -> float:
        """The share of the uniform budget that this plan does not need."""
        return 1 - self.noise_budget / self.uniform_noise_budget

    @cached_property
    def model_saving(self) -> float:
        """The share of the uniform budget that does not enter the model: `saving`, unless the server pools sums."""
        return 1 - self.model_noise / self.uniform_noise_budget

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

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What a reader of this plan should know, warnings first."""
        return advice_on(self)

    @property
    def statement(self) -> str:
        """The guarantee in one sentence, as the file holds it."""
        return self._guarantee.statement

    @property
    def promise(self) -> str:
        """The guarantee in one sentence, with epsilons as people are shown them: four digits, rounded up."""
        return self._guarantee.promise

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything the guarantee rests on."""
        return self._guarantee.assumptions

    @property
    def adjacency(self) -> str:
        """Which federations are neighbours."""
        return self._guarantee.adjacency

    def whom(self, tier: str) -> str:
        """Returns who the observer of a tier is, in words; that of `SILO` stands inside a region."""
        return self._guarantee.whom(tier)

    @property
    def _guarantee(self) -> Guarantee:
        inner = self.federation.innermost.name
        known = {inner: self.epsilon_above, SILO: self.epsilon_inside}
        outer = {tier: self.epsilon(tier) for tier in self.epsilon_target if tier not in known}
        return Guarantee(
            rounds=self.rounds,
            delta=self.delta,
            accountant=self.accountant,
            innermost=inner,
            worst={tier: epsilon_entry(float(epsilon.max())) for tier, epsilon in (known | outer).items()},
            targets=self.epsilon_target,
            injection=self.injection,
            purpose=self.purpose,
            colluders=self.colluders,
            dropouts=self.dropouts,
            follows=self.follows,
            sizes_known=self.federation.sizes_known,
            weights_given=self.weights_given,
            server=self.server,
            aggregation=self.aggregation,
            masked_tier=self.group_tier,
            smallest_group=self.smallest_group,
            regions=len(self.federation.innermost.nodes),
            complete_tier=self.outermost_complete_tier,
            less_spent_outside=self._less_spent_outside,
        )

    @property
    def _less_spent_outside(self) -> bool:
        """Whether a silo had spent less before this plan further out than at the outermost complete tier."""
        tiers, nothing = self.federation.tier_names, np.zeros(len(self.federation))
        complete = self.outermost_complete_tier
        inside = self.target.spent.get(complete, nothing)
        outer = tiers[tiers.index(complete) + 1 :]
        return any(bool((self.target.spent.get(tier, nothing) < inside).any()) for tier in outer)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 over all that the plan file says: that of the file, where the plan was read from one."""
        return self.file_digest or content_digest(self.content())

    @property
    def changed(self) -> bool:
        """Whether a field was changed in memory after the digest was taken, which then names another plan."""
        if self.file_digest:
            return (self.digest, self._fingerprint()) != (self.file_digest, self.as_read)
        return bool(self.issuer) or content_digest(replace(self).content()) != self.digest  # a copy has cached nothing

    def read_from(self, digest: str, *, issuer: str = "") -> "Plan":
        """Returns the plan as one that was read from a file of this digest; `issuer` is whose signature was checked."""
        found = replace(self)
        object.__setattr__(found, "file_digest", digest)
        object.__setattr__(found, "issuer", issuer)
        object.__setattr__(found, "as_read", found._fingerprint())
        return found

    def _fingerprint(self) -> str:
        return fingerprint_of(self, without=("as_read",))

    def content(self) -> PlanFile:
        """Returns the plan as its file holds it."""
        return content_of(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan file; an existing one stays until the new one is whole."""
        write_whole(path, to_json(self.content()))

    def check_federation(self, federation: Federation, *, source: str = "") -> None:
        """Raises `ForeignPlanError` unless the plan was made for this federation, read from `source`."""
        check_same_federation(self.federation, federation, source=source)

    def lattice_width(self, silo: int) -> float:
        """Returns how wide a silo's noise is in lattice steps; deployment alone has a lattice."""
        return float(self.noise_multiplier[silo] * self.lattice_signal(silo))

    def lattice_signal(self, silo: int) -> float:
        """Returns how large a coordinate of a silo's clipped, weighted update may be, w C, in lattice steps."""
        if self.lattice_steps is None:
            raise PlanError("a research plan has no lattice. Make one with purpose='deployment'")
        step = float(self.lattice_steps[self.federation.innermost.parent_of[silo]])
        return float(self.federation.weights[silo] * self.clip_norm / step)

    def node_noise(self, tier: str) -> FloatArray:
        """Returns S by node of a tier: the noise variance in each sum its observer sees, in units of C²."""
        federation = self.federation
        return sum_by(federation.membership(tier), self.noise_variance, federation.node_count(tier))


def check_same_federation(planned: Federation, federation: Federation, *, source: str = "") -> None:
    """Raises `ForeignPlanError` unless the federation of a plan is this one, read from `source`."""
    mine, theirs = planned.digest, federation.digest
    if mine != theirs:
        raise ForeignPlanError(
            f"the plan was made for another federation (digest {mine[:4]}.., expected {theirs[:4]}..). "
            f"Run: fulcrum plan {source or federation.name}"
        )


def drawn_noise(federation: Federation, multiplier: FloatArray, injection: str) -> tuple[FloatArray, FloatArray | None]:
    """Returns the noise multipliers that silos draw, and those that aggregators draw in their place, if they do.

    Where aggregators inject, silos draw nothing, and each region's sum has the noise that it would have had.
    """
    if injection == "silo":
        return read_only(multiplier), None
    inner = federation.innermost
    in_sum = sum_by(inner.parent_of, noise_variance(federation, multiplier), len(inner.nodes))
    return read_only(np.zeros(len(federation))), read_only(np.sqrt(in_sum))
