"""The combinations of settings that tuning tries: their plans, their training, and their results.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.simulation.data.tasks import load_task
>>> from fulcrum.simulation.training_runs import default_training
>>> first = plan("mild", rounds=3, epsilon=5.0)
>>> search = CombinationSearch(first, load_task("digits"), default_training(first.unit), None, None, None)
>>> search.planned.recipe, search.planned.rounds, search.planned.clip_norm
('paper', 3, 1.0)

`tuning` searches the combinations by successive halving.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from msgspec import structs

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import BY_SILO, DECLARED, EVEN_HEADS, EVEN_SCALE, PRIORS, SHRINKS_OF_HEADS
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.errors import DataError, ParameterError, PlanError, UnreachableTargetError
from fulcrum.planning.comparisons.variants import plan_with_recipe
from fulcrum.planning.content.plan_figures import as_research
from fulcrum.planning.inputs.recipes import RECIPES, Recipe, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.simulation.data.input_scaling import ScaledInputs, scale_inputs, scaled_inputs
from fulcrum.simulation.data.input_variances import spectrum_of_task
from fulcrum.simulation.data.tasks import BUILT_IN, Task
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.halving import Halving, train_in_groups
from fulcrum.simulation.model_engines import parameters_of
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.training_runs import standard_error

AS_PLANNED = "as planned"
"""The name of the plan's own recipe, if the recipe is not in `TRIED`."""

TRIED = {
    "paper": RECIPES["paper"],
    "joint": RECIPES["joint"],
    "joint, not shrunk": replace(RECIPES["joint"], shrink=False),
}
"""The recipes to try, by name."""

