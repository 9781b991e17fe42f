"""What a server refuses: sums that no honest region sends, plans that do not hold, checkpoints that cannot be."""

import dataclasses
import json
import os

import numpy as np
import pytest
from error_codes import coded
from test_pooling_server import HEAD, joint, said
from test_server import SIZES, START, World, refusal, sum_of

import fulcrum
from fulcrum.aggregation.norm_tests import largest_sum, least_sum, norm_bounds
from fulcrum.errors import ExchangeError, StorageError
from fulcrum.server.checkpoint import NAME
from fulcrum.server.coordinator import Coordinator

SIGNS = np.tile([1, -1], 20)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("coordination"))


@pytest.fixture
def server(world, tmp_path):
    return Coordinator.open(tmp_path, joint(world), HEAD, classes=2)


def test_a_sum_that_lacks_more_silos_than_the_plan_does_without_is_refused(world, tmp_path, server):
    """Pooled, it would be scaled up as if the few that it names were the whole region."""
    plan = joint(world)
    told = refusal(server.receive, said(plan, "north", 1, members=("caen",)), "north")
    assert "lacks noise: 2 of 3 silos are missing, the plan does without 1" in told
    adding = Coordinator.open(tmp_path / "adding", world.deployment, START)
    with pytest.raises(ExchangeError, check=coded("server.sum-lacks-noise")):
        adding.receive(sum_of(world.deployment, members=("caen",)), "north")
    server.receive(said(plan, "north", 1, members=("caen", "metz")), "north")


@pytest.mark.parametrize("purpose", ["deployment", "research"])
def test_a_sum_larger_than_releases_add_up_to_is_refused(world, tmp_path, purpose):
    """One region could otherwise take the model, and with it the server's checkpoint, beyond what numbers hold."""
    plan = joint(world, purpose)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    most = largest_sum(plan, [0, 1, 2], 40) / np.sqrt(40)
    kind = "<f8" if purpose == "research" else "<i8"
    for size in (1.001 * most, 1e6 * most, 1e15 * most):
        values = np.clip(size * SIGNS, -(2.0**62), 2.0**62).astype(kind)
        told = refusal(server.receive, said(plan, "north", 1, values=values), "north")
        assert "a norm above the largest sum of releases under the plan" in told
    server.receive(said(plan, "north", 1, values=(0.999 * most * SIGNS).astype(kind)), "north")
    server.finish_round()
    assert Coordinator.open(tmp_path, plan, HEAD, classes=2).model_digest == server.model_digest


@pytest.mark.parametrize("purpose", ["deployment", "research"])
def test_a_sum_without_the_noise_of_its_silos_is_refused(world, tmp_path, purpose):
    plan = joint(world, purpose)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    least = least_sum(plan, [0, 1, 2], 40) / np.sqrt(40)
    kind = "<f8" if purpose == "research" else "<i8"
    for size in (0.0, 0.5 * least, 0.999 * least):
        values = np.trunc(size * SIGNS).astype(kind) if kind == "<i8" else size * SIGNS
        with pytest.raises(ExchangeError, check=coded("server.sum-norm", side="below the noise of its releases")):
            server.receive(said(plan, "north", 1, values=values), "north")
    server.receive(said(plan, "north", 1, values=np.ceil(1.001 * least * np.abs(SIGNS)).astype(kind)), "north")


def test_no_sum_of_releases_that_a_region_takes_is_refused_for_its_norm(world):
    plan = joint(world)
    for silos in ([0], [3, 4], [0, 1, 2]):
        each = [norm_bounds(plan, silo, 40)[1] for silo in silos]
        assert largest_sum(plan, silos, 40) == pytest.approx(sum(each), rel=1e-12)


def test_a_round_that_would_take_the_model_beyond_numbers_is_not_written(world, tmp_path, monkeypatch):
    """Whatever the reason: what is on disk stays, and can be read."""
    plan = joint(world)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    for region in SIZES:
        server.receive(said(plan, region, 1), region)
    server.finish_round()
    before = (tmp_path / NAME).read_bytes()
    for region in SIZES:
        server.receive(said(plan, region, 2), region)
    with monkeypatch.context() as patch:
        patch.setattr("fulcrum.rules.random_effects_rule._AGREEMENT", -1e9)
        with np.errstate(all="ignore"), pytest.raises(ExchangeError, check=coded("server.model-overflow")):
            server.finish_round()
    assert (tmp_path / NAME).read_bytes() == before
    assert server.round_number == 2
    server.finish_round()
    assert server.is_finished


def test_a_server_pools_under_no_plan_that_promises_something_further_out(world, tmp_path):
    federation = fulcrum.Federation.from_sizes(SIZES)
    options = {"rounds": 2, "parameters": 40, "purpose": "deployment", "keys": world.keys}
    outer = fulcrum.plan(federation, epsilon={"federation": 1.0, "aggregator": 6.0}, **options)
    pools = dataclasses.replace(outer, server="random-effects", shrink="heads")
    promises = dataclasses.replace(joint(world), epsilon_target={"region": 1.0, "silo": 6.0, "federation": 0.9})
    for plan in (pools, promises):
        told = refusal(Coordinator.open, tmp_path / "server", plan, HEAD)
        assert "does not hold what it says: server, random-effects over regions, with a target on 'federation'" in told
    assert not (tmp_path / "server").exists()


