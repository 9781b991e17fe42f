"""The noise of a plan as a function of its regions, taken from the planner itself.

>>> from fulcrum.readers.profiles import profile
>>> noise = PlannedNoise(profile("consortium"), {"rounds": 10, "epsilon": 1.0})
>>> noise.structure.kind, round(noise.now, 4)
('largest', 1.3361)
>>> round(noise(np.zeros(50, dtype=np.intp)), 4)
0.2227

`PlannedNoise` asks the planner for the noise of any regions. Solvers need more: the share of each region in the noise,
which a `Structure` has. A structure is used only if its noise is the planner's for the regions of today and for two
further choices of regions; otherwise the noise has no structure, and the planner alone is asked.

- `largest`: weights do not depend on regions. A region needs the largest (w q)² of its silos; with a target inside, at
  least the sum of (w p)².
- `mass`: weights of least noise. The noise is 1 over the sum of squared masses; a mass is the sum of 1 / q.
- `means`: equal weights within regions. A region needs (share / number of silos)² times the largest q².
- `mixed`: weights of least noise, mixed with shares up to the least influence.
- `sizes`: silos that differ in nothing. The noise depends on the number of silos of each region alone.
- `other`: every other setting.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.core.masking.masking_thresholds import tolerates
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import SILO, Tier, Topology
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import draft_plan
from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
from fulcrum.planning.theory.prior import Coupling
from fulcrum.planning.theory.weights import least_noise_of_one_tier
from fulcrum.rules.random_effects import mix_shares, mixing_share

Kind = Literal["largest", "mass", "means", "mixed", "sizes", "other"]

_AGREEMENT = 1e-9  # relative, between a structure and the planner; needs are raised by 2e-14
_LARGEST_TABLE = 400  # silos of a region, for the noise by number of silos


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Structure:
    """The share of each region in the noise of a plan.

    Attributes:
        kind: The form of the share.
        first: By silo, (w q)² for `largest`, 1 / q for `mass` and `mixed`, q² for `means`.
        second: By silo, (w p)² for `largest` (0 without a target inside), the share of a silo for `means` and `mixed`.
        table: By number of silos from 0 up, the noise of a region for `sizes`; its squared mass if `inverse`.
        inverse: True if the noise is 1 over a sum over regions.
        factor: The factor of the server's rule.
        least_influence: The least influence of a region as a share of its share.
    """

    kind: Kind
    first: FloatArray
    second: FloatArray
    table: FloatArray | None = None
    inverse: bool = False
    factor: float = 1.0
    least_influence: float = 0.0

    def of_members(self, members: IntArray) -> tuple[float, float]:
        """Returns the two figures of a region by which `total` counts the region."""
        if self.kind == "sizes":
            return float(len(members)), 0.0
        first = self.first[members]
        own = float(first.sum()) if self.kind in ("mass", "mixed") else float(first.max())
        if self.kind == "means":
            return own / len(members) ** 2, float(self.second[members].sum())
        return own, float(self.second[members].sum())

    def total(self, figures: FloatArray) -> float:
        """Returns the noise of regions by their figures, a row for every region."""
        own, summed = figures[:, 0], figures[:, 1]
        if self.kind == "largest":
            noise = float(np.maximum(own, summed).sum())
        elif self.kind == "means":
            noise = float((own * summed**2).sum())
        elif self.kind == "mass":
            noise = 1 / float((own**2).sum())
        elif self.kind == "sizes" and self.table is not None:
            added = float(self.table[own.astype(np.intp)].sum())
            noise = 1 / added if self.inverse else added
        else:
            by_rule = own**2 / (own**2).sum()
            share = mix_shares(by_rule, summed, mixing_share(by_rule, summed, self.least_influence))
            noise = float(((share / own) ** 2).sum())
        return noise * self.factor

    def noise(self, region_of: IntArray) -> float:
        """Returns the noise of regions."""
        groups = np.unique(region_of, return_inverse=True)[1]
        return self.total(np.array([self.of_members(members) for members in members_of(groups)]))


class PlannedNoise:
    """The noise entering the model by the planner, for any regions of the silos of a federation.

    Attributes:
        federation: The federation with the regions of today.
        today: The plan for the regions of today.
        now: The noise of that plan.
        structure: The share of each region in the noise.
        mass: By silo, 1 / q for the target on regional sums: no weights whose sum is 1 need less noise than 1 over the
            sum of squared masses. None if some silo has no target on regional sums.
    """

    def __init__(self, federation: Topology, settings: Mapping[str, Any], node_of: IntArray | None = None) -> None:
        if settings.get("budget") is not None:
            raise ParameterError("design.target-missing")
        if isinstance(settings.get("floor"), Mapping):
            raise ParameterError("design.floor-by-region")
        self.federation, self._settings = federation, dict(settings)
        self.today: Plan = draft_plan(federation, **self._settings)
        self.now = float(self.today.model_noise)
        inner = federation.innermost.name
        required = self.today.requirement.multiplier
        if not {inner, SILO} & set(required):
            raise ParameterError("design.regions-irrelevant", tier=inner, observed=", ".join(required))
        self._node_of = np.zeros(len(federation), dtype=np.intp) if node_of is None else node_of
        self.mass = self._least_mass()
        self.structure = self._agreeing_structure()

    def __call__(self, region_of: IntArray) -> float:
        """Returns the noise of regions; infinite if the settings cannot be met, as with too few silos to mask."""
        try:
            return float(draft_plan(self.topology(region_of), **self._settings).model_noise)
        except UnreachableTargetError:
            return float("inf")

    def topology(self, region_of: IntArray) -> Topology:
        """Returns the federation with the regions, named by numbers, and the outer tiers of the first silos."""
        first, places = np.unique(region_of, return_index=True, return_inverse=True)[1:]
        order = np.argsort(np.argsort(first))
        tiers = [
            Tier(name=self.federation.innermost.name, nodes=tuple(map(str, range(len(first)))), parent_of=order[places])
        ]
        for tier in self.federation.tiers[1:]:
            nodes = self.federation.membership(tier.name)
            below = self._codes(tiers)
            parent = np.zeros(len(tiers[-1].nodes), dtype=np.intp)
            parent[below[::-1]] = nodes[::-1]
            used, parent = np.unique(parent, return_inverse=True)
            tiers.append(Tier(name=tier.name, nodes=tuple(tier.nodes[node] for node in used), parent_of=parent))
        return replace(self.federation, tiers=tuple(tiers))

    @property
    def smallest_group(self) -> int:
        """The fewest silos of a region from which on the settings can mask every region; 1 without masks."""
        plan, smallest = self.today, 1
        if plan.aggregation != "masked":
            return 1
        for members in range(2, 4 * (plan.colluders + plan.dropouts + 2)):
            colluders = min(max(1, plan.colluders), members - 1)
            if not tolerates(members, colluders=colluders, dropouts=min(plan.dropouts, members - 1)):
                smallest = members + 1
        return smallest

    def _codes(self, tiers: list[Tier]) -> IntArray:
        codes = tiers[0].parent_of
        for tier in tiers[1:]:
            codes = tier.parent_of[codes]
        return codes

    def _above(self) -> Requirement:
        return self.today.requirement.by_observer(self.today.federation)[0]

    def _least_mass(self) -> FloatArray | None:
        """Returns 1 / q by silo for the least that any regions require: no floor of regions, persons in one silo."""
        target, federation = self.today.target, self.today.federation
        if target.coupling is not None and federation.group is None:
            target = replace(target, floor=np.zeros(len(federation)))
        target = replace(target, unit=replace(target.unit, silos_per_person=1))
        required = np.asarray(target.requirement(federation).multiplier.get(federation.innermost.name, 0.0))
        required = np.broadcast_to(required, (len(federation),)) / (
            1.0 if federation.persons is None else federation.persons
        )
        return None if required.min() <= 0 else np.asarray(1 / required)

    def _agreeing_structure(self) -> Structure:
        """Returns the first structure with the noise of the planner."""
        trials = list(self._trials())
        for structure in self._candidates():
            if all(abs(structure.noise(regions) - noise) <= _AGREEMENT * noise for regions, noise in trials):
                return structure
        nothing = np.zeros(len(self.federation))
        return Structure(kind="other", first=nothing, second=nothing)

    def _trials(self) -> Iterator[tuple[IntArray, float]]:
        """Yields regions with the noise of the planner: the regions of today, and two choices by a fixed seed."""
        yield self.federation.innermost.parent_of, self.now
        random, silos = np.random.default_rng(0), len(self.federation)
        for parts in (2, max(2, silos // 4)):
            draws = random.integers(0, parts, silos)
            regions = np.unique(self._node_of * parts + draws, return_inverse=True)[1]
            noise = self(regions)
            if np.isfinite(noise):
                yield regions, noise

    def _candidates(self) -> Iterator[Structure]:
        """Yields the structures that the settings can have."""
        plan, federation = self.today, self.today.federation
        factor, single = plan.server_rule.noise_factor(), self._has_same_requirement_everywhere()
        tiers, nothing = set(plan.requirement.multiplier), np.zeros(len(federation))
        largest, all_count = self.largest_need, not plan.requirement.excluded_silos
        one_part = len(plan.requirement.by_observer(federation)) == 1 and all_count
        if largest is not None and one_part and not tiers - {federation.innermost.name, SILO}:
            yield largest
        if single and tiers == {federation.innermost.name} and all_count and self.mass is not None:
            shares, least = federation.sizes / federation.sizes.sum(), plan.least_influence
            yield Structure(kind="mass", first=self.mass, second=nothing, inverse=True, factor=factor)
            yield Structure(kind="means", first=1 / self.mass**2, second=shares, factor=factor)
            yield Structure(kind="mixed", first=self.mass, second=shares, factor=factor, least_influence=least)
        most = int(min(len(federation), _LARGEST_TABLE))
        if single and self._silos_are_alike():
            sums_alone = tiers == {federation.innermost.name}
            for inverse in (False, True) if sums_alone else (False,):
                table = self._noise_by_size(most, inverse=inverse)
                padded = np.append(table, np.full(len(federation) - most, np.inf))
                yield Structure(
                    kind="sizes", first=nothing, second=nothing, table=padded, inverse=inverse, factor=factor
                )

    @property
    def largest_need(self) -> Structure | None:
        """The structure of weights that do not depend on regions, without coalitions; None for other weights.

        Targets on outer tiers and coalitions raise the noise, so the structure then bounds the noise from below.
        """
        plan, federation = self.today, self.today.federation
        fixed = plan.weights_rule == "sizes" or (plan.weights_rule in (DECLARED, BY_SILO) and not plan.least_influence)
        alike = plan.weights_rule == "equal" and self._silos_are_alike()
        if not (fixed or alike) or not self._has_same_requirement_everywhere() or plan.region_factors is not None:
            return None
        requirement = plan.requirement
        need = np.broadcast_to(requirement.need(federation, federation.innermost.name), (len(federation),))
        inside = np.zeros(len(federation))
        if not requirement.masked:
            inside = np.broadcast_to(requirement.need(federation, SILO), (len(federation),))
        factor = plan.server_rule.noise_factor()
        return Structure(kind="largest", first=np.asarray(need), second=np.asarray(inside), factor=factor)

    def _has_same_requirement_everywhere(self) -> bool:
        """Returns True if no requirement depends on the regions."""
        floor = self._settings.get("floor")
        return self.today.unit.silos_per_person == 1 and not isinstance(floor, Coupling)

    def _silos_are_alike(self) -> bool:
        federation = self.today.federation
        columns = [federation.sizes, *self.today.requirement.multiplier.values()]
        columns += [] if federation.persons is None else [federation.persons]
        columns += [federation.shares] if self.today.weights_rule in (DECLARED, BY_SILO) else []
        return all(np.ptp(np.asarray(column)) <= 1e-12 * np.max(np.abs(column)) for column in columns)

    def _noise_by_size(self, most: int, *, inverse: bool) -> FloatArray:
        """Returns by number of silos the noise of a region of equal silos, or its squared mass if `inverse`."""
        federation, sizes = self.today.federation, np.arange(1, most + 1)
        region_of = np.repeat(np.arange(most), sizes)
        name = federation.innermost.name
        tier = Tier(name=name, nodes=tuple(map(str, range(most))), parent_of=region_of)
        silos = len(region_of)
        persons = None if federation.persons is None else np.full(silos, float(federation.persons[0]))
        apart = Topology(name="sizes", sizes=np.ones(silos), tiers=(tier,), persons=persons)
        if inverse:
            above = self._above()
            multiplier = {tier: float(np.max(required)) for tier, required in above.multiplier.items()}
            gains = [0.0]
            for size in range(1, most + 1):
                rows = region_of == size - 1
                alone = replace(
                    apart,
                    sizes=np.ones(size),
                    tiers=(Tier(name=name, nodes=("0",), parent_of=np.zeros(size, dtype=np.intp)),),
                    persons=None if persons is None else persons[rows],
                )
                gains.append(1 / least_noise_of_one_tier(alone, multiplier, excluded_silos=above.excluded_silos))
            return np.array(gains)
        requirement = self.today.requirement
        single = {tier: float(np.max(required)) for tier, required in requirement.multiplier.items()}
        if set(single) - {name, SILO}:
            return np.full(most + 1, np.inf)
        weighted = replace(apart, chosen_weights=np.full(silos, float(federation.weights.mean())))
        noise = noise_variance(
            weighted, allocate(weighted, replace(requirement, multiplier=single), self.today.allocation)
        )
        return np.append(0.0, sum_by(region_of, noise, most))


def members_of(groups: IntArray) -> list[IntArray]:
    """Returns the silos of every group, for groups numbered from 0."""
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.cumsum(np.bincount(groups))[:-1])
