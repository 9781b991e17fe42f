"""Plans whose server pools, on real processes: the model of one process, and of whoever has the same regional sums."""

import time

import numpy as np
import pytest
from harness import MEMBERS, Federation

import fulcrum
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.server.coordinator import Coordinator

pytestmark = pytest.mark.engines

REGIONS = sorted(MEMBERS)


@pytest.fixture
def federation(tmp_path):
    made = []

    def of(**options):
        made.append(Federation(tmp_path, recipe="joint", **options))
        return made[-1]

    yield of
    for one in made:
        one.stop()
        assert not one.left_behind()


def test_a_research_plan_learns_the_model_of_the_embedded_engine(federation):
    fed = federation(purpose="research", rounds=4, train="fulcrum.engines.built_in_training")
    assert fed.plan.clip_share < 0.9
    fed.start()
    fed.submit()
    fed.finish()
    embedded = fulcrum.train(fed.plan, "digits", seeds=[0])
    assert np.abs(embedded.models[0]).max() > 1e-3
    assert np.abs(embedded.models[0].ravel() - fed.model).max() < 1e-5
    told = [entry["diagnostics"] for entry in fed.history]
    assert [one["heard"] for one in told] == [3] * 4
    assert all(one["step"] > 0 and one["noise"] > 0 and 0 < one["shrunk"] < 1 for one in told)


def test_a_deployment_whose_server_is_killed_ends_on_the_bits_of_its_regional_sums(federation, tmp_path):
    fed = federation(rounds=4, patience=60)
    fed.start(conduct=dict.fromkeys([silo for members in MEMBERS.values() for silo in members], "tell"))
    fed.submit()
    fed.wait_for(3)
    fed.loopback.kill("server")
    fed.loopback.start("server", fed.environment())
    follow(fed.kits, tick=lambda: time.sleep(0.1))
    assert [told["summed"] for told in fed.history] == [REGIONS] * 4
    releases = fed.releases()
    again = Coordinator.open(tmp_path / "again", fed.plan, {"head": np.zeros((17, 2))}, classes=2)
    for number in range(1, 5):
        for region, members in MEMBERS.items():
            made = [releases[silo, number] for silo in members]
            answer = RegionalSum(
                plan_digest=fed.plan.digest,
                region=region,
                round_number=number,
                members=tuple(sorted(members)),
                layout=made[0].layout,
                values=sum(one.values for one in made),
                step=made[0].step,
            )
            again.receive(answer.to_bytes(), region)
        again.finish_round()
    assert np.array_equal(again.model["head"].ravel(), fed.model)
    for silos in MEMBERS.values():
        for silo in silos:
            assert fed.released(silo) == [1, 2, 3, 4]
