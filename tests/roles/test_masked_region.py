"""Masked groups that regional aggregators sum: stages that the server calls, restarts, and who may lie about what."""

import msgspec
import numpy as np
import pytest
from error_codes import coded
from masked import MODEL, MaskedWorld, refused

from fulcrum.aggregation.group_relay import GroupRelay
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.aggregation.masked_region import MaskedRegion
from fulcrum.aggregation.stage_messages import StageCall, StageEnd, reply_of_region
from fulcrum.core.masking.declines import signed_decline
from fulcrum.core.masking.masking_messages import KEYS, member_reply_from_bytes, request_from_bytes
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.keys import load_private_key
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.site import ledger_name
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import ExchangeError, StorageError
from fulcrum.server.masked_server import MaskedServer
from fulcrum.server.regional_round import RegionalRound

NORTH = ("caen", "lille", "metz", "nancy", "reims")
SIZES = {"north": dict.fromkeys(NORTH, 100), "south": {"lyon": 100}}


class Regions:
    """Two regional aggregators and a server over the silos of a masked world, with a log of what went by."""

    def __init__(self, world):
        self.world, self.regions, self.asked = world, {}, []
        self.gone = {}  # silo -> the stage from which it is silent
        self.before = lambda region, stage, attempt: None  # strikes before a region begins a stage
        self.after = lambda region, reply: reply  # what becomes of a region's reply
        for name in world.sizes:
            MaskedRegion.open(world.folder / f"{name}.db", world.plan, name).close()
        self.server = self.opened_server()

    def opened_server(self):
        return MaskedServer.open(self.world.folder / "server", verified_plan(self.world.plan), MODEL, by_region=True)

    def region(self, name):
        if name not in self.regions:
            path = self.world.folder / f"{name}.db"
            self.regions[name] = MaskedRegion.open(path, self.world.plan, name, create=False)
        return self.regions[name]

    def restart(self, name):
        self.region(name).close()
        del self.regions[name]

    def stage(self, name, call, model=None):
        """Runs a stage at a region with the silos that are there, and returns the reply."""
        stage = STAGES.index(msgspec.msgpack.decode(call)["stage"])
        requests = self.region(name).begin(call, (model or self.server.model) if stage == 0 else None)
        for silo, request in requests.items():
            if silo not in self.gone or STAGES.index(self.gone[silo]) > stage:
                self.asked.append((silo, STAGES[stage]))
                self.region(name).take(self.world.answer(silo, request, model or self.server.model))
        return self.region(name).finish()

    def carry(self, requests, take):
        for name, data in requests.items():
            call = msgspec.msgpack.decode(data)
            self.before(name, call["stage"], call["attempt"])
            if (reply := self.after(name, self.stage(name, data))) is not None:
                take(reply, name)

    def run(self):
        return self.server.run_round(self.carry)

    def close(self):
        for region in self.regions.values():
            region.close()


@pytest.fixture
def make(tmp_path):
    made = []

    def of(**options):
        world = MaskedWorld(tmp_path, SIZES, **({"dropouts": 1} | options))
        made.append(Regions(world))
        return made[-1]

    yield of
    for one in made:
        one.close()
        if one.world.plan.purpose == "deployment":
            one.world.check_ledgers()


def call(fed, stage=KEYS, **fields):
    where = {"plan_digest": fed.world.plan.digest, "round_number": 1, "attempt": 1, "stage": stage}
    return StageCall(**where | fields).to_bytes()


def once_at(stage, name, work):
    """Strikes once, before a region begins a stage."""
    struck = []

    def strike(region, reached, attempt):
        if (region, reached) == (name, stage) and not struck:
            struck.append(attempt)
            work()

    return strike


