"""Rosters that change on Flower: the masked group of a round is its roster, which every silo reads from its own plan."""

import logging
import time

import msgspec
import numpy as np
import pytest

import fulcrum

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import START, FlowerWorld, LocalGrid, arrays_of, record
from flwr.app import Message

from fulcrum.aggregation.masked_group import session_of
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import Begin, Roster, member_reply_from_bytes, request_from_bytes
from fulcrum.core.messages.model_message import input_digest_of
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.flower.client_app import client_app
from fulcrum.engines.flower.flower_engine import FlowerEngine
from fulcrum.engines.flower.flower_records import requests_in
from fulcrum.engines.flower.kits.flower_kits import write_kits
from fulcrum.engines.flower.kits.flower_loopback import FlowerSites
from fulcrum.engines.flower.server_app import run_plan
from fulcrum.engines.flower.server_side.run_recorder import local_run
from fulcrum.engines.flower.strategy import FulcrumStrategy, answer_in, request_content
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.server.checkpoint import history_of

SIZES = {"north": dict.fromkeys(("caen", "lille", "metz"), 100), "south": {"lyon": 80, "nice": 120}}
SCHEDULE = {"caen": "1-", "lille": "1-6", "metz": "4-", "lyon": "1-", "nice": "1-"}
OWN = {silo: {"1-": range(1, 9), "1-6": range(1, 7), "4-": range(4, 9)}[text] for silo, text in SCHEDULE.items()}
ROUNDS = range(1, 9)


def roster(number, region="north"):
    return sorted(silo for silo in SIZES[region] if number in OWN[silo])


@pytest.fixture
def world(tmp_path):
    made = FlowerWorld(tmp_path, SIZES, schedule=SCHEDULE, rounds=8)
    yield made
    made.check_replies()


def start(world, grid=None, *, timeout=1.0, **options):
    strategy = FulcrumStrategy(world.folder / "server", on_round=(rounds := []).append)
    result = strategy.start(grid=grid or world.grid(), initial_arrays=record(START), timeout=timeout, **options)
    return result, [summary["members"] for summary in rounds]


class LateGrid(LocalGrid):
    """A grid on which the node of a silo comes up some looks after the beginning of its first round."""

    def __init__(self, world, silo, *, looks):
        super().__init__(world)
        self._node, self._looks = world.silos.index(silo) + 1, looks

    def get_node_ids(self):
        there = set(super().get_node_ids())
        asked = [request_from_bytes(requests_in(message.content)[0]).session.round_number for message in self.sent]
        if max(asked, default=1) >= 4:
            self._looks -= 1
        return sorted(there if self._looks < 0 else there - {self._node})


def test_each_round_sums_its_roster_and_each_ledger_holds_its_own_rounds(world):
    result, members = start(world)
    assert members == [{"north": roster(number), "south": ["lyon", "nice"]} for number in ROUNDS]
    assert {silo: world.ledger(silo) for silo in world.silos} == {silo: list(own) for silo, own in OWN.items()}
    assert world.check_replies() == {(silo, number) for silo, own in OWN.items() for number in own}
    sound = verified_plan(world.plan)
    for silo, own in OWN.items():
        with read_ledger(world.folder / silo / "state" / f"{silo}.ledger") as ledger:
            charged = {entry.round_number: entry.cost.shifts for entry in ledger.entries()}
        assert charged == {number: sound.release_cost(silo, number) for number in own}
    moved = arrays_of(result)["weight"] - START["weight"]
    weights = dict(zip(world.silos, world.plan.weights.tolist(), strict=True))
    clipped = sum(weights[silo] * len(own) for silo, own in OWN.items()) * world.plan.clip_norm / np.sqrt(40)
    noise = 8 * world.plan.clip_norm**2 * world.plan.noise_variance.sum()
    assert abs(moved.mean() - clipped) < 5 * np.sqrt(noise / moved.size)


def test_a_silo_outside_of_its_rounds_declines_and_nobody_waits_for_it(world):
    began = time.monotonic()
    start(world, num_rounds=1, timeout=60.0)
    assert time.monotonic() - began < 20
    declined = [reply for reply in world.replies if reply.has_error()]
    assert len(declined) == 1  # asked once, when the server did not know which node is which silo
    assert world.ledger("metz") == []


def test_a_node_that_joins_later_is_awaited_in_its_first_round_alone(world, caplog):
    grid = LateGrid(world, "metz", looks=6)
    with caplog.at_level(logging.WARNING):
        _, members = start(world, grid, timeout=30.0, num_rounds=5)
    assert [summed["north"] for summed in members] == [roster(number) for number in range(1, 6)]
    assert not [entry for entry in caplog.records if "attempt" in entry.getMessage()]
    assert world.ledger("metz") == [4, 5]


