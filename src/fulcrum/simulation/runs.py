"""A plan trained on some data under several seeds, and what came of it.

>>> from fulcrum.planning.making import plan
>>> run = train(plan("mild", rounds=3, epsilon=5.0), "digits", seeds=2)
>>> run.accuracy.shape
(2, 3)
"""

import io
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, ParameterError
from fulcrum.federation.structure import Federation
from fulcrum.planning.plan import Plan
from fulcrum.simulation.engine import Arms, FederationRun, Job, LocalTraining, train_jobs
from fulcrum.simulation.models import Model, SoftmaxHead
from fulcrum.simulation.partition import Partition, coupled_partition, declared_partition
from fulcrum.simulation.reference import train_slowly
from fulcrum.simulation.regional import class_mixes, worst_region_accuracy
from fulcrum.simulation.tasks import Task, load_task
from fulcrum.storage.files import write_whole
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
        accuracy: On the test split, (seeds, rounds).
        reference: The accuracy without clip and noise, by seed.
        models: The final parameters, (seeds, features + 1, classes), or (seeds, parameters, 1) of a user's own model.
        regional_sums: What an observer above the regions saw, (seeds, rounds, regions, ...); None where not kept.
        notes: What a reader should know of the data.
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
            "features": self.task.features_train.shape[1],
            "records": self.records,
            "seeds": list(self.seeds),
            "learning_rate": self.training.learning_rate,
            "steps": self.training.steps,
            "batch": self.training.batch,
            "rounds": self.by_round(),
            "accuracy": float(self.accuracy[:, -1].mean()),
            "accuracy_se": standard_error(self.accuracy[:, -1]),
            "reference": float(self.reference.mean()),
            "notes": list(self.notes),
        }


def standard_error(values: FloatArray) -> float:
    """Returns the standard error of a mean; NaN for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def run_folder(folder: str | Path) -> Path:
    """Makes the folder of a run and returns it; one that cannot be written to is refused before any work is done."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise DataError(f"{folder} cannot be made a folder to write to: {error.strerror}") from None
    return target


def save_run(run: TrainingRun, folder: str | Path) -> None:
    """Writes run.json, and observed.npz with the models and what an observer above the regions saw, if it was kept."""
    target = run_folder(folder)
    arrays = io.BytesIO()
    seen = {} if run.regional_sums is None else {"regional_sums": run.regional_sums}
    np.savez_compressed(arrays, allow_pickle=False, models=run.models, accuracy=run.accuracy, **seen)
    write_whole(target / "observed.npz", arrays.getvalue())
    write_whole(target / "run.json", msgspec.json.format(msgspec.json.encode(run.summary()), indent=1) + b"\n")


def train(
    plan: Plan,
    data: str | Path | Task = "digits",
    *,
    seeds: int | Sequence[int] = 1,
    training: LocalTraining | None = None,
    model: Model | None = None,
    records: float | None = None,
    keep_regional_sums: bool = True,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    **options: Any,
) -> TrainingRun:
    """Trains a plan on some data with seeded noise, and returns accuracies, models and what an observer saw.

    Args:
        plan: What to run.
        data: A `Task`, or anything `load_task` takes.
        seeds: How many, or which; a seed decides partition, batches and noise.
        training: Learning rate, local steps and batch.
        model: A user's own, run by the slow engine; the softmax head by default, run by the batched one.
        records: Mean records a silo.
        keep_regional_sums: Whether to keep what the observer saw.
        on_round: Called after each round with its number and the accuracies.
        **options: As `load_task` takes them.
    """
    task = data if isinstance(data, Task) else load_task(data, **options)
    training = training or LocalTraining(learning_rate=LEARNING_RATE)
    chosen = chosen_seeds(seeds)
    arms = Arms.from_plans([plan]).with_reference()
    parts = [partition_of(task, plan.federation, seed=seed, records=records) for seed in chosen]
    jobs = [Job(seed=seed, partition=part, arms=arms) for seed, part in zip(chosen, parts, strict=True)]

    def tell(number: int, found: list[FloatArray]) -> None:
        if on_round is not None:
            on_round(number, [accuracy[:1] for accuracy in found])

    if model is None:
        runs = train_jobs(jobs, task, training, keep_regional_sums=keep_regional_sums, on_round=tell)
    else:
        runs = [train_slowly(job, task, training, model, keep_regional_sums=keep_regional_sums) for job in jobs]
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
        notes=notes_on(task, plan.federation, parts[0], training, records=records),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedArms:
    """How well arms did, both (seeds, arms).

    Attributes:
        accuracy: On the test split, after the last round.
        worst_region: The same for the region that it is least for; see `regional`.
    """

    accuracy: FloatArray
    worst_region: FloatArray


