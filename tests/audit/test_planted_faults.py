"""Faults planted in the real path, each found in every audit; and a sound path left alone."""

import numpy as np
import pytest
from faults import (
    AuditedPath,
    child_in_place_of_the_sum,
    children_beside_the_sum,
    forwarding,
    half_sensitivity,
    lattices_of_their_own,
    made,
    narrow_noise,
    no_clip,
    one_silo_silent,
    reused_every_third,
    reused_noise,
    unweighted_noise,
)
from scipy import stats

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, LOOSER, VIOLATED
from fulcrum.audit.replays.audited_path import silo_release
from fulcrum.audit.replays.canary_game import audit

RESEARCH = made()
AUDITS = 20
TRIALS = 3_000

LATTICES = fulcrum.plan(
    fulcrum.Federation.from_sizes({"heavy": [10_000] * 3, "light": [1] * 2}),
    rounds=8,
    epsilon={"federation": 1.0},
    purpose="deployment",
    parameters=40,
)


def reasons_of(found):
    return " ".join(reason for finding in found.findings for reason in finding.reasons)


@pytest.mark.parametrize(
    ("fault", "verdict", "why"),
    [
        (narrow_noise, VIOLATED, "as wide as the plan says"),
        (no_clip, VIOLATED, "times as large as the clip admits"),
        (half_sensitivity, VIOLATED, "on a Gaussian trade-off"),
        (one_silo_silent, VIOLATED, "The noise of silo 'north-4' is 0.0% as wide"),
        (unweighted_noise, LOOSER, "times as wide as the plan says"),
        (reused_noise, VIOLATED, "not fresh: between rounds 1 and 2 its correlation is 1.000"),
        (reused_every_third, VIOLATED, "not fresh: between rounds"),
        (forwarding, VIOLATED, "messages up in a round, and not one sum"),
    ],
)
def test_a_planted_fault_is_found_in_every_audit(fault, verdict, why):
    mechanism = fault(RESEARCH)
    for seed in range(AUDITS):
        found = audit(mechanism.plan, trials=TRIALS, seed=seed, mechanism=mechanism)
        assert found.verdict == verdict
        assert why in reasons_of(found)


def tiers(purpose="research", **options):
    federation = fulcrum.Federation.from_sizes(
        {"ra": [100] * 3, "rb": [200, 150], "rc": [90, 120, 80], "rd": [300] * 2},
        outer={"country": {"east": ["ra", "rb"], "west": ["rc", "rd"]}},
    )
    given = {"rounds": 6, "epsilon": {"region": 4.0, "country": 2.0}, "purpose": purpose, "parameters": 40}
    return fulcrum.plan(federation, **given | options)


@pytest.mark.parametrize(("purpose", "audits"), [("research", AUDITS), ("deployment", 3)])
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (children_beside_the_sum, "The country sends 2 messages up in a round, and not one sum."),
        (child_in_place_of_the_sum, "The noise that it meets is"),
    ],
)
def test_a_fault_of_a_country_is_found_at_every_country_and_nowhere_below(purpose, audits, fault, why):
    plan = tiers(purpose)
    for seed in range(audits):
        found = audit(plan, trials=TRIALS, seed=seed, confidence=0.9999, mechanism=fault(plan))
        above = [one for one in found.findings if (one.tier, one.observer) == ("country", "above")]
        assert {one.node for one in above} == {"east", "west"}
        assert all(one.verdict == VIOLATED and why in " ".join(one.reasons) for one in above)
        assert not any(one.verdict == VIOLATED for one in found.findings if one.tier == "region")


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_a_region_that_unmasks_its_silos_is_found_at_every_region_below_countries(aggregation):
    """A region sends single releases up beside their sum, whether its silos trusted it with them or not."""
    federation = fulcrum.Federation.from_sizes(
        {"ra": [100] * 3, "rb": [200, 150, 120], "rc": [90, 120, 80], "rd": [300] * 3},
        outer={"country": {"east": ["ra", "rb"], "west": ["rc", "rd"]}},
    )
    epsilon = {"region": 4.0, "country": 2.0}
    plan = fulcrum.plan(federation, rounds=6, epsilon=epsilon, parameters=40, aggregation=aggregation)
    found = audit(plan, trials=TRIALS, seed=1, confidence=0.9999, mechanism=forwarding(plan))
    lacking = [one for one in found.findings if (one.tier, one.observer) == ("region", "above")]
    assert {one.node for one in lacking} == {"ra", "rb", "rc", "rd"}
    for one in lacking:
        assert one.verdict == VIOLATED
        assert "The region sends 4 messages up in a round, and not one sum." in " ".join(one.reasons)
    assert not any("The silo sends" in " ".join(one.reasons) for one in found.findings)
    sound = audit(plan, trials=TRIALS, seed=1, confidence=0.9999)
    assert not any(one.verdict == VIOLATED for one in sound.findings)


