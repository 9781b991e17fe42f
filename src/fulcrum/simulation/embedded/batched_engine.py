"""The batched federation: Algorithm 1 of the paper for all silos, seeds and arms of a comparison together.

Silos are worked through in blocks of fixed size, whose batches and noise depend on seed, round and block alone; so the
same seed gives the same bits however many blocks advance at once, at a fixed number of BLAS threads, and memory is
bounded by the blocks in work. The arms of one seed see the same batches and the same noise draws: they differ in the
noise scale alone, so they are paired. Arms that are equal are trained once, so they stay equal to the bit.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.noise.mechanism import batch_factors, noise_norm
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK, SeededNoise
from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.rules.server_rule import ServerRule
from fulcrum.rules.sum_rule import SumRule
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import measured_by_silo, recall_of
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.server_variants import Servers

AGGREGATOR_BLOCK = 1 << 62
"""The block of the noise that aggregators draw."""

_AHEAD = 4  # blocks for each thread that may wait or be done before they are added up
_BATCH_STREAM = 0x6261746368  # keeps the choice of batches apart from every other use of the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """How a silo trains between two releases."""

    learning_rate: float
    steps: int = 10
    batch: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < np.inf:
            raise ParameterError("training.learning-rate-range", learning_rate=self.learning_rate)
        for name, value in (("steps", self.steps), ("batch", self.batch)):
            if value < 1:
                raise ParameterError("training.setting-range", setting=name, value=value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arms:
    """The noise of every arm on one federation; all else is the same for every arm.

    Attributes:
        silo_name: The name of a silo by its index, for messages.
        weights: Aggregation weight by silo and arm.
        region_of: Region by silo.
        regions: Number of regions.
        rounds: T.
        noise_multiplier: By silo and arm.
        aggregator_noise_multiplier: By region and arm, on the regional sum; zero where silos inject.
        clip_norm: By arm; infinite where nothing is clipped.
        clip_share: By arm, the share of the clip norm at which updates are clipped before they are scaled up.
        rules: By arm, what the server does with the sums.
    """

    silo_name: Callable[[int], str]
    weights: FloatArray
    region_of: IntArray
    regions: int
    rounds: int
    noise_multiplier: FloatArray
    aggregator_noise_multiplier: FloatArray
    clip_norm: FloatArray
    clip_share: FloatArray
    rules: tuple[ServerRule, ...]

    @classmethod
    def from_plans(cls, plans: Sequence[Plan]) -> "Arms":
        """Returns the arms of some plans for one federation."""
        first = plans[0]
        others = [plan for plan in plans if plan.federation is not first.federation]
        foreign = any(plan.federation.digest != first.federation.digest for plan in others)
        if foreign or any(plan.rounds != first.rounds for plan in plans):
            raise ParameterError("training.plans-differ")
        federation, regions = first.federation, len(first.federation.innermost.nodes)
        injected = [plan.aggregator_noise_multiplier for plan in plans]
        return cls(
            silo_name=federation.silo_name,
            weights=np.stack([plan.weights for plan in plans], axis=1),
            region_of=federation.innermost.parent_of,
            regions=regions,
            rounds=first.rounds,
            noise_multiplier=np.stack([plan.noise_multiplier for plan in plans], axis=1),
            aggregator_noise_multiplier=np.stack([np.zeros(regions) if n is None else n for n in injected], axis=1),
            clip_norm=np.array([plan.clip_norm for plan in plans]),
            clip_share=np.array([plan.clip_share for plan in plans]),
            rules=tuple(plan.server_rule for plan in plans),
        )

    @property
    def noise_norm(self) -> FloatArray:
        """What noise multipliers are relative to, by arm: the clip norm, or 0 where nothing is clipped."""
        return noise_norm(self.clip_norm)

    def factors(self, sizes: FloatArray, silos: slice) -> tuple[FloatArray, FloatArray]:
        """Returns by silo and arm what updates of these norms, and standard normal draws, enter the sums with."""
        return batch_factors(
            sizes,
            weight=self.weights[silos],
            noise_multiplier=self.noise_multiplier[silos],
            clip_norm=self.clip_norm,
            clip_share=self.clip_share,
        )

    def without_privacy(self) -> "Arms":
        """Returns one arm on the same federation with neither clip nor noise: the reference."""
        return replace(
            self,
            weights=self.weights[:, :1],
            noise_multiplier=np.zeros((len(self.weights), 1)),
            aggregator_noise_multiplier=np.zeros((self.regions, 1)),
            clip_norm=np.array([np.inf]),
            clip_share=np.ones(1),
            rules=(SumRule(),),
        )

    def with_reference(self) -> "Arms":
        """Returns these arms and, after them, the one without privacy."""
        return self.beside(self.without_privacy())

    def beside(self, others: "Arms") -> "Arms":
        """Returns these arms and, after them, others on the same federation."""
        injected = [self.aggregator_noise_multiplier, others.aggregator_noise_multiplier]
        return replace(
            self,
            weights=np.hstack([self.weights, others.weights]),
            noise_multiplier=np.hstack([self.noise_multiplier, others.noise_multiplier]),
            aggregator_noise_multiplier=np.hstack(injected),
            clip_norm=np.append(self.clip_norm, others.clip_norm),
            clip_share=np.append(self.clip_share, others.clip_share),
            rules=(*self.rules, *others.rules),
        )

    def distinct(self) -> tuple["Arms", IntArray]:
        """Returns the arms without repetition, in their order, and where each of these arms stands among them."""
        columns = np.vstack(
            [self.clip_norm, self.clip_share, self.weights, self.noise_multiplier, self.aggregator_noise_multiplier]
        )
        number: dict[tuple[bytes, bytes], int] = {}
        keys = [(column.tobytes(), rule.key) for column, rule in zip(columns.T, self.rules, strict=True)]
        place = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.intp)
        first = np.unique(place, return_index=True)[1]
        chosen = replace(
            self,
            weights=self.weights[:, first],
            noise_multiplier=self.noise_multiplier[:, first],
            aggregator_noise_multiplier=self.aggregator_noise_multiplier[:, first],
            clip_norm=self.clip_norm[first],
            clip_share=self.clip_share[first],
            rules=tuple(self.rules[arm] for arm in first.tolist()),
        )
        return chosen, place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """One federation to train: a seed, who holds which records, and the arms."""

    seed: int
    partition: Partition
    arms: Arms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FederationRun:
    """What came of one job.

    Attributes:
        models: The final global models, (features + 1, classes, arms).
        accuracy: On the test split after each round, (rounds, arms).
        recall: Of the final models, the share of each class of the test split that they name rightly, (classes, arms);
            NaN where the split has no record of a class; (0, arms) where there are no classes.
        by_silo: The metric of the final models on each silo's own test records, (silos, arms), in the order of
            `metrics.tested_silos`; (0, arms) where the data does not say whose they are.
        regional_sums: What an observer above the regions saw, (rounds, regions, features + 1, classes, arms), or None
            where it was not asked for.
    """

    models: FloatArray
    accuracy: FloatArray
    recall: FloatArray
    by_silo: FloatArray
    regional_sums: FloatArray | None

    def by_arm(self, place: IntArray) -> "FederationRun":
        """Returns the run with a copy for every arm of what was found for the distinct ones of `Arms.distinct`."""
        if self.models.shape[-1] == len(place):
            return self
        return FederationRun(
            models=self.models[..., place],
            accuracy=self.accuracy[..., place],
            recall=self.recall[..., place],
            by_silo=self.by_silo[..., place],
            regional_sums=None if self.regional_sums is None else self.regional_sums[..., place],
        )


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
    """Trains all jobs side by side, round by round, and returns their runs.

    Args:
        jobs: What to train; all have the same number of rounds.
        task: The records, and the test split.
        training: How silos train.
        keep_regional_sums: Whether to keep what the observer saw.
        every_round: Whether to test after every round, or after the last alone.
        threads: How many blocks advance at once; the processor count by default. It does not change the result.
        on_round: Called with the round and the accuracies of each job by arm, where every round is tested.
    """
    if len({job.arms.rounds for job in jobs}) != 1:
        raise ParameterError("training.rounds-differ")
    head = SoftmaxHead(features=task.width, classes=len(task.classes))
    inputs, test_inputs = with_bias(task.features_train), with_bias(task.features_test)
    rounds, threads = jobs[0].arms.rounds, threads or os.cpu_count() or 1
    distinct, places = zip(*(job.arms.distinct() for job in jobs), strict=True)
    jobs = [replace(job, arms=arms) for job, arms in zip(jobs, distinct, strict=True)]
    shapes = [(head.features + 1, head.classes, len(arms.clip_norm)) for arms in distinct]
    models = [np.zeros(shape) for shape in shapes]
    accuracy = [np.empty((rounds if every_round else 1, shape[2])) for shape in shapes]
    recall: list[FloatArray] = []
    by_silo: list[FloatArray] = []
    sums = [
        np.empty((rounds if keep_regional_sums else 0, arms.regions, *shape))
        for arms, shape in zip(distinct, shapes, strict=True)
    ]
    servers = [
        Servers(arms.rules, shape[:2], classes=head.classes) for arms, shape in zip(distinct, shapes, strict=True)
    ]
    work = [
        (index, block) for index, job in enumerate(jobs) for block in range(-(-len(job.arms.weights) // SILOS_A_BLOCK))
    ]
    last_block = dict(work)
    pool = ThreadPoolExecutor(threads)
    try:
        for number in range(1, rounds + 1):
            pieces = (
                (block_sums, jobs[index], block, number, models[index], head, inputs, task.labels_train, training)
                for index, block in work
            )
            observed = [
                aggregator_noise(job, number, head.parameters).reshape(-1, *shape)
                for job, shape in zip(jobs, shapes, strict=True)
            ]
            for (index, block), (found, added) in zip(work, in_order(pool, pieces, _AHEAD * threads), strict=True):
                observed[index][found] += added
                if block < last_block[index]:
                    continue
                # All of this job's silos are in: its server moves the model while blocks of later jobs are at work.
                models[index] = servers[index].moved(models[index], observed[index])
                if keep_regional_sums:
                    sums[index][number - 1] = observed[index]
                if every_round or number == rounds:
                    right = right_answers(head, models[index], test_inputs, task.labels_test)
                    accuracy[index][number - 1 if every_round else 0] = right.mean(axis=0)
                    if number == rounds:
                        recall.append(recall_of(right, task.labels_test, classes=head.classes))
                        scores = head.scores(models[index], test_inputs if task.silo_test else test_inputs[:0])
                        by_silo.append(measured_by_silo(list(np.moveaxis(scores, 2, 0)), task))
            if on_round is not None and every_round:
                on_round(number, [found[number - 1, place] for found, place in zip(accuracy, places, strict=True)])
    finally:
        pool.shutdown(cancel_futures=True)
    return [
        FederationRun(
            models=models[index],
            accuracy=accuracy[index],
            recall=recall[index],
            by_silo=by_silo[index],
            regional_sums=sums[index] if keep_regional_sums else None,
        ).by_arm(place)
        for index, place in enumerate(places)
    ]


def in_order(pool: ThreadPoolExecutor, calls: Iterable[tuple[Any, ...]], ahead: int) -> Iterator[Any]:
    """Yields what the calls return in their order, whatever their timing; at most `ahead` are in work or wait."""
    waiting: deque[Future[Any]] = deque()
    interrupted = False
    try:
        for call in calls:
            waiting.append(pool.submit(*call))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KeyboardInterrupt:  # nothing else will be tried
        interrupted = True
        raise
    finally:  # where one failed, the others have ended before anything else is tried
        for future in waiting:
            future.cancel()
        wait(() if interrupted else waiting)


def accuracy_of(head: SoftmaxHead, models: FloatArray, inputs: FloatArray, labels: IntArray) -> FloatArray:
    """Returns the accuracy of every arm's model."""
    return np.asarray(right_answers(head, models, inputs, labels).mean(axis=0))


