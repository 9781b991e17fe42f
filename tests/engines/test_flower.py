"""Plans on Flower's messages: existing apps with a mod and a strategy, and a server that does not follow the protocol."""

import logging
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, EngineError, ExchangeError, ParameterError, PlanError, StorageError

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import START, FlowerWorld, arrays_of, half_a_step, record
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fulcrum.core.masking.masking_messages import Attested, Begin, Inbox, request_from_bytes
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.site import read_site
from fulcrum.core.silo.site_records import MARK
from fulcrum.engines.flower.client_mod import FulcrumMod
from fulcrum.engines.flower.flower_records import requests_in
from fulcrum.engines.flower.kits import flower_loopback as loopback
from fulcrum.engines.flower.kits.flower_kits import write_kits
from fulcrum.engines.flower.kits.flower_sites import write_sites
from fulcrum.engines.flower.strategy import FulcrumStrategy, request_content
from fulcrum.engines.kit_templates import kit_text
from fulcrum.engines.site_folders import Deployment
from fulcrum.planning.files.plan_from_file import plan_of


@pytest.fixture
def world(tmp_path):
    made = FlowerWorld(tmp_path)
    yield made
    made.check_replies()


COUNTRY = {"country": {"france": ["north", "south"]}}


def start(world, grid=None, **options):
    strategy = FulcrumStrategy(world.folder / "server")
    return strategy.start(grid=grid or world.grid(), initial_arrays=record(START), timeout=1.0, **options)


def test_an_app_with_the_mod_and_the_strategy_learns_what_its_releases_add_up_to(world):
    result = start(world)
    assert world.check_replies() == {(silo, number) for silo in world.silos for number in (1, 2, 3)}
    assert {silo: world.ledger(silo) for silo in world.silos} == {silo: [1, 2, 3] for silo in world.silos}
    moved = arrays_of(result)["weight"] - START["weight"]
    clipped = 3 * world.plan.clip_norm / np.sqrt(40)  # every silo would go 0.5 a coordinate in each of three rounds
    noise = 3 * world.plan.clip_norm**2 * world.plan.noise_variance.sum()
    assert abs(moved.mean() - clipped) < 5 * np.sqrt(noise / moved.size)
    assert result.train_metrics_clientapp == {}


def test_metrics_and_counts_are_withheld_and_the_silos_log_says_so(world, caplog):
    with caplog.at_level(logging.WARNING):
        start(world, num_rounds=1)
    told = [entry.getMessage() for entry in caplog.records if "withheld" in entry.getMessage()]
    assert len(told) == len(world.silos)
    assert all("num-examples" in line and "train_loss" in line for line in told)
    assert all("4242" not in line for line in told)
    wire = b"".join(
        array.data for reply in world.replies for rec in reply.content.array_records.values() for array in rec.values()
    )
    assert b"num-examples" not in wire


def test_a_silo_that_dies_in_a_round_leaves_it_to_the_others_and_comes_back(tmp_path):
    world = FlowerWorld(tmp_path, {"north": dict.fromkeys(("caen", "lille", "metz", "nancy"), 100)}, dropouts=1)
    strategy = FulcrumStrategy(world.folder / "server", on_round=(rounds := []).append)
    strategy.start(
        grid=world.grid(drop=lambda node, stage: node == 3 and 7 < stage <= 10),
        initial_arrays=record(START),
        timeout=0.2,
    )
    assert [len(summary["members"]["north"]) for summary in rounds] == [4, 3, 4]
    assert world.ledger("metz") == [1, 3]
    world.check_replies()


def test_a_group_that_lacks_more_than_the_plan_allows_is_withheld_and_the_other_summed(world):
    strategy = FulcrumStrategy(world.folder / "server", on_round=(rounds := []).append)
    grid = world.grid(drop=lambda node, stage: node == 6)
    strategy.start(grid=grid, initial_arrays=record(START), num_rounds=1, timeout=0.2)
    assert rounds[0]["summed"] == ["north"]
    assert "south" in rounds[0]["withheld"]


def test_where_no_group_sums_the_round_is_tried_again_and_then_the_server_stops_with_a_line(world):
    with pytest.raises(EngineError, check=coded("server.groups-without-sum", round=1)):
        start(world, world.grid(drop=lambda node, stage: node in (1, 6)))
    assert world.ledger("lille") == []
    start(world, num_rounds=1)
    assert world.ledger("lille") == [1]


