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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import (
    AGGREGATIONS,
    BY_SILO,
    DECLARED,
    HEADS,
    INJECTIONS,
    LARGEST,
    PURPOSES,
    SPECTRUM,
    Injection,
    Purpose,
    ServerName,
    Shrink,
)
from fulcrum.core.lattice import check_fits, check_parameters, delta_reserve
from fulcrum.core.masking.masking_thresholds import silos_of_one_key, tolerates
from fulcrum.core.plan.plan_file import Spectrum, key_bytes
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.remaining_noise import check_count
from fulcrum.core.topology import ROOT, SILO, Topology, name_problem
from fulcrum.errors import ParameterError, UnreachableTargetError, check_known
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.plan_figures import drawn_noise
from fulcrum.planning.inputs.inside_observer import inside_observer, stored_epsilon, with_observer_name
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.inputs.settings import Settings, taking_keywords
from fulcrum.planning.inputs.targets import Target, epsilon_by_tier, floor_by_silo
from fulcrum.planning.inputs.weighted_federation import choose_weights
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import AllocationRule, Requirement, allocate
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.planning.theory.leakage import mechanism_information
from fulcrum.planning.theory.prior import Coupling
from fulcrum.planning.theory.scheduling import (
    check_supported,
    largest_multiplier,
    least_multiplier,
    noise_by_phase,
    with_rosters,
)
from fulcrum.planning.theory.weights import least_noise_of_one_tier
from fulcrum.readers.federation_reader import read_federation
from fulcrum.rounding import display_epsilon, rounded_up
from fulcrum.rules.rule_registry import rule_named

_LARGEST_CLIP_NORM = 1e50
_MOST_PARAMETERS = 10**15
_MOST_PERSONS = 1e12
_COVERED_EPSILON = 20.0  # of persons beyond the targets: at e^20 the cost of lattice noise is still negligible
_ADVISED_AT_ONCE = 10_000  # silos; the advice on 10^6 silos takes 40 times as long as their plan
_MOST_RESERVE = 0.01  # of delta, for lattice noise; a delta that can pay more is no promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The settings of a plan beside the promise.

    Attributes:
        allocation: The distribution of noise: one of `ALLOCATIONS`, "module:function", or a callable.
        seed: For "misallocated".
        clip_norm: C, or "auto": C is 1, and updates are clipped at a share of C that follows from the noise.
        weights: The weights of silos, as `weights_by` takes them.
        least_influence: From 0 to 1, the least influence of every region as a share of its influence by size.
        server: A rule of `fulcrum.rules.registry`.
        shrink: One of `SHRINKS`: True if a server that pools removes the part that does not stand out of the noise.
        spectrum: The input variances of the spectrum prior; used by `SPECTRUM` alone.
        injection: One of `INJECTIONS`.
        purpose: One of `PURPOSES`.
        keys: Public keys by silo and region name, for the plan to carry.
    """

    allocation: str | AllocationRule = "optimal"
    seed: int = 0
    clip_norm: float | str = 1.0
    weights: str | float | Mapping[str, float] = "sizes"
    least_influence: float = 0.0
    server: ServerName = "sum"
    shrink: Shrink = False
    spectrum: Spectrum | None = None
    injection: Injection = "silo"
    purpose: Purpose = "research"
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """The releases of silos before a plan, which the promise includes; nothing for a first plan.

    Attributes:
        spent: By tier, the squared shift (mu²) that each silo has spent; the innermost tier and "silo" at least.
        reserve: The part of delta that lattice noise of earlier rounds has cost.
        moved: By silo that changed its region since the previous plan, the earlier region.
    """

    spent: Mapping[str, FloatArray] = field(default_factory=dict)
    reserve: float = 0.0
    moved: Mapping[str, str] = field(default_factory=dict)


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
    execution = _execution(federation, settings)
    _check_execution(execution, settings.parameters)
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
        unit=_unit_of(settings),
        persons_per_silo=settings.persons_per_silo,
        silo_clip=settings.silo_clip,
        silo_epsilon=settings.silo_epsilon,
    )
    if settings.weights is None and federation.declared_weights is None and is_one_group(federation, target):
        recipe = recipe_for(RECIPES[settings.recipe], target.unit, one_group=True)
        execution = replace(execution, weights=recipe.weights)
    return make_plan(federation, target, execution)


def is_one_group(federation: Topology, target: Target) -> bool:
    """Returns True if a target masks all silos as one group: masked sums, and a target on the federation alone."""
    if target.aggregation != "masked" or target.budget is not None:
        return False
    return target.requirement(federation).group_tier(federation) == ROOT


def _unit_of(settings: Settings) -> PrivacyUnit:
    """Returns the unit of privacy of settings."""
    return PrivacyUnit(
        name=settings.unit,
        neighbours=settings.neighbours,
        silos_per_person=settings.silos_per_person,
        label=settings.unit_name,
        is_cut=settings.purpose == "deployment" and settings.unit != "silo",
    )


def _execution(federation: Topology, settings: Settings) -> Execution:
    """Returns the settings beside the target; defaults come from the recipe and the federation's declared weights."""
    check_known("recipe", settings.recipe, RECIPES)
    recipe = recipe_for(RECIPES[settings.recipe], _unit_of(settings))
    spectrum = settings.public
    if spectrum is not None and settings.embedding:
        spectrum = structs.replace(spectrum, embedding=True)
    shrink = recipe.shrink if spectrum is None else SPECTRUM
    own_weights = recipe.weights if federation.declared_weights is None else DECLARED
    return Execution(
        allocation=settings.allocation,
        seed=settings.seed,
        clip_norm=recipe.clip_norm if settings.clip_norm is None else settings.clip_norm,
        weights=own_weights if settings.weights is None else settings.weights,
        least_influence=recipe.least_influence if settings.least_influence is None else settings.least_influence,
        server=recipe.server if settings.server is None else settings.server,
        shrink=shrink if settings.shrink is None else settings.shrink,
        spectrum=spectrum,
        injection=settings.injection,
        purpose=settings.purpose,
        keys=settings.keys or {},
    )


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
    _check_execution(execution, target.parameters)
    federation = with_rosters(federation, target.rounds)
    if federation.rosters is not None:
        check_supported(_usual_with_schedule(federation, target, execution))
    federation = replace(federation, persons=_declared_persons(federation, target))
    is_cut = execution.purpose == "deployment" and target.unit.is_within_silo
    whole = replace(
        target,
        unit=replace(target.unit, is_cut=is_cut),
        epsilon=stored_epsilon(federation, target.epsilon, target.aggregation),
        spent=_spent_everywhere(federation, past.spent),
        reserve=past.reserve,
    )
    _check_target(federation, whole, execution.injection)
    _check_server(federation, whole, execution)
    _check_masking(federation, whole, execution)
    _check_moved(federation, past)
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
        absent_regions=_goes_on_without_regions(target, execution),
        influence_mix=counting.mix,
        rule_weights=counting.by_rule,
        server=execution.server,
        shrink=execution.shrink if shrinks else False,
        spectrum=execution.spectrum if shrinks and execution.shrink == SPECTRUM else None,
        injection=execution.injection,
        seed=seed,
        purpose=execution.purpose,
        moved=dict(past.moved),
        keys=dict(execution.keys),
    )


