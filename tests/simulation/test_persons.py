"""Training with a person or a record as the unit of privacy: gradients, clip by person, server, data."""

import dataclasses

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.partition import Partition, coupled_partition, declared_partition
from fulcrum.simulation.data.person_groups import group_persons, silos_per_person
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded import person_sums
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.person_sums import clipped_sums
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.training_runs import notes_on, partition_of, sized_by_data

ONE_GRADIENT = GradientTraining(learning_rate=1.5)
PERSON = PrivacyUnit(name="person")
BARE = {"clip_norm": np.array([np.inf]), "clip_share": np.ones(1)}


def federation_of(sizes):
    return fulcrum.Federation.from_sizes(sizes)


@pytest.fixture
def hospitals():
    return federation_of({"north": [8, 5], "south": [6], "west": [4, 9, 3]})


def task_of(federation, *, classes=3, persons=True, records=60, seed=0, **changes):
    """A task whose silos are named, with persons of one to four records."""
    rng = np.random.default_rng(seed)
    labels = np.arange(records) % classes
    features = rng.normal(size=(records, 5)) + 2 * np.eye(5)[labels]
    names = federation.silo_names.tolist()
    silo = tuple(names[place] for place in rng.integers(0, len(names), records))
    silo = (*names, *silo[len(names) :])
    values = {
        "name": "stays",
        "features_train": features,
        "labels_train": labels,
        "features_test": features[:20],
        "labels_test": labels[:20],
        "classes": tuple("abcd"[:classes]),
        "silo": silo,
        "persons": tuple(f"person-{number}" for number in rng.integers(0, records // 3, records)) if persons else None,
        "fitted": False,
    }
    return Task(**(values | changes))


def job_of(task, plans, *, seed=3):
    part = partition_of(task, plans[0].federation, seed=seed)
    return Job(seed=seed, partition=part, variants=Variants.from_plans(plans).with_reference())


def all_sums(task, partition, models, *, persons=True, **clip):
    groups = group_persons(partition, task.persons if persons else None)
    silos = slice(0, len(partition.counts))
    return clipped_sums(models, with_bias(task.features_train), task.labels_train, groups, silos, **(BARE | clip))


# ------------------------------------------------------------------------------------------------ engines


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("unit", ["person", "record"])
def test_the_batched_engine_agrees_with_the_mechanism_by_person(hospitals, unit, classes):
    task = task_of(hospitals, classes=classes)
    options = {"rounds": 4, "epsilon": 2.0, "unit": unit, "parameters": 6 * classes}
    plans = [
        fulcrum.plan(hospitals, clip_norm=0.3, **options),
        fulcrum.plan(hospitals, clip_norm=0.3, silo_clip=2.0, **options),
        fulcrum.plan(hospitals, recipe="joint", neighbours="add-remove", **options),
        fulcrum.plan(hospitals, server="momentum", clip_norm=2.0, silos_per_person=2, **options),
    ]
    job = job_of(task, plans)
    head = SoftmaxHead(features=5, classes=classes)
    fast = train_jobs([job], task, ONE_GRADIENT, keep_regional_sums=True)[0]
    slow = train_slowly(job, task, ONE_GRADIENT, head.as_model(learning_rate=99.0), keep_regional_sums=True)
    assert fast.models.reshape(slow.models.shape) == pytest.approx(slow.models, rel=1e-12, abs=1e-13)
    assert fast.regional_sums.reshape(slow.regional_sums.shape) == pytest.approx(
        slow.regional_sums, rel=1e-12, abs=1e-13
    )
    assert fast.accuracy == pytest.approx(slow.accuracy)
    assert np.abs(fast.models[..., 0] - fast.models[..., 1]).max() > 1e-3  # the largest sum was reached


def test_sums_in_many_small_chunks_are_the_sums_in_one(hospitals, monkeypatch):
    task = task_of(hospitals)
    models = np.random.default_rng(1).normal(size=(6, 3, 2))
    clip = {"clip_norm": np.array([0.5, 3.0]), "clip_share": np.array([1.0, 0.2])}
    part = declared_partition(task, hospitals)
    whole = all_sums(task, part, models, **clip)
    monkeypatch.setattr(person_sums, "_NUMBERS_AT_ONCE", 40)
    assert all_sums(task, part, models, **clip) == pytest.approx(whole, rel=1e-12, abs=1e-14)


def test_the_gradient_of_a_silo_is_the_slope_of_its_summed_loss(hospitals):
    task, rng = task_of(hospitals), np.random.default_rng(2)
    part = declared_partition(task, hospitals)
    model, direction = rng.normal(size=(2, 6, 3))

    def loss(weights):
        scores = with_bias(task.features_train) @ weights
        log_sum = np.log(np.exp(scores).sum(axis=1))
        return log_sum - scores[np.arange(len(scores)), task.labels_train]

    slope = (loss(model + 1e-5 * direction) - loss(model - 1e-5 * direction)) / 2e-5
    sums = all_sums(task, part, model[:, :, None])[..., 0]
    for silo in range(len(hospitals)):
        mine = part.records[part.starts[silo] : part.starts[silo] + part.counts[silo]]
        assert -(sums[silo] * direction).sum() == pytest.approx(slope[mine].sum(), rel=1e-7)


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("copies", [1, 3, 50])
def test_one_person_moves_the_sum_by_at_most_the_clip_norm_with_any_number_of_records(copies, share):
    rng = np.random.default_rng(copies)
    features = 3 * rng.normal(size=(10 + copies, 5))
    labels = rng.integers(0, 3, len(features))
    persons = ("ann",) * copies + tuple("bbcdeefggh")
    models, clip = rng.normal(size=(6, 3, 1)), {"clip_norm": np.array([0.7]), "clip_share": np.array([share])}

    def sum_of(rows):
        part = Partition(records=rows, starts=np.array([0]), counts=np.array([len(rows)]), shares=np.zeros(1))
        groups = group_persons(part, persons)
        return clipped_sums(models, with_bias(features), labels, groups, slice(0, 1), **clip)[0, ..., 0]

    everybody = np.arange(len(features))
    moved = np.linalg.norm(sum_of(everybody) - sum_of(everybody[copies:]))
    assert moved <= 0.7 * (1 + 1e-12)
    assert moved == pytest.approx(0.7)  # a clip by record would allow copies times as much, and the bound is reached


def test_without_a_person_column_every_record_is_a_unit(hospitals):
    task = task_of(hospitals)
    part = declared_partition(task, hospitals)
    clip = {"clip_norm": np.array([0.2]), "clip_share": np.ones(1)}
    by_record = all_sums(task, part, np.zeros((6, 3, 1)), persons=False, **clip)
    single = dataclasses.replace(task, persons=tuple(map(str, range(len(task.labels_train)))))
    assert by_record == pytest.approx(all_sums(single, part, np.zeros((6, 3, 1)), **clip), rel=1e-12, abs=1e-15)
    assert np.abs(by_record - all_sums(task, part, np.zeros((6, 3, 1)), **clip)).max() > 0.01


@pytest.mark.parametrize("huge", [1e308, np.inf, np.nan])
def test_a_gradient_that_is_not_finite_counts_zero_for_its_person_alone(hospitals, huge):
    task = task_of(hospitals)
    part = declared_partition(task, hospitals)
    models = np.random.default_rng(4).normal(size=(6, 3, 1))
    ill, clip = task.persons[7], {"clip_norm": np.array([0.5]), "clip_share": np.ones(1)}
    features = task.features_train.copy()
    features[7] = huge
    broken = dataclasses.replace(task, features_train=features)
    sums = all_sums(broken, part, models, **clip)
    assert np.isfinite(sums).all()
    groups = group_persons(part, task.persons)
    silo = hospitals.silo_names.tolist().index(task.silo[7])
    others = [row for row in range(60) if (task.persons[row], task.silo[row]) != (ill, task.silo[7])]
    kept = np.isin(part.records, others)
    counts = np.add.reduceat(kept.astype(int), part.starts)
    without = Partition(
        records=part.records[kept], starts=np.cumsum(counts) - counts, counts=counts, shares=part.shares
    )
    expected = all_sums(task, without, models, **clip)
    assert sums == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert groups.by_silo[silo] == group_persons(without, task.persons).by_silo[silo] + 1


def test_the_slow_engine_counts_the_same_persons_as_zero(hospitals):
    task = task_of(hospitals)
    features = task.features_train.copy()
    features[7, :2] = 1e308  # finite in the first round, and scores overflow when the model has moved
    task = dataclasses.replace(task, features_train=features)
    made = fulcrum.plan(hospitals, rounds=3, epsilon=5.0, unit="person", clip_norm=0.5)
    job = dataclasses.replace(job_of(task, [made]), variants=Variants.from_plans([made]))
    training = GradientTraining(learning_rate=50.0)
    fast = train_jobs([job], task, training)[0]
    slow = train_slowly(job, task, training, SoftmaxHead(features=5, classes=3).as_model(learning_rate=1.0))
    assert np.isfinite(fast.models).all()
    assert fast.models.reshape(-1) == pytest.approx(slow.models.reshape(-1), rel=1e-12, abs=1e-13)


def test_the_rate_belongs_to_the_server_under_every_rule(hospitals):
    """Twice the rate moves the model twice as far by the first sums: noise over signal stays the same."""
    task = task_of(hospitals)
    for options in ({"server": "sum"}, {"server": "momentum"}, {"recipe": "joint"}):
        made = fulcrum.plan(hospitals, rounds=1, epsilon=2.0, unit="person", parameters=18, **options)
        models = [
            fulcrum.train(made, task, training=GradientTraining(learning_rate=rate)).models for rate in (0.5, 1.0)
        ]
        assert 2 * models[0] == pytest.approx(models[1], rel=1e-12)


def test_noise_has_the_width_of_the_plan(hospitals):
    task = task_of(hospitals)
    made = fulcrum.plan(hospitals, rounds=2, epsilon=1.0, unit="person", clip_norm=0.5)
    sums = fulcrum.train(made, task, seeds=400).regional_sums[:, 0]  # seeds, regions, parameters
    silent = dataclasses.replace(Variants.from_plans([made]), noise_multiplier=np.zeros((6, 1)))
    part = partition_of(task, made.federation, seed=0)
    bare = train_jobs([Job(seed=0, partition=part, variants=silent)], task, ONE_GRADIENT, keep_regional_sums=True)[0]
    drawn = (sums - bare.regional_sums[0, ..., 0]).reshape(400, 3, -1)
    width = np.sqrt((drawn**2).mean(axis=(0, 2)))
    expected = 0.5 * np.sqrt(made.node_noise("region"))
    assert width == pytest.approx(expected, rel=0.03)  # 7,200 draws: 0.83 % is one standard error
    assert not np.allclose(width, 2 / 3 * expected, rtol=0.03)


def test_seeds_are_reproducible_for_any_number_of_threads(hospitals):
    task = task_of(hospitals)
    job = job_of(task, [fulcrum.plan(hospitals, rounds=3, epsilon=1.0, unit="person")])
    models = [train_jobs([job], task, ONE_GRADIENT, threads=threads)[0].models for threads in (1, 3)]
    assert np.array_equal(*models)


def test_class_shares_are_the_intercepts_before_the_first_round(hospitals):
    task = task_of(hospitals, classes=2)
    made = fulcrum.plan(hospitals, rounds=1, epsilon=1e6, unit="person", clip_norm=1e-6)
    training = GradientTraining(learning_rate=1.0, class_shares=(0.9, 0.1))
    model = fulcrum.train(made, task, training=training).models[0]
    assert np.exp(model[-1, 1] - model[-1, 0]) == pytest.approx(1 / 9, rel=1e-4)
    with pytest.raises(ParameterError, check=coded("training.class-shares-number", shares=3, classes=2)):
        fulcrum.train(made, task, training=GradientTraining(learning_rate=1.0, class_shares=(0.2, 0.3, 0.5)))
    with pytest.raises(ParameterError, check=coded("training.class-shares-range")):
        GradientTraining(learning_rate=1.0, class_shares=(1.0, 0.0))


def test_a_silo_without_persons_sends_noise(hospitals):
    task = task_of(hospitals)
    names = hospitals.silo_names.tolist()
    emptied = dataclasses.replace(task, silo=tuple(names[0] if name == names[2] else name for name in task.silo))
    made = fulcrum.plan(hospitals, rounds=2, epsilon=1.0, unit="person")
    run = fulcrum.train(made, emptied)
    assert np.abs(run.regional_sums[0, :, 1]).min() > 0  # the region "south" has one silo, which has no persons
    with pytest.raises(DataError, check=coded("partition.silo-empty")):
        fulcrum.train(fulcrum.plan(hospitals, rounds=2, epsilon=1.0), emptied)


# ------------------------------------------------------------------------------------------------ refusals


def test_more_than_one_gradient_a_round_is_refused(hospitals):
    task, made = task_of(hospitals), fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit="person")
    for training in (LocalTraining(learning_rate=0.1), LocalTraining(learning_rate=0.1, steps=1, batch=10**6)):
        with pytest.raises(ParameterError, check=coded("training.unit-steps", unit="person", steps=training.steps)):
            fulcrum.train(made, task, training=training)
    silos = fulcrum.plan(hospitals, rounds=1, epsilon=1.0)
    with pytest.raises(ParameterError, check=coded("training.unit-one-gradient")):
        fulcrum.train(silos, task, training=ONE_GRADIENT)


def test_data_without_persons_or_with_fitted_statistics_is_refused(hospitals):
    made = fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit="person")
    with pytest.raises(DataError, check=coded("data.persons-unnamed", data="stays")):
        fulcrum.train(made, task_of(hospitals, persons=False))
    by_record = fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit="record")
    assert fulcrum.train(by_record, task_of(hospitals, persons=False)).accuracy.shape == (1, 1)
    for unit in (made, by_record):
        with pytest.raises(ParameterError, check=coded("data.unit-fitted", data="stays")):
            fulcrum.train(unit, task_of(hospitals, fitted=True))


