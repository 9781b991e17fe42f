"""What the server on Flower measures after each round, and where it tells of it."""

import numpy as np
import pytest

import fulcrum

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from flower_world import FlowerWorld

from fulcrum.core.silo.site import read_site
from fulcrum.engines.flower.client_app import client_app
from fulcrum.engines.flower.server_app import run_plan
from fulcrum.engines.flower.server_side.run_recorder import local_run, run_of
from fulcrum.engines.site_folders import BUILT_IN
from fulcrum.server.run_results import read_results

SIZES = {"north": dict.fromkeys(("caen", "lille", "metz"), 100), "south": dict.fromkeys(("lyon", "nice"), 80)}


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = FlowerWorld(tmp_path, SIZES, module=BUILT_IN, parameters=34, purpose="research", epsilon=5.0)
    made.app = client_app
    monkeypatch.setenv("FULCRUM_SITE", str(made.folder / "server"))
    return made


def test_every_round_has_the_accuracy_that_the_embedded_engine_has_after_it(world):
    told = []
    run_plan(world.grid(), told.append)
    site = read_site(world.folder / "server", "server")
    run = read_results(site.folder, world.plan).run
    embedded = fulcrum.train(world.plan, "digits", seeds=[0])
    assert [found.round for found in run.rounds] == [1, 2, 3]
    assert [found.accuracy for found in run.rounds] == pytest.approx(embedded.accuracy[0].tolist())
    assert told == run.rounds
    assert (run.engine, run.task, run.accuracy) == ("flower", "digits", run.rounds[-1].accuracy)
    assert [(found.regions, found.silos) for found in run.rounds] == [(2, 5)] * 3
    done = local_run(site, 1.0)
    assert done.run == run
    assert np.abs(done.model["head"] - embedded.models[0]).max() < 1e-5


def test_a_server_that_was_killed_measures_the_rounds_before_and_tells_of_those_it_runs(world):
    def killed(node, stage):
        if stage == 8:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_plan(world.grid(drop=killed))
    server = world.folder / "server"
    (server / "run.json").unlink()
    (server / "state" / "metrics.json").unlink()  # as if it had died before it measured
    told = []
    run_plan(world.grid(), told.append)
    run = run_of(read_site(server, "server"))
    assert [found.round for found in told] == [2, 3]
    assert [found.round for found in run.rounds] == [1, 2, 3]
    assert all(found.accuracy is not None for found in run.rounds)
