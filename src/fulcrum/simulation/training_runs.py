"""A plan trained on some data under several seeds, and what came of it.

>>> from fulcrum.planning.planner import plan
>>> run = train(plan("mild", rounds=3, epsilon=5.0), "digits", seeds=2)
>>> run.accuracy.shape
(2, 3)
"""

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.files.plan_from_file import with_figures
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.partition import Partition, check_silos_known, coupled_partition, declared_partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import Arms, FederationRun, Job, LocalTraining
from fulcrum.simulation.embedded.metrics import tested_silos
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.regional_metrics import class_mixes, worst_region_accuracy, worst_region_of_silos
from fulcrum.simulation.model_engines import metric_of, model_of, parameters_of, train_model
from fulcrum.simulation.torch.torch_engine import TorchDevice
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.version import package_version

LEARNING_RATE = 0.3
"""The best of a grid on the uniform arm of the balanced profile, used unchanged everywhere: docs/experiments.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRun:
    """What came of training one plan.

    Attributes:
        plan: What was run.
        task: On what.
        training: How silos trained.
        seeds: Under which seeds.
        records: Mean records a silo, where it was said.
        accuracy: On the test split, (seeds, rounds); of a model that is measured otherwise, its metric.
        reference: The accuracy without clip and noise, by seed.
        models: The final parameters, (seeds, features + 1, classes), or (seeds, parameters, 1) of a user's own model.
        regional_sums: What an observer above the regions saw, (seeds, rounds, regions, ...); None where not kept.
        notes: What a reader should know of the data and of how the model was trained.
        metric: What was measured, in words.
        by_silo: The same on each silo's own test records after the last round, mean over seeds, where the data says
            whose they are.
    """

    plan: Plan
    task: Task
    training: LocalTraining
    seeds: tuple[int, ...]
    records: float | None
    accuracy: FloatArray
    reference: FloatArray
    models: FloatArray
    regional_sums: FloatArray | None
    notes: tuple[str, ...]
    metric: str = "accuracy"
    by_silo: Mapping[str, float] = field(default_factory=dict)

    def by_round(self) -> list[dict[str, float]]:
        """Returns mean accuracy and its standard error after each round."""
        return [
            {"round": number, "accuracy": float(found.mean()), "accuracy_se": standard_error(found)}
            for number, found in enumerate(self.accuracy.T, 1)
        ]

    def summary(self) -> dict[str, Any]:
        """Returns what a file or a program needs to know of the run."""
        return {
            "version": package_version(),
            "plan_digest": self.plan.digest,
            "federation_digest": self.plan.federation.digest,
            "allocation": self.plan.allocation,
            "task": self.task.name,
            "classes": list(self.task.classes),
            "features": math.prod(self.task.features_train.shape[1:]),
            "records": self.records,
            "seeds": list(self.seeds),
            "learning_rate": self.training.learning_rate,
            "steps": self.training.steps,
            "batch": self.training.batch,
            "rounds": self.by_round(),
            "metric": self.metric,
            "accuracy": float(self.accuracy[:, -1].mean()),
            "accuracy_se": standard_error(self.accuracy[:, -1]),
            "reference": float(self.reference.mean()),
            "notes": list(self.notes),
        } | ({"by_silo": dict(self.by_silo)} if self.by_silo else {})


def standard_error(values: FloatArray) -> float:
    """Returns the standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def save_run(run: TrainingRun, folder: str | Path, *, command: str = "") -> None:
    """Writes run.json, and observed.npz with the models and what an observer above the regions saw, if it was kept.

    Args:
        run: As `train` gives it.
        folder: Where to, made if it is not there.
        command: What trained it, where that was a command.
    """
    target = run_folder(folder)
    arrays = io.BytesIO()
    seen = {} if run.regional_sums is None else {"regional_sums": run.regional_sums}
    np.savez_compressed(arrays, allow_pickle=False, models=run.models, accuracy=run.accuracy, **seen)
    write_whole(target / "observed.npz", arrays.getvalue())
    told = run.summary() | {"command": command}
    write_whole(target / "run.json", msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


def train(
    plan: Plan | VerifiedPlan,
    data: Any = "digits",
    *,
    seeds: int | Sequence[int] = 1,
    training: LocalTraining | None = None,
    model: Any = None,
    device: str | TorchDevice | None = None,
    records: float | None = None,
    keep_regional_sums: bool = True,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> TrainingRun:
    """Trains a plan on some data with seeded noise, and returns accuracies, models and what an observer saw.

    Args:
        plan: What to run.
        data: A `Task`, a `torch.utils.data.Dataset` whose items are records, targets and silos, or anything `load_task`
            takes.
        seeds: How many, or which; a seed decides partition, batches and noise.
        training: Learning rate, local steps and batch.
        model: A user's own: a `torch.nn.Module`, its class or what makes one, or `torch_model` of it, trained for all
            silos together; or a `Model`, silo by silo. The softmax head by default.
        device: Where a PyTorch module trains, as torch calls it, such as "cuda"; the processor by default.
        records: Mean records a silo.
        keep_regional_sums: Whether to keep what the observer saw.
        on_round: Called after each round with its number and the accuracies.
        on_part: Called within the rounds of a user's own model with how many are done, as a fraction.
        on_note: Called at once with what makes training slow.
        **options: As `load_task` takes them.
    """
    plan = with_figures(plan)
    task, own = read_data(data, **options), model_of(model)
    check_parameters_fit([plan], own)
    training = training or LocalTraining(learning_rate=LEARNING_RATE)
    chosen = chosen_seeds(seeds)
    arms = Arms.from_plans([plan]).with_reference()
    parts = [partition_of(task, plan.federation, seed=seed, records=records) for seed in chosen]
    jobs = [Job(seed=seed, partition=part, arms=arms) for seed, part in zip(chosen, parts, strict=True)]

    def tell(number: int, found: list[FloatArray]) -> None:
        if on_round is not None:
            on_round(number, [accuracy[:1] for accuracy in found])

    runs, told = train_model(
        jobs,
        task,
        training,
        own,
        device=device,
        keep_regional_sums=keep_regional_sums,
        on_round=tell,
        on_part=on_part,
        on_note=on_note,
    )
    tested = np.mean([run.by_silo[:, 0] for run in runs], axis=0).tolist()
    sums = [run.regional_sums[..., 0] for run in runs if run.regional_sums is not None]
    return TrainingRun(
        plan=plan,
        task=task,
        training=training,
        seeds=tuple(chosen),
        records=records,
        accuracy=np.array([run.accuracy[:, 0] for run in runs]),
        reference=np.array([run.accuracy[-1, 1] for run in runs]),
        models=np.array([run.models[..., 0] for run in runs]),
        regional_sums=np.array(sums) if keep_regional_sums else None,
        notes=notes_on(task, plan.federation, parts[0], training, records=records) + told + _on_size(plan, own, task),
        metric=metric_of(own, task),
        by_silo=dict(zip(tested_silos(task), tested, strict=True)),
    )


def check_parameters_fit(plans: Sequence[Plan], model: Model | TorchModel | None) -> None:
    """Raises `ParameterError` where a plan was made for another number of parameters than a user's own model has."""
    for plan in plans:
        if model is not None and plan.parameters is not None and plan.parameters != model.parameters:
            raise ParameterError("model.plan-parameters", planned=plan.parameters, parameters=model.parameters)


def _on_size(plan: Plan, model: Model | TorchModel | None, task: Task) -> tuple[str, ...]:
    """Returns what to say where a plan is for another number of parameters, a PyTorch module's say, than is trained."""
    trained = parameters_of(model, task)
    if plan.parameters in (None, trained):
        return ()
    return (
        f"The plan is for {plan.parameters:,} parameters, and the built-in head on {task.name} trains {trained:,}. Was "
        "--model left out?",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedArms:
    """How well arms did, on the test split after the last round.

    Attributes:
        accuracy: (seeds, arms).
        worst_region: The same for the region that it is least for; see `regional`.
        reference: The accuracy without clip and noise, by seed.
        notes: What a reader should know of how the model was trained.
    """

    accuracy: FloatArray
    worst_region: FloatArray
    reference: FloatArray
    notes: tuple[str, ...] = ()


def train_arms(
    plans_by_seed: Sequence[Sequence[Plan]],
    task: Task,
    *,
    seeds: Sequence[int],
    training: LocalTraining,
    records: float | None = None,
    model: Model | TorchModel | None = None,
    device: str | TorchDevice | None = None,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TrainedArms:
    """Returns how well every arm did under every seed; arms of a seed are paired.

    Args:
        plans_by_seed: For each seed its arms, all on one federation.
        task: The records.
        seeds: One for each list of arms.
        training: How silos train.
        records: Mean records a silo.
        model: A user's own, as `model_of` gives it.
        device: Where a PyTorch module trains.
        on_round: Called after each round.
        on_part: Called within the rounds of a user's own model with how many are done, as a fraction.
        on_note: Called at once with what makes training slow.
    """
    check_parameters_fit([plan for plans in plans_by_seed for plan in plans], model)
    jobs = [
        Job(
            seed=seed,
            partition=partition_of(task, plans[0].federation, seed=seed, records=records),
            arms=Arms.from_plans(plans).with_reference(),
        )
        for seed, plans in zip(seeds, plans_by_seed, strict=True)
    ]
    runs, notes = train_model(
        jobs,
        task,
        training,
        model,
        device=device,
        every_round=on_round is not None,
        on_round=on_round,
        on_part=on_part,
        on_note=on_note,
    )
    last = np.array([run.accuracy[-1] for run in runs])
    worst = np.array([worst_region_of(job, run, task) for job, run in zip(jobs, runs, strict=True)])
    return TrainedArms(accuracy=last[:, :-1], worst_region=worst[:, :-1], reference=last[:, -1], notes=notes)


def worst_region_of(job: Job, run: FederationRun, task: Task) -> FloatArray:
    """Returns by arm the final accuracy for the region that it is least for.

    It is measured on the test records of the region's silos where the data says whose they are, else by the classes
    that they hold, and NaN where there are none.
    """
    if task.silo_test is not None:
        names = tested_silos(task)
        numbers = {job.arms.silo_name(silo): int(region) for silo, region in enumerate(job.arms.region_of)}
        held = Counter(task.silo_test)
        counts = np.array([held[name] for name in names])
        return worst_region_of_silos(run.by_silo, names, counts, numbers)
    if np.isnan(run.recall).all():  # no classes, or outputs that say none
        return np.full(run.recall.shape[1], np.nan)
    classes = len(task.classes)
    mixes = class_mixes(job.partition, task.labels_train, job.arms.region_of, classes=classes)
    return worst_region_accuracy(run.recall, mixes)


def chosen_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Returns 0 .. n-1 for a number n, or the seeds as given."""
    chosen = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(seed) for seed in seeds]
    if not chosen or min(chosen) < 0:
        raise ParameterError("training.seeds-range", seeds=seeds)
    if len(set(chosen)) < len(chosen):
        raise ParameterError("training.seeds-repeated", seeds=seeds)
    return chosen


def partition_of(task: Task, federation: Topology, *, seed: int, records: float | None = None) -> Partition:
    """Returns the data's own partition where it names silos, else the coupled one."""
    if task.silo is not None:
        if records is not None:
            raise ParameterError("training.records-unneeded", data=task.name, records=records)
        return declared_partition(task, federation)
    check_silos_known(task, federation)
    return coupled_partition(task, federation, seed=seed, records=records)


def notes_on(
    task: Task, federation: Topology, partition: Partition, training: LocalTraining, *, records: float | None = None
) -> tuple[str, ...]:
    """Returns what a reader of the accuracies should know."""
    found = ["Components and scale were fitted on the pooled training split, outside every epsilon."]
    if not task.fitted:
        found.clear()
    wanted = records or task.records or float(federation.sizes.mean())
    held = float(partition.counts.mean())
    if task.silo is None and held < 0.99 * wanted:
        found.append(f"{task.name} has too few records for {wanted:g} a silo: each holds {held:.3g} on average.")
    if task.silo is None and len(task.classes) > 2 and len(task.sensitive) == 1:
        found.append(
            f"{task.name} names no silos: about half of every silo's records are of its last class, "
            f"{task.classes[task.sensitive[0]]!r}, as the paper deals two classes. Name silos where they are known."
        )
    off = np.abs(np.log(partition.counts / held * federation.sizes.mean() / federation.sizes))
    if task.silo is not None and off.max() > math.log(2):
        name = federation.silo_name(int(off.argmax()))
        found.append(
            f"The silos of {task.name} are not of the sizes that {federation.name} declares, least of all {name!r}: "
            "weights follow what is declared."
        )
    small = int(np.argmin(partition.counts))
    if partition.counts[small] < training.batch:
        found.append(
            f"Silo {federation.silo_name(small)!r} holds {partition.counts[small]} records, fewer than a batch of "
            f"{training.batch}: batches repeat records."
        )
    return tuple(found)
