"""The least number of silos that a silo agrees to be summed with: its policy as it is on disk, at every stage."""

import os

import pytest
from error_codes import coded
from masked import MaskedWorld, changed, refused

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.core.masking.masking_messages import request_from_bytes
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.silo.site import ledger_name, record_name
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FulcrumError

pytest.importorskip("cryptography", reason="needs the extra secure")

NORTH = ("caen", "lille", "metz", "nancy", "reims")
WITHOUT_METZ = tuple(silo for silo in NORTH if silo != "metz")


def limits(least):
    return f"largest_epsilon_above = 1.0\nlargest_epsilon_inside = 50.0\nsmallest_region = {least}\n"


def made(folder, least, **options):
    return MaskedWorld(folder, {"north": dict.fromkeys(NORTH, 100)}, dropouts=1, policy=limits(least), **options)


def rewritten(world, least, silos=("caen",)):
    for silo in silos:
        (world.folder / silo / "policy.toml").write_text(limits(least))


def told_of_four(world, stage, silo="caen"):
    """What a silo is asked at a stage of a round that metz dropped out of one stage earlier."""
    before = STAGES[STAGES.index(stage) - 1]
    return world.run(world.round(), until=stage, gone={"metz": before})[silo]


@pytest.mark.parametrize("stage", ["shares", "input", "attestation"])
def test_a_stricter_policy_holds_at_the_next_stage_of_a_silo_that_runs(tmp_path, stage):
    world = made(tmp_path, 4)
    request = told_of_four(world, stage)
    rewritten(world, 5)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)
    assert len(world.ledger("caen")) == (1 if stage == "attestation" else 0)
    world.check_ledgers()


def test_a_stricter_policy_holds_where_the_sum_is_unmasked(tmp_path):
    """All were told of four survivors and attested them: shares that unmask a sum of four are not given."""
    world = made(tmp_path, 4)
    request = world.run(world.round(), until="unmasking", gone={"metz": "input"})["caen"]
    rewritten(world, 5)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)
    rewritten(world, 4)
    assert world.answer("caen", request), "a refusal changes nothing"


def test_a_policy_that_becomes_stricter_while_a_silo_trains_keeps_its_vector_back(tmp_path):
    def train(model, assignment):
        if assignment.silo == "caen":
            rewritten(world, 5)
        return {name: array + 0.5 for name, array in model.items()}

    world = made(tmp_path, 4, train=train)
    request = told_of_four(world, "input")
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)
    assert not [name for name, _, _ in world.left if name == "caen"]
    assert refused(world.answer, "caen", request).endswith("at least 5 silos, got 4"), "asked again neither"


@pytest.mark.parametrize("waited_for", ["record", "ledger"])
def test_a_stricter_policy_holds_where_a_silo_waited_for_its_files_meanwhile(tmp_path, monkeypatch, waited_for):
    world = made(tmp_path, 4)
    request = told_of_four(world, "attestation")
    state = tmp_path / "caen" / "state"
    if waited_for == "record":
        held = MemberStore.open(state / record_name("caen"), silo="caen")
    else:
        held = Ledger.open(state / ledger_name("caen"), silo="caen")

    def let_go(seconds):
        rewritten(world, 5)
        held.close()

    monkeypatch.setattr("fulcrum.core.silo.site.time.sleep", let_go)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)


@pytest.mark.parametrize("stage", ["shares", "input", "attestation", "unmasking"])
def test_a_stricter_policy_holds_where_an_answer_is_asked_for_again(tmp_path, stage):
    """The first may never have left: a silo that is killed has it on disk, and does not know."""
    world = made(tmp_path, 4)
    before = STAGES[STAGES.index(stage) - 1] if stage != "unmasking" else "input"
    request = world.run(world.round(), until=stage, gone={"metz": before})["caen"]
    answer = world.answer("caen", request)
    world.restart()
    rewritten(world, 5)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)
    rewritten(world, 4)
    assert world.answer("caen", request) == answer, "a refusal changes nothing"


def test_a_vector_that_left_under_a_stricter_policy_is_in_no_sum_that_it_forbids(tmp_path):
    """The stricter policy came while the silo trained, and was laxer again when it was told of the survivors."""

    def train(model, assignment):
        if assignment.silo == "caen":
            rewritten(world, 5)
        return {name: array + 0.5 for name, array in model.items()}

    world = made(tmp_path, 4, train=train)
    request = world.run(world.round(), until="attestation")["caen"]
    rewritten(world, 4)
    fewer = changed(request, members=WITHOUT_METZ)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", fewer)
    assert world.answer("caen", request)


