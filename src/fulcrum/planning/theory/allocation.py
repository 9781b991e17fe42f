"""Targets to noise: the least noise, by silo, for the target of every observer on a tree of any depth.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes(
...     {"capital": [0.5], "province": [0.05] * 10}, outer={"country": {"all": ["capital", "province"]}}
... )
>>> multiplier = allocate(federation, Requirement(multiplier={"region": 1.0, "country": 2.0}))
>>> (multiplier**2).round(3).tolist()[:3]
[3.636, 3.636, 3.636]

A target on a tier requires of silo i an effective multiplier q_i against an observer of the sums of the tier, so node v
needs noise variance S_v >= need_v = max over the silos of v of w_i² q_i². The least total is, bottom up,

    S_v = max(need_v, sum of S over v's children)

Many allocations have this total. The allocation with the largest smallest multiplier raises, at every node with too
little noise, the lowest multipliers among the silos of the node to a common level. With one tier the result is the
paper's Theorem 3, sigma_i² = S_r / V_r. An allocation is a callable that returns noise multipliers up to a common
factor; the factor is then the smallest that meets every target, so all allocations are compared at the same guarantee.
"""

import importlib
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.remaining_noise import largest_by, remaining_noise, sum_by
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import AllocationError, ParameterError, UnreachableTargetError, listing, suggestion

_ROUNDING = 1 + 2e-14
"""Needs are raised by this much, so that rounding in sums and square roots never leaves a silo short."""

_BISECTIONS = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requirement:
    """The effective multiplier required of every silo, by tier.

    Attributes:
        multiplier: Tier name to q, a number for all silos or an array by silo; a tier without an entry requires
            nothing.
        colluders: Silos of each region that share their noise with the observer.
        dropouts: Silos of each region that may be missing from a sum.
        masked: True for masked sums. The tier "silo" then stands for the server with at least one silo of each region:
            an observer of sums alone.
    """

    multiplier: Mapping[str, float | FloatArray]
    colluders: int = 0
    dropouts: int = 0
    masked: bool = False

    @property
    def excluded_silos(self) -> int:
        """The number of silos of each region whose noise does not count, the worst silos for each silo."""
        return self.colluders + self.dropouts

    def __getattr__(self, name: str) -> Any:
        """Returns `excluded_silos` by its earlier name, with a warning."""
        if name != "uncounted":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        message = "Requirement.uncounted goes with version 0.3. Use Requirement.excluded_silos"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.excluded_silos

    def group_tier(self, federation: Topology) -> str:
        """Returns the tier whose sums the server gets when sums are masked: the root if the root alone has a target."""
        return ROOT if set(self.multiplier) - {SILO} == {ROOT} else federation.innermost.name

    def by_observer(self, federation: Topology) -> "tuple[Requirement, ...]":
        """Returns the requirement against observers of sums, and the requirement against observers inside.

        Without masks both are one requirement, since the tier "silo" is then a tier like the rest.
        """
        if not self.masked or SILO not in self.multiplier:
            return (self,)
        sums = {tier: required for tier, required in self.multiplier.items() if tier != SILO}
        inside = replace(
            self,
            multiplier={self.group_tier(federation): self.multiplier[SILO]},
            colluders=max(1, self.colluders),
            masked=False,
        )
        return (*([replace(self, multiplier=sums, masked=False)] if sums else []), inside)

    def need(self, federation: Topology, tier: str) -> FloatArray:
        """Returns by silo the noise variance that a sum of `tier` needs to conceal the silo: (w q)² in units of C².

        w is the weight of the silo, and q the effective noise multiplier that the tier requires.
        """
        required = self.multiplier.get(tier, 0.0)
        return (federation.weights * required) ** 2 * _ROUNDING


AllocationRule: TypeAlias = Callable[[Topology, Requirement], FloatArray]
"""An allocation up to a common factor: noise multipliers by silo in federation order."""


