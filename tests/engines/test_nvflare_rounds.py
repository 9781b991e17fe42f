"""A round on NVIDIA FLARE, part by part and without processes: who is believed to have answered it."""

import importlib
import types

import numpy as np
import pytest
from error_codes import coded

import fulcrum

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.edge.constants import EdgeTaskHeaderKey
from nvflare.edge.controllers.sage import ScatterAndGatherForEdge
from nvflare.edge.executors.hug import TaskInfo

from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.model_message import pack_model, unpack_model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.silo.releasing import Layout
from fulcrum.core.silo.releasing_silo import FAILED
from fulcrum.core.silo.site import read_site
from fulcrum.engines.nvflare.flare_region import RegionGatherer, RegionUpdater
from fulcrum.engines.nvflare.flare_server import FederationController, PlanAssessor
from fulcrum.engines.nvflare.flare_silo import SiloExecutor
from fulcrum.engines.nvflare.kits.nvflare_kits import Deployment, write_kits
from fulcrum.engines.nvflare.site_jobs.job_endings import read_ending, read_run
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, DECLINE, MODEL, RELEASE, ROUND, TASK
from fulcrum.errors import EngineError, ExchangeError, FulcrumError, StorageError
from fulcrum.rules.server_rule import RoundSums
from fulcrum.server.deployed_run import run_from
from fulcrum.server.run_results import unkeyed_digest

MEMBERS = ["a1", "a2", "a3"]
START = {"weights": np.zeros(6)}
JOB = "0ea763a1-4d7c-4cfd-b337-b3698f0d931f"


@pytest.fixture
def kits(tmp_path, monkeypatch):
    """Kits of three silos in the north, of whom the plan does without one, and of one in the south."""
    (tmp_path / "few_weights.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): return {'weights': model['weights'] + 0.1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\na3,210,north\nc1,300,south\n")
    plan = fulcrum.plan(
        str(tmp_path / "fed.csv"), rounds=3, epsilon=5.0, parameters=6, purpose="deployment", dropouts=1
    )
    write_kits(Deployment(plan=plan, train="few_weights", patience=600.0, runs_here=True), tmp_path / "kits")
    return tmp_path / "kits"


