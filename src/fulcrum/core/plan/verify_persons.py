"""The further epsilons that a plan for persons states, recomputed silo by silo.

- The second convention: neighbours that come or go beside neighbours that are replaced, or the other way round.
- A person with records in two silos, where the plan provides for one silo alone.
- A silo as a whole: all data of a silo replaced.
"""

import math
from collections import defaultdict

from fulcrum.core.plan.plan_file import Epsilon, PlanSummary
from fulcrum.core.plan.recomputed import Recomputed
from fulcrum.core.privacy_unit import ratio_of_conventions, whole_silo_ratio
from fulcrum.core.topology import SILO


def person_epsilons(seen: Recomputed) -> dict[str, float]:
    """Returns the worst epsilons by field of `PlanSummary`; nothing for a plan that protects silos."""
    if not seen.unit.is_within_silo:
        return {}
    above, inside = seen.innermost, SILO
    ratio = ratio_of_conventions(seen.unit)
    worst = {
        "other_neighbours_above": max(_with_past(seen, above, ratio)),
        "other_neighbours_inside": max(_with_past(seen, inside, ratio)),
        "whole_silo_above": _whole_silo(seen, above),
    }
    if seen.unit.silos_per_person == 1 and len(seen.path[SILO]) > 1:
        worst["two_silos_above"] = _two_silos(seen, above)
    fields = list(worst)
    return dict(zip(fields, seen.epsilon_of_shifts([worst[name] for name in fields]), strict=True))


def stated_epsilons(summary: PlanSummary) -> dict[str, Epsilon]:
    """Returns the epsilons of persons that a plan file states."""
    names = ("other_neighbours_above", "other_neighbours_inside", "two_silos_above", "whole_silo_above")
    values = {name: getattr(summary, name) for name in names}
    return {name: value for name, value in values.items() if value is None or isinstance(value, float | int)}


def _with_past(seen: Recomputed, tier: str, ratio: float) -> list[float]:
    """Returns mu by silo in the second convention; the past is known in the plan's own convention alone.

    A person who is added or removed moves a sum by no more than a person who is replaced. The past in the convention
    "replace" is therefore a bound, and the past in the convention "add-remove" at most doubles.
    """
    before = max(1.0, ratio)
    return [
        math.hypot(ratio * shift, before * math.sqrt(past))
        for shift, past in zip(seen.shifts(tier), seen.spent[tier], strict=True)
    ]


def _two_silos(seen: Recomputed, tier: str) -> float:
    """Returns the largest mu of a person with records in two silos.

    In one sum the two changes add up; in two sums their squares add up. After earlier plans two silos may have been in
    one sum before, and the changes are added up for every pair.
    """
    total = [
        math.hypot(shift, math.sqrt(past)) for shift, past in zip(seen.shifts(tier), seen.spent[tier], strict=True)
    ]
    if any(seen.spent[tier]):
        return math.fsum(sorted(total)[-2:])
    by_node: dict[str, list[float]] = defaultdict(list)
    for node, shift in zip(seen.path[seen.observed_tier(tier)], total, strict=True):
        by_node[node].append(shift)
    pairs = [math.fsum(sorted(shifts)[-2:]) for shifts in by_node.values() if len(shifts) > 1]
    largest = sorted((max(shifts) for shifts in by_node.values()), reverse=True)[:2]
    return max([*pairs, *([math.hypot(*largest)] if len(largest) == 2 else [])])


def _whole_silo(seen: Recomputed, tier: str) -> float:
    """Returns the largest mu of a silo as a whole: twice the largest sum in place of one person's change.

    The largest sums of earlier plans are not known, so after earlier releases nothing is claimed.
    """
    if any(seen.spent[tier]):
        return math.inf
    kappa, ratio = seen.sensitivity(tier), whole_silo_ratio(seen.unit)
    return max(
        shift * (seen.unit.sensitivity / own) * ratio * largest
        for shift, own, largest in zip(seen.shifts(tier), kappa, seen.largest_sum, strict=True)
    )
