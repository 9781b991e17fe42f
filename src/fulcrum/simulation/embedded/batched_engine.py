"""The batched federation: Algorithm 1 of the paper for all silos, seeds and variants of a comparison together.

Silos are worked through in blocks of fixed size. Batches and noise of a block depend on seed, round and block alone.
The same seed therefore gives the same bits for any number of blocks at a time, at a fixed number of BLAS threads, and
memory is bounded by the blocks in work. The variants of a seed see the same batches and the same noise draws: variants
differ in the noise scale alone, and so are paired. Equal variants are trained once, and so stay equal to the bit.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK, SeededNoise
from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.simulation.data.person_groups import PersonGroups, check_task_fits, groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.metrics import measure, measure_by_region, measure_by_silo, recall_of
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.person_sums import clipped_sums
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining, check_training_fits

AGGREGATOR_BLOCK = 1 << 62
"""The block number of the noise drawn by aggregators."""

_AHEAD = 4  # blocks for each thread that may wait or be done before they are added up
_BATCH_STREAM = 0x6261746368  # keeps the choice of batches apart from every other use of the same seed


def train_jobs(
    jobs: Sequence[Job],
    task: Task,
    training: LocalTraining,
    *,
    keep_regional_sums: bool = False,
    every_round: bool = True,
    threads: int | None = None,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
) -> list[FederationRun]:
    """Trains all jobs side by side, round by round, and returns the runs.

    Args:
        jobs: The jobs to train, all with the same number of rounds.
        task: The records, and the test split.
        training: Settings of local training; `GradientTraining` for the units "person" and "record".
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        threads: Number of blocks at a time; the processor count by default. The number does not change the result.
        on_round: Called after every tested round with the round and the accuracies by variant of every job.
    """
    if len({job.variants.rounds for job in jobs}) != 1:
        raise ParameterError("training.rounds-differ")
    for job in jobs:
        check_training_fits(training, job.variants.unit)
        check_task_fits(task, job.variants.unit)
    head = SoftmaxHead(features=task.width, classes=len(task.classes))
    inputs, test_inputs = with_bias(task.features_train), with_bias(task.features_test)
    labels = task.labels_train
    rounds, threads = jobs[0].variants.rounds, threads or os.cpu_count() or 1
    distinct, places = zip(*(job.variants.distinct() for job in jobs), strict=True)
    jobs = [replace(job, variants=variants) for job, variants in zip(jobs, distinct, strict=True)]
    shapes = [(head.features + 1, head.classes, len(variants.clip_norm)) for variants in distinct]
    start = start_of(head, training)
    models = [np.repeat(start[:, :, None], shape[2], axis=2) for shape in shapes]
    accuracy = [np.empty((rounds if every_round else 1, shape[2])) for shape in shapes]
    recall: list[FloatArray] = []
    by_silo: list[FloatArray] = []
    by_region: list[FloatArray] = []
    sums = [
        np.empty((rounds if keep_regional_sums else 0, variants.regions, *shape))
        for variants, shape in zip(distinct, shapes, strict=True)
    ]
    servers = [
        Servers(variants.rules, shape[:2], classes=head.classes, rate=server_rate(training))
        for variants, shape in zip(distinct, shapes, strict=True)
    ]
    persons = [
        groups_of(job.partition, task, job.variants.unit) if job.variants.unit.is_within_silo else None for job in jobs
    ]
    work = [
        (index, block)
        for index, job in enumerate(jobs)
        for block in range(-(-len(job.variants.weights) // SILOS_A_BLOCK))
    ]
    last_block = dict(work)
    pool = ThreadPoolExecutor(threads)
    try:
        for number in range(1, rounds + 1):
            pieces = (
                (block_sums, jobs[index], block, number, models[index], head, inputs, labels, training, persons[index])
                for index, block in work
            )
            observed = [
                aggregator_noise(job, number, head.parameters).reshape(-1, *shape)
                for job, shape in zip(jobs, shapes, strict=True)
            ]
            for (index, block), (regions, added) in zip(work, in_order(pool, pieces, _AHEAD * threads), strict=True):
                observed[index][regions] += added
                if block < last_block[index]:
                    continue
                # All of this job's silos are in: its server moves the model while blocks of later jobs are at work.
                models[index] = servers[index].advance(models[index], observed[index])
                if keep_regional_sums:
                    sums[index][number - 1] = observed[index]
                if every_round or number == rounds:
                    right = right_answers(head, models[index], test_inputs, task.labels_test)
                    values = right.mean(axis=0)
                    if task.metric != "accuracy":  # accuracy needs no scores: the sign of a difference decides
                        values = measure(variant_scores(head, models[index], test_inputs), task)[0]
                    accuracy[index][number - 1 if every_round else 0] = values
                    if number == rounds:
                        recall.append(recall_of(right, task.labels_test, classes=head.classes))
                        scores = variant_scores(head, models[index], test_inputs if task.silo_test else test_inputs[:0])
                        by_silo.append(measure_by_silo(scores, task))
                        by_region.append(measure_by_region(scores, task, distinct[index].regions_of(task)))
            if on_round is not None and every_round:
                on_round(number, [values[number - 1, place] for values, place in zip(accuracy, places, strict=True)])
    finally:
        pool.shutdown(cancel_futures=True)
    return [
        FederationRun(
            models=models[index],
            accuracy=accuracy[index],
            recall=recall[index],
            by_silo=by_silo[index],
            by_region=by_region[index],
            regional_sums=sums[index] if keep_regional_sums else None,
        ).by_variant(place)
        for index, place in enumerate(places)
    ]


def in_order(pool: ThreadPoolExecutor, calls: Iterable[tuple[Any, ...]], ahead: int) -> Iterator[Any]:
    """Yields the results of calls in the order of the calls; at most `ahead` calls are in work or wait."""
    waiting: deque[Future[Any]] = deque()
    interrupted = False
    try:
        for call in calls:
            waiting.append(pool.submit(*call))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KeyboardInterrupt:  # no further call follows, so there is no need to wait
        interrupted = True
        raise
    finally:  # where one failed, the others have ended before anything else is tried
        for future in waiting:
            future.cancel()
        wait(() if interrupted else waiting)


def start_of(head: SoftmaxHead, training: LocalTraining) -> FloatArray:
    """Returns the head before the first round, (features + 1, classes): zeros, or intercepts of public class shares."""
    start = np.zeros((head.features + 1, head.classes))
    shares = training.class_shares if isinstance(training, GradientTraining) else ()
    if shares:
        if len(shares) != head.classes:
            raise ParameterError("training.class-shares-number", shares=len(shares), classes=head.classes)
        start[-1] = np.log(shares) - np.mean(np.log(shares))
    return start


def server_rate(training: LocalTraining) -> float:
    """Returns the server's learning rate: 1 if silos train, since updates contain the rate of local steps."""
    return training.learning_rate if isinstance(training, GradientTraining) else 1.0