def test_a_server_runs_the_plan_that_was_verified_whatever_was_changed_in_memory(world, tmp_path):
    plan = joint(world)
    assert plan.digest  # taken before the change, as by whoever signed it
    expected = fulcrum.verified_plan(plan).least_influence
    object.__setattr__(plan, "least_influence", 0.9)
    assert Coordinator.open(tmp_path / "server", plan, HEAD)._plan.least_influence == expected != 0.9


def states_that_cannot_be(arrays, state):
    """Changes of a checkpoint's arrays, or of what it says beside them."""
    for name in ("said", "heard", "noise", "moved", "start", "model"):
        yield {name: arrays[name] * np.nan}
        yield {name: arrays[name].astype(np.complex128)}
    infinite = arrays["start"] + np.inf
    yield {"start": infinite, "model": infinite}
    for factor in (0, -1):
        yield {"noise": factor * arrays["noise"]}
        yield {"heard": factor * arrays["heard"]}
    yield {"heard": 3 * arrays["heard"]}
    yield {"heard": arrays["heard"] * [1, 0], "noise": arrays["noise"] * [1, 0]}  # and yet it said something
    pooling = state["pooling"]
    changed = [{"pooling": pooling | {name: value}} for name in ("step", "steps") for value in (0.0, -1.0)]
    entry = state["history"][0]
    changed += [
        {"round_number": 4, "history": [entry | {"round": number} for number in (1, 2, 3)]},
        {"history": [entry | {"round": 2}]},
        {"round_number": 0, "history": []},
    ]
    for one in changed:
        yield {"state": np.frombuffer(json.dumps(state | one).encode(), dtype=np.uint8)}


def test_a_checkpoint_that_no_server_can_have_come_to_is_refused(world, tmp_path):
    plan = joint(world)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    for region in SIZES:
        server.receive(said(plan, region, 1), region)
    server.finish_round()
    with np.load(tmp_path / NAME) as found:
        arrays = dict(found)
    tried = 0
    for changed in states_that_cannot_be(arrays, json.loads(arrays["state"].tobytes())):
        np.savez(tmp_path / NAME, **(arrays | changed))
        assert "is not a checkpoint" in refusal(Coordinator.open, tmp_path, plan, HEAD, kind=StorageError), changed
        tried += 1
    assert tried == 26
    np.savez(tmp_path / NAME, **arrays)
    assert Coordinator.open(tmp_path, plan, HEAD, classes=2).model_digest == server.model_digest


def test_a_checkpoint_cut_short_or_with_a_bit_turned_is_refused(world, tmp_path):
    plan = joint(world)
    Coordinator.open(tmp_path, plan, HEAD, classes=2)
    whole = (tmp_path / NAME).read_bytes()
    with np.load(tmp_path / NAME) as found:
        arrays = {name: found[name].tobytes() for name in found}
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / NAME).write_bytes(whole[:length])
        refusal(Coordinator.open, tmp_path, plan, HEAD, kind=StorageError)
    for place in range(0, len(whole), 41):
        turned = bytearray(whole)
        turned[place] ^= 0x40
        (tmp_path / NAME).write_bytes(bytes(turned))
        try:
            Coordinator.open(tmp_path, plan, HEAD, classes=2)
        except StorageError:
            continue
        with np.load(tmp_path / NAME) as found:  # a bit that nothing depends on, such as a date
            assert {name: found[name].tobytes() for name in found} == arrays


def test_a_checkpoint_that_a_link_no_longer_leads_to_is_not_begun_anew(world, tmp_path):
    """Its disk may be missing: a second first round would be on another model than silos released on."""
    (tmp_path / NAME).symlink_to(tmp_path / "unmounted" / NAME)
    told = refusal(Coordinator.open, tmp_path, joint(world), HEAD, kind=StorageError)
    assert "cannot be read" in told
    assert (tmp_path / NAME).is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_or_folder_in_place_of_a_checkpoint_is_refused_and_not_waited_for(world, tmp_path):
    for make, told in ((os.mkfifo, "is no file"), (os.mkdir, "is a folder")):
        folder = tmp_path / told.replace(" ", "-")
        folder.mkdir()
        make(folder / NAME)
        assert told in refusal(Coordinator.open, folder, joint(world), HEAD, kind=StorageError)


def test_an_older_checkpoint_put_back_ends_on_the_same_bits(world, tmp_path):
    plan = joint(world)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    older = (tmp_path / NAME).read_bytes()
    ends = []
    for _ in range(2):
        (tmp_path / NAME).write_bytes(older)
        server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
        while not server.is_finished:
            for region in SIZES:
                server.receive(said(plan, region, server.round_number), region)
            server.finish_round()
        ends.append((server.model_digest, [dataclasses.asdict(entry["diagnostics"]) for entry in server.history]))
    assert ends[0] == ends[1]
    with pytest.raises(ExchangeError, check=coded("server.plan-finished")):
        server.receive(said(plan, "north", 3), "north")
    with pytest.raises(ExchangeError, check=coded("server.plan-finished")):
        server.finish_round()
