import itertools

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.errors import ParameterError
from fulcrum.simulation.data.survival import person_periods, with_intervals
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import concordance, measure, measure_by_region


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 5), st.sampled_from([-1.0, 0.0, 0.5, 2.0, np.nan])),
        min_size=1,
        max_size=12,
    )
)
def test_concordance_is_the_share_of_right_pairs_counted_one_by_one(people):
    right = pairs = 0
    for (event, time, risk), (other_event, other_time, other_risk) in itertools.permutations(people, 2):
        if event and (time < other_time or (time == other_time and not other_event)):
            pairs += 1
            if not (np.isnan(risk) or np.isnan(other_risk)):
                right += 1.0 if risk > other_risk else 0.5 if risk == other_risk else 0.0
    outputs = np.array([[0.0, risk] for *_, risk in people])
    value = concordance(outputs, np.array([[event, time] for event, time, _ in people], dtype=float))
    assert np.isnan(value) if not pairs else value == pytest.approx(right / pairs)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1)), min_size=1, max_size=8))
def test_the_intervals_of_a_person_give_back_time_and_event(people):
    times, events = (np.array(column) for column in zip(*people, strict=True))
    ends = (1.0, 2.0, 4.0)
    periods = person_periods(times, events, ends=ends)
    for person, (time, event) in enumerate(people):
        mine = periods.rows == person
        entered = [0] + [number for number in (1, 2) if time > ends[number - 1]]
        assert periods.intervals[mine].tolist() == entered
        expected = [0] * (len(entered) - 1) + [int(event and time <= 4)]
        assert periods.labels[mine].tolist() == expected


def test_hazards_by_interval_are_those_of_a_life_table():
    # Four enter the first interval and one dies; two enter the second and both die: hazards 1/4 and 2/2.
    periods = person_periods(np.array([0.2, 1.5, 1.6, 0.9]), np.array([1, 1, 1, 0]), ends=(1.0, 2.0))
    hazards = [periods.labels[periods.intervals == number].mean() for number in (0, 1)]
    assert hazards == [0.25, 1.0]
    assert with_intervals(np.ones((2, 1)), np.array([0, 1]), count=2).tolist() == [[1, 0], [1, 1]]


def survival_task(**changes):
    arguments = {
        "name": "three",
        "features_train": np.eye(3),
        "labels_train": np.array([0, 1, 0]),
        "features_test": np.eye(3),
        "labels_test": np.array([1, 0, 1]),
        "classes": ("alive", "dead"),
        "silo_test": ("a", "a", "b"),
        "metric": "concordance",
        "times_test": np.array([1.0, 2.0, 3.0]),
    }
    return Task(**arguments | changes)


def test_a_task_of_survival_is_measured_overall_and_by_region():
    task = survival_task()
    outputs = [np.array([[0.0, 2.0], [0.0, 1.0], [0.0, 3.0]])]
    assert measure(outputs, task)[0].tolist() == [0.5]  # the pairs (1, 2) and (1, 3): right, wrong
    by_region = measure_by_region(outputs, task, {"a": 0, "b": 1})
    assert by_region[0].tolist() == [1.0]
    assert np.isnan(by_region[1]).all()


def test_concordance_needs_times_and_two_classes():
    with pytest.raises(ParameterError, check=coded("metric.times-missing", records=3)):
        survival_task(times_test=None)
    with pytest.raises(ParameterError, check=coded("metric.classes-number", metric="concordance")):
        survival_task(classes=("a", "b", "c"))
