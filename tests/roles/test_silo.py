"""What a silo answers when it is asked for a round, whatever its training does."""

import asyncio
import concurrent.futures
import dataclasses
import logging
import os
import signal
import threading
import time

import msgspec
import numpy as np
import pytest
from error_codes import coded
from site_folder import in_process, released, rewritten, trained_by

import fulcrum
from fulcrum.aggregation.release_opening import unseal
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.releasing import release, sound_alarm
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.errors import FulcrumError, ReleaseError

pytest.importorskip("cryptography", reason="needs the extra secure")


def test_a_silo_answers_with_a_release_that_its_region_alone_can_open(silo, model):
    site = read_site(silo, "silo")
    sealed = SiloStation(site).answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert (release.silo, release.round_number) == ("a", 1)
    assert released(silo) == [1]


def test_asked_again_it_sends_the_same_release_and_trains_nothing(silo, model, monkeypatch):
    site = read_site(silo, "silo")
    first = SiloStation(site).answer(pack_model(model), 1)
    monkeypatch.setattr(TrainingWorker, "update", lambda *_: pytest.fail("trained again"))
    second = SiloStation(site).answer(pack_model(model), 1)
    assert first != second  # sealed anew
    one, two = (unseal(sealed, site.plan, "north", silo.parent / "north.key") for sealed in (first, second))
    assert np.array_equal(one.values, two.values)
    assert released(silo) == [1]


def test_another_model_for_the_same_round_gets_nothing(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 2)
    with pytest.raises(FulcrumError, check=coded("ledger.round-released")):
        station.answer(pack_model({"head": model["head"] + 1}), 2)
    assert released(silo) == [2]


@pytest.mark.parametrize("round_number", [0, 4, -1, None, "1", 1.5])
def test_a_round_outside_the_plan_gets_nothing(silo, model, round_number):
    with pytest.raises(ReleaseError):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), round_number)


@pytest.mark.parametrize("data", [None, b"", b"x", b"\x05\0\0\0abcde", 7, "text"])
def test_what_is_no_model_gets_nothing(silo, data):
    with pytest.raises(FulcrumError, match="not a model"):
        SiloStation(read_site(silo, "silo")).answer(data, 1)
    assert released(silo) == []


def test_a_ledger_that_is_gone_is_not_begun_anew(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 1)
    (silo / "state" / "a.ledger").unlink()
    with pytest.raises(ReleaseError, check=coded("site.ledger-missing")):
        station.answer(pack_model({"head": model["head"] + 1}), 1)


def test_a_ledger_that_goes_while_it_is_waited_for_is_not_begun_anew(silo, model, monkeypatch):
    station, path = SiloStation(read_site(silo, "silo")), silo / "state" / "a.ledger"
    held = Ledger.open(path, silo="a")

    def moved_away(seconds):
        held.close()
        path.unlink()

    monkeypatch.setattr("fulcrum.core.silo.site.time.sleep", moved_away)
    with pytest.raises(ReleaseError, check=coded("site.ledger-missing")):
        station.answer(pack_model(model), 1)
    assert not path.exists()


def all_at_once():
    return BaseExceptionGroup("several", [SystemExit(1), ValueError("one")])


@pytest.mark.parametrize(
    "failure",
    [
        ZeroDivisionError,
        SystemExit,
        MemoryError,
        RecursionError,
        GeneratorExit,
        asyncio.CancelledError,
        concurrent.futures.CancelledError,
        StopIteration,
        all_at_once,
        fulcrum.PolicyError,
    ],
)
def test_a_failure_in_training_is_hidden_in_noise_and_told_to_the_silo_alone(silo, model, caplog, failure):
    def fail(*_):
        raise failure()

    site = read_site(silo, "silo")
    sealed = in_process(silo, fail).answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert release.values.any()
    assert "training failed in round 1" in caplog.text
    assert released(silo) == [1]


@pytest.mark.parametrize("failure", [OSError("the disk of the log is full"), SystemExit(1)], ids=["fails", "exits"])
def test_a_listener_that_fails_keeps_no_release_back(silo, model, failure):
    class Broken(logging.Handler):
        def emit(self, record):
            raise failure

    def failed(*_):
        raise ValueError("no batch")

    listener, alarm = Broken(), logging.getLogger("fulcrum.alarm")
    alarm.addHandler(listener)
    try:
        in_process(silo, failed).answer(pack_model(model), 1)
    finally:
        alarm.removeHandler(listener)
    assert released(silo) == [1]


def test_a_listener_that_waits_keeps_no_release_waiting(silo, model):
    """A log waits if the log is a pipe that nobody reads."""
    go, heard = threading.Event(), []

    class Waiting(logging.Handler):
        def emit(self, record):
            go.wait(60)
            heard.append(record.getMessage())

    def failed(*_):
        raise ValueError("no batch")

    listener, alarm, began = Waiting(), logging.getLogger("fulcrum.alarm"), time.monotonic()
    alarm.addHandler(listener)
    try:
        station = in_process(silo, failed)
        for number in (1, 2):
            station.answer(pack_model(model), number)
        for number in range(9):
            sound_alarm("more %d", number)
        assert time.monotonic() - began < 20
        assert heard == []
    finally:
        go.set()
        deadline = time.monotonic() + 20
        while len(heard) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        alarm.removeHandler(listener)
    assert released(silo) == [1, 2]
    assert len(heard) == 4  # so many threads wait at most, and the other lines are left out
    assert sum("training failed in round" in text for text in heard) == 2