def _usual_with_schedule(federation: Topology, target: Target, execution: Execution) -> dict[str, bool]:
    """Returns by setting True if the value has a proof where membership changes, as plan files are read."""
    inner, weights = federation.innermost.name, execution.weights
    plain = weights in ("sizes", "equal", DECLARED) if isinstance(weights, str) else isinstance(weights, Mapping)
    return {
        "targets": set(target.epsilon) <= {inner} and target.silo_epsilon is None,
        "unit": target.unit == SILO_UNIT,
        "injection": execution.injection == "silo",
        "aggregation": target.aggregation == "trusted",
        "colluders": not target.colluders,
        "dropouts": not target.dropouts,
        "information": target.information is None and target.floor is None,
        "budget": target.budget is None,
        "weights": plain and not execution.least_influence,
        "clip_norm": execution.clip_norm != "auto",
        "server": execution.server == "sum",
        "allocation": execution.allocation in ("optimal", "uniform"),
    }


def _declared_persons(federation: Topology, target: Target) -> FloatArray | None:
    """Returns by silo the declared number of persons, a public figure; None if silos are protected.

    Raises:
        ParameterError: No number is declared, two numbers are declared, or a number is out of its range.
    """
    declared, most = target.persons_per_silo, target.silo_clip
    if not target.unit.is_within_silo:
        if declared is not None or most is not None or target.silo_epsilon is not None:
            raise ParameterError("unit.silo-alone", unit=target.unit.name)
        return None
    for name, value in (("persons_per_silo", declared), ("silo_clip", most)):
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if value is not None and not (number and 1 <= value <= _MOST_PERSONS):
            raise ParameterError("unit.persons-range", name=name, value=value, most=_MOST_PERSONS)
    if declared is not None:
        if federation.sizes_known:
            raise ParameterError("unit.persons-twice", unit=target.unit.noun)
        return np.full(len(federation), float(declared))
    if not federation.sizes_known:
        raise ParameterError("unit.persons-missing", unit=target.unit.noun)
    if federation.sizes.min() < 1:
        silo = federation.silo_name(int(np.argmin(federation.sizes)))
        raise ParameterError("unit.persons-below-one", silo=silo, persons=float(federation.sizes.min()))
    return federation.sizes


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