def context(kit, peer="nobody"):
    """What a component is told of where it runs, and of who a message says it is from."""
    engine = types.SimpleNamespace(
        get_workspace=lambda: Workspace(str(kit), kit.name), fire_event=lambda event_type, fl_ctx: None
    )
    told, other = FLContext(), FLContext()
    told.put(ReservedKey.ENGINE, engine, private=True, sticky=False)
    told.put(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
    other.put(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
    told.set_peer_context(other)
    return told


def shareable(**fields):
    made = Shareable()
    made.update(fields)
    return made


def task(number=1, model=START):
    return shareable(**{ROUND: number, MODEL: pack_model(model)})


def answer_of(kits, silo, number=1, model=START):
    """What a silo's executor sends in a round."""
    executor = SiloExecutor()
    executor._listening.set()
    return executor.execute(TASK, task(number, model), context(kits / silo), Signal())


@pytest.fixture
def north(kits):
    """The updater of the region north, gathering round 1."""
    updater = RegionUpdater(read_site(kits / "north/local/fulcrum"))
    updater.start_task(task(), context(kits / "north"))
    yield updater
    updater._open_region().close()


def summed(updater, kits):
    return regional_reply_from_bytes(updater.prepare_update_for_parent(context(kits / "north"))[ANSWER])


def test_what_is_refused_answers_for_nobody_whatever_name_it_comes_under(kits, north):
    for silo in ("a2", "a3"):
        assert north.process_child_update(answer_of(kits, silo), context(kits / "north", silo))[0]
    other = answer_of(kits, "c1")
    for junk in (
        shareable(),
        shareable(**{RELEASE: b"junk"}),
        shareable(**{RELEASE: 7}),
        shareable(**{RELEASE: other[RELEASE]}),
        shareable(**{DECLINE: b"junk"}),
        shareable(**{DECLINE: None}),
    ):
        assert not north.process_child_update(junk, context(kits / "north", "a1"))[0]
        assert not north.ready  # the plan does without one, and yet a1 is waited for
    assert north.process_child_update(answer_of(kits, "a1"), context(kits / "north", "a1"))[0]
    assert north.ready
    assert summed(north, kits).members == ("a1", "a2", "a3")


def test_who_a_release_is_from_is_who_signed_it(kits, north):
    for silo in MEMBERS:
        north.process_child_update(answer_of(kits, silo), context(kits / "north", "a1"))  # all say they are a1
    assert north.ready
    assert summed(north, kits).members == ("a1", "a2", "a3")


def test_a_message_without_any_name_is_judged_by_its_signature(kits, north):
    bare = context(kits / "north")
    bare.set_peer_context(None)
    assert not north.process_child_update(shareable(), bare)[0]
    assert north.process_child_update(answer_of(kits, "a1"), bare)[0]


def insists(site, *, no_more=False):
    """Has a site insist on more than the plan gives, or on nothing any more."""
    said, wanted = ("policy = true", "policy = false") if no_more else ("policy = false", "policy = true")
    settings = (site / "site.toml").read_text()
    assert said in settings
    (site / "site.toml").write_text(settings.replace(said, wanted))
    if no_more:
        (site / "policy.toml").unlink()
    else:
        (site / "policy.toml").write_text("largest_epsilon_above = 0.1\nlargest_epsilon_inside = 0.1\n")


def test_a_silo_that_declines_is_not_waited_for_and_nobody_declines_for_it(kits, north, caplog):
    for silo in ("a2", "a3"):
        north.process_child_update(answer_of(kits, silo), context(kits / "north", silo))
    insists(kits / "a1/local/fulcrum")
    declined = answer_of(kits, "a1")
    assert RELEASE not in declined
    forged = shareable(**{DECLINE: declined[DECLINE].replace(b"a1", b"a2")})
    assert not north.process_child_update(forged, context(kits / "north", "a2"))[0]
    assert not north.ready
    north.process_child_update(declined, context(kits / "north", "a1"))
    assert north.ready
    assert "silo 'a1' declined" in caplog.text
    assert summed(north, kits).members == ("a2", "a3")
    north.start_task(task(2), context(kits / "north"))
    north.process_child_update(declined, context(kits / "north", "a1"))  # of another round
    assert "'a1' declines round 1, and the region gathers round 2" in caplog.text
    assert north._answered == set()


def test_a_decline_says_nothing_but_who_and_when(kits):
    ledger = kits / "a1/local/fulcrum/state/a1.ledger"
    insists(kits / "a1/local/fulcrum")
    strict = answer_of(kits, "a1")
    insists(kits / "a1/local/fulcrum", no_more=True)
    ledger.unlink()
    lost = answer_of(kits, "a1")
    assert strict[DECLINE] == lost[DECLINE]
    assert {name for name in lost if not name.startswith("__")} == {DECLINE}
    for outside in (0, 4, "1", None):
        assert DECLINE not in answer_of(kits, "a1", outside)  # no round of the plan's


def test_a_foreign_layer_name_is_refused_alone_even_if_it_comes_first(kits, north):
    foreign = answer_of(kits, "a2", model={"foreign": np.zeros(6)})
    assert RELEASE in foreign
    assert not north.process_child_update(foreign, context(kits / "north", "a2"))[0]
    for silo in ("a1", "a3"):
        assert north.process_child_update(answer_of(kits, silo), context(kits / "north", silo))[0]
    total = summed(north, kits)
    assert isinstance(total, RegionalSum)
    assert (total.members, total.layout.names) == (("a1", "a3"), ("weights",))


def test_a_task_without_a_model_that_fits_the_plan_begins_no_round(kits, north):
    for wrong in (shareable(**{ROUND: 1}), task(model={"weights": np.zeros(7)}), shareable(**{ROUND: 1, MODEL: b"x"})):
        with pytest.raises(FulcrumError):
            north.start_task(wrong, context(kits / "north"))


@pytest.mark.parametrize("number", [0, 99, "2", None, 1.0])
def test_a_round_that_the_plan_does_not_have_leaves_the_one_that_is_gathered(kits, north, number):
    with pytest.raises(FulcrumError):
        north.start_task(task(number), context(kits / "north"))
    for silo in MEMBERS:
        assert north.process_child_update(answer_of(kits, silo), context(kits / "north", silo))[0]
    assert summed(north, kits).round_number == 1


def gathering(kits, updater, sequence=5):
    """A region's gatherer in the midst of a round."""
    gatherer = RegionGatherer()
    gatherer._updater = updater
    sent = task()
    sent.set_header(EdgeTaskHeaderKey.TASK_SEQ, sequence)
    gatherer._pending_task = TaskInfo(sent)
    return gatherer


def test_a_round_that_is_said_to_be_over_is_given_up_and_not_summed_in_part(kits, north):
    for silo in ("a2", "a3"):
        north.process_child_update(answer_of(kits, silo), context(kits / "north", silo))
    gatherer = gathering(kits, north)
    ended = shareable()
    ended.set_header(EdgeTaskHeaderKey.TASK_SEQ, 5)
    gatherer._process_task_end("end", ended, context(kits / "north", "a2"))
    reply = gatherer._do_task(context(kits / "north"), Signal())
    assert reply.get_return_code() == ReturnCode.TASK_ABORTED
    assert ANSWER not in reply
    assert not north._open_region().is_summed(1)
    north.process_child_update(answer_of(kits, "a1"), context(kits / "north", "a1"))
    reply = gathering(kits, north)._do_task(context(kits / "north"), Signal())
    assert regional_reply_from_bytes(reply[ANSWER]).members == ("a1", "a2", "a3")


@pytest.fixture
def server(kits):
    """The server's controller and its assessor, in round 1, and what the two regions answer."""
    controller = FederationController()
    controller.assessor = PlanAssessor()
    controller.assessor.start_task(context(kits / "server"))
    plan = read_site(kits / "server/local/fulcrum").plan
    known = {"plan_digest": plan.digest, "round_number": 1, "missing": (), "reason": "why"}
    controller.withheld = {name: Withheld(region=name, **known).to_bytes() for name in ("north", "south")}
    return controller


def given_to(name, answer):
    """The task of a site, with what came back for it."""
    made = ClientTask(client=Client(name, f"token of {name}"), task=Task(name=TASK, data=Shareable()))
    made.result = shareable(**{ANSWER: answer})
    return made


@pytest.mark.parametrize("other", ["south", "a1", "server"])
def test_the_server_takes_an_answer_from_the_region_itself_and_from_nobody_else(kits, server, other):
    here = context(kits / "server", "north")  # the message says that it is from the north
    server._process_train_result(given_to(other, server.withheld["north"]), here)
    assert server.assessor.open(here).answers == {}
    server._process_train_result(given_to("north", server.withheld["north"]), context(kits / "server", other))
    assert list(server.assessor.open(here).answers) == ["north"]


def test_what_is_submitted_for_the_task_of_another_site_is_dropped_by_the_engine(kits, server):
    """The server knows senders by their tokens; silos know the number of their region's task, and cannot use it."""
    taken = []
    north = given_to("north", server.withheld["north"])
    north.task.result_received_cb = lambda client_task, fl_ctx: taken.append(client_task.client.name)
    north.task.props["___mgr"] = types.SimpleNamespace(check_task_result=lambda *_: None)
    communicator = WFCommServer()
    communicator._client_task_map[north.id] = north
    here = context(kits / "server", "north")
    communicator._do_process_submission(Client("a1", "token of a1"), TASK, north.id, shareable(), here)
    assert taken == []
    communicator._do_process_submission(Client("north", "token of north"), TASK, north.id, shareable(), here)
    assert taken == ["north"]


def test_the_server_leaves_word_of_why_a_job_ended_and_whether_another_would_too(kits, server, monkeypatch):
    here = context(kits / "server")
    assert read_ending(kits / "server", JOB) is None
    server._process_train_result(given_to("north", server.withheld["north"]), here)
    with pytest.raises(EngineError, check=coded("flare.round-without-sums", round_number=1, reasons="north: why")):
        server.assessor.end_task(here)
    told = {"job": JOB, "reason": "no region sent a sum in round 1. north: why", "final": False}
    assert read_ending(kits / "server", JOB) == told
    assert read_ending(kits / "server", JOB.replace("0", "1")) is None  # of another job

    assert server.assessor.open(here).round_number == 1  # not counted
    again = FederationController()
    again.assessor = PlanAssessor()
    monkeypatch.setattr(ScatterAndGatherForEdge, "start_controller", lambda *_: None)
    monkeypatch.setattr("few_weights.start", lambda options: {"weights": np.zeros(5)})
    with pytest.raises(ExchangeError, check=coded("model.parameters-differ", parameters=5, expected=6)):
        again.start_controller(here)
    found = read_ending(kits / "server", JOB)
    assert found["final"] is True
    assert found["reason"].startswith("the model has 5 parameters, the plan was made for 6")
    (kits / "server/ended-job.json").write_text('["no word"]')
    assert read_ending(kits / "server", JOB) is None


def test_a_region_whose_file_of_sums_is_gone_begins_no_round(kits):
    (kits / "north/local/fulcrum/state/sums.db").unlink()
    updater = RegionUpdater(read_site(kits / "north/local/fulcrum"))
    with pytest.raises(StorageError, check=coded("storage.file-lost")):
        updater.start_task(task(), context(kits / "north"))


def test_a_region_takes_up_its_round_where_a_restart_left_it(kits, north):
    north.process_child_update(answer_of(kits, "a1"), context(kits / "north", "a1"))
    north._open_region().close()
    site = read_site(kits / "north/local/fulcrum")
    with Region.open(site.state / "sums.db", site.plan, "north", site.key, create=False) as region:
        assert region.present(1) == {"a1"}
        with pytest.raises(ExchangeError, match="other names or shapes than the model"):
            region.expect_layout(Layout(names=("foreign",), shapes=((6,),)))
    north._region = None


def test_a_plan_whose_server_pools_is_run_from_silo_to_server(tmp_path, monkeypatch):
    (tmp_path / "small_head.py").write_text(
        "import numpy as np\n"
        "SOFTMAX_HEAD = 'head'\n"
        "def start(options): return {'head': np.zeros((3, 2))}\n"
        "def train(model, assignment): return {'head': model['head'] + [0.1, -0.1]}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\nc1,300,south\n")
    promise = {"rounds": 2, "epsilon": 5.0, "parameters": 6, "purpose": "deployment", "recipe": "joint"}
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), **promise)
    kits = tmp_path / "kits"
    write_kits(Deployment(plan=plan, train="small_head", patience=600.0, runs_here=True), kits)
    here = context(kits / "server")
    models, sums = [], []
    for number in (1, 2):
        server = FederationController()
        server.assessor = PlanAssessor()  # a new one in every round, as after a restart
        asked = server.assessor.start_task(here)
        assert asked[ROUND] == number
        for region, silos in (("north", ["a1", "a2"]), ("south", ["c1"])):
            updater = RegionUpdater(read_site(kits / region / "local/fulcrum"))
            updater.start_task(asked, context(kits / region))
            for silo in silos:
                answer = answer_of(kits, silo, number, unpack_model(asked[MODEL]))
                assert updater.process_child_update(answer, context(kits / region, silo))[0]
            assert updater.ready
            told = updater.prepare_update_for_parent(context(kits / region))[ANSWER]
            sums.append(regional_reply_from_bytes(told))
            updater._open_region().close()
            server._process_train_result(given_to(region, told), here)
        server.assessor.end_task(here)
        models.append(server.assessor.open(here).model["head"])
    history = server.assessor.open(here).history
    assert [entry["diagnostics"].heard for entry in history] == [2, 2]
    assert all((np.abs(model.sum(axis=1)) < 1e-12).all() and model.any() for model in models)  # no common shift
    rule, present = plan.server_rule, np.ones(2, dtype=bool)
    state = rule.begin(np.zeros((3, 2)))
    for number, model in zip((1, 2), models, strict=True):
        heard = [one.values * one.step for one in sums if one.round_number == number]
        state, _ = rule.step(state, RoundSums(values=np.reshape(heard, (2, 3, 2)), present=present, classes=2))
        assert model == pytest.approx(state.model, rel=1e-9, abs=1e-15)


