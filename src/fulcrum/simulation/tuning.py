"""Tuning on public data: recipe, least influence, clip, learning rate, rounds, prior and scaling of inputs together.

>>> from fulcrum.planning.planner import plan
>>> first = plan("mild", rounds=3, epsilon=5.0)
>>> tuned = tune(first, "digits", rounds=[1, 3], learning_rates=[0.3], clip_norms=[1], input_powers=[0], seeds=2)
>>> len(tuned.tries), tuned.plan.epsilon_target["region"], tuned.choosing_seeds
(14, 5.0, (1000, 1001))

Combinations are tried by successive halving (`halving`). A trial on the silos' own data reveals information about the
data, outside every epsilon here. Data with names of silos is therefore refused: tune on public or synthetic data of the
same kind and size. The new plan makes the same promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.core.choices import BY_SILO, DECLARED, SHRINKS_OF_HEADS
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.errors import DataError, ParameterError
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.input_scaling import ScaledInputs
from fulcrum.simulation.data.real_federations import is_real_federation
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.halving import Halving, halve
from fulcrum.simulation.model_engines import metric_of, model_of
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.training_runs import (
    GRADIENT_RATE,
    LEARNING_RATE,
    default_training,
    seeds_of,
    standard_error,
    with_metric,
)
from fulcrum.simulation.tuning_search import Combination, CombinationSearch, Confirmation, Try

LEARNING_RATES = (0.1, LEARNING_RATE, 1.0)
"""The learning rates of local steps to try by default."""

GRADIENT_RATES = (0.5, GRADIENT_RATE, 5.0)
"""The learning rates of the server to try by default, for the units "person" and "record"."""

CLIP_NORMS = (1.0, 0.3, 0.1, 0.03)
"""The clip norms to try by default with the paper's recipe; the joint recipe clips at a norm that follows from the
noise."""

LEAST_INFLUENCES = (0.5, 1.0)
"""The least influences to try by default with the joint recipe, beside the plan's own. 0 is tried only if a user names
it: 0 is the most accurate if regions agree, and public data rarely shows how the regions of silos differ."""

FIRST_CHOOSING_SEED = 1000
"""The first of the seeds that choose; reported seeds begin with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The results of tuning.

    Attributes:
        plan: The plan made anew, with the same promise.
        best: The combination of the new plan.
        tries: All trained combinations, the finalists first, then by accuracy.
        left_out: The recipes, or the prior, that cannot be tried, with the reasons.
        choosing_seeds: The seeds that chose.
        confirmation: The choice beside the plan as it was, under other seeds; None after an early stop.
        inputs: The variances and factors of inputs, if the new plan has a prior or its inputs are scaled.
        stopped: True if Ctrl-C ended the search before its end.
        metric: The name of the metric that stands in place of the accuracy, in words.
    """

    plan: Plan
    best: Try
    tries: tuple[Try, ...]
    left_out: dict[str, str]
    choosing_seeds: tuple[int, ...]
    confirmation: Confirmation | None
    inputs: ScaledInputs | None = None
    stopped: bool = False
    metric: str = "accuracy"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the choice, as keyword arguments of `fulcrum.plan` beside the federation and the promise.

        `public` is left out: it is `inputs.spectrum`, for a plan with a prior.
        """
        plan = self.plan
        recipe = recipe_for(RECIPES["paper" if plan.server == "sum" else "joint"], plan.unit, one_group=plan.one_group)
        settings: dict[str, Any] = {
            "rounds": plan.rounds,
            "recipe": "paper" if plan.server == "sum" else "joint",
            "clip_norm": "auto" if plan.clip_share < 1 else plan.clip_norm,
            "least_influence": plan.least_influence,
        }
        if plan.disputed_influence != recipe.disputed_influence:
            settings["disputed_influence"] = plan.disputed_influence
        if plan.weights_rule not in (DECLARED, BY_SILO, recipe.weights):
            settings["weights"] = plan.weights_rule
        if plan.server != recipe.server:
            settings["server"] = plan.server
        if plan.shrink not in SHRINKS_OF_HEADS and plan.shrink != recipe.shrink:
            settings["shrink"] = plan.shrink
        return settings if plan.parameters is None else settings | {"parameters": plan.parameters}


