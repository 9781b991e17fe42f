"""The noise in an engine's regional sums: an observer who knows all records subtracts every update, and tests the rest.

The sums of a run on the embedded engine can be replayed: the model before a round follows from the earlier sums,
batches from the seed, and updates from both. Sums minus the clipped, weighted updates are noise, a value for every
coordinate, round, region and seed, and must be the plan's noise.
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
from fulcrum.regular_files import regular_file
from fulcrum.simulation.data.person_groups import groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import block_sums, server_rate, train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining
from fulcrum.simulation.training_runs import partition_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRun:
    """A run on the embedded engine, as `fulcrum train -o` wrote the run.

    Attributes:
        folder: The folder of the run.
        task: The name of the data.
        features: Number of features of the data.
        seeds: Seeds of the run.
        training: The local training of silos.
        records: Mean records of a silo, if the run names a number.
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
        run_file = json_of(regular_file(folder / "run.json").read_bytes(), _RunFile)
        if run_file.plan_digest != plan.digest:
            raise DataError(
                "run.other-plan",
                file=folder / "run.json",
                digest=run_file.plan_digest,
                expected=plan.digest,
                folder=folder,
            )
        sums = _regional_sums(folder, (len(run_file.seeds), plan.rounds, len(plan.federation.innermost.nodes)))
    except OSError as error:
        raise DataError(
            "audit.run-unreadable", file=error.filename or folder, reason=error.strerror, folder=folder
        ) from None
    except msgspec.MsgspecError as error:
        raise DataError("audit.run-malformed", folder=folder, reason=str(error)) from None
    return RecordedRun(
        folder=folder,
        task=run_file.task,
        features=run_file.features,
        seeds=tuple(run_file.seeds),
        training=_training_of(run_file, plan),
        records=run_file.records,
        regional_sums=sums,
    )


def _training_of(run_file: "_RunFile", plan: Plan) -> LocalTraining:
    if plan.unit.is_within_silo:
        return GradientTraining(learning_rate=run_file.learning_rate)
    return LocalTraining(learning_rate=run_file.learning_rate, steps=run_file.steps, batch=run_file.batch)


def _regional_sums(folder: Path, expected: tuple[int, int, int]) -> FloatArray:
    """Returns the sums in observed.npz, and checks the number of seeds, rounds and regions."""
    path, name = folder / "observed.npz", "regional_sums"

    def check(headers: Mapping[str, ArrayHeader]) -> None:
        header = headers.get(name)
        if header is None or header.dtype != np.float64 or len(header.shape) != 5 or header.shape[:3] != expected:
            raise DataError("audit.sums-missing", file=path, folder=folder)
        if header.shape[4] == 1:  # parameters of a user's own model are stored in one row
            raise DataError("audit.run-own-model", folder=folder, parameters=header.shape[3])

    sums: FloatArray = read_npz(path, wanted=(name,), check=check)[name]
    return sums


def noise_of_sums(
    job: Job, task: Task, training: LocalTraining, sums: FloatArray, *, but: Sequence[int] = ()
) -> FloatArray:
    """Returns regional sums minus the updates of their silos, (rounds, regions, parameters).

    Args:
        job: The training job, with a single variant.
        task: The records.
        training: The local training of silos.
        sums: (rounds, regions, features + 1, classes).
        but: Silos whose updates are not subtracted.
    """
    head = SoftmaxHead(features=task.features_train.shape[1], classes=len(task.classes))
    inputs, shape = with_bias(task.features_train), (head.features + 1, head.classes)
    variants = job.variants
    weights = variants.weights.copy()
    weights[list(but)] = 0.0
    quiet = replace(
        job,
        variants=replace(
            variants,
            weights=weights,
            noise_multiplier=np.zeros_like(variants.noise_multiplier),
            aggregator_noise_multiplier=np.zeros_like(variants.aggregator_noise_multiplier),
        ),
    )
    servers = Servers(variants.rules, shape, classes=head.classes, rate=server_rate(training))
    persons = groups_of(job.partition, task, variants.unit) if variants.unit.is_within_silo else None
    models = np.zeros((*shape, 1))
    noise = np.empty((len(sums), variants.regions, head.parameters))
    for number, seen in enumerate(sums, 1):
        expected = np.zeros((variants.regions, *shape, 1))
        for block in range(-(-len(variants.weights) // SILOS_A_BLOCK)):
            regions, added = block_sums(
                quiet, block, number, models, head, inputs, task.labels_train, training, persons
            )
            expected[regions] += added
        noise[number - 1] = (seen - expected[..., 0]).reshape(variants.regions, -1)
        models = servers.advance(models, seen[..., None])
    return noise


def run_probes(run: RecordedRun, plan: Plan, task: Task, errors: Errors) -> list[Probe]:
    """Returns, by region, the verdict on the noise in the sums of a recorded run."""
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
    """Returns one verdict for each region: the noise in the regional sums of training in process, on synthetic records.

    Args:
        plan: The plan to run.
        errors: Allowed error of every test.
        seed: Seed of records and noise.
        seeds: Number of runs.
        features: Features of the records. The model has two classes, so it has 2 * features + 2 parameters.
    """
    task = made_up_task(plan, seed=seed, features=features)
    # Steps so large that updates need the clip: an update without clip would show in the sums.
    training = LocalTraining(learning_rate=100.0, steps=1, batch=4)
    if plan.unit.is_within_silo:
        training = GradientTraining(learning_rate=1.0)
    jobs = [_job(plan, task, seed + offset, None) for offset in range(seeds)]
    runs = train_jobs(jobs, task, training, keep_regional_sums=True, every_round=False)
    noise = [
        noise_of_sums(job, task, training, run.regional_sums[..., 0])
        for job, run in zip(jobs, runs, strict=True)
        if run.regional_sums is not None
    ]
    return probes_of_noise(plan, noise, errors, of="the embedded engine")


def made_up_task(plan: Plan, *, seed: int, features: int, records: int = 8) -> Task:
    """Returns random records of two classes, `records` for every silo, two for every person."""
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
        fitted=False,
        persons=tuple(f"{name}-{place // 2 % (records // 2)}" for place, name in enumerate(names)),
    )


def probes_of_noise(plan: Plan, noise: Sequence[FloatArray], errors: Errors, *, of: str) -> list[Probe]:
    """Returns the verdict on the noise in the sums of every region that has noise, in the order of the plan.

    Args:
        plan: The plan of the sums.
        noise: By run, the noise in the sums, (rounds, regions, parameters).
        errors: The levels of all tests.
        of: The part that drew the noise, for the sentences.
    """
    inner = plan.federation.innermost
    width = np.sqrt(plan.node_noise(inner.name)) * plan.clip_norm
    probes = []
    for region, name in enumerate(inner.nodes):
        if not width[region]:
            continue
        scaled = np.concatenate([run[:, region] for run in noise], axis=1) / width[region]
        probes.append(probe(of, name, scaled, errors, parameters=noise[0].shape[2]))
    return probes


def _job(plan: Plan, task: Task, seed: int, records: float | None) -> Job:
    partition = partition_of(task, plan.federation, seed=seed, records=records)
    return Job(seed=seed, partition=partition, variants=Variants.from_plans([plan]))
