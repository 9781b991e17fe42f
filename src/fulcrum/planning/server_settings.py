"""The server rule of a plan, with all that a server knows of its regions before the first round."""

from fulcrum.arrays import read_only
from fulcrum.core.plan import figures
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import sum_by
from fulcrum.planning.theory.allocation import Requirement
from fulcrum.planning.theory.weights import least_noise_of_one_tier, region_shares
from fulcrum.rules.server_rule import ServerRule


def requirement_of(plan: PlanData) -> Requirement:
    """Returns the effective multiplier that a plan's targets require of each silo, by tier."""
    return Requirement(
        multiplier=plan.required_multiplier,
        colluders=plan.colluders,
        dropouts=plan.dropouts,
        masked=plan.aggregation == "masked",
    )


def server_rule_of(plan: PlanData) -> ServerRule:
    """Returns the rule by which a plan's server moves the model."""
    inner = plan.federation.innermost
    regions = len(inner.nodes)
    if plan.server == "sum":
        return ServerRule.adding_up(regions)
    above = requirement_of(plan).by_observer(plan.federation)[0]
    return ServerRule.pooling(
        shares=read_only(region_shares(plan.federation)),
        weight=read_only(sum_by(inner.parent_of, plan.weights, regions)),
        variance=read_only(figures.node_noise(plan, inner.name) * plan.clip_norm**2),
        least_noise=least_noise_of_one_tier(plan.federation, above.multiplier, uncounted=above.uncounted),
        scale=plan.clip_share,
        rounds=plan.rounds,
        clip_norm=plan.clip_norm,
        shrinks=plan.shrink,
        least_influence=plan.least_influence,
    )
