"""A plan file is verified as it was read, wherever it enters: its words and stated figures, not those made anew."""

import json

import msgspec
import numpy as np
import pytest
from forging import lie, sign_anyway
from masked import MaskedWorld
from regional import LAYOUT, World
from site_folder import released, rewritten

import fulcrum
from fulcrum.aggregation.masked_round import MaskedRound
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.plan import verified_plan as verified_contents
from fulcrum.core.plan.plan_file import to_json
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.errors import PlanError
from fulcrum.server.coordinator import Coordinator

pytest.importorskip("cryptography", reason="needs the extra secure")


def forged(home, key):
    lie(home / "plan.json")
    sign_anyway(home / "plan.json", key)


@pytest.mark.parametrize("role", ["silo", "region", "server"])
def test_no_site_takes_a_signed_plan_whose_words_are_false(silo, role):
    rewritten(silo, 'role = "silo"', f'role = "{role}"')
    read_site(silo, role)
    forged(silo, silo.parent / "issuer.key")
    failed = [check.name for check in fulcrum.verify(silo / "plan.json") if not check.holds]
    assert {"epsilon at silo", "epsilon at region", "worst epsilon above", "words"} <= set(failed)
    with pytest.raises(PlanError, match=r"plan\.json does not hold what it says: epsilon at silo, silo 'a'") as caught:
        read_site(silo, role)
    assert "\n" not in str(caught.value)


FALSE_WORDS = {
    "statement": "Every silo has epsilon 0.1 against everybody.",
    "adjacency": "Two federations are neighbours where one record differs.",
    "assumptions": [],
}


@pytest.mark.parametrize("words", FALSE_WORDS)
def test_a_silo_releases_nothing_under_a_plan_of_true_figures_and_false_words(silo, model, words):
    station = SiloStation(read_site(silo, "silo"))
    station.answer(pack_model(model), 1)
    content = read_content(silo / "plan.json")
    guarantee = msgspec.structs.replace(content.guarantee, **{words: FALSE_WORDS[words]})
    (silo / "plan.json").write_bytes(to_json(msgspec.structs.replace(content, guarantee=guarantee)))
    sign_anyway(silo / "plan.json", silo.parent / "issuer.key")
    with pytest.raises(PlanError, match=f"words, the {words} is not what the figures say"):
        SiloStation(read_site(silo, "silo")).answer(pack_model(model), 2)
    assert released(silo) == [1]


def test_no_masked_silo_takes_part_under_a_plan_whose_words_are_false(tmp_path):
    world = MaskedWorld(tmp_path)
    world.silo("caen")
    world.restart()
    forged(tmp_path / "caen", tmp_path / "issuer.key")
    with pytest.raises(PlanError, match="does not hold what it says"):
        world.silo("caen")


def test_a_site_for_research_reads_no_plan_whose_words_are_false_either(tmp_path):
    world = MaskedWorld(tmp_path, purpose="research")
    world.silo("caen")
    world.restart()
    forged(tmp_path / "caen", tmp_path / "issuer.key")
    with pytest.raises(PlanError, match="does not hold what it says"):
        world.silo("caen")


def older(path, plan):
    """The same plan as an older version of this program words it: true in all that is checked, of another digest."""
    content = msgspec.structs.replace(plan.content(), made_by="fulcrum 0.0.9", advice=["Other advice."])
    path.write_bytes(to_json(content))
    return fulcrum.read_plan(path)


def test_silo_region_and_server_know_a_plan_by_the_digest_of_its_file(tmp_path):
    world = World(tmp_path)
    plan = older(tmp_path / "plan.json", world.plan)
    assert plan.digest == json.loads((tmp_path / "plan.json").read_text())["digest"] != world.plan.digest
    assert fulcrum.verified_plan(plan).digest == plan.digest
    assert release_parameters_of(plan, "lille").plan_digest == plan.digest
    server = Coordinator.open(
        tmp_path / "server", plan, dict(zip(LAYOUT.names, map(np.zeros, LAYOUT.shapes), strict=True))
    )
    with world.open(tmp_path / "north.region", plan) as region:
        for silo in sorted(region.members):
            region.accept(world.sealed(silo, plan=plan), 1)
        server.receive(region.close_round(1).to_bytes(), "north")


def test_a_plan_is_verified_once_however_often_and_wherever_it_is_read(silo, monkeypatch):
    verified, recomputed = [], verified_contents.verify

    def counted(content):
        verified.append(content.digest)
        return recomputed(content)

    verified_contents._VERIFIED.clear()
    monkeypatch.setattr(verified_contents, "verify", counted)
    site = read_site(silo, "silo")
    for plan in (site.plan, read_site(silo, "silo").plan, fulcrum.read_plan(silo / "plan.json")):
        release_parameters_of(plan, "a")
        fulcrum.verified_plan(plan)
    assert verified == [site.plan.digest]


def test_no_attempt_of_a_masked_round_verifies_the_plan_again(tmp_path, monkeypatch):
    world = MaskedWorld(tmp_path)
    world.round(1)

    def none(content):
        raise AssertionError("verified again")

    monkeypatch.setattr(verified_contents, "verify", none)
    for attempt in (2, 3):
        assert MaskedRound(world.plan, 1, {"weight": np.zeros(40)}, attempt).requests()
