"""The function `gradients` of a training module: one person at a time, without a state between calls."""

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import DataError

MODEL = {"head": np.zeros((2, 2)), "bias": np.ones(1)}
RECORDS = [np.full((count, 5), float(count)) for count in (1, 3, 2)]


@pytest.fixture(scope="module")
def assignment():
    federation = fulcrum.Federation.from_sizes({"north": {"a": 5.0, "b": 5.0}})
    plan = fulcrum.verified_plan(fulcrum.plan(federation, rounds=3, epsilon=5.0, unit="person"))
    return Assignment(silo="a", round_number=1, plan=plan, seed=0, options={})


def rows_of(gradients, assignment, persons=RECORDS):
    training = TrainingModule(start=lambda options: MODEL, persons=lambda _: iter(persons), gradients=gradients)
    return np.array(list(training.rows(MODEL, assignment)))


def flat(model, records):
    return records.sum(axis=0)


def test_a_gradient_may_have_the_names_of_the_model_or_be_a_row(assignment):
    def named(model, records):
        total = records.sum(axis=0)
        return {"head": total[:4].reshape(2, 2), "bias": total[4:]}

    expected = [-records.sum(axis=0) for records in RECORDS]
    assert np.array_equal(rows_of(named, assignment), expected)
    assert np.array_equal(rows_of(flat, assignment), expected)


def test_rows_of_another_length_are_nan_for_their_person(assignment):
    rows = rows_of(lambda model, records: np.ones(5 if len(records) > 1 else 4), assignment)
    assert np.isnan(rows).all(axis=1).tolist() == [True, False, False]


class Momentum:
    """Adds the gradients of earlier persons."""

    def __init__(self):
        self.velocity = np.zeros(5)

    def __call__(self, model, records):
        self.velocity = 0.5 * self.velocity + records.sum(axis=0)
        return self.velocity


class Counting:
    """Divides by the number of persons so far."""

    def __init__(self):
        self.persons = 0

    def __call__(self, model, records):
        self.persons += 1
        return records.sum(axis=0) / self.persons


class Drawing:
    def __init__(self):
        self.draws = np.random.default_rng(0)

    def __call__(self, model, records):
        return records.sum(axis=0) * self.draws.integers(0, 2, 5)


class Failing:
    """Fails as soon as a person has called before."""

    def __init__(self):
        self.called = False

    def __call__(self, model, records):
        if self.called:
            raise ValueError
        self.called = True
        return records.sum(axis=0)


@pytest.mark.parametrize("kind", [Momentum, Counting, Drawing, Failing])
def test_a_function_with_a_state_is_refused_after_its_rows(kind, assignment):
    with pytest.raises(DataError, check=coded("training.gradients-state", unit="person")):
        rows_of(kind(), assignment)


def test_changes_to_model_and_records_by_a_call_do_not_reach_another_call(assignment):
    def careless(model, records):
        gradient = records.sum(axis=0) + model["bias"]
        model["bias"] += 100.0
        records *= 0.0
        return gradient

    expected = [-records.sum(axis=0) - 1 for records in RECORDS]
    assert np.array_equal(rows_of(careless, assignment, [records.copy() for records in RECORDS]), expected)


def test_rounding_in_another_order_is_no_state(assignment):
    rounding = iter([1.0, 1.0, 1.0, 1 + 1e-7])
    assert len(rows_of(lambda model, records: records.sum(axis=0) * next(rounding), assignment)) == 3


def test_a_silo_without_persons_has_no_row(assignment):
    assert rows_of(flat, assignment, []).size == 0


def test_gradients_with_rows_take_many_persons_at_a_time(assignment):
    class Rows:
        def __call__(self, model, records):
            raise AssertionError

        def rows(self, model, persons):
            yield np.stack([records.sum(axis=0) for records in persons])

    [block] = TrainingModule(start=lambda _: MODEL, persons=lambda _: RECORDS, gradients=Rows()).rows(MODEL, assignment)
    assert np.array_equal(block, [-records.sum(axis=0) for records in RECORDS])


class Scan:
    """Records with an open file, which have no copy."""

    def __init__(self, file=None):
        self.file = file

    def sum(self, axis):
        return np.ones(5)


def test_records_without_a_copy_do_not_end_the_round_of_all(assignment, tmp_path):
    with (tmp_path / "scan").open("w") as file:
        rows = rows_of(flat, assignment, [Scan(file), *RECORDS])
        assert np.array_equal(rows, [-np.ones(5), *(-records.sum(axis=0) for records in RECORDS)])
        assert len(rows_of(flat, assignment, [Scan(file)])) == 1
        with pytest.raises(DataError, check=coded("training.gradients-state", unit="person")):
            rows_of(Momentum(), assignment, [Scan(file), *RECORDS])


def test_rounding_of_a_gradient_that_nearly_cancels_is_no_state(assignment):
    rounding = iter([0.0, 0.0, 0.0, 1e-6])
    small = [np.full((1, 5), 1e-5), *RECORDS[1:]]
    assert len(rows_of(lambda model, records: records.sum(axis=0) + next(rounding), assignment, small)) == 3