def test_a_round_whose_joining_node_does_not_come_has_no_sum_of_its_region(world):
    grid = LateGrid(world, "metz", looks=10**9)
    began = time.monotonic()
    _, members = start(world, grid, timeout=2.0, num_rounds=4)
    assert [sorted(summed) for summed in members] == [["north", "south"]] * 3 + [["south"]]
    assert world.ledger("metz") == []
    assert time.monotonic() - began < 30


class LosingGrid(LocalGrid):
    """A grid on which the node of a silo goes down for good once a round has begun."""

    def __init__(self, world, silo, *, after):
        super().__init__(world)
        self._node, self._after = world.silos.index(silo) + 1, after

    def get_node_ids(self):
        asked = [request_from_bytes(requests_in(message.content)[0]).session.round_number for message in self.sent]
        return sorted(set(super().get_node_ids()) - ({self._node} if max(asked, default=1) >= self._after else set()))


def test_a_node_that_the_server_knows_and_that_is_gone_is_not_awaited(world):
    """In every round the server waited for as long as its patience, though the silo had come, and was not one to join."""
    began = time.monotonic()
    _, members = start(world, LosingGrid(world, "caen", after=2), timeout=60.0, num_rounds=3)
    assert members == [{"north": roster(1), "south": ["lyon", "nice"]}, *[{"south": ["lyon", "nice"]}] * 2]
    assert time.monotonic() - began < 50


def message_to(node, requests):
    return Message(request_content(requests), dst_node_id=node, message_type="train", ttl=60.0)


def begin(world, number, *, of_round=None, **changes):
    """Returns the first request of a round, with the numbers of another round's group where `of_round` names one."""
    group = group_of(world.plan, "north", of_round or number)
    session = msgspec.structs.replace(
        session_of(group, of_round or number, input_digest_of(START, "")), round_number=number
    )
    numbers = {"threshold": group.threshold, "neighbours": group.neighbours, "bits": group.bits} | changes
    return Begin(session=session, **numbers)


def answer_of(world, silo, request):
    return world.answer(message_to(world.silos.index(silo) + 1, [request.to_bytes()]))


@pytest.mark.parametrize(("number", "away"), [(1, "metz"), (7, "lille")])
def test_a_silo_answers_no_request_of_a_round_without_it(world, number, away):
    for of_round in (number, 5):  # with the numbers of the round's group, or of a group that has the silo
        assert answer_of(world, away, begin(world, number, of_round=of_round)).has_error()
    assert world.ledger(away) == []


def test_a_silo_refuses_the_numbers_of_another_rosters_group(world):
    assert group_of(world.plan, "north", 1).threshold != group_of(world.plan, "north", 5).threshold
    assert answer_of(world, "caen", begin(world, 1, of_round=5)).has_error()
    assert answer_of(world, "caen", begin(world, 5, of_round=1)).has_error()
    assert not answer_of(world, "caen", begin(world, 1)).has_error()


def test_a_silo_refuses_a_roster_with_a_silo_of_another_round(world):
    """The keys of a silo that is away are signed for another round, or made by the server with the plan's own key."""
    asked = begin(world, 1)
    keys = {silo: answer_in(answer_of(world, silo, asked).content) for silo in roster(1)}
    other = begin(world, 4)
    late = answer_in(answer_of(world, "metz", other).content)
    assert member_reply_from_bytes(late).silo == "metz"
    padded = Roster(session=asked.session, keys=(*keys.values(), late))
    assert answer_of(world, "caen", padded).has_error()
    assert answer_of(world, "caen", Roster(session=asked.session, keys=(keys["caen"],))).has_error()
    assert not answer_of(world, "caen", Roster(session=asked.session, keys=tuple(keys.values()))).has_error()


def test_a_silo_that_is_not_needed_takes_no_part_even_if_the_server_asks_all(world):
    """A server that sends every node every request, in every stage, gets nothing from the silo that is away."""

    class Shouting(LocalGrid):
        def push_messages(self, messages):
            messages = list(messages)
            requests = sorted({bytes(text) for message in messages for text in requests_in(message.content)})
            more = [message_to(world.silos.index("metz") + 1, requests)]
            return super().push_messages([*messages, *more])

    _, members = start(world, Shouting(world), num_rounds=3)
    assert [summed["north"] for summed in members] == [roster(number) for number in (1, 2, 3)]
    assert world.ledger("metz") == []
    assert not [sent for sent in world.check_replies() if sent[0] == "metz"]


def test_a_server_killed_in_a_round_of_joining_goes_on_with_the_same_roster(world):
    start(world, num_rounds=3)

    def killed(node, now):
        if now == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        start(world, world.grid(drop=killed))
    world.restart()
    start(world)
    history = history_of(world.folder / "server" / "state", world.plan, logical=True)
    assert [summary["members"].get("north") for summary in history] == [roster(number) for number in ROUNDS]
    assert {silo: world.ledger(silo) for silo in world.silos} == {silo: list(own) for silo, own in OWN.items()}


