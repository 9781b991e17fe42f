"""What leaves a silo on Flower beside its answer: nothing, whatever its app or its log does."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import START, FlowerWorld, half_a_step, record
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from fulcrum.engines.flower.client_app import client_app
from fulcrum.engines.flower.client_mod import FulcrumMod, fulcrum_mod
from fulcrum.engines.flower.strategy import FulcrumStrategy


def start(world, grid=None, **options):
    strategy = FulcrumStrategy(world.folder / "server")
    return strategy.start(grid=grid or world.grid(), initial_arrays=record(START), timeout=1.0, **options)


def message_to(node, content, kind="train"):
    return Message(content, dst_node_id=node, message_type=kind, ttl=60.0)


def told(reply):
    """What a reply tells beside its content and who it is from."""
    about = reply.metadata
    return about.group_id, about.message_type, about.src_task_id, about.dst_task_id, about.dst_node_id


def counting(message, context):
    """Trains, and notes on the message that it was given how many records there were."""
    message.metadata.group_id = "4242 records"
    message.metadata.message_type = "query.records4242"
    message.metadata.src_task_id = message.metadata.dst_task_id = 4242
    message.metadata.created_at, message.metadata.ttl = 1e9, 4242.0
    return half_a_step(message, context)


def test_what_an_app_writes_into_the_message_it_was_given_is_in_no_reply(tmp_path):
    plain, noting = (FlowerWorld(folder(tmp_path, train.__name__), train=train) for train in (half_a_step, counting))
    for world in (plain, noting):
        start(world, num_rounds=1)
    assert [told(reply) for reply in noting.replies] == [told(reply) for reply in plain.replies]
    assert all(0 < reply.metadata.ttl <= 60 and reply.metadata.created_at > 1e9 for reply in noting.replies)
    noting.check_replies()


def folder(parent, name):
    (parent / name).mkdir()
    return parent / name


class Failing(logging.Handler):
    """A listener that fails on whatever it is told."""

    def handle(self, record):
        raise RuntimeError("the records of caen are strange")


@pytest.fixture
def deaf():
    listener = Failing()
    logging.getLogger().addHandler(listener)
    yield
    logging.getLogger().removeHandler(listener)


@pytest.mark.parametrize("content", [{}, {"arrays": record(START)}])
def test_a_log_that_fails_tells_the_server_nothing(tmp_path, deaf, content):
    world = FlowerWorld(tmp_path)
    world.answer(message_to(1, RecordDict(content)))
    world.check_replies()


def test_a_log_that_fails_does_not_cost_an_update(tmp_path, deaf, monkeypatch):
    """What the app sends beside its arrays is told to the log while training is not over: its failure is not the app's."""
    world = FlowerWorld(tmp_path)
    monkeypatch.setattr("fulcrum.core.silo.releasing_silo.sound_alarm", lambda *_, **__: pytest.fail("training failed"))
    monkeypatch.setattr("fulcrum.engines.flower.strategy._logger", logging.Logger("apart"))
    monkeypatch.setattr("fulcrum.server.masked_server._logger", logging.Logger("apart"))
    start(world, num_rounds=1)
    assert world.check_replies() == {(silo, 1) for silo in world.silos}


@pytest.mark.parametrize("kind", ["query", "evaluate"])
def test_what_a_public_function_raises_tells_the_server_nothing(tmp_path, kind):
    world = FlowerWorld(tmp_path, mod=FulcrumMod(public=[f"{kind}.version"]))

    @getattr(world.app, kind)("version")
    def version(message, context):
        raise RuntimeError("the records of caen are strange")

    assert world.answer(message_to(1, RecordDict(), f"{kind}.version")).has_error()
    world.check_replies()


@pytest.mark.parametrize("place", ["first", "second", "of the function"])
def test_wherever_the_mod_stands_the_train_function_answers_through_it_alone(tmp_path, place):
    """Another mod beside it changes nothing of what it hides from whoever stands after it."""
    world = FlowerWorld(tmp_path)
    seen = []

    def watching(message, context, call_next):
        seen.append(call_next(message, context))
        return seen[-1]

    lists = {"first": [fulcrum_mod, watching], "second": [watching, fulcrum_mod], "of the function": []}
    world.app = ClientApp(mods=lists[place])
    world.app.train(mods=[] if lists[place] else [fulcrum_mod])(half_a_step)
    start(world, num_rounds=1)
    assert world.check_replies() == {(silo, 1) for silo in world.silos}
    updates = [reply for reply in seen if "metrics" in reply.content]
    assert len(updates) == (len(world.silos) if place == "first" else 0), "a mod after it is the app's own"


KILLED = """
import os, signal
def start(options): return {}
def train(model, assignment):
    if assignment.silo == "caen":
        os.kill(os.getpid(), signal.SIGKILL)
    return {name: array + 0.5 for name, array in model.items()}
"""


def test_training_by_a_module_that_is_killed_ends_neither_the_app_nor_its_round(tmp_path, monkeypatch, caplog):
    """The app that is built in trains in a process of its own; an app of the user's own does not."""
    (tmp_path / "killed_training.py").write_text(KILLED)
    monkeypatch.syspath_prepend(str(tmp_path))
    world = FlowerWorld(tmp_path, {"north": dict.fromkeys(("caen", "lille"), 100)}, module="killed_training")
    world.app = client_app
    start(world, num_rounds=1)
    assert world.check_replies() == {("caen", 1), ("lille", 1)}
    alarms = [record.getMessage() for record in caplog.records if record.name == "fulcrum.alarm"]
    assert len(alarms) == 1
    assert "training failed in round 1: zero plus noise is released in its place" in alarms[0]
    assert "killed by signal 9" in alarms[0]


AS_SENT = """
def start(options): return {}
def train(model, assignment):
    kinds = {name: array.dtype.str for name, array in model.items()}
    assert kinds == {"weight": "<f4", "bias": "<f4", "batches": "<i8"}, kinds
    return {name: array + (array.dtype.kind == "f") for name, array in model.items()}
"""


def test_the_built_in_app_trains_on_arrays_in_the_precision_that_was_sent_and_on_counts(tmp_path, monkeypatch, caplog):
    (tmp_path / "as_sent_training.py").write_text(AS_SENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    world = FlowerWorld(tmp_path, {"north": dict.fromkeys(("caen", "lille"), 100)}, module="as_sent_training")
    world.app = client_app
    sent = {name: array.astype(np.float32) for name, array in START.items()} | {"batches": np.arange(2)}
    strategy = FulcrumStrategy(world.folder / "server")
    strategy.start(grid=world.grid(), initial_arrays=record(sent), timeout=30.0, num_rounds=1)
    assert world.check_replies() == {("caen", 1), ("lille", 1)}
    assert not [entry for entry in caplog.records if entry.name == "fulcrum.alarm"]
