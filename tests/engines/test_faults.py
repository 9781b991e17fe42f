"""Everything that goes wrong in a federation of real processes: it goes on or ends, and no ledger tells less than left.

Most tests start nine sites and a server. Run them with: make test-engines
"""

import shutil
import subprocess
import time

import pytest
from harness import MEMBERS, Federation, Relay

from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.nvflare.kits.console import COMPLETED, follow, session
from fulcrum.errors import EngineError, ExchangeError

pytestmark = pytest.mark.engines

SILOS = [silo for silos in MEMBERS.values() for silo in silos]
REGIONS = sorted(MEMBERS)


@pytest.fixture
def federation(tmp_path):
    """Makes federations, and leaves no process of theirs behind."""
    made = []

    def make(**settings):
        made.append(Federation(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert not one.left_behind()


def check_ledgers(federation, silos=SILOS):
    """Every ledger is sound, and holds each release that a region has seen or summed; the federation is over."""
    federation.stop()
    for region in MEMBERS:
        site = federation.kits / region
        with Region.open(
            site / "local/fulcrum/state/sums.db", federation.plan, region, site / "local/fulcrum/site.key"
        ) as kept:
            for told in kept.rounds():
                for silo in set(told.members) & set(silos):
                    assert told.round_number in federation.released(silo), (region, told, silo)
    for silo in silos:
        path = federation.state_of(silo) / f"{silo}.ledger"
        if path.exists():
            assert all(check.holds for check in verify_ledger(path))
            rounds = federation.released(silo)
            assert len(rounds) == len(set(rounds)) <= federation.plan.rounds


def summed(federation, round_number):
    return federation.history[round_number - 1]["summed"]


@pytest.mark.parametrize("struck", ["its whole site", "its job process alone"])
def test_a_silo_killed_in_mid_round_rejoins_and_spends_nothing_twice(federation, struck):
    fed = federation(rounds=4, patience=60)
    fed.start()
    fed.submit()
    fed.wait_for(2)
    time.sleep(0.5)
    (fed.restart if struck == "its whole site" else fed.kill_job_process)("b2")
    fed.finish()
    assert [told["summed"] for told in fed.history] == [REGIONS] * 4
    assert fed.released("b2") == [1, 2, 3, 4]
    check_ledgers(fed)


def test_a_region_killed_in_mid_round_comes_back_with_its_sums(federation):
    fed = federation(rounds=5, patience=30)
    fed.start()
    fed.submit()
    fed.wait_for(2)
    time.sleep(0.5)
    fed.restart("mid")
    fed.finish(240)
    # Silos that were told of no such task while it was down sit out that round: withheld, never summed in part.
    assert [told["summed"] for told in fed.history].count(REGIONS) >= 4
    assert summed(fed, 5) == REGIONS
    check_ledgers(fed)


def test_a_killed_server_resumes_from_its_checkpoint(federation):
    fed = federation(rounds=4, patience=60)
    fed.start()
    fed.submit()
    fed.wait_for(3)
    before = fed.history[:2]
    time.sleep(0.5)
    fed.loopback.kill("server")
    fed.loopback.start("server", fed.environment())
    follow(fed.kits, tick=lambda: None)
    assert fed.history[:2] == before
    assert [told["round"] for told in fed.history] == [1, 2, 3, 4]
    assert [told["summed"] for told in fed.history] == [REGIONS] * 4
    assert fed.released("c1") == [1, 2, 3, 4]  # the round in hand was answered with the release it already had
    check_ledgers(fed)


def test_a_server_job_process_that_is_killed_is_resumed_by_whoever_follows(federation):
    fed = federation(rounds=3, patience=60)
    fed.start()
    struck = []

    def strike():
        if fed.state["round_number"] == 2 and not struck:
            struck.append(True)
            fed.kill_job_process("server")

    follow(fed.kits, tick=strike)
    assert struck
    assert [told["summed"] for told in fed.history] == [REGIONS] * 3
    check_ledgers(fed)


def test_ten_times_the_norm_is_refused_and_the_region_withholds(federation):
    fed = federation(rounds=2, patience=15)
    fed.start(conduct={"b2": "loud"})
    fed.submit()
    fed.finish()
    for told in fed.history:
        assert told["summed"] == ["north", "south"]
        assert "1 of 3 silos are missing" in told["withheld"]["mid"]
    assert "norm above" in fed.log("mid")
    assert fed.released("b2") == [1, 2]  # charged: its region has seen what it sent
    check_ledgers(fed)


def test_junk_in_the_name_of_another_silo_leaves_that_silo_in_the_sum(federation):
    fed = federation(rounds=2, dropouts=1, patience=60, members={"mid": ["b1", "b2", "b3"]}, train="slow_head")
    fed.start(conduct={"b1": "pose", "b2": "late"})
    fed.submit()
    fed.finish()
    for told in fed.history:
        assert told["members"]["mid"] == ["b1", "b2", "b3"]  # though the plan does without one
    assert fed.log("mid").count("refused what came as from 'b2'") == 6
    assert fed.log("b1").count("__train_end answered with TIMEOUT") == 2  # the region does not hear it
    assert fed.log("b1").count("__end_run__ answered with TIMEOUT") == 2
    fed.stop()
    for silo in ("b1", "b2", "b3"):
        assert fed.released(silo) == [1, 2]


def test_a_plan_that_the_server_cannot_run_is_given_up_at_once_and_in_words(federation):
    fed = federation(rounds=2, patience=30, members={"north": ["a1"]}, train="no_model")
    fed.start()
    asked = []
    with pytest.raises(EngineError, match=r"cannot run this plan: .* must return a dict of named arrays, got list"):
        follow(fed.kits, tick=lambda: None, on_status=asked.append)
    assert asked.count("RUNNING") == 1
    assert fed.released("a1") == []


def test_a_site_that_comes_up_after_the_job_was_submitted_is_found_soon(federation):
    """However long it took: the server goes on trying every few seconds, and does not wait ever longer."""
    fed = federation(rounds=1, patience=60, members={"north": ["a1"]}, train="slow_head")
    fed.start(absent=["a1"])
    fed.submit()
    time.sleep(30)
    tried = fed.tries()
    assert len(tried) >= 5
    assert all("a1" in told or "north" in told for told in tried)  # whom it waits for
    fed.loopback.start("a1", fed.environment())
    fed.finish()
    assert fed.released("a1") == [1]


def test_a_replayed_release_is_refused(federation):
    fed = federation(rounds=4, patience=15)
    fed.start(conduct={"a2": "replay"})
    fed.submit()
    fed.finish()
    assert [told["summed"] == REGIONS for told in fed.history] == [True, True, False, False]
    assert "sent its release for round 2, and the region gathers round 3" in fed.log("north")
    check_ledgers(fed)


@pytest.mark.parametrize("lie", ["ask_again", "ask_past"])
def test_a_server_that_asks_for_what_the_plan_does_not_allow_gets_nothing(federation, lie):
    fed = federation(rounds=4, patience=30)
    fed.start(conduct={"server": lie})
    fed.submit()
    fed.wait_until(lambda: fed.status().startswith("FINISHED"), 180, "end of the job")
    assert fed.status() != COMPLETED
    assert len(fed.history) == 3  # a round in which no region summed is not counted
    for silo in SILOS:
        assert fed.released(silo) == [1, 2, 3]
    check_ledgers(fed)


def test_the_server_can_read_no_file_and_no_error_of_a_site(federation):
    fed = federation(rounds=2, patience=30)
    fed.start()
    fed.submit()
    fed.wait_for(2)
    with session(fed.kits) as opened:
        for ask in (
            lambda: opened.cat_target("a1", file="local/fulcrum/site.toml"),
            lambda: opened.ls_target("a1"),
            lambda: opened.show_errors(fed.job, "client", ["a1"]),
        ):
            try:
                told = str(ask())
            except Exception as error:
                told = str(error)
            assert "fulcrum.site/" not in told
            assert "startup" not in told
    fed.finish()
    check_ledgers(fed)


def test_a_job_that_is_aborted_in_mid_round_finishes_no_round(federation):
    fed = federation(rounds=3, patience=60)
    fed.start()
    fed.submit()
    fed.wait_for(2)
    time.sleep(0.3)
    with session(fed.kits) as opened:
        opened.abort_job(fed.job)
    fed.wait_until(lambda: fed.status().startswith("FINISHED"), 60, "end of the job")
    assert [told["summed"] for told in fed.history] == [REGIONS] * len(fed.history)
    follow(fed.kits, tick=lambda: None)
    assert [told["summed"] for told in fed.history] == [REGIONS] * 3
    check_ledgers(fed)


def test_a_silo_under_another_plan_is_refused(federation, tmp_path):
    fed = federation(rounds=2, patience=15)
    (tmp_path / "other").mkdir()
    other = Federation(tmp_path / "other", rounds=3)
    mine, theirs = (one.kits / "b1" / "local" / "fulcrum" for one in (fed, other))
    for name in ("plan.json", "plan.json.sig", "site.key", "site.toml"):
        shutil.copy(theirs / name, mine / name)
    fed.start()
    fed.submit()
    fed.finish()
    assert all("mid" in told["withheld"] and told["summed"] == ["north", "south"] for told in fed.history)
    assert "another plan" in next(line for line in fed.log("mid").splitlines() if "came as from 'b1'" in line)
    check_ledgers(fed, [silo for silo in SILOS if silo != "b1"])


def test_a_silo_without_a_certificate_of_the_federation_is_not_let_in(federation, tmp_path):
    fed = federation(rounds=2, patience=20)
    (tmp_path / "other").mkdir()
    other = Federation(tmp_path / "other", rounds=2)
    for name in ("client.crt", "client.key"):
        shutil.copy(other.kits / "c1" / "startup" / name, fed.kits / "c1" / "startup" / name)
    fed.start()
    fed.submit()
    time.sleep(30)
    assert fed.status() == "SUBMITTED"  # the job waits for every site that the plan names
    assert not fed.history
    assert fed.released("c1") == []


def test_a_network_cut_of_thirty_seconds_mends_itself(federation):
    fed = federation(rounds=4, patience=120)
    relay_port = free_port()
    relay = Relay(relay_port, fed.deployment.port)
    settings = fed.kits / "mid" / "startup" / "fed_client.json"
    settings.write_text(settings.read_text().replace(f"localhost:{fed.deployment.port}", f"localhost:{relay_port}"))
    fed.start()
    fed.submit()
    fed.wait_for(2)
    time.sleep(0.5)
    relay.cut()
    time.sleep(30)
    relay.mend()
    fed.finish(300)
    assert [told["round"] for told in fed.history] == [1, 2, 3, 4]
    assert summed(fed, 4) == REGIONS
    check_ledgers(fed)


def test_a_plan_made_for_dropouts_goes_on_without_one(federation):
    fed = federation(rounds=3, dropouts=1, patience=15)
    fed.start()
    fed.submit()
    fed.wait_for(2)
    fed.loopback.kill("b3")
    fed.finish()
    assert fed.history[2]["members"]["mid"] == ["b1", "b2"]
    assert fed.history[2]["summed"] == REGIONS
    check_ledgers(fed)


def test_a_region_sends_the_same_sum_for_ever(federation):
    fed = federation(rounds=2, patience=30)
    fed.start()
    fed.submit()
    fed.finish()
    fed.stop()
    site = fed.kits / "north"
    with Region.open(site / "local/fulcrum/state/sums.db", fed.plan, "north", site / "local/fulcrum/site.key") as kept:
        first, again = kept.close_round(1), kept.close_round(1)
        assert isinstance(first, RegionalSum)
        assert first.to_bytes() == again.to_bytes()
        with pytest.raises(ExchangeError):
            kept.accept(b"anything", 1)


def test_no_process_is_left_when_the_command_is_interrupted(tmp_path):
    import signal
    import sys

    fed = Federation(tmp_path, rounds=500)
    command = [
        sys.executable,
        "-m",
        "fulcrum.cli",
        "up",
        "nvflare",
        str(fed.kits / "plan.json"),
        "--data",
        "digits",
    ]
    command += ["-o", str(tmp_path / "up")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 90
        while not (tmp_path / "up" / "kits" / "server" / "local/fulcrum/state/checkpoint.npz").exists():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert not fed.left_behind(tmp_path / "up" / "kits")
