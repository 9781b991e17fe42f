"""A silo whose plan protects persons: rows from a process of its own, clipped here, and failures that nobody sees."""

import logging
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from site_folder import module

import fulcrum
from fulcrum.aggregation.release_opening import unseal
from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.noise.noise_sources import SecureNoise
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import FORMAT, SiteSettings, read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.core.training.assignment import Assignment, TrainingFailedError
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.core.training.training_module import load_training_module
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.errors import DataError

pytest.importorskip("cryptography", reason="needs the extra secure")
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")

MODULE = """
import os, sys, time
from pathlib import Path
import numpy as np

def start(options):
    return {"head": np.zeros((2, 3)), "bias": np.zeros(1)}

def persons(assignment):
    conduct = Path(__file__).with_name("conduct").read_text()
    for number in range(1, 6):
        yield number, conduct

def gradients(model, records):
    number, conduct = records
    assert not model["bias"].any()
    scope = globals() | {"model": model, "number": number, "result": None}
    exec(conduct, scope)
    model["bias"] += 7.0  # a change that the call of the next person must not see
    if scope["result"] is not None:
        return scope["result"]
    return {"head": np.full((2, 3), number / 100), "bias": np.zeros(1)}
"""
"""Five persons, and a file that says how their gradients behave."""

MODEL = {"head": np.zeros((2, 3)), "bias": np.zeros(1)}
WHOLE = -np.array([0.15] * 6 + [0.0])


class World:
    def __init__(self, folder, monkeypatch):
        self.home, self.conduct = folder / "site", folder / "conduct"
        self.home.mkdir()
        self.said("")
        module(folder, monkeypatch, MODULE)
        keys = {"a": fulcrum.new_key(self.home / "site.key"), "b": fulcrum.new_key(folder / "b.key")}
        keys["north"] = fulcrum.new_key(folder / "north.key", kind="sealing")
        self.plan = fulcrum.plan(
            fulcrum.Federation.from_sizes({"north": {"a": 5.0, "b": 5.0}}),
            rounds=3,
            epsilon=5.0,
            parameters=7,
            purpose="deployment",
            keys=keys,
            unit="person",
        )
        fulcrum.save_plan(self.plan, self.home / "plan.json")
        issuer = fulcrum.new_key(folder / "issuer.key")
        fulcrum.sign_plan(self.home / "plan.json", folder / "issuer.key")
        settings = SiteSettings(format=FORMAT, role="silo", name="a", issuer=issuer, train="their_training")
        (self.home / "site.toml").write_text(site_toml(settings))
        init_site(read_site(self.home))
        self.folder, self.station, self.number = folder, SiloStation(read_site(self.home, "silo")), 0

    def said(self, conduct):
        self.conduct.write_text(conduct)

    def assignment(self, number=1):
        plan = fulcrum.verified_plan(self.plan)
        return Assignment(silo="a", round_number=number, plan=plan, seed=0, options={})

    def signal(self, conduct):
        """What the silo released in its next round, its noise removed, over its weight; and the worker is asked."""
        self.said(conduct)
        self.number += 1
        sealed = self.station.answer(pack_model(MODEL), self.number)
        [entry] = [e for e in self.entries() if e.round_number == self.number]
        del sealed, entry
        return self.sums[-1]

    def entries(self):
        with read_ledger(self.home / "state" / "a.ledger") as ledger:
            return ledger.entries()


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    made.sums = []

    def silent(self, *, width, count):
        return np.zeros(count, dtype=np.int64)

    from fulcrum.core.silo import releasing

    real = releasing.Release

    def kept(**fields):
        made.sums.append(fields["values"] * fields["step"] / float(made.plan.weights[0]))
        return real(**fields)

    monkeypatch.setattr(SecureNoise, "integers", silent)
    monkeypatch.setattr(
        releasing, "Release", type("Kept", (), {"__new__": lambda cls, **f: kept(**f), "from_bytes": real.from_bytes})
    )
    yield made
    made.station._training.close()


def test_the_worker_streams_one_row_for_each_person_and_the_silo_clips_each(world):
    assert world.signal("") == pytest.approx(WHOLE, abs=5e-3)
    large = "result = {'head': np.full((2, 3), 1e9 * number), 'bias': np.zeros(1)}"
    assert world.signal(large) == pytest.approx([-5 / 6**0.5] * 6 + [0], abs=0.02)


FAILS_FOR_ONE = [
    "if number == 2: raise ZeroDivisionError",
    "if number == 2: sys.exit(3)",
    "if number == 2: result = {'head': np.ones((3, 2)), 'bias': np.zeros(1)}",
    "if number == 2: result = {'head': np.ones((2, 3))}",
    "if number == 2: result = 7",
    "if number == 2: result = {'head': np.full((2, 3), np.nan), 'bias': np.zeros(1)}",
    "if number == 2: np.zeros(2**50)",
]