@pytest.mark.parametrize("stage", [2, 3, 4, 5])
def test_a_server_killed_at_any_stage_goes_on_and_spends_nothing_twice(world, stage):
    """Before anything is unmasked the round is run again; after that it is given up, and the next one begun."""

    def killed(node, now):
        if now == 5 + stage and node == 4:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        start(world, world.grid(drop=killed))
    world.restart()
    strategy = FulcrumStrategy(world.folder / "server", on_round=(rounds := []).append)
    strategy.start(grid=world.grid(), initial_arrays=record(START), timeout=1.0)
    assert [summary["round"] for summary in rounds] == [2, 3]
    assert rounds[0]["summed"] == ([] if stage == 5 else ["north", "south"])
    assert rounds[1]["summed"] == ["north", "south"]
    assert world.ledger("nancy") == [1, 2, 3]


def test_a_silo_killed_after_each_answer_goes_on_from_its_disk(world):
    def restarting(message):
        world.restart()
        return message

    start(world, world.grid(tamper=restarting), num_rounds=2)
    assert world.ledger("lyon") == [1, 2]


def test_nodes_are_known_by_what_their_silos_sign(world):
    grid = world.grid()
    start(world, grid, num_rounds=2)
    begun = [message for message in grid.sent if isinstance(first_request(message), Begin)]
    assert [len(requests_in(message.content)) for message in begun] == [2] * 6 + [1] * 6
    assert all("silo" not in str(message.content["fulcrum"].keys()) for message in begun)


def first_request(message):
    return request_from_bytes(requests_in(message.content)[0])


def test_the_model_travels_once_a_round_and_in_the_precision_it_was_given_in(tmp_path):
    seen = []

    def train(message, context):
        seen.append({name: array.numpy().dtype for name, array in message.content["arrays"].items()})
        assert message.content["arrays"]["batches"].numpy() == 7
        assert message.content["config"]["lr"] == 0.5
        assert "fulcrum" not in message.content
        return half_a_step(message, context)

    world = FlowerWorld(tmp_path, train=train)
    given = {name: array.astype(np.float32) for name, array in START.items()} | {"batches": np.array(7)}
    grid = world.grid()
    result = FulcrumStrategy(world.folder / "server").start(
        grid=grid, initial_arrays=record(given), num_rounds=2, timeout=1.0, train_config=ConfigRecord({"lr": 0.5})
    )
    assert [dict.fromkeys(START, np.dtype("float32")) | {"batches": np.dtype("int64")}] * 12 == seen
    assert arrays_of(result)["batches"] == 7
    assert arrays_of(result)["weight"].dtype == np.float32
    with_model = [message for message in grid.sent if "arrays" in message.content]
    assert all(isinstance(first_request(message), Inbox) for message in with_model)
    assert len(with_model) == 12
    world.check_replies()


def test_the_server_measures_on_its_own_records_as_flower_does(world):
    seen = []

    def evaluate(number, arrays):
        seen.append(number)
        return MetricRecord({"norm": float(np.linalg.norm(arrays["weight"].numpy()))})

    result = start(world, num_rounds=2, evaluate_fn=evaluate)
    assert seen == [0, 1, 2]
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]


def failing(message, context):
    raise RuntimeError("the records of caen are strange")


def without_content(message, context):
    return None


def of_another_shape(message, context):
    return Message(RecordDict({"arrays": record({"weight": np.ones(3), "bias": np.ones(2)})}), reply_to=message)


def not_finite(message, context):
    arrays = {name: array.numpy() * np.nan for name, array in message.content["arrays"].items()}
    return Message(RecordDict({"arrays": record(arrays)}), reply_to=message)


def exits(message, context):
    raise SystemExit(3)


@pytest.mark.parametrize("train", [failing, without_content, of_another_shape, not_finite, exits])
def test_training_that_fails_is_hidden_from_the_server(tmp_path, train):
    world = FlowerWorld(tmp_path, train=train)
    start(world, num_rounds=1)
    assert world.check_replies() == {(silo, 1) for silo in world.silos}
    assert not any(reply.has_error() for reply in world.replies)