def accuracy_of(head: SoftmaxHead, models: FloatArray, inputs: FloatArray, labels: IntArray) -> FloatArray:
    """Returns the accuracy of every variant's model."""
    return np.asarray(right_answers(head, models, inputs, labels).mean(axis=0))


def variant_scores(head: SoftmaxHead, models: FloatArray, inputs: FloatArray) -> list[FloatArray]:
    """Returns the scores of every variant's model before the softmax, an array (records, classes) for each variant."""
    return list(np.moveaxis(head.scores(models, inputs), 2, 0))


def right_answers(head: SoftmaxHead, models: FloatArray, inputs: FloatArray, labels: IntArray) -> BoolArray:
    """Returns by record and variant true for a correctly named class."""
    if head.classes == 2:  # the sign of the difference decides: half the work
        return np.asarray((inputs @ (models[:, 1] - models[:, 0]) > 0) == labels[:, None].astype(bool))
    return np.asarray(head.scores(models, inputs).argmax(axis=1) == labels[:, None])


def batch_picks(job: Job, block: int, round_number: int, training: LocalTraining) -> IntArray:
    """Returns the records of every batch of a block's silos, (steps, silos, batch), drawn with replacement."""
    silos = slice(block * SILOS_A_BLOCK, min((block + 1) * SILOS_A_BLOCK, len(job.variants.weights)))
    starts, counts = job.partition.starts[silos], job.partition.counts[silos]
    stream = np.random.default_rng([_BATCH_STREAM, job.seed, round_number, block])
    drawn = stream.integers(0, 1 << 32, (training.steps, len(counts), training.batch), dtype=np.uint32)
    # The high half of a 64-bit product maps 32 random bits onto 0 .. count - 1.
    position = (drawn * counts[:, None].astype(np.uint64)) >> np.uint64(32)
    return job.partition.records.take(position.astype(np.intp) + starts[:, None])


