"""Masked sums on NVIDIA FLARE with real processes: the model of one process, falls at every stage, and what travels.

Run them with: make test-engines
"""

import contextlib

import numpy as np
import pytest
from harness import Federation

import fulcrum
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.engines.nvflare.kits.nvflare_kits import ADMIN
from fulcrum.errors import EngineError

pytestmark = pytest.mark.engines

MEMBERS = {"north": ["a1", "a2", "a3", "a4"], "south": ["c1", "c2", "c3", "c4"]}
SILOS = [silo for silos in MEMBERS.values() for silo in silos]
BUILT_IN = "fulcrum.engines.built_in_training"
IN_CLEAR = (b"\xa5holds\xa5input", b"\xa5holds\xa9unmasking")
"""In the header of every answer with a masked vector, and of every answer with shares that unmask, as msgpack."""


@pytest.fixture
def federation(tmp_path):
    """Makes federations of masked sums, and leaves no process of theirs behind."""
    made = []

    def make(**settings):
        given = {"members": MEMBERS, "aggregation": "masked", "train": BUILT_IN, "patience": 60.0}
        made.append(Federation(tmp_path, **given | settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
        assert not one.left_behind()


def check_ledgers(fed):
    """Every ledger is sound, and holds every release that is in a sum."""
    fed.stop()
    for silo in SILOS:
        rounds = fed.released(silo)
        assert all(check.holds for check in verify_ledger(fed.state_of(silo) / f"{silo}.ledger"))
        assert len(rounds) == len(set(rounds)) <= fed.plan.rounds
        for told in fed.history:
            if any(silo in members for members in told["members"].values()):
                assert told["round"] in rounds


@pytest.mark.parametrize("epsilon", [5.0, {"federation": 5.0}], ids=["regions", "one group"])
def test_masked_sums_learn_the_model_of_the_embedded_engine(federation, epsilon):
    fed = federation(purpose="research", rounds=3, epsilon=epsilon)
    fed.start()
    fed.submit()
    fed.finish()
    embedded = fulcrum.train(fed.plan, "digits", seeds=[0])
    assert np.abs(embedded.models[0]).max() > 1e-3
    assert np.abs(embedded.models[0].ravel() - fed.model).max() < 1e-5
    groups = ["federation"] if isinstance(epsilon, dict) else ["north", "south"]
    assert [told["summed"] for told in fed.history] == [groups] * 3


@pytest.mark.parametrize("who", ["a2", "north"])
def test_a_site_that_is_killed_at_every_stage_comes_back_and_ledgers_show_what_left(federation, who):
    """In round r the site falls at the r-th stage. A region that falls at the unmasking loses its sum of that round."""
    fed = federation(rounds=5, dropouts=1)
    fed.start(conduct={who: "fall"})
    fed.submit()
    fed.finish(400)
    assert len(list(fed.kits.parent.glob(f"recorded.fell-{who}-*"))) == 5
    for told in fed.history:
        lost = who == "north" and told["round"] == 5
        assert told["summed"] == (["south"] if lost else ["north", "south"])
        if not lost:
            assert set(MEMBERS["north"]) - {who} <= set(told["members"]["north"])
    assert fed.released("a1") == [1, 2, 3, 4, 5]
    check_ledgers(fed)


def test_a_server_that_is_killed_at_every_stage_is_resumed_by_whoever_follows(federation):
    fed = federation(rounds=5)
    fed.start(conduct={"server": "fall"})
    with contextlib.suppress(EngineError):  # five jobs that fail one soon after the other end the following
        follow(fed.kits, tick=lambda: None)
    follow(fed.kits, tick=lambda: None)
    assert len(list(fed.kits.parent.glob("recorded.fell-server-*"))) == 5
    assert [told["round"] for told in fed.history] == [1, 2, 3, 4, 5]
    assert [told["summed"] for told in fed.history] == [["north", "south"]] * 5
    for silo in SILOS:
        assert fed.released(silo) == [1, 2, 3, 4, 5]
    check_ledgers(fed)


def test_a_silo_that_refuses_declines_and_nobody_waits_for_it(federation):
    """Far within the patience of a region: two rounds with a silo that does not answer would take four times as long."""
    fed = federation(rounds=2, dropouts=1, patience=300.0)
    fed.start(conduct={"a2": "mute"})
    fed.submit()
    fed.finish(200)
    for told in fed.history:
        assert told["members"]["north"] == ["a1", "a3", "a4"]
    assert fed.released("a2") == []
    assert "declined" in fed.log("a2")
    check_ledgers(fed)


def test_the_server_receives_no_release_and_sees_masked_vectors_alone(federation):
    fed = federation(rounds=1)
    fed.start(conduct={"server": "record"})
    fed.submit()
    fed.finish()
    fed.stop()
    recorded = fed.recorded()
    assert recorded.count(b"fulcrum.masking/1") > 5 * len(SILOS)
    for holds in IN_CLEAR:  # below countries the same stages are sealed: test_nvflare_tiers.py
        assert recorded.count(holds) >= len(SILOS)
    for silo in SILOS:
        assert fed.released(silo) == [1]
        values = release_of(fed, silo)
        for kind in (np.int64, np.uint32, np.uint64):
            sent = values.astype(kind).tobytes()
            size = 3 * np.dtype(kind).itemsize
            assert not any(sent[start : start + size] in recorded for start in range(0, len(sent) - size + 1, size))
    assert ADMIN.encode() in recorded  # the record is of what arrives


def release_of(fed, silo):
    from fulcrum.core.messages.release_message import Release
    from fulcrum.core.store.ledger_reading import read_ledger

    with read_ledger(fed.state_of(silo) / f"{silo}.ledger") as ledger:
        [entry] = ledger.entries()
        return Release.from_bytes(ledger.payload_of(entry)).values