def allocate(
    federation: Topology, requirement: Requirement, allocation: str | AllocationRule = "optimal", *, seed: int = 0
) -> FloatArray:
    """Returns the noise multiplier of each silo under an allocation, scaled to meet the requirement exactly.

    Guarantees:

    - every silo has at least the required effective multiplier at every tier, rounding included;
    - colluders and dropouts are the worst silos for each silo; the silo's own noise always counts.

    Args:
        federation: The silos and the tree of regions above them.
        requirement: The effective multiplier required of each silo.
        allocation: One of `ALLOCATIONS`, "module:function", or a callable of the type `AllocationRule`.
        seed: For `misallocated`, the order in which regions are dealt their noise.

    Raises:
        ParameterError: No target is given, or the allocation is unknown or does not take these targets.
        UnreachableTargetError: A target requires infinite noise.
        AllocationError: A user's allocation fails, or returns no noise multipliers for this federation.
    """
    _check_requirement(federation, requirement)
    parts = requirement.by_observer(federation)
    if parts != (requirement,):  # the larger multiplier is enough against both observers, as noise never harms
        noise = [allocate(federation, part, allocation, seed=seed) for part in parts]
        return np.asarray(np.maximum.reduce(noise))
    if allocation == "optimal":
        multiplier = np.sqrt(_least_variance(federation, requirement))
    elif allocation == "least-under-collusion":
        multiplier = np.sqrt(_least_variance_under_collusion(federation, requirement))
    else:
        multiplier = _shape(federation, requirement, allocation, seed)
        multiplier = multiplier * math.sqrt(_factor(federation, requirement, multiplier))
    # Sums over very many silos round by more than `_ROUNDING`. The loop makes up for the missing noise, a little
    # more each time, since the raised sums round anew.
    step = _ROUNDING - 1
    while (shortfall := _factor(federation, requirement, multiplier) / _ROUNDING) > 1:
        multiplier = multiplier * math.sqrt(shortfall + step)
        step *= 2
    return multiplier


ALLOCATIONS: dict[str, str] = {
    "optimal": "the least noise that meets every target with one multiplier a region; with colluders or dropouts and "
    "targets on outer tiers it meets them, with at times more than the least noise",
    "uniform": "one multiplier for every silo",
    "size": "multiplier proportional to 1/sqrt(m), m the number of silos in the region",
    "inverse-size": "multiplier proportional to 1/m, the rule of trusted aggregators",
    "misallocated": "the optimal multipliers dealt to the regions in a random order",
    "least-under-collusion": "with colluders or dropouts, the least noise when multipliers may differ within a region",
}
"""The built-in allocations, each with a description."""


def noise_variance(federation: Topology, multiplier: FloatArray) -> FloatArray:
    """Returns by silo the variance of the silo's noise in the sum of its region, w² sigma², in units of C²."""
    return (federation.weights * multiplier) ** 2


def load_allocation(name: str) -> AllocationRule:
    """Returns the function that "module:function" names."""
    module_name, _, function_name = name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:  # a user's module may raise any exception on import
        raise AllocationError("allocation.not-loadable", allocation=name, reason=str(error)) from error
    if not callable(function):
        raise AllocationError("allocation.not-callable", allocation=name)
    return function  # type: ignore[no-any-return]  # its result is checked when it is called


def _check_requirement(federation: Topology, requirement: Requirement) -> None:
    if not requirement.multiplier:
        raise ParameterError("plan.target-missing")
    for tier, required in requirement.multiplier.items():
        if tier not in (SILO, ROOT):
            federation.tier(tier)
        if not np.isfinite(required).all():
            raise UnreachableTargetError("allocation.noise-infinite", tier=tier)


def _least_variance(federation: Topology, requirement: Requirement) -> FloatArray:
    """Returns sigma² by silo at the optimum of the tree."""
    region_of, regions = federation.innermost.parent_of, len(federation.innermost.nodes)
    squared = federation.weights**2
    base = np.asarray(requirement.multiplier.get(SILO, 0.0)) ** 2 * _ROUNDING
    # Silos of a region share one level unless the tier `silo` requires different levels. The tree is therefore solved
    # on blocks: a block is a region, or a silo if levels differ within regions. A million silos are few regions.
    if base.ndim == 0:
        block_of, mass, level = region_of, sum_by(region_of, squared, regions), np.full(regions, float(base))
    else:
        block_of, mass, level = np.arange(len(federation)), squared, base.copy()
    parent = np.arange(regions) if base.ndim == 0 else region_of
    for tier in federation.tier_names[1:]:
        if tier != federation.innermost.name:
            above = np.zeros(parent.max() + 1, np.intp) if tier == ROOT else federation.tier(tier).parent_of
            parent = above[parent]
        if tier not in requirement.multiplier:
            continue
        if requirement.excluded_silos:
            level = _raise_levels_against_coalitions(federation, requirement, tier, block_of, parent, level)
        else:
            need = largest_by(
                federation.membership(tier), requirement.need(federation, tier), federation.node_count(tier)
            )
            level = _raise_levels(mass, level, parent, need)
    return level[block_of]


