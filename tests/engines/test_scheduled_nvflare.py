"""Rosters that change on NVIDIA FLARE: who is asked, waited for and summed in each round."""

import types

import numpy as np
import pytest
from error_codes import coded

import fulcrum

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from harness import Federation
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare_world import MEMBERS, World

from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.messages.regional_reply import RegionalSum, regional_reply_from_bytes
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.flower.flower_engine import FlowerEngine
from fulcrum.engines.nvflare.flare_region import RegionUpdater
from fulcrum.engines.nvflare.flare_silo import SiloExecutor
from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.engines.nvflare.kits.nvflare_kits import Deployment, write_kits
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, DECLINE, MODEL, RELEASE, ROUND, TASK
from fulcrum.errors import ExchangeError, PlanError

START = {"weights": np.zeros(6)}
ROUNDS = {"a1": "1-", "a2": "1-2", "a3": "3-", "c1": "1-"}


def scheduled_plan(folder):
    (folder / "fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\na3,210,north\nc1,300,south\n")
    federation = fulcrum.with_schedule(fulcrum.read_federation(folder / "fed.csv"), ROUNDS)
    return fulcrum.plan(federation, rounds=4, epsilon=5.0, parameters=6, purpose="deployment")


@pytest.fixture
def kits(tmp_path, monkeypatch):
    """Kits of all silos, also of the silo that joins in round 3."""
    (tmp_path / "few_weights.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): return {'weights': model['weights'] + 0.1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = scheduled_plan(tmp_path)
    write_kits(Deployment(plan=plan, train="few_weights", patience=600.0, runs_here=True), tmp_path / "kits")
    return tmp_path / "kits"


def context(kit):
    engine = types.SimpleNamespace(
        get_workspace=lambda: Workspace(str(kit), kit.name), fire_event=lambda event_type, fl_ctx: None
    )
    told = FLContext()
    told.put(ReservedKey.ENGINE, engine, private=True, sticky=False)
    told.put(ReservedKey.RUN_NUM, "0ea763a1-4d7c-4cfd-b337-b3698f0d931f", private=False, sticky=False)
    return told


def task(number):
    made = Shareable()
    made.update({ROUND: number, MODEL: pack_model(START)})
    return made


def answer_of(kits, silo, number):
    executor = SiloExecutor()
    executor._listening.set()
    return executor.execute(TASK, task(number), context(kits / silo), Signal())


@pytest.mark.parametrize(("number", "roster", "away"), [(1, ("a1", "a2"), "a3"), (3, ("a1", "a3"), "a2")])
def test_a_round_waits_for_its_roster_and_sums_nothing_else(kits, number, roster, away):
    updater = RegionUpdater(read_site(kits / "north/local/fulcrum"))
    updater.start_task(task(number), context(kits / "north"))
    declined = answer_of(kits, away, number)
    assert RELEASE not in declined
    assert DECLINE in declined
    with read_ledger(kits / away / "local/fulcrum/state" / f"{away}.ledger") as ledger:
        assert ledger.entries() == ()
    updater.process_child_update(declined, context(kits / "north"))
    for silo in roster:
        assert not updater.ready  # the silo that is away is heard, and stands for none of the roster
        updater.process_child_update(answer_of(kits, silo, number), context(kits / "north"))
    assert updater.ready
    reply = regional_reply_from_bytes(updater.prepare_update_for_parent(context(kits / "north"))[ANSWER])
    assert isinstance(reply, RegionalSum)
    assert reply.members == roster
    updater._open_region().close()


def test_a_site_that_is_not_there_yet_holds_up_no_round(kits):
    updater = RegionUpdater(read_site(kits / "north/local/fulcrum"))
    updater.start_task(task(1), context(kits / "north"))
    for silo in ("a1", "a2"):
        updater.process_child_update(answer_of(kits, silo, 1), context(kits / "north"))
    assert updater.ready
    updater._open_region().close()


def test_flower_refuses_rosters_of_trusted_sums_at_the_kits_and_in_the_silo(tmp_path):
    plan = scheduled_plan(tmp_path)
    deployment = Deployment(plan=plan, train="fulcrum.engines.built_in_training", runs_here=True)
    with pytest.raises(PlanError, check=coded("engine.plan-refused"), match="masked"):
        FlowerEngine().check(deployment)
    with pytest.raises(PlanError, check=coded("engine.plan-refused")):
        FlowerEngine().write_kits(deployment, tmp_path / "kits")
    assert not (tmp_path / "kits").exists()
    with pytest.raises(ExchangeError, check=coded("plan.aggregation-differs")):
        check_aggregation(fulcrum.verified_plan(plan), "masked")  # the first check of a masked silo


@pytest.mark.engines
def test_silos_join_and_leave_at_their_rounds_on_real_processes(tmp_path):
    """One silo joins in round 4 and is killed after its first release, one leaves after round 6."""
    schedule = {"a1": "1-", "a2": "4-", "a3": "1-6", "c1": "1-"}
    own = {"a1": range(1, 9), "a2": range(4, 9), "a3": range(1, 7), "c1": range(1, 9)}
    federation = Federation(
        tmp_path,
        rounds=8,
        members={"north": ["a1", "a2", "a3"], "south": ["c1"]},
        train="fulcrum.engines.built_in_training",
        schedule=schedule,
    )
    try:
        federation.start(conduct=dict.fromkeys(schedule, "tell"))
        federation.submit()
        federation.wait_for(4)
        federation.kill_job_process("a2")
        federation.finish()
    finally:
        federation.stop()
    releases = federation.releases()
    for silo, rounds in own.items():
        with read_ledger(federation.state_of(silo) / f"{silo}.ledger") as ledger:
            charged = {entry.round_number: entry.cost.shifts for entry in ledger.entries()}
        assert set(charged) <= set(rounds)
        assert {number for name, number in releases if name == silo} <= set(charged)  # no ledger shows less than left
        sound = fulcrum.verified_plan(federation.plan)
        assert all(cost == sound.release_cost(silo, number) for number, cost in charged.items())
    summed = [told["members"] for told in federation.history]
    for number, members in enumerate(summed, 1):
        roster = [silo for silo in ("a1", "a2", "a3") if number in own[silo]]
        assert members.get("north", roster) == roster
        assert members["south"] == ["c1"]
    # Sums are left out for the round in which the killed silo was away; all other rounds have their whole roster.
    assert sum("north" in members for members in summed) >= 7
    counted = [
        release.values * release.step
        for (silo, number), release in releases.items()
        if any(silo in members for members in summed[number - 1].values())
    ]
    assert np.allclose(federation.model, sum(counted), rtol=0, atol=1e-9)


@pytest.fixture
def masked_world(tmp_path, monkeypatch):
    """Sites of masked sums: a4 joins in round 2, and c4 leaves after round 1."""
    (tmp_path / "few_weights.py").write_text(
        "import numpy as np\n"
        "def start(options): return {'weights': np.zeros(6)}\n"
        "def train(model, assignment): return {'weights': model['weights'] + 0.1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    silos = fulcrum.Federation.from_sizes({region: dict.fromkeys(names, 200) for region, names in MEMBERS.items()})
    rounds = {silo: "1-" for names in MEMBERS.values() for silo in names} | {"a4": "2-", "c4": "1"}
    federation = fulcrum.with_schedule(silos, rounds)
    settings = {"rounds": 2, "epsilon": 5.0, "parameters": 6, "purpose": "deployment", "aggregation": "masked"}
    deployment = Deployment(
        plan=fulcrum.plan(federation, **settings), train="few_weights", patience=600.0, runs_here=True
    )
    write_kits(deployment, tmp_path / "kits")
    return World(tmp_path / "kits")


def test_masked_regions_sum_the_roster_of_the_round_and_wait_for_nobody_else(masked_world):
    first, second = masked_world.run_round(), masked_world.run_round()
    assert first["members"] == {"north": ["a1", "a2", "a3"], "south": ["c1", "c2", "c3", "c4"]}
    assert second["members"] == {"north": ["a1", "a2", "a3", "a4"], "south": ["c1", "c2", "c3"]}
    assert [masked_world.ledger(silo) for silo in ("a1", "a4", "c4")] == [[1, 2], [2], [1]]


@pytest.mark.engines
def test_kills_around_a_joining_silo_leave_whole_rosters_and_true_ledgers(tmp_path):
    """The site of a silo is down until its first round, its region is killed in between, and then the server's job."""
    schedule = {"a1": "1-", "a2": "4-", "a3": "1-5", "c1": "1-"}
    own = {"a1": range(1, 8), "a2": range(4, 8), "a3": range(1, 6), "c1": range(1, 8)}
    federation = Federation(
        tmp_path,
        rounds=7,
        patience=90.0,
        members={"north": ["a1", "a2", "a3"], "south": ["c1"]},
        train="fulcrum.engines.built_in_training",
        schedule=schedule,
    )

    def start_late_site():
        federation.restart("north")
        federation.loopback.start("a2", federation.environment("tell"))

    strikes = {
        2: lambda: federation.loopback.kill("a2"),
        3: start_late_site,
        5: lambda: federation.kill_job_process("server"),
    }

    def strike():
        for number in [due for due in strikes if due <= federation.state["round_number"]]:
            strikes.pop(number)()

    try:
        federation.start(conduct=dict.fromkeys(schedule, "tell"))
        follow(federation.kits, tick=strike)
    finally:
        federation.stop()
    assert not strikes
    assert not federation.left_behind()
    releases, sound = federation.releases(), fulcrum.verified_plan(federation.plan)
    for silo, rounds in own.items():
        with read_ledger(federation.state_of(silo) / f"{silo}.ledger") as ledger:
            charged = {entry.round_number: entry.cost.shifts for entry in ledger.entries()}
        assert set(charged) <= set(rounds)
        assert {number for name, number in releases if name == silo} <= set(charged)
        assert all(cost == sound.release_cost(silo, number) for number, cost in charged.items())
    assert [told["round"] for told in federation.history] == list(range(1, 8))
    summed = [told["members"] for told in federation.history]
    for number, members in enumerate(summed, 1):
        roster = [silo for silo in ("a1", "a2", "a3") if number in own[silo]]
        assert members.get("north", roster) == roster
        assert members["south"] == ["c1"]
    assert sum("north" in members for members in summed) >= 5  # a killed region, or a late site, may cost its round
    assert "north" in summed[-1]
    counted = [
        release.values * release.step
        for (silo, number), release in releases.items()
        if any(silo in members for members in summed[number - 1].values())
    ]
    assert np.allclose(federation.model, sum(counted), rtol=0, atol=1e-9)
