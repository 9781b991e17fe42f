"""Plans whose sums are masked: who is inside, what colluders take off, and masks that somebody could guess."""

import random
import re

import numpy as np
import pytest
from faults import made, masks_from_short_seeds, one_silo_silent, reused_noise

import fulcrum
from fulcrum.audit.audit_run import whole_audit
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration.mask_attacks import KEYS, MASKS_A_TRIAL, MOST_MASKS, OWN, PAIRS, mask_probes, seed_bits
from fulcrum.audit.integration.masked_noise import masked_probes
from fulcrum.audit.integration.recorded_noise import made_up_task
from fulcrum.audit.learning.record_attacks import record_findings
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.audit.replays.canary_game import audit, observer_words
from fulcrum.audit.replays.played_observers import stages_of
from fulcrum.core.masking import masks
from fulcrum.core.masking import member_protocol as masking_silo
from fulcrum.core.noise.noise_sources import SecureNoise
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.views.terminal.audit_tables import observer_of

SIZES = {"north": [100] * 4, "south": [200, 150, 120, 90]}
ERRORS = Errors.share(10, 12, 0.99999)
DRAWN = random.Random(2)


def masked(purpose="research", sizes=SIZES, **options):
    return made(purpose, sizes=sizes, aggregation="masked", **options)


def inside_of(found, node, tier="silo"):
    [one] = [each for each in found.findings if (each.node, each.tier, each.observer) == (node, tier, "inside")]
    return one


@pytest.mark.parametrize("purpose", ["research", "deployment"])
@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (2, 1)])
def test_inside_is_the_server_with_as_many_members_as_the_plan_counts_on(purpose, colluders, dropouts):
    sizes = {"north": [100] * 9, "south": [200, 150, 120, 90, 80, 70, 60, 50, 40]}
    plan = masked(purpose, sizes, rounds=3, colluders=colluders, dropouts=dropouts)
    found = audit(plan, trials=50_000, seed=1, confidence=0.9999)
    names = plan.federation.silo_names.tolist()
    for node in sizes:
        one = inside_of(found, node)
        assert (one.colluders, one.missing) == (max(1, colluders), dropouts)
        assert one.stated == pytest.approx(plan.epsilon_inside[names.index(one.silo)], rel=1e-9)
        assert one.verdict == CONSISTENT
        # The attack reaches what it should: colluders' noise is gone, and that of all others is there.
        assert 0.5 * one.exact < one.gaussian <= one.exact
        assert one.noise_ratio == pytest.approx(1, abs=0.02)
    if purpose == "deployment":  # a round may lack a region, so nothing smaller is claimed further out
        assert not any(one.tier == "federation" for one in found.findings)
        return
    further_out = inside_of(found, "federation", "federation")
    assert (further_out.colluders, further_out.missing) == (max(1, colluders), dropouts)
    assert further_out.exact < inside_of(found, "south").exact


def test_what_colluders_know_is_taken_off_the_sum_and_nothing_else():
    """A coalition that is told nothing meets more noise than the claim counts on, and reaches less."""
    plan = masked(rounds=3)
    found = audit(plan, trials=20_000, seed=1)
    above = [one for one in found.findings if (one.node, one.observer) == ("north", "above")]
    assert inside_of(found, "north").exact > 1.1 * above[0].exact
    # Where a colluder's noise stays in the sum, all of it is seen as noise that is too wide.
    stage = next(stage for stage in stages_of(plan) if stage.tier == "silo" and stage.node == "north")
    [told] = stage.views[0].colluders
    assert told != stage.silo
    assert stage.views[0].noise_std == pytest.approx(
        np.sqrt(sum(plan.noise_variance[one] for one in stage.members[0] if one != told)) * plan.clip_norm
    )


def test_where_the_whole_federation_is_one_group_no_regional_sum_is_played():
    plan = masked(epsilon={"federation": 1.0}, rounds=3)
    found = audit(plan, trials=6_000, seed=2, confidence=0.9999)
    assert {(one.tier, one.node, one.observer) for one in found.findings} == {
        ("federation", "federation", "above"),
        ("silo", "federation", "inside"),
    }
    assert found.verdict == CONSISTENT
    assert not any("regions were audited" in note for note in found.notes)
    inside = next(stage for stage in stages_of(plan) if stage.tier == "silo").views[0]
    assert (inside_of(found, "federation").colluders, len(inside.colluders)) == (1, 2)  # one of each region