def train_arms(
    plans_by_seed: Sequence[Sequence[Plan]],
    task: Task,
    *,
    seeds: Sequence[int],
    training: LocalTraining,
    records: float | None = None,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
) -> TrainedArms:
    """Returns how well every arm did under every seed; arms of a seed are paired.

    Args:
        plans_by_seed: For each seed its arms, all on one federation.
        task: The records.
        seeds: One for each list of arms.
        training: How silos train.
        records: Mean records a silo.
        on_round: Called after each round.
    """
    jobs = [
        Job(
            seed=seed,
            partition=partition_of(task, plans[0].federation, seed=seed, records=records),
            arms=Arms.from_plans(plans),
        )
        for seed, plans in zip(seeds, plans_by_seed, strict=True)
    ]
    runs = train_jobs(jobs, task, training, every_round=on_round is not None, on_round=on_round)
    return TrainedArms(
        accuracy=np.array([run.accuracy[-1] for run in runs]),
        worst_region=np.array([worst_region_of(job, run, task) for job, run in zip(jobs, runs, strict=True)]),
    )


def worst_region_of(job: Job, run: FederationRun, task: Task) -> FloatArray:
    """Returns by arm the final accuracy for the region that it is least for."""
    classes = len(task.classes)
    mixes = class_mixes(job.partition, task.labels_train, job.arms.region_of, classes=classes)
    return worst_region_accuracy(run.recall, mixes)


def head_parameters(task: Task) -> int:
    """Returns d of the built-in head on a task."""
    return SoftmaxHead(features=task.features_train.shape[1], classes=len(task.classes)).parameters


def chosen_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Returns 0 .. n-1 for a number n, or the seeds as given."""
    chosen = list(range(seeds)) if isinstance(seeds, (int, np.integer)) else [int(seed) for seed in seeds]
    if not chosen or min(chosen) < 0:
        raise ParameterError(f"seeds must be at least one number of at least 0, got {seeds}")
    if len(set(chosen)) < len(chosen):
        raise ParameterError(f"seeds must differ: a repeated one counts the same run twice, got {seeds}")
    return chosen


def partition_of(task: Task, federation: Federation, *, seed: int, records: float | None = None) -> Partition:
    """Returns the data's own partition where it names silos, else the coupled one."""
    if task.silo is not None:
        if records is not None:
            raise ParameterError(
                f"{task.name} names its silos, so records={records:g} a silo cannot be met. Leave it out"
            )
        return declared_partition(task, federation)
    return coupled_partition(task, federation, seed=seed, records=records)


def notes_on(
    task: Task, federation: Federation, partition: Partition, training: LocalTraining, *, records: float | None = None
) -> tuple[str, ...]:
    """Returns what a reader of the accuracies should know."""
    found = ["Components and scale were fitted on the pooled training split, outside every epsilon."]
    wanted = records or task.records or float(federation.sizes.mean())
    held = float(partition.counts.mean())
    if task.silo is None and held < 0.99 * wanted:
        found.append(f"{task.name} has too few records for {wanted:g} a silo: each holds {held:.3g} on average.")
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
