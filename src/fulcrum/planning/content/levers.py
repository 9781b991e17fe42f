"""Levers: changes of a plan's settings for less noise, with saving, cost and option.

>>> from fulcrum.planning.planner import plan
>>> brca = plan("tcga-brca", rounds=10, epsilon=1.0)
>>> [(lever.name, f"{lever.saving:.1%}") for lever in levers_of(brca) if not lever.changes_promise]
[('least-noise', '91.9%'), ('equal', '79.5%'), ('rounds', '50.0%')]

The figures are figures of continuous noise: the lattice of a deployment plan changes no noise budget. No function
changes a plan. Merges of regions are in `fulcrum.planning.content.region_merges`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fulcrum.core.masking.masking_thresholds import tolerates
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import FulcrumError, ParameterError
from fulcrum.planning.content.plan_figures import PlanFigures, as_research, changed_copy, with_noise
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.inputs.weighted_federation import choose_weights
from fulcrum.planning.theory.allocation import ALLOCATIONS, allocate

LEAST_SAVING = 0.01
"""The least saving of a lever in the advice, as a share of a plan's noise."""

_LOOKED_AT_UP_TO = 200_000  # silos; beyond, further plans would keep the reader waiting
_ITERATED_UP_TO = 200  # silos with different needs, for least-noise weights with targets on several tiers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lever:
    """A change of a plan's settings for less noise.

    Attributes:
        name: "equal", "least-noise", "masked", "rounds", "one-group" or "person".
        plan: The plan after the change, with the figures of continuous noise.
        saving: The saved share of the noise entering the model in one round; 0 for the unit person, as C² is then the
            square of another clip norm.
        option: The change in words of the command line.
        changes_promise: True if the plan after the change has another promise, or other observers.
    """

    name: str
    plan: PlanFigures
    saving: float
    option: str
    changes_promise: bool = False


def levers_of(plan: PlanFigures) -> tuple[Lever, ...]:
    """Returns the levers of a plan by saving, the largest first; then the levers with another promise.

    Every lever is tried by itself, with all other settings of the plan. Empty for an allocation of the user's own, for
    a plan with a given noise budget, for a plan after releases, and for federations too large to plan for again.
    """
    federation = plan.federation
    if len(federation) > _LOOKED_AT_UP_TO or plan.allocation not in ALLOCATIONS or plan.target.budget is not None:
        return ()
    if plan.continues_previous_plan:  # the rounds, weights and observers of the promise are fixed by the first plan
        return ()
    continuous = as_research(plan)
    same = [
        *_attempt(_weights_levers, continuous),
        *_attempt(_mask_lever, continuous),
        *_attempt(_rounds_lever, continuous),
    ]
    person = partial(_person_lever, is_cut=plan.is_deployment)
    other = [*_attempt(_one_group_lever, continuous), *_attempt(person, continuous)]
    return (
        *sorted((lever for lever in same if lever.saving >= LEAST_SAVING), key=lambda lever: -lever.saving),
        *(lever for lever in other if lever.saving >= LEAST_SAVING or lever.name == "person"),
    )


def _attempt(levers: Callable[[PlanFigures], Iterator[Lever]], plan: PlanFigures) -> list[Lever]:
    """Returns levers, or none if a lever cannot keep the targets: advice never keeps a plan from being made."""
    try:
        return list(levers(plan))
    except FulcrumError:
        return []


def masked_variant(plan: PlanFigures) -> PlanFigures | None:
    """Returns the plan with masked sums in each region and the same targets; None if the sums cannot be masked."""
    if plan.is_masked or not plan.silos_draw_noise or plan.federation.rosters is not None:
        return None
    federation, requirement = plan.federation, replace(plan.requirement, masked=True)
    if requirement.group_tier(federation) == ROOT:
        return None
    inner = federation.innermost.name
    required = np.maximum(requirement.multiplier.get(inner, 0.0), requirement.multiplier.get(SILO, 0.0))
    if not (np.broadcast_to(required, len(federation)) > 0).all():  # the server would meet sums without a target
        return None
    sizes = np.bincount(federation.innermost.parent_of)
    if not all(_can_be_masked(plan.target, members.reshape(1)) for members in np.unique(sizes)):
        return None
    return _solve_variant(*_weighed_anew(plan, replace(plan.target, aggregation="masked")))


