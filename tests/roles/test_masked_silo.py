"""Silos and a server that follow the protocol: sums of releases that are in the ledgers, and nothing else."""

import dataclasses

import numpy as np
import pytest
from error_codes import coded
from masked import MODEL, MaskedWorld, half_a_step, refused

import fulcrum
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.core.masking.masking_group import check_sheltered
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.release_message import Release
from fulcrum.core.noise.noise_sources import SeededNoiseBySilo
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.releasing import release
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import ledger_name, read_site
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FulcrumError, ReleaseError, StorageError
from fulcrum.server.coordinator import Coordinator

pytest.importorskip("cryptography", reason="needs the extra secure")


def released(world, silo, number):
    """The release that a ledger holds."""
    path = world.folder / silo / "state" / ledger_name(silo)
    with Ledger.open(path, silo=silo) as ledger:
        entry = next(entry for entry in ledger.entries() if entry.round_number == number)
        data = ledger.stored_payload(ledger.allowance, number, entry.input_digest)
    return Release.from_bytes(data)


def test_the_sum_of_every_region_is_the_sum_of_the_releases_in_the_ledgers(tmp_path):
    world = MaskedWorld(tmp_path)
    for number in (1, 2):
        world.restart()
        answers = world.run(world.round(number))
        for region, members in world.sizes.items():
            total = answers[region]
            assert isinstance(total, RegionalSum)
            assert total.members == tuple(sorted(members))
            releases = [released(world, silo, number) for silo in members]
            assert (total.values == sum(one.values for one in releases)).all()
            assert total.step == releases[0].step
            assert total.layout == releases[0].layout
    world.check_ledgers()
    assert [entry.round_number for entry in world.ledger("caen")] == [1, 2]


def test_every_stage_is_asked_of_all_groups_at_once(tmp_path):
    world = MaskedWorld(tmp_path)
    everybody = {silo for members in world.sizes.values() for silo in members}
    masked = world.round()
    requests, stages = masked.requests(), 0
    while requests:
        assert set(requests) == everybody
        for silo, request in sorted(requests.items(), reverse=True):  # in whatever order they answer
            masked.take(world.answer(silo, request))
        requests, stages = masked.proceed(), stages + 1
    assert stages == len(STAGES)
    assert set(masked.answers) == set(world.sizes)


@pytest.mark.parametrize("stage", ["keys", "shares", "input", "attestation", "unmasking"])
def test_a_silo_that_dies_at_any_stage_leaves_the_round_to_the_others(tmp_path, stage):
    sizes = {"north": dict.fromkeys(("caen", "lille", "metz", "nancy"), 100)}
    world = MaskedWorld(tmp_path, sizes, dropouts=1)
    total = world.run(world.round(), gone={"metz": stage})["north"]
    assert isinstance(total, RegionalSum)
    assert ("metz" in total.members) == (stage in ("attestation", "unmasking"))
    assert (total.values == sum(released(world, silo, 1).values for silo in total.members)).all()
    world.restart()
    assert len(world.run(world.round(2))["north"].members) == 4
    world.check_ledgers()


def test_one_more_than_the_plans_dropouts_withholds_the_sum_of_that_region_alone(tmp_path):
    world = MaskedWorld(tmp_path)
    answers = world.run(world.round(), gone={"lyon": "input"})
    assert isinstance(answers["north"], RegionalSum)
    assert isinstance(answers["south"], Withheld)
    assert answers["south"].missing == ("lyon",)
    assert not world.ledger("lyon")
    assert len(world.ledger("nice")) == 1, "what left is charged, whether it was unmasked or not"


def test_a_silo_killed_between_ledger_and_masks_sends_the_release_in_its_ledger(tmp_path, monkeypatch):
    world = MaskedWorld(tmp_path)
    masked = world.round()
    requests = world.run(masked, until="input")
    with monkeypatch.context() as patch:
        patch.setattr("fulcrum.core.silo.masked_station.whole_numbers", killed)
        with pytest.raises(KeyboardInterrupt):
            world.answer("caen", requests["caen"])
    assert len(world.ledger("caen")) == 1
    world.restart()
    world.train = untrained
    for name, request in requests.items():
        world.train = half_a_step if name != "caen" else untrained
        masked.take(world.answer(name, request))
    requests = masked.proceed()
    while requests:
        for name, request in requests.items():
            masked.take(world.answer(name, request))
        requests = masked.proceed()
    members = world.sizes["north"]
    assert (masked.answers["north"].values == sum(released(world, silo, 1).values for silo in members)).all()


