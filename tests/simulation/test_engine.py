import dataclasses

import numpy as np
import pytest
from error_codes import coded
from scipy import stats

import fulcrum
from fulcrum.core.noise import noise_sources as noise
from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.simulation.data import partition
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded import batched_engine as engine
from fulcrum.simulation.embedded.batched_engine import batch_picks, train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.reference_engine import train_slowly

TRAINING = LocalTraining(learning_rate=0.3, steps=4, batch=16)


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def many_classes():
    rng = np.random.default_rng(0)
    labels = np.arange(900) % 3
    features = rng.normal(size=(900, 6)) + 2 * np.eye(6)[labels]
    return Task(
        name="three",
        features_train=features[:600],
        labels_train=labels[:600],
        features_test=features[600:],
        labels_test=labels[600:],
        classes=("a", "b", "c"),
    )


def job_of(task, profile="consortium", *, seed=3, rounds=3, allocations=("optimal", "uniform"), **target):
    federation = fulcrum.read_federation(profile)
    plans = [fulcrum.plan(federation, rounds=rounds, epsilon=3.0, allocation=name, **target) for name in allocations]
    return Job(seed=seed, partition=coupled_partition(task, federation, seed=seed), variants=Variants.from_plans(plans))


@pytest.mark.parametrize("clip_norm", [0.3, 2.0])
@pytest.mark.parametrize("injection", ["silo", "aggregator"])
@pytest.mark.parametrize("kind", ["digits", "many_classes"])
def test_the_batched_engine_agrees_with_the_slow_one(request, kind, injection, clip_norm):
    task = request.getfixturevalue(kind)
    job = job_of(task, injection=injection, clip_norm=clip_norm)
    job = dataclasses.replace(job, variants=job.variants.with_reference())
    head = SoftmaxHead(features=task.features_train.shape[1], classes=len(task.classes))
    fast = train_jobs([job], task, TRAINING, keep_regional_sums=True)[0]
    slow = train_slowly(job, task, TRAINING, head.as_model(learning_rate=0.3), keep_regional_sums=True)
    assert fast.models.reshape(slow.models.shape) == pytest.approx(slow.models, abs=1e-10)
    assert fast.regional_sums.reshape(slow.regional_sums.shape) == pytest.approx(slow.regional_sums, abs=1e-10)
    assert fast.accuracy == pytest.approx(slow.accuracy)


