"""The noise of other weights at a plan's promise, their distance from sizes, and the least represented region.

>>> from fulcrum.planning.planner import plan
>>> choices = weight_choices(plan("consortium", rounds=10, epsilon=1.0))
>>> sizes, least = choices[0], choices[-1]
>>> f"{least.noise / sizes.noise:.0%} of the noise; {least.least_represented} is the least represented region"
'40% of the noise; country-5 is the least represented region'
"""

from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import Topology
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import allocate, noise_variance
from fulcrum.planning.theory.weights import region_shares, weights_by

MOST_SILOS_BETWEEN = 1_000
"""The most silos for weights between sizes and least noise with targets on several tiers."""


def different_needs(federation: Topology, *, most: float) -> int:
    """Returns the number of silos with different regions or different declared epsilons.

    With targets on several tiers, the time for least-noise weights grows faster than this number: 2 s for 1,000 silos,
    30 s for 10,000.

    Args:
        federation: The silos.
        most: The largest epsilon of a target. A larger declared epsilon changes nothing.
    """
    regions, declared = federation.innermost.parent_of, federation.preferences
    if declared is None:
        return len(federation.innermost.nodes)
    return len(np.unique(np.stack([regions, np.fmin(declared, most)]), axis=1).T)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightChoice:
    """A choice of weights at a plan's promise.

    Attributes:
        weights: As `plan` takes weights: a number from 0 (sizes) to 1 (least noise), or the name of a rule.
        noise: The noise variance entering the model, in units of C²; see `Plan.model_noise`.
        moved: The share of the model that regions have beyond their shares by size; the rest of the regions lose as
            much.
        least_represented: The region with the least influence relative to its size.
        influence_ratio: The influence of that region over its share by size.
    """

    weights: str | float
    noise: float
    moved: float
    least_represented: str
    influence_ratio: float


def weight_choices(plan: Plan, *, points: int = 13) -> tuple[WeightChoice, ...]:
    """Returns the choices from weights by size to least noise, each with the least noise that keeps the promise.

    The influence of a region is its weight: no server pools. The result has the two ends alone if several tiers have
    targets and the federation has more than `MOST_SILOS_BETWEEN` silos: the choices between would take minutes. Empty
    if sizes are unknown, if membership changes, and if nothing is gained since all weights on the way are the same.
    """
    federation = plan.federation
    if not federation.sizes_known or federation.rosters is not None:
        return ()
    # A cap lowers all silos of a region together, so the price at which the cap takes effect grows with their number.
    largest = float(np.bincount(federation.innermost.parent_of).max())
    between = len(plan.requirement.multiplier) == 1 or len(federation) <= MOST_SILOS_BETWEEN
    prices = np.geomspace(0.1, 30 * largest, points - 2 if between else 0)
    choices = [_choice_by_rule(plan, share) for share in (0.0, *(prices / (1 + prices)).tolist(), 1.0)]
    return tuple(choices) if choices[-1].noise < (1 - 1e-9) * choices[0].noise else ()


def equal_weights(plan: Plan) -> WeightChoice:
    """Returns the choice of weights that are equal within a region: every region keeps its share."""
    return _choice_by_rule(plan, "equal")


def own_choice(plan: Plan) -> WeightChoice:
    """Returns the plan's own choice; with a server that pools, for regions that agree."""
    influence = plan.node_influence(plan.federation.innermost.name)
    return _choice_of(plan.federation, plan.weights_rule, plan.model_noise, influence)


def _choice_by_rule(plan: Plan, rule: str | float) -> WeightChoice:
    requirement = plan.requirement
    above = requirement.by_observer(plan.federation)[0]
    shares = weights_by(rule, plan.federation, above.multiplier, excluded_silos=above.excluded_silos)
    persons = plan.federation.persons  # the weight of a silo is then the weight of one of its persons
    federation = plan.federation.with_weights(shares if persons is None else shares / persons)
    noise = float(noise_variance(federation, allocate(federation, requirement)).sum())
    noise *= plan.server_rule.noise_factor()  # as in `Plan.model_noise`, which stands beside this figure
    inner = federation.innermost
    return _choice_of(federation, rule, noise, sum_by(inner.parent_of, shares, len(inner.nodes)))


def _choice_of(federation: Topology, rule: str | float, noise: float, influence: FloatArray) -> WeightChoice:
    shares = region_shares(federation)
    influence_ratio = influence / shares
    least_represented = int(np.argmin(np.round(influence_ratio, 9)))  # of equals, the first
    return WeightChoice(
        weights=rule,
        noise=noise,
        moved=float(np.abs(influence - shares).sum() / 2),
        least_represented=federation.innermost.nodes[least_represented],
        influence_ratio=float(influence_ratio[least_represented]),
    )
