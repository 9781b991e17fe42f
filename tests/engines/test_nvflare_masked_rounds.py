"""A masked round on NVIDIA FLARE, part by part and without processes: stages, relays, and who is believed."""

import json
import types

import numpy as np
import pytest
from error_codes import coded

import fulcrum

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.edge.assessor import Assessment
from nvflare_world import MEMBERS, World, context

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.aggregation.stage_messages import reply_of_region
from fulcrum.core.masking.declines import stage_of
from fulcrum.core.masking.masking_messages import request_from_bytes
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.silo.site import read_site
from fulcrum.engines.nvflare.flare_masked_region import MaskedRegionGatherer, RelayUpdater, SummingUpdater
from fulcrum.engines.nvflare.flare_masked_silo import MaskedSiloExecutor
from fulcrum.engines.nvflare.flare_region import RegionUpdater
from fulcrum.engines.nvflare.flare_silo import SiloExecutor
from fulcrum.engines.nvflare.kits.nvflare_kits import Deployment, write_kits
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, DECLINE, MODEL, RELEASE, ROUND, TASK
from fulcrum.engines.nvflare.site_jobs.stage_tasks import CALL, REPLIES, REPLY, requests_in
from fulcrum.errors import FulcrumError, StorageError

SILOS = [silo for silos in MEMBERS.values() for silo in silos]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes kits of two regions of four silos, by region or as one group."""
    (tmp_path / "few_weights.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): return {'weights': model['weights'] + 0.1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [f"{silo},200,{region}" for region, silos in MEMBERS.items() for silo in silos]
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + "\n".join(rows) + "\n")

    def write(epsilon=5.0, dropouts=1):
        plan = fulcrum.plan(
            str(tmp_path / "fed.csv"),
            rounds=2,
            epsilon=epsilon,
            parameters=6,
            purpose="deployment",
            dropouts=dropouts,
            aggregation="masked",
        )
        write_kits(Deployment(plan=plan, train="few_weights", patience=600.0, runs_here=True), tmp_path / "kits")
        return World(tmp_path / "kits")

    return write


@pytest.mark.parametrize(
    ("epsilon", "groups"), [(5.0, ["north", "south"]), ({"federation": 5.0}, ["federation"])], ids=["regions", "one"]
)
def test_a_round_goes_from_silo_to_server(written, epsilon, groups):
    world = written(epsilon, dropouts=0)
    summary = world.run_round()
    assert summary["summed"] == groups
    assert sorted(silo for members in summary["members"].values() for silo in members) == sorted(SILOS)
    assert np.abs(world.assessor.server.model["weights"]).max() > 0
    world.assessor.report(context(world.kits / "server"))
    assert (world.kits / "server" / "run.json").exists()
    assert world.run_round()["summed"] == groups
    assert world.assessor.server.is_finished
    assert {silo: world.ledger(silo) for silo in ("a1", "c4")} == {"a1": [1, 2], "c4": [1, 2]}


def test_the_operator_of_the_server_reads_which_sums_the_site_sees(written):
    """Without aggregators above the regions the shares that unmask a region pass the server in clear."""
    text = " ".join((written().kits / "server/README.md").read_text().split())
    assert "Masks hide every single release from this site, which sees the sum of each region." in text


def begun(world, stage=0, region="north"):
    """A region in the midst of a stage, and the task that its silos receive."""
    calls = []

    def stopping(requests, take):
        calls.append(requests[region])
        if len(calls) > stage:
            task = world.assessor.stage_task({region: requests[region]}, take)
            world.regions[region].start_task(task, context(world.kits / region))
            world.task = task
            raise KeyboardInterrupt
        world.carry(requests, take)

    with pytest.raises(KeyboardInterrupt):
        world.assessor.server.run_round(stopping)
    return world.regions[region], world.task


def test_what_is_refused_answers_for_nobody_whatever_name_it_comes_under(written):
    world = written()
    north, task = begun(world)
    stray = world.answer("a2", task)
    for junk in ({}, {REPLY: None}, {REPLY: 7}, {REPLY: b"junk"}, {REPLY: stray[REPLY].replace(b"a2", b"a1")}):
        message = Shareable()
        message.update(junk)
        assert not north.process_child_update(message, context(world.kits / "north", "a1"))[0]
    assert not north.ready
    for silo in MEMBERS["north"]:
        assert north.process_child_update(world.answer(silo, task), context(world.kits / "north", "a1"))[0]
    assert north.ready


def test_the_model_goes_to_silos_with_the_request_for_an_update_alone(written):
    world = written(dropouts=0)
    answer, seen = world.answer, set()

    def watched(silo, task):
        seen.add((stage_of(request_from_bytes(requests_in(task)[silo])), MODEL in task))
        return answer(silo, task)

    world.answer = watched
    world.run_round()
    assert seen == {(stage, stage == "input") for stage in STAGES}


def test_a_silo_without_a_request_and_a_silo_that_refuses_stop_nobody(written):
    world = written()
    north, task = begun(world)
    (world.kits / "a1/local/fulcrum/policy.toml").write_text("largest_epsilon_above = 0.1\n")
    declined = world.answer("a1", task)
    assert REPLY not in declined  # the site does not open, and says nothing under its name
    world.silos["a2"] = MaskedSiloExecutor()
    world.silos["a2"]._listening.set()
    world.answer("a2", task)
    (world.kits / "a2/local/fulcrum/policy.toml").write_text("largest_epsilon_above = 0.1\n")
    declined = world.answer("a2", task)
    assert b"decline" in declined[REPLY]
    assert north.process_child_update(declined, context(world.kits / "north", "a2"))[0]
    assert north._missing() == {"a1", "a3", "a4"}
    empty = Shareable()
    assert REPLY not in world.answer("a3", empty)


def test_a_task_for_one_silo_holds_the_request_of_that_silo_alone(written):
    world = written()
    _, task = begun(world, 2)
    assert len(requests_in(task)) == 4
    gatherer = MaskedRegionGatherer()
    for peer, left in (("a3", ["a3"]), ("nobody", MEMBERS["north"])):
        copy, here = world.copied(task), context(world.kits / "north", peer)
        here.set_prop(FLContextKey.TASK_DATA, copy, private=True, sticky=False)
        gatherer._address_task("sent", here)
        assert sorted(requests_in(copy)) == left
    assert len(requests_in(task)) == 4


def test_a_region_whose_file_of_sums_is_gone_begins_no_stage(written):
    world = written()
    (world.kits / "north/local/fulcrum/state/sums.db").unlink()
    with pytest.raises(StorageError, check=coded("storage.file-lost")):
        begun(world)


def test_a_region_sends_a_sum_again_and_no_silo_is_asked(written):
    world = written(dropouts=0)
    replies = []
    stage = world.stage
    world.stage = lambda region, task: replies.append((region, task[CALL], stage(region, task))) or replies[-1][2]
    world.run_round()
    [(call, kept)] = [
        (call, reply[ANSWER])
        for region, call, reply in replies
        if region == "north" and isinstance(reply_of_region(reply[ANSWER]), RegionalSum)
    ]
    world.regions["north"]._open_region().close()
    again = SummingUpdater(read_site(world.kits / "north/local/fulcrum"))
    task = Shareable()
    task[CALL] = call
    again.start_task(task, context(world.kits / "north"))
    assert requests_in(task) == {}
    assert again.ready
    assert again.prepare_update_for_parent(context(world.kits / "north"))[ANSWER] == kept


def test_the_server_takes_a_reply_from_the_region_itself_and_from_nobody_else(written):
    world = written(dropouts=0)
    taken = []

    def carry(requests, take):
        task = world.assessor.stage_task(requests, lambda *reply: taken.append(take(*reply)))
        assert world.assessor.assess(context(world.kits / "server")) == Assessment.CONTINUE
        for region in world.assessor.targets(requests):
            updater = world.regions[region]
            copy = world.copied(task)
            updater.start_task(copy, context(world.kits / region))
            for silo in MEMBERS[region]:
                updater.process_child_update(world.answer(silo, world.copied(copy)), context(world.kits / region, silo))
            reply = updater.prepare_update_for_parent(context(world.kits / region))
            here = context(world.kits / "server", region)
            for other in ("a1", "server", "north" if region == "south" else "south"):
                world.assessor.take(other, reply, here)
            world.assessor.take(region, Shareable(), here)
            assert taken[-3:] == [None] * 3
            world.assessor.take(region, reply, context(world.kits / "server", "a1"))
            assert taken[-1] == region
        world.assessor.end_stage()
        world.assessor.take("north", reply, here)  # late
        assert taken[-1] == region

    assert world.assessor.server.run_round(carry)["summed"] == ["north", "south"]


def test_a_relay_drops_what_no_silo_of_its_region_signed(written):
    world = written({"federation": 5.0}, dropouts=0)
    passed = []

    def carry(requests, take):
        task = world.assessor.stage_task(requests, take)
        for region, updater in world.regions.items():
            copy = world.copied(task)
            updater.start_task(copy, context(world.kits / region))
            assert sorted(requests_in(copy)) == MEMBERS[region]
            for silo in SILOS:
                answer = world.answer(silo, world.copied(task))
                accepted, _ = updater.process_child_update(answer, context(world.kits / region, MEMBERS[region][0]))
                assert accepted == (silo in MEMBERS[region])
            reply = updater.prepare_update_for_parent(context(world.kits / region))
            passed.append(len(reply[REPLIES]))
            world.assessor.take(region, reply, context(world.kits / "server"))
        world.assessor.end_stage()

    assert world.assessor.server.run_round(carry)["summed"] == ["federation"]
    assert set(passed) == {4}


@pytest.mark.parametrize("replies", [[b"junk"] * 9, bytes(1000), "text", None, 7])
def test_a_relay_has_at_most_one_answer_of_every_silo_read(written, replies):
    """Each answer that is of no use is a line of the server's log."""
    world = written({"federation": 5.0}, dropouts=0)
    read = []

    def carry(requests, take):
        world.assessor.stage_task(requests, lambda answer: read.append(answer))
        message = Shareable()
        for message[REPLIES] in (replies, [b"junk"] * 8):
            world.assessor.take("north", message, context(world.kits / "server"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.assessor.server.run_round(carry)
    assert read == [b"junk"] * 8


def test_components_of_the_other_kind_of_sums_refuse_a_kit_and_release_nothing(written, tmp_path):
    world = written()
    _, request = begun(world)
    model = Shareable()
    model.update({MODEL: pack_model({"weights": np.zeros(6)}), ROUND: 1})
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), rounds=2, epsilon=5.0, parameters=6, purpose="deployment")
    trusted = tmp_path / "trusted"
    write_kits(Deployment(plan=plan, train="few_weights", patience=600.0, runs_here=True), trusted)
    for kits, executor, task in ((world.kits, SiloExecutor(), model), (trusted, MaskedSiloExecutor(), request)):
        executor._listening.set()
        reply = executor.execute(TASK, task, context(kits / "a1"), Signal())
        assert not {RELEASE, DECLINE, REPLY} & set(reply)
        assert World.ledger(types.SimpleNamespace(kits=kits), "a1") == []
    for kits, kind, task in (
        (world.kits, RegionUpdater, model),
        (trusted, SummingUpdater, request),
        (trusted, RelayUpdater, request),
    ):
        with pytest.raises(FulcrumError, check=coded("plan.aggregation-differs")):
            kind(read_site(kits / "north/local/fulcrum")).start_task(task, context(kits / "north"))
    for kits, name in ((world.kits, "flare_masked_silo.MaskedSiloExecutor"), (trusted, "flare_silo.SiloExecutor")):
        resources = json.loads((kits / "a1/local/resources.json").read_text())
        assert resources["class_allow_list"] == [f"fulcrum.engines.nvflare.{name}"]