def test_the_global_model_is_the_sum_of_what_the_observer_saw(digits):
    run = train_jobs([job_of(digits)], digits, TRAINING, keep_regional_sums=True)[0]
    assert run.regional_sums.shape == (3, 6, 17, 2, 2)
    assert run.regional_sums.sum(axis=(0, 1)) == pytest.approx(run.models, abs=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_seed_gives_the_same_bits_whatever_advances_at_once(digits, threads):
    jobs = [job_of(digits, "severe", seed=seed) for seed in (0, 1)]
    alone = train_jobs([jobs[1]], digits, TRAINING, threads=1)[0]
    together = train_jobs(jobs, digits, TRAINING, threads=threads)[1]
    assert (alone.models == together.models).all()


def test_arms_are_paired(digits):
    both = train_jobs([job_of(digits)], digits, TRAINING)[0]
    alone = train_jobs([job_of(digits, allocations=("uniform",))], digits, TRAINING)[0]
    assert both.models[..., 1] == pytest.approx(alone.models[..., 0], abs=1e-12)


def test_balanced_allocations_give_the_same_model_to_the_bit(digits):
    run = train_jobs([job_of(digits, "balanced")], digits, TRAINING)[0]
    assert (run.models[..., 0] == run.models[..., 1]).all()


def test_equal_arms_are_equal_to_the_bit_and_stand_where_they_were(digits):
    names = ("optimal", "uniform", "optimal", "size", "uniform")
    run = train_jobs([job_of(digits, allocations=names)], digits, TRAINING, keep_regional_sums=True)[0]
    assert run.models.shape[2] == run.accuracy.shape[1] == run.regional_sums.shape[4] == 5
    for one, other in ((0, 2), (1, 4)):
        assert (run.regional_sums[..., one] == run.regional_sums[..., other]).all()
        assert (run.models[..., one] == run.models[..., other]).all()
    alone = train_jobs([job_of(digits, allocations=("uniform",))], digits, TRAINING)[0]
    assert run.models[..., 4] == pytest.approx(alone.models[..., 0], abs=1e-12)
    assert not (run.models[..., 0] == run.models[..., 1]).any()


@pytest.mark.parametrize("clip_norm", [0.3, 2.0])
@pytest.mark.parametrize("injection", ["silo", "aggregator"])
def test_the_noise_in_the_sums_is_what_the_plan_says_and_no_other_scale(digits, injection, clip_norm):
    # Without local steps that move anything, an observer sees noise alone.
    still = LocalTraining(learning_rate=1e-300, steps=1, batch=1)
    job = job_of(digits, "severe", rounds=40, injection=injection, clip_norm=clip_norm)
    sums = train_jobs([job], digits, still, keep_regional_sums=True)[0].regional_sums
    plan = fulcrum.plan("severe", rounds=40, epsilon=3.0, injection=injection, clip_norm=clip_norm)
    for region in range(5):
        scale = float(np.sqrt(plan.node_noise("region")[region])) * clip_norm
        seen = sums[:, region, :, :, 0].ravel() / scale
        assert stats.kstest(seen, "norm").pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(seen * wrong, "norm").pvalue < 1e-4


def test_no_silo_moves_its_sum_by_more_than_its_weight_times_the_clip_norm(digits):
    federation = fulcrum.read_federation("isic-paper")
    plan = fulcrum.plan(federation, rounds=2, epsilon=3.0, clip_norm=0.05)
    bare = dataclasses.replace(Variants.from_plans([plan]), noise_multiplier=np.zeros((6, 1)))
    job = Job(seed=0, partition=coupled_partition(digits, federation, seed=0), variants=bare)
    wild = LocalTraining(learning_rate=50.0, steps=4, batch=16)
    sums = train_jobs([job], digits, wild, keep_regional_sums=True)[0].regional_sums
    for region in range(4):
        most = 0.05 * federation.weights[federation.membership("region") == region].sum()
        assert np.linalg.norm(sums[:, region].reshape(2, -1), axis=1).max() <= most * (1 + 1e-12)


def test_batches_are_drawn_from_the_silos_own_records_evenly(digits):
    job = job_of(digits)
    picks = batch_picks(job, 0, 1, LocalTraining(learning_rate=1.0, steps=200, batch=64))
    assert picks.shape == (200, engine.SILOS_A_BLOCK, 64)
    for silo in (0, engine.SILOS_A_BLOCK - 1):
        start, count = job.partition.starts[silo], job.partition.counts[silo]
        own = job.partition.records[start : start + count]
        drawn = picks[:, silo].ravel()
        assert set(drawn.tolist()) == set(own.tolist())
        assert stats.chisquare(np.unique(drawn, return_counts=True)[1]).pvalue > 1e-4


def test_rounds_blocks_and_seeds_draw_other_batches(digits):
    job = job_of(digits)
    other_seed = dataclasses.replace(job, seed=4)
    position = [
        batch_picks(*call, TRAINING)[:, 0].ravel().tolist() for call in ((job, 0, 1), (job, 0, 2), (other_seed, 0, 1))
    ]
    assert position[0] == batch_picks(job, 0, 1, TRAINING)[:, 0].ravel().tolist()
    assert position[0] != position[1]
    assert position[0] != position[2]
    # All silos hold the same records: only the draws can differ between blocks.
    places = dataclasses.replace(job.partition, starts=job.partition.starts * 0, counts=job.partition.counts * 0 + 9)
    level = dataclasses.replace(job, partition=places)
    assert (batch_picks(level, 0, 1, TRAINING)[0, :2] != batch_picks(level, 1, 1, TRAINING)[0]).any()


def test_every_use_of_a_seed_has_its_own_stream():
    assert len({engine._BATCH_STREAM, partition._STREAM, noise._STREAM}) == 3


def test_what_a_seed_draws_is_pinned(digits):
    # Recorded results rest on these draws.
    job = job_of(digits, "consortium", seed=3)
    assert batch_picks(job, 1, 2, TRAINING)[0, 0, :5].tolist() == [86, 86, 182, 692, 338]
    assert job.partition.records[:5].tolist() == [445, 502, 1300, 287, 424]


def test_jobs_must_have_the_same_rounds(digits):
    for jobs in ([], [job_of(digits, rounds=2), job_of(digits, rounds=3)]):
        with pytest.raises(ParameterError, check=coded("training.rounds-differ")):
            train_jobs(jobs, digits, TRAINING)


def test_an_error_leaves_no_work_behind(digits, monkeypatch):
    calls = []

    def breaks(*_):
        calls.append(1)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(engine, "block_sums", breaks)
    jobs = [job_of(digits, "severe", seed=seed) for seed in range(40)]
    with pytest.raises(RuntimeError, match="out of luck"):
        train_jobs(jobs, digits, TRAINING, threads=2)
    assert len(calls) <= 2 * engine._AHEAD


def test_a_diverged_silo_is_named(digits):
    poisoned = dataclasses.replace(digits, features_train=digits.features_train * 1e200)
    with pytest.raises(DivergedUpdateError, check=coded("training.update-diverged", silo="country-1-1", round=1)):
        train_jobs([job_of(digits)], poisoned, LocalTraining(learning_rate=1e200))


def test_without_privacy_the_head_comes_near_a_logistic_regression_on_the_pooled_data(digits):
    from sklearn.linear_model import LogisticRegression

    job = job_of(digits, rounds=30)
    bare = Job(seed=0, partition=job.partition, variants=job.variants.without_privacy())
    run = train_jobs([bare], digits, LocalTraining(learning_rate=0.5))[0]
    pooled = LogisticRegression().fit(digits.features_train, digits.labels_train)
    assert run.accuracy[-1, 0] == pytest.approx(pooled.score(digits.features_test, digits.labels_test), abs=0.03)


def test_blocks_do_not_change_what_a_region_is(digits, monkeypatch):
    # Other blocks mean other draws; with neither noise nor chance the sums must stay the same.
    federation = fulcrum.read_federation("severe")
    arms = dataclasses.replace(
        Variants.from_plans([fulcrum.plan(federation, rounds=1, epsilon=3.0)]), noise_multiplier=np.zeros((96, 1))
    )
    partition = coupled_partition(digits, federation, seed=0)
    one_each = dataclasses.replace(partition, counts=np.ones_like(partition.counts))
    job = Job(seed=0, partition=one_each, variants=arms)
    first = train_jobs([job], digits, TRAINING, keep_regional_sums=True)[0].regional_sums
    monkeypatch.setattr(engine, "SILOS_A_BLOCK", 7)
    second = train_jobs([job], digits, TRAINING, keep_regional_sums=True)[0].regional_sums
    assert first == pytest.approx(second, abs=1e-14)


def test_arms_must_share_federation_and_rounds():
    federation = fulcrum.read_federation("mild")
    one, other = fulcrum.plan(federation, rounds=2, epsilon=1.0), fulcrum.plan(federation, rounds=3, epsilon=1.0)
    foreign = fulcrum.plan("severe", rounds=2, epsilon=1.0)
    for plans in ([one, other], [one, foreign]):
        with pytest.raises(ParameterError, check=coded("training.plans-differ")):
            Variants.from_plans(plans)
    again = fulcrum.plan("mild", rounds=2, epsilon=1.0)  # read anew, but the same federation
    assert Variants.from_plans([one, again]).clip_norm.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("change", [{"learning_rate": 0.0}, {"learning_rate": np.nan}, {"steps": 0}, {"batch": 0}])
def test_training_settings_are_checked(change):
    with pytest.raises(ParameterError, match="must be"):
        LocalTraining(**({"learning_rate": 0.1} | change))
