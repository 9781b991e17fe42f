"""What the server measures after each round: whatever a user's `evaluate` does, training goes on."""

import json
import sys
import textwrap

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.silo.site import FORMAT, Site, SiteSettings
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import TrainingModule, load_training_module
from fulcrum.errors import DataError, StorageError
from fulcrum.server.evaluation import NAME, Evaluation, note_metrics, read_metrics

MODEL = {"w": np.arange(3.0)}


def learner(evaluate, **settings):
    return TrainingModule(
        start=lambda options: MODEL, train=lambda model, assignment: model, evaluate=evaluate, **settings
    )


@pytest.fixture
def server(tmp_path):
    """A server's site; only its folder and plan are asked for."""
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=1.0)
    (tmp_path / "state").mkdir()
    settings = SiteSettings(format=FORMAT, role="server", name="server", issuer="", train="theirs", options={"k": 2})
    return Site(folder=tmp_path, settings=settings, plan=plan)


def test_evaluate_is_told_the_round_and_the_servers_options_and_of_no_silo(server):
    seen = []
    evaluation = Evaluation(server, learner(lambda model, assignment: seen.append((model, assignment)) or {"n": 1}))
    evaluation.measure(MODEL, 2)
    ((model, assignment),) = seen
    assert model["w"].tolist() == [0, 1, 2]
    assert (assignment.silo, assignment.round_number, assignment.options["k"]) == ("", 2, 2)
    assert assignment.plan is server.plan


def test_evaluate_cannot_change_the_model(server):
    def spoil(model, assignment):
        model["w"] += 5
        return {"sum": model["w"].sum()}

    evaluation = Evaluation(server, learner(spoil))
    evaluation.measure(MODEL, 1)
    assert evaluation.metrics == {1: {"sum": 18.0}}
    assert MODEL["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("value", "taken"),
    [(0.5, 0.5), (3, 3.0), (True, 1.0), (np.float32(0.25), 0.25), (np.array(2), 2.0), (np.int64(-1), -1.0)],
)
def test_a_metric_is_one_number_in_whatever_type_it_comes(server, value, taken):
    found, left_out = learner(lambda *_: {"m": value}).metrics_of(MODEL, assignment(server))
    assert (found, left_out) == ({"m": taken}, [])
    assert type(found["m"]) is float


def assignment(server):
    return Assignment(silo="", round_number=1, plan=server.plan, seed=0, options={})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "got nan"),
        (float("inf"), "got inf"),
        ([1.0], "got [1.0]"),
        (np.zeros(1), "got array([0.])"),
        ("0.5", "got '0.5'"),
        (None, "got None"),
        (1j, "got 1j"),
        ({"deep": 1}, "got {'deep': 1}"),
    ],
)
def test_what_is_no_finite_number_is_left_out_in_one_line_and_the_others_stay(server, value, told):
    found, left_out = learner(lambda *_: {"good": 1.0, "bad": value}).metrics_of(MODEL, assignment(server))
    assert found == {"good": 1.0}
    (line,) = left_out
    assert line.startswith("'bad' is left out: a metric is one finite number, ")
    assert line.endswith(told)
    assert "\n" not in line


def raising(error):
    def evaluate(model, assignment):
        raise error

    return evaluate


@pytest.mark.parametrize(
    ("evaluate", "told"),
    [
        (raising(ValueError("no\nfile")), "nothing is measured, evaluate failed: ValueError: no file"),
        (raising(SystemExit(3)), "nothing is measured, evaluate failed: SystemExit: 3"),
        (lambda *_: 0.5, "evaluate must return a dict of named numbers, got float"),
        (lambda *_: None, "evaluate must return a dict of named numbers, got NoneType"),
        (lambda *_: {1: 0.5}, "a metric's name must be a text that can be printed, got 1"),
        (lambda *_: {"a\x1b[2J": 0.5}, "a metric's name must be a text that can be printed, got 'a\\x1b[2J'"),
    ],
)
def test_an_evaluate_that_fails_is_one_note_and_not_the_end(server, evaluate, told):
    evaluation = Evaluation(server, learner(evaluate))
    for number in (1, 2):
        evaluation.measure(MODEL, number)
    assert evaluation.metrics == {}
    assert evaluation.notes == [f"Rounds 1, 2: {told}."]


def test_an_interrupt_is_the_operators_and_ends_it(server):
    with pytest.raises(KeyboardInterrupt):
        Evaluation(server, learner(raising(KeyboardInterrupt()))).measure(MODEL, 1)


def test_without_evaluate_nothing_is_measured_and_nothing_is_written(server):
    evaluation = Evaluation(server, learner(None))
    evaluation.measure(MODEL, 1)
    assert (evaluation.metrics, evaluation.notes, list(server.state.iterdir())) == ({}, [], [])


def test_a_server_that_comes_back_knows_what_was_measured_and_measures_no_round_twice(server):
    Evaluation(server, learner(lambda *_: {"m": 1.0})).measure(MODEL, 1)
    again = Evaluation(server, learner(raising(AssertionError("measured twice"))))
    again.measure(MODEL, 1)
    again.measure(MODEL, 0)  # the model before the first round is of no round
    assert (again.metrics, again.notes) == ({1: {"m": 1.0}}, [])


def test_metrics_of_another_plan_or_of_no_plan_are_refused_and_training_goes_on(server):
    other = fulcrum.plan("isic-paper", rounds=3, epsilon=2.0)
    note_metrics(server.state, other, 1, {"m": 9.0})
    with pytest.raises(StorageError, check=coded("metrics.other-plan")):
        read_metrics(server.state, server.plan)
    evaluation = Evaluation(server, learner(lambda *_: {"m": 1.0}))
    evaluation.measure(MODEL, 1)
    assert evaluation.metrics == {1: {"m": 1.0}}
    assert len(evaluation.notes) == 2
    assert json.loads((server.state / NAME).read_text())["rounds"] == {"1": {"m": 9.0}}  # not written over
    (server.state / NAME).write_text("{")
    with pytest.raises(StorageError, check=coded("metrics.malformed")):
        read_metrics(server.state, server.plan)


def test_an_evaluate_that_is_no_function_is_refused_when_the_module_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "odd_evaluate.py").write_text(
        textwrap.dedent(
            """
            evaluate = 3
            def start(options): return {}
            def train(model, assignment): return model
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match="must be a function, got int"):
        load_training_module("odd_evaluate")
    sys.modules.pop("odd_evaluate", None)


def test_a_silo_runs_neither_start_nor_evaluate_of_a_module_of_arrays(server):
    made = TrainingModule(
        start=raising(AssertionError("start")),
        train=lambda model, assignment: {"w": model["w"] + 0.1},
        evaluate=raising(AssertionError("evaluate")),
    )
    update = made.update(MODEL, assignment(server))
    assert np.array_equal(update["w"], (MODEL["w"] + 0.1) - MODEL["w"])  # to the last bit


def test_a_start_that_fails_where_pytorch_is_there_leaves_a_silo_with_arrays(server, caplog):
    made = TrainingModule(
        start=raising(FileNotFoundError("pretrained.pt")),
        train=lambda model, assignment: {"w": model["w"] + 1},
        may_have_tensors=True,
    )
    assert made.update(MODEL, assignment(server))["w"].tolist() == [1, 1, 1]
    assert "given to train as arrays" in caplog.text
