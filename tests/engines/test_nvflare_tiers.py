"""Three levels of real processes on NVIDIA FLARE: silos, regions, countries and a server."""

import numpy as np
import pytest

import fulcrum
from fulcrum.core.store.ledger_checks import verify_ledger

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

from harness import Federation

BUILT_IN = "fulcrum.engines.built_in_training"
pytestmark = pytest.mark.engines
REGIONS = {region: [f"{region}{k}" for k in (1, 2, 3)] for region in ("ra", "rb", "rc", "rd")}
COUNTRIES = {"east": ["ra", "rb"], "west": ["rc", "rd"]}
SILOS = [silo for silos in REGIONS.values() for silo in silos]
EPSILON = {"trusted": {"region": 8.0, "country": 5.0}, "masked": {"region": 8.0, "federation": 5.0}}
"""The server of masked sums knows the sum of every region: a target on countries is for trusted aggregators alone."""


@pytest.fixture
def federation(tmp_path):
    """Makes federations of three levels, and leaves no process of theirs behind."""
    made = []

    def make(*, aggregation, **settings):
        given = {"members": REGIONS, "outer": COUNTRIES, "train": BUILT_IN, "patience": 60.0}
        given |= {"epsilon": EPSILON[aggregation], "aggregation": aggregation}
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


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_aggregators_that_are_killed_come_back_and_ledgers_show_what_left(federation, aggregation):
    """The job process of a country, then of a region, is killed in the midst of a round."""
    fed = federation(rounds=4, train="slow_head", aggregation=aggregation)
    fed.start()
    fed.submit()
    for number, name in ((2, "east"), (3, "rc")):
        fed.wait_for(number, 240)
        fed.kill_job_process(name)
    fed.finish(400)
    assert [told["round"] for told in fed.history] == [1, 2, 3, 4]
    assert fed.history[0]["summed"] == ["east", "west"]
    for told in fed.history:
        assert told["summed"] in ([], ["east"], ["west"], ["east", "west"])
    check_ledgers(fed)
