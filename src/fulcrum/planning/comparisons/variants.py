"""Variants of a plan with the same promise: saving by other weights, cost in influence, cost inside.

>>> from fulcrum.planning.planner import plan
>>> found = other_weights(plan("severe", rounds=10, epsilon=0.99))
>>> f"{found.saving:.1%} less noise; {found.node} has {found.after:.1%} of the model in place of {found.before:.1%}"
'55.0% less noise; region-4 has 0.4% of the model in place of 4.2%'
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.core.topology import SILO
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.content.levers import joint_option
from fulcrum.planning.content.plan_figures import as_research
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.recipes import RECIPES, Recipe, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import variant
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.rounding import display_epsilon

LEAST_SAVING = 0.01
"""The least share of a plan's noise that other weights must save to be mentioned."""

_LOOKED_AT_UP_TO = 200_000  # silos; beyond, a second plan would keep the reader waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWeights:
    """The changes of a plan's figures if the least-noise weights replaced the plan's weights.

    Attributes:
        options: The options of the command line that choose the least-noise weights; any single option suffices.
        saving: The share of the noise entering the model that the least-noise weights would save.
        tier: The tier of the node: the innermost tier, or "silo" if no node of the innermost tier would lose influence.
        node: The node that would lose the largest part of its influence.
        before: The influence of the node with the plan's weights.
        after: The influence of the node with the least-noise weights.
        inside_before: The worst epsilon inside with the plan's weights.
        inside_after: The worst epsilon inside with the least-noise weights.
    """

    options: tuple[str, ...]
    saving: float
    tier: str
    node: str
    before: float
    after: float
    inside_before: float
    inside_after: float

    @property
    def sentence(self) -> str:
        """The saving, the loss of influence, and the gain of the observer inside, in one sentence."""
        now, then = display_epsilon(self.inside_before), display_epsilon(self.inside_after)
        inside = f", and the worst epsilon inside would be {then:g} in place of {now:g}" if then > now else ""
        return (
            f"Weights of least noise ({' or '.join(self.options)}) would save {self.saving:.1%} of this noise; "
            f"{self.tier} {self.node!r} would have {_share(self.after)} of the model in place of {_share(self.before)}"
            f"{inside}."
        )


def other_weights(plan: Plan) -> OtherWeights | None:
    """Returns the effect of other weights at the same promise; None if the weights save hardly any noise.

    Candidates are the weights of least noise, with the plan's server or, if the server pools, with sums added up, and
    the weights of the joint recipe, whose server pools sums; the clip changes no noise.
    """
    if len(plan.federation) > _LOOKED_AT_UP_TO or plan.allocation not in ALLOCATIONS or plan.target.budget is not None:
        return None
    joint, weighted = RECIPES["joint"], plan.region_factors is None
    tried = {
        "--weights least-noise": Recipe(
            weights="least-noise", clip_norm=plan.clip_norm, server=plan.server if weighted else "sum"
        ),
        joint_option(plan): replace(joint, clip_norm=plan.clip_norm, least_influence=plan.least_influence),
    }
    continuous = as_research(plan)  # the lattice changes no figure here, and takes long to check
    plans: dict[str, Plan] = {}
    for option, recipe in tried.items():
        try:
            plans[option] = plan_with_recipe(continuous, recipe)
        except (ParameterError, UnreachableTargetError):  # no way to keep this promise
            continue
    if not plans:
        return None
    best = min(plans.values(), key=lambda tried_plan: tried_plan.model_noise)
    saving = 1 - best.model_noise / plan.model_noise
    if saving < LEAST_SAVING:
        return None
    inner = plan.federation.innermost
    tier, names = inner.name, list(inner.nodes)
    before, after = plan.node_influence(tier), best.node_influence(tier)
    if (after / before).min() > 1 - LEAST_SAVING:  # influence moves within each node alone
        tier, names = SILO, plan.federation.silo_names.tolist()
        before, after = plan.influence, best.influence
    offered = {
        option: tried_plan
        for option, tried_plan in plans.items()
        if tried_plan.model_noise <= best.model_noise * (1 + LEAST_SAVING)
    }
    most_affected = int(np.argmin(np.round(after / before, 9)))  # of equals, the first
    return OtherWeights(
        options=tuple(offered),
        saving=saving,
        tier=tier,
        node=names[most_affected],
        before=float(before[most_affected]),
        after=float(after[most_affected]),
        inside_before=plan.worst_epsilon(SILO),
        inside_after=max(tried_plan.worst_epsilon(SILO) for tried_plan in offered.values()),
    )


def plan_with_recipe(
    plan: Plan, recipe: Recipe, *, rounds: int | None = None, parameters: int | None = None, **changes: Any
) -> Plan:
    """Returns the plan of the same promise with another recipe, and other rounds or parameters if given.

    The target that a budget buys is found again. A clip of 1 in the recipe keeps the plan's own clip norm.

    Args:
        plan: The plan with the promise.
        recipe: The other recipe.
        rounds: T; the plan's by default.
        parameters: d; the plan's by default.
        **changes: Fields of `Execution` that differ from the recipe.
    """
    target = replace(plan.target, rounds=plan.rounds if rounds is None else rounds)
    if target.budget is not None:
        target = replace(target, epsilon={}, information=None)
    if parameters is not None:
        target = replace(target, parameters=parameters)
    past: dict[str, Any] = {"spent": plan.target.spent, "moved": plan.moved}
    if plan.is_research:  # in deployment the lattice's part of delta is found again
        past["reserve"] = plan.target.reserve
    return variant(plan, target=target, past=Past(**past), **(parts_of(recipe, plan) | changes))


def parts_of(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Returns weights, clip and server of a recipe for the plan's unit, as `variant` takes them.

    A clip of 1 keeps the plan's own clip norm.
    """
    recipe = recipe_for(recipe, plan.unit, one_group=plan.one_group)
    clip_norm = plan.clip_norm if recipe.clip_norm == 1.0 else recipe.clip_norm
    parts = {"weights": recipe.weights, "clip_norm": clip_norm, "server": recipe.server, "shrink": recipe.shrink}
    if plan.server == recipe.server:  # a plan of this recipe has chosen its least influence
        return parts
    names = ("least_influence", "disputed_influence")
    return parts | {name: max(getattr(plan, name), getattr(recipe, name)) for name in names}


def _share(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
