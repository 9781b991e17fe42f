"""Masked groups at the innermost tier, and their sums under trusted sums further out."""

import msgspec
import numpy as np
import pytest
from error_codes import coded
from masked import MODEL, MaskedWorld

import fulcrum
from fulcrum.aggregation.answer_opening import AnswerOpener
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.aggregation.masked_region import MaskedRegion
from fulcrum.aggregation.stage_messages import StageCall, StageEnd, reply_of_region
from fulcrum.aggregation.staged_node import StagedNode
from fulcrum.aggregation.sum_sealing import SumSealer
from fulcrum.core.masking.answer_sealing import AnswerSealer
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    INPUT,
    KEYS,
    SHARES,
    UNMASKING,
    member_reply_from_bytes,
    request_from_bytes,
    signed_reply,
)
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.model_message import model_layout, pack_model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.keys import load_private_key
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.site import ledger_name
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import ExchangeError, PolicyError
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.masked_server import MaskedServer

SIZES = {region: dict.fromkeys([f"{region}{k}" for k in (1, 2, 3)], 100) for region in "abcd"}
OUTER = {"country": {"east": ["a", "b"], "west": ["c", "d"]}}
SUM = {"region": 4.0, "federation": 2.0}
HIDDEN = {"region": 4.0, "country": 2.0}


class MaskedTree:
    """Two countries with two masked regions each, and a server that calls the stages."""

    def __init__(self, world):
        self.world, self.plan, self.opened = world, verified_plan(world.plan), {}
        self.tree, self.asked, self.seen = tree_of(self.plan), [], []
        self.carried = []  # every request to a silo and every answer, as the server carries them
        self.gone = {}  # silo, region or country -> the stage from which it is silent
        self.before = lambda name, stage, attempt: None  # strikes before an aggregator begins a stage
        self.server = self.opened_server()

    def opened_server(self):
        return MaskedServer.open(self.world.folder / "server", self.plan, MODEL, by_region=True)

    def node(self, name):
        if name not in self.opened:
            path, key = self.world.folder / f"{name}.db", self.world.folder / f"{name}.key"
            if self.tree.level(name):
                self.opened[name] = StagedNode.open(path, self.plan, name, key)
            else:
                self.opened[name] = MaskedRegion.open(path, self.plan, name, key)
        return self.opened[name]

    def restart(self, name):
        self.node(name).close()
        del self.opened[name]

    def silent(self, name, stage):
        return name in self.gone and STAGES.index(self.gone[name]) <= STAGES.index(stage)

    def stage(self, name, call):
        """Runs a stage at an aggregator with everything below, and returns the reply."""
        called = msgspec.msgpack.decode(call)
        stage, node = called["stage"], self.node(name)
        self.before(name, stage, called["attempt"])
        node = self.node(name)
        if self.tree.level(name):
            node.begin(call, model_layout(pack_model(MODEL)) if stage == KEYS else None)
            for child in sorted(node.missing):
                if not self.silent(child, stage):
                    reply = self.stage(child, call)
                    self.seen.append((child, reply))
                    node.take(self.sealed(child, reply, called["round_number"]))
        else:
            requests = node.begin(call, self.server.model if stage == KEYS else None)
            for silo, request in requests.items():
                if not self.silent(silo, stage):
                    self.asked.append((silo, stage))
                    answer = self.world.answer(silo, request, self.server.model)
                    self.carried += [request, answer]
                    assert node.take(answer) == silo
        return node.finish()

    def sealed(self, name, reply, number=1):
        return SumSealer(self.plan, name, self.world.folder / f"{name}.key").seal(reply, number)

    def carry(self, requests, take):
        for name, data in requests.items():
            if not self.silent(name, msgspec.msgpack.decode(data)["stage"]):
                take(self.stage(name, data), name)

    def run(self):
        return self.server.run_round(self.carry)

    def releases(self, number=1):
        """Every silo's release of a round, as its ledger stores the release."""
        found = {}
        for silo in self.plan.federation.silo_names.tolist():
            with read_ledger(self.world.folder / silo / "state" / ledger_name(silo)) as ledger:
                for entry in ledger.entries():
                    if entry.round_number == number:
                        found[silo] = Release.from_bytes(ledger.payload_of(entry))
        return found

    def close(self):
        for node in self.opened.values():
            node.close()


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**options):
        world = MaskedWorld(tmp_path, SIZES, outer=OUTER, sealed=True, **({"epsilon": HIDDEN, "rounds": 2} | options))
        made.append(MaskedTree(world))
        return made[-1]

    yield build
    for tree in made:
        tree.close()


