"""Targets, and the effective multiplier that they require of each silo by tier.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": [120, 80], "south": [300]})
>>> target = Target(rounds=10, delta=1e-5, accountant="renyi", epsilon={"region": 0.99})
>>> round(target.requirement(federation).multiplier["region"], 3)
25.821

An epsilon requires a multiplier through the accountant, an information bound K through the mechanism term of the
paper's Theorem 2, and a budget U buys the best epsilon, or the best K, for this much noise. A silo's declared
preference tightens the target of its region.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray, IntArray, read_only
from fulcrum.core.choices import Accountant, AggregationName, Bound
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import ParameterError, UnreachableTargetError, listing, suggestion
from fulcrum.planning.inputs.inside_observer import observer_names, stored_epsilon
from fulcrum.planning.theory.allocation import AllocationRule, Requirement, allocate, noise_variance
from fulcrum.planning.theory.calibration import epsilon_of, noise_for
from fulcrum.planning.theory.leakage import mechanism_information, multiplier_for_information
from fulcrum.planning.theory.prior import Coupling, lateral_floor

_LEAST_LEFT = 1e-9  # of a budget; with less left a release would be noise alone
_LEAST_ASKED = 1e-6  # an effective multiplier that conceals nothing
_LEAST_EPSILON = 1e-9  # below, an epsilon is as good as 0
_MOST_BUDGET = 1e100  # C²; its inverse is the least, or multipliers would be lost when squared
_MOST_INFORMATION = 1e6  # nats; more than any concentration has

Floor: TypeAlias = float | Sequence[float] | FloatArray | Mapping[str, float] | Coupling
"""An information floor in nats: a number, an array by silo, a mapping by region, or a coupling."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """The promise to every silo.

    Attributes:
        rounds: Number of releases, T.
        delta: The DP parameter.
        accountant: The rule that turns noise into epsilon.
        epsilon: By observer, the epsilon against the observer; the keys are those of `fulcrum.plan` or of a plan file.
        information: K in nats, the bound on the information about a silo's class concentration above its region: the
            floor and the information of the releases.
        floor: The information floor by silo in nats, or None without a floor.
        coupling: The coupling behind the floor, if given.
        bound: The rule that turns noise into information, "paper" or "capacity".
        parameters: Trainable parameters d; None is the limit of large d.
        budget: U, the noise variance entering the model, in units of C²; epsilon or information then follows from U.
        colluders: Silos of each region that may share their noise with an observer.
        dropouts: Silos of each region that may be missing from a sum.
        aggregation: One of `AGGREGATIONS`, which decides on the observer inside a region.
        reserve: The cost of the lattice sampler in delta; accountants get the rest.
        spent: By tier, the squared shift (mu²) that each silo has spent before; the promise includes the spending.
        unit: The unit of privacy.
        persons_per_silo: The declared number of persons of each silo, where the federation declares no sizes.
        silo_clip: The largest sum of a silo's clipped gradients, in clip norms; None: the declared number of persons.
        silo_epsilon: If persons are protected, the target for a silo as a whole, for the innermost tier.
    """

    rounds: int
    delta: float = 1e-5
    accountant: Accountant = "exact"
    epsilon: Mapping[str, float] = field(default_factory=dict)
    information: float | None = None
    floor: FloatArray | None = None
    coupling: float | None = None
    bound: Bound = "paper"
    parameters: int | None = None
    budget: float | None = None
    colluders: int = 0
    dropouts: int = 0
    aggregation: AggregationName = "trusted"
    reserve: float = 0.0
    spent: Mapping[str, FloatArray] = field(default_factory=dict)
    unit: PrivacyUnit = SILO_UNIT
    persons_per_silo: float | None = None
    silo_clip: float | None = None
    silo_epsilon: float | None = None

    @property
    def accounted_delta(self) -> float:
        """The delta of the accountants; below the promised delta even if the reserve is less than a rounding."""
        return min(self.delta - self.reserve, math.nextafter(self.delta, 0.0)) if self.reserve else self.delta

    @property
    def _accounting(self) -> dict[str, Any]:
        """The arguments of `epsilon_of` and `noise_for` but the first."""
        settings = {"rounds": self.rounds, "delta": self.accounted_delta}
        return settings | {"accountant": self.accountant, "unit": self.unit}

    def requirement(self, federation: Topology, *, least: float | None = None) -> Requirement:
        """Returns by tier the effective multiplier that epsilon, information and preferences require of each silo.

        Args:
            federation: The federation of the target.
            least: The least multiplier of every silo at the innermost tier.
        """
        required: dict[str, float | FloatArray] = {}
        for tier, epsilon in stored_epsilon(federation, self.epsilon, self.aggregation).items():
            required[tier] = self._multiplier_for_epsilon(federation, tier, epsilon)
        inner = federation.innermost.name
        tightened = [required.get(inner, 0.0)]
        if federation.preferences is not None:
            declared = np.where(np.isnan(federation.preferences), np.inf, federation.preferences)
            if self.unit.silos_per_person > 1:
                # A person of this silo may be in any other silo too: the strictest preference binds all silos.
                declared = np.full(len(federation), declared.min())
            tightened.append(self._multiplier_for_epsilon(federation, inner, declared))
        if self.information is not None:
            tightened.append(self._multiplier_for_information(federation))
        if self.silo_epsilon is not None:
            tightened.append(self._multiplier_for_whole_silos(federation))
        if least is not None:
            tightened.append(least * self._factor(federation, inner))
        if inner in required or len(tightened) > 1:
            combined = tightened[0]
            for other in tightened[1:]:
                combined = np.maximum(combined, other)
            required[inner] = float(combined) if np.ndim(combined) == 0 else combined
        masked = self.aggregation == "masked"
        return Requirement(multiplier=required, colluders=self.colluders, dropouts=self.dropouts, masked=masked)

    def reached_with_budget(self, federation: Topology, allocation: str | AllocationRule, seed: int) -> "Target":
        """Returns the target that the budget buys: the least worst K with a floor, else the least epsilon."""
        budget = self.budget
        if budget is None or not 1 / _MOST_BUDGET <= budget <= _MOST_BUDGET:
            raise ParameterError("target.budget-range", least=1 / _MOST_BUDGET, most=_MOST_BUDGET, budget=budget)

        # Both searches run over q, the multiplier required of the silo with the highest floor: noise grows with q.
        highest = None if self.floor is None else float(self.floor.max())

        def asking(least: float) -> Requirement:
            if highest is None:
                return self.requirement(federation, least=least)
            return self._with_information(highest, least).requirement(federation)

        def noise_spent(least: float) -> float:
            multiplier = allocate(federation, asking(least), allocation, seed=seed)
            return float(noise_variance(federation, multiplier).sum())

        least = _multiplier_for_budget(noise_spent, budget)
        if highest is not None:
            return self._with_information(highest, least)
        reached = epsilon_of(least, **self._accounting)
        if reached < _LEAST_EPSILON:
            raise ParameterError("target.budget-too-large", budget=budget, delta=self.delta)
        return replace(self, epsilon={federation.innermost.name: reached})

    def _with_information(self, highest: float, least: float) -> "Target":
        """Returns the target whose information bound requires `least` of the silo with the highest floor."""
        mechanism = mechanism_information(least, rounds=self.rounds, bound=self.bound, parameters=self.parameters)
        return replace(self, information=highest + float(mechanism))

    def _multiplier_for_epsilon(
        self, federation: Topology, tier: str, epsilon: float | FloatArray
    ) -> float | FloatArray:
        """Returns the effective multiplier at which the rounds to come and the earlier spending keep to an epsilon."""
        required, factor = noise_for(epsilon, **self._accounting), self._factor(federation, tier)
        if tier not in self.spent:
            return required * factor
        with np.errstate(divide="ignore"):
            allowed = self.unit.sensitivity**2 * self.rounds / np.asarray(required) ** 2
        left = allowed - self.spent[tier]  # mu² adds up over releases
        short = np.isfinite(allowed) & (left <= _LEAST_LEFT * allowed)
        if short.any():
            name = federation.silo_name(int(np.argmax(short)))
            raise UnreachableTargetError("target.budget-spent", silo=name, tier=tier)
        return np.asarray(self.unit.sensitivity * math.sqrt(self.rounds) / np.sqrt(left) * factor)

    def _factor(self, federation: Topology, tier: str) -> float | FloatArray:
        """Returns the factor, at least 1, by which persons with records in several silos raise the required multiplier.

        The factor belongs to effective multipliers against an observer of `tier`: 1 for all silos if a person has
        records in one silo, else an array by silo (`PrivacyUnit.factors`).
        """
        if self.unit.silos_per_person == 1:
            return 1.0
        if self.aggregation == "masked" and tier == SILO:  # the observer inside sees the sum of the masked group
            whole = set(self.epsilon) - {SILO} == {ROOT} and federation.preferences is None
            tier = ROOT if whole and self.silo_epsilon is None else federation.innermost.name
        node_of = federation.membership(tier)
        # The last bits of product and quotient may fall on the wrong side: a target is never overspent.
        return np.asarray(self.unit.factors(np.bincount(node_of))[node_of] * (1 + 2.0**-48))

    def _multiplier_for_whole_silos(self, federation: Topology) -> FloatArray:
        """Returns by silo the effective multiplier at which a silo as a whole keeps to its target.

        A silo's sum is at most its largest sum long, so replacing all data of the silo moves the sum by at most twice
        the largest sum.
        """
        if not isinstance(self.silo_epsilon, (int, float, np.number)) or not 0 < self.silo_epsilon < math.inf:
            raise ParameterError("target.silo-epsilon-range", epsilon=self.silo_epsilon)
        if federation.persons is None:
            raise ParameterError("unit.silo-alone", unit="silo")
        if self.spent:
            raise ParameterError("target.silo-epsilon-with-past")
        largest = federation.persons if self.silo_clip is None else np.minimum(federation.persons, self.silo_clip)
        required = noise_for(self.silo_epsilon, **(self._accounting | {"unit": SILO_UNIT}))
        return np.asarray(required * largest * (1 + 2.0**-48))

    def _multiplier_for_information(self, federation: Topology) -> float | FloatArray:
        bound = self.information
        if bound is None or not 0 < bound <= _MOST_INFORMATION:
            raise ParameterError("target.information-range", most=_MOST_INFORMATION, information=bound)
        floor = np.zeros(1) if self.floor is None else self.floor
        worst = int(np.argmax(floor))
        if bound <= floor[worst]:
            whose = f" of silo {federation.silo_name(worst)!r}" if floor.min() < floor.max() else ""
            raise UnreachableTargetError(
                "target.information-below-floor", information=bound, floor=floor[worst], whose=whose
            )
        levels, where = np.unique(floor, return_inverse=True)
        required = np.asarray(
            multiplier_for_information(bound - levels, rounds=self.rounds, bound=self.bound, parameters=self.parameters)
        )
        return float(required[0]) if len(levels) == 1 else required[where]


def epsilon_by_tier(
    federation: Topology, epsilon: float | Mapping[str, float] | None, aggregation: str | None = None
) -> dict[str, float]:
    """Returns epsilon targets under the keys that a plan stores; a number targets the innermost tier.

    Args:
        federation: The federation of the targets.
        epsilon: A number, or numbers by name of an observer.
        aggregation: The way sums are made, where the observer inside a region has a name; None where `epsilon` has the
            keys of a plan already.
    """
    if epsilon is None:
        return {}
    by_tier = dict(epsilon) if isinstance(epsilon, Mapping) else {federation.innermost.name: epsilon}
    names: Sequence[str] = federation.tier_names
    if aggregation is not None:
        by_tier, names = stored_epsilon(federation, by_tier, aggregation), observer_names(federation, aggregation)
    for tier, value in by_tier.items():
        if tier not in federation.tier_names:
            raise ParameterError(
                "target.tier-unknown",
                federation=federation.name,
                tier=tier,
                known=listing(names),
                suggestion=suggestion(tier, names),
            )
        if not (isinstance(value, (int, float, np.number)) and 0 < value < math.inf):
            raise ParameterError("target.epsilon-range", tier=tier, epsilon=value)
    return {tier: float(value) for tier, value in by_tier.items()}


def group_by_silo(federation: Topology) -> IntArray:
    """Returns the group of each silo with similar data: the declared group, else the region."""
    return federation.innermost.parent_of if federation.group is None else federation.group.parent_of


def floor_by_silo(federation: Topology, floor: Floor | None) -> FloatArray | None:
    """Returns the information floor of each silo in nats."""
    if floor is None:
        return None
    region_of, regions = federation.innermost.parent_of, federation.innermost.nodes
    if isinstance(floor, Coupling):
        group_of = group_by_silo(federation)
        sizes = np.bincount(group_of)
        values = np.asarray(lateral_floor(sizes, coupling=floor.strength), dtype=np.float64)[group_of]
    elif isinstance(floor, Mapping):
        unknown = next((name for name in floor if name not in regions), None)
        if unknown is not None:
            raise ParameterError(
                "floor.region-unknown",
                tier=federation.innermost.name,
                region=unknown,
                known=listing(regions),
                suggestion=suggestion(unknown, regions),
            )
        missing = next((name for name in regions if name not in floor), None)
        if missing is not None:
            raise ParameterError("floor.region-missing", tier=federation.innermost.name, region=missing)
        values = np.array([floor[name] for name in regions], dtype=np.float64)[region_of]
    else:
        try:
            values = np.array(floor, dtype=np.float64)
        except (TypeError, ValueError):
            raise ParameterError("floor.type", floor=floor) from None
        if values.ndim == 0:
            values = np.full(len(federation), float(values))
    if values.shape != (len(federation),):
        raise ParameterError("floor.shape", silos=len(federation), shape=values.shape)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ParameterError("floor.range")
    return read_only(values)  # type: ignore[no-any-return]


def _multiplier_for_budget(spent: Callable[[float], float], budget: float) -> float:
    """Returns the multiplier q at which the noise spent is the budget; spending never falls with q."""
    multiplier = math.sqrt(budget / spent(1.0))  # exact where spending is proportional to q²
    if math.isclose(spent(multiplier), budget, rel_tol=1e-12):
        return multiplier
    low = high = multiplier
    while spent(low) > budget:
        low /= 2
        if low < _LEAST_ASKED:
            raise UnreachableTargetError("target.budget-too-small", budget=budget, least=spent(low))
    while spent(high) < budget:
        high *= 2
    from scipy.optimize import brentq  # half a second: silos that read a plan never solve for it

    return float(brentq(lambda q: spent(q) - budget, low, high, xtol=1e-300, rtol=8.9e-16, maxiter=500))
