"""Tuning of rounds, learning rate and recipe on public data; the plan is made anew with the best combination.

>>> from fulcrum.planning.planner import plan
>>> first = plan("mild", rounds=3, epsilon=5.0)
>>> tuned = tune(first, "digits", rounds=[1, 3], learning_rates=[0.3], seeds=2)
>>> len(tuned.tries), tuned.plan.epsilon_target["region"]
(6, 5.0)

A trial on the silos' own data reveals information about the data, outside every epsilon here. Data with names of silos
is therefore refused: tune on public or synthetic data of the same kind and size. The new plan makes the same promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.errors import DataError, ParameterError, PlanError, UnreachableTargetError
from fulcrum.planning.comparisons.variants import plan_with_recipe
from fulcrum.planning.inputs.recipes import RECIPES, Recipe, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.simulation.data.real_federations import is_real_federation
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.batched_engine import LocalTraining
from fulcrum.simulation.model_engines import metric_of, parameters_of
from fulcrum.simulation.training_runs import (
    LEARNING_RATE,
    default_training,
    seeds_of,
    standard_error,
    train_variants,
    with_metric,
)

AS_PLANNED = "as planned"
"""The name of the plan's own recipe, if the recipe is not in `TRIED`."""

TRIED = {
    "paper": RECIPES["paper"],
    "joint": RECIPES["joint"],
    "joint, not shrunk": replace(RECIPES["joint"], shrink=False),
}
"""The recipes to try, by name."""