def test_regional_sums_are_those_of_a_server_that_sums_the_groups_itself(make, tmp_path):
    fed = make(purpose="research")
    (tmp_path / "other").mkdir()
    other = MaskedServer.open(tmp_path / "other", verified_plan(fed.world.plan), MODEL)

    def carry(requests, take):
        for silo, request in requests.items():
            take(fed.world.answer(silo, request, other.model))

    while not other.is_finished:
        other.run_round(carry)
    fed.world.restart()
    for scratch in tmp_path.glob("*/state/*.scratch"):
        scratch.unlink()  # silos of a second run
    while not fed.server.is_finished:
        fed.run()
    assert all(told["summed"] == ["north", "south"] for told in fed.server.history)
    for name, array in other.model.items():
        assert np.array_equal(array, fed.server.model[name])
        assert np.abs(array - MODEL[name]).max() > 0.1


@pytest.mark.parametrize("stage", STAGES[:-1])
def test_a_region_that_restarts_before_the_unmasking_is_in_the_next_attempts_sums(make, stage):
    fed = make()
    fed.before = once_at(stage, "north", lambda: fed.restart("north"))
    told = fed.run()
    assert told["summed"] == ["north", "south"]
    assert told["members"]["north"] == list(NORTH)
    attempts = {member_reply_from_bytes(data).session.attempt for _, _, data in fed.world.left}
    assert max(attempts) == (1 if stage == KEYS else 2)


