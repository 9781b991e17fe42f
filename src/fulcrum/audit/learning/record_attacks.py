"""Attacks of the observer inside on a single record of a silo: membership, and reconstruction.

The observer is inside the region and sees the silo's own releases. With masked sums the observer sees the sum of the
group minus the releases of colluders and the updates of all other silos; the noise of the others remains. The observer
knows the model of every round, the batches, and all records of the silo except one. A plan's epsilon inside covers the
silo's whole dataset, so a single record is concealed at least as well: the attack measures how well.

- Membership: the silo holds a record, or another record in its place. The observer projects every release on the
  resulting difference, which is the best test for Gaussian noise, and guesses.
- Reconstruction: releases minus the updates without the record are, to first order, the record times the model's error
  on the record; the observer takes the most prominent direction.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, RecordFinding, finite
from fulcrum.audit.evidence.guessing import rate_at_least, rate_at_most
from fulcrum.audit.replays.played_observers import stages_of
from fulcrum.core.noise.mechanism import clip
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK, SeededNoise
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.core.topology import SILO
from fulcrum.planning.content.plan_figures import as_research
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import batch_picks, train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import partition_of

MOST_SILOS = 8
"""The most silos under attack: of every region the silo with the highest epsilon inside, highest first."""

_STREAM = 0x7265636F
_DRAWS_SEED = 1 << 40  # separates the draws of the games from the draws of the run


def record_findings(
    plan: Plan,
    task: Task,
    *,
    training: LocalTraining,
    seed: int = 0,
    records: int = 10,
    draws: int = 100,
    confidence: float = 0.95,
) -> list[RecordFinding]:
    """Returns, by region, the results of attacks on records of the silo with the highest epsilon inside.

    Args:
        plan: The plan of the releases; its noise is drawn in floating point, seeded.
        task: The training data of silos.
        training: The local training of silos.
        seed: Seed of records, batches and noise.
        records: Number of a silo's records under attack, one at a time.
        draws: Games for a record.
        confidence: The confidence with which all rates hold together.
    """
    if not plan.noise_multiplier.any():
        return []
    open_plan = as_research(plan)
    job = Job(
        seed=seed, partition=partition_of(task, plan.federation, seed=seed), variants=Variants.from_plans([open_plan])
    )
    models = _models(job, task, training)
    silos = _most_exposed_silos(plan)
    error = (1 - confidence) / (2 * len(silos))
    return [_finding(open_plan, job, task, training, models, silo, records, draws, error) for silo in silos]


def _most_exposed_silos(plan: Plan) -> list[int]:
    region_of = plan.federation.innermost.parent_of
    order = np.argsort(-np.minimum(plan.epsilon_inside, 1e300), kind="stable")
    first: dict[int, int] = {}
    for silo in order.tolist():
        first.setdefault(int(region_of[silo]), silo)
    return list(first.values())[:MOST_SILOS]


def _models(job: Job, task: Task, training: LocalTraining) -> list[FloatArray]:
    """Returns the model before every round of a run, (features + 1, classes, 1)."""
    [run] = train_jobs([job], task, training, keep_regional_sums=True, every_round=False)
    shape = (task.features_train.shape[1] + 1, len(task.classes))
    servers, model = Servers(job.variants.rules, shape, classes=len(task.classes)), np.zeros((*shape, 1))
    models = []
    for sums in [] if run.regional_sums is None else run.regional_sums:
        models.append(model)
        model = servers.advance(model, sums)
    return models


def _finding(
    plan: Plan,
    job: Job,
    task: Task,
    training: LocalTraining,
    models: Sequence[FloatArray],
    silo: int,
    records: int,
    draws: int,
    error: float,
) -> RecordFinding:
    drawn = np.random.default_rng([_STREAM, job.seed, silo])
    start, count = int(job.partition.starts[silo]), int(job.partition.counts[silo])
    own = job.partition.records[start : start + count]
    block, place = divmod(silo, SILOS_A_BLOCK)
    batches = [batch_picks(job, block, number, training)[:, [place]] for number in range(1, plan.rounds + 1)]
    right, trials, noisy_cosines, bare = 0, 0, [], []
    noisy_silos = _noisy_silos(plan, silo)
    for record in drawn.choice(own, size=min(records, count), replace=False).tolist():
        other = int(drawn.choice(np.setdiff1d(np.arange(len(task.labels_train)), own)))
        holds = _updates(plan, task, training, models, batches)
        swapped = _updates(plan, task, training, models, [np.where(b == record, other, b) for b in batches])
        without = _updates(plan, task, training, models, batches, without=record)
        difference = holds - swapped
        for game in range(draws):
            truth = bool(drawn.random() < 0.5)
            noisy = _observe_silo(plan, noisy_silos, holds if truth else swapped, _DRAWS_SEED + trials)
            score = float(np.einsum("tc,tc->", noisy - (holds + swapped) / 2, difference))
            right += (score > 0) == truth
            trials += 1
            if game == 0:
                shown = _observe_silo(plan, noisy_silos, holds, 2 * _DRAWS_SEED + trials)
                target = with_bias(task.features_train[[record]])[0]
                noisy_cosines.append(_resemblance(shown - without, target, len(task.classes)))
                bare.append(_resemblance(holds - without, target, len(task.classes)))
    multiplier = float(plan.effective_multiplier(SILO)[silo])
    allowed = float(special.ndtr(math.sqrt(plan.rounds) / multiplier)) if multiplier else None
    at_least = rate_at_least(right, trials, error)
    return RecordFinding(
        node=plan.federation.innermost.nodes[plan.federation.innermost.parent_of[silo]],
        silo=plan.federation.silo_name(silo),
        epsilon=finite(float(plan.epsilon_inside[silo])),
        allowed=allowed,
        right_at_least=at_least,
        right_at_most=rate_at_most(right, trials, error),
        resemblance=float(np.mean(noisy_cosines)),
        bare_resemblance=float(np.mean(bare)),
        trials=trials,
        verdict=VIOLATED if allowed is not None and at_least > allowed else CONSISTENT,
    )


def _updates(
    plan: Plan,
    task: Task,
    training: LocalTraining,
    models: Sequence[FloatArray],
    batches: Sequence[IntArray],
    *,
    without: int | None = None,
) -> FloatArray:
    """Returns a silo's clipped updates on the models of a run, (rounds, parameters)."""
    head = SoftmaxHead(features=task.features_train.shape[1], classes=len(task.classes))
    inputs = with_bias(task.features_train)
    if without is not None:
        inputs[without] = 0.0  # a record of zeros moves no weight
    rows = []
    for model, picks in zip(models, batches, strict=True):
        update = head.local_updates(model, inputs, task.labels_train, picks, training.learning_rate)
        rows.append(clip(update.reshape(-1), plan.clip_norm, plan.clip_share))
    return np.array(rows)