LEARNING_RATES = (0.1, LEARNING_RATE, 1.0)
"""The learning rates to try by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A trained combination of recipe, rounds and learning rate.

    Attributes:
        recipe: A name of `TRIED`, or `AS_PLANNED`.
        rounds: T.
        learning_rate: Learning rate of the local steps.
        noise_budget: The noise variance entering the model, in units of C².
        accuracy: On the public test split, mean over seeds.
        accuracy_se: The standard error of the accuracy; NaN with a single seed.
        behind: The distance to the best accuracy, mean of the paired differences.
        behind_se: The standard error of the paired difference; NaN with a single seed.
        changes: The number of changes to the plan, out of recipe, rounds and learning rate.
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
    """The results of tuning.

    Attributes:
        plan: The plan made anew, with the same promise.
        best: The combination of the new plan.
        tries: All combinations, best first.
        left_out: The recipes that cannot keep the plan's targets, with the reasons.
        metric: The name of the metric that stands in place of the accuracy, in words.
    """

    plan: Plan
    best: Try
    tries: tuple[Try, ...]
    left_out: dict[str, str]
    metric: str = "accuracy"


def tune(
    plan: Plan,
    data: str | Path | Task,
    *,
    rounds: Sequence[int] | None = None,
    learning_rates: Sequence[float] = LEARNING_RATES,
    seeds: int | Sequence[int] = 5,
    training: LocalTraining | None = None,
    metric: str | None = None,
    on_try: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Tuned:
    """Returns the plan made anew with the rounds, learning rate and recipe that do best on public data.

    Every combination is trained by the embedded engine, with the same seeds. The most accurate combination is chosen,
    unless the planned combination is behind by at most two standard errors of the paired difference: chance alone
    changes nothing. More rounds add little, because every round then needs more noise.

    Args:
        plan: The plan to tune; a first plan, with a built-in allocation. A plan for deployment is allowed, because only
            the public data is trained here, with seeded noise.
        data: Public or synthetic data: a `Task`, or a source for `load_task`. Data with names of silos is refused.
        rounds: The numbers of rounds to try; 1, 3 and the plan's by default. The plan's number is always tried.
        learning_rates: The learning rates of local steps to try, besides the rate of `training`.
        seeds: Number of seeds, or the seeds.
        training: Local steps and batch, and the learning rate that counts as planned; `GradientTraining` for a plan
            that protects persons or records.
        metric: A name of `tasks.METRIC_NAMES`, "auc" for example; the task's own metric by default.
        on_try: Called with the number of trained combinations, and the total.
        **options: Options of `load_task`.
    """
    task = with_metric(data if isinstance(data, Task) else public_task(data, **options), metric)
    training = training or default_training(plan.unit)
    d = _check(plan, task)
    seed_list = seeds_of(seeds)
    recipes, left_out = _recipes(plan, d)
    grid = [  # a wrong learning rate is refused here, before any training
        (count, replace(training, learning_rate=rate))
        for count in sorted({*(rounds if rounds is not None else (1, 3)), plan.rounds})
        for rate in sorted({*learning_rates, training.learning_rate})
    ]
    trained: list[tuple[Plan, Try, FloatArray]] = []
    for count, local in grid:
        plans = {name: _replan(plan, recipe, count, d) for name, recipe in recipes.items()}
        accuracy = train_variants(
            [list(plans.values())] * len(seed_list),
            task,
            seeds=seed_list,
            training=local,
        ).accuracy
        for place, (name, new_plan) in enumerate(plans.items()):
            changed = (name != _own_recipe(plan), count != plan.rounds, local != training)
            tried = Try(
                recipe=name,
                rounds=count,
                learning_rate=local.learning_rate,
                noise_budget=new_plan.model_noise,
                accuracy=float(accuracy[:, place].mean()),
                accuracy_se=standard_error(accuracy[:, place]),
                behind=0.0,
                behind_se=0.0,
                changes=sum(changed),
            )
            trained.append((new_plan, tried, accuracy[:, place]))
        if on_try is not None:
            on_try(len(trained), len(grid) * len(recipes))
    best = max(trained, key=lambda trial: trial[1].accuracy)[2]
    trials = [
        (new_plan, replace(tried, behind=float((best - values).mean()), behind_se=standard_error(best - values)))
        for new_plan, tried, values in trained
    ]
    as_planned = next(trial for trial in trials if not trial[1].changes)
    level = as_planned[1].behind <= 2 * np.nan_to_num(as_planned[1].behind_se)
    chosen = as_planned if level else max(trials, key=lambda trial: trial[1].accuracy)
    tries = sorted((tried for _, tried in trials), key=lambda tried: -tried.accuracy)
    return Tuned(plan=chosen[0], best=chosen[1], tries=tuple(tries), left_out=left_out, metric=metric_of(None, task))


def public_task(source: str | Path, **options: Any) -> Task:
    """Returns the task of public data; the records of a real federation belong to its silos and are refused.

    Args:
        source: A source for `load_task`.
        **options: Options of `load_task`.
    """
    if is_real_federation(source, options.get("data_dir")):
        raise DataError("tuning.silos-named", data=source)
    return load_task(source, **options)


def _check(plan: Plan, task: Task) -> int:
    """Returns d, or raises for a plan that cannot be tuned or data that may not be used."""
    check_one_roster(plan.federation, "tuning")
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


def _own_recipe(plan: Plan) -> str:
    """Returns the name of the plan's own recipe."""
    mine = (plan.weights_rule, plan.clip_share < 1, plan.server, plan.shrink)
    for name, recipe in (
        (name, recipe_for(recipe, plan.unit, one_group=plan.one_group)) for name, recipe in TRIED.items()
    ):
        if mine == (recipe.weights, recipe.clip_norm == "auto", recipe.server, recipe.shrink):
            return name
    return AS_PLANNED


def _recipes(plan: Plan, d: int) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Returns the recipes that can keep the plan's targets, and the reasons against the others."""
    recipes = dict(TRIED)
    if _own_recipe(plan) == AS_PLANNED:
        weights: Any = plan.weights_rule
        if weights in (DECLARED, BY_SILO):
            weights = dict(zip(plan.federation.silo_names.tolist(), plan.federation.shares.tolist(), strict=True))
        clip: float | str = "auto" if plan.clip_share < 1 else plan.clip_norm
        recipes[AS_PLANNED] = Recipe(weights=weights, clip_norm=clip, server=plan.server, shrink=plan.shrink)
    left_out: dict[str, str] = {}
    for name, recipe in TRIED.items():
        try:
            _replan(plan, recipe, plan.rounds, d)
        except (ParameterError, UnreachableTargetError) as error:
            left_out[name] = str(error)
            del recipes[name]
    return recipes, left_out


def _replan(plan: Plan, recipe: Recipe, rounds: int, d: int) -> Plan:
    """Returns a plan of the same promise with another recipe and number of rounds; an automatic clip needs d."""
    return plan_with_recipe(plan, recipe, rounds=rounds, parameters=d if recipe.clip_norm == "auto" else None)