def test_a_region_that_restarts_at_the_unmasking_has_no_sum_and_the_other_has(make):
    fed = make()
    fed.before = once_at("unmasking", "north", lambda: fed.restart("north"))
    told = fed.run()
    assert (told["summed"], told["missing"]) == (["south"], ["north"])
    assert fed.run()["summed"] == ["north", "south"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_silo_that_falls_silent_at_a_stage_stops_no_sum_that_the_plan_allows(make, stage):
    fed = make()
    fed.gone = {"metz": stage}
    told = fed.run()
    there = STAGES.index(stage) > STAGES.index("input")  # behind its input a silo is in the sum
    assert told["members"]["north"] == [silo for silo in NORTH if there or silo != "metz"]
    assert ("metz", stage) not in fed.asked


@pytest.mark.parametrize("stage", STAGES)
def test_all_silos_may_restart_before_every_stage(make, stage):
    fed = make()
    fed.before = once_at(stage, "north", fed.world.restart)
    assert fed.run()["members"]["north"] == list(NORTH)


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_crashes_at_a_stage_repeats_the_round_or_has_the_sums_that_regions_kept(make, stage):
    fed = make()

    class Crash(Exception):
        pass

    def crash(region, reply):
        if reached == [stage]:
            raise Crash
        return reply

    reached = []
    fed.before = lambda region, at, attempt: reached.append(at) if region == "north" and at == stage else None
    fed.after = crash
    with pytest.raises(Crash):
        fed.run()
    fed.server, fed.after = fed.opened_server(), lambda region, reply: reply
    fed.world.restart()
    asked = len(fed.asked)
    told = fed.run()
    assert told["summed"] == ["north", "south"]
    assert told["members"]["north"] == list(NORTH)
    if stage == "unmasking":  # north had its sum on disk, and its silos are not asked again
        assert not {silo for silo, _ in fed.asked[asked:]} & set(NORTH)
    else:
        assert {silo for silo, _ in fed.asked[asked:]} == {*NORTH, "lyon"}


def test_a_sum_is_the_same_bytes_for_ever_and_nobody_is_asked_for_another(make):
    fed = make()
    replies = []
    fed.after = lambda region, reply: replies.append((region, reply)) or reply
    fed.run()
    [kept] = [data for region, data in replies if region == "north" and isinstance(reply_of_region(data), RegionalSum)]
    fed.restart("north")
    asked = len(fed.asked)
    for stage, attempt in ((KEYS, 1), (KEYS, 7), ("unmasking", 1), ("input", 2)):
        assert fed.stage("north", call(fed, stage, attempt=attempt), {"weight": np.ones(2)}) == kept
    assert len(fed.asked) == asked


def test_a_region_without_its_file_does_not_begin_anew(make):
    fed = make()
    fed.run()
    fed.restart("north")
    (fed.world.folder / "north.db").unlink()
    with pytest.raises(StorageError, check=coded("storage.file-lost")):
        fed.region("north")


def test_a_region_that_makes_a_new_file_gets_no_second_sum_from_its_silos(make):
    """A dishonest region forgets the sum of round 1 and asks again, without caen: the difference would be its release."""
    fed = make()
    model = fed.server.model
    fed.run()
    anew = MaskedRegion.open(fed.world.folder / "anew.db", fed.world.plan, "north")
    for attempt in (1, 2):
        requests = anew.begin(call(fed, attempt=attempt), model)
        assert sorted(requests) == sorted(NORTH)
        for silo, request in requests.items():
            assert "unmasked" in refused(fed.world.answer, silo, request, model)
        reply = reply_of_region(anew.finish())
        assert isinstance(reply, Withheld)
    anew.close()


def test_two_models_in_a_round_give_no_sum(make):
    """The server, or the region, begins the round again on another model, to get two releases with separate noise."""
    fed = make()
    model, other = fed.server.model, {name: array + 1 for name, array in fed.server.model.items()}
    north = fed.region("north")
    for stage in STAGES[:3]:
        fed.stage("north", call(fed, stage), model)
    for silo, request in north.begin(call(fed, attempt=2), other).items():
        refused(fed.world.answer, silo, request, other)
    assert isinstance(reply_of_region(north.finish()), Withheld)
    requests = north.begin(call(fed, attempt=3), model)  # on the model of the round it goes on
    for silo, request in requests.items():
        north.take(fed.world.answer(silo, request, model))
    assert isinstance(reply_of_region(north.finish()), StageEnd)


@pytest.mark.parametrize("stage", ["shares", "attestation"])
def test_a_silo_that_is_shown_another_roster_or_other_survivors_unmasks_nothing(make, stage):
    """A dishonest region treats caen apart: no second list finds a quorum, and masks of different lists stay."""
    fed = make()
    north, model = fed.region("north"), fed.server.model
    change = {"shares": ("keys", silo_of_keys), "attestation": ("members", str)}[stage]
    unmasked = []
    for reached in STAGES:
        for silo, request in north.begin(call(fed, reached), model if reached == KEYS else None).items():
            shown = fewer(request, *change) if (silo, reached) == ("caen", stage) else request
            try:
                answer = fed.world.answer(silo, shown, model)
                north.take(answer)
                unmasked += [silo] if reached == "unmasking" else []
            except ExchangeError:
                continue
        reply = reply_of_region(north.finish())
    assert "caen" not in unmasked
    if stage == "shares":
        assert isinstance(reply, Withheld)
    else:  # caen's own list has a single signature, and the list of all others is attested without caen
        assert reply.members == NORTH
        assert np.array_equal(reply.values, sum(release_in_ledger(fed, silo) for silo in NORTH))


def release_in_ledger(fed, silo):
    with read_ledger(fed.world.folder / silo / "state" / ledger_name(silo)) as ledger:
        [entry] = ledger.entries()
        return Release.from_bytes(ledger.payload_of(entry)).values


def silo_of_keys(data):
    return member_reply_from_bytes(data).silo


def fewer(request, field, name_of):
    """A request without metz in one of its lists."""
    made = request_from_bytes(request)
    left = tuple(entry for entry in getattr(made, field) if name_of(entry) != "metz")
    return msgspec.structs.replace(made, **{field: left}).to_bytes()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"plan_digest": "3f2a"}, "region.stage-foreign"),
        ({"stage": "all"}, "region.stage-foreign"),
        ({"attempt": 0}, "region.stage-foreign"),
        ({"round_number": 0}, "region.round-range"),
        ({"round_number": 4}, "region.round-range"),
    ],
)
def test_a_call_that_is_not_the_plans_leaves_the_stage_as_it_is(make, fields, code):
    fed = make()
    north, model = fed.region("north"), fed.server.model
    requests = north.begin(call(fed), model)
    with pytest.raises(ExchangeError, check=coded(code)):
        north.begin(call(fed, **fields), model)
    with pytest.raises(ExchangeError, check=coded("region.stage-without-model")):
        north.begin(call(fed, attempt=2))
    with pytest.raises(ExchangeError, check=coded("message.malformed")):
        north.begin(b"junk", model)
    assert north.missing == frozenset(NORTH)
    for silo in NORTH:
        north.take(fed.world.answer(silo, requests[silo]))
    assert north.begin(call(fed)) == requests  # the same call again continues the stage
    assert north.missing == frozenset()
    end = north.finish()
    assert north.finish() == end
    assert north.begin(call(fed), model) == {}  # the stage is over, and its end is said again
    assert north.finish() == end