def call(tree, stage, number=1, attempt=1):
    return StageCall(plan_digest=tree.plan.digest, round_number=number, attempt=attempt, stage=stage).to_bytes()


def test_masked_groups_under_trusted_sums_end_with_the_sum_of_all_releases(make):
    tree = make()
    before = np.concatenate([array.ravel() for array in tree.server.model.values()])
    summary = tree.run()
    assert summary["summed"] == ["east", "west"]
    assert summary["members"]["west"] == ["c1", "c2", "c3", "d1", "d2", "d3"]
    released = sum(release.values * release.step for release in tree.releases().values())
    after = np.concatenate([array.ravel() for array in tree.server.model.values()])
    assert after - before == pytest.approx(released, abs=1e-9)
    sums = [reply_of_region(reply) for _, reply in tree.seen]
    assert {reply.region for reply in sums if isinstance(reply, RegionalSum)} == set("abcd")
    tree.run()
    assert tree.server.is_finished
    tree.world.check_ledgers()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("who", ["a", "east"])
def test_an_aggregator_that_restarts_at_any_stage_costs_a_round_at_most_and_ledgers_show_what_left(make, who, stage):
    """A country has no state of a stage; a region that loses its masked group begins another attempt."""
    tree, struck = make(), []

    def strike(name, at, attempt):
        if (name, at, attempt) == (who, stage, 1) and not struck:
            struck.append(name)
            tree.restart(name)

    tree.before = strike
    summary = tree.run()
    assert struck == [who]
    lost = who == "a" and stage == UNMASKING
    assert summary["summed"] == ([] if lost else ["east", "west"]) or (lost and summary["summed"] == ["west"])
    tree.run()
    assert tree.server.is_finished
    tree.world.check_ledgers()


@pytest.mark.parametrize("stage", STAGES)
def test_a_country_without_one_of_its_regions_gives_no_sum(make, stage):
    """The target on the federation counts on the noise of every region, so the other country's sum is not used."""
    tree = make(epsilon=SUM)
    tree.gone = {"b": stage}
    summary = tree.run()
    assert summary["summed"] == []
    assert "east" in summary["withheld"] or "east" in summary["missing"]
    tree.gone = {}
    assert tree.run()["summed"] == ["east", "west"]
    tree.world.check_ledgers()


def test_a_country_without_a_target_goes_on_with_the_regions_that_are_there(make):
    tree = make(epsilon={"region": 4.0})
    tree.gone = {"b": INPUT}
    summary = tree.run()
    assert summary["summed"] == ["east", "west"]
    assert summary["members"]["east"] == ["a1", "a2", "a3"]


def test_regions_on_two_models_have_one_sum_with_the_noise_of_both(make):
    """A server may give each region another model; the silos of one region train on one model."""
    tree = make(rounds=1)
    honest = tree.server.model
    other = {name: array + 1 for name, array in honest.items()}

    class Server:
        model = honest

    def strike(name, stage, attempt):
        Server.model = other if name == "b" else honest

    tree.before, serving, tree.server = strike, tree.server, Server
    assert serving.run_round(tree.carry)["members"]["east"] == ["a1", "a2", "a3", "b1", "b2", "b3"]
    [total] = [reply_of_region(tree.node("east").finish())]
    releases = {silo: release for silo, release in tree.releases().items() if silo in total.members}
    assert np.array_equal(total.values, sum(release.values for release in releases.values()))
    tree.world.check_ledgers()


