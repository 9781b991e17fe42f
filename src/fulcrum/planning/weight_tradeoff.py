"""What other weights would need to keep a plan's promise, how far they lie from sizes, and whom they quieten.

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
"""Silos up to which weights between sizes and least noise are worked out where several tiers have targets."""


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
    """One choice of weights at a plan's promise.

    Attributes:
        weights: As `plan` takes them: a number from 0 (sizes) to 1 (least noise), or the name of a rule.
        noise: The noise variance entering the model, in units of C²; see `Plan.model_noise`.
        moved: The share of the model that regions have beyond their shares by size; others have as much less.
        least_represented: The region that has the least of its share by size.
        influence_ratio: Its share of the model over its share by size.
    """

    weights: str | float
    noise: float
    moved: float
    least_represented: str
    influence_ratio: float


def weight_choices(made: Plan, *, points: int = 13) -> tuple[WeightChoice, ...]:
    """Returns the choices from weights by size to least noise, each with the least noise that keeps the promise.

    Regions count for their weights: no server pools. The two ends alone where several tiers have targets and there are
    more than `MOST_SILOS_BETWEEN` silos: what is between them would take minutes. Empty where sizes are unknown, and
    where nothing is gained: all weights on the way are the same.
    """
    federation = made.federation
    if not federation.sizes_known:
        return ()
    # A cap presses on all silos of a region together, so the price at which it bites grows with their number.
    largest = float(np.bincount(federation.innermost.parent_of).max())
    between = len(made.requirement.multiplier) == 1 or len(federation) <= MOST_SILOS_BETWEEN
    prices = np.geomspace(0.1, 30 * largest, points - 2 if between else 0)
    found = [_choice(made, share) for share in (0.0, *(prices / (1 + prices)).tolist(), 1.0)]
    return tuple(found) if found[-1].noise < (1 - 1e-9) * found[0].noise else ()


def equal_weights(made: Plan) -> WeightChoice:
    """Returns what weights that are equal within a region need: every region keeps its share."""
    return _choice(made, "equal")


def own_choice(made: Plan) -> WeightChoice:
    """Returns where the plan itself stands; with a server that pools, where regions agree."""
    influence = made.node_influence(made.federation.innermost.name)
    return _described(made.federation, made.weights_rule, made.model_noise, influence)


def _choice(made: Plan, rule: str | float) -> WeightChoice:
    requirement = made.requirement
    above = requirement.by_observer(made.federation)[0]
    weights = weights_by(rule, made.federation, above.multiplier, excluded_silos=above.excluded_silos)
    federation = made.federation.weighted(weights)
    noise = float(noise_variance(federation, allocate(federation, requirement)).sum())
    noise *= made.server_rule.noise_factor()  # as the plan's own noise counts, which stands beside it
    inner = federation.innermost
    return _described(federation, rule, noise, sum_by(inner.parent_of, weights, len(inner.nodes)))


def _described(federation: Topology, rule: str | float, noise: float, influence: FloatArray) -> WeightChoice:
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
