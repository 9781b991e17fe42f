"""What a server on Flower tells the apps beside the model: the same to all silos of a sum, or there is no sum."""

import numpy as np
import pytest
from error_codes import coded

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import START, FlowerWorld, half_a_step, record
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fulcrum.core.masking.masking_messages import Inbox, request_from_bytes
from fulcrum.engines.flower.flower_records import records_digest, requests_in, settings_digest
from fulcrum.engines.flower.strategy import FulcrumStrategy
from fulcrum.errors import EngineError

NORTH = {"north": dict.fromkeys(("caen", "lille", "metz", "nancy"), 100)}
GIVEN = {name: array.astype(np.float32) for name, array in START.items()} | {"batches": np.array([7])}


@pytest.fixture
def world(tmp_path):
    made = FlowerWorld(tmp_path, NORTH)
    yield made
    made.check_replies()


def start(world, grid=None, **options):
    settings = {"num_rounds": 1, "timeout": 0.2, "train_config": ConfigRecord({"lr": 0.5, "loss": "mse"})} | options
    strategy = FulcrumStrategy(world.folder / "server")
    return strategy.start(grid=grid or world.grid(), initial_arrays=record(GIVEN), **settings)


def asks_to_train(message):
    return isinstance(request_from_bytes(requests_in(message.content)[0]), Inbox)


def another_rate(content):
    content["config"] = ConfigRecord({**content["config"], "lr": 1e9})


def a_rate_of_another_type(content):
    content["config"] = ConfigRecord({**content["config"], "lr": 1})


def another_loss(content):
    content["config"] = ConfigRecord({**content["config"], "loss": "memorise"})


def one_setting_more(content):
    content["config"] = ConfigRecord({**content["config"], "records": "17"})


def settings_in_another_order(content):
    content["config"] = ConfigRecord(dict(reversed(content["config"].items())))


def no_settings(content):
    del content["config"]


def metrics(content):
    content["metrics"] = MetricRecord({"lr": 1e9})


def a_second_model(content):
    content["teacher"] = record(START)


def another_count_of_batches(content):
    content["arrays"] = record(GIVEN | {"batches": np.array([8])})


def the_model_in_another_precision(content):
    content["arrays"] = record({name: array.astype(np.float64) for name, array in GIVEN.items()})


TOLD = [
    another_rate,
    a_rate_of_another_type,
    another_loss,
    one_setting_more,
    settings_in_another_order,
    no_settings,
    metrics,
    a_second_model,
    another_count_of_batches,
    the_model_in_another_precision,
]


@pytest.mark.parametrize("change", TOLD)
def test_one_silo_that_is_told_otherwise_trains_nothing_and_there_is_no_sum(world, change):
    def tamper(message):
        if message.metadata.dst_node_id == 1 and asks_to_train(message):
            change(message.content)
        return message

    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world, world.grid(tamper=tamper))
    assert "caen" not in world.trained
    assert world.ledger("caen") == []


@pytest.mark.parametrize("change", TOLD)
def test_a_round_asked_for_again_with_other_records_is_refused(world, change):
    """The silo released, and the server died before the sum was unmasked: another attempt goes by what the first did."""
    grid = world.grid(drop=dying_at_stage(4))
    with pytest.raises(KeyboardInterrupt):
        start(world, grid)
    released = {silo: world.ledger(silo) for silo in world.silos}
    assert released == {silo: [1] for silo in world.silos}
    asked = next(message for message in grid.sent if asks_to_train(message) and message.metadata.dst_node_id == 1)
    content = RecordDict(dict(asked.content.items()))
    change(content)
    reply = world.answer(Message(content, dst_node_id=1, message_type="train", ttl=60.0))
    assert reply.has_error()
    assert len(world.trained) == len(world.silos)


def dying_at_stage(stage):
    def dies(node, now):
        if now == stage:
            raise KeyboardInterrupt
        return False

    return dies


def test_a_server_that_goes_on_with_other_settings_gets_no_sum_and_with_the_same_gets_one(world):
    with pytest.raises(KeyboardInterrupt):
        start(world, world.grid(drop=dying_at_stage(4)))
    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world, train_config=ConfigRecord({"lr": 0.25, "loss": "mse"}))
    assert len(world.trained) == len(world.silos)
    start(world)
    assert len(world.trained) == len(world.silos)
    assert world.ledger("caen") == [1]


def telling(world, settings_of):
    """The settings of the run, which the runtime hands to every node."""
    plain = world.context

    def context(node):
        made = plain(node)
        made.run_config = settings_of(node)
        return made

    world.context = context


def test_settings_of_the_run_reach_the_app_where_all_silos_have_the_same(tmp_path):
    seen = []

    def train(message, context):
        seen.append(context.run_config["lr"])
        return half_a_step(message, context)

    world = FlowerWorld(tmp_path, NORTH, train=train)
    telling(world, lambda node: {"lr": 0.1, "epochs": 2} if node % 2 else {"epochs": 2, "lr": 0.1})
    start(world)
    assert seen == [0.1] * 4
    world.check_replies()