def killed(*_):
    raise KeyboardInterrupt


def untrained(*_):
    pytest.fail("trained again")


def test_a_server_that_begins_a_round_again_gets_the_sum_of_the_same_releases(tmp_path):
    world = MaskedWorld(tmp_path)
    world.run(world.round(), until="attestation")
    before = [released(world, silo, 1).values for silo in world.sizes["north"]]
    world.restart()
    total = world.run(world.round(attempt=2))["north"]
    assert (total.values == sum(before)).all()
    assert len(world.ledger("caen")) == 1
    world.check_ledgers()


def test_training_that_fails_is_not_seen_by_the_server(tmp_path):
    def failing(model, assignment):
        raise SystemExit(3) if assignment.silo == "caen" else ValueError("records")

    world = MaskedWorld(tmp_path, train=failing)
    answers = world.run(world.round())
    assert all(isinstance(answer, RegionalSum) for answer in answers.values())


def test_research_is_masked_on_a_fine_lattice_with_its_seeded_noise(tmp_path):
    world = MaskedWorld(tmp_path, purpose="research")
    total = world.run(world.round())["north"]
    noise = SeededNoiseBySilo(seed=0, silos=7)
    update = {name: np.full_like(array, 0.5) for name, array in MODEL.items()}
    plain = sum(release(update, world.plan, silo, 1, noise=noise, masked=True).values for silo in world.sizes["north"])
    assert total.step is None
    assert np.abs(total.values - plain).max() <= 5 * 2.0**-41
    assert (total.values / 2.0**-40 == np.rint(total.values / 2.0**-40)).all()


def test_the_whole_federation_is_one_group_where_its_sum_alone_has_a_target(tmp_path):
    world = MaskedWorld(tmp_path, epsilon={"federation": 1.0}, dropouts=1)
    answers = world.run(world.round(), gone={"metz": "input", "nice": "keys"})
    assert list(answers) == ["federation"]
    assert answers["federation"].members == ("caen", "lille", "lyon", "nancy", "reims")


@pytest.mark.parametrize("target", [{"region": 1.0}, {"federation": 1.0}])
def test_the_servers_model_moves_by_masked_sums(tmp_path, target):
    """The model after two rounds is the start and all releases in the ledgers, whoever is masked together."""
    world = MaskedWorld(tmp_path, epsilon=target)
    with_sums = Coordinator.open(tmp_path / "server", world.plan, MODEL)
    while with_sums.round_number <= 2:
        number, model = with_sums.round_number, with_sums.model
        answers = world.run(world.round(number, model=model), model=model)
        for sender, answer in answers.items():
            with_sums.receive(answer.to_bytes(), sender)
        assert with_sums.complete
        assert with_sums.finish_round()["summed"] == sorted(answers)
    silos = [silo for members in world.sizes.values() for silo in members]
    moved = sum(released(world, silo, number).values for silo in silos for number in (1, 2))
    step = released(world, "caen", 1).step
    flat = np.concatenate([with_sums.model[name].ravel() - MODEL[name].ravel() for name in MODEL])
    assert np.abs(flat - moved * step).max() < 1e-12


def test_the_server_takes_no_sum_of_a_federation_that_lacks_a_region(tmp_path):
    world = MaskedWorld(tmp_path, epsilon={"federation": 1.0}, dropouts=1)
    server = Coordinator.open(tmp_path / "server", world.plan, MODEL)
    total = world.run(world.round())["federation"]
    fewer = dataclasses.replace(total, members=tuple(silo for silo in total.members if silo not in ("lyon", "nice")))
    told = refused(server.receive, fewer.to_bytes(), "federation")
    lacks = "2 of 2 silos of region 'south' are missing, the plan does without 1"
    assert told == f"the sum of region 'federation' lacks noise: {lacks}"
    with pytest.raises(FulcrumError, check=coded("plan.region-unknown", region="north")):
        server.receive(by_region(total, "north"), "north")
    server.receive(total.to_bytes(), "federation")
    assert server.complete