def summing(kits, number, model):
    """The sums of both regions in a round, from silos that all answered."""
    found = {}
    for region, silos in (("north", MEMBERS), ("south", ["c1"])):
        updater = RegionUpdater(read_site(kits / region / "local/fulcrum"))
        asked = task(number, model)
        updater.start_task(asked, context(kits / region))
        for silo in silos:
            updater.process_child_update(answer_of(kits, silo, number, model), context(kits / region, silo))
        found[region] = updater.prepare_update_for_parent(context(kits / region))[ANSWER]
        updater._open_region().close()
    return found


def test_the_server_measures_each_round_once_and_tells_of_it_and_so_does_one_that_comes_back(kits, monkeypatch):
    """A server that dies between a round and its measuring measures when it comes back, and asks no silo again."""
    calls = []

    def evaluate(model, assignment):
        calls.append(assignment.round_number)
        if calls == [1, 2]:
            raise RuntimeError("out of memory")
        return {"accuracy": 0.5, "size": float(np.abs(model["weights"]).sum())}

    monkeypatch.setattr(importlib.import_module("few_weights"), "evaluate", evaluate, raising=False)
    here = context(kits / "server")
    sizes = []
    for number in (1, 2, 3):
        server = FederationController()
        server.assessor = PlanAssessor()  # a new one in every round, as after a restart
        asked = server.assessor.start_task(here)
        for region, answer in summing(kits, number, unpack_model(asked[MODEL])).items():
            server._process_train_result(given_to(region, answer), here)
        server.assessor.end_task(here)
        sizes.append(float(np.abs(server.assessor.open(here).model["weights"]).sum()))
    assert calls == [1, 2, 2, 3]  # the second again by the server that came after
    found = run_from(read_run(kits / "server"))
    assert [(row.round, row.accuracy, row.regions, row.silos) for row in found.rounds] == [
        (1, 0.5, 2, 4),
        (2, 0.5, 2, 4),
        (3, 0.5, 2, 4),
    ]
    assert [at.value for at in found.curves()["size"]] == sizes
    assert (found.engine, found.task, found.seeds, found.notes) == ("nvflare", "few_weights", [], [])
    plan = read_site(kits / "server/local/fulcrum").plan
    assert (found.plan_digest, found.unkeyed_digest) == (plan.digest, unkeyed_digest(plan))


def test_training_that_fails_in_research_is_declined_and_the_silos_log_says_so(tmp_path, monkeypatch, caplog):
    (tmp_path / "no_records.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): raise ValueError('records.csv is not there')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\n")
    plan = fulcrum.plan(str(tmp_path / "fed.csv"), rounds=2, epsilon=5.0)
    write_kits(Deployment(plan=plan, train="no_records", runs_here=True), tmp_path / "kits")
    answer = answer_of(tmp_path / "kits", "a1", 2)
    assert RELEASE not in answer
    assert DECLINE in answer
    (told,) = [record for record in caplog.records if record.name == "fulcrum.alarm"]
    assert told.getMessage().splitlines()[0] == f"{FAILED} 2: nothing is released"
    assert "records.csv is not there" in caplog.text