def test_a_decline_counts_for_its_silo_and_its_stage_and_nobody_declines_for_another(make):
    fed = make()
    north = fed.region("north")
    requests = north.begin(call(fed), fed.server.model)
    key = load_private_key(fed.world.plan, "metz", fed.world.folder / "metz.key", "signing")
    declined = signed_decline(request_from_bytes(requests["metz"]), "metz", key)
    for junk in (declined.replace(b"metz", b"caen"), b"junk", b"x" * 10**6, None, 7):
        with pytest.raises(ExchangeError):
            north.take(junk)
    assert north.missing == frozenset(NORTH)
    north.take(declined)
    assert north.missing == frozenset(NORTH) - {"metz"}
    for silo in sorted(north.missing):
        earlier = fed.world.answer(silo, requests[silo])
        north.take(earlier)
    north.finish()
    requests = north.begin(call(fed, "shares"))
    assert "metz" not in requests
    with pytest.raises(ExchangeError, check=coded("mask.decline-other-stage", silo="metz", stage="shares")):
        north.take(declined)
    with pytest.raises(ExchangeError, check=coded("mask.reply-foreign")):  # an answer of the stage before
        north.take(earlier)
    assert north.missing == frozenset(NORTH) - {"metz"}


# The server's side: regions that lie.


def round_of(fed, **options):
    received = []
    made = RegionalRound(verified_plan(fed.world.plan), 1, 1, lambda data, sender: received.append(sender), **options)
    return made, received


def end(fed, region, stage=KEYS, **fields):
    where = {"plan_digest": fed.world.plan.digest, "round_number": 1, "attempt": 1, "stage": stage, "region": region}
    return StageEnd(**where | fields).to_bytes()


def test_a_region_answers_for_itself_once_and_for_the_stage_that_is_called(make):
    fed = make()
    masked, received = round_of(fed)
    with pytest.raises(ExchangeError, check=coded("server.sender-differs", sender="south", region="north")):
        masked.take(end(fed, "north"), "south")
    for fields in ({"stage": "input"}, {"attempt": 2}, {"round_number": 2}, {"plan_digest": "3f2a"}):
        with pytest.raises(ExchangeError, check=coded("server.stage-differs", region="north", stage=KEYS)):
            masked.take(end(fed, "north", **fields), "north")
    masked.take(end(fed, "north"), "north")
    with pytest.raises(ExchangeError, check=coded("server.stage-unexpected", region="north")):
        masked.take(end(fed, "north"), "north")
    assert sorted(masked.requests()) == ["south"]
    assert sorted(masked.proceed()) == ["north"]  # south never began: it may be down for long
    assert received == []


def test_a_region_that_only_ends_stages_is_left_out_behind_the_last(make):
    fed = make()
    masked, _ = round_of(fed, ends_early=False)
    calls = masked.requests()
    for stage in STAGES:
        assert sorted(calls) == ["north", "south"]
        for region in calls:
            masked.take(end(fed, region, stage), region)
        calls = masked.proceed()
    assert not calls
    assert not masked.answers


def test_an_attempt_ends_early_for_a_region_that_lost_it_and_the_last_attempt_does_not(make):
    fed = make()
    for early in (True, False):
        masked, _ = round_of(fed, ends_early=early)
        for region in masked.requests():
            masked.take(end(fed, region), region)
        masked.proceed()
        masked.take(end(fed, "north", "shares", interrupted=True), "north")
        masked.take(end(fed, "south", "shares"), "south")
        assert sorted(masked.proceed()) == ([] if early else ["south"])


def test_a_region_that_always_loses_the_attempt_keeps_no_other_region_from_its_sum(make):
    fed = make()
    fed.before = lambda region, stage, attempt: fed.restart("north") if (region, stage) == ("north", "input") else None
    told = fed.run()
    assert (told["summed"], told["missing"]) == (["south"], ["north"])