def test_a_model_without_gradients_is_refused(hospitals):
    task, made = task_of(hospitals), fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit="person")
    head = SoftmaxHead(features=5, classes=3).as_model(learning_rate=1.0)
    with pytest.raises(ParameterError, check=coded("model.gradient-missing")):
        fulcrum.train(made, task, model=dataclasses.replace(head, gradient=None))
    with pytest.raises(ParameterError, check=coded("model.gradient-shape", parameters=18, shape=(1,))):
        fulcrum.train(made, task, model=dataclasses.replace(head, gradient=lambda *_: np.zeros(1)))
    with pytest.raises(ParameterError, check=coded("training.class-shares-model")):
        fulcrum.train(made, task, model=head, training=GradientTraining(learning_rate=1.0, class_shares=(1, 1, 1)))


def test_units_are_not_mixed_in_one_training(hospitals):
    plans = [fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit=unit) for unit in ("silo", "person")]
    with pytest.raises(ParameterError, check=coded("training.units-differ", units="person, silo")):
        Variants.from_plans(plans)


# ------------------------------------------------------------------------------------------------ persons of silos


def test_persons_are_dealt_whole():
    federation = federation_of({"north": [10, 10], "south": [20]})
    rng = np.random.default_rng(0)
    persons = tuple(f"p{number}" for number in rng.integers(0, 80, 300))
    labels = np.arange(300) % 2
    features = rng.normal(size=(300, 2))
    task = Task(
        name="rows",
        features_train=features,
        labels_train=labels,
        features_test=features,
        labels_test=labels,
        classes=("a", "b"),
        persons=persons,
        fitted=False,
    )
    part = coupled_partition(task, federation, seed=1)
    assert silos_per_person(part, persons) == 1
    dealt = part.records.tolist()
    assert len(set(dealt)) == len(dealt)
    groups = group_persons(part, persons)
    assert [len({persons[row] for row in silo}) for silo in np.split(part.records, part.starts[1:])] == (
        groups.by_silo.tolist()
    )
    for person in {persons[row] for row in dealt}:  # all records of a dealt person
        assert {row for row in range(300) if persons[row] == person} <= set(dealt)
    sized = sized_by_data(federation, task, PERSON, seed=1)
    assert sized.sizes.tolist() == groups.by_silo.tolist()