def test_a_silo_within_the_dropouts_is_missing_at_every_tier_and_the_round_ends(tmp_path):
    sizes = {region: dict.fromkeys([f"{region}{k}" for k in range(1, 6)], 100) for region in "ab"}
    world = MaskedWorld(tmp_path, sizes, outer={"country": {"east": ["a", "b"]}}, epsilon=SUM, dropouts=1, sealed=True)
    tree = MaskedTree(world)
    tree.gone = {"a2": INPUT}
    assert tree.run()["members"] == {"east": ["a1", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5"]}
    tree.close()


def test_a_region_that_withholds_ends_the_round_of_its_country_which_says_why(make):
    tree = make()
    tree.gone = {"a1": INPUT}
    summary = tree.run()
    assert summary["summed"] == ["west"]
    assert "1 of 2 sums are missing, such as the sum of 'a'" in summary["withheld"]["east"]


def test_no_neighbour_ends_a_stage_or_sums_for_a_region(make):
    tree = make()
    node = tree.node("east")
    node.begin(call(tree, KEYS), model_layout(pack_model(MODEL)))
    assert node.missing == {"a", "b"}
    end = StageEnd(plan_digest=tree.plan.digest, round_number=1, attempt=1, stage=KEYS, region="a")
    for forged, code in (
        (end.to_bytes(), "message.malformed"),  # not sealed
        (tree.sealed("b", end.to_bytes()), "seal.sum-content-foreign"),
        (tree.sealed("c", msgspec.structs.replace(end, region="c").to_bytes()), "seal.sum-foreign"),
        (tree.sealed("a", msgspec.structs.replace(end, stage=SHARES).to_bytes()), "region.message-unexpected"),
        (tree.sealed("a", msgspec.structs.replace(end, attempt=2).to_bytes()), "region.message-unexpected"),
    ):
        with pytest.raises(ExchangeError, check=coded(code)):
            node.take(forged)
    assert node.missing == {"a", "b"}
    assert node.take(tree.sealed("a", end.to_bytes())) == "a"
    with pytest.raises(ExchangeError, check=coded("region.message-unexpected", child="a")):
        node.take(tree.sealed("a", end.to_bytes()))
    assert node.missing == {"b"}


def test_a_region_that_sends_two_sums_of_a_round_is_refused_also_in_another_attempt(make):
    tree = make()
    tree.gone = {"b": UNMASKING}
    tree.run()
    [total] = [reply for name, reply in tree.seen if isinstance(reply_of_region(reply), RegionalSum) and name == "a"]
    honest = reply_of_region(total)
    fields = {name: getattr(honest, name) for name in ("plan_digest", "region", "round_number", "layout", "step")}
    other = RegionalSum(**fields, members=honest.members, values=honest.values + 1)
    tree.restart("east")
    node = tree.node("east")
    node.begin(call(tree, KEYS, attempt=7), model_layout(pack_model(MODEL)))
    with pytest.raises(ExchangeError, check=coded("region.release-replaced", silo="a")):
        node.take(tree.sealed("a", other.to_bytes()))
    assert node.take(tree.sealed("a", total)) == "a"


@pytest.mark.parametrize(("lost", "later"), [(KEYS, {"a"}), (SHARES, {"a"})])
def test_a_child_that_missed_a_stage_is_not_awaited_again_in_the_attempt(make, lost, later):
    tree = make(epsilon={"region": 4.0})
    tree.gone = {"b": lost}
    awaited, node = {}, tree.node("east")
    begin = node.begin

    def noted(data, layout=None):
        begin(data, layout)
        awaited[msgspec.msgpack.decode(data)["stage"]] = set(node.missing)

    node.begin = noted
    assert tree.run()["members"]["east"] == ["a1", "a2", "a3"]
    first = STAGES.index(lost) + 1
    assert [awaited[stage] for stage in STAGES] == [{"a", "b"}] * first + [later] * (len(STAGES) - first)


def test_an_interrupted_child_is_awaited_in_the_next_attempt_alone(make):
    tree = make(epsilon={"region": 4.0})
    node, layout = tree.node("east"), model_layout(pack_model(MODEL))
    for stage, interrupted in ((KEYS, False), (SHARES, True)):
        node.begin(call(tree, stage), layout)
        for child in sorted(node.missing):
            end = StageEnd(plan_digest=tree.plan.digest, round_number=1, attempt=1, stage=stage, region=child)
            lost = msgspec.structs.replace(end, interrupted=interrupted and child == "b")
            node.take(tree.sealed(child, lost.to_bytes()))
        assert not reply_of_region(node.finish()).interrupted
    node.begin(call(tree, INPUT))
    assert node.missing == {"a"}
    node.begin(call(tree, KEYS, attempt=2), layout)
    assert node.missing == {"a", "b"}
    for stage in (INPUT, KEYS):
        with pytest.raises(ExchangeError, check=coded("region.attempt-over", attempt=1, later=2)):
            node.begin(call(tree, stage), layout)
    assert node.missing == {"a", "b"}


def test_a_node_answers_one_sum_for_ever_whatever_is_called(make):
    tree = make()
    tree.run()
    first = tree.node("east").finish()
    assert isinstance(reply_of_region(first), RegionalSum)
    for attempt, stage in ((2, KEYS), (3, ATTESTATION), (4, UNMASKING)):
        tree.restart("east")
        tree.node("east").begin(call(tree, stage, attempt=attempt), None)
        assert tree.node("east").missing == frozenset()
        assert tree.node("east").finish() == first
    for wrong in (call(tree, KEYS, number=9), call(tree, "noise"), call(tree, KEYS, attempt=0), b"junk"):
        with pytest.raises(ExchangeError):
            tree.node("east").begin(wrong)


def test_a_node_that_is_closed_early_withholds(make):
    """A server that calls the last stage first gets no sum: the node adds up whole sums of children alone."""
    tree = make()
    node = tree.node("east")
    with pytest.raises(ExchangeError, check=coded("region.stage-over")):
        node.finish()
    node.begin(call(tree, UNMASKING))
    assert isinstance(reply_of_region(node.finish()), Withheld)
    assert reply_of_region(node.finish()).missing == ("a1", "a2", "a3", "b1", "b2", "b3")


def test_a_server_without_aggregators_adds_up_the_sums_of_regions_where_no_target_hides_them(tmp_path):
    world = MaskedWorld(tmp_path, SIZES, outer=OUTER, epsilon={"region": 4.0, "federation": 3.0}, rounds=2)
    plan, folder = verified_plan(world.plan), tmp_path / "server"

    def carry(requests, take):
        for silo, request in requests.items():
            take(world.answer(silo, request))

    for number in (1, 2):
        server = MaskedServer.open(folder, plan, MODEL)  # again in every round, as after a restart
        world.restart()
        before = np.concatenate([array.ravel() for array in server.model.values()])
        assert server.round_number == number
        if number == 1:
            assert server.run_round(carry)["summed"] == list("abcd")
            after = np.concatenate([array.ravel() for array in server.model.values()])
            assert np.abs(after - before).max() > 0
    world.check_ledgers()


def test_every_role_without_seal_refuses_masked_sums_with_a_target_on_a_country(tmp_path):
    """Where the shares that unmask a region pass the server in clear, the server knows the sum of every region."""
    world = MaskedWorld(tmp_path, SIZES, outer=OUTER, epsilon=HIDDEN)
    plan = verified_plan(world.plan)
    roles = {
        "server": lambda: MaskedServer.open(tmp_path / "server", plan, MODEL),
        "coordinator": lambda: Coordinator.open(tmp_path / "server", plan, MODEL, logical=True),
        "round": world.round,
        "silo": lambda: world.silo("a1"),
    }
    for opened in roles.values():
        with pytest.raises(ExchangeError, check=coded("plan.tiers-unmet", tiers="country")):
            opened()
    with pytest.raises(ExchangeError, check=coded("region.key-missing", region="a")):
        MaskedRegion.open(tmp_path / "a.db", plan, "a")
    assert not (tmp_path / "server").exists()
    assert not (tmp_path / "a.db").exists()
    assert not world.ledger("a1")


def test_a_silo_counts_observers_of_a_country_as_those_of_the_region(tmp_path):
    """The plan states 2.9 against a country, and a server that sees the sum of the region is a reader of 4.4."""
    epsilon, limit = {"region": 6.0, "federation": 2.0}, "largest_epsilon_above = 6.0\nlargest_epsilon_inside = 8.0\n"
    for place, most in (("strict", 3.0), ("loose", 6.0)):
        folder = tmp_path / place
        folder.mkdir()
        policy = f"{limit}[largest_epsilon]\ncountry = {most}\n"
        world = MaskedWorld(folder, SIZES, outer=OUTER, epsilon=epsilon, rounds=1, policy=policy)
        stated = world.plan.content().silos[0].epsilon
        assert stated["country"] < 3.0 < stated["region"] < 6.0
        if place == "strict":
            with pytest.raises(PolicyError, check=coded("policy.epsilon-exceeded", largest=3.0)):
                world.silo("a1")
    world.run(world.round())
    [entry] = world.ledger("a1")
    shifts = entry.cost.shifts
    assert shifts["silo"] > shifts["region"] == shifts["country"] > shifts["federation"]


def test_a_silo_whose_answers_are_sealed_counts_observers_of_a_country_by_the_sums_of_the_country(make):
    policy = "largest_epsilon_above = 4.0\nlargest_epsilon_inside = 8.0\n[largest_epsilon]\ncountry = 2.0\n"
    tree = make(policy=policy)
    tree.run()
    [entry] = tree.world.ledger("a1")
    shifts = entry.cost.shifts
    assert shifts["silo"] > shifts["region"] > shifts["country"] >= shifts["federation"]
    stated = tree.plan.content().silos[0].epsilon
    assert stated["country"] <= 2.0 < stated["region"]


def test_the_server_that_carries_a_masked_round_reads_no_answer_of_a_silo(make):
    """No carried byte is a signed answer but public keys and attestations, which the region shows to all its silos."""
    tree = make(rounds=1)
    tree.run()
    answers = [data for data in tree.carried if b"fulcrum.sealed-answer/1" in data[:200]]
    requests = [data for data in tree.carried if b"fulcrum.sealed-answer/1" not in data[:200]]
    assert len(answers) == len(requests) == 12 * len(STAGES)
    for data in answers:
        with pytest.raises(ExchangeError):
            member_reply_from_bytes(data)
        assert b"fulcrum.masking/1" not in data
    seen = set()
    for request in map(request_from_bytes, requests):
        shown = [*getattr(request, "keys", ()), *getattr(request, "attestations", ())]
        seen |= {member_reply_from_bytes(data).holds for data in shown}
    assert seen == {KEYS, ATTESTATION}
    vectors = {data for _, _, data in tree.world.left}
    assert len(vectors) == 12
    for vector in vectors:
        body = bytes(member_reply_from_bytes(vector).body)
        assert len(body) == 8 * 40  # the country adds modulo 2^64
        assert not any(body[place : place + 16] in data for data in tree.carried for place in range(0, len(body), 16))


def test_a_server_that_plays_a_region_gets_answers_that_the_region_alone_opens(make):
    """The server sends requests of its own; every answer, and every repeated answer, opens with the key of the plan."""
    tree = make(rounds=1)
    begin = tree.node("a").begin(call(tree, KEYS), MODEL)
    keys = {silo: tree.world.answer(silo, request) for silo, request in begin.items()}
    again = {silo: tree.world.answer(silo, request) for silo, request in begin.items()}
    assert not set(keys.values()) & set(again.values())
    opened = {silo: tree.world.opened(silo, data) for silo, data in keys.items()}
    assert opened == {silo: tree.world.opened(silo, data) for silo, data in again.items()}
    for other in ("b", "east"):
        with pytest.raises(ExchangeError, check=coded("seal.region-differs")):
            AnswerOpener(tree.plan, "b", tree.world.folder / "b.key").open(keys["a1"])
        with pytest.raises(ExchangeError, check=coded("key.not-of-plan")):
            AnswerOpener(tree.plan, "a", tree.world.folder / f"{other}.key")


def test_a_region_takes_sealed_answers_of_its_silos_alone_and_each_once(make):
    tree = make()
    node = tree.node("a")
    begin = node.begin(call(tree, KEYS), MODEL)
    sealed = {silo: tree.world.answer(silo, request) for silo, request in begin.items()}
    inside = {silo: tree.world.opened(silo, data) for silo, data in sealed.items()}
    foreign = tree.node("b").begin(call(tree, KEYS), MODEL)
    changed = bytearray(sealed["a1"])
    changed[-1] ^= 1
    sealer = AnswerSealer(tree.plan, "a1")
    stranger = load_private_key(tree.plan, "a2", tree.world.folder / "a2.key", "signing")
    answer = member_reply_from_bytes(inside["a1"])
    forged = signed_reply(KEYS, answer.session, "a1", bytes(answer.body), stranger)
    for wrong, code in (
        (inside["a1"], "message.malformed"),  # in clear: its carrier has read it
        (bytes(changed), "seal.not-opened"),
        (tree.world.answer("b1", foreign["b1"]), "seal.region-differs"),
        (sealer.seal(inside["a2"], 1), "seal.content-foreign"),  # another silo's answer under this silo's name
        (sealer.seal(inside["a1"], 2), "seal.content-foreign"),
        (sealer.seal(b"junk", 1), "message.malformed"),
        (None, "message.malformed"),  # of a silo whose site does not open
        (7, "message.malformed"),
        (sealer.seal(forged, 1), "mask.reply-signature"),  # everybody can seal, and the silo alone can sign
        (sealer.seal(inside["a1"] + bytes(1 << 16), 1), "mask.reply-too-long"),
    ):
        with pytest.raises(ExchangeError, check=coded(code)):
            node.take(wrong)
    assert node.missing == {"a1", "a2", "a3"}
    assert node.take(sealed["a1"]) == "a1"
    with pytest.raises(ExchangeError, check=coded("mask.reply-unexpected", silo="a1")):
        node.take(sealer.seal(inside["a1"], 1))
    assert node.missing == {"a2", "a3"}


def test_a_sum_that_a_silo_moves_to_the_edge_wraps_alike_at_every_tier(make):
    """With fewer bits in the region than at the country, the total would show where the sum of the region wrapped."""
    tree = make(rounds=1)
    group = group_of(tree.plan, "a")
    assert (group.bits, group_of_open(tree, "a").bits) == (64, 32)


def group_of_open(tree, region):
    """The same group under the plan without the target on the country, whose server reads every regional sum."""
    plan = fulcrum.plan(
        tree.world.plan.federation,
        rounds=1,
        epsilon={"region": 4.0},
        parameters=40,
        purpose="deployment",
        aggregation="masked",
        keys=tree.world.plan.keys,
    )
    return group_of(verified_plan(plan), region)