def test_a_federation_masked_as_one_group_learns_from_one_sum(tmp_path):
    world = FlowerWorld(tmp_path, epsilon={"federation": 1.0})
    strategy = FulcrumStrategy(world.folder / "server", on_round=(rounds := []).append)
    strategy.start(grid=world.grid(), initial_arrays=record(START), timeout=1.0)
    assert [summary["summed"] for summary in rounds] == [["federation"]] * 3
    assert rounds[0]["members"]["federation"] == sorted(world.silos)


def test_a_server_that_pools_works_on_masked_regional_sums(tmp_path):
    world = FlowerWorld(tmp_path, recipe="joint")
    assert world.plan.server != "sum"
    start(world)
    assert world.ledger("caen") == [1, 2, 3]


@pytest.mark.parametrize(
    ("epsilon", "groups"),
    [({"region": 2.0}, ["north", "south"]), ({"federation": 1.0}, ["federation"])],
    ids=["regions", "one group"],
)
def test_tiers_above_the_regions_are_logical_where_no_target_hides_regions_from_the_server(tmp_path, epsilon, groups):
    """No site of a country: the server adds up the sums of regions, and goes on after a restart."""
    world = FlowerWorld(tmp_path, outer=COUNTRY, epsilon=epsilon)
    rounds = []
    strategy = FulcrumStrategy(world.folder / "server", on_round=rounds.append)
    strategy.start(grid=world.grid(), initial_arrays=record(START), timeout=1.0)
    assert [summary["summed"] for summary in rounds] == [groups] * 3
    assert {silo: world.ledger(silo) for silo in world.silos} == {silo: [1, 2, 3] for silo in world.silos}


def test_a_plan_whose_target_hides_regions_from_the_server_gets_no_sites(tmp_path):
    with pytest.raises(PlanError, check=coded("engine.plan-refused")) as caught:
        FlowerWorld(tmp_path, outer=COUNTRY, epsilon={"region": 2.0, "country": 1.0})
    assert "the sums of country alone" in str(caught.value)
    assert not list(tmp_path.rglob("*.ledger"))


# A server that does not follow the protocol.


def message_to(node, content, kind="train"):
    return Message(content, dst_node_id=node, message_type=kind, ttl=60.0)


def refused(world, message):
    reply = world.answer(message)
    assert reply.has_error()
    return reply


def requests_of(world, until):
    """An honest round up to a stage: what each node is sent then."""
    held = {}

    class Stopped(Exception):
        pass

    grid = world.grid()
    carried = grid.send_and_receive

    def send(messages, *, timeout=None):
        messages = list(messages)
        if isinstance(first_request(messages[0]), until):
            held.update({message.metadata.dst_node_id: message for message in messages})
            raise Stopped
        return carried(messages, timeout=timeout)

    grid.send_and_receive = send
    with pytest.raises(Stopped):
        start(world, grid)
    return held


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_messages_that_fish_for_metrics_are_refused(world, kind):
    refused(world, message_to(1, RecordDict({"arrays": record(START)}), kind))
    refused(world, message_to(1, request_content([b"x"]), kind))


@pytest.mark.parametrize("kind", ["train.fast", "evaluate.more", "reconnect", "get_parameters"])
def test_messages_of_a_type_that_the_app_does_not_have_reach_nothing(world, kind):
    with pytest.raises(ValueError, match=r"registered|Invalid"):
        world.app(message_to(1, request_content([]), kind), world.context(1))
    assert world.trained == []


def test_a_plain_round_of_flower_is_refused_and_nothing_is_trained(world):
    content = RecordDict({"arrays": record(START), "config": ConfigRecord({"server-round": 1})})
    refused(world, message_to(1, content))
    assert world.trained == []
    assert world.ledger("caen") == []


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"fulcrum": ConfigRecord({})},
        {"fulcrum": ConfigRecord({"requests": b"one"})},
        {"fulcrum": ConfigRecord({"requests": [b"\x00", b"\xff"]})},
        {"fulcrum": MetricRecord({"requests": 1})},
    ],
)
def test_what_is_no_request_is_refused(world, content):
    refused(world, message_to(1, RecordDict(content)))


def test_a_stage_that_comes_again_gets_the_same_answer_and_trains_once(world):
    message = requests_of(world, Inbox)[1]
    first, second = (world.answer(message_to(1, RecordDict(dict(message.content.items())))) for _ in range(2))
    assert first.content["fulcrum"] == second.content["fulcrum"]
    assert world.trained == ["caen"]
    assert world.ledger("caen") == [1]