def test_settings_of_the_run_that_differ_by_silo_are_refused_before_anything_is_trained(world):
    telling(world, lambda node: {"lr": 1e9 if node == 1 else 0.1})
    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world)
    assert world.trained == []
    assert world.ledger("caen") == []


def test_a_round_asked_for_again_under_other_settings_of_the_run_is_refused(world):
    rate = {"lr": 0.1}
    telling(world, lambda node: dict(rate))
    with pytest.raises(KeyboardInterrupt):
        start(world, world.grid(drop=dying_at_stage(4)))
    rate["lr"] = 0.2
    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world)
    assert len(world.trained) == len(world.silos)
    rate["lr"] = 0.1
    start(world)
    assert len(world.trained) == len(world.silos)
    assert world.ledger("caen") == [1]


def test_settings_of_the_run_that_change_within_a_round_are_refused(world):
    """The silos agreed on one rate when the round began; the message that asks for the update comes with another."""
    grid = world.grid()
    telling(world, lambda node: {"lr": 1e9 if node == 1 and grid.stage % 3 == 0 else 0.1})
    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world, grid)
    assert sorted(world.trained) == ["lille", "metz", "nancy"]
    assert world.ledger("caen") == []


def interrupted(world):
    """The training of one silo is interrupted, as its operator does; returns the silo, and what it was asked."""
    ended = []

    def ends_once(message, context):
        if not ended:
            ended.append(True)
            raise KeyboardInterrupt
        return half_a_step(message, context)

    world.train = ends_once
    grid = world.grid()
    with pytest.raises(KeyboardInterrupt):
        start(world, grid)
    asked = grid.sent[-1]
    assert asks_to_train(asked)
    return world.silos[asked.metadata.dst_node_id - 1], asked


def asked_again(world, asked):
    content = RecordDict(dict(asked.content.items()))
    return world.answer(Message(content, dst_node_id=asked.metadata.dst_node_id, message_type="train", ttl=60.0))


def test_an_interrupt_of_training_leaves_no_answer_and_no_charge_and_the_round_may_be_asked_for_again(world):
    silo, asked = interrupted(world)
    assert world.ledger(silo) == []
    assert not any(left == silo for left, _ in world.check_replies())
    world.restart()
    assert not asked_again(world, asked).has_error()
    assert world.ledger(silo) == [1]
    assert (silo, 1) in world.check_replies()


def test_settings_of_the_run_that_change_between_two_requests_for_one_update_are_refused(world):
    """The first request was taken in and its training ended the process, so that nothing is in the ledger yet."""
    rate = {"lr": 0.1}
    telling(world, lambda node: dict(rate))
    silo, asked = interrupted(world)
    rate["lr"] = 1e9
    assert asked_again(world, asked).has_error()
    assert world.ledger(silo) == []
    rate["lr"] = 0.1
    assert not asked_again(world, asked).has_error()
    assert world.ledger(silo) == [1]


def test_the_group_that_the_app_is_told_is_the_round_that_was_checked(tmp_path):
    told = []

    def train(message, context):
        told.append(message.metadata.group_id)
        return half_a_step(message, context)

    def tamper(message):
        message.metadata.group_id = f"for node {message.metadata.dst_node_id}"
        return message

    world = FlowerWorld(tmp_path, NORTH, train=train)
    start(world, world.grid(tamper=tamper))
    assert told == ["1"] * 4


def test_digests_tell_values_types_names_and_order_apart():
    records = [
        {"config": ConfigRecord({"lr": 1})},
        {"config": ConfigRecord({"lr": 1.0})},
        {"config": ConfigRecord({"lr": True})},
        {"config": ConfigRecord({"lr": "1"})},
        {"config": ConfigRecord({"lr": b"1"})},
        {"config": ConfigRecord({"lr": [1]})},
        {"metrics": MetricRecord({"lr": 1})},
        {"config": MetricRecord({"lr": 1})},
        {"arrays": record({"a": np.zeros(2), "b": np.zeros(2)})},
        {"arrays": record({"b": np.zeros(2), "a": np.zeros(2)})},
        {"arrays": record({"a": np.zeros((2, 1)), "b": np.zeros(2)})},
        {},
    ]
    assert len({records_digest(given) for given in records}) == len(records)
    assert records_digest({"c": ConfigRecord({"lr": np.float64(0.5)})}) == records_digest(
        {"c": ConfigRecord({"lr": 0.5})}
    )
    assert settings_digest({}) == ""
    assert settings_digest({"lr": 1}) != settings_digest({"lr": 1.0}) != settings_digest({"lr": "1"})
