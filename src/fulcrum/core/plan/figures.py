"""The figures that follow from a plan's data: noise in every sum, and the effective multiplier of every observer.

>>> from fulcrum.planning.planner import plan
>>> severe = plan("severe", rounds=10, epsilon=0.99, accountant="renyi")
>>> effective_multiplier(severe)[0].round(2), effective_multiplier(severe, "silo")[0].round(2)
(np.float64(25.82), np.float64(3.33))

All functions take `PlanData` and are cheap: no function solves an equation.
"""

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.lattice import check_parameters, lattice_step
from fulcrum.core.phase_noise import concealing_noise, mean_variance, noise_of_phase
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import check_count, remaining_noise, sum_by
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import ReleaseError


def group_tier(plan: PlanData) -> str:
    """Returns the tier whose sums a masked plan masks: the root if the root alone has a target."""
    return ROOT if set(plan.required_multiplier) - {SILO} == {ROOT} else plan.federation.innermost.name


def is_one_group(plan: PlanData) -> bool:
    """Returns True where all silos are masked as one group: the global sum is then the only visible sum."""
    return plan.is_masked and group_tier(plan) == ROOT


def outermost_complete_tier(plan: PlanData) -> str:
    """Returns the outermost tier of which every sum includes the noise of all regions below.

    - By every server rule but "sum" the model may be a function of single regional sums.
    - If a round continues without absent regions, the global sum may be the sum of a single region.

    In both cases the epsilon further out is the epsilon against an observer of the returned tier (docs/maths.md, "What
    a server may do for free"). A round includes a node of the outermost tier with a target whole or not at all, and the
    sum of silos masked as one group is unmasked whole or not at all.
    """
    federation = plan.federation
    if is_one_group(plan):
        return ROOT
    if plan.server != "sum":
        return federation.innermost.name
    if not plan.absent_regions:
        return ROOT
    return max([federation.innermost.name, *plan.epsilon_target], key=federation.tier_names.index)


def observed_tier(plan: PlanData, tier: str | None = None) -> str:
    """Returns the tier whose noise an observer of `tier` meets.

    - The observer inside a masked region sees the sum of the masked group.
    - With silos masked as one group an observer at every tier above the silos sees the global sum alone.
    - An observer further out than the complete sums is counted as an observer of the outermost complete tier.
    """
    tier = plan.federation.innermost.name if tier is None else tier
    if tier == SILO:
        return group_tier(plan) if plan.is_masked else SILO
    if is_one_group(plan):  # no observer sees a sum further in
        return ROOT
    return min(tier, outermost_complete_tier(plan), key=plan.federation.tier_names.index)


def charged_tier(plan: PlanData, tier: str) -> str:
    """Returns the tier against whose observers a ledger charges, and a policy limits, a release for `tier`.

    Under masked sums with a target on an outer tier, a silo answers where its answers are sealed to its region, and
    nowhere else: no server reads the sum of the region. Other plans with masked sums run on any engine, also where the
    server reads the answers that unmask each region. An outer aggregator then hides nothing from the server, and the
    observers of all outer tiers count as those of the region. Both follow from the plan alone, so that a silo that
    changes its engine is charged alike.
    """
    federation = plan.federation
    runs_anywhere = plan.is_masked and not is_one_group(plan) and not unmet_tiers(plan)
    if runs_anywhere and tier in (outer.name for outer in federation.tiers[1:]):
        return federation.innermost.name
    return tier


def unmet_tiers(plan: PlanData) -> tuple[str, ...]:
    """Returns the outer tiers whose targets a server breaks that knows the sums of regions.

    A target on an outer tier bounds the knowledge of a server that sees nothing finer than the sums of the tier.
    """
    if is_one_group(plan) or plan.server != "sum":  # no outer tier has sums
        return ()
    targets = {*plan.epsilon_target, *plan.required_multiplier}
    return tuple(tier.name for tier in plan.federation.tiers[1:] if tier.name in targets)


def sensitivity(plan: PlanData, tier: str | None = None) -> float | FloatArray:
    """Returns kappa against an observer of `tier`: for all silos, or by silo if a person may be in several silos."""
    unit, federation = plan.unit, plan.federation
    if unit.silos_per_person == 1:
        return unit.sensitivity
    observed = observed_tier(plan, tier)
    node_of = federation.membership(observed)
    return np.asarray(unit.sensitivity * unit.factors(np.bincount(node_of))[node_of])


def noise_variance(plan: PlanData) -> FloatArray:
    """Returns by silo the noise variance that the silo brings into a sum, w² sigma², in units of C².

    Noise that an aggregator draws is divided among the silos of the region by w². Where membership changes, the result
    is the mean of all rounds.
    """
    weights = plan.federation.weights
    if plan.phase_multiplier is not None:
        return mean_variance(plan.federation, plan.phase_multiplier)
    if plan.aggregator_noise_multiplier is None:
        return np.asarray((weights * plan.noise_multiplier) ** 2)
    region_of, squared = plan.federation.innermost.parent_of, weights**2
    mass = sum_by(region_of, squared, len(plan.aggregator_noise_multiplier))
    return np.asarray(squared * (plan.aggregator_noise_multiplier**2 / mass)[region_of])