@pytest.mark.parametrize("conduct", FAILS_FOR_ONE, ids=range(len(FAILS_FOR_ONE)))
def test_a_person_whose_gradients_fail_counts_as_zero_and_moves_nobody_else(world, conduct, caplog):
    with caplog.at_level(logging.CRITICAL, logger="fulcrum.alarm"):
        assert world.signal(conduct) == pytest.approx(-np.array([0.13] * 6 + [0.0]), abs=5e-3)
    assert "the gradients of 1 persons are not finite or failed" in caplog.text


@pytest.mark.parametrize("conduct", ["if number == 4: os._exit(7)", "if number == 4: time.sleep(999)"])
def test_a_worker_that_dies_or_hangs_leaves_zero_plus_noise_and_an_alarm(world, conduct, caplog):
    assert world.signal("") == pytest.approx(WHOLE, abs=5e-3)
    world.station._training._seconds = 1.0
    with caplog.at_level(logging.CRITICAL, logger="fulcrum.alarm"):
        assert not world.signal(conduct).any()
    assert "training failed in round 2: zero plus noise" in caplog.text
    world.station._training._seconds = 60.0
    assert world.signal("") == pytest.approx(WHOLE, abs=5e-3)


def test_rows_come_in_blocks_of_bounded_size(world, monkeypatch):
    worker = TrainingWorker("their_training", seconds=60)
    [block] = worker.rows(MODEL, world.assignment())
    assert block.shape == (5, 7)
    worker.close()
    monkeypatch.setattr("fulcrum.core.training.training_worker._BLOCK", 2 * 7 * 8)
    small = TrainingWorker("their_training", seconds=60)
    assert [len(block) for block in small.rows(MODEL, world.assignment())] == [2, 2, 1]
    small.close()


def test_in_process_training_gives_the_same_rows_and_hides_the_same_failures(world):
    training = InProcessTraining(load_training_module("their_training"))
    rows = np.vstack(list(training.rows(MODEL, world.assignment())))
    assert rows[:, 0].tolist() == [-0.01, -0.02, -0.03, -0.04, -0.05]
    world.said("if number == 3: raise ZeroDivisionError")
    assert np.isnan(np.vstack(list(training.rows(MODEL, world.assignment())))).all(axis=1).tolist() == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_row_of_none_does_not_leave_out_all_later_persons(world):
    class Learner:
        def rows(self, model, assignment):
            yield from (np.ones(7), None, np.ones(7))

    with pytest.raises(TrainingFailedError, check=coded("training.rows-shape")):
        list(InProcessTraining(Learner()).rows(MODEL, world.assignment()))


def test_blocks_of_another_width_fail_the_training(world, monkeypatch):
    body = MODULE + "\ngradient_rows = lambda model, assignment: [np.ones((2, 7)), np.ones((2, 1))]\n"
    learner = module(world.folder, monkeypatch, body)
    with pytest.raises(TrainingFailedError, check=coded("training.rows-shape")):
        list(InProcessTraining(learner).rows(MODEL, world.assignment()))
    assert not world.signal("").any()


def test_matrices_of_rows_are_taken_as_gradients(world, monkeypatch):
    body = MODULE + "\ngradient_rows = lambda model, assignment: iter([np.ones((3, 7)), np.ones(7)])\n"
    learner = module(world.folder, monkeypatch, body)
    assert [block.shape for block in learner.rows(MODEL, world.assignment())] == [(3, 7), (7,)]
    assert world.signal("") == pytest.approx([-4 / 7**0.5] * 7, abs=0.02)


def test_a_module_must_have_the_functions_of_the_plans_unit(world, tmp_path, monkeypatch):
    silos = fulcrum.verified_plan(fulcrum.plan("isic-paper", rounds=2, epsilon=1.0))
    learner = load_training_module("their_training")
    with pytest.raises(DataError, check=coded("training.train-missing")):
        learner.check_unit(silos.unit)
    with pytest.raises(DataError, check=coded("training.train-missing")):
        learner.update(MODEL, Assignment(silo="region-1-1", round_number=1, plan=silos, seed=0, options={}))
    body = "def start(options): return {}\ndef train(model, assignment): return model\n"
    learner = module(tmp_path, monkeypatch, body)
    with pytest.raises(DataError, check=coded("training.gradients-missing", unit="person")):
        list(learner.rows(MODEL, world.assignment()))
    assert not world.signal("").any()  # hidden by the silo: an operator sees the alarm, an observer noise
    for line, code in (("gradients = 7", "function-type"), ("SERVER_LEARNING_RATE = 'fast'", "server-rate")):
        with pytest.raises(DataError, check=coded(f"training.{code}")):
            module(tmp_path, monkeypatch, body + line)


def test_a_sealed_release_opens_at_the_region(world):
    sealed = world.station.answer(pack_model(MODEL), 1)
    release = unseal(sealed, fulcrum.verified_plan(world.plan), "north", world.folder / "north.key")
    assert release.layout.names == ("head", "bias")