def test_noise_missing_on_one_level_is_found_there_and_at_every_level_further_out():
    """Silos of one region draw no noise: its sum and its country's lack noise, and the sums beside them do not."""
    plan = tiers()
    quiet = set(np.flatnonzero(plan.federation.membership("region") == 1).tolist())

    def released(path, silo, number, signs, seed):
        weight = plan.federation.weights[silo] * plan.clip_norm
        return signs * weight if silo in quiet else silo_release(path, silo, number, signs, seed)

    found = audit(plan, trials=TRIALS, seed=3, confidence=0.9999, mechanism=AuditedPath(plan=plan, released=released))
    lacking = {(one.tier, one.node) for one in found.findings if one.verdict == VIOLATED and one.observer == "above"}
    assert {("region", "rb"), ("country", "east")} <= lacking
    assert not lacking & {("region", "ra"), ("region", "rc"), ("region", "rd"), ("country", "west")}


def test_sums_of_different_lattices_are_found_in_every_audit_and_their_low_bits_read():
    mechanism = lattices_of_their_own(LATTICES)
    for seed in range(AUDITS):
        found = audit(LATTICES, trials=10_000, seed=seed, mechanism=mechanism)
        [light] = [one for one in found.findings if one.tier == "federation" and one.silo.startswith("light")]
        assert light.verdict == VIOLATED
        assert "Noise does not reach the low bits" in reasons_of(found)
        # The plan claims as good as nothing at the root, and the sums modulo the coarse step say a lot.
        assert light.exact < 1e-3
        assert light.gaussian > 0.2
        assert "reading sums modulo" in " ".join(light.reasons)


@pytest.mark.parametrize("fault", [narrow_noise, no_clip, one_silo_silent, unweighted_noise, forwarding])
def test_faults_on_a_lattice_are_found(fault):
    mechanism = fault(made("deployment"))
    for seed in range(3):
        assert audit(mechanism.plan, trials=TRIALS, seed=seed, mechanism=mechanism).verdict != CONSISTENT


def test_noise_used_again_leaves_nothing_concealed_and_not_only_a_correlation():
    """In a plain sum over rounds it would look better than it is: signs that vary bring it out."""
    mechanism = reused_noise(RESEARCH)
    found = audit(RESEARCH, trials=TRIALS, seed=1, mechanism=mechanism)
    assert min(finding.assumption_free for finding in found.findings) > 5


def test_false_alarms_over_200_audits_are_as_few_as_stated():
    plan = made(sizes={"north": [120, 80, 100], "south": [300, 200], "west": [150]}, rounds=6)
    alarms = sum(audit(plan, trials=1_000, seed=seed).verdict == VIOLATED for seed in range(200))
    assert alarms <= stats.binom.ppf(0.999, 200, 0.05)


def test_false_alarms_on_a_lattice_are_as_few_as_stated():
    plan = made("deployment", sizes={"north": [120, 80], "west": [150]}, rounds=3)
    alarms = sum(audit(plan, trials=1_000, seed=seed).verdict == VIOLATED for seed in range(40))
    assert alarms <= stats.binom.ppf(0.999, 40, 0.05)


def test_a_million_replays_reach_95_percent_of_the_exact_epsilon():
    plan = made(sizes={"north": [100, 100]}, rounds=4)
    found = audit(plan, trials=1_000_000, seed=2)
    for finding in found.findings:
        assert 0.95 * finding.exact <= finding.gaussian <= finding.exact
        assert finding.assumption_free <= finding.gaussian


def test_a_sound_path_leaves_nothing_for_the_tests_of_noise_to_find():
    for purpose in ("research", "deployment"):
        plan = made(purpose, dropouts=1)
        found = audit(plan, trials=6_000, seed=4, confidence=0.9999, mechanism=AuditedPath(plan=plan))
        assert found.verdict != VIOLATED
        ratios = [finding.noise_ratio for finding in found.findings]
        assert np.allclose(ratios, 1, atol=0.02)