def node_noise(plan: PlanData, tier: str) -> FloatArray:
    """Returns S by node of a tier: the noise variance in the node's sum, in units of C²."""
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
    """Returns by silo the effective noise multiplier s against an observer of `tier`.

    Neighbouring relation: the relation of the plan's unit. With the unit's sensitivity kappa, T releases of a silo are
    a Gaussian mechanism with mu² = kappa² T / s².

    Guarantees:

    - the worst colluders and dropouts of every region are excluded, and a silo is never in its own coalition;
    - an observer further out than the complete sums has the multiplier of the outermost complete tier;
    - with silos masked as one group an observer at every tier above the silos sees the global sum alone;
    - where membership changes, mu² over the silo's own rounds is kappa² T / s².

    Args:
        plan: Multipliers, weights and the tree.
        tier: The observer's tier; the innermost tier by default. "silo" is inside: the observer sees single updates or,
            for masked sums, is the server together with one silo of every region at least.
        colluders: Silos of every region that collude with the observer; the plan's own number by default.
        dropouts: Silos of every region that are missing from the sum; the plan's own number by default. No silo can
            collude away, or take along, noise that aggregators draw.
        variance: `noise_variance` of the plan, if the caller has computed the variance.
    """
    federation, excluded_silos = plan.federation, excluded_by(plan, tier, colluders, dropouts)
    tier = observed_tier(plan, tier)
    if tier == SILO and plan.phase_multiplier is None:
        return plan.noise_multiplier
    if plan.phase_multiplier is not None:
        concealing = concealing_noise(federation, plan.phase_multiplier, tier, excluded_silos)
        return np.asarray(np.sqrt(concealing) / federation.weights)
    variance = noise_variance(plan) if variance is None else variance
    present = remaining_noise(federation, variance, tier=tier, excluded_silos=excluded_silos)
    return np.asarray(np.sqrt(present) / federation.weights)


def excluded_by(
    plan: PlanData, tier: str | None = None, colluders: int | None = None, dropouts: int | None = None
) -> int:
    """Returns the number of silos of every region whose noise conceals no silo from an observer of `tier`.

    With masked sums the observer inside is the server with one silo of every region at least. No silo can collude away,
    or take along, noise that aggregators draw. Arguments are as in `effective_multiplier`.
    """
    if not plan.silos_draw_noise:
        return 0
    colluders = plan.colluders if colluders is None else check_count("colluders", colluders)
    missing = plan.dropouts if dropouts is None else check_count("dropouts", dropouts)
    return (max(1, colluders) if tier == SILO and plan.is_masked else colluders) + missing


def multiplier_of_round(plan: PlanData, silo: int, round_number: int) -> float:
    """Returns the noise multiplier of a silo's own noise in a round.

    A round without the silo raises an error: no caller may take a missing multiplier for no noise.

    Args:
        plan: The plan.
        silo: The place of the silo in the federation.
        round_number: The round, from 1.
    """
    rosters = plan.federation.rosters
    if rosters is None or plan.phase_multiplier is None:
        return float(plan.noise_multiplier[silo])
    if not rosters.has(silo, round_number):
        name = plan.federation.silo_name(silo)
        raise ReleaseError("release.round-without-silo", round_number=round_number, silo=name)
    return float(plan.phase_multiplier[rosters.phase(round_number), plan.federation.innermost.parent_of[silo]])


def shift_of_round(plan: PlanData, silo: int, round_number: int, tier: str) -> float:
    """Returns the squared shift (mu²) of a silo's release in a round of a plan whose membership changes.

    Neighbouring relation: replacement of the silo's whole dataset. The rosters are public and the same on both sides.
    """
    rosters, multiplier = plan.federation.rosters, plan.phase_multiplier
    if rosters is None or multiplier is None or not rosters.has(silo, round_number):
        return float("inf")
    phase, observed = rosters.phase(round_number), observed_tier(plan, tier)
    noise = noise_of_phase(plan.federation, multiplier, phase, observed, excluded_by(plan, tier))
    return float((plan.unit.sensitivity * plan.federation.weights[silo]) ** 2 / noise[silo])


def own_rounds(plan: PlanData, silo: int) -> int:
    """Returns the number of rounds in which a silo takes part."""
    rosters = plan.federation.rosters
    return plan.rounds if rosters is None else int(rosters.lengths @ rosters.present[:, silo])


def first_round(plan: PlanData, silo: int) -> int:
    """Returns the first round in which a silo takes part."""
    rosters = plan.federation.rosters
    return 1 if rosters is None else int(np.argmax(rosters.present[rosters.phase_of_round, silo])) + 1


def lattice_steps(plan: PlanData) -> FloatArray | None:
    """Returns by region the lattice step of the region's silos, the same for all regions; None in research.

    The step is fine enough for the lightest silo of the federation.
    """
    if not plan.is_deployment:
        return None
    step = lattice_step(
        least_weight=float(plan.federation.weights.min()),
        clip_norm=plan.clip_norm,
        parameters=check_parameters(plan.parameters),
    )
    return np.full(len(plan.federation.innermost.nodes), step)
