import dataclasses

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.model_message import model_digest
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.sealing import seal
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.figures import outermost_complete_tier
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, release
from fulcrum.errors import ExchangeError, StorageError
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.server.checkpoint import RoundSummary, read_checkpoint
from fulcrum.server.coordinator import NAME, Coordinator

SIZES = {"north": {"lille": 120, "metz": 80, "caen": 100}, "south": {"nice": 300, "nimes": 17}}
LAYOUT = Layout(names=("weight", "bias"), shapes=((2, 19), (2,)))
START = {"weight": np.zeros((2, 19)), "bias": np.zeros(2)}


class World:
    def __init__(self, folder):
        self.folder = folder
        self.keys = {silo: new_key(folder / silo) for members in SIZES.values() for silo in members}
        self.keys |= {name: new_key(folder / name, "sealing") for name in SIZES}
        self.deployment, self.research = self.made("deployment"), self.made("research")

    def made(self, purpose, rounds=2, **options):
        return fulcrum.plan(
            fulcrum.Federation.from_sizes(SIZES),
            rounds=rounds,
            epsilon={"region": 1.0, "aggregator": 6.0},
            parameters=40,
            purpose=purpose,
            dropouts=1,
            keys=self.keys,
            **options,
        )

    def released(self, plan, number):
        """What every silo releases in a round."""
        rng = np.random.default_rng(number)
        for silo in plan.federation.silo_names.tolist():
            update = {name: rng.normal(size=array.shape) for name, array in START.items()}
            if plan.purpose == "research":
                yield release(update, plan, silo, number, noise=SeededNoise(seed=3))
            else:
                flat = np.concatenate([array.ravel() for array in update.values()])
                yield _lattice_release(flat, LAYOUT, release_parameters_of(plan, silo), number)

    def answers(self, plan, releases, number, folder):
        """What the regions send up."""
        sent = list(releases)
        for name in SIZES:
            with Region.open(folder / f"{name}.{plan.purpose}", plan, name, self.folder / name) as region:
                region.expect_layout(LAYOUT)
                for made in sent:
                    if made.region == name:
                        region.accept(seal(made, plan, self.folder / made.silo), number)
                yield region.close_round(number).to_bytes(), name


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("coordination"))


@pytest.fixture
def server(world, tmp_path):
    return Coordinator.open(tmp_path / "server", world.deployment, START)


def ramp(plan, region="north"):
    """The numbers 0 to 39, times a number that gives them about the norm of the noise of a region's sum."""
    place = list(SIZES).index(region)
    width = float(np.sqrt(plan.node_noise("region")[place])) * plan.clip_norm / 20
    if plan.lattice_steps is None:
        return np.arange(40, dtype="<f8") * width
    return np.arange(40, dtype="<i8") * round(width / plan.lattice_steps[place])


def sum_of(plan, region="north", number=1, **changed):
    step = float(plan.lattice_steps[list(SIZES).index(region)]) if plan.lattice_steps is not None else None
    known = {
        "plan_digest": plan.digest,
        "region": region,
        "round_number": number,
        "members": tuple(sorted(SIZES[region])),
        "layout": LAYOUT,
        "values": ramp(plan, region),
        "step": step,
    }
    return RegionalSum(**(known | changed)).to_bytes()


def withheld(plan, region="north", number=1, **changed):
    known = {"plan_digest": plan.digest, "region": region, "round_number": number}
    return Withheld(**(known | {"missing": tuple(sorted(SIZES[region]))[:1], "reason": "why"} | changed)).to_bytes()