def test_a_forged_sum_is_refused_and_the_round_goes_on_without_its_region(make):
    fed = make()

    def forge(region, data):
        reply = reply_of_region(data)
        if region == "north" and isinstance(reply, RegionalSum):
            return RegionalSum(
                **{name: getattr(reply, name) for name in ("plan_digest", "region", "round_number", "layout", "step")},
                members=reply.members[:3],
                values=reply.values,
            ).to_bytes()
        return data

    fed.after = forge
    told = fed.run()
    assert (told["summed"], told["missing"]) == (["south"], ["north"])


# The federation as one group: the regions relay.


SOUTH = ("grasse", "lyon", "nice", "pau", "sete")
ONE_GROUP = {"north": dict.fromkeys(NORTH, 100), "south": dict.fromkeys(SOUTH, 90)}


@pytest.fixture
def one_group(tmp_path):
    (tmp_path / "one").mkdir()
    world = MaskedWorld(tmp_path / "one", ONE_GROUP, dropouts=1, epsilon={"federation": 1.0})
    yield world
    world.check_ledgers()


def relayed(world, masked, gone=(), change=lambda region, answers: answers):
    relays = {region: GroupRelay(world.plan, region) for region in ONE_GROUP}
    requests = masked.requests()
    while requests:
        for region, relay in relays.items():
            for silo, request in relay.begin(requests).items():
                assert silo in ONE_GROUP[region]
                if silo not in gone:
                    relay.take(world.answer(silo, request))
            assert relay.missing <= set(gone)
            for answer in change(region, relay.finish()):
                masked.take(answer)
        requests = masked.proceed()
    return masked.answers


@pytest.mark.parametrize("gone", [(), ("metz",)])
def test_relays_carry_the_round_of_the_whole_federation(one_group, gone):
    answers = relayed(one_group, one_group.round(), gone)
    assert list(answers) == ["federation"]
    assert answers["federation"].members == tuple(sorted({*NORTH, *SOUTH} - set(gone)))


def test_a_relay_passes_answers_of_its_own_silos_once_and_nothing_else(one_group):
    requests = one_group.round().requests()
    relay = GroupRelay(one_group.plan, "north")
    assert sorted(relay.begin(requests)) == sorted(NORTH)
    stray = one_group.answer("lyon", requests["lyon"])
    answer = one_group.answer("caen", requests["caen"])
    for junk in (stray, answer.replace(b"caen", b"metz"), b"junk", None):
        with pytest.raises(ExchangeError):
            relay.take(junk)
    assert relay.missing == frozenset(NORTH)
    relay.take(answer)
    with pytest.raises(ExchangeError, check=coded("mask.reply-unexpected", silo="caen")):
        relay.take(answer)
    assert relay.finish() == [answer]
    assert relay.begin(requests) == {silo: requests[silo] for silo in NORTH}  # the same stage continues
    assert relay.finish() == [answer]
    assert relay.begin({}) == {}
    assert relay.finish() == []


def test_a_relay_refuses_requests_of_two_rounds_and_of_other_plans(one_group):
    relay = GroupRelay(one_group.plan, "north")
    first, second = one_group.round().requests(), one_group.round(2).requests()
    with pytest.raises(ExchangeError, check=coded("region.requests-differ", region="north")):
        relay.begin(first | {"caen": second["caen"]})
    session = request_from_bytes(first["caen"]).session
    for fields in ({"plan_digest": "3f2a"}, {"round_number": 9}, {"group": "north"}):
        foreign = msgspec.structs.replace(
            request_from_bytes(first["caen"]), session=msgspec.structs.replace(session, **fields)
        )
        with pytest.raises(ExchangeError):
            relay.begin({"caen": foreign.to_bytes()})


def test_regions_of_one_group_have_no_sum_to_make(one_group, tmp_path):
    with pytest.raises(ExchangeError, check=coded("mask.group-unknown", group="north")):
        MaskedRegion.open(tmp_path / "no.db", one_group.plan, "north")
    assert not (tmp_path / "no.db").exists()