def _check_target(federation: Topology, target: Target, injection: str) -> None:
    """Raises unless every silo has a target, and the targets fit each other and the injection."""
    if target.spent and (target.information is not None or target.budget is not None):
        raise ParameterError("plan.spent-without-epsilon")
    if injection == "aggregator" and SILO in target.epsilon:
        raise UnreachableTargetError("plan.updates-bare", observer=inside_observer(federation, target.aggregation))
    if target.unit.is_within_silo and (target.information is not None or target.floor is not None):
        raise ParameterError("plan.unit-unsupported", unit=target.unit.name)
    if target.unit.is_within_silo and injection == "aggregator":
        raise ParameterError("plan.unit-injection", unit=target.unit.name)
    if target.budget is not None and (target.epsilon or target.information is not None):
        raise ParameterError("plan.budget-with-target")
    if target.budget is None and not target.epsilon and target.information is None:
        bare = np.isnan(federation.preferences) if federation.preferences is not None else np.ones(1, dtype=bool)
        if bare.any():  # a silo without a target would send its updates without noise
            if federation.preferences is None:
                raise ParameterError("plan.target-missing")
            raise ParameterError("plan.silo-target-missing", silo=federation.silo_name(int(np.argmax(bare))))


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


def _check_server(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises unless the server rule costs no privacy."""
    rule = rule_named(execution.server)
    if not isinstance(execution.shrink, bool) and execution.shrink not in (HEADS, SPECTRUM):
        raise ParameterError("plan.shrink-invalid", heads=HEADS, spectrum=SPECTRUM, shrink=execution.shrink)
    if execution.shrink == SPECTRUM:
        _check_prior(execution, target.parameters)
    if rule.adds_up:
        return
    if execution.injection != "silo":
        raise ParameterError("plan.injection-unsupported", server=execution.server)
    outside = [tier for tier in target.epsilon if tier not in (SILO, federation.innermost.name)]
    # With one masked group the global sum stands for the sums of regions, which a rule of one's own may count on.
    reads_one_sum = execution.server == "random-effects" or not rule.reads_regions
    if outside and not (reads_one_sum and is_one_group(federation, target)):
        raise UnreachableTargetError(
            "plan.server-reveals-sums",
            server=execution.server,
            verb="reads" if rule.reads_regions else "counts as a rule that reads",
            region=federation.innermost.name,
            tier=outside[0],
        )


def _check_prior(execution: Execution, parameters: int | None) -> None:
    """Raises unless the spectrum prior has public variances of the inputs of a head, and a server that reads them."""
    spectrum = execution.spectrum
    if spectrum is None:
        raise ParameterError("plan.spectrum-missing")
    if not rule_named(execution.server).takes_shrink:
        raise ParameterError("plan.spectrum-server", server=execution.server)
    if execution.purpose == "deployment" and spectrum.origin != "public":
        raise ParameterError("plan.spectrum-origin", source=spectrum.source)
    if not all(0 < variance <= LARGEST for variance in spectrum.variances) or not spectrum.variances:
        raise ParameterError("plan.spectrum-range", most=LARGEST)
    if rule := name_problem(spectrum.source):
        raise ParameterError("plan.name-invalid", rule=rule, name=spectrum.source)
    inputs = len(spectrum.variances)
    if parameters is not None and parameters % (inputs + 1) and parameters % inputs:
        raise ParameterError("plan.spectrum-length", inputs=inputs, source=spectrum.source, parameters=parameters)


def _check_masking(federation: Topology, target: Target, execution: Execution) -> None:
    """Raises `ParameterError` if sums of a group cannot be masked while the allowed number of silos is missing."""
    check_known("aggregation", target.aggregation, AGGREGATIONS)
    if target.aggregation == "trusted":
        return
    silos = federation.silo_names.tolist()
    keys = {silo: key_bytes(execution.keys[silo]) for silo in silos if silo in execution.keys}
    if garbled := next((silo for silo, key in keys.items() if key is None), None):
        raise ParameterError("plan.mask-key-invalid", silo=garbled)
    if pair := silos_of_one_key(silos, keys):
        raise ParameterError("plan.mask-key-shared", silo=pair[0], other_silo=pair[1])
    if execution.injection != "silo":
        raise ParameterError("plan.masked-injection")
    inner = federation.innermost
    if target.budget is None:
        _check_met_by_the_server(federation, target.requirement(federation))
    whole = is_one_group(federation, target)
    sizes = np.bincount(inner.parent_of, minlength=len(inner.nodes))
    names, groups = ((ROOT,), [sizes]) if whole else (inner.nodes, sizes.reshape(-1, 1))
    for name, parts in zip(names, groups, strict=True):
        members = int(parts.sum())
        colluders = int(np.minimum(max(1, target.colluders), parts).sum())  # as many as the observer inside has
        dropouts = int(np.minimum(target.dropouts, parts).sum())
        if not tolerates(members, colluders=min(colluders, members - 1), dropouts=min(dropouts, members - 1)):
            raise UnreachableTargetError(
                "plan.group-too-small",
                group=name,
                silos=members,
                dropouts=dropouts,
                colluders=colluders,
                tier=inner.name,
            )


def _check_met_by_the_server(federation: Topology, requirement: Requirement) -> None:
    """Raises unless every silo has a target against the server, which gets the sum of the silo's masked group.

    A declared epsilon is a target on the innermost tier. Beside a target on the federation alone, a declared epsilon
    would have every region masked by itself, and a silo without a declared epsilon would have no required noise in the
    sum of its region.
    """
    tier = requirement.group_tier(federation)
    required = np.maximum(requirement.multiplier.get(tier, 0.0), requirement.multiplier.get(SILO, 0.0))
    bare = ~(np.broadcast_to(required, len(federation)) > 0)
    if bare.any():
        name = federation.silo_name(int(np.argmax(bare)))
        raise UnreachableTargetError("plan.masked-target-missing", silo=name, tier=tier, root=ROOT)


def _spent_everywhere(federation: Topology, spent: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Returns the spending at every tier.

    Observers further out met more noise, so the spending at the innermost tier bounds a missing figure.
    """
    if not spent:
        return {}
    inner = federation.innermost.name
    if not {inner, SILO} <= set(spent):
        raise ParameterError("plan.spent-tiers-missing", tier=inner)
    spending = {tier: np.asarray(spent.get(tier, spent[inner]), dtype=np.float64) for tier in federation.tier_names}
    for tier, values in spending.items():
        if values.shape != (len(federation),) or not ((values >= 0) & np.isfinite(values)).all():
            raise ParameterError("plan.spent-range", tier=tier)
    return spending


def _check_moved(federation: Topology, past: Past) -> None:
    if not past.moved:
        return
    inner = federation.innermost
    now = dict(zip(federation.silo_names.tolist(), (inner.nodes[code] for code in inner.parent_of), strict=True))
    wrong = next((silo for silo, before in past.moved.items() if before in ("", now.get(silo, before))), None)
    if wrong is not None or not past.spent:
        raise ParameterError("plan.moved-invalid", tier=inner.name, moved=wrong or "no spent")


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


def _check_execution(execution: Execution, parameters: int | None) -> None:
    clip_norm, seed = execution.clip_norm, execution.seed
    if clip_norm != "auto" and not (
        isinstance(clip_norm, (int, float, np.number)) and 1 / _LARGEST_CLIP_NORM <= clip_norm <= _LARGEST_CLIP_NORM
    ):
        raise ParameterError(
            "plan.clip-norm-range", least=1 / _LARGEST_CLIP_NORM, most=_LARGEST_CLIP_NORM, clip_norm=clip_norm
        )
    whole = isinstance(parameters, (int, np.integer)) and not isinstance(parameters, bool)
    if parameters is not None and not (whole and 1 <= parameters <= _MOST_PARAMETERS):
        raise ParameterError("plan.parameters-range", most=_MOST_PARAMETERS, parameters=parameters)
    check_known("injection", execution.injection, INJECTIONS)
    least = execution.least_influence
    if isinstance(least, bool) or not (isinstance(least, (int, float, np.number)) and 0 <= least <= 1):
        raise ParameterError("plan.least-influence-range", least_influence=least)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ParameterError("number.whole-range", name="seed", least=0, value=seed)
    check_known("purpose", execution.purpose, PURPOSES)
    if execution.purpose == "deployment":
        check_parameters(parameters)
        if execution.injection != "silo":
            raise ParameterError("plan.deployment-injection")
