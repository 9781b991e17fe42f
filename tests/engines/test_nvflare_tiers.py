"""Three levels of real processes on NVIDIA FLARE: silos, regions, countries and a server."""

import contextlib
import time

import numpy as np
import pytest

import fulcrum
from fulcrum.core.store.ledger_checks import verify_ledger

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from harness import Federation
from test_nvflare_masked import IN_CLEAR

from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.errors import EngineError

BUILT_IN = "fulcrum.engines.built_in_training"
pytestmark = pytest.mark.engines
REGIONS = {region: [f"{region}{k}" for k in (1, 2, 3)] for region in ("ra", "rb", "rc", "rd")}
COUNTRIES = {"east": ["ra", "rb"], "west": ["rc", "rd"]}
SILOS = [silo for silos in REGIONS.values() for silo in silos]
EPSILON = {"region": 8.0, "country": 5.0}


@pytest.fixture
def federation(tmp_path):
    """Makes federations of three levels, and leaves no process of theirs behind."""
    made = []

    def make(*, aggregation, **settings):
        given = {"members": REGIONS, "outer": COUNTRIES, "train": BUILT_IN, "patience": 60.0}
        given |= {"epsilon": EPSILON, "aggregation": aggregation}
        made.append(Federation(tmp_path, **given | settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert not one.left_behind()


def check_ledgers(fed):
    """Every ledger is sound, and holds every release that is in a sum of the server."""
    fed.stop()
    for silo in SILOS:
        rounds = fed.released(silo)
        assert all(check.holds for check in verify_ledger(fed.state_of(silo) / f"{silo}.ledger"))
        assert len(rounds) == len(set(rounds)) <= fed.plan.rounds
        for told in fed.history:
            if any(silo in members for members in told["members"].values()):
                assert told["round"] in rounds


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_three_levels_of_processes_learn_the_model_of_the_embedded_engine(federation, aggregation):
    fed = federation(purpose="research", rounds=2, aggregation=aggregation)
    fed.start()
    fed.submit()
    fed.finish(400)
    embedded = fulcrum.train(fed.plan, "digits", seeds=[0])
    assert np.abs(embedded.models[0]).max() > 1e-3
    assert np.abs(embedded.models[0].ravel() - fed.model).max() < 1e-5
    assert [told["summed"] for told in fed.history] == [["east", "west"]] * 2
    members = {country: [silo for region in below for silo in REGIONS[region]] for country, below in COUNTRIES.items()}
    assert fed.history[0]["members"] == members


def test_the_server_carries_masked_vectors_and_shares_of_regions_below_countries_sealed_alone(federation):
    fed = federation(rounds=1, aggregation="masked", train="slow_head")
    fed.start(conduct={"server": "record"})
    fed.submit()
    fed.finish(200)
    fed.stop()
    recorded = fed.recorded()
    assert fed.history[0]["summed"] == ["east", "west"]
    assert recorded.count(b"fulcrum.sealed-answer/1") >= 5 * len(SILOS)
    assert not any(holds in recorded for holds in IN_CLEAR)
    check_ledgers(fed)


def run_to_the_end(fed):
    """Follows a run whose server dies; jobs that fail one soon after the other end the following."""
    deadline = time.monotonic() + 500
    while fed.state["round_number"] <= fed.plan.rounds and time.monotonic() < deadline:
        with contextlib.suppress(EngineError):
            follow(fed.kits, tick=lambda: None)
    assert [told["round"] for told in fed.history] == list(range(1, fed.plan.rounds + 1))


def spare(fed, name, *rounds):
    """Keeps a site from falling in some rounds."""
    for number in rounds:
        fed.kits.parent.joinpath(f"recorded.fell-{name}-{number}").touch()


def test_masked_sites_of_every_level_that_fall_at_every_stage_learn_the_model_of_the_embedded_engine(federation):
    """In round r a silo, a region, a country and the server fall at stage r.

    The region stands at the unmasking: its silos unmask once, and a region that falls then has no sum.
    """
    fed = federation(purpose="research", rounds=5, aggregation="masked")
    spare(fed, "rd", 5)
    fed.start(conduct=dict.fromkeys(("ra1", "rd", "east", "server"), "fall"))
    run_to_the_end(fed)
    assert len(list(fed.kits.parent.glob("recorded.fell-*"))) == 4 * 5
    assert [told["summed"] for told in fed.history] == [["east", "west"]] * 5
    embedded = fulcrum.train(fed.plan, "digits", seeds=[0])
    assert np.abs(embedded.models[0].ravel() - fed.model).max() < 1e-5


def test_masked_sites_that_fall_at_every_stage_charge_what_left_and_withhold_as_the_plan_says(federation):
    fed = federation(rounds=5, aggregation="masked", train="slow_head")
    fed.start(conduct=dict.fromkeys(("ra1", "rd", "east"), "fall"))
    run_to_the_end(fed)
    assert len(list(fed.kits.parent.glob("recorded.fell-*"))) == 3 * 5
    assert [told["summed"] for told in fed.history] == [["east", "west"]] * 4 + [["east"]]
    for silo in SILOS:
        assert fed.released(silo) == [1, 2, 3, 4, 5]
    check_ledgers(fed)


def test_trusted_sites_of_every_level_that_fall_at_every_point_charge_what_left(federation):
    """A silo falls before and after its release, an aggregator before and after messages and its sum."""
    fed = federation(rounds=8, aggregation="trusted", train="slow_head", patience=20.0)
    for name in ("ra1", "rd"):
        spare(fed, name, *range(5, 9))
    for name in ("east", "server"):
        spare(fed, name, *range(1, 5))
    fed.start(conduct=dict.fromkeys(("ra1", "rd", "east", "server"), "tumble"))
    run_to_the_end(fed)
    assert len(list(fed.kits.parent.glob("recorded.fell-*"))) == 4 * 8
    for told in fed.history:
        assert set(told["summed"]) <= {"east", "west"}
        for country, reason in told["withheld"].items():
            assert "missing" in reason, country  # a sum with less noise than the plan counts on
    check_ledgers(fed)