def by_region(total, region):
    return dataclasses.replace(total, region=region, members=("caen",)).to_bytes()


def test_a_policy_holds_for_the_group_as_for_the_plan(tmp_path):
    limits = "largest_epsilon_above = 1.0\nlargest_epsilon_inside = 50.0\nsmallest_region = {}\n"
    world = MaskedWorld(tmp_path, policy=limits.format(5))
    with pytest.raises(FulcrumError, check=coded("policy.region-small", least=5)):
        world.silo("lyon")
    assert world.silo("caen")
    (tmp_path / "caen" / "policy.toml").write_text(limits.format(5).replace("1.0", "0.5"))
    world.restart()
    with pytest.raises(FulcrumError, check=coded("policy.epsilon-exceeded")):
        world.silo("caen")


def test_a_silo_that_masking_does_not_hide_takes_part_only_if_its_own_noise_is_enough(tmp_path):
    sizes = {"north": dict.fromkeys(("caen", "lille", "metz", "nancy"), 100), "south": {"nice": 100}}
    world = MaskedWorld(tmp_path, sizes)
    assert world.silo("nice"), "alone in its region, so that its own noise meets the region's target"
    collusion = MaskedWorld(subfolder(tmp_path, "two"), {"south": {"lyon": 100, "nice": 100}}, colluders=1)
    assert collusion.silo("nice"), "planned against the other one, so that its own noise is enough"
    object.__setattr__(world.plan, "noise_multiplier", world.plan.noise_multiplier * 0.9)
    with pytest.raises(ReleaseError, check=coded("mask.silo-exposed", silo="nice", size=1)):
        check_sheltered(world.plan, "nice")
    assert check_sheltered(world.plan, "caen") is None


def subfolder(folder, name):
    (folder / name).mkdir()
    return folder / name


def test_what_is_planned_as_masked_leaves_no_other_way_and_the_reverse(tmp_path):
    world = MaskedWorld(tmp_path)
    told = refused(fulcrum.release, MODEL, world.plan, "caen", 1)
    assert told.endswith("leaves the silo masked alone. Use MaskedSilo")
    with pytest.raises(FulcrumError, check=coded("plan.aggregation-differs")):
        SiloStation(world.silo("caen")._site)
    trusted = MaskedWorld(subfolder(tmp_path, "trusted"), aggregation="trusted")
    with pytest.raises(FulcrumError, check=coded("plan.aggregation-differs")):
        trusted.silo("caen")
    with pytest.raises(FulcrumError, check=coded("plan.aggregation-differs")):
        trusted.round()


def test_a_silo_without_its_record_or_with_anothers_takes_no_part(tmp_path):
    world = MaskedWorld(tmp_path)
    requests = world.run(world.round(), until="keys")
    path = tmp_path / "caen" / "state" / "caen.masking"
    path.rename(tmp_path / "kept")
    with pytest.raises(StorageError, check=coded("storage.file-lost")):
        world.answer("caen", requests["caen"])
    (tmp_path / "lille" / "state" / "lille.masking").rename(path)
    with pytest.raises(FulcrumError, check=coded("mask.record-of-other-silo", silo="caen")):
        world.answer("caen", requests["caen"])


def test_a_round_that_the_ledger_holds_is_not_begun_with_a_record_that_has_forgotten_it(tmp_path):
    """A record begun anew, or an old copy, would unmask a second sum of the round, of other survivors."""
    world = MaskedWorld(tmp_path)
    path = tmp_path / "caen" / "state" / "caen.masking"
    old = path.read_bytes()
    world.run(world.round())
    path.write_bytes(old)
    world.restart()
    told = refused(world.answer, "caen", world.round(attempt=2).requests()["caen"])
    assert "does not know the round" in told
    assert world.answer("caen", world.round(2).requests()["caen"]), "a round that neither knows is new"


@pytest.mark.parametrize("stage", ["attestation", "unmasking"])
def test_a_silo_whose_ledger_has_forgotten_a_release_neither_attests_nor_unmasks_a_sum_with_it(stage, tmp_path):
    world = MaskedWorld(tmp_path)
    path = tmp_path / "caen" / "state" / "caen.ledger"
    old = path.read_bytes()
    requests = world.run(world.round(), until=stage)
    new = path.read_bytes()
    path.write_bytes(old)
    told = refused(world.answer, "caen", requests["caen"])
    assert "the ledger holds no release of round 1, so silo 'caen' is in no sum of it" in told
    path.write_bytes(new)
    assert world.answer("caen", requests["caen"])


