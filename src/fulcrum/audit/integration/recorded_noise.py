"""The noise in an engine's regional sums: an observer who knows all records takes every update off, and tests the rest.

The sums of a run on the embedded engine can be replayed: the model before each round follows from the sums before it,
batches from the seed, and updates from both. What sums hold beyond the clipped, weighted updates is noise, one value
for each coordinate, round, region and seed, and it must be what the plan says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import Probe
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.errors import DataError
from fulcrum.npz import ArrayHeader, read_npz
from fulcrum.parsing import json_of
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import Job, LocalTraining, Variants, block_sums, train_jobs
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.training_runs import partition_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A run on the embedded engine, as `fulcrum train -o` left it.

    Attributes:
        folder: Where it was read.
        task: The name of the data.
        features: How many the data had.
        seeds: Of the run.
        training: How silos trained.
        records: Mean records a silo, where it was said.
        regional_sums: (seeds, rounds, regions, features + 1, classes).
    """

    folder: Path
    task: str
    features: int
    seeds: tuple[int, ...]
    training: LocalTraining
    records: float | None
    regional_sums: FloatArray


class _RunFile(msgspec.Struct, kw_only=True):
    plan_digest: str
    task: str
    features: int
    seeds: list[int]
    learning_rate: float
    steps: int
    batch: int
    records: float | None


def read_recorded_run(folder: Path, plan: Plan) -> RecordedRun:
    """Reads run.json and observed.npz of a folder; a run of another plan, or without sums, is refused."""
    try:
        told = json_of((folder / "run.json").read_bytes(), _RunFile)
        if told.plan_digest != plan.digest:
            raise DataError(
                "audit.run-of-another-plan",
                file=folder / "run.json",
                run_digest=told.plan_digest,
                plan_digest=plan.digest,
                folder=folder,
            )
        sums = _regional_sums(folder, (len(told.seeds), plan.rounds, len(plan.federation.innermost.nodes)))
    except OSError as error:
        raise DataError(
            "audit.run-unreadable", file=error.filename or folder, reason=error.strerror, folder=folder
        ) from None
    except msgspec.MsgspecError as error:
        raise DataError("audit.run-malformed", folder=folder, reason=str(error)) from None
    return RecordedRun(
        folder=folder,
        task=told.task,
        features=told.features,
        seeds=tuple(told.seeds),
        training=LocalTraining(learning_rate=told.learning_rate, steps=told.steps, batch=told.batch),
        records=told.records,
        regional_sums=sums,
    )


def _regional_sums(folder: Path, expected: tuple[int, int, int]) -> FloatArray:
    """Returns the sums in observed.npz, whose seeds, rounds and regions must be those expected."""
    path, name = folder / "observed.npz", "regional_sums"

    def check(headers: Mapping[str, ArrayHeader]) -> None:
        found = headers.get(name)
        if found is None or found.dtype != np.float64 or len(found.shape) != 5 or found.shape[:3] != expected:
            raise DataError("audit.sums-missing", file=path, folder=folder)
        if found.shape[4] == 1:  # in one row, as parameters of a user's own model travel
            raise DataError("audit.run-own-model", folder=folder, parameters=found.shape[3])

    sums: FloatArray = read_npz(path, wanted=(name,), check=check)[name]
    return sums