INPUT_POWERS = (0.0, 1.0, 2.0)
"""The powers gamma of the input scaling to try by default; 0 scales no input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A combination of settings.

    Attributes:
        recipe: A name of `TRIED`, or `AS_PLANNED`.
        rounds: T.
        learning_rate: Learning rate of the local steps; of the server for the units "person" and "record".
        clip_norm: C, or "auto" for a share of C that follows from the noise.
        least_influence: The least influence of every region, as a share of its influence by size.
        prior: True if the server shrinks a head by the spectrum prior.
        input_power: gamma of the input scaling; 0 for inputs as they are.
    """

    recipe: str
    rounds: int
    learning_rate: float
    clip_norm: float | str
    least_influence: float
    prior: bool
    input_power: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Try(Combination):
    """A trained combination.

    Attributes:
        noise_budget: The noise variance entering the model, in units of C².
        seeds: The number of seeds that the combination was trained with; fewer if it left the search early.
        accuracy: On the public test split, mean over these seeds.
        accuracy_se: The standard error of the accuracy; NaN with a single seed.
        behind: The distance to the best combination, mean of the differences paired by seed.
        behind_se: The standard error of the paired difference; NaN with a single seed.
        changes: The number of settings that differ from the plan.
    """

    noise_budget: float
    seeds: int
    accuracy: float
    accuracy_se: float
    behind: float
    behind_se: float
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The chosen combination and the plan as it was, under seeds that chose nothing.

    Attributes:
        seeds: The seeds.
        planned: The accuracy as planned, mean over seeds.
        planned_se: The standard error of `planned`; NaN with a single seed.
        chosen: The accuracy of the chosen combination.
        chosen_se: The standard error of `chosen`.
        gain: The mean of the paired differences.
        gain_se: The standard error of the paired difference.
    """

    seeds: tuple[int, ...]
    planned: float
    planned_se: float
    chosen: float
    chosen_se: float
    gain: float
    gain_se: float


class CombinationSearch:
    """The combinations of a plan on public data, their plans and their training."""

    def __init__(
        self,
        plan: Plan,
        task: Task,
        training: LocalTraining,
        model: Model | TorchModel | None,
        device: str | TorchDevice | None,
        inputs_name: str | None,
    ) -> None:
        self._task, self._training, self._model, self._device = task, training, model, device
        self._parameters = _check(plan, task, model)
        # The lattice of a deployment changes no accuracy here, and takes long to check.
        self._plan = as_research(plan)
        self._tasks: dict[float, Task] = {0.0: task}
        self._plans: dict[Combination, Plan] = {}
        self.left_out: dict[str, str] = {}
        self._spectrum = self._spectrum_of(plan, inputs_name)
        own = own_recipe(plan)
        # No model of a user's own is shrunk, so the recipe without shrinkage is the joint recipe.
        tried = {name: recipe for name, recipe in TRIED.items() if model is None or recipe.shrink or name == "paper"}
        self._recipes = self._recipes_of(plan, tried, own)
        self.planned = Combination(
            recipe=own if own in tried else AS_PLANNED,
            rounds=plan.rounds,
            learning_rate=training.learning_rate,
            clip_norm="auto" if plan.clip_share < 1 else plan.clip_norm,
            least_influence=plan.least_influence,
            prior=plan.spectrum is not None,
            input_power=0.0,
        )

    def _spectrum_of(self, plan: Plan, inputs_name: str | None) -> Spectrum | None:
        """Returns the input variances: the plan's, or those of the public data; None if records are no rows."""
        if plan.spectrum is not None:
            return plan.spectrum
        if self._task.features_train.ndim != 2:
            return None
        spectrum = spectrum_of_task(self._task)
        # The records of built-in data are the silos' records in research, so their variances suit research plans alone.
        origin = spectrum.origin if self._task.name in BUILT_IN else "public"
        return structs.replace(spectrum, origin=origin, source=inputs_name or self._task.name)

    def _recipes_of(self, plan: Plan, tried: Mapping[str, Recipe], own: str) -> dict[str, Recipe]:
        """Returns the recipes that can keep the plan's targets; notes the reasons against the others."""
        recipes = dict(tried)
        if own not in tried:
            weights: Any = plan.weights_rule
            if weights in (DECLARED, BY_SILO):
                weights = dict(zip(plan.federation.silo_names.tolist(), plan.federation.shares.tolist(), strict=True))
            clip: float | str = "auto" if plan.clip_share < 1 else plan.clip_norm
            recipes[AS_PLANNED] = Recipe(weights=weights, clip_norm=clip, server=plan.server, shrink=plan.shrink)
        for name in list(recipes):
            if name == AS_PLANNED:
                continue
            try:
                plan_with_recipe(self._plan, recipes[name], parameters=self._parameters)
            except (ParameterError, UnreachableTargetError) as error:
                self.left_out[name] = str(error)
                del recipes[name]
        if plan.purpose == "deployment" and self._spectrum is not None and self._spectrum.origin != "public":
            self.left_out["prior"] = (
                f"a deployment takes input variances from public data, and those of {self._task.name} are of a "
                "training split"
            )
        return recipes

    def grid(
        self,
        *,
        rounds: Sequence[int],
        learning_rates: Sequence[float],
        clip_norms: Sequence[float],
        least_influences: Sequence[float],
        input_powers: Sequence[float] | None,
    ) -> list[Combination]:
        """Returns all combinations; a setting out of its range is refused here, before any training."""
        powers = INPUT_POWERS if input_powers is None else input_powers
        if self._spectrum is None and input_powers is None:
            powers = (0.0,)
        elif self._spectrum is None and any(powers):
            raise DataError("spectrum.rows-missing", data=self._task.name, shape=self._task.features_train.shape)
        combinations = [
            Combination(
                recipe=name,
                rounds=count,
                learning_rate=replace(self._training, learning_rate=rate).learning_rate,
                clip_norm=clip_norm,
                least_influence=least,
                prior=prior,
                input_power=power,
            )
            for count, rate, power in itertools.product(
                rounds, sorted({*learning_rates, self._training.learning_rate}), sorted({0.0, *map(float, powers)})
            )
            for name in self._recipes
            for clip_norm, least, prior in self._parts(name, clip_norms, least_influences)
        ]
        for power in {combination.input_power for combination in combinations}:
            self.task_of(power)
        for combination in combinations:
            self.plan_of(combination)
        return combinations

    def _parts(
        self, name: str, clip_norms: Sequence[float], least_influences: Sequence[float]
    ) -> Iterator[tuple[float | str, float, bool]]:
        """Yields clip norm, least influence and prior of a recipe."""
        planned = self.planned
        if name == planned.recipe == AS_PLANNED:
            yield planned.clip_norm, planned.least_influence, planned.prior
        elif name == "paper":
            clips = {*map(float, clip_norms), float(self._plan.clip_norm)} if self._plan.clip_share == 1 else clip_norms
            yield from ((clip_norm, planned.least_influence, False) for clip_norm in sorted(clips, reverse=True))
        else:
            of_plan = {planned.least_influence} if planned.recipe.startswith("joint") else set()
            priors = (False, True) if name == "joint" and self._has_prior else (False,)
            yield from itertools.product(("auto",), sorted({*map(float, least_influences), *of_plan}), priors)

    @property
    def _has_prior(self) -> bool:
        """True if a head can be shrunk by the prior: the built-in head, with variances that the plan may read."""
        return self._model is None and self._spectrum is not None and "prior" not in self.left_out

    def inputs(self, power: float) -> ScaledInputs:
        """Returns variances and factors of the inputs at a power of the scaling."""
        if self._spectrum is None:
            raise DataError("spectrum.rows-missing", data=self._task.name, shape=self._task.features_train.shape)
        return scaled_inputs(self._spectrum, power=power)

    def task_of(self, power: float) -> Task:
        """Returns the data with scaled inputs."""
        if power not in self._tasks:
            self._tasks[power] = scale_inputs(self._task, self.inputs(power))
        return self._tasks[power]

    def plan_of(self, combination: Combination, *, of: Plan | None = None) -> Plan:
        """Returns the plan of a combination with the promise of the plan that is tuned, or of another plan."""
        if of is not None:
            return self._make_plan(combination, of)
        power = combination.input_power if combination.prior else 0.0  # the plan of the others names no inputs
        key = replace(combination, learning_rate=1.0, input_power=power)
        if key not in self._plans:
            self._plans[key] = self._make_plan(combination, self._plan)
        return self._plans[key]

    def _make_plan(self, combination: Combination, plan: Plan) -> Plan:
        recipe = self._recipes[combination.recipe]
        changes: dict[str, Any] = {"clip_norm": combination.clip_norm, "least_influence": combination.least_influence}
        if combination.prior:
            changes |= {
                "shrink": recipe.shrink if recipe.shrink in PRIORS else EVEN_SCALE,
                "spectrum": self.inputs(combination.input_power).spectrum,
            }
        elif recipe.shrink in PRIORS:
            changes |= {"shrink": EVEN_HEADS}
        counted = combination.prior or combination.clip_norm == "auto"
        return plan_with_recipe(
            plan, recipe, rounds=combination.rounds, parameters=self._parameters if counted else None, **changes
        )

    def train(
        self, combinations: Sequence[Combination], seeds: Sequence[int]
    ) -> Iterator[Mapping[Combination, FloatArray]]:
        """Trains combinations under some seeds; yields the accuracy by seed."""
        groups = train_in_groups(
            combinations,
            seeds,
            alike=lambda combination: (combination.rounds, combination.learning_rate, combination.input_power),
            plan_of=lambda combination, _: self.plan_of(combination),
            task_of=lambda combination: self.task_of(combination.input_power),
            training_of=lambda combination: replace(self._training, learning_rate=combination.learning_rate),
            **({} if self._model is None else {"model": self._model, "device": self._device}),
        )
        for members, _, results in groups:
            yield {combination: results.accuracy[:, place] for place, combination in enumerate(members)}

    def confirm(self, best: Combination, seeds: Sequence[int]) -> Confirmation:
        """Trains the choice and the plan as it is under seeds that chose nothing."""
        accuracy: dict[Combination, FloatArray] = {}
        for trained in self.train(list(dict.fromkeys((self.planned, best))), seeds):
            accuracy |= trained
        planned, chosen = accuracy[self.planned], accuracy[best]
        return Confirmation(
            seeds=tuple(seeds),
            planned=float(planned.mean()),
            planned_se=standard_error(planned),
            chosen=float(chosen.mean()),
            chosen_se=standard_error(chosen),
            gain=float((chosen - planned).mean()),
            gain_se=standard_error(chosen - planned),
        )

    def tries_of(self, halving: Halving[Combination]) -> dict[Combination, Try]:
        """Returns every trained combination with its results."""
        best = halving.final_values(halving.best())
        tries = {}
        for combination, values in halving.values.items():
            shared = values[: len(best)]
            behind = best[: len(shared)] - shared
            tries[combination] = Try(
                **{field.name: getattr(combination, field.name) for field in fields(Combination)},
                noise_budget=self.plan_of(combination).model_noise,
                seeds=len(shared),
                accuracy=float(shared.mean()),
                accuracy_se=standard_error(shared),
                behind=float(behind.mean()),
                behind_se=standard_error(behind),
                changes=sum(
                    ours != planned for ours, planned in zip(astuple(combination), astuple(self.planned), strict=True)
                ),
            )
        return tries


