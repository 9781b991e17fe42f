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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.noise.mechanism import batch_factors, clip_factor, noise_norm
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK, SeededNoise
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.rosters import Rosters
from fulcrum.errors import DivergedUpdateError, ParameterError, listing
from fulcrum.planning.plan import Plan
from fulcrum.rules.server_rule import ServerRule
from fulcrum.rules.sum_rule import SumRule
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.person_groups import PersonGroups, check_task_fits, groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import measure, measure_by_region, measure_by_silo, recall_of
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.person_sums import clipped_sums
from fulcrum.simulation.embedded.server_variants import Servers

AGGREGATOR_BLOCK = 1 << 62
"""The block number of the noise drawn by aggregators."""

_AHEAD = 4  # blocks for each thread that may wait or be done before they are added up
_BATCH_STREAM = 0x6261746368  # keeps the choice of batches apart from every other use of the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """Settings of a silo's training between two releases.

    Attributes:
        learning_rate: The step of stochastic gradient descent.
        steps: The number of steps.
        batch: The number of records of a step.
    """

    learning_rate: float
    steps: int = 10
    batch: int = 64

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str) or not 0 < self.learning_rate < np.inf:
            raise ParameterError("training.learning-rate-range", learning_rate=self.learning_rate)
        for name, value in (("steps", self.steps), ("batch", self.batch)):
            if isinstance(value, str) or value < 1:
                raise ParameterError("number.whole-range", name=name, least=1, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraining(LocalTraining):
    """Settings of training for the units "person" and "record": every silo sends one sum of gradients a round.

    The gradient of a person is taken at the global model, over all records of the person. More local steps would mix
    persons before the clip, and a sample of records gains nothing if everybody takes part in every round.

    Attributes:
        learning_rate: The learning rate of the server, the factor of the mean gradient in the model's displacement. A
            rate before the clip would change the noise over the signal; after the sum the rate is a public constant.
        class_shares: Public shares of the classes, from the literature for example. The built-in head then begins with
            their logarithms as intercepts: with rare classes most of a clipped gradient would otherwise be spent on
            the intercept. All intercepts begin with zero by default. Shares counted from the silos' data are a release
            that no epsilon counts.
        steps: 1.
        batch: 0, for all records.
    """

    class_shares: tuple[float, ...] = ()
    steps: int = field(default=1, init=False)
    batch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str) or not 0 < self.learning_rate < np.inf:
            raise ParameterError("training.learning-rate-range", learning_rate=self.learning_rate)
        if any(not 0 < share < np.inf for share in self.class_shares):
            raise ParameterError("training.class-shares-range", shares=self.class_shares)


def check_training_fits(training: LocalTraining, unit: PrivacyUnit) -> None:
    """Raises `ParameterError` unless the unit of privacy allows this training.

    The clip bounds a person's share of a release only if the gradients of persons have not met before the clip.
    """
    one_gradient = isinstance(training, GradientTraining)
    if unit.is_within_silo and not one_gradient:
        raise ParameterError(
            "training.unit-steps",
            unit=unit.name,
            steps=training.steps,
            batch=training.batch,
            learning_rate=training.learning_rate,
        )
    if one_gradient and not unit.is_within_silo:
        raise ParameterError("training.unit-one-gradient", learning_rate=training.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variants:
    """The noise of every variant on a federation; all else is the same for every variant.

    Attributes:
        silo_name: The name of a silo by index, for messages.
        weights: Aggregation weight by silo and variant.
        region_of: Region by silo.
        regions: Number of regions.
        rounds: T.
        noise_multiplier: By silo and variant.
        aggregator_noise_multiplier: By region and variant, on the regional sum; zero if silos inject.
        clip_norm: By variant; infinite without a clip.
        clip_share: By variant, the share of the clip norm at which updates are clipped before scaling up.
        rules: Server rule by variant.
        largest_sums: By silo and variant, the largest norm of a silo's sum of clipped gradients, in clip norms; None
            for the unit "silo".
        unit: The unit of privacy, the same for every variant. Clip norm and clip share belong to one unit.
        rosters: The roster of every round, where membership changes; else None.
        phase_multiplier: Where membership changes, the noise multiplier by phase, region and variant.
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
    largest_sums: FloatArray | None = None
    unit: PrivacyUnit = SILO_UNIT
    rosters: Rosters | None = None
    phase_multiplier: FloatArray | None = None

    @classmethod
    def from_plans(cls, plans: Sequence[Plan]) -> "Variants":
        """Returns the variants of several plans for the same federation."""
        first = plans[0]
        others = [plan for plan in plans if plan.federation is not first.federation]
        foreign = any(plan.federation.digest != first.federation.digest for plan in others)
        if foreign or any(plan.rounds != first.rounds for plan in plans):
            raise ParameterError("training.plans-differ")
        names = {plan.unit.name for plan in plans}
        if len(names) > 1:
            raise ParameterError("training.units-differ", units=listing(sorted(names)))
        federation, regions = first.federation, len(first.federation.innermost.nodes)
        injected = [plan.aggregator_noise_multiplier for plan in plans]
        by_phase = [plan.phase_multiplier for plan in plans if plan.phase_multiplier is not None]
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
            largest_sums=np.stack([p.largest_sums for p in plans], axis=1) if first.unit.is_within_silo else None,
            unit=first.unit,
            rosters=federation.rosters,
            phase_multiplier=np.stack(by_phase, axis=2) if by_phase else None,
        )

    @property
    def noise_norm(self) -> FloatArray:
        """The unit of noise multipliers, by variant: the clip norm, or 0 without a clip."""
        return noise_norm(self.clip_norm)

    def of_round(self, silos: slice, round_number: int) -> tuple[FloatArray, FloatArray]:
        """Returns weights and noise multipliers by silo and variant in a round; weights of absent silos are 0."""
        if self.rosters is None or self.phase_multiplier is None:
            return self.weights[silos], self.noise_multiplier[silos]
        phase = self.rosters.phase(round_number)
        there = self.rosters.present[phase, silos][:, None]
        return self.weights[silos] * there, self.phase_multiplier[phase][self.region_of[silos]]

    def factors(self, sizes: FloatArray, silos: slice, round_number: int) -> tuple[FloatArray, FloatArray]:
        """Returns by silo and variant the factors of updates with these norms, and of normal draws, in a round's sums.

        For units within silos an update is a sum of clipped gradients, and is scaled down to the largest sum.
        """
        weight, noise_multiplier = self.of_round(silos, round_number)
        signal, noise = batch_factors(
            sizes,
            weight=weight,
            noise_multiplier=noise_multiplier,
            clip_norm=self.clip_norm,
            clip_share=self.clip_share,
        )
        if self.largest_sums is not None:
            signal = self.weights[silos] * clip_factor(sizes, self.largest_sums[silos] * self.clip_norm)
        return signal, noise

    def regions_of(self, task: Task) -> dict[str, int]:
        """Returns the number of the region by silo, if the task names the silos of test records."""
        if task.silo_test is None:
            return {}
        return {self.silo_name(silo): int(region) for silo, region in enumerate(self.region_of)}

    def without_privacy(self) -> "Variants":
        """Returns a single variant on the same federation with neither clip nor noise: the reference."""
        return replace(
            self,
            weights=self.weights[:, :1],
            noise_multiplier=np.zeros((len(self.weights), 1)),
            aggregator_noise_multiplier=np.zeros((self.regions, 1)),
            clip_norm=np.array([np.inf]),
            clip_share=np.ones(1),
            rules=(SumRule(),),
            largest_sums=None if self.largest_sums is None else self.largest_sums[:, :1],
            phase_multiplier=None if self.phase_multiplier is None else np.zeros_like(self.phase_multiplier[..., :1]),
        )

    def with_reference(self) -> "Variants":
        """Returns these variants, followed by the variant without privacy."""
        return self.concatenate(self.without_privacy())

    def concatenate(self, others: "Variants") -> "Variants":
        """Returns these variants, followed by further variants on the same federation."""
        injected = [self.aggregator_noise_multiplier, others.aggregator_noise_multiplier]
        largest = [part for part in (self.largest_sums, others.largest_sums) if part is not None]
        by_phase = [part for part in (self.phase_multiplier, others.phase_multiplier) if part is not None]
        return replace(
            self,
            weights=np.hstack([self.weights, others.weights]),
            noise_multiplier=np.hstack([self.noise_multiplier, others.noise_multiplier]),
            aggregator_noise_multiplier=np.hstack(injected),
            clip_norm=np.append(self.clip_norm, others.clip_norm),
            clip_share=np.append(self.clip_share, others.clip_share),
            rules=(*self.rules, *others.rules),
            largest_sums=np.hstack(largest) if largest else None,
            phase_multiplier=np.concatenate(by_phase, axis=2) if by_phase else None,
        )

    def distinct(self) -> tuple["Variants", IntArray]:
        """Returns the variants without repetition, in order, and the index of every variant in the result."""
        parts = [self.clip_norm, self.clip_share, self.weights, self.noise_multiplier, self.aggregator_noise_multiplier]
        parts += [] if self.largest_sums is None else [self.largest_sums]
        parts += [] if self.phase_multiplier is None else [self.phase_multiplier.reshape(-1, len(self.clip_norm))]
        columns = np.vstack(parts)
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
            rules=tuple(self.rules[variant] for variant in first.tolist()),
            largest_sums=None if self.largest_sums is None else self.largest_sums[:, first],
            phase_multiplier=None if self.phase_multiplier is None else self.phase_multiplier[..., first],
        )
        return chosen, place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A federation to train.

    Attributes:
        seed: The seed of batches and noise.
        partition: The training records of every silo.
        variants: The plans to train side by side, with the same batches and normal draws.
    """

    seed: int
    partition: Partition
    variants: Variants


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FederationRun:
    """The results of a job.

    Attributes:
        models: The final global models, (features + 1, classes, variants).
        accuracy: The metric on the test split after every round, (rounds, variants).
        recall: The share of correctly named test records of every class, for the final models, (classes, variants); NaN
            for a class without test records; (0, variants) for a task without classes.
        by_silo: The metric of the final models on every silo's own test records, (silos, variants), in the order of
            `metrics.tested_silos`; (0, variants) if the data does not name the silos of test records.
        by_region: The metric of the final models on the test records of every region's silos, (regions, variants), for
            regions with test records; (0, variants) if the data does not name the silos of test records.
        regional_sums: The sums seen by an observer above the regions, (rounds, regions, features + 1, classes,
            variants), or None if not requested.
    """

    models: FloatArray
    accuracy: FloatArray
    recall: FloatArray
    by_silo: FloatArray
    by_region: FloatArray
    regional_sums: FloatArray | None

    def by_variant(self, place: IntArray) -> "FederationRun":
        """Returns the run with a result for every variant, from a run of distinct variants.

        `place` has, for every variant, the index of its equal among the distinct variants (`Variants.distinct`).
        """
        if self.models.shape[-1] == len(place):
            return self
        return FederationRun(
            models=self.models[..., place],
            accuracy=self.accuracy[..., place],
            recall=self.recall[..., place],
            by_silo=self.by_silo[..., place],
            by_region=self.by_region[..., place],
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
