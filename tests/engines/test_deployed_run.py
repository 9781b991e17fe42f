"""What came of a deployed run, in the one form that run.json has, whoever wrote it."""

import math

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.engines.training_failures import Failures
from fulcrum.errors import DataError
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.deployed_run import deployed_run, run_from, save_deployed_run, save_model
from fulcrum.server.run_results import read_results

HISTORY = [
    RoundSummary(round=1, summed=["n", "s"], members={"n": ["a", "b"], "s": ["c"]}, withheld={}, missing=[]),
    RoundSummary(round=2, summed=["n"], members={"n": ["a"]}, withheld={"s": "secret reason"}, missing=["t"]),
]
METRICS = {1: {"loss": 0.9, "accuracy": 0.5}, 2: {"loss": 0.7}}


@pytest.fixture
def plan():
    return fulcrum.plan("isic-paper", rounds=2, epsilon=1.0)


def test_a_run_is_read_back_as_it_was_written_and_fits_its_plan(plan, tmp_path):
    made = deployed_run(plan, HISTORY, METRICS, task="theirs", seed=7, notes=["A note."])
    save_deployed_run(made, tmp_path / "out")
    assert read_results(tmp_path / "out", plan).run == made
    assert made.curves() == {"accuracy": [(1, 0.5, None)], "loss": [(1, 0.9, None), (2, 0.7, None)]}
    first, second = made.rounds
    assert (first.regions, first.silos, first.withheld) == (2, 3, [])
    assert (second.regions, second.silos, second.withheld, second.accuracy) == (1, 1, ["s", "t"], None)
    assert (made.accuracy, made.seeds, made.engine) == (None, [7], "nvflare")


def test_a_run_for_deployment_has_no_seed(tmp_path):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, parameters=6, purpose="deployment")
    assert deployed_run(plan, [], {}, task="theirs", seed=7).seeds == []


@pytest.mark.parametrize(
    "told",
    [None, [], "run", {}, {"rounds": 3}, {"plan_digest": 1}],
)
def test_what_a_server_tells_that_is_no_run_is_refused(told):
    with pytest.raises(DataError, check=coded("run.malformed")):
        run_from(told)


def test_a_metric_that_is_not_finite_makes_no_run(plan):
    told = msgspec.to_builtins(deployed_run(plan, HISTORY, {1: {"loss": math.nan}}, task="theirs", seed=0))
    with pytest.raises(DataError, check=coded("run.metric-not-finite")):
        run_from(told)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run.rounds[0].metrics.update({"loss\x1b[2J": 0.1}),
        lambda run: run.rounds[1].withheld.append("south\nround 9 of 9: accuracy 1"),
        lambda run: run.notes.append("\x1b]0;owned\x07"),
        lambda run: setattr(run, "task", "digits\r"),
    ],
)
def test_what_a_server_tells_that_a_terminal_would_obey_makes_no_run(plan, change):
    made = deployed_run(plan, HISTORY, METRICS, task="theirs", seed=0, notes=["A note."])
    assert run_from(msgspec.to_builtins(made)) == made
    change(made)
    with pytest.raises(DataError, check=coded("run.unprintable")):
        run_from(msgspec.to_builtins(made))


def test_arrays_of_any_name_are_saved(tmp_path):
    model = {"file": np.arange(3.0), "0.weight": np.eye(2), "a/b": np.array(4.0)}
    with np.load(save_model(model, tmp_path)) as found:
        assert {name: found[name].tolist() for name in found} == {name: array.tolist() for name, array in model.items()}


ALARM = "2026-11-15 20:22:16 - alarm - CRITICAL - training failed in round {}: zero plus noise is released\n"
TRACE = 'Traceback (most recent call last):\n  File "x.py", line 4, in train\n    raise\nValueError: no file\nmore\n'


def log(kits, silo, text):
    (kits / silo).mkdir(parents=True, exist_ok=True)
    with (kits / silo / "output.log").open("a") as file:
        file.write(text)


def test_the_silos_at_which_training_failed_are_counted_from_their_logs(tmp_path):
    failures = Failures({silo: tmp_path / silo for silo in "abc"})
    failures.look()
    assert failures.in_words() == ""
    log(tmp_path, "b", "starting\n" + ALARM.format(1) + TRACE)
    log(tmp_path, "a", "nothing here\n")
    failures.look()
    where = tmp_path / "b" / "output.log"
    assert failures.in_words() == f"training failed at 1 of 3 silos, see {where}: ValueError: no file"
    assert not failures.everywhere
    log(tmp_path, "a", ALARM.format(2)[:-40])  # a line that is not whole yet
    log(tmp_path, "c", ALARM.format(2) + TRACE)
    failures.look()
    assert "2 of 3" in failures.in_words()
    log(tmp_path, "a", ALARM.format(2)[-40:] + TRACE)
    failures.look()
    assert "3 of 3" in failures.in_words()
    assert not failures.everywhere  # in no round all of them
    log(tmp_path, "b", ALARM.format(2) + TRACE)
    failures.look()
    assert failures.everywhere


def test_a_log_without_a_traceback_is_named_all_the_same(tmp_path):
    log(tmp_path, "a", ALARM.format(1))
    failures = Failures({"a": tmp_path / "a"})
    failures.look()
    assert failures.in_words() == f"training failed at 1 of 1 silos, see {tmp_path / 'a' / 'output.log'}"
