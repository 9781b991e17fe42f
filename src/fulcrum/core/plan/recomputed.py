"""The figures of a plan file, recomputed from multipliers, weights and roster alone, without the solver.

The computation is deliberately different from the planner's: exact sums silo by silo (`math.fsum`), and coalitions by
sorting the silos of every region. Planner and recomputation share the accountant and the sensitivity of the unit alone.

>>> from fulcrum.planning.planner import plan
>>> severe = Recomputed(plan("severe", rounds=10, epsilon=0.99, accountant="renyi").content())
>>> f"{max(severe.epsilon('region')):.2f} {max(severe.epsilon('silo')):.2f}"
'0.99 10.06'
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.plan.plan_file import PlanFile, values_by_silo
from fulcrum.core.plan.plan_reader import persons_in, unit_in
from fulcrum.core.plan.recomputed_phases import RecomputedPhases
from fulcrum.core.topology import ROOT, SILO

_SOLVED_AT_ONCE = 1_000


class Recomputed:
    """The figures of a plan, from multipliers, weights and roster alone.

    Neighbouring relation: that of `unit`. All lists have an entry for every silo, in the order of the file.

    Attributes:
        settings: The settings of the file.
        unit: The unit of privacy, with the sensitivity kappa of an update of weight 1, over the clip norm.
        delta: The part of delta that accountants may use: the promised delta without the reserve of lattice noise.
        weight: The weight of a silo in the sums.
        squared: The squared weights.
        share: The share of a silo in the sum of all silos: the weight, times the number of persons if persons are
            protected.
        persons: The declared number of persons; 1 if silos are protected.
        largest_sum: The largest norm of a silo's update before the weight, in clip norms.
        multiplier: The noise multiplier of a silo's own noise.
        variance: The noise variance that a silo brings into a sum, over the squared clip norm.
        path: By tier, the node whose sum holds the silo.
        region: The innermost of these nodes.
        spent: By tier, the squared shift (mu²) spent before this plan.
        innermost: The tier that silos report to.
        tiers: All tiers, from "silo" to the root.
        group: The tier whose sums are masked; None if no sum is masked.
        complete: The outermost tier whose sums hold the noise of every region below in every round.
        phases: The noise by phase where membership changes, else None; `variance` is then the mean of all rounds.
        narrowest: The least multiplier that a silo draws in any round.
    """

    def __init__(self, content: PlanFile) -> None:
        settings = self.settings = content.settings
        self.unit = unit_in(content)
        self.persons = persons_in(content)
        self.largest_sum = [min(count, settings.silo_clip or math.inf) for count in self.persons]
        self._epsilon: dict[str, list[float]] = {}
        # A reserve below a rounding of delta would vanish in the difference: delta is then the next smaller number.
        promised, reserve = settings.delta, settings.reserve
        self.delta = min(promised - reserve, math.nextafter(promised, 0.0)) if reserve else promised
        sizes = [entry.records or 1.0 for entry in content.silos]
        total = math.fsum(sizes)
        self.weight = [
            size / total if entry.weight is None else entry.weight
            for size, entry in zip(sizes, content.silos, strict=True)
        ]
        self.share = [weight * count for weight, count in zip(self.weight, self.persons, strict=True)]
        self.squared = [weight**2 for weight in self.weight]
        self.multiplier = [entry.noise_multiplier for entry in content.silos]
        self.path = {SILO: [entry.silo for entry in content.silos], ROOT: [ROOT] * len(content.silos)}
        labels = [entry.node for entry in content.silos]
        for tier in content.federation.tiers:
            self.path[tier] = labels
            parents = {node.name: node.parent for node in content.tiers[tier]}
            labels = [parents[label] or "" for label in labels]
        self.spent = {tier: [(entry.spent or {}).get(tier, 0.0) for entry in content.silos] for tier in self.path}
        self.innermost = content.federation.tiers[0]
        self.group = group_tier(content) if settings.aggregation == "masked" else None
        self.tiers = [SILO, *content.federation.tiers, ROOT]
        self.complete = self._outermost_complete_tier()
        self.region = self.path[self.innermost]
        self.variance = [
            (weight * multiplier) ** 2 for weight, multiplier in zip(self.weight, self.multiplier, strict=True)
        ]
        if settings.injection == "aggregator":
            mass = sum_by_node(self.region, self.squared)
            noise = {node.name: node.noise_multiplier**2 for node in content.tiers[self.innermost]}
            self.variance = [
                squared * noise[region] / mass[region]
                for squared, region in zip(self.squared, self.region, strict=True)
            ]
        self.phases, self.narrowest = None, self.multiplier
        if content.silos[0].rounds is not None:
            self.phases = RecomputedPhases(content, self.squared, self.path)
            self.variance, self.narrowest = self.phases.mean_variance(), self.phases.least()

    def _outermost_complete_tier(self) -> str:
        """Returns the outermost tier of which every sum has the noise of all regions below in every round.

        An observer further out may see the sum of a single node of the tier:

        - by every server rule but "sum" the model may be a function of single regional sums;
        - a round that continues without absent regions may hold a single node.

        Silos masked as one group have a single sum, and the sum is unmasked whole or not at all.
        """
        if self.group == ROOT:
            return ROOT
        if self.settings.server != "sum":
            return self.innermost
        if not self.settings.absent_regions:
            return ROOT
        return max([self.innermost, *self.settings.epsilon], key=self.tiers.index)

    def less_spent_outside(self) -> bool:
        """Returns True if a silo had spent less before this plan further out than at the outermost complete tier."""
        inside = self.spent[self.complete]
        outer = self.tiers[self.tiers.index(self.complete) + 1 :]
        return any(less < more for tier in outer for less, more in zip(self.spent[tier], inside, strict=True))

    def remaining(self, variance: list[float], tier: str) -> list[float]:
        """Returns by silo the noise that conceals the silo at a tier (docs/maths.md, "Collusion and dropout").

        Excluded is the noise of the worst colluders and dropouts of every region below the node, the silos with the
        largest variance. A silo is never in its own coalition.

        Args:
            variance: By silo, the noise variance, or any other share of a sum.
            tier: The observer's tier. At "silo" a silo has its own noise alone; if sums are masked, the observer is
                the server with one silo of every region at least.
        """
        excluded_silos = self.excluded_silos(tier)
        if tier == SILO and self.group is None:
            return variance
        if tier == SILO:
            tier = self.group or tier
        by_region: dict[str, list[float]] = defaultdict(list)
        for region, value in zip(self.region, variance, strict=True):
            by_region[region].append(value)
        ordered = {region: sorted(values, reverse=True) for region, values in by_region.items()}
        node_of = dict(zip(self.region, self.path[tier], strict=True))
        # Noise is added up, never subtracted from a total: the noise of light silos would be lost to rounding there.
        parts = [(node_of[region], value) for region, values in ordered.items() for value in values[excluded_silos:]]
        left = sum_by_node((node for node, _ in parts), (value for _, value in parts))
        # A silo among the largest is not in its own coalition: the next largest of the region takes its place.
        edge = {region: next(iter(values[excluded_silos:]), 0.0) for region, values in ordered.items()}
        return [
            left.get(node, 0.0) + max(value - edge[region], 0.0)
            for region, node, value in zip(self.region, self.path[tier], variance, strict=True)
        ]

    def excluded_silos(self, tier: str) -> int:
        """Returns the number of silos of every region whose noise conceals no silo from an observer of a tier."""
        alone = tier != SILO or self.group is None
        return (self.settings.colluders if alone else max(1, self.settings.colluders)) + self.settings.dropouts

    def effective(self, tier: str) -> list[float]:
        """Returns by silo the effective multiplier against an observer of a tier."""
        if self.phases is not None:
            concealing = self.phases.concealing(self.observed_tier(tier), self.excluded_silos(tier))
            return [math.sqrt(noise) / weight for noise, weight in zip(concealing, self.weight, strict=True)]
        if tier == SILO and self.group is None:
            return self.multiplier
        remaining = self.remaining(self.variance, tier if tier == SILO else self.observed_tier(tier))
        return [math.sqrt(noise) / weight for noise, weight in zip(remaining, self.weight, strict=True)]

    def observed_tier(self, tier: str) -> str:
        """Returns the tier whose noise an observer of a tier meets."""
        if tier == SILO:
            return self.group or SILO
        # With a single masked group no observer sees a sum further in.
        return ROOT if self.group == ROOT else min(tier, self.complete, key=self.tiers.index)

    def sensitivity(self, tier: str) -> list[float]:
        """Returns kappa by silo; a person in up to h silos moves the sums of a node of m silos by sqrt(h min(h, m))."""
        most, nodes = self.unit.silos_per_person, self.path[self.observed_tier(tier)]
        members = Counter(nodes)
        return [self.unit.sensitivity * math.sqrt(most * min(most, members[node])) for node in nodes]

    def epsilon(self, tier: str) -> list[float]:
        """Returns by silo the epsilon against an observer of a tier, of this plan and all releases before."""
        if tier not in self._epsilon:
            epsilons = self.epsilon_at(tier, self.effective(tier))
            # A person in several silos may be in the silo with the largest epsilon, so this epsilon counts for all.
            several = self.unit.silos_per_person > 1
            self._epsilon[tier] = [max(epsilons)] * len(epsilons) if several else epsilons
        return self._epsilon[tier]

    def epsilon_at(self, tier: str, multipliers: Iterable[float]) -> list[float]:
        """Returns by silo the epsilon at a tier for effective multipliers: mu² = kappa² T / s² + mu² spent before.

        A multiplier of 0 has an infinite epsilon.
        """
        return self.epsilon_of_shifts(
            [
                math.hypot(shift, math.sqrt(before))
                for shift, before in zip(self._shifts_at(tier, multipliers), self.spent[tier], strict=True)
            ]
        )

    def shifts(self, tier: str) -> list[float]:
        """Returns mu by silo against an observer of a tier, over the rounds of the plan alone."""
        return self._shifts_at(tier, self.effective(tier))

    def _shifts_at(self, tier: str, multipliers: Iterable[float]) -> list[float]:
        root = math.sqrt(self.settings.rounds)
        return [
            kappa * root / multiplier if multiplier else math.inf
            for kappa, multiplier in zip(self.sensitivity(tier), multipliers, strict=True)
        ]

    def epsilon_of_shifts(self, shifts: list[float]) -> list[float]:
        """Returns the epsilon of every mu."""
        settings = self.settings
        distinct = sorted(set(shifts))
        epsilons: dict[float, float] = {}
        # In batches: the quadrature of the accountant holds a row for every shift, too many for a million silos.
        for start in range(0, len(distinct), _SOLVED_AT_ONCE):
            some = distinct[start : start + _SOLVED_AT_ONCE]
            solved = epsilon_of_shift(some, delta=self.delta, accountant=settings.accountant)
            epsilons |= zip(some, solved.tolist(), strict=True)
        return [epsilons[shift] for shift in shifts]

    def whole_silo_epsilons(self, multipliers: Iterable[float]) -> list[float]:
        """Returns by silo the epsilon of the silo as a whole: its sum moves by at most twice its largest sum."""
        root = 2 * math.sqrt(self.settings.rounds)
        return self.epsilon_of_shifts(
            [
                root * largest / multiplier if multiplier else math.inf
                for largest, multiplier in zip(self.largest_sum, multipliers, strict=True)
            ]
        )

    def uniform_budget(self) -> float:
        """Returns the least noise budget with the same multiplier for all silos that meets the requirement."""
        level = max(
            squared * required**2 / present
            for tier, requirement in self.settings.required_multiplier.items()
            for squared, required, present in zip(
                self.squared,
                values_by_silo(requirement, len(self.squared)),
                self.remaining(self.squared, tier)
                if self.phases is None
                else self.phases.concealing(self.observed_tier(tier), self.excluded_silos(tier), uniform=True),
                strict=True,
            )
        )
        return level * (math.fsum(self.squared) if self.phases is None else self.phases.mean_mass())

    def exposure(self, tier: str) -> dict[str, float]:
        """Returns by node of a tier the largest share of a silo in the squared weights that conceal the silo."""
        present = self.remaining(self.squared, tier)
        return largest_by_node(self.path[tier], [value / of for value, of in zip(self.squared, present, strict=True)])

    def dispersion(self) -> float:
        """Returns 1 - <rho>_V / rho_max at the innermost tier."""
        rho, mass = self.exposure(self.innermost), sum_by_node(self.region, self.squared)
        return 1 - math.fsum(rho[region] * mass[region] for region in rho) / math.fsum(self.squared) / max(rho.values())


def group_tier(content: PlanFile) -> str:
    """Returns the tier whose sums a masked plan masks: the root if the root alone has a target."""
    targets = set(content.settings.required_multiplier) - {SILO}
    return ROOT if targets == {ROOT} else content.federation.tiers[0]


def sum_by_node(nodes: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Returns by node the sum of the values, correctly rounded: the order of silos has no influence."""
    gathered: dict[str, list[float]] = defaultdict(list)
    for node, value in zip(nodes, values, strict=True):
        gathered[node].append(value)
    return {node: math.fsum(parts) for node, parts in gathered.items()}


def largest_by_node(nodes: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    """Returns by node the largest of the values."""
    largest: dict[str, float] = {}
    for node, value in zip(nodes, values, strict=True):
        largest[node] = max(largest.get(node, value), value)
    return largest
