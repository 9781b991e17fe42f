"""Training of a plan on data under several seeds, with the results.

>>> from fulcrum.planning.planner import plan
>>> run = train(plan("mild", rounds=3, epsilon=5.0), "digits", seeds=2)
>>> run.accuracy.shape
(2, 3)
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError
from fulcrum.notebook_display import NotebookDisplay
from fulcrum.planning.files.plan_from_file import with_figures
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.partition import Partition, check_silos_known, coupled_partition, declared_partition
from fulcrum.simulation.data.person_groups import check_task_fits, groups_of, silos_per_person
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job, Variants
from fulcrum.simulation.embedded.label_conflict import accuracy_in_conflict, check_conflict, conflicting_task
from fulcrum.simulation.embedded.metrics import tested_silos
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.regional_metrics import class_mixes, worst_region_accuracy
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining, check_training_fits
from fulcrum.simulation.model_engines import metric_of, model_of, parameters_of, train_model
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.version import package_version

LEARNING_RATE = 0.3
"""The best rate of a grid for uniform noise on the balanced profile, used unchanged everywhere: docs/experiments.md."""

GRADIENT_RATE = 2.0
"""The server's default learning rate for the units "person" and "record", a factor of the mean clipped gradient."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRun(NotebookDisplay):
    """The results of training a plan.

    Attributes:
        plan: The plan that was trained.
        task: The task with the data.
        training: Settings of local training, or of one gradient a round.
        seeds: The seeds of the runs.
        records: Mean records a silo, if requested.
        accuracy: On the test split, (seeds, rounds); for a task or a model with another metric, the metric.
        reference: The accuracy without clip and noise, by seed.
        models: The final parameters, (seeds, features + 1, classes), or (seeds, parameters, 1) of a user's own model.
        regional_sums: The sums seen by an observer above the regions, (seeds, rounds, regions, ...); None if not kept.
        notes: Notes for a reader on the data and on the training of the model.
        metric: The name of the metric, in words.
        by_silo: The metric on every silo's own test records after the last round, mean over seeds; empty if the data
            does not name the silos of test records.
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

    def __repr__(self) -> str:
        """Returns plan, data and last metric in a line."""
        return (
            f"<{type(self).__name__} of {self.plan.federation.name!r} on {self.task.name!r}: {self.metric} "
            f"{self.accuracy[:, -1].mean():.3f} after {self.accuracy.shape[1]} rounds, {self.reference.mean():.3f} "
            f"without privacy, mean of {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}>"
        )

    def by_round(self) -> list[dict[str, float]]:
        """Returns the mean accuracy after every round, with the standard error."""
        return [
            {"round": number, "accuracy": float(values.mean()), "accuracy_se": standard_error(values)}
            for number, values in enumerate(self.accuracy.T, 1)
        ]

    def summary(self) -> dict[str, Any]:
        """Returns settings and results of the run, for a file or a program."""
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
    """Writes run.json, and observed.npz with the models and the kept sums seen by an observer above the regions.

    Args:
        run: A result of `train`.
        folder: The folder to write to, made if missing.
        command: The command that trained the run, if any.
    """
    target = run_folder(folder)
    arrays = io.BytesIO()
    kept_sums = {} if run.regional_sums is None else {"regional_sums": run.regional_sums}
    np.savez_compressed(arrays, allow_pickle=False, models=run.models, accuracy=run.accuracy, **kept_sums)
    write_whole(target / "observed.npz", arrays.getvalue())
    summary = run.summary() | {"command": command}
    write_whole(target / "run.json", msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")


def train(
    plan: Plan | VerifiedPlan,
    data: Any = "digits",
    *,
    seeds: int | Sequence[int] = 1,
    training: LocalTraining | None = None,
    model: Any = None,
    device: str | TorchDevice | None = None,
    records: float | None = None,
    metric: str | None = None,
    keep_regional_sums: bool = True,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    **options: Any,
) -> TrainingRun:
    """Trains a plan on data with seeded noise; returns accuracies, models and the sums seen by an observer.

    Seeded noise can be reproduced, and so protects no silo: the function is for research on data that may be seen.

    Args:
        plan: The plan to train.
        data: A `Task`, a `torch.utils.data.Dataset` with records, targets and silos as items, or a source for
            `load_task`.
        seeds: Number of seeds, or the seeds; a seed decides partition, batches and noise.
        training: Learning rate, local steps and batch; `GradientTraining` for a plan that protects persons or records.
        model: A user's own model: a `torch.nn.Module`, a class or function that makes a module, or the result of
            `torch_model`, trained for all silos together; or a `Model`, trained silo by silo. The softmax head by
            default.
        device: Device of a PyTorch module in torch's words, such as "cuda"; the processor by default.
        records: Mean records a silo.
        metric: A name of `tasks.METRIC_NAMES`, "auc" for example; the task's own metric by default.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        on_round: Called after every round with the round and the accuracies.
        on_part: Called within the rounds of a user's own model with the rounds done, as a fraction.
        on_note: Called at once with a note on slow training.
        **options: Options of `load_task`.
    """
    plan = with_figures(plan)
    task, user_model = with_metric(read_data(data, plan.federation, **options), metric), model_of(model)
    check_parameters_fit([plan], user_model)
    training = training or default_training(plan.unit)
    check_training_fits(training, plan.unit)
    chosen = seeds_of(seeds)
    variants = Variants.from_plans([plan]).with_reference()
    parts = [partition_of(task, plan.federation, seed=seed, records=records) for seed in chosen]
    jobs = [Job(seed=seed, partition=part, variants=variants) for seed, part in zip(chosen, parts, strict=True)]

    def report_round(number: int, accuracies: list[FloatArray]) -> None:
        if on_round is not None:
            on_round(number, [accuracy[:1] for accuracy in accuracies])

    runs, model_notes = train_model(
        jobs,
        task,
        training,
        user_model,
        device=device,
        keep_regional_sums=keep_regional_sums,
        on_round=report_round,
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
        notes=notes_on(task, plan.federation, parts[0], training, records=records, unit=plan.unit)
        + model_notes
        + _size_note(plan, user_model, task),
        metric=metric_of(user_model, task),
        by_silo=dict(zip(tested_silos(task), tested, strict=True)),
    )


def default_training(unit: PrivacyUnit) -> LocalTraining:
    """Returns the default settings of training for a unit of privacy."""
    if unit.is_within_silo:
        return GradientTraining(learning_rate=GRADIENT_RATE)
    return LocalTraining(learning_rate=LEARNING_RATE)


def with_metric(task: Task, metric: str | None) -> Task:
    """Returns the task with another metric, or the task itself for None."""
    return task if metric is None else replace(task, metric=metric)


def check_parameters_fit(plans: Sequence[Plan], model: Model | TorchModel | None) -> None:
    """Raises `ParameterError` if a plan's number of parameters differs from the number of a user's own model."""
    for plan in plans:
        if model is not None and plan.parameters is not None and plan.parameters != model.parameters:
            raise ParameterError("model.plan-parameters", planned=plan.parameters, parameters=model.parameters)


def _size_note(plan: Plan, model: Model | TorchModel | None, task: Task) -> tuple[str, ...]:
    """Returns a note if the plan's number of parameters, of a PyTorch module for example, is not the trained number."""
    trained = parameters_of(model, task)
    if plan.parameters in (None, trained):
        return ()
    return (
        f"The plan is for {plan.parameters:,} parameters, and the built-in head on {task.name} trains {trained:,}. Was "
        "--model left out?",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedVariants:
    """The accuracy of variants on the test split after the last round.

    Attributes:
        accuracy: (seeds, variants).
        worst_region: The accuracy for the worst region, (seeds, variants); see `regional_metrics`.
        reference: The accuracy without clip and noise, by seed.
        reference_worst_region: The accuracy for the worst region without clip and noise, by seed.
        notes: Notes for a reader on the training of the model.
    """

    accuracy: FloatArray
    worst_region: FloatArray
    reference: FloatArray
    reference_worst_region: FloatArray
    notes: tuple[str, ...] = ()


def train_variants(
    plans_by_seed: Sequence[Sequence[Plan]],
    task: Task,
    *,
    seeds: Sequence[int],
    training: LocalTraining,
    records: float | None = None,
    model: Model | TorchModel | None = None,
    device: str | TorchDevice | None = None,
    conflict: bool = False,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> TrainedVariants:
    """Returns the accuracy of every variant under every seed; variants of one seed have the same data and draws.

    Args:
        plans_by_seed: For every seed the plans of the variants, all on the same federation.
        task: The records.
        seeds: A seed for every list of plans.
        training: Settings of local training.
        records: Mean records a silo.
        model: A user's own model, a result of `model_of`.
        device: Device of a PyTorch module.
        conflict: True to permute the labels of the largest region. Accuracies are then means over regions, each by its
            own labels, in `worst_region` too.
        on_round: Called after every round with the round's number and the accuracies of every variant.
        on_part: Called within the rounds of a user's own model with the rounds done, as a fraction.
        on_note: Called before the first round with a note, if training will be slow.
    """
    check_parameters_fit([plan for plans in plans_by_seed for plan in plans], model)
    jobs = [
        Job(
            seed=seed,
            partition=partition_of(task, plans[0].federation, seed=seed, records=records),
            variants=Variants.from_plans(plans).with_reference(),
        )
        for seed, plans in zip(seeds, plans_by_seed, strict=True)
    ]
    how: dict[str, Any] = {"device": device, "every_round": on_round is not None, "on_note": on_note}
    if conflict:
        check_conflict(task, own_model=model is not None)
        runs: list[FederationRun] = []
        notes: tuple[str, ...] = ()
        for done, job in enumerate(jobs):  # the labels of a record depend on the silo that holds the record
            report = _in_sequence(on_round, done, len(jobs), job.variants.rounds)
            (run,), notes = train_model([job], conflicting_task(task, job), training, model, **how, on_round=report)
            runs.append(run)
        measured = [accuracy_in_conflict(job, run, task) for job, run in zip(jobs, runs, strict=True)]
        last, worst = (np.array(values) for values in zip(*measured, strict=True))
    else:
        runs, notes = train_model(jobs, task, training, model, **how, on_round=on_round, on_part=on_part)
        last = np.array([run.accuracy[-1] for run in runs])
        worst = np.array([worst_region_of(job, run, task) for job, run in zip(jobs, runs, strict=True)])
    return TrainedVariants(
        accuracy=last[:, :-1],
        worst_region=worst[:, :-1],
        reference=last[:, -1],
        reference_worst_region=worst[:, -1],
        notes=notes,
    )


def _in_sequence(
    on_round: Callable[[int, list[FloatArray]], None] | None, done: int, jobs: int, rounds: int
) -> Callable[[int, list[FloatArray]], None] | None:
    """Returns a callable for the rounds of one of several jobs in sequence; it tells the rounds done on average."""
    if on_round is None:
        return None

    def report(number: int, accuracies: list[FloatArray]) -> None:
        before, after = ((done * rounds + count) // jobs for count in (number - 1, number))
        if after > before:
            on_round(after, accuracies)

    return report


def worst_region_of(job: Job, run: FederationRun, task: Task) -> FloatArray:
    """Returns by variant the final accuracy, or another metric, for the worst region.

    The accuracy of a region is measured on the test records of the region's silos if the data names the silos, else by
    the classes of the region's silos, and is NaN without classes. A region without a value, such as the AUC of a single
    class, is left out.
    """
    if task.silo_test is not None:
        return np.asarray(np.fmin.reduce(run.by_region, axis=0))
    if task.metric == "auc":  # pairs of records of different classes do not depend on the mix of classes
        return np.asarray(run.accuracy[-1])
    if np.isnan(run.recall).all():  # no classes, or outputs that say none
        return np.full(run.recall.shape[1], np.nan)
    classes = len(task.classes)
    mixes = class_mixes(job.partition, task.labels_train, job.variants.region_of, classes=classes)
    return worst_region_accuracy(run.recall, mixes)


def seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """Returns 0 .. n-1 for a number n, or a list of the seeds."""
    if isinstance(seeds, str):  # "10" would be the seeds 1 and 0
        raise ParameterError("training.seeds-range", seeds=seeds)
    chosen = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(seed) for seed in seeds]
    if not chosen or min(chosen) < 0:
        raise ParameterError("training.seeds-range", seeds=seeds)
    if len(set(chosen)) < len(chosen):
        raise ParameterError("training.seeds-repeated", seeds=seeds)
    return chosen


def partition_of(task: Task, federation: Topology, *, seed: int, records: float | None = None) -> Partition:
    """Returns the data's own partition if the data names silos, else the coupled partition."""
    if task.silo is not None:
        if records is not None:
            raise ParameterError("training.records-unneeded", data=task.name, records=records)
        return declared_partition(task, federation)
    check_silos_known(task, federation)
    return coupled_partition(task, federation, seed=seed, records=records)


def sized_by_data(
    federation: Topology, task: Task, unit: PrivacyUnit, *, seed: int = 0, records: float | None = None
) -> Topology:
    """Returns the federation with the numbers of persons, or of records, that are dealt to its silos as sizes.

    For research alone: numbers that are counted from the data are not protected. The federation stays as it is for the
    unit "silo", if the data names silos, and if no sizes are declared.

    Args:
        federation: The silos, with the sizes in whose proportion records are dealt.
        task: The records.
        unit: The unit of privacy.
        seed: Seed of the deal.
        records: Mean records a silo.
    """
    if not unit.is_within_silo or task.silo is not None or not federation.sizes_known:
        return federation
    check_task_fits(task, unit)
    groups = groups_of(partition_of(task, federation, seed=seed, records=records), task, unit)
    return replace(federation, sizes=groups.by_silo.astype(np.float64), chosen_weights=None)


def notes_on(
    task: Task,
    federation: Topology,
    partition: Partition,
    training: LocalTraining,
    *,
    records: float | None = None,
    unit: PrivacyUnit = SILO_UNIT,
) -> tuple[str, ...]:
    """Returns notes for a reader of the accuracies."""
    notes = ["Components and scale were fitted on the pooled training split, outside every epsilon."]
    if not task.fitted:
        notes.clear()
    noun = f"{unit.noun}s" if unit.is_within_silo else "records"
    counts = groups_of(partition, task, unit).by_silo if unit.is_within_silo else partition.counts
    wanted = records or task.records or float(federation.sizes.mean())
    mean_count = float(counts.mean())
    if task.silo is None and mean_count < 0.99 * wanted:
        short = f" Sizes of {wanted:g} shorten the mean gradient by the same factor." if unit.is_within_silo else ""
        notes.append(
            f"{task.name} has too few {noun} for {wanted:g} a silo: each holds {mean_count:.3g} on average.{short}"
        )
    if task.silo is None and len(task.classes) > 2 and len(task.sensitive) == 1:
        notes.append(
            f"{task.name} names no silos: about half of every silo's records are of its last class, "
            f"{task.classes[task.sensitive[0]]!r}, as the paper deals two classes. Name silos where they are known."
        )
    off = np.abs(np.log(np.maximum(counts, 0.5) / mean_count * federation.sizes.mean() / federation.sizes))
    if task.silo is not None and off.max() > math.log(2):
        name = federation.silo_name(int(off.argmax()))
        notes.append(
            f"The silos of {task.name} are not of the sizes that {federation.name} declares, least of all {name!r}: "
            "weights follow what is declared."
        )
    if unit.is_within_silo:
        return (*notes, *_notes_on_persons(task, federation, partition, counts, unit))
    small = int(np.argmin(partition.counts))
    if partition.counts[small] < training.batch:
        notes.append(
            f"Silo {federation.silo_name(small)!r} holds {partition.counts[small]} records, fewer than a batch of "
            f"{training.batch}: batches repeat records."
        )
    return tuple(notes)


def _notes_on_persons(
    task: Task, federation: Topology, partition: Partition, counts: IntArray, unit: PrivacyUnit
) -> Iterator[str]:
    """Yields notes on silos with more persons than declared, and on persons in more silos than the plan provides for.

    Args:
        task: The data.
        federation: The declared sizes.
        partition: The records of every silo.
        counts: The number of persons of every silo in the data.
        unit: The unit of privacy.
    """
    above = counts > (federation.sizes if federation.persons is None else federation.persons)
    if above.any() and federation.sizes_known:
        example = federation.silo_name(int(np.argmax(above)))
        yield (
            f"{int(above.sum())} silos hold more {unit.noun}s than {federation.name} declares, {example!r} "
            "for example: their sums are scaled down to the declared number."
        )
    if unit.name == "person" and task.persons is not None:
        most = silos_per_person(partition, task.persons)
        if most > unit.silos_per_person:
            yield (
                f"One {unit.noun} of {task.name} has records in {most} silos, and the plan provides for "
                f"{unit.silos_per_person}: the guarantee is for the {unit.noun}'s records in one silo. Give "
                f"--silos-per-person {most} for the records in all silos."
            )