def test_an_interrupt_is_the_operators_and_is_not_hidden(silo, model):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_process(silo, interrupted).answer(pack_model(model), 1)
    assert released(silo) == []


@pytest.mark.parametrize(
    "returned",
    [
        "None",
        "7",
        "[]",
        "{}",
        "{'head': None}",
        "{'head': 'text'}",
        "{'head': model['head'].astype(complex) * 1j}",
        "{'head': model['head'].astype(object)}",
        "{'head': model['head'].astype(str)}",
        "{'head': model['head'][1:]}",
        "{'head': [[1, 2], [3]]}",
        "{'other': model['head']}",
        "{'head': model['head'], 'more': model['head']}",
        "model['head']",
        "iter(())",
    ],
)
def test_whatever_training_returns_the_silo_answers_and_is_told(silo, model, monkeypatch, caplog, returned):
    """What does not fit the model is zero plus noise, as a failure is: an observer sees a release like any other."""
    trained_by(
        silo,
        monkeypatch,
        f"""
        def start(options): return {{}}
        def train(model, assignment): return {returned}
        """,
    )
    site = read_site(silo, "silo")
    sealed = in_process(silo, "their_training").answer(pack_model(model), 1)
    release = unseal(sealed, site.plan, "north", silo.parent / "north.key")
    assert release.layout.names == ("head",)
    assert "training failed in round 1" in caplog.text
    assert released(silo) == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("return model", 0), ("raise ValueError", 1)])
def test_a_process_that_training_forks_does_not_answer_for_the_silo(silo, model, monkeypatch, ending, status):
    trained_by(
        silo,
        monkeypatch,
        f"""
        import os, sys
        def start(options): return {{}}
        def train(model, assignment):
            if not (child := os.fork()):
                {ending}
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {status}
            assert assignment.options["ledger"]() == []
            return model
        """,
    )
    station, parent, told = in_process(silo, "their_training"), os.getpid(), []
    settings = msgspec.structs.replace(station._site.settings, options={"ledger": lambda: released(silo)})
    station._site = dataclasses.replace(station._site, settings=settings)
    monkeypatch.setattr("fulcrum.core.silo.releasing_silo.sound_alarm", lambda *words: told.append(words))
    try:
        station.answer(pack_model(model), 1)
    finally:
        if os.getpid() != parent:
            os._exit(99)
    assert told == []
    assert released(silo) == [1]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_alarm_that_training_leaves_does_not_strike_while_the_release_is_made(silo, model, monkeypatch):
    struck = []

    def strike(*_):
        struck.append("late")
        raise TimeoutError("training took long")

    def train(given, assignment):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return given

    def slow(*arguments, **options):
        time.sleep(0.2)
        return release(*arguments, **options)

    monkeypatch.setattr("fulcrum.core.silo.releasing_silo.release", slow)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        in_process(silo, train).answer(pack_model(model), 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (released(silo), struck) == ([1], [])


def test_what_training_tells_numpy_to_raise_on_does_not_show(silo, model, monkeypatch, caplog):
    """A module that asks for errors where numbers are too small must not decline for the records that have such."""
    trained_by(
        silo,
        monkeypatch,
        """
        import numpy as np
        def start(options): return {}
        def train(model, assignment):
            np.seterr(all="raise")
            changed = model["head"] + 0.5
            changed[0, 0] = 1e-200
            return {"head": changed}
        """,
    )
    with np.errstate():
        in_process(silo, "their_training").answer(pack_model(model), 1)
    assert released(silo) == [1]
    assert caplog.text == ""


def test_what_is_refused_is_refused_before_training(silo, model, monkeypatch):
    monkeypatch.setattr(TrainingWorker, "update", lambda *_: pytest.fail("trained"))
    (silo / "policy.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 90\n")
    rewritten(silo, "policy = false", "policy = true")
    with pytest.raises(fulcrum.PolicyError):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)


def test_a_ledger_that_another_process_is_letting_go_is_waited_for(silo, model):
    station = SiloStation(read_site(silo, "silo"))
    held = Ledger.open(silo / "state" / "a.ledger", silo="a")
    timer = threading.Timer(0.5, held.close)
    timer.start()
    station.answer(pack_model(model), 1)
    timer.join()
    assert released(silo) == [1]


def test_the_silos_own_policy_is_asked(silo, model):
    (silo / "policy.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 90\n")
    rewritten(silo, "policy = false", "policy = true")
    with pytest.raises(fulcrum.PolicyError, match=r"allows epsilon 0\.1"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 1)
    assert released(silo) == []