def block_noise(job: Job, block: int, round_number: int, parameters: int) -> FloatArray:
    """Returns the standard normal draws of a block's silos, (silos, parameters), shared by all variants."""
    silos = min(SILOS_A_BLOCK, len(job.variants.weights) - block * SILOS_A_BLOCK)
    return SeededNoise(seed=job.seed).standard_normal(round_number=round_number, block=block, shape=(silos, parameters))


def aggregator_noise(job: Job, round_number: int, parameters: int) -> FloatArray:
    """Returns the noise added by aggregators to sums, (regions, parameters, variants); zero if silos inject."""
    variants = job.variants
    scale = variants.aggregator_noise_multiplier
    if not scale.any():
        return np.zeros((variants.regions, parameters, len(variants.clip_norm)))
    drawn = SeededNoise(seed=job.seed).standard_normal(
        round_number=round_number, block=AGGREGATOR_BLOCK, shape=(variants.regions, parameters)
    )
    return np.asarray(drawn[:, :, None] * (scale * variants.noise_norm)[:, None, :])


def block_sums(
    job: Job,
    block: int,
    round_number: int,
    models: FloatArray,
    head: SoftmaxHead,
    inputs: FloatArray,
    labels: IntArray,
    training: LocalTraining,
    persons: PersonGroups | None = None,
) -> tuple[IntArray, FloatArray]:
    """Trains, clips, perturbs and weights a block of silos; returns the regions and the block's part of their sums.

    Every release is weight * (clip(update) + noise), with noise of standard deviation noise_multiplier * clip_norm for
    every coordinate. With persons the update is the sum of the persons' clipped gradients, and the clip is the scaling
    to the largest sum. The noise is seeded, and so protects nobody: the function is for simulations alone.
    """
    variants = job.variants
    silos = slice(block * SILOS_A_BLOCK, min((block + 1) * SILOS_A_BLOCK, len(variants.weights)))
    clips: dict[str, FloatArray] = {"clip_norm": variants.clip_norm, "clip_share": variants.clip_share}
    with np.errstate(over="ignore", invalid="ignore"):  # a silo that diverges is named below
        if persons is None:
            picks = batch_picks(job, block, round_number, training)
            updates = head.local_updates(models, inputs, labels, picks, training.learning_rate)
        else:
            updates = clipped_sums(models, inputs, labels, persons, silos, **clips)
        flat = updates.reshape(len(updates), head.parameters, -1)
        sizes = np.sqrt(np.einsum("spa,spa->sa", flat, flat))
    if not np.isfinite(sizes).all():
        silo = silos.start + int(np.argmin(np.isfinite(sizes).all(axis=1)))
        raise DivergedUpdateError(
            "training.update-diverged",
            silo=variants.silo_name(silo),
            round=round_number,
            advice=f"Lower the learning rate (now {training.learning_rate:g})",
        )
    signal, noise = variants.factors(sizes, silos, round_number)
    flat *= signal[:, None, :]
    if noise.any():
        flat += block_noise(job, block, round_number, head.parameters)[:, :, None] * noise[:, None, :]
    region_of = variants.region_of[silos]
    regions, member_of = np.unique(region_of, return_inverse=True)
    belongs = (member_of == np.arange(len(regions))[:, None]).astype(np.float64)
    return regions, (belongs @ updates.reshape(len(updates), -1)).reshape(len(regions), *updates.shape[1:])