@pytest.mark.parametrize("stage", STAGES)
def test_a_silo_without_its_ledger_answers_no_stage_and_makes_no_other_ledger(stage, tmp_path):
    world = MaskedWorld(tmp_path)
    path = tmp_path / "caen" / "state" / "caen.ledger"
    requests = world.run(world.round(), until=stage)
    path.rename(tmp_path / "lost")
    with pytest.raises(FulcrumError, check=coded("site.ledger-missing", file=path)):
        world.answer("caen", requests["caen"])
    assert not path.exists()
    (tmp_path / "lost").rename(path)
    assert world.answer("caen", requests["caen"])


def test_a_silo_whose_ledger_has_forgotten_a_release_sends_no_other_under_the_same_masks(tmp_path):
    """The difference of two vectors under the same masks is that of two releases, with one silo's noise alone."""
    world = MaskedWorld(tmp_path)
    path = tmp_path / "caen" / "state" / "caen.ledger"
    old = path.read_bytes()
    masked = world.round()
    requests = world.run(masked, until="input")
    first = world.answer("caen", requests["caen"])
    new = path.read_bytes()
    path.write_bytes(old)
    world.restart()
    told = refused(world.answer, "caen", requests["caen"])
    assert "silo 'caen' has already sent another masked input in attempt 1 of round 1" in told
    path.write_bytes(new)
    assert world.answer("caen", requests["caen"]) == first
    world.check_ledgers()


def test_a_silo_whose_ledger_has_forgotten_an_unmasked_round_begins_no_other(tmp_path):
    """Such a ledger shows less than what left: the record is a witness of it."""
    world = MaskedWorld(tmp_path)
    path = tmp_path / "caen" / "state" / "caen.ledger"
    old = path.read_bytes()
    world.run(world.round())
    new = path.read_bytes()
    path.write_bytes(old)
    world.restart()
    told = refused(world.answer, "caen", world.round(2).requests()["caen"])
    assert "the ledger holds no release of round 1, which silo 'caen' has unmasked" in told
    path.write_bytes(new)
    assert world.answer("caen", world.round(2).requests()["caen"])


def test_a_plan_that_aggregators_add_noise_to_or_without_keys_is_not_masked(tmp_path):
    sizes = fulcrum.Federation.from_sizes({"north": {"caen": 100, "lille": 100}})
    injected = fulcrum.plan(sizes, rounds=1, epsilon=1.0, injection="aggregator")
    with pytest.raises(FulcrumError, check=coded("plan.form-unsupported")):
        fulcrum.MaskedRound(injected, 1, MODEL)
    keyless = fulcrum.plan(sizes, rounds=1, epsilon=1.0, aggregation="masked")
    with pytest.raises(FulcrumError, check=coded("plan.key-missing", name="caen")):
        fulcrum.MaskedRound(keyless, 1, MODEL)


DYING = """
import os
def start(options): return {}
def train(model, assignment):
    if assignment.silo == "lille":
        os._exit(3)
    return {name: array + 0.5 for name, array in model.items()}
"""


def test_a_module_that_ends_its_process_ends_neither_silo_nor_round(tmp_path, monkeypatch, caplog):
    """Without functions of an engine a masked silo trains in a process of its own, by the module that its site names."""
    masked = MaskedWorld(tmp_path)
    (tmp_path / "dying_training.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    for home in (path.parent for path in sorted(masked.folder.glob("*/site.toml"))):
        text = (home / "site.toml").read_text()
        assert 'train = ""' in text
        (home / "site.toml").write_text(text.replace('train = ""', 'train = "dying_training"'))
        masked.silos[home.name] = MaskedSilo(read_site(home, "silo"))
    masked.run(masked.round())
    masked.check_ledgers()
    assert {name for name, _, _ in masked.left} == set(masked.silos)
    alarms = [record.getMessage() for record in caplog.records if record.name == "fulcrum.alarm"]
    assert len(alarms) == 1
    assert "training failed in round 1: zero plus noise is released in its place" in alarms[0]
    assert "exit code 3" in alarms[0]
