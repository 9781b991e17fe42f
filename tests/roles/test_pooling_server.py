"""A server that pools: the estimator's rounds behind a coordinator, and what it remembers of them."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from forking import fate_of, forks
from test_server import SIZES, START, World, ramp, refusal, sum_of, withheld

import fulcrum
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import regional_reply_from_bytes
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.errors import ExchangeError, ParameterError, StorageError
from fulcrum.rules.server_rule import RoundSums
from fulcrum.server.checkpoint import NAME
from fulcrum.server.coordinator import Coordinator
from fulcrum.simulation.embedded.server_variants import PoolingVariants

HEAD = {"head": np.zeros((20, 2))}
HEAD_LAYOUT = Layout(names=("head",), shapes=((20, 2),))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("coordination"))


def joint(world, purpose="deployment", **options):
    return world.made(purpose, recipe="joint", **options)


def said(plan, region, number, seed=0, **changed):
    """A regional sum as noisy as the plan has it."""
    place = list(SIZES).index(region)
    rng = np.random.default_rng([seed, number, place])
    step = None if plan.lattice_steps is None else float(plan.lattice_steps[place])
    std = np.sqrt(plan.node_noise("region")[place]) * plan.clip_norm
    drawn = plan.node_influence("region")[place] * 0.2 * np.sign(np.arange(40) % 3 - 1) + std * rng.normal(size=40)
    values = drawn if step is None else np.rint(drawn / step).astype("<i8")
    return sum_of(plan, region, number, **({"layout": HEAD_LAYOUT, "values": values} | changed))


@pytest.mark.parametrize("classes", [2, None])
@pytest.mark.parametrize("purpose", ["deployment", "research"])
def test_a_server_that_pools_moves_the_model_by_what_the_estimator_makes_of_all_sums(world, tmp_path, purpose, classes):
    plan = joint(world, purpose)
    start = {"head": np.random.default_rng(4).normal(size=(20, 2))}
    server = Coordinator.open(tmp_path, plan, start, classes=classes)
    rule = plan.server_rule
    state = rule.begin(start["head"])
    for number in (1, 2):
        answers = [said(plan, region, number) for region in SIZES]
        for region, answer in zip(SIZES, answers, strict=True):
            server.receive(answer, region)
        sums = np.stack([one.values * (one.step or 1.0) for one in map(regional_reply_from_bytes, answers)])
        present = np.ones(2, dtype=bool)
        state, told = rule.step(state, RoundSums(values=sums.reshape(2, 20, 2), present=present, classes=classes))
        summary = server.finish_round()
        assert server.model["head"] == pytest.approx(state.model, rel=1e-12, abs=1e-15)
        assert dataclasses.asdict(summary["diagnostics"]) == pytest.approx(
            dataclasses.asdict(told), rel=1e-9, abs=1e-15
        )
        assert (told.shrunk > 0) == (classes is not None)
    assert server.history[1] == summary
    assert np.abs(state.arrays["moved"]).max() > 0


def test_a_model_that_is_no_head_takes_the_steps_that_it_takes_in_the_embedded_engine(world, tmp_path):
    plan = joint(world, "research")
    server = Coordinator.open(tmp_path, plan, HEAD)
    embedded = PoolingVariants([plan.server_rule], coordinates=40, classes=None)
    for number in (1, 2):
        answers = [said(plan, region, number) for region in SIZES]
        for region, answer in zip(SIZES, answers, strict=True):
            server.receive(answer, region)
        step = server.finish_round()["diagnostics"].step
        moved = embedded.advance(np.stack([regional_reply_from_bytes(answer).values for answer in answers])[..., None])
        assert server.model["head"].ravel() == pytest.approx(moved[:, 0], rel=1e-12, abs=1e-15)
        if number == 1:
            counted = 1000 * (plan.rounds / 20) ** 2  # of 40 coordinates: the plan has two rounds
            trust = 1 / (1 + counted * plan.server_rule.least_noise)
            assert step == pytest.approx(trust + (1 - trust) * 0.25, rel=1e-12)


def test_what_a_server_knows_beforehand_is_what_the_plan_says(world):
    plan = joint(world)
    rule = plan.server_rule
    by_region = [[0, 1, 2], [3, 4]]
    assert rule.weight == pytest.approx([plan.weights[members].sum() for members in by_region])
    assert rule.shares == pytest.approx([300 / 617, 317 / 617])
    spread = (plan.weights * plan.noise_multiplier * plan.clip_norm) ** 2
    assert rule.variance == pytest.approx([spread[members].sum() for members in by_region])
    assert rule.rounds == 2


def played(plan, folder, rounds, *, reopened):
    """Plays rounds, each a mapping of regions to answers; a new coordinator before every step, or one for all."""

    def opened():
        return Coordinator.open(folder, plan, {"head": np.full((20, 2), 0.1)}, classes=2)

    server = opened()
    for answers in rounds:
        for region, answer in answers.items():
            if reopened:
                server = opened()
                for before, known in answers.items():  # what came in an unfinished round is sent again
                    if before == region:
                        break
                    server.receive(known, before)
            server.receive(answer, region)
        server.finish_round()
        if reopened:
            server = opened()
    return server


def test_a_round_without_any_sum_forgets_nothing_that_regions_said_before(world, tmp_path):
    """The memory of the next state must not be that of the state which such a round leaves as it is."""
    plan = joint(world, rounds=4)
    rounds = [{region: said(plan, region, number) for region in SIZES if number != 2} for number in (1, 2, 3)]
    one = played(plan, tmp_path / "one", rounds, reopened=False)
    other = played(plan, tmp_path / "other", rounds, reopened=True)
    assert np.array_equal(one.model["head"], other.model["head"])


def test_a_server_reopened_between_any_two_steps_ends_on_the_same_bits(world, tmp_path):
    plan = joint(world)
    rounds = [
        {"north": said(plan, "north", 1), "south": withheld(plan, "south", 1)},
        {"south": said(plan, "south", 2), "north": said(plan, "north", 2, members=("caen", "metz"))},
    ]
    one = played(plan, tmp_path / "one", rounds, reopened=False)
    other = played(plan, tmp_path / "other", rounds, reopened=True)
    backwards = [dict(reversed(answers.items())) for answers in rounds]
    third = played(plan, tmp_path / "third", backwards, reopened=False)
    assert one.model_digest == other.model_digest == third.model_digest
    assert one.history == other.history == third.history
    with np.load(tmp_path / "one" / NAME) as kept, np.load(tmp_path / "other" / NAME) as also:
        assert {name: kept[name].tobytes() for name in kept} == {name: also[name].tobytes() for name in also}
    assert [entry["diagnostics"].heard for entry in one.history] == [1, 2]


def run_until(moment, folder, plan):
    """Runs a server to the end of the plan, and kills this process at a step of it; returns what it ends on."""
    server = Coordinator.open(folder / "server", plan, {"head": np.full((20, 2), 0.1)}, classes=2)
    steps, replace = itertools.count(1), os.replace

    def step():
        if next(steps) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def stepwise(*names):
        step()
        replace(*names)
        step()

    os.replace = stepwise
    Path.replace = stepwise
    while not server.is_finished:
        for region in ("north", "south"):
            step()
            server.receive((folder / f"{region}-{server.round_number}").read_bytes(), region)
        step()
        server.finish_round()
    step()
    return server.model_digest


@forks
def test_a_server_killed_at_any_step_and_resumed_ends_on_the_same_bits(world, tmp_path):
    plan = joint(world)
    expected = played(
        plan,
        tmp_path / "whole",
        [{region: said(plan, region, number) for region in SIZES} for number in (1, 2)],
        reopened=False,
    )
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    for region in SIZES:
        for number in (1, 2):
            (tmp_path / f"{region}-{number}").write_bytes(said(plan, region, number))
    for when in range(1, 12):
        shutil.rmtree(tmp_path / "server", ignore_errors=True)
        Coordinator.open(tmp_path / "server", plan, {"head": np.full((20, 2), 0.1)}, classes=2)
        as_read = fulcrum.read_plan(tmp_path / "plan.json")
        assert fate_of(lambda: run_until(when, tmp_path, as_read)) == ("", -signal.SIGKILL)  # noqa: B023
        assert fate_of(lambda: run_until(None, tmp_path, as_read)) == (expected.model_digest, 0)  # noqa: B023


def test_a_sum_of_fewer_silos_is_taken_for_what_it_is(world, tmp_path):
    """Half of what a region says, from half of its weight, says the same of the whole, with more noise."""
    plan = joint(world, purpose="research", clip_norm=1.0, shrink=False)
    values = np.arange(40.0) - 19.5
    members = {"north": ("caen", "lille", "metz"), "south": ("nice", "nimes")}
    models = []
    for there in (members, members | {"north": ("caen", "lille")}):
        server = Coordinator.open(tmp_path / str(len(models)), plan, HEAD, classes=2)
        for region, silos in there.items():
            weight = sum(plan.weights[plan.federation.silo_names.tolist().index(silo)] for silo in silos)
            answer = sum_of(plan, region, layout=HEAD_LAYOUT, members=silos, values=weight * values)
            server.receive(answer, region)
        told = server.finish_round()["diagnostics"]
        models.append((server.model["head"], told.noise))
    assert models[0][0] == pytest.approx(models[1][0], rel=1e-12)
    assert models[1][1] > models[0][1] * 1.01


def test_what_could_not_be_written_did_not_happen_to_a_server_that_pools(world, tmp_path, monkeypatch):
    plan = joint(world)
    rounds = [{region: said(plan, region, number) for region in SIZES} for number in (1, 2)]
    expected = played(plan, tmp_path / "whole", rounds, reopened=False)
    server = Coordinator.open(tmp_path / "server", plan, {"head": np.full((20, 2), 0.1)}, classes=2)

    def full(path, data):
        raise StorageError("the disk is full")

    for answers in rounds:
        for region, answer in answers.items():
            server.receive(answer, region)
        before = server.model_digest, server.history
        with monkeypatch.context() as patch:
            patch.setattr("fulcrum.server.checkpoint.write_whole", full)
            for _ in range(2):
                refusal(server.finish_round, kind=StorageError)
        assert (server.model_digest, server.history) == before
        server.finish_round()
    assert server.model_digest == expected.model_digest


def test_the_checkpoint_of_a_server_that_pools_is_whole_or_refused(world, tmp_path):
    plan = joint(world)
    server = Coordinator.open(tmp_path, plan, HEAD, classes=2)
    server.receive(said(plan, "north", 1), "north")
    server.finish_round()
    with pytest.raises(ExchangeError, check=coded("checkpoint.classes-differ", stored=2)):
        Coordinator.open(tmp_path, plan, HEAD)
    with pytest.raises(ExchangeError, check=coded("checkpoint.other-plan")):
        Coordinator.open(tmp_path, world.deployment, HEAD)
    with np.load(tmp_path / NAME) as found:
        arrays = dict(found)
    pooled = {"start", "moved", "said", "heard", "noise", "slopes", "slope_noise"}
    assert set(arrays) == {"state", "model", *pooled}
    state = json.loads(arrays["state"].tobytes())
    assert (state["format"], state["pooling"]["classes"]) == ("fulcrum.checkpoint/2", 2)

    def encoded(**changed):
        return np.frombuffer(json.dumps(state | changed).encode(), dtype=np.uint8)

    wrong = [{name: arrays[name][:-1]} for name in sorted(pooled)]
    wrong += [{"moved": arrays["moved"] + 1e-9}, {"state": encoded(pooling=None)}, {"state": encoded(round_number=3)}]
    for changed in wrong:
        np.savez(tmp_path / NAME, **(arrays | changed))
        with pytest.raises(StorageError, check=coded("checkpoint.format-unknown")):
            Coordinator.open(tmp_path, plan, HEAD)
    for name in ("start", "said"):
        np.savez(tmp_path / NAME, **{key: array for key, array in arrays.items() if key != name})
        with pytest.raises(StorageError, check=coded("checkpoint.malformed")):
            Coordinator.open(tmp_path, plan, HEAD)
    before = {"state": encoded(format="fulcrum.checkpoint/1", pooling=None), "model": arrays["model"]}
    np.savez(tmp_path / NAME, **before)
    told = refusal(Coordinator.open, tmp_path, plan, HEAD)
    assert "has checkpoint format fulcrum.checkpoint/1, of an earlier Fulcrum. That format lacks the total" in told


def test_a_checkpoint_of_before_is_read_where_sums_are_added_up(world, tmp_path):
    """As version 1 wrote it, of a federation after its first round."""
    plan = world.deployment
    model = ramp(plan) * plan.lattice_steps[0]
    history = [{"round": 1, "summed": ["north"], "members": {"north": ["caen"]}, "withheld": {}, "missing": ["south"]}]
    state = {
        "format": "fulcrum.checkpoint/1",
        "plan_digest": plan.digest,
        "round_number": 2,
        "layout": {"names": ["weight", "bias"], "shapes": [[2, 19], [2]]},
        "history": history,
    }
    np.savez(tmp_path / NAME, state=np.frombuffer(json.dumps(state).encode(), dtype=np.uint8), model=model)
    server = Coordinator.open(tmp_path, plan, START)
    assert (server.round_number, list(server.history)) == (2, history)
    server.receive(sum_of(plan, number=2), "north")
    server.finish_round()
    assert (server.model["bias"] == 2 * ramp(plan)[38:] * plan.lattice_steps[0]).all()
    with np.load(tmp_path / NAME) as found:
        assert json.loads(found["state"].tobytes())["format"] == "fulcrum.checkpoint/2"
        assert set(found) == {"state", "model"}


def test_a_model_whose_last_axis_is_another_is_no_head(world, tmp_path):
    with pytest.raises(ExchangeError, check=coded("server.model-not-head", classes=2)):
        Coordinator.open(tmp_path, joint(world), START, classes=2)
    assert not (tmp_path / NAME).exists()


def prior_of(inputs):
    variances = np.geomspace(5, 0.05, inputs).tolist()
    return Spectrum(variances=variances, origin="public", source="public.npz")


def test_a_server_with_the_spectrum_prior_ends_on_the_same_bits_after_any_restart(world, tmp_path):
    plan = joint(world, public=prior_of(19))
    rounds = [
        {"north": said(plan, "north", 1), "south": withheld(plan, "south", 1)},
        {"south": said(plan, "south", 2), "north": said(plan, "north", 2, members=("caen", "metz"))},
    ]
    one = played(plan, tmp_path / "one", rounds, reopened=False)
    other = played(plan, tmp_path / "other", rounds, reopened=True)
    assert one.model_digest == other.model_digest
    assert one.history == other.history
    plain = joint(world)
    answers = [
        {region: said(plain, region, number) for region in SIZES if (region, number) != ("south", 1)}
        for number in (1, 2)
    ]
    assert one.model_digest != played(plain, tmp_path / "plain", answers, reopened=False).model_digest


@pytest.mark.parametrize(
    ("inputs", "start"),
    [
        (39, {"head": np.zeros((20, 2))}),
        (19, {"bias": np.zeros((1, 2)), "weight": np.zeros((19, 2))}),
    ],
)
def test_a_head_whose_first_rows_are_not_the_inputs_of_the_prior_is_refused(world, tmp_path, inputs, start):
    plan = joint(world, public=prior_of(inputs))
    with pytest.raises(ParameterError, check=coded("rule.spectrum-rows", inputs=inputs)):
        Coordinator.open(tmp_path, plan, start, classes=2)
