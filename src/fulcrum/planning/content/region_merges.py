"""Merges of two regions: the merge that saves most noise, and the plan after a merge.

>>> from fulcrum.planning.planner import draft_plan
>>> merge = best_merge(draft_plan("tcga-brca", rounds=10, epsilon=1.0))
>>> merge.regions, f"{merge.saving:.1%}"
(('Northeast', 'West'), '20.6%')
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.core.remaining_noise import left_by_coalitions, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.planning.content.plan_figures import PlanFigures, changed_copy
from fulcrum.planning.inputs.weighted_federation import choose_weights
from fulcrum.planning.theory.allocation import allocate
from fulcrum.readers.editing import merge_regions

_MERGE_CANDIDATES = 12
_KEPT = ("sizes", DECLARED, BY_SILO)  # rules by which the weight of a silo does not depend on its region
_PLANNED_ANEW = 6  # regions whose pairs are planned for
_PLANNED_UP_TO, _ITERATED_UP_TO = 20_000, 200  # silos, for weights in closed form and for iterated weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The merge of two regions that saves most noise; `saving` is a share of the plan's noise budget."""

    regions: tuple[str, str]
    saving: float


def best_merge(plan: PlanFigures) -> Merge | None:
    """Returns the two regions under one parent whose merge saves most noise, or None if no merge saves any.

    After a merge silos have the weights of the plan's rule. If weights stay as before and the sums are added up, the
    noise of a merge has a closed form; otherwise the merged federation is planned for, except for federations too large
    for that. With outer targets a merge may only move noise elsewhere, so the result is None.
    """
    if not _has_merges(plan):
        return None
    return _best_of(plan, _saved_by_sums(plan) if _keeps_weights(plan) else _saved_by_planning(plan))


def _best_of(plan: PlanFigures, savings: Iterable[tuple[tuple[int, int], float]]) -> Merge | None:
    """Returns the merge that saves most, from the noise that each pair of regions saves."""
    nodes, best = plan.federation.innermost.nodes, None
    for (first, second), noise in savings:
        share = noise / plan.model_noise
        if share > (1e-9 if best is None else best.saving + 1e-9):  # of equals, the first
            best = Merge(regions=(nodes[first], nodes[second]), saving=share)
    return best


def _keeps_weights(plan: PlanFigures) -> bool:
    """Returns True if a merge changes neither weights nor provisions, so that its noise has a closed form."""
    # The provision for persons in several silos depends on the number of silos of a region, so a merge changes it.
    return plan.weights_rule in _KEPT and plan.unit.silos_per_person == 1 and plan.server_rule.adds_up


def _has_merges(plan: PlanFigures) -> bool:
    """Returns True if merges of regions can save noise, and are few enough to look at."""
    inner, required = plan.federation.innermost, plan.requirement
    if len(inner.nodes) < 2 or set(required.multiplier) - {SILO, inner.name}:
        return False
    if required.masked and SILO in required.multiplier:  # the target is then on sums, against more colluders
        return False
    iterated = plan.weights_rule not in (*_KEPT, "equal") and (
        plan.weights_rule != "least-noise" or len(required.multiplier) > 1
    )
    return _keeps_weights(plan) or len(plan.federation) <= (_ITERATED_UP_TO if iterated else _PLANNED_UP_TO)


def _pairs(plan: PlanFigures, promising: FloatArray, candidates: int) -> Iterator[tuple[int, int]]:
    """Yields pairs of regions under one parent, out of the most promising regions."""
    federation = plan.federation
    regions = len(federation.innermost.nodes)
    outer = federation.tiers[1].parent_of if len(federation.tiers) > 1 else np.zeros(regions, np.intp)
    chosen = np.argsort(-promising, kind="stable")[:candidates].tolist()
    return (pair for pair in combinations(sorted(chosen), 2) if outer[pair[0]] == outer[pair[1]])


def _saved_by_sums(plan: PlanFigures) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields by pair of regions the saving of a merge, for weights that stay as before and sums that are added up."""
    federation, requirement = plan.federation, plan.requirement
    inner = federation.innermost
    squared = federation.weights**2
    need = requirement.need(federation, inner.name)
    base = np.broadcast_to(np.asarray(requirement.multiplier.get(SILO, 0.0)) ** 2, squared.shape) * squared
    excess = plan.node_noise(inner.name) - sum_by(inner.parent_of, base, len(inner.nodes))

    @cache
    def members(region: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.flatnonzero(inner.parent_of == region)

    @cache
    def least(*regions: int) -> float:
        silos = np.concatenate([members(region) for region in regions])
        return _region_noise(squared[silos], need[silos], base[silos], requirement.excluded_silos)

    for first, second in _pairs(plan, excess, _MERGE_CANDIDATES):
        yield (first, second), least(first) + least(second) - least(first, second)


def _saved_by_planning(plan: PlanFigures) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields by pair of regions the saving of a merge, by the noise of the merged federation under the plan's rules."""
    inner = plan.federation.innermost
    promising = plan.node_noise(inner.name) if plan.server_rule.adds_up else plan.node_influence(inner.name)
    for pair in _pairs(plan, promising, _PLANNED_ANEW):
        merged = merge_pair(plan, [inner.nodes[region] for region in pair])
        yield pair, plan.model_noise - merged.model_noise


def merge_pair(plan: PlanFigures, regions: list[str]) -> PlanFigures:
    """Returns the plan of the federation with merged regions, under the plan's rules and the optimal allocation."""
    requirement = plan.requirement
    federation: Topology = merge_regions(plan.federation, regions)
    federation = replace(federation, persons=plan.federation.persons)
    if plan.unit.silos_per_person > 1:
        requirement = plan.target.requirement(federation)
    if plan.weights_rule in _KEPT:
        federation = federation.with_weights(plan.weights)
    else:
        federation = choose_weights(
            federation,
            plan.weights_rule,
            requirement if plan.target.budget is None else replace(requirement, multiplier={}),
            server=plan.server,
            least_influence=plan.least_influence,
        ).federation
    noise = allocate(federation, requirement)
    return changed_copy(plan, federation=federation, noise_multiplier=noise, aggregator_noise_multiplier=None)


def _region_noise(squared: FloatArray, need: FloatArray, base: FloatArray, excluded_silos: int) -> float:
    """Returns the noise variance of a region with a constant multiplier, `excluded_silos` silos not counted."""
    together = np.zeros(len(squared), dtype=np.intp)
    left, more = left_by_coalitions(squared, together, 1, excluded_silos)
    level = float((need / (left[0] + more)).max())
    return float(np.maximum(level * squared, base).sum())