def refusal(work, *arguments, kind=ExchangeError):
    with pytest.raises(kind) as caught:
        work(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("purpose", ["deployment", "research"])
def test_the_model_is_the_sum_of_what_the_silos_released(world, tmp_path, purpose):
    plan = getattr(world, purpose)
    server = Coordinator.open(tmp_path / "server", plan, START)
    expected = {name: array.copy() for name, array in START.items()}
    while not server.is_finished:
        number = server.round_number
        releases = list(world.released(plan, number))
        for made in releases:
            for name, array in made.arrays().items():
                expected[name] += array
        for answer, region in world.answers(plan, releases, number, tmp_path):
            assert not server.complete
            server.receive(answer, region)
        assert server.complete
        server.finish_round()
    assert server.round_number == 3
    for name, array in server.model.items():
        assert np.abs(array).max() > 0
        if purpose == "deployment":
            assert (array == expected[name]).all()
        else:
            assert array == pytest.approx(expected[name], rel=1e-12, abs=1e-12)


def test_a_model_that_starts_elsewhere_moves_by_the_same_sums(world, tmp_path):
    start = {"weight": np.full((2, 19), 1.5, dtype=np.float32), "bias": np.ones(2)}
    server = Coordinator.open(tmp_path, world.deployment, start)
    server.receive(sum_of(world.deployment), "north")
    server.finish_round()
    moved = ramp(world.deployment) * world.deployment.lattice_steps[0]
    assert (server.model["weight"] == 1.5 + moved[:38].reshape(2, 19)).all()
    assert (server.model["bias"] == 1 + moved[38:]).all()


def test_regions_that_withhold_or_stay_away_contribute_nothing(world, server):
    server.receive(withheld(world.deployment, "south"), "south")
    assert not server.complete
    assert server.finish_round() == {
        "round": 1, "summed": [], "members": {}, "withheld": {"south": "why"}, "missing": ["north"],
    }  # fmt: skip
    assert server.round_number == 2
    assert all((array == 0).all() for array in server.model.values())
    server.receive(sum_of(world.deployment, number=2, members=("caen", "metz")), "north")
    server.receive(withheld(world.deployment, "south", 2), "south")
    assert server.complete
    summary = server.finish_round()
    assert (summary["summed"], summary["members"], summary["missing"]) == (["north"], {"north": ["caen", "metz"]}, [])
    assert (server.model["bias"] == ramp(world.deployment)[38:] * world.deployment.lattice_steps[0]).all()
    assert [entry["round"] for entry in server.history] == [1, 2]


def test_an_answer_stands_and_the_same_again_changes_nothing(world, server):
    plan = world.deployment
    answer = sum_of(plan)
    server.receive(answer, "north")
    server.receive(answer, "north")
    for other in (sum_of(plan, values=-ramp(plan)), withheld(plan)):
        with pytest.raises(ExchangeError, check=coded("server.sum-replaced", region="north", round=1)):
            server.receive(other, "north")
    server.finish_round()
    assert (server.model["bias"] == ramp(plan)[38:] * plan.lattice_steps[0]).all()


def test_a_region_that_withheld_may_sum_while_the_round_lasts(world, server):
    server.receive(withheld(world.deployment), "north")
    server.receive(withheld(world.deployment, reason="still"), "north")
    server.receive(sum_of(world.deployment), "north")
    assert server.finish_round()["summed"] == ["north"]
    with pytest.raises(ExchangeError, check=coded("server.answer-other-round", round=1, expected=2)):
        server.receive(sum_of(world.deployment), "north")


def test_answers_that_do_not_fit_are_refused_and_change_nothing(world, server):
    plan = world.deployment
    other = Layout(names=("weight", "bias"), shapes=((19, 2), (2,)))
    southern = sum_of(plan, region="south", number=2)
    for answer, reason in (
        (sum_of(plan, plan_digest="0" * 64), "under another plan"),
        (sum_of(plan, number=2), "'north' answers for round 2, and the server is in round 1"),
        (southern, "'south' answers for round 2"),
        (withheld(plan, number=2), "answers for round 2"),
        (sum_of(plan, layout=other), "names or shapes that differ from the model"),
        (sum_of(plan, step=1.0), "not on the lattice of the region"),
        (sum_of(plan, step=None, values=np.zeros(40)), "not on the lattice of the region"),
        (sum_of(plan, members=("nice",)), "silos of other regions"),
        (withheld(plan, missing=("nice",)), "silos of other regions"),
        (b"junk", "not a region's answer"),
    ):
        assert reason in refusal(server.receive, answer, "south" if answer == southern else "north")
    foreign = RegionalSum(
        plan_digest=plan.digest, region="nord", round_number=1, members=("a",), layout=LAYOUT, values=np.zeros(40), step=None
    )  # fmt: skip
    with pytest.raises(ExchangeError, check=coded("plan.region-unknown", region="nord")):
        server.receive(foreign.to_bytes(), "nord")
    assert server.finish_round()["missing"] == ["north", "south"]


def test_a_region_answers_for_itself_alone(world, server):
    for answer in (sum_of(world.deployment), withheld(world.deployment)):
        for other in ("south", "lille", "server", ""):
            with pytest.raises(ExchangeError, check=coded("server.sender-differs")):
                server.receive(answer, other)
    assert server.answers == {}
    server.receive(sum_of(world.deployment), "north")
    assert list(server.answers) == ["north"]


def test_nothing_follows_the_last_round(world, server):
    server.finish_round()
    assert not server.is_finished
    server.finish_round()
    assert server.is_finished
    with pytest.raises(ExchangeError, check=coded("server.plan-finished", rounds=2)):
        server.finish_round()
    with pytest.raises(ExchangeError, check=coded("server.plan-finished", rounds=2)):
        server.receive(sum_of(world.deployment, number=3), "north")


def test_a_restart_goes_on_where_the_last_round_ended(world, tmp_path):
    plan = world.deployment
    start = {name: np.random.default_rng(1).normal(size=array.shape) for name, array in START.items()}
    server = Coordinator.open(tmp_path / "a" / "b", plan, start)
    basis = server.model_digest
    # Another random start, before anything was finished: silos may have released on the first one.
    server = Coordinator.open(tmp_path / "a" / "b", plan, START)
    assert server.model_digest == basis == model_digest(start)
    server.receive(sum_of(plan), "north")
    summary = server.finish_round()
    assert server.model_digest != basis
    again = Coordinator.open(tmp_path / "a" / "b", plan, START)
    assert (again.round_number, again.model_digest, again.history) == (2, server.model_digest, (summary,))
    assert not again.complete
    again.receive(sum_of(plan, number=2), "north")
    again.finish_round()
    assert Coordinator.open(tmp_path / "a" / "b", plan, START).is_finished
    assert [file.name for file in (tmp_path / "a" / "b").iterdir()] == [NAME]


@pytest.mark.parametrize(("name", "now"), [("finished", "is_finished"), ("basis", "model_digest")])
def test_a_coordinator_answers_to_its_earlier_names_with_a_warning(server, name, now):
    with pytest.deprecated_call(match=f"Coordinator.{name} goes with version 0.3. Use {now}"):
        assert getattr(server, name) == getattr(server, now)


def test_a_coordinator_has_no_further_names(server):
    with pytest.raises(AttributeError, match="'Coordinator' object has no attribute 'ended'"):
        server.ended  # noqa: B018


def test_a_finished_round_is_synced_with_its_name_before_the_coordinator_moves_on(world, server, tmp_path, syncs):
    server.receive(sum_of(world.deployment), "north")
    server.finish_round()
    checkpoint = tmp_path / "server" / NAME
    assert [sync.inode for sync in syncs] == [checkpoint.stat().st_ino, checkpoint.parent.stat().st_ino]
    assert syncs[0].size == checkpoint.stat().st_size
    assert syncs[1].names[f"server/{NAME}"] == checkpoint.stat().st_ino


def test_what_could_not_be_written_did_not_happen(world, server, monkeypatch):
    server.receive(sum_of(world.deployment), "north")

    def full(path, data):
        raise StorageError("the disk is full")

    before = server.model_digest
    with monkeypatch.context() as patch:
        patch.setattr("fulcrum.server.checkpoint.write_whole", full)
        refusal(server.finish_round, kind=StorageError)
    assert (server.round_number, server.model_digest, server.history) == (1, before, ())
    assert server.finish_round()["summed"] == ["north"]


def test_other_plans_models_and_files_are_refused(world, server, tmp_path):
    folder = tmp_path / "server"
    other = world.made("deployment", clip_norm=2.0)
    with pytest.raises(ExchangeError, check=coded("checkpoint.other-plan")):
        Coordinator.open(folder, other, START)
    turned = {"weight": np.zeros((19, 2)), "bias": np.zeros(2)}
    with pytest.raises(ExchangeError, check=coded("checkpoint.model-differs")):
        Coordinator.open(folder, world.deployment, turned)
    with pytest.raises(ExchangeError, check=coded("model.parameters-differ", expected=40)):
        Coordinator.open(tmp_path / "new", world.deployment, {"bias": np.zeros(2)})
    with pytest.raises(ExchangeError, check=coded("arrays.not-floats")):
        Coordinator.open(tmp_path / "new", world.deployment, {"bias": np.zeros(40, dtype=int)})
    injected = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=2, epsilon=1.0, injection="aggregator")
    with pytest.raises(ExchangeError, check=coded("plan.form-unsupported")):
        Coordinator.open(tmp_path / "new", injected, START)
    assert not (tmp_path / "new" / NAME).exists()
    checkpoint = folder / NAME
    whole = checkpoint.read_bytes()
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, state=np.array([{}], dtype=object), model=np.zeros(40))
    bare = tmp_path / "bare.npz"
    np.savez(bare, model=np.zeros(40))
    array = tmp_path / "array.npy"
    np.save(array, np.zeros(40))
    wrong = tmp_path / "wrong.npz"
    with np.load(checkpoint) as found:
        np.savez(wrong, state=found["state"], model=np.zeros(39))
    broken = [whole[: len(whole) // 2], b"", b"junk", *(path.read_bytes() for path in (pickled, bare, array, wrong))]
    for content in broken:
        checkpoint.write_bytes(content)
        with pytest.raises(StorageError, check=coded("checkpoint.malformed", "checkpoint.format-unknown")):
            Coordinator.open(folder, world.deployment, START)
        assert checkpoint.read_bytes() == content
    (tmp_path / "file").write_text("")
    refusal(Coordinator.open, tmp_path / "file", world.deployment, START, kind=StorageError)


def test_the_model_cannot_be_changed_from_outside(server):
    with pytest.raises(ValueError, match="read-only"):
        server.model["bias"][0] = 1.0
    START["bias"][0] = 5.0
    try:
        assert server.model["bias"][0] == 0
    finally:
        START["bias"][0] = 0.0


def test_a_plan_changed_in_memory_is_another_plan(world, server):
    changed = dataclasses.replace(world.deployment, clip_norm=3.0)
    with pytest.raises(ExchangeError, check=coded("server.answer-other-plan")):
        server.receive(sum_of(changed), "north")


def test_where_the_global_sum_is_promised_for_a_round_adds_all_sums_or_none(world, tmp_path):
    keys = {"parameters": 40, "purpose": "deployment", "keys": world.keys}
    federation = fulcrum.Federation.from_sizes(SIZES)
    plan = fulcrum.plan(federation, rounds=3, epsilon={"federation": 1.0, "aggregator": 60.0}, **keys)
    # Who sees the global sum would meet the noise of one region alone.
    assert plan.worst_epsilon("region") > 1.15
    server = Coordinator.open(tmp_path, plan, START)
    server.receive(sum_of(plan, "north"), "north")
    server.receive(withheld(plan, "south"), "south")
    told = server.finish_round()
    assert (told["summed"], told["missing"]) == ([], [])
    assert told["withheld"]["south"] == "why"
    assert "counts on the noise of every region" in told["withheld"]["north"]
    server.receive(sum_of(plan, "south", 2), "south")
    assert server.finish_round()["missing"] == ["north"]
    assert all((array == 0).all() for array in server.model.values())
    for region in SIZES:
        server.receive(sum_of(plan, region, 3), region)
    assert server.finish_round()["summed"] == ["north", "south"]
    assert any((array != 0).any() for array in server.model.values())


@pytest.mark.parametrize("summed", [["north"], [], ["north", "south"]])
def test_a_run_whose_past_rounds_lack_a_region_does_not_resume_under_a_plan_that_counts_on_it(world, tmp_path, summed):
    """Servers of earlier versions went on without a region under any plan."""
    for plan, resumes in ((world.research, len(summed) != 1), (world.deployment, True)):
        folder = tmp_path / plan.purpose
        Coordinator.open(folder, plan, START)
        checkpoint = read_checkpoint(folder, plan)
        past = RoundSummary(round=1, summed=summed, members={}, withheld={}, missing=[])
        standing = msgspec.structs.replace(checkpoint.standing, history=[past], round_number=2)
        dataclasses.replace(checkpoint, standing=standing).write(folder)
        if resumes:
            assert Coordinator.open(folder, plan, START).round_number == 2
        else:
            told = refusal(Coordinator.open, folder, plan, START)
            assert "round 1 has no sum of region 'south', and the plan's epsilon for the global sum holds only" in told
            assert told.endswith("Continue with a new plan in another folder: fulcrum replan")


def test_a_research_plan_on_an_engine_adds_all_sums_or_none(world, tmp_path):
    # Its epsilon for the global sum counts on every region, as the embedded engine has them.
    assert outermost_complete_tier(world.research) == "federation"
    server = Coordinator.open(tmp_path, world.research, START)
    server.receive(sum_of(world.research, "north", values=np.ones(40)), "north")
    assert server.finish_round()["summed"] == []
    assert all((array == 0).all() for array in server.model.values())


def test_a_deployed_server_goes_on_without_a_region_that_no_target_counts_on(world, tmp_path):
    assert outermost_complete_tier(world.deployment) != "federation"
    server = Coordinator.open(tmp_path, world.deployment, START)
    server.receive(sum_of(world.deployment, "north"), "north")
    assert server.finish_round()["summed"] == ["north"]