def noise_of_sums(
    job: Job, task: Task, training: LocalTraining, sums: FloatArray, *, but: Sequence[int] = ()
) -> FloatArray:
    """Returns what regional sums hold beyond their silos' updates, (rounds, regions, parameters).

    Args:
        job: What was trained, one arm.
        task: The records.
        training: How silos trained.
        sums: (rounds, regions, features + 1, classes).
        but: Silos whose updates are left in.
    """
    head = SoftmaxHead(features=task.features_train.shape[1], classes=len(task.classes))
    inputs, shape = with_bias(task.features_train), (head.features + 1, head.classes)
    arms = job.variants
    weights = arms.weights.copy()
    weights[list(but)] = 0.0
    quiet = replace(
        job,
        variants=replace(
            arms,
            weights=weights,
            noise_multiplier=np.zeros_like(arms.noise_multiplier),
            aggregator_noise_multiplier=np.zeros_like(arms.aggregator_noise_multiplier),
        ),
    )
    servers = Servers(arms.rules, shape, classes=head.classes)
    models = np.zeros((*shape, 1))
    noise = np.empty((len(sums), arms.regions, head.parameters))
    for number, seen in enumerate(sums, 1):
        expected = np.zeros((arms.regions, *shape, 1))
        for block in range(-(-len(arms.weights) // SILOS_A_BLOCK)):
            found, added = block_sums(quiet, block, number, models, head, inputs, task.labels_train, training)
            expected[found] += added
        noise[number - 1] = (seen - expected[..., 0]).reshape(arms.regions, -1)
        models = servers.advance(models, seen[..., None])
    return noise


def run_probes(run: RecordedRun, plan: Plan, task: Task, errors: Errors) -> list[Probe]:
    """Returns, by region, whether the noise in a recorded run's sums is what the plan says."""
    if task.features_train.shape[1] != run.features:
        raise DataError(
            "audit.run-of-other-data",
            folder=run.folder,
            features=run.features,
            task=task.name,
            task_features=task.features_train.shape[1],
        )
    jobs = [_job(plan, task, seed, run.records) for seed in run.seeds]
    noise = [noise_of_sums(job, task, run.training, sums) for job, sums in zip(jobs, run.regional_sums, strict=True)]
    return probes_of_noise(plan, noise, errors, of="the recorded run")


def engine_probes(plan: Plan, errors: Errors, *, seed: int, seeds: int = 2, features: int = 63) -> list[Probe]:
    """Returns, by region, whether the embedded engine's sums hold the plan's noise, on made-up records.

    Args:
        plan: What is run.
        errors: What each test may fail with.
        seed: Of records and noise.
        seeds: How many runs.
        features: Of the records; the head has twice as many coordinates, and two more.
    """
    task = made_up_task(plan, seed=seed, features=features)
    # Steps so large that updates are clipped: what is not clipped would show in the sums.
    training = LocalTraining(learning_rate=100.0, steps=1, batch=4)
    jobs = [_job(plan, task, seed + offset, None) for offset in range(seeds)]
    runs = train_jobs(jobs, task, training, keep_regional_sums=True, every_round=False)
    noise = [
        noise_of_sums(job, task, training, run.regional_sums[..., 0])
        for job, run in zip(jobs, runs, strict=True)
        if run.regional_sums is not None
    ]
    return probes_of_noise(plan, noise, errors, of="the embedded engine")


def made_up_task(plan: Plan, *, seed: int, features: int, records: int = 8) -> Task:
    """Returns records of two classes, so many a silo, that mean nothing."""
    drawn = np.random.default_rng([0x6D616465, seed])
    names = np.repeat(np.array(plan.federation.silo_names.tolist(), dtype=object), records)
    values, labels = drawn.standard_normal((len(names), features)), drawn.integers(0, 2, len(names))
    return Task(
        name="made-up records",
        features_train=values,
        labels_train=labels,
        features_test=values[:records],
        labels_test=labels[:records],
        classes=("no", "yes"),
        silo=tuple(names.tolist()),
    )


def probes_of_noise(plan: Plan, noise: Sequence[FloatArray], errors: Errors, *, of: str) -> list[Probe]:
    """Returns, by region, what the noise in its sums says; `noise` is by run (rounds, regions, parameters)."""
    inner = plan.federation.innermost
    width = np.sqrt(plan.node_noise(inner.name)) * plan.clip_norm
    found = []
    for region, name in enumerate(inner.nodes):
        if not width[region]:
            continue
        scaled = np.concatenate([run[:, region] for run in noise], axis=1) / width[region]
        found.append(probe(of, name, scaled, errors, parameters=noise[0].shape[2]))
    return found


def _job(plan: Plan, task: Task, seed: int, records: float | None) -> Job:
    partition = partition_of(task, plan.federation, seed=seed, records=records)
    return Job(seed=seed, partition=partition, variants=Variants.from_plans([plan]))
