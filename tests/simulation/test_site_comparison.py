import math

import numpy as np
import pytest
from error_codes import coded

from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import auc
from fulcrum.simulation.local_models import fit_logistic, local_scores
from fulcrum.simulation.site_comparison import ALONE, CODINGS, PENALTIES, ROWS, compare_sites, plan_of_row


def drawn_records(*, seed=0, persons=240, metric="auc"):
    """Returns persons of six silos in two regions, with a label that two of three features decide, and noise."""
    random = np.random.default_rng(seed)
    features = random.uniform(-1, 1, (persons, 3))
    labels = (features[:, 0] - features[:, 1] + random.normal(0, 0.3, persons) > 0).astype(int)
    silos = [f"s{number % 6}" for number in range(persons)]
    return FederatedRecords(
        name="drawn",
        features=features,
        labels=labels,
        classes=("no", "yes"),
        persons=tuple(f"p{number}" for number in range(persons)),
        silos=tuple(silos),
        region_of={f"s{number}": "north" if number < 4 else "south" for number in range(6)},
        ranges=tuple(FeatureRange(name=name, low=-1, high=1, reference=0) for name in "xyz"),
        metric=metric,
    )


@pytest.mark.parametrize("penalty", [0.5, 3.0])
def test_a_silos_own_model_is_that_of_a_second_library(penalty):
    linear = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    inputs = np.column_stack([random.normal(size=(40, 3)), np.ones(40)])
    labels = (inputs[:, 0] + random.normal(size=40) > 0).astype(int)
    other = linear.LogisticRegression(C=1 / penalty, fit_intercept=False, tol=1e-10, max_iter=10_000)
    expected = other.fit(inputs, labels).coef_[0]
    assert fit_logistic(inputs, labels, penalty=penalty) == pytest.approx(expected, abs=1e-5)


def test_a_silo_with_one_class_has_a_model_too():
    coefficients = fit_logistic(np.ones((5, 1)), np.zeros(5, dtype=int), penalty=1.0)
    # The derivative of 5 log(1 + e^b) + b² / 2 is zero.
    assert 5 / (1 + math.exp(-coefficients[0])) + coefficients[0] == pytest.approx(0, abs=1e-6)


def test_every_test_record_is_scored_by_its_own_silo():
    records = drawn_records()
    task = records.task(records.split_by_person(seed=0))
    (scores,) = local_scores(task, penalties=[1.0])
    silo = np.array(task.silo_test) == "s3"
    own = np.array(task.silo) == "s3"
    bias = np.ones((int(own.sum()), 1))
    fit = fit_logistic(np.hstack([task.features_train[own], bias]), task.labels_train[own], penalty=1.0)
    assert scores[silo, 1] == pytest.approx(task.features_test[silo] @ fit[:-1] + fit[-1])
    unnamed = Task(
        name="x",
        features_train=np.eye(2),
        labels_train=np.array([0, 1]),
        features_test=np.eye(2),
        labels_test=np.array([0, 1]),
        classes=("a", "b"),
    )
    with pytest.raises(DataError, check=coded("data.local-models-unfit")):
        local_scores(unnamed, penalties=[1.0])


@pytest.fixture(scope="module")
def comparison():
    steps = []
    result = compare_sites(
        drawn_records(),
        rounds=3,
        epsilon=8.0,
        splits=2,
        choosing_splits=1,
        on_split=lambda *numbers: steps.append(numbers),
    )
    assert steps == [(1, 3), (2, 3), (3, 3)]
    return result


def test_every_row_is_trained_and_keeps_the_target(comparison):
    names = [(row.unit, row.name) for row in comparison.rows]
    assert names[:-3] == [(row.unit, row.name) for row in ROWS]
    assert [name for _, name in names[-3:]] == ["no privacy, person", "no privacy, silo", ALONE]
    assert (comparison.left_out, comparison.splits, comparison.metric) == ({}, 2, "auc")
    assert (comparison.regions_compared, comparison.silos_compared) == (2, 6)
    for row in comparison.rows[:-3]:
        assert row.epsilon_above <= 8 * (1 + 1e-9)
        assert row.epsilon_masked > 0
    by_name = {(row.unit, row.name): row for row in comparison.rows}
    assert by_name["person", "each silo for itself"].epsilon_inside == pytest.approx(8, rel=1e-4)
    assert by_name["person", "one masked group"].epsilon_inside is None
    assert by_name["person", "optimal"].epsilon_above == pytest.approx(8, rel=1e-4)


def test_the_row_of_silos_alone_is_measured_on_the_same_splits(comparison):
    alone = comparison.rows[-1]
    coding, penalty = alone.settings.split(", penalty ")
    assert coding in CODINGS
    records = drawn_records()
    records = records.scaled_by_middle() if coding == "middle" else records
    areas = []
    for split in range(2):
        task = records.task(records.split_by_person(seed=split))
        assert float(penalty) in PENALTIES
        (scores,) = local_scores(task, penalties=[float(penalty)])
        areas.append(auc(scores, task.labels_test))
    assert alone.overall.mean == pytest.approx(np.mean(areas))
    assert alone.overall.error == pytest.approx(abs(areas[0] - areas[1]) / 2)
    assert (alone.gain.mean, alone.gain.error) == (0, 0)
    for row in comparison.rows:
        assert row.gain.mean == pytest.approx(row.overall.mean - alone.overall.mean)
        assert row.worst_region.mean <= row.overall.mean + 0.2
        assert row.worst_silo.name.startswith("s")


def test_without_privacy_the_label_is_learnt(comparison):
    assert all(row.overall.mean > 0.9 for row in comparison.rows[-3:-1])


def test_the_epsilon_of_masked_sums_is_that_of_a_masked_plan():
    records = drawn_records()
    task, federation = records.task(records.split_by_person(seed=0)), records.federation()
    row = next(row for row in ROWS if (row.unit, row.name) == ("silo", "optimal"))
    arguments = {"rounds": 3, "epsilon": 2.0, "silos_per_person": 1}
    trusted = plan_of_row(row, federation, task, **arguments)
    masked = plan_of_row(row, federation, task, aggregation="masked", **arguments)
    assert trusted.noise_multiplier == pytest.approx(masked.noise_multiplier)
    result = compare_sites(records, splits=1, choosing_splits=1, **arguments)
    # The sizes of the split are those of the training records, so the plans are made on the split's own federation.
    split = records.select(~records.split_by_person(seed=0)).federation()
    masked = plan_of_row(row, split, task, aggregation="masked", **arguments)
    found = next(each for each in result.rows if (each.unit, each.name) == ("silo", "optimal"))
    assert found.epsilon_masked == pytest.approx(float(masked.epsilon_inside.max()))
    assert math.isnan(found.overall.error)


def test_the_number_of_splits_is_at_least_one():
    with pytest.raises(ParameterError, check=coded("number.whole-range")):
        compare_sites(drawn_records(), rounds=1, epsilon=1.0, splits=0)
