import dataclasses

import numpy as np
import pytest

from fulcrum.errors import ParameterError
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.metrics import METRICS, measure, measure_by_silo


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


def test_what_is_not_a_number_is_of_no_class():
    outputs = np.array([[0.0, 1.0], [np.nan, np.nan], [2.0, np.nan], [np.inf, 0.0]])
    assert METRICS["classes"](outputs, np.array([1, 0, 0, 0])) == 0.5
    assert METRICS["labels"](outputs, np.array([[0, 1], [0, 0], [1, 0], [1, 0]])) == 5 / 8


def test_numbers_that_are_all_alike_have_no_variance_to_explain():
    assert np.isnan(METRICS["numbers"](np.array([[3.0], [4.0]]), np.array([5.0, 5.0])))
    assert METRICS["numbers"](np.array([[3.0], [4.0]]), np.array([3.0, 5.0])) == 0.5


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        (lambda said, true: 1 / 0, "the metric '<lambda>' fails on {}: ZeroDivisionError: division by zero"),
        (lambda said, true: "good", "the metric '<lambda>' fails on {}: ValueError: could not convert string"),
        (lambda said, true: [1, 2], "<lambda> must give one number, got the shape (2,)"),
    ],
)
def test_a_metric_that_fails_is_told_in_one_line(task, metric, told):
    outputs = [np.zeros((len(task.labels_test), 2))]
    with pytest.raises(ParameterError) as caught:
        measure(outputs, task, metric)
    assert str(caught.value).startswith(told.format("the test records"))
    silos = dataclasses.replace(task, silo_test=("lyon",) * len(task.labels_test))
    with pytest.raises(ParameterError) as caught:
        measure_by_silo(outputs, silos, metric)
    assert str(caught.value).startswith(told.format("the test records of silo 'lyon'"))


def test_every_silo_is_measured_on_its_own_records(task):
    names = tuple(f"s{place % 7}" for place in range(len(task.labels_test)))
    named = dataclasses.replace(task, silo_test=names)
    outputs = [np.random.default_rng(arm).random((len(names), 2)) for arm in range(2)]
    found = measure_by_silo(outputs, named)
    for place in range(7):
        own = np.array(names) == f"s{place}"
        for arm, said in enumerate(outputs):
            assert found[place, arm] == METRICS["classes"](said[own], task.labels_test[own])
    assert measure_by_silo(outputs, task).shape == (0, 2)