@pytest.mark.parametrize("fault", [one_silo_silent, reused_noise])
def test_the_observer_inside_finds_planted_faults(fault):
    plan = masked(rounds=4)
    found = audit(plan, trials=6_000, seed=3, mechanism=fault(plan))
    assert inside_of(found, "north").verdict == VIOLATED


def test_a_silo_that_hands_its_noise_over_unasked_is_found_by_the_observer_inside():
    """A plan that counts on no colluder at all: the server with one member learns more than it says."""

    class Trusting(fulcrum.Plan):
        def epsilon(self, tier=None, *, colluders=None, dropouts=None):
            return super().epsilon("region" if tier == "silo" else tier, colluders=0, dropouts=0)

    plan = masked(sizes={"north": [100] * 3})
    names = [name for name, field in plan.__dataclass_fields__.items() if field.init]
    trusting = Trusting(**{name: getattr(plan, name) for name in names})
    found = audit(trusting, trials=60_000, seed=1, mechanism=AuditedPath(plan=trusting))
    assert inside_of(found, "north").verdict == VIOLATED


def test_words_say_who_is_inside():
    plan = masked(rounds=2)
    found = audit(plan, trials=1_000, seed=1)
    assert observer_of(inside_of(found, "north")) == "inside"
    assert observer_words(found)["inside"].startswith("the server together with silos")
    assert any("inside is the server together with 1 silo of each region" in note for note in found.notes)
    trusted = audit(made(rounds=2), trials=1_000, seed=1)
    assert observer_words(trusted)["inside"] == "who sees single releases"
    assert not any("masked" in note for note in trusted.notes)


@pytest.mark.parametrize("options", [{}, {"purpose": "deployment"}, {"epsilon": {"federation": 1.0}}])
def test_a_masked_sum_holds_the_noise_of_the_plan(options):
    plan = masked(**{"parameters": 200} | options)
    [found] = masked_probes(plan, ERRORS, seed=1)
    assert (found.of, found.verdict, found.values) == ("a masked sum", CONSISTENT, 400)
    assert found.noise_ratio == pytest.approx(1, abs=0.15)


def below_countries():
    """A deployed plan whose masked groups report to countries."""
    sizes = {region: [100] * 3 for region in ("ra", "rb", "rc")}
    federation = fulcrum.Federation.from_sizes(sizes, outer={"country": {"east": ["ra", "rb"], "west": ["rc"]}})
    given = {"rounds": 3, "epsilon": {"region": 4.0, "country": 2.0}, "purpose": "deployment", "parameters": 200}
    return fulcrum.plan(federation, aggregation="masked", **given)


def test_below_countries_the_sum_of_a_masked_region_holds_the_noise_of_the_plan():
    found, seal = masked_probes(below_countries(), ERRORS, seed=1)
    assert (found.of, found.node, found.verdict, found.values) == ("a masked sum", "ra", CONSISTENT, 400)
    assert found.noise_ratio == pytest.approx(1, abs=0.15)
    assert (seal.of, seal.node, seal.verdict, seal.values) == ("sealed answers", "ra", CONSISTENT, 2 * 5 * 3)
    asked, _ = masked_probes(below_countries(), ERRORS, seed=1, silo="rc-2")
    assert (asked.node, asked.verdict) == ("rc", CONSISTENT)


def test_answers_that_leave_silos_without_seal_are_found(monkeypatch):
    monkeypatch.setattr("fulcrum.core.masking.answer_sealing.AnswerSealer.seal", lambda self, answer, number: answer)
    found, seal = masked_probes(below_countries(), ERRORS, seed=1)
    assert (found.verdict, seal.verdict) == (CONSISTENT, VIOLATED)
    [reason] = seal.reasons
    assert reason.startswith("30 of 30 answers of silos are not sealed to ra: the server that carries them unmasks")


@pytest.mark.parametrize("plan_of", [lambda: masked("deployment", parameters=200), below_countries])
def test_a_masked_sum_with_narrow_noise_is_found(monkeypatch, plan_of):
    drawn = SecureNoise.integers
    monkeypatch.setattr(
        SecureNoise, "integers", lambda self, *, width, count: drawn(self, width=0.7 * width, count=count)
    )
    found, *_ = masked_probes(plan_of(), ERRORS, seed=1)
    assert found.verdict == VIOLATED