def _check(plan: Plan, task: Task, model: Model | TorchModel | None) -> int:
    """Returns d, or raises for a plan that cannot be tuned or data that may not be used."""
    check_one_roster(plan.federation, "tuning")
    if task.silo is not None:
        raise DataError("tuning.silos-named", data=task.name)
    if plan.continues_previous_plan:
        raise PlanError("tuning.plan-continues")
    if plan.allocation not in ALLOCATIONS:
        raise PlanError("tuning.allocation-unknown", allocation=plan.allocation)
    d = parameters_of(model, task)
    if plan.parameters not in (None, d):
        raise ParameterError("tuning.plan-parameters", planned=plan.parameters, data=task.name, parameters=d)
    return d


def own_recipe(plan: Plan) -> str:
    """Returns the name of the plan's own recipe."""
    shrink = EVEN_HEADS if plan.shrink in SHRINKS_OF_HEADS else plan.shrink
    mine = (plan.weights_rule, plan.clip_share < 1, plan.server, shrink)
    for name, recipe in (
        (name, recipe_for(recipe, plan.unit, one_group=plan.one_group)) for name, recipe in TRIED.items()
    ):
        if mine == (recipe.weights, recipe.clip_norm == "auto", recipe.server, recipe.shrink):
            return name
    return AS_PLANNED