def test_a_person_counts_once_at_each_silo(hospitals):
    task = task_of(hospitals)
    groups = group_persons(declared_partition(task, hospitals), task.persons)
    pairs = set(zip(task.silo, task.persons, strict=True))
    assert groups.count == len(pairs)
    assert groups.by_silo.tolist() == [sum(silo == name for silo, _ in pairs) for name in hospitals.silo_names.tolist()]


def test_notes_name_persons_in_two_silos_and_silos_with_more_persons_than_declared(hospitals):
    task = task_of(hospitals)
    made = fulcrum.plan(hospitals, rounds=1, epsilon=1.0, unit="person", unit_name="patient")
    part = partition_of(task, made.federation, seed=0)
    notes = " ".join(notes_on(task, made.federation, part, ONE_GRADIENT, unit=made.unit))
    assert f"records in {silos_per_person(part, task.persons)} silos" in notes
    assert "hold more patients than" in notes
    assert "batch" not in notes


def test_a_plan_for_records_is_tuned_by_the_rate_of_the_server():
    made = fulcrum.plan("isic-paper", rounds=2, epsilon=5.0, unit="record")
    tuned = fulcrum.tune(made, "digits", rounds=[2], learning_rates=[1.0], seeds=2, ranges="0,16")
    assert {tried.learning_rate for tried in tuned.tries} == {1.0, 2.0}
    assert tuned.plan.unit == made.unit
