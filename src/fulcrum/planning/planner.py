"""The planner: the least noise of each silo for the promised guarantee.

>>> from fulcrum.readers.federation import Federation
>>> made = plan(Federation.from_sizes({"north": [120, 80], "south": [300]}), rounds=10, epsilon=1.0)
>>> [round(float(value), 2) for value in made.noise_multiplier]
[19.63, 19.63, 23.59]
>>> f"{made.saving:.1%} less noise than one multiplier for all"
'5.8% less noise than one multiplier for all'

A plan is immutable and carries all data behind its figures; every figure is computed on demand.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.core.choices import BY_SILO, PRIORS
from fulcrum.core.lattice import check_fits, check_parameters, delta_reserve
from fulcrum.core.remaining_noise import check_count
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.plan_figures import drawn_noise
from fulcrum.planning.inputs.execution import Execution, check_execution, execution_of, unit_of
from fulcrum.planning.inputs.inside_observer import inside_observer, stored_epsilon, with_observer_name
from fulcrum.planning.inputs.past_releases import Past, check_moved, spent_everywhere
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.inputs.setting_checks import check_schedule, check_settings, declared_persons, is_one_group
from fulcrum.planning.inputs.settings import Settings, taking_keywords
from fulcrum.planning.inputs.targets import Target, epsilon_by_tier, floor_by_silo
from fulcrum.planning.inputs.weighted_federation import choose_weights
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import Requirement, allocate
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.planning.theory.leakage import mechanism_information
from fulcrum.planning.theory.prior import Coupling
from fulcrum.planning.theory.scheduling import largest_multiplier, least_multiplier, noise_by_phase, with_rosters
from fulcrum.planning.theory.weights import least_noise_of_one_tier
from fulcrum.readers.federation_reader import read_federation
from fulcrum.rounding import display_epsilon, rounded_up
from fulcrum.rules.rule_registry import rule_named

_COVERED_EPSILON = 20.0  # of persons beyond the targets: at e^20 the cost of lattice noise is still negligible
_ADVISED_AT_ONCE = 10_000  # silos; the advice on 10^6 silos takes 40 times as long as their plan
_MOST_RESERVE = 0.01  # of delta, for lattice noise; a delta that can pay more is no promise


@taking_keywords(Settings)
def plan(federation: Any, settings: Settings) -> Plan:
    """Returns the plan that gives every silo the promised guarantee.

    Neighbouring federations differ in the unit of privacy: by default in one silo's whole dataset, and the sensitivity
    of a clipped update is 2C. Calibrated noise never overspends: no epsilon exceeds its target.

    The advice is solved for with the plan, so that saving or printing the plan solves nothing. Above 10,000 silos the
    first use of the advice solves for the advice, as with `draft_plan`.

    Args:
        federation: A `Federation`, or any value that `read_federation` takes.
        settings: By keywords:
    """
    complete = _plan_of(federation, settings)
    if len(complete.federation) <= _ADVISED_AT_ONCE:
        advice_on(complete)
    return complete


@taking_keywords(Settings)
def draft_plan(federation: Any, settings: Settings) -> Plan:
    """Returns the same plan as `plan`, before its advice is solved for.

    Many plans in a row, such as the rows of a comparison or the answers to a slider, are never saved. The first use of
    such a plan's advice solves for the advice.

    Args:
        federation: A `Federation`, or any value that `read_federation` takes.
        settings: By keywords:
    """
    return _plan_of(federation, settings)


def _plan_of(federation: Any, settings: Settings) -> Plan:
    """Returns the plan of settings; `plan` has the promise."""
    federation = read_federation(federation)
    accountant = settings.accountant
    if accountant is None:
        accountant = "renyi" if settings.purpose == "deployment" else "exact"
    execution = execution_of(federation, settings)
    check_execution(execution, settings.parameters)
    rounds, delta, bound, parameters = settings.rounds, settings.delta, settings.bound, settings.parameters
    colluders = check_count("colluders", settings.colluders)
    dropouts = check_count("dropouts", settings.dropouts)
    if settings.injection == "aggregator":  # noise that no silo holds is neither colluded away nor missing
        colluders = dropouts = 0
    epsilon_of(1.0, rounds=rounds, delta=delta, accountant=accountant)  # refuses bad settings before any work
    mechanism_information(1.0, rounds=rounds, bound=bound, parameters=parameters)
    floor, information, budget = settings.floor, settings.information, settings.budget
    epsilon = with_observer_name(federation, settings.epsilon, settings.aggregation, stacklevel=5)
    target = Target(
        rounds=int(rounds),
        delta=float(delta),
        accountant=accountant,
        epsilon=epsilon_by_tier(federation, epsilon, settings.aggregation),
        information=None if information is None else float(information),
        floor=floor_by_silo(federation, 0.0 if floor is None and information is not None else floor),
        coupling=float(floor.strength) if isinstance(floor, Coupling) else None,
        bound=bound,
        parameters=None if parameters is None else int(parameters),
        budget=None if budget is None else float(budget),
        colluders=colluders,
        dropouts=dropouts,
        aggregation=settings.aggregation,
        unit=unit_of(settings),
        persons_per_silo=settings.persons_per_silo,
        silo_clip=settings.silo_clip,
        silo_epsilon=settings.silo_epsilon,
    )
    if settings.weights is None and federation.declared_weights is None and is_one_group(federation, target):
        recipe = recipe_for(RECIPES[settings.recipe], target.unit, one_group=True)
        execution = replace(execution, weights=recipe.weights)
    return make_plan(federation, target, execution)


def make_plan(federation: Topology, target: Target, execution: Execution, past: Past | None = None) -> Plan:
    """Returns the plan that keeps to a target, earlier spending included.

    Args:
        federation: The silos and the tree of regions above them.
        target: The promise to every silo.
        execution: The settings beside the promise.
        past: The releases before the plan; by default none.

    Raises:
        ParameterError: A setting is out of its range, or settings contradict each other.
        UnreachableTargetError: No amount of noise meets the target.
    """
    past = past or Past()
    check_execution(execution, target.parameters)
    federation = with_rosters(federation, target.rounds)
    check_schedule(federation, target, execution)
    federation = replace(federation, persons=declared_persons(federation, target))
    is_cut = execution.purpose == "deployment" and target.unit.is_within_silo
    whole = replace(
        target,
        unit=replace(target.unit, is_cut=is_cut),
        epsilon=stored_epsilon(federation, target.epsilon, target.aggregation),
        spent=spent_everywhere(federation, past.spent),
        reserve=past.reserve,
    )
    check_settings(federation, whole, execution)
    check_moved(federation, past)
    first_plan = _allocate_plan(federation, whole, execution, past)
    if execution.purpose == "research":
        return first_plan
    return _allocate_plan(federation, replace(whole, reserve=past.reserve + _reserve(first_plan)), execution, past)


def variant(
    plan: Plan,
    *,
    federation: Topology | None = None,
    target: Target | None = None,
    past: Past | None = None,
    **changes: Any,
) -> Plan:
    """Returns a plan with another federation, target, past or execution, and the remaining settings of `plan`.

    Every variant of a plan is made here, so a setting added to plans reaches all variants.

    Args:
        plan: The plan to vary.
        federation: The changed federation; by default the federation of the plan, with the weights before planning.
        target: The changed target.
        past: The releases before the plan; by default none.
        **changes: Fields of `Execution`.
    """
    execution = Execution(
        allocation=plan.allocation,
        seed=plan.seed,
        clip_norm=plan.clip_norm if plan.clip_share == 1 else "auto",
        weights=plan.weights_rule if plan.weights_rule != BY_SILO else _weights_by_silo(plan),
        least_influence=plan.least_influence,
        disputed_influence=plan.disputed_influence,
        server=plan.server,
        shrink=plan.shrink,
        spectrum=plan.spectrum,
        injection=plan.injection,
        purpose=plan.purpose,
        keys=plan.keys,
    )
    whose = replace(plan.federation, chosen_weights=None) if federation is None else federation
    return make_plan(whose, target or plan.target, replace(execution, **changes), past)


def _weights_by_silo(plan: Plan) -> dict[str, float]:
    return dict(zip(plan.federation.silo_names.tolist(), plan.federation.shares.tolist(), strict=True))


def _allocate_plan(federation: Topology, target: Target, execution: Execution, past: Past) -> Plan:
    """Returns the plan with the noise that the target requires, shared among the silos by `execution.allocation`.

    Args:
        federation: The silos and the tree above them.
        target: The promise.
        execution: Allocation, weights, server rule and the other settings that keep the promise.
        past: The privacy that the silos spent under earlier plans.
    """
    rule, seed = execution.allocation, int(execution.seed)
    shrinks = rule_named(execution.server).takes_shrink
    bought = target.budget is not None  # the target that a budget buys follows from the weights
    requirement = Requirement(multiplier={}, colluders=target.colluders, dropouts=target.dropouts)
    if not bought:
        requirement = target.requirement(federation)
    counting = choose_weights(
        federation, execution.weights, requirement, server=execution.server, least_influence=execution.least_influence
    )
    federation = counting.federation
    if bought:
        target = target.reached_with_budget(federation, rule, seed)
        requirement = target.requirement(federation)
    by_phase, prices = None, None
    if federation.rosters is None:
        multiplier = allocate(federation, requirement, rule, seed=seed)
    else:
        by_phase, prices = noise_by_phase(federation, requirement, rule)
        multiplier = largest_multiplier(federation, by_phase)
    own, injected = drawn_noise(federation, multiplier, execution.injection)
    return Plan(
        federation=federation,
        rounds=target.rounds,
        delta=target.delta,
        reserve=target.reserve,
        accountant=target.accountant,
        epsilon_target=target.epsilon,
        required_multiplier=requirement.multiplier,
        information=target.information,
        bound=target.bound,
        floor=target.floor,
        coupling=target.coupling,
        budget=target.budget,
        colluders=target.colluders,
        dropouts=target.dropouts,
        aggregation=target.aggregation,
        parameters=target.parameters,
        spent=target.spent,
        unit=target.unit,
        persons_per_silo=target.persons_per_silo,
        silo_clip=target.silo_clip,
        silo_epsilon=target.silo_epsilon,
        allocation=rule if isinstance(rule, str) else getattr(rule, "__name__", "custom"),
        noise_multiplier=own,
        aggregator_noise_multiplier=injected,
        phase_multiplier=by_phase,
        prices=prices,
        clip_norm=1.0 if execution.clip_norm == "auto" else float(execution.clip_norm),
        clip_share=_clip_share(federation, requirement, target) if execution.clip_norm == "auto" else 1.0,
        weights_rule=_rule_name(execution.weights),
        least_influence=float(execution.least_influence),
        disputed_influence=_disputed_influence(target, execution, federation),
        absent_regions=_goes_on_without_regions(target, execution),
        influence_mix=counting.mix,
        rule_weights=counting.by_rule,
        server=execution.server,
        shrink=execution.shrink if shrinks else False,
        spectrum=execution.spectrum if shrinks and execution.shrink in PRIORS else None,
        injection=execution.injection,
        seed=seed,
        purpose=execution.purpose,
        moved=dict(past.moved),
        keys=dict(execution.keys),
    )


def _disputed_influence(target: Target, execution: Execution, federation: Topology) -> float:
    """Returns the least influence in a dispute of a server that pools the sums of several regions; 0 for others."""
    pools = execution.server == "random-effects" and not is_one_group(federation, target)
    several = pools and len(federation.innermost.nodes) > 1
    return float(execution.disputed_influence) if several else 0.0


def _goes_on_without_regions(target: Target, execution: Execution) -> bool:
    """Returns True if a round goes on without a region that has no sum.

    Regions fail, and a deployed round should not wait for all regions, unless a target on the global sum counts on the
    noise of all regions. The embedded engine for research plans has every region in every round. By every rule but
    "sum" rounds always go on, and the setting has no effect.
    """
    adds_up = rule_named(execution.server).adds_up
    return execution.purpose == "deployment" and adds_up and ROOT not in target.epsilon


def _rule_name(weights: str | float | Mapping[str, float]) -> str | float:
    """Returns the rule as the plan names the rule."""
    if isinstance(weights, Mapping):
        return BY_SILO
    return weights if isinstance(weights, str) else float(weights)


def _clip_share(federation: Topology, requirement: Requirement, target: Target) -> float:
    """Returns the share of the clip norm at which updates are clipped: 1 / (1 + d v).

    v is the least noise of all weights for the most demanding tier. With a small v the share is near 1, a plain clip.
    With a large v the norm of an update says little, and all updates are scaled to nearly the same norm.
    """
    if target.parameters is None:
        raise ParameterError("plan.parameters-missing")
    above = requirement.by_observer(federation)[0]
    least = least_noise_of_one_tier(federation, above.multiplier, excluded_silos=above.excluded_silos)
    return 1 / (1 + target.parameters * least)


def _reserve(plan: Plan) -> float:
    """Returns the part of delta that lattice noise costs a plan, twice the cost against the observer of any tier.

    An observer of a tier meets the noise of all silos of the observed node. The reserve itself moves epsilon by far
    less than the factor of two covers.
    """
    federation = plan.federation
    narrowest = np.ones(len(federation))
    if plan.phase_multiplier is not None:  # a silo draws its least noise in another round than its largest
        narrowest = least_multiplier(federation, plan.phase_multiplier) / plan.noise_multiplier
    for silo in range(len(federation)):
        for part in {1.0, float(narrowest[silo])}:
            check_fits(
                signal=plan.lattice_signal(silo),
                width=part * plan.lattice_width(silo),
                members=len(federation),
                silo=federation.silo_name(silo),
            )
    inside = plan.group_tier if plan.is_masked else SILO
    reserve = 2 * max(
        delta_reserve(
            rounds=plan.rounds,
            parameters=check_parameters(plan.parameters),
            members=int(np.bincount(federation.membership(inside if tier == SILO else tier)).max()),
            epsilon=plan.worst_epsilon(tier),
            single=tier == inside == SILO,
        )
        for tier in federation.tier_names
    )
    # Epsilons of persons that still promise something are covered too; larger ones are stated as no guarantee.
    further = [epsilon for epsilon in plan.gaussian_person_epsilons.values() if epsilon <= _COVERED_EPSILON]
    reserve = max([reserve, *(2 * plan.further_reserve(epsilon) for epsilon in further)])
    if reserve > plan.delta / 2:
        largest = display_epsilon(float(plan.epsilon_inside.max()))
        observer = inside_observer(federation, plan.aggregation)
        if reserve > _MOST_RESERVE:
            raise ParameterError("plan.lattice-delta-infinite", largest=largest, observer=observer)
        raise ParameterError(
            "plan.lattice-delta-too-small",
            reserve=reserve,
            delta=plan.delta,
            largest=largest,
            observer=observer,
            enough=rounded_up(2 * reserve, 2),
        )
    return reserve