@pytest.mark.parametrize("stage", ["input", "attestation"])
def test_a_laxer_policy_does_not_hold_for_a_round_that_was_begun(tmp_path, stage):
    """A file that is half written reads as a laxer one: the line with the number of silos is not there yet."""
    world = made(tmp_path, 5)
    request = world.run(world.round(), until=stage)["caen"]
    fewer = changed(request, **{"members" if stage == "attestation" else "sharers": WITHOUT_METZ})
    if stage == "input":
        sealed = request_from_bytes(request).sealed
        fewer = changed(fewer, sealed={silo: text for silo, text in sealed.items() if silo != "metz"})
    half = limits(5)[: limits(5).index("smallest_region")]
    (tmp_path / "caen" / "policy.toml").write_text(half)
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", fewer)
    world.restart()
    assert refused(world.answer, "caen", fewer).endswith("at least 5 silos, got 4"), "nor after a restart"
    rewritten(world, 5)
    assert world.answer("caen", request), "the whole group may still be summed"


def test_a_laxer_policy_holds_once_a_round_is_begun_again_and_in_the_next(tmp_path):
    world = made(tmp_path, 5)
    world.run(world.round(), until="attestation")
    rewritten(world, 4, NORTH)
    assert world.run(world.round(attempt=2), gone={"metz": "input"})["north"].members == WITHOUT_METZ
    assert world.run(world.round(2), gone={"metz": "input"})["north"].members == WITHOUT_METZ
    world.check_ledgers()


def test_a_stricter_policy_holds_in_the_next_round(tmp_path):
    world = made(tmp_path, 4)
    assert world.run(world.round(), gone={"metz": "input"})["north"].members == WITHOUT_METZ
    rewritten(world, 5, ("caen",))
    request = world.run(world.round(2), until="shares", gone={"metz": "keys"})["caen"]
    with pytest.raises(FulcrumError, check=coded("mask.group-below-policy", silo="caen", least=5, members=4)):
        world.answer("caen", request)
    assert [entry.round_number for entry in world.ledger("caen")] == [1]


def gone(path):
    path.unlink()


def elsewhere(path):
    path.unlink()
    path.symlink_to(path.parent / "moved.toml")


def folder(path):
    path.unlink()
    path.mkdir()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def empty(path):
    path.write_text("")


def cut_in_a_line(path):
    path.write_text(limits(4)[:30])


def no_text(path):
    path.write_bytes(b"\xff\xfe")


def of_no_number(path):
    path.write_text(limits('"many"'))


def above_the_plan(path):
    path.write_text(limits(4).replace("1.0", "0.5"))


SPOILT = (gone, elsewhere, folder, pipe, empty, cut_in_a_line, no_text, of_no_number, above_the_plan)


@pytest.mark.parametrize("stage", STAGES)
def test_a_policy_that_is_lost_spoilt_or_against_the_plan_ends_what_a_silo_answers_at_any_stage(tmp_path, stage):
    world = made(tmp_path, 4)
    request = world.run(world.round(), until=stage)["caen"]
    before, path = len(world.ledger("caen")), tmp_path / "caen" / "policy.toml"
    for spoil in SPOILT:
        spoil(path)
        told = refused(world.answer, "caen", request)
        assert str(path) in told or "silo 'caen' allows epsilon 0.5 above" in told, spoil.__name__
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        rewritten(world, 4)
    assert len(world.ledger("caen")) == before
    assert world.answer("caen", request), "a refusal changes nothing"


def test_a_policy_that_is_put_beside_a_site_that_says_of_none_ends_what_a_silo_answers(tmp_path):
    world = MaskedWorld(tmp_path, {"north": dict.fromkeys(NORTH, 100)}, dropouts=1)
    request = world.run(world.round(), until="shares")["caen"]
    rewritten(world, 1)
    with pytest.raises(FulcrumError, check=coded("policy.undeclared")):
        world.answer("caen", request)


def test_silos_that_share_one_policy_file_both_heed_its_change(tmp_path):
    world = made(tmp_path, 4)
    shared = tmp_path / "policy.toml"
    shared.write_text(limits(4))
    for silo in ("caen", "lille"):
        (tmp_path / silo / "policy.toml").unlink()
        (tmp_path / silo / "policy.toml").symlink_to(shared)
    requests = world.run(world.round(), until="shares", gone={"metz": "keys"})
    shared.write_text(limits(5))
    for silo in ("caen", "lille"):
        with pytest.raises(FulcrumError, check=coded("mask.group-below-policy")):
            world.answer(silo, requests[silo])
    assert world.answer("nancy", requests["nancy"]), "whose own policy is as it was"


def test_a_silo_insists_on_no_more_silos_than_others_need_it_for(tmp_path):
    """Seven of ten attest a sum: eight would attest one of nine, and unmask it, whatever the ninth insists on."""
    names = [f"silo-{number}" for number in range(10)]
    sizes = {"north": dict.fromkeys(names, 100)}
    world = MaskedWorld(tmp_path, sizes, dropouts=1, policy=limits(10))
    with pytest.raises(FulcrumError, check=coded("policy.sum-small", silo="silo-0", least=10, most=9)):
        world.silo("silo-0")
    rewritten(world, 9, names)
    assert world.silo("silo-0")