def right_answers(head: SoftmaxHead, models: FloatArray, inputs: FloatArray, labels: IntArray) -> BoolArray:
    """Returns by record and arm whether the model names the class."""
    if head.classes == 2:  # the sign of the difference decides: half the work
        return np.asarray((inputs @ (models[:, 1] - models[:, 0]) > 0) == labels[:, None].astype(bool))
    return np.asarray(head.scores(models, inputs).argmax(axis=1) == labels[:, None])


def batch_picks(job: Job, block: int, round_number: int, training: LocalTraining) -> IntArray:
    """Returns the records of each batch of a block's silos, (steps, silos, batch), drawn with replacement."""
    silos = slice(block * SILOS_A_BLOCK, min((block + 1) * SILOS_A_BLOCK, len(job.arms.weights)))
    starts, counts = job.partition.starts[silos], job.partition.counts[silos]
    stream = np.random.default_rng([_BATCH_STREAM, job.seed, round_number, block])
    drawn = stream.integers(0, 1 << 32, (training.steps, len(counts), training.batch), dtype=np.uint32)
    # The high half of a 64-bit product maps 32 random bits onto 0 .. count - 1.
    position = (drawn * counts[:, None].astype(np.uint64)) >> np.uint64(32)
    return job.partition.records.take(position.astype(np.intp) + starts[:, None])