def test_a_record_is_concealed_by_the_whole_group_and_not_by_its_silo_alone():
    plan = masked(sizes={"north": [100] * 4}, rounds=4, epsilon=100.0, parameters=None)
    task, training = made_up_task(plan, seed=1, features=8), LocalTraining(learning_rate=1.0, steps=1, batch=4)
    [found] = record_findings(plan, task, training=training, seed=1, draws=150, records=4)
    trusted = made(sizes={"north": [100] * 4}, rounds=4, epsilon=100.0, parameters=None)
    [single] = record_findings(trusted, task, training=training, seed=1, draws=150, records=4)
    assert found.epsilon < single.epsilon
    assert found.verdict == CONSISTENT
    assert found.right_at_least < single.right_at_least


def test_a_whole_audit_finds_masks_of_short_seeds():
    """Of 24 bits here, so that few masks are enough; of 32 below, and in 20 of 20 audits in benchmarks/audit.py."""
    with masks_from_short_seeds(bits=24):
        found = whole_audit(masked(rounds=2), trials=1_600, seed=1)
    assert found.verdict == VIOLATED
    [broken] = [probe for probe in found.probes if probe.verdict == VIOLATED]
    assert (broken.of, broken.node) == ("masks", "its own")
    assert re.search(r"as of a seed of 2[345] bits: whoever tries all of these takes the masks off", broken.reasons[0])


def short_secret():
    return random.Random(DRAWN.getrandbits(32)).randbytes(32)


def short_seeds(monkeypatch):
    monkeypatch.setattr(masks, "new_seed", short_secret)


def short_private_keys(monkeypatch):
    monkeypatch.setattr(masks, "new_private_key", short_secret)


def short_masks(monkeypatch):
    real = masks.add_mask

    def narrow(vector, key, *, negative=False):
        real(vector, key[:4] + bytes(28), negative=negative)

    monkeypatch.setattr(masks, "add_mask", narrow)


@pytest.mark.parametrize(("fault", "kind"), [(short_seeds, OWN), (short_private_keys, KEYS), (short_masks, PAIRS)])
def test_masks_of_a_32_bit_seed_are_found(monkeypatch, fault, kind):
    fault(monkeypatch)
    [found] = mask_probes(masked(), kinds=[kind])
    assert (found.node, found.verdict) == (kind, VIOLATED)
    assert "pairs of 300,000 are alike, as of a seed of" in found.reasons[0]
    others = [other for other in (KEYS, OWN, PAIRS) if other != kind and not (fault is short_masks and other == OWN)]
    assert {probe.verdict for probe in mask_probes(masked(), masks=1_000, kinds=others)} == {CONSISTENT}


def test_as_many_masks_are_made_as_32_bits_never_survive():
    expected = MOST_MASKS * (MOST_MASKS - 1) / 2 / 2**32
    assert 20 * np.exp(-expected) < 1e-3  # the chance that any of twenty audits misses
    assert seed_bits(MOST_MASKS, round(expected)) == pytest.approx(32, abs=0.2)
    assert MASKS_A_TRIAL * 20_000 == MOST_MASKS


def test_masks_are_made_by_what_a_silo_masks_with(monkeypatch):
    """Each of the functions that are attacked is one that a masked input goes through."""
    called = []
    attacked = {"new_seed": masks, "new_private_key": masks, "add_mask": masks}
    for name, where in (attacked | {"self_mask_key": masking_silo, "pair_key": masking_silo}).items():
        real = getattr(where, name)

        def noted(*given, _real=real, _name=name, **named):
            called.append(_name)
            return _real(*given, **named)

        monkeypatch.setattr(where, name, noted)
    masked_probes(masked(sizes={"north": [100] * 2}, rounds=1), ERRORS, seed=1)
    by_silos = set(called)
    called.clear()
    mask_probes(masked(), masks=3)
    assert set(called) == by_silos == {"new_seed", "new_private_key", "self_mask_key", "pair_key", "add_mask"}


def test_a_whole_audit_of_a_masked_plan_tells_of_its_masks_as_they_are_made():
    told = []
    found = whole_audit(
        masked(rounds=2),
        trials=1_000,
        seed=1,
        confidence=0.9999,
        on_progress=lambda *at: told.append(at),
    )
    assert found.verdict == CONSISTENT
    kinds = [(probe.of, probe.values) for probe in found.probes if probe.of == "masks"]
    assert kinds == [("masks", 15_000)] * 3
    assert told[-1] == ("Making masks", 45_000, 45_000)
    alone = whole_audit(masked(rounds=2), trials=1_000, seed=1, silo="south-2", confidence=0.9999)
    assert {probe.of for probe in alone.probes} == {"release", "a masked sum", "masks"}
    assert {one.silo for one in alone.findings} == {"south-2"}