def test_another_model_than_the_one_begun_with_is_refused_and_nothing_is_charged(world):
    message = requests_of(world, Inbox)[1]
    content = RecordDict(dict(message.content.items()))
    content["arrays"] = record({name: array + 1 for name, array in START.items()})
    refused(world, message_to(1, content))
    del content["arrays"]
    refused(world, message_to(1, content))
    assert world.trained == []
    assert world.ledger("caen") == []


def test_a_request_for_another_silo_or_round_is_refused(world):
    held = requests_of(world, Inbox)
    refused(world, message_to(1, held[2].content))  # another silo of the same group
    refused(world, message_to(1, held[5].content))  # another group
    begin = Begin(session=first_request(held[1]).session, threshold=4, neighbours=3, bits=32)
    later = begin.session.__class__(
        **{name: getattr(begin.session, name) for name in begin.session.__struct_fields__} | {"round_number": 4}
    )
    refused(
        world, message_to(1, request_content([Begin(session=later, threshold=4, neighbours=3, bits=32).to_bytes()]))
    )
    assert world.trained == []


def test_a_round_that_was_unmasked_is_never_asked_for_again(world):
    grid = world.grid()
    start(world, grid, num_rounds=1)
    trained = list(world.trained)
    for message in grid.sent[: 3 * len(world.silos)]:  # keys, shares and inputs
        refused(world, message_to(message.metadata.dst_node_id, message.content))
    assert world.trained == trained
    assert world.ledger("caen") == [1]


def test_a_silo_in_research_answers_each_stage_once_as_one_in_deployment_does(tmp_path):
    world = FlowerWorld(tmp_path, purpose="research")
    grid = world.grid(tamper=lambda message: (world.restart(), message)[1])
    start(world, grid, num_rounds=2)
    assert len(world.trained) == 12
    for message in grid.sent:
        asked = message_to(message.metadata.dst_node_id, message.content)
        if not isinstance(first_request(message), Attested):
            refused(world, asked)
    assert len(world.trained) == 12
    (world.folder / "caen" / "state" / "caen.scratch").write_bytes(b"damaged")
    refused(world, message_to(1, grid.sent[0].content))


def test_the_round_that_the_app_is_told_is_the_one_that_was_checked(tmp_path):
    told = []

    def train(message, context):
        told.append(message.content["config"]["server-round"])
        return half_a_step(message, context)

    def tamper(message):
        if "config" in message.content:
            message.content["config"]["server-round"] = 99
        return message

    world = FlowerWorld(tmp_path, train=train)
    start(world, world.grid(tamper=tamper), num_rounds=1)
    assert told == [1] * 6


def test_a_node_without_a_site_of_its_own_answers_nothing(world, monkeypatch):
    held = requests_of(world, Begin)
    context = world.context(1)
    context.node_config = {"partition-id": 0, "num-partitions": 6}
    context.run_config = {"fulcrum-site": str(world.folder / "caen")}  # what the server says does not count
    assert world.app(message_to(1, held[1].content), context).has_error()
    monkeypatch.setenv("FULCRUM_SITES", str(world.folder))
    assert not world.app(message_to(1, held[1].content), context).has_error()
    context.node_config["partition-id"] = 6
    assert world.app(message_to(1, held[1].content), context).has_error()


def test_an_app_may_declare_messages_public_but_never_its_training(tmp_path):
    world = FlowerWorld(tmp_path, mod=FulcrumMod(public=["query"]))
    reply = world.app(message_to(1, RecordDict(), "query"), world.context(1))
    assert reply.content["metrics"]["records"] == 4242
    refused(world, message_to(1, RecordDict(), "evaluate"))
    with pytest.raises(ParameterError, check=coded("flower.type-not-public")):
        FulcrumMod(public=["train.more"])


def test_an_app_without_the_mod_sends_what_it_likes(tmp_path):
    """A SuperNode runs the app that comes with the run: a site protects nothing of a silo whose app has no mod."""
    world = FlowerWorld(tmp_path)
    app = ClientApp()
    app.train()(half_a_step)
    reply = app(message_to(1, RecordDict({"arrays": record(START)})), world.context(1))
    assert reply.content["metrics"]["num-examples"] == 4242
    assert world.ledger("caen") == []


