"""Rounds, learning rate and recipe tried on public data, and the plan made anew with what did best.

>>> from fulcrum.planning.planner import plan
>>> made = plan("mild", rounds=3, epsilon=5.0)
>>> tuned = tune(made, "digits", rounds=[1, 3], learning_rates=[0.3], seeds=2)
>>> len(tuned.tries), tuned.plan.epsilon_target["region"]
(6, 5.0)

What is tried on the silos' own data tells of that data, and no epsilon here counts it. So data that names silos is
refused: tune on public or synthetic data of the same kind and size. The new plan makes the same promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.errors import DataError, ParameterError, PlanError, UnreachableTargetError
from fulcrum.planning.plan import Plan
from fulcrum.planning.recipes import RECIPES, Recipe
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.planning.variants import plan_with_recipe
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.batched_engine import LocalTraining
from fulcrum.simulation.model_engines import parameters_of
from fulcrum.simulation.training_runs import LEARNING_RATE, chosen_seeds, standard_error, train_arms

AS_PLANNED = "as planned"
"""The recipe that the plan has, where it is none of `TRIED`."""

TRIED = {
    "paper": RECIPES["paper"],
    "joint": RECIPES["joint"],
    "joint, not shrunk": replace(RECIPES["joint"], shrink=False),
}
"""The recipes that are tried."""

LEARNING_RATES = (0.1, LEARNING_RATE, 1.0)
"""The learning rates that are tried unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One combination, trained.

    Attributes:
        recipe: One of `TRIED`, or `AS_PLANNED`.
        rounds: T.
        learning_rate: Of the local steps.
        noise_budget: The noise variance entering the model, in units of C².
        accuracy: On the public test split, mean over seeds.
        accuracy_se: Its standard error; NaN with one seed.
        behind: How far behind the best, mean of the paired differences.
        behind_se: The standard error of the paired difference; NaN with one seed.
        changes: How many of recipe, rounds and learning rate differ from what was planned.
    """

    recipe: str
    rounds: int
    learning_rate: float
    noise_budget: float
    accuracy: float
    accuracy_se: float
    behind: float
    behind_se: float
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What came of tuning.

    Attributes:
        plan: The plan made anew, with the same promise.
        best: The combination that it was made with.
        tries: All that were tried, best first.
        left_out: By recipe that cannot keep the plan's targets, why.
    """

    plan: Plan
    best: Try
    tries: tuple[Try, ...]
    left_out: dict[str, str]


