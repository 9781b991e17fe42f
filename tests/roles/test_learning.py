"""A user's training module: what it must have, may return and may declare, and the one that is built in."""

import numpy as np
import pytest
from error_codes import coded
from site_folder import module

from fulcrum.core.silo.site import read_site
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import load_training_module
from fulcrum.engines.built_in_training import evaluate, start, train
from fulcrum.errors import DataError

pytest.importorskip("cryptography", reason="needs the extra secure")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("{'other': model['w']}", "arrays"),
        ("{'w': model['w'][:1]}", "of shape"),
        ("{'w': model['w'] * 1j}", "complex128"),
        ("{'w': ['1', '2', '3']}", "it is real numbers of shape"),
    ],
)
def test_what_training_returns_must_fit_the_model(tmp_path, monkeypatch, returned, message):
    learner = module(
        tmp_path,
        monkeypatch,
        f"""
        def start(options): return {{}}
        def train(model, assignment): return {returned}
        """,
    )
    with pytest.raises(DataError, match=message):
        learner.update({"w": np.zeros(3)}, Assignment(silo="a", round_number=1, plan=None, seed=0, options={}))


def test_training_cannot_change_the_global_model_in_place(tmp_path, monkeypatch):
    learner = module(
        tmp_path,
        monkeypatch,
        """
        def start(options): return {}
        def train(model, assignment):
            model["w"] += 1
            return model
        """,
    )
    model = {"w": np.zeros(3)}
    update = learner.update(model, Assignment(silo="a", round_number=1, plan=None, seed=0, options={}))
    assert update["w"].tolist() == [1, 1, 1]
    assert model["w"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("declared", "shapes", "classes"),
    [
        ("", {"w": (5, 2)}, None),
        ("SOFTMAX_HEAD = 'w'", {"w": (5, 2)}, 2),
        ("SOFTMAX_HEAD = ('w', 'b')", {"w": (3, 5, 4), "b": (4,)}, 4),
        ("SOFTMAX_HEAD = ('b', 'w')", {"w": (5, 4), "b": (4,)}, 4),
        ("SOFTMAX_HEAD = ()", {"w": (5, 2)}, None),
    ],
)
def test_a_training_module_may_say_that_its_model_is_a_softmax_head(tmp_path, monkeypatch, declared, shapes, classes):
    learner = module(tmp_path, monkeypatch, f"{declared}\nstart = train = print")
    assert learner.classes({name: np.zeros(shape) for name, shape in shapes.items()}) == classes


@pytest.mark.parametrize(
    ("declared", "shapes", "message"),
    [
        ("'w'", {"w": (5, 2), "b": (2,)}, "SOFTMAX_HEAD names w, and the model has w, b. Name every array"),
        ("'v'", {"w": (5, 2)}, "SOFTMAX_HEAD names v, and the model has w"),
        ("('w', 'b')", {"w": (5, 2), "b": (3,)}, "whose last axis are the classes, two or more, got"),
        ("'w'", {"w": (5, 1)}, "two or more"),
        ("'w'", {"w": ()}, "two or more"),
        ("['w']", {"w": (5, 2)}, "must be names of arrays, got"),
        ("(1,)", {"w": (5, 2)}, "must be names of arrays, got"),
        ("None", {"w": (5, 2)}, "must be names of arrays, got None"),
    ],
)
def test_a_head_that_the_model_is_not_is_told_in_one_line(tmp_path, monkeypatch, declared, shapes, message):
    with pytest.raises(DataError, match=message) as caught:
        module(tmp_path, monkeypatch, f"SOFTMAX_HEAD = {declared}\nstart = train = print").classes(
            {name: np.zeros(shape) for name, shape in shapes.items()}
        )
    assert "\n" not in str(caught.value)


def test_the_built_in_training_declares_its_head():
    learner = load_training_module("fulcrum.engines.built_in_training")
    assert learner.classes(learner.starting_model({"data": "digits"})) == 2


def test_a_training_module_without_its_functions_is_named():
    with pytest.raises(DataError, match="'json' has no function start"):
        load_training_module("json")
    with pytest.raises(DataError, match="cannot be imported"):
        load_training_module("no_such_module")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def start(options:\n", r"cannot be imported: .*\(their_training\.py, line 1\)"),
        ("import no_such_package\n", "cannot be imported: No module named 'no_such_package'"),
        ("from json import no_such_name\n", "cannot import name 'no_such_name'"),
        ("import sys\nsys.exit(3)\n", "cannot be imported: SystemExit: 3"),
        ("raise SystemExit\n", "cannot be imported: SystemExit. Install"),
        ("1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')\n", "cannot be imported: ValueError: two lines"),
        ("import asyncio\nraise asyncio.CancelledError\n", "cannot be imported: CancelledError"),
    ],
)
def test_a_training_module_that_cannot_be_imported_is_told_in_one_line(tmp_path, monkeypatch, body, message):
    with pytest.raises(DataError, match=message) as caught:
        module(tmp_path, monkeypatch, body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "must return a dict of named arrays, got NoneType"),
        ("return [1.0]", "must return a dict of named arrays, got list"),
        ("return {0: [1.0]}", "must return a dict of named arrays, got dict"),
        ("return {'w': [[1.0], [1.0, 2.0]]}", "function start failed: ValueError"),
        ("return 1 / 0", "function start failed: ZeroDivisionError: division by zero"),
        ("raise SystemExit", "function start failed: SystemExit"),
        ("raise KeyError('records')", "function start failed: KeyError: 'records'"),
    ],
)
def test_a_start_that_gives_no_model_is_told_in_one_line(tmp_path, monkeypatch, body, message):
    learner = module(tmp_path, monkeypatch, f"def start(options): {body}\ndef train(model, assignment): return model\n")
    with pytest.raises(DataError, match=message) as caught:
        learner.starting_model({})
    assert "\n" not in str(caught.value)


def test_the_built_in_training_refuses_unknown_options(silo):
    with pytest.raises(DataError, check=coded("engine.training-option", option="depth")):
        start({"depth": 3})


def test_the_built_in_training_learns(silo, model):
    plan = read_site(silo, "silo").plan
    assignment = Assignment(silo="a", round_number=1, plan=plan, seed=0, options={})
    trained = train(model, assignment)
    assert evaluate(trained, assignment)["accuracy"] > evaluate(model, assignment)["accuracy"]