def tune(
    plan: Plan,
    data: str | Path | Task,
    *,
    rounds: Sequence[int] | None = None,
    learning_rates: Sequence[float] | None = None,
    clip_norms: Sequence[float] = CLIP_NORMS,
    least_influences: Sequence[float] = LEAST_INFLUENCES,
    input_powers: Sequence[float] | None = None,
    seeds: int | Sequence[int] = 5,
    choosing_seeds: Sequence[int] | None = None,
    training: LocalTraining | None = None,
    model: Any = None,
    device: str | TorchDevice | None = None,
    metric: str | None = None,
    inputs_name: str | None = None,
    on_try: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Tuned:
    """Returns the plan made anew with the combination of settings that does best on public data.

    Combinations are trained in process by successive halving, all with the same seeds, and the plan as it is stays to
    the end. The most accurate combination is chosen, unless the plan as it is falls behind by at most two standard
    errors of the paired difference: chance alone changes nothing. Both are then trained under other seeds, because the
    accuracy that won a search is too high an estimate. Ctrl-C ends the search and returns the best combination so far.

    Args:
        plan: The plan to tune; a first plan, with a built-in allocation. A plan for deployment is allowed, because only
            the public data is trained here, with seeded noise.
        data: Public or synthetic data: a `Task`, or a source for `load_task`. Data with names of silos is refused.
        rounds: The numbers of rounds to try; 1, 3 and the plan's by default. The plan's number is always tried.
        learning_rates: The learning rates to try, besides the rate of `training`.
        clip_norms: The clip norms to try with the paper's recipe, besides the plan's own.
        least_influences: The least influences to try with the joint recipe, besides the plan's own.
        input_powers: The powers of the input scaling to try, besides 0; `INPUT_POWERS` by default for records that are
            rows of numbers.
        seeds: Number of seeds, or the seeds, of the confirmation.
        choosing_seeds: The seeds that choose; as many seeds as `seeds` has, from `FIRST_CHOOSING_SEED` on, by default.
        training: Local steps and batch, and the learning rate that counts as planned; `GradientTraining` for a plan
            that protects persons or records.
        model: A user's own model for `train`; the softmax head by default. No model of a user's own is shrunk.
        device: Device of a PyTorch module.
        metric: A name of `tasks.METRIC_NAMES`, "auc" for example; the task's own metric by default.
        inputs_name: The name of the file that a caller will write `Tuned.inputs` to, as plans name the source of input
            variances; the name of the data by default.
        on_try: Called with the number of trained combinations times seeds, and the total.
        **options: Options of `load_task`.
    """
    task = with_metric(data if isinstance(data, Task) else public_task(data, **options), metric)
    user_model, training = model_of(model), training or default_training(plan.unit)
    reported = seeds_of(seeds)
    if choosing_seeds is None:
        choosing_seeds = range(FIRST_CHOOSING_SEED, FIRST_CHOOSING_SEED + len(reported))
    choosing = seeds_of(choosing_seeds)
    check_seeds_apart(reported, choosing)
    search = CombinationSearch(plan, task, training, user_model, device, inputs_name)
    grid = search.grid(
        rounds=sorted({*((1, 3) if rounds is None else rounds), plan.rounds}),
        learning_rates=learning_rates_of(learning_rates, plan.unit),
        clip_norms=clip_norms,
        least_influences=least_influences,
        input_powers=input_powers,
    )
    halving = halve(grid, search.train, seeds=choosing, always=[search.planned], on_try=on_try)
    best = _choose(halving, search.planned)
    confirmation, stopped = None, halving.stopped
    if not stopped:
        try:
            confirmation = search.confirm(best, reported)
        except KeyboardInterrupt:
            stopped = True
    tries = search.tries_of(halving)
    return Tuned(
        plan=plan if best == search.planned else search.plan_of(best, of=plan),
        best=tries[best],
        tries=tuple(sorted(tries.values(), key=lambda tried: (-tried.seeds, -tried.accuracy))),
        left_out=search.left_out,
        choosing_seeds=halving.seeds,
        confirmation=confirmation,
        inputs=search.inputs(best.input_power) if best.input_power or best.prior else None,
        stopped=stopped,
        metric=metric_of(user_model, task),
    )


def learning_rates_of(learning_rates: Sequence[float] | None, unit: PrivacyUnit) -> Sequence[float]:
    """Returns the learning rates to try: those of a user, or the default rates of the unit of privacy."""
    if learning_rates is not None:
        return learning_rates
    return GRADIENT_RATES if unit.is_within_silo else LEARNING_RATES


def check_seeds_apart(reported: Sequence[int], choosing: Sequence[int]) -> None:
    """Raises `ParameterError` for a seed that both chooses and is reported.

    The best of many combinations under some seeds looks better under these seeds than under any others.
    """
    if shared := sorted(set(reported) & set(choosing)):
        raise ParameterError("tuning.seeds-shared", seed=shared[0], first=min(choosing))


def _choose(halving: Halving[Combination], planned: Combination) -> Combination:
    """Returns the best finalist, or the plan as it is unless the best is ahead by more than two standard errors."""
    best = halving.best()
    ahead = halving.final_values(best) - halving.final_values(planned)
    return best if ahead.mean() > 2 * np.nan_to_num(standard_error(ahead)) else planned


def public_task(source: str | Path, **options: Any) -> Task:
    """Returns the task of public data; the records of a real federation belong to its silos and are refused.

    Args:
        source: A source for `load_task`.
        **options: Options of `load_task`.
    """
    if is_real_federation(source, options.get("data_dir")):
        raise DataError("tuning.silos-named", data=source)
    return load_task(source, **options)