def with_equal_weights(plan: PlanFigures) -> PlanFigures | None:
    """Returns the plan with equal weights within each region and the same targets; None if sizes are secret."""
    return next((lever.plan for lever in _by_weights(plan, "equal", "")), None)


def _weights_levers(plan: PlanFigures) -> Iterator[Lever]:
    """Yields equal weights within regions, and the weights of least noise by themselves and by the joint recipe."""
    adds: dict[str, Any] = {} if plan.server_rule.region_factors() is None else {"server": "sum", "shrink": False}
    if not plan.unit.is_within_silo and plan.weights_rule != "equal":
        yield from _by_weights(plan, "equal", "--weights equal")
    least = list(_by_weights(plan, "least-noise", "--weights least-noise", **adds)) if _weighs_quickly(plan) else []
    joint = recipe_for(RECIPES["joint"], plan.unit)
    outer = set(plan.epsilon_target) - {SILO, plan.federation.innermost.name}
    if plan.silos_draw_noise and not outer:
        together: dict[str, Any] = {"server": joint.server, "shrink": joint.shrink, "weights": joint.weights}
        least += _by_weights(plan, "least-noise", joint_option(plan), **together)
    if least:
        best = max(lever.saving for lever in least)
        offered = [lever for lever in least if 1 - lever.saving <= (1 - best) * (1 + LEAST_SAVING)]
        # The costs that are stated are the costs of the option with the larger epsilon inside.
        worst = max(offered, key=lambda lever: lever.plan.worst_epsilon(SILO))
        least_saving = min(lever.saving for lever in offered)
        yield replace(worst, saving=least_saving, option=" or ".join(lever.option for lever in offered))


def joint_option(plan: PlanFigures) -> str:
    """Returns the option of the joint recipe with the plan's least influence, which the recipe would replace."""
    joint = recipe_for(RECIPES["joint"], plan.unit)
    option = "--recipe joint" if plan.weights_rule == "sizes" else f"--recipe joint --weights {joint.weights}"
    if plan.least_influence == joint.least_influence:
        return option
    return f"{option} --least-influence {plan.least_influence!r}".removesuffix(".0")


def _by_weights(plan: PlanFigures, name: str, option: str, *, weights: str = "", **changes: Any) -> Iterator[Lever]:
    rule = weights or name
    try:
        counting = choose_weights(
            replace(plan.federation, chosen_weights=None),
            rule,
            plan.requirement,
            server=changes.get("server", plan.server),
            least_influence=plan.least_influence,
        )
    except ParameterError:  # sizes are secret, or targets too far apart
        return
    changed = changed_copy(
        plan,
        federation=counting.federation,
        weights_rule=rule,
        influence_mix=counting.mix,
        rule_weights=counting.by_rule,
        clip_share=1.0,
        **changes,
    )
    noise = allocate(counting.federation, plan.requirement, plan.allocation, seed=plan.seed)
    yield _lever(name, plan, with_noise(changed, plan.allocation, noise), option)


def _mask_lever(plan: PlanFigures) -> Iterator[Lever]:
    """Yields masked sums if a target inside costs noise; without such a target masks change no noise."""
    if SILO in plan.epsilon_target and (masked := masked_variant(plan)) is not None:
        yield _lever("masked", plan, masked, "--aggregation masked")


def _rounds_lever(plan: PlanFigures) -> Iterator[Lever]:
    rounds = plan.rounds // 2
    if rounds:
        fewer = _solve_variant(plan, plan.federation, replace(plan.target, rounds=rounds))
        yield _lever("rounds", plan, fewer, f"--rounds {rounds}")


def _one_group_lever(plan: PlanFigures) -> Iterator[Lever]:
    """Yields all silos masked as one group: a target on the global sum in place of the targets on regional sums."""
    federation, targets = plan.federation, dict(plan.epsilon_target)
    inside = {tier: targets.pop(tier) for tier in list(targets) if tier == SILO}
    other_targets = federation.preferences is not None or plan.information is not None or plan.silo_epsilon is not None
    if not targets or set(targets) == {ROOT} or other_targets or plan.spent:
        return
    if not plan.silos_draw_noise or not plan.server_rule.adds_up or len(federation.innermost.nodes) < 2:
        return
    if not _can_be_masked(plan.target, np.bincount(federation.innermost.parent_of)):
        return
    target = replace(plan.target, aggregation="masked", epsilon=inside | {ROOT: min(targets.values())})
    group = _solve_variant(*_weighed_anew(plan, target))
    option = f"--aggregation masked --epsilon {ROOT}={min(targets.values()):g}"
    yield replace(_lever("one-group", plan, group, option), changes_promise=True)