def _noisy_silos(plan: Plan, silo: int) -> list[int]:
    """Returns the indices of all silos whose unknown noise is in the observer's view, the silo under attack first.

    An aggregator sees single releases, so the attacked silo is alone. With masked sums the observer sees the sum of a
    group, and the noise of colluding or missing silos is left out.
    """
    sums = [stage for stage in stages_of(plan, silo=silo) if stage.tier == SILO and not stage.views[0].single]
    if not sums:
        return [silo]
    [stage] = sums
    excluded = {silo, *stage.views[0].colluders, *stage.views[0].missing}
    return [silo, *(other for members in stage.members.values() for other in members if other not in excluded)]


def _observe_silo(plan: Plan, silos: Sequence[int], clipped: FloatArray, seed: int) -> FloatArray:
    """Returns the observer's view of the first silo, divided by the silo's weight, (rounds, parameters)."""
    noise = SeededNoise(seed=seed)
    total = np.zeros_like(clipped)
    for place, silo in enumerate(silos):
        for number, row in enumerate(clipped, 1):
            mechanism = seeded_mechanism(plan, silo, noise, number)
            total[number - 1] += mechanism.perturb(row if place == 0 else np.zeros_like(row))
    return np.asarray(total / float(plan.federation.weights[silos[0]]))


def _resemblance(left: FloatArray, record: FloatArray, classes: int) -> float:
    """Returns the cosine, without sign, of a record and the most prominent direction of the remainder."""
    total = left.sum(axis=0).reshape(-1, classes)
    if not total.any():
        return 0.0
    direction = np.linalg.svd(total, full_matrices=False)[0][:, 0]
    return abs(float(direction @ record)) / float(np.linalg.norm(record))