def _raise_levels(mass: FloatArray, level: FloatArray, node_of: IntArray, need: FloatArray) -> FloatArray:
    """Raises the lowest levels at every node with too little noise, until the node has the noise that it needs.

    The common level L of a node solves: sum of mass * max(level, L) = need.
    """
    have, weight = sum_by(node_of, mass * level, len(need)), sum_by(node_of, mass, len(need))
    short = need > have
    common = need / weight
    simple = short & (common >= largest_by(node_of, level, len(need)))  # every level of the node is raised
    raised = np.where(simple[node_of], common[node_of], level)
    partial = short & ~simple
    if not partial.any():
        return raised
    blocks = np.flatnonzero(partial[node_of])
    blocks = blocks[np.lexsort((level[blocks], node_of[blocks]))]
    node = node_of[blocks]
    last = np.append(node[1:] != node[:-1], True)
    start = np.flatnonzero(np.append(True, last[:-1]))
    lengths = np.diff(np.append(start, len(blocks)))

    def running(values: FloatArray) -> FloatArray:
        total = np.cumsum(values)
        return total - np.repeat(total[start] - values[start], lengths)

    lifted = running(mass[blocks])
    unraised = have[node] - running(mass[blocks] * level[blocks])  # noise of the blocks that stay as they are
    candidate = (need[node] - unraised) / lifted
    following = np.where(last, np.inf, np.append(level[blocks][1:], np.inf))
    fits = candidate <= following  # the first position that fits is the answer
    position = np.where(fits, np.arange(len(blocks)), len(blocks))
    answer = np.zeros(len(need))
    answer[node[start]] = candidate[np.minimum.reduceat(position, start)]
    # Rounding in the running sums may fall short by an ulp or two; a relative 1e-13 more is never short.
    raised[blocks] = np.maximum(level[blocks], answer[node] * (1 + 1e-13))
    return raised