def _person_lever(plan: PlanFigures, *, is_cut: bool) -> Iterator[Lever]:
    """Yields the lever "person", if the declared sizes can be numbers of persons; otherwise nothing.

    The lever changes the unit of privacy from a silo to a person, and keeps the plan's targets.

    Args:
        plan: The plan, with continuous noise.
        is_cut: True if deployed silos would round the gradients of persons to a lattice, at a larger sensitivity.
    """
    federation, target = plan.federation, plan.target
    usable = federation.sizes_known and bool(federation.sizes.min() >= 1) and plan.silos_draw_noise
    if plan.unit.is_within_silo or not usable or plan.floor is not None or plan.spent:
        return
    persons = replace(federation, persons=federation.sizes, chosen_weights=None)
    target = replace(target, unit=PrivacyUnit(name="person", is_cut=is_cut))
    weights = recipe_for(RECIPES["paper"], target.unit).weights
    federation = choose_weights(persons, weights, target.requirement(persons), server="sum").federation
    plain = changed_copy(plan, weights_rule=weights, server="sum", shrink=False, clip_share=1.0, influence_mix=0.0)
    after = _solve_variant(changed_copy(plain, rule_weights=None), federation, target)
    option = "--unit person"  # with the plain sum and weights by size, whatever the plan has
    option += "" if plan.server_rule.adds_up else " --recipe paper --server sum"
    option += "" if plan.weights_rule == weights else f" --weights {weights}"
    yield Lever(name="person", plan=after, saving=0.0, option=option, changes_promise=True)


def _weighed_anew(plan: PlanFigures, target: Target) -> tuple[PlanFigures, Topology, Target]:
    """Returns plan, federation and target, with the weights that the plan's rule gives for this target.

    Weights toward least noise follow from the target; all other weights are those of the plan.
    """
    if plan.weights_rule != "least-noise" and isinstance(plan.weights_rule, str):
        return plan, plan.federation, target
    counting = choose_weights(
        plan.federation,
        plan.weights_rule,
        target.requirement(plan.federation),
        server=plan.server,
        least_influence=plan.least_influence,
    )
    weighed = changed_copy(plan, influence_mix=counting.mix, rule_weights=counting.by_rule)
    return weighed, counting.federation, target


def _solve_variant(plan: PlanFigures, federation: Topology, target: Target) -> PlanFigures:
    """Returns the plan with another target, and the noise that the target requires."""
    requirement = target.requirement(federation)
    changed = changed_copy(
        plan,
        federation=federation,
        rounds=target.rounds,
        epsilon_target=target.epsilon,
        required_multiplier=requirement.multiplier,
        aggregation=target.aggregation,
        unit=target.unit,
    )
    return with_noise(changed, plan.allocation, allocate(federation, requirement, plan.allocation, seed=plan.seed))


def _lever(name: str, before: PlanFigures, after: PlanFigures, option: str) -> Lever:
    return Lever(name=name, plan=after, saving=1 - after.model_noise / before.model_noise, option=option)


def _can_be_masked(target: Target, parts: "np.ndarray[Any, np.dtype[np.intp]]") -> bool:
    """Checks that a masked sum of regions of these sizes survives the colluders and dropouts of every region."""
    members = int(parts.sum())
    colluders = int(np.minimum(max(1, target.colluders), parts).sum())
    dropouts = int(np.minimum(target.dropouts, parts).sum())
    return tolerates(members, colluders=min(colluders, members - 1), dropouts=min(dropouts, members - 1))


def _weighs_quickly(plan: PlanFigures) -> bool:
    """Checks that weights of least noise follow within a second: with one target tier they have a closed form."""
    if len(plan.requirement.multiplier) == 1:
        return True
    regions, declared = plan.federation.innermost.parent_of, plan.federation.preferences
    if declared is None:
        return len(plan.federation.innermost.nodes) <= _ITERATED_UP_TO
    return len(np.unique(np.stack([regions, np.nan_to_num(declared)]), axis=1).T) <= _ITERATED_UP_TO