def block_noise(job: Job, block: int, round_number: int, parameters: int) -> FloatArray:
    """Returns the standard normal draws of a block's silos, (silos, parameters), shared by all arms."""
    silos = min(SILOS_A_BLOCK, len(job.arms.weights) - block * SILOS_A_BLOCK)
    return SeededNoise(seed=job.seed).standard_normal(round_number=round_number, block=block, shape=(silos, parameters))


def aggregator_noise(job: Job, round_number: int, parameters: int) -> FloatArray:
    """Returns the noise that aggregators add to their sums, (regions, parameters, arms); zero where silos inject."""
    arms = job.arms
    scale = arms.aggregator_noise_multiplier
    if not scale.any():
        return np.zeros((arms.regions, parameters, len(arms.clip_norm)))
    drawn = SeededNoise(seed=job.seed).standard_normal(
        round_number=round_number, block=AGGREGATOR_BLOCK, shape=(arms.regions, parameters)
    )
    return np.asarray(drawn[:, :, None] * (scale * arms.noise_norm)[:, None, :])


def block_sums(
    job: Job,
    block: int,
    round_number: int,
    models: FloatArray,
    head: SoftmaxHead,
    inputs: FloatArray,
    labels: IntArray,
    training: LocalTraining,
) -> tuple[IntArray, FloatArray]:
    """Trains, clips, perturbs and weights a block of silos; returns its regions and what it adds to their sums."""
    arms = job.arms
    silos = slice(block * SILOS_A_BLOCK, min((block + 1) * SILOS_A_BLOCK, len(arms.weights)))
    picks = batch_picks(job, block, round_number, training)
    with np.errstate(over="ignore", invalid="ignore"):  # a silo that diverges is named below
        updates = head.local_updates(models, inputs, labels, picks, training.learning_rate)
        flat = updates.reshape(len(updates), head.parameters, -1)
        sizes = np.sqrt(np.einsum("spa,spa->sa", flat, flat))
    if not np.isfinite(sizes).all():
        silo = silos.start + int(np.argmin(np.isfinite(sizes).all(axis=1)))
        raise DivergedUpdateError(
            "training.update-diverged",
            silo=arms.silo_name(silo),
            round=round_number,
            learning_rate=training.learning_rate,
        )
    signal, noise = arms.factors(sizes, silos)
    flat *= signal[:, None, :]
    if noise.any():
        flat += block_noise(job, block, round_number, head.parameters)[:, :, None] * noise[:, None, :]
    region_of = arms.region_of[silos]
    found, member_of = np.unique(region_of, return_inverse=True)
    belongs = (member_of == np.arange(len(found))[:, None]).astype(np.float64)
    return found, (belongs @ updates.reshape(len(updates), -1)).reshape(len(found), *updates.shape[1:])