def _raise_levels_against_coalitions(
    federation: Topology,
    requirement: Requirement,
    tier: str,
    block_of: IntArray,
    node_of_block: IntArray,
    level: FloatArray,
) -> FloatArray:
    """Raises the lowest levels at every node with too little noise, without the noise that coalitions can remove.

    On the innermost tier the result is the paper's constant multiplier with rho_r = W_r over the honest remainder, in
    closed form. On outer tiers bisection finds the common level. Every need is met, but a linear program over levels
    that differ may need less noise.
    """
    squared = federation.weights**2
    node_of, count = federation.membership(tier), federation.node_count(tier)
    need = requirement.need(federation, tier)
    if tier == federation.innermost.name and block_of is federation.innermost.parent_of:
        honest = remaining_noise(federation, squared, tier=tier, excluded_silos=requirement.excluded_silos)
        return np.maximum(level, largest_by(node_of, need / honest, count))

    def short(common: FloatArray) -> Any:
        variance = squared * np.maximum(level, common[node_of_block])[block_of]
        lacking = need > remaining_noise(federation, variance, tier=tier, excluded_silos=requirement.excluded_silos)
        return largest_by(node_of, lacking.astype(float), count) > 0

    low = np.zeros(count)
    # A silo's own noise always conceals the silo, so the largest q² is enough.
    high = largest_by(node_of, need / squared, count) * _ROUNDING
    lacking = short(low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if ((high - low) <= 1e-15 * high).all():
            break
        fails = short(middle)
        low, high = np.where(fails, middle, low), np.where(fails, high, middle)
    return np.maximum(level, np.where(lacking, high, 0.0)[node_of_block])


def _least_variance_under_collusion(federation: Topology, requirement: Requirement) -> FloatArray:
    """Returns the least noise against coalitions of c when multipliers may differ within a region, in closed form.

    In region r of m silos let n_1 >= n_2 >= ... be the needs w² q² and x_i the variance of silo i in the sum. Silo i
    must keep n_i after the c largest x of the rest of the region are gone. Sorted like n, the c first silos carry x_i =
    y + max(0, n_i - R) and the remaining silos y = R / (m - c) each, where R is the variance of the remaining silos
    together: R >= n_{c+1}, and the total R m / (m - c) + sum over i <= c of max(0, n_i - R) is convex and piecewise
    linear in R. The total is least at the smallest R with at most m / (m - c) of the first c needs above R.
    """
    innermost = federation.innermost
    if set(requirement.multiplier) - {innermost.name}:
        raise ParameterError(
            "allocation.tiers-unsupported",
            tier=innermost.name,
            other_tiers=listing(sorted(set(requirement.multiplier) - {innermost.name})),
        )
    need = requirement.need(federation, innermost.name)
    variance = np.empty_like(need)
    order = np.lexsort((-need, innermost.parent_of))
    sizes = np.bincount(innermost.parent_of, minlength=len(innermost.nodes))
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        n = need[members]
        m, c = len(n), min(requirement.excluded_silos, len(n) - 1)
        candidates = n[: c + 1][::-1]  # ascending, from n_{c+1}
        above = np.searchsorted(-n[:c], -candidates)  # how many of the first c needs are larger
        rest = candidates[np.argmax(above <= m / (m - c))]
        variance[members] = rest / (m - c)
        variance[members[:c]] += np.maximum(n[:c] - rest, 0)
    return variance / federation.weights**2


def _shape(federation: Topology, requirement: Requirement, allocation: str | AllocationRule, seed: int) -> FloatArray:
    """Returns noise multipliers up to a common factor, checked."""
    region_of = federation.innermost.parent_of
    if allocation == "uniform":
        return np.ones(len(federation))
    if allocation in ("size", "inverse-size"):
        members = np.bincount(region_of).astype(float)
        return (1 / (np.sqrt(members) if allocation == "size" else members))[region_of]
    if allocation == "misallocated":
        variance = _least_variance(federation, requirement) * federation.weights**2
        mass = sum_by(region_of, federation.weights**2, len(federation.innermost.nodes))
        by_region = np.sqrt(sum_by(region_of, variance, len(mass)) / mass)
        return np.random.default_rng(seed).permutation(by_region)[region_of]
    if isinstance(allocation, str):
        if ":" not in allocation:
            raise ParameterError(
                "allocation.name-unknown",
                allocation=allocation,
                known=listing(ALLOCATIONS),
                suggestion=suggestion(allocation, ALLOCATIONS),
            )
        name, function = allocation, load_allocation(allocation)
    else:
        name, function = getattr(allocation, "__name__", "allocation"), allocation
    try:
        shape = np.array(function(federation, requirement), dtype=np.float64)
    except Exception as error:  # a user's function may raise any exception
        raise AllocationError(
            "allocation.call-failed", allocation=name, error=type(error).__name__, reason=str(error)
        ) from error
    if shape.shape != (len(federation),):
        raise AllocationError("allocation.result-shape", allocation=name, silos=len(federation), shape=shape.shape)
    bad = ~(np.isfinite(shape) & (shape >= 0))
    if bad.any():
        index = int(np.argmax(bad))
        raise AllocationError(
            "allocation.multiplier-range", allocation=name, silo=federation.silo_name(index), multiplier=shape[index]
        )
    return shape


def _factor(federation: Topology, requirement: Requirement, multiplier: FloatArray) -> float:
    """Returns the smallest factor on sigma² at which these multipliers meet the requirement."""
    variance = noise_variance(federation, multiplier)
    factor = 0.0
    for tier in requirement.multiplier:
        need = requirement.need(federation, tier)
        if requirement.excluded_silos == 0 and tier != SILO:  # silos of a node share its sum: compare node by node
            node_of, count = federation.membership(tier), federation.node_count(tier)
            need, present = largest_by(node_of, need, count), sum_by(node_of, variance, count)
        else:
            present = remaining_noise(federation, variance, tier=tier, excluded_silos=requirement.excluded_silos)
        bare = (present <= 0) & (need > 0)
        if bare.any():
            where = int(np.argmax(bare))
            by_node = tier in federation.tier_names[1:-1] and requirement.excluded_silos == 0
            where_name = federation.tier(tier).nodes[where] if by_node else federation.silo_name(where)
            raise AllocationError("allocation.noise-missing", tier=tier, node=where_name)
        factor = max(factor, float(np.max(np.divide(need, present, out=np.zeros_like(need), where=present > 0))))
    return factor
