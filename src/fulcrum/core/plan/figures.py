"""The figures of a plan that follow from its data: noise in every sum, and the multiplier that each observer meets.

>>> from fulcrum.planning.planner import plan
>>> made = plan("severe", rounds=10, epsilon=0.99, accountant="renyi")
>>> effective_multiplier(made)[0].round(2), effective_multiplier(made, "silo")[0].round(2)
(np.float64(25.82), np.float64(3.33))

Everything here is a function of `PlanData` and cheap: nothing is solved for.
"""

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.lattice import check_parameters, lattice_step
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import check_count, remaining_noise, sum_by
from fulcrum.core.topology import ROOT, SILO


def group_tier(plan: PlanData) -> str:
    """Returns the tier whose sums are masked, where sums are: the root where it alone has a target."""
    return ROOT if set(plan.required_multiplier) - {SILO} == {ROOT} else plan.federation.innermost.name


def is_one_group(plan: PlanData) -> bool:
    """Returns True where all silos are masked as one group, so that the global sum is the only visible sum."""
    return plan.aggregation == "masked" and group_tier(plan) == ROOT


def outermost_complete_tier(plan: PlanData) -> str:
    """Returns the outermost tier whose sums always hold the noise of every region below them.

    By every rule but "sum" the model may be a function of single regional sums. Where a round goes on without absent
    regions, the global sum may be the sum of one region. In both cases the epsilon further out is that against an
    observer of this tier. A target counts on complete sums at its own tier. The one sum of silos that are masked as one
    group is unmasked whole or not at all.
    """
    federation = plan.federation
    if is_one_group(plan):
        return ROOT
    if plan.server != "sum":
        return federation.innermost.name
    if not plan.absent_regions:
        return ROOT
    return max([federation.innermost.name, *plan.epsilon_target], key=federation.tier_names.index)


def noise_variance(plan: PlanData) -> FloatArray:
    """Returns by silo the noise variance that it brings into its sum, w² sigma², in units of C².

    Noise that an aggregator draws is shared among the silos of its region by w².
    """
    weights = plan.federation.weights
    if plan.aggregator_noise_multiplier is None:
        return np.asarray((weights * plan.noise_multiplier) ** 2)
    region_of, squared = plan.federation.innermost.parent_of, weights**2
    mass = sum_by(region_of, squared, len(plan.aggregator_noise_multiplier))
    return np.asarray(squared * (plan.aggregator_noise_multiplier**2 / mass)[region_of])


def node_noise(plan: PlanData, tier: str) -> FloatArray:
    """Returns S by node of a tier: the noise variance in each sum that its observer sees, in units of C²."""
    federation = plan.federation
    return sum_by(federation.membership(tier), noise_variance(plan), federation.node_count(tier))


def effective_multiplier(
    plan: PlanData,
    tier: str | None = None,
    *,
    colluders: int | None = None,
    dropouts: int | None = None,
    variance: FloatArray | None = None,
) -> FloatArray:
    """Returns by silo the noise multiplier that an observer of `tier` meets (the innermost tier by default).

    Args:
        plan: Multipliers, weights and the tree.
        tier: The observer's tier. "silo" is inside: the observer sees single updates or, where sums are masked, is the
            server together with one silo of each region at least.
        colluders: Silos of each region that collude with the observer; the plan's own number by default.
        dropouts: Silos of each region that are missing from the sum; the plan's own number by default. Noise that
            aggregators draw is neither colluded away nor missing.
        variance: `noise_variance` of the plan, where the caller has it.
    """
    federation = plan.federation
    tier = federation.innermost.name if tier is None else tier
    if plan.aggregation == "masked" and tier == SILO:
        tier, colluders = group_tier(plan), max(1, plan.colluders if colluders is None else colluders)
    elif is_one_group(plan):  # nobody sees a sum further in
        tier = ROOT
    if tier == SILO:
        return plan.noise_multiplier
    tier = min(tier, outermost_complete_tier(plan), key=federation.tier_names.index)
    excluded_silos = 0
    if plan.injection == "silo":
        excluded_silos += plan.colluders if colluders is None else check_count("colluders", colluders)
        excluded_silos += plan.dropouts if dropouts is None else check_count("dropouts", dropouts)
    variance = noise_variance(plan) if variance is None else variance
    present = remaining_noise(federation, variance, tier=tier, excluded_silos=excluded_silos)
    return np.asarray(np.sqrt(present) / federation.weights)


def lattice_steps(plan: PlanData) -> FloatArray | None:
    """Returns by region the step of the lattice that its silos release on, the same for all; None in research."""
    if plan.purpose != "deployment":
        return None
    step = lattice_step(
        least_weight=float(plan.federation.weights.min()),
        clip_norm=plan.clip_norm,
        parameters=check_parameters(plan.parameters),
    )
    return np.full(len(plan.federation.innermost.nodes), step)