def test_a_research_plan_has_sites_of_all_silos_and_sums_its_rosters(tmp_path):
    world = FlowerWorld(tmp_path, SIZES, schedule=SCHEDULE, rounds=8, purpose="research")
    assert {path.name for path in world.folder.iterdir()} >= set(OWN)
    _, members = start(world)
    assert [summed["north"] for summed in members] == [roster(number) for number in ROUNDS]


def test_a_research_run_learns_the_model_of_the_embedded_engine(tmp_path, monkeypatch):
    options = {"schedule": SCHEDULE, "rounds": 8, "parameters": 34, "purpose": "research", "epsilon": 5.0}
    world = FlowerWorld(tmp_path, SIZES, module=BUILT_IN, **options)
    world.app = client_app
    monkeypatch.setenv("FULCRUM_SITE", str(world.folder / "server"))
    run_plan(world.grid(), lambda _: None)
    done = local_run(read_site(world.folder / "server", "server"), 1.0)
    embedded = fulcrum.train(world.plan, "digits", seeds=[0])
    assert [found.silos for found in done.run.rounds] == [len(roster(n)) + 2 for n in ROUNDS]
    assert np.abs(embedded.models[0]).max() > 1e-3
    assert np.abs(done.model["head"] - embedded.models[0]).max() < 1e-5


def deployment_of(purpose, **options):
    federation = fulcrum.with_schedule(fulcrum.Federation.from_sizes(SIZES), SCHEDULE)
    settings = {"rounds": 8, "epsilon": 5.0, "parameters": 34, "aggregation": "masked", "purpose": purpose}
    plan = fulcrum.plan(federation, **settings)
    here = {"host": "127.0.0.1", "port": free_port(), "runs_here": True}
    return Deployment(plan=plan, train=BUILT_IN, options={"data": "digits"}, **here, **options)


@pytest.mark.engines
def test_real_processes_of_a_research_run_end_with_the_embedded_model(tmp_path):
    deployment = deployment_of("research", patience=150.0)
    engine = FlowerEngine()
    engine.write_kits(deployment, tmp_path / "kits")
    done = engine.run_here(deployment, tmp_path / "kits", on_round=lambda _: None)
    members = [summary["members"] for summary in done.history]
    assert members == [{"north": roster(number), "south": ["lyon", "nice"]} for number in ROUNDS]
    embedded = fulcrum.train(fulcrum.read_plan(tmp_path / "kits/plan.json"), "digits", seeds=[0])
    assert np.abs(embedded.models[0]).max() > 1e-3
    assert np.abs(done.model["head"] - embedded.models[0]).max() < 1e-5


@pytest.mark.engines
def test_real_processes_start_a_joining_site_late_and_lose_one_that_has_left(tmp_path):
    """The site of a silo that joins in round 4 is started after round 2; a silo is killed once it has left."""
    deployment, kits = deployment_of("deployment", patience=150.0), tmp_path / "kits"
    write_kits(deployment, kits)
    plan, late = fulcrum.read_plan(kits / "plan.json"), "metz"
    sites = FlowerSites(kits, deployment)

    def finished():
        return history_of(kits / "server" / "state", plan, logical=True)

    def wait_for(rounds):
        deadline = time.monotonic() + 2400
        while len(finished()) < rounds:
            assert time.monotonic() < deadline, finished()
            sites.check()
            time.sleep(0.3)

    try:
        sites.start("server")
        sites.wait_for_server()
        sites.run_script("register.sh")
        for silo in OWN:
            if silo != late:
                sites.start(silo)
        sites.run_script("run.sh")
        wait_for(2)
        sites.start(late)
        wait_for(6)
        sites.kill("lille")
        wait_for(8)
    finally:
        sites.close()
    members = [summary["members"] for summary in finished()]
    assert members == [{"north": roster(number), "south": ["lyon", "nice"]} for number in ROUNDS]
    sound, total = verified_plan(plan), np.zeros(34)
    for silo, own in OWN.items():
        with read_ledger(kits / silo / "state" / f"{silo}.ledger") as ledger:
            assert {entry.round_number: entry.cost.shifts for entry in ledger.entries()} == {
                number: sound.release_cost(silo, number) for number in own
            }
            for entry in ledger.entries():
                sent = Release.from_bytes(ledger.payload_of(entry))
                total += sent.values * sent.step
    model = local_run(read_site(kits / "server", "server"), 1.0).model
    assert np.abs(np.concatenate([array.ravel() for array in model.values()]) - total).max() < 1e-9