def tune(
    plan: Plan,
    data: str | Path | Task,
    *,
    rounds: Sequence[int] | None = None,
    learning_rates: Sequence[float] = LEARNING_RATES,
    seeds: int | Sequence[int] = 5,
    training: LocalTraining | None = None,
    on_try: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Tuned:
    """Returns the plan made anew with the rounds, learning rate and recipe that do best on public data.

    Every combination is trained by the embedded engine, with the same seeds. The most accurate is taken, unless what
    was planned is behind it by no more than two standard errors of their paired difference: chance alone changes
    nothing. More rounds buy little, since each then needs more noise.

    Args:
        plan: What to tune; a first plan, with a built-in allocation. It may be for deployment: what is trained here is
            the public data alone, with seeded noise.
        data: Public or synthetic data: a `Task`, or anything `load_task` takes. Data that names silos is refused.
        rounds: The numbers of rounds to try; 1, 3 and the plan's by default. The plan's is always tried.
        learning_rates: Those of the local steps to try, beside that of `training`.
        seeds: How many, or which.
        training: Local steps and batch, and the learning rate that counts as planned.
        on_try: Called with how many combinations were trained, and of how many.
        **options: As `load_task` takes them.
    """
    task = data if isinstance(data, Task) else load_task(data, **options)
    training = training or LocalTraining(learning_rate=LEARNING_RATE)
    d = _check(plan, task)
    chosen = chosen_seeds(seeds)
    recipes, left_out = _recipes(plan, d)
    grid = [  # a learning rate that is none is refused here, before anything is trained
        (count, replace(training, learning_rate=rate))
        for count in sorted({*(rounds if rounds is not None else (1, 3)), plan.rounds})
        for rate in sorted({*learning_rates, training.learning_rate})
    ]
    found: list[tuple[Plan, Try, FloatArray]] = []
    for count, local in grid:
        plans = {name: _anew(plan, recipe, count, d) for name, recipe in recipes.items()}
        accuracy = train_arms(
            [list(plans.values())] * len(chosen),
            task,
            seeds=chosen,
            training=local,
        ).accuracy
        for place, (name, made) in enumerate(plans.items()):
            changed = (name != _own(plan), count != plan.rounds, local != training)
            tried = Try(
                recipe=name,
                rounds=count,
                learning_rate=local.learning_rate,
                noise_budget=made.model_noise,
                accuracy=float(accuracy[:, place].mean()),
                accuracy_se=standard_error(accuracy[:, place]),
                behind=0.0,
                behind_se=0.0,
                changes=sum(changed),
            )
            found.append((made, tried, accuracy[:, place]))
        if on_try is not None:
            on_try(len(found), len(grid) * len(recipes))
    best = max(found, key=lambda one: one[1].accuracy)[2]
    compared = [
        (made, replace(tried, behind=float((best - mine).mean()), behind_se=standard_error(best - mine)))
        for made, tried, mine in found
    ]
    planned_so = next(one for one in compared if not one[1].changes)
    level = planned_so[1].behind <= 2 * np.nan_to_num(planned_so[1].behind_se)
    taken = planned_so if level else max(compared, key=lambda one: one[1].accuracy)
    tries = sorted((tried for _, tried in compared), key=lambda tried: -tried.accuracy)
    return Tuned(plan=taken[0], best=taken[1], tries=tuple(tries), left_out=left_out)


def _check(plan: Plan, task: Task) -> int:
    """Returns d, or raises where this plan cannot be tuned or this data may not be used."""
    if task.silo is not None:
        raise DataError("tuning.silos-named", data=task.name)
    if plan.continues_previous_plan:
        raise PlanError("tuning.plan-continues")
    if plan.allocation not in ALLOCATIONS:
        raise PlanError("tuning.allocation-unknown", allocation=plan.allocation)
    d = parameters_of(None, task)
    if plan.parameters not in (None, d):
        raise ParameterError("tuning.plan-parameters", planned=plan.parameters, data=task.name, parameters=d)
    return d


def _own(plan: Plan) -> str:
    """Returns the name of the plan's own recipe."""
    mine = (plan.weights_rule, plan.clip_share < 1, plan.server, plan.shrink)
    for name, recipe in TRIED.items():
        if mine == (recipe.weights, recipe.clip_norm == "auto", recipe.server, recipe.shrink):
            return name
    return AS_PLANNED


def _recipes(plan: Plan, d: int) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Returns the recipes that can keep the plan's targets, and why the others cannot."""
    recipes = dict(TRIED)
    if _own(plan) == AS_PLANNED:
        weights: Any = plan.weights_rule
        if weights in (DECLARED, BY_SILO):
            weights = dict(zip(plan.federation.silo_names.tolist(), plan.weights.tolist(), strict=True))
        clip: float | str = "auto" if plan.clip_share < 1 else plan.clip_norm
        recipes[AS_PLANNED] = Recipe(weights=weights, clip_norm=clip, server=plan.server, shrink=plan.shrink)
    left_out: dict[str, str] = {}
    for name, recipe in TRIED.items():
        try:
            _anew(plan, recipe, plan.rounds, d)
        except (ParameterError, UnreachableTargetError) as error:
            left_out[name] = str(error)
            del recipes[name]
    return recipes, left_out


def _anew(plan: Plan, recipe: Recipe, rounds: int, d: int) -> Plan:
    """Returns the plan of the same promise with another recipe and number of rounds; d where the clip needs it."""
    return plan_with_recipe(plan, recipe, rounds=rounds, parameters=d if recipe.clip_norm == "auto" else None)