def test_mods_after_it_see_plain_training_and_nothing_of_the_protocol(tmp_path):
    seen = []

    def watching(message, context, call_next):
        seen.append(sorted(message.content))
        return call_next(message, context)

    world = FlowerWorld(tmp_path)
    app = ClientApp(mods=[*world.app._mods, watching])
    app.train()(half_a_step)
    world.app = app
    start(world, num_rounds=1)
    assert seen == [["arrays", "config"]] * 6


# What the server cannot run.


def test_a_script_that_does_not_end_is_told_in_one_line_and_leaves_no_process(tmp_path, monkeypatch):
    world = FlowerWorld(tmp_path)
    monkeypatch.setattr(loopback, "_LONGEST_START", 0.2)
    monkeypatch.setattr(loopback, "_LONGEST_FOR_A_SILO", 0.0)
    (world.folder / "slow.sh").write_text("sleep 100\n")
    with loopback.FlowerSites(world.folder, Deployment(plan=world.plan, train="unused")) as sites:
        with pytest.raises(EngineError, check=coded("flower.script-timeout", seconds=0.2)):
            sites.run_script("slow.sh")
        sites.close()
        assert sites.processes_of("") == []


def test_one_process_registers_all_nodes_and_a_refused_key_keeps_no_other_out(tmp_path):
    """Each process of Flower's command line takes a second of a processor, and a federation has many silos."""
    command = ["-m", "fulcrum.engines.flower.kits.node_registration", "fulcrum", "first.pub", "second.pub"]
    quiet = {"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=os.environ | quiet, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert [name in done.stderr for name in ("first.pub", "second.pub")] == [True, True]
    script = kit_text("flower/register.sh", silos=["lille", "St. Jean"], control=9093)
    assert script.splitlines()[-1] == f"exec python {' '.join(command[:3])} lille/node.key.pub 'St. Jean/node.key.pub'"


def test_plans_for_trusted_aggregators_are_refused(tmp_path):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0)
    with pytest.raises(PlanError, check=coded("engine.plan-refused")):
        write_sites(Deployment(plan=plan, train="unused"), tmp_path)
    strategy = FulcrumStrategy(plan, state=tmp_path)
    with pytest.raises(ExchangeError, match="made for trusted sums"):
        strategy.start(grid=None, initial_arrays=record(START))


def test_kits_hold_no_records_and_their_operators_make_them_once(world, tmp_path, capsys):
    kits = tmp_path / "kits"
    write_kits(
        Deployment(plan=replace(plan_of(world.plan.content()), keys={}), train="fulcrum.engines.built_in_training"),
        kits,
    )
    assert not [path for path in kits.rglob("*") if path.suffix in (".ledger", ".masking") or path.name == MARK]
    silo = world.silos[0]
    assert "fulcrum site init ." in (kits / silo / "README.md").read_text()
    with pytest.raises(StorageError, match="was not initialised"):
        MaskedSilo(read_site(kits / silo, "silo"))
    assert run(["site", "init", str(kits / silo)]) == 0
    MaskedSilo(read_site(kits / silo, "silo"))
    assert run(["site", "init", str(kits / silo)]) == 2
    assert "is initialised already" in capsys.readouterr().err


def test_a_strategy_without_site_state_or_nodes_says_what_to_do(world, tmp_path, monkeypatch):
    monkeypatch.delenv("FULCRUM_SITE", raising=False)
    with pytest.raises(DataError, check=coded("flower.server-site-unnamed", variable="FULCRUM_SITE")):
        FulcrumStrategy()
    with pytest.raises(DataError, check=coded("flower.checkpoint-folder-missing")):
        FulcrumStrategy(world.plan)
    with pytest.raises(DataError, check=coded("flower.rounds-range", rounds=3)):
        start(world, num_rounds=4)
    grid = world.grid()
    grid.get_node_ids = lambda: []
    with pytest.raises(EngineError, check=coded("flower.nodes-missing")):
        start(world, grid)
    for method in ("configure_train", "aggregate_train"):
        with pytest.raises(EngineError, check=coded("flower.round-without-start")):
            getattr(FulcrumStrategy(world.folder / "server"), method)(1, [])
    assert not FulcrumStrategy(world.folder / "server").configure_evaluate(1, None, None, None)


@pytest.mark.parametrize("port", [0, 65_535, 70_000])
def test_kits_need_a_port_and_the_one_after_it(world, tmp_path, port):
    with pytest.raises(ParameterError, check=coded("kit.port-range")):
        write_kits(Deployment(plan=world.plan, train="unused", port=port), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()
