"""Ten rounds on the digits: the same model as in one process, and a server that can read no silo's release."""

import numpy as np
import pytest
from harness import MEMBERS, Federation, exposed

import fulcrum

pytestmark = pytest.mark.engines

SILOS = [silo for silos in MEMBERS.values() for silo in silos]


@pytest.fixture
def federation(tmp_path):
    # Patience: where the machine is busy, silos take long to load their data, and a region that withholds ends the job.
    made = Federation(
        tmp_path, purpose="research", rounds=10, train="fulcrum.engines.built_in_training", patience=120.0
    )
    yield made
    made.stop()


def run(federation, *, encrypted):
    extra = "" if encrypted else "plain,"
    conduct = dict.fromkeys(SILOS, f"{extra}tell") | dict.fromkeys(MEMBERS, extra) | {"server": "record"}
    federation.start(conduct=conduct)
    federation.submit()
    federation.finish()
    federation.stop()


def test_the_model_is_that_of_the_embedded_engine_and_the_server_reads_no_release(federation):
    run(federation, encrypted=True)
    embedded = fulcrum.train(federation.plan, "digits", seeds=[0])
    assert np.abs(embedded.models[0].ravel() - federation.model).max() < 1e-5

    recorded, releases = federation.recorded(), federation.releases()
    assert len(releases) == 60
    assert recorded.count(b"fulcrum.sealed/2") >= 60  # they do pass through the server
    leaked = {silo for (silo, _), release in releases.items() if exposed(recorded, release)}
    assert leaked == {"c1"}  # the one silo of its region: its sum is its release, and is planned as such


def test_without_encryption_the_same_test_finds_every_release(federation):
    run(federation, encrypted=False)
    recorded, releases = federation.recorded(), federation.releases()
    assert len(releases) == 60
    assert all(exposed(recorded, release) for release in releases.values())
