"""Faults planted in the sum of a silo's persons: each named by the audit; and sound sums left alone."""

import numpy as np
import person_faults as faults
import pytest
from person_faults import made, training
from scipy import stats

from fulcrum.audit.audit_run import whole_audit
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.integration import person_checks
from fulcrum.audit.integration.person_checks import made_up_persons, person_probes, sum_of_rows
from fulcrum.audit.replays.canary_game import audit
from fulcrum.core.noise.mechanism import apply_by_person
from fulcrum.core.privacy_unit import PrivacyUnit

PATIENT = PrivacyUnit(name="person", label="patient")
NAMED = {
    "two_local_steps": person_checks.MIXED,
    "clip_by_batch": person_checks.BATCH_CLIPPED,
    "clipped_mean": person_checks.BATCH_CLIPPED,
    "records_clipped": person_checks.RECORDS_CLIPPED,
    "no_clip": person_checks.NO_CLIP,
    "divided_by_count": person_checks.DIVISOR,
    "divided_by_records": person_checks.DIVISOR,
    "with_memory_of_one_call": person_checks.REMEMBERS,
    "lattice_of_sum": person_checks.LATTICE_OF_SUM,
    "silenced_by_one": person_checks.NOT_FINITE,
    "not_scaled_down": person_checks.TOO_LONG,
}


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
@pytest.mark.parametrize(("fault", "name"), NAMED.items())
def test_every_fault_of_training_has_its_own_name(fault, name, neighbours):
    unit = PrivacyUnit(name="person", label="patient", neighbours=neighbours)
    [probe] = person_probes(training(getattr(faults, fault)), unit)
    assert probe.verdict == VIOLATED
    assert probe.fault == name
    assert "patient" in probe.reasons[0]
    assert "{" not in probe.reasons[0]


def test_a_gradient_that_remembers_the_round_before_is_named():
    [probe] = person_probes(training(faults.with_memory()), PATIENT)
    assert probe.fault == person_checks.REMEMBERS
    assert "second call with the same records" in probe.reasons[0]


@pytest.mark.parametrize("seed", range(20))
def test_sound_sums_have_no_fault(seed):
    rows = sum_of_rows(apply_by_person, made_up_persons(parameters=30, seed=seed), of="sum by person", node="lille")
    for neighbours in ("replace", "add-remove"):
        unit = PrivacyUnit(name="person", neighbours=neighbours)
        for silo_sum in (rows, training(faults.sound)):
            [probe] = person_probes(silo_sum, unit)
            assert (probe.verdict, probe.fault, probe.reasons) == (CONSISTENT, "", [])


def test_single_precision_is_no_fault():
    def single(mechanism, some):
        return faults.sound(mechanism, some).astype(np.float32)

    assert person_probes(training(single), PATIENT, lattice=False)[0].verdict == CONSISTENT


ROWS = {
    "clip by batch": (faults.rows_of_batch, person_checks.BATCH_CLIPPED),
    "no clip": (faults.rows_not_clipped, person_checks.NO_CLIP),
    "divisor": (faults.rows_divided(100), person_checks.DIVISOR),
    "memory": (faults.rows_with_memory(), person_checks.REMEMBERS),
    "lattice": (faults.rows_cut_together, person_checks.LATTICE_OF_SUM),
}


@pytest.mark.parametrize(("purpose", "neighbours"), [("research", "replace"), ("deployment", "add-remove")])
@pytest.mark.parametrize("fault", ROWS)
def test_a_fault_of_the_path_is_named_in_every_audit(fault, purpose, neighbours):
    by_person, name = ROWS[fault]
    if purpose == "research" and name == person_checks.LATTICE_OF_SUM:
        pytest.skip("research has no lattice")
    plan = made(purpose, neighbours=neighbours, unit_name="patient")
    for seed in range(2):
        audited = whole_audit(plan, trials=1_000, seed=seed, mechanism=faults.path(plan, by_person))
        assert audited.verdict == VIOLATED
        assert [probe.fault for probe in audited.probes if probe.fault] == [name]


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
@pytest.mark.parametrize(
    ("by_person", "times"),
    [(faults.rows_not_clipped, 16), (faults.rows_of_three_records, 3)],
)
def test_a_canary_that_passes_the_clip_is_measured_by_the_game_too(by_person, times, neighbours):
    plan = made(neighbours=neighbours, sizes={"north": [100] * 3, "west": [300]})
    for seed in range(5):
        audited = audit(plan, trials=3_000, seed=seed, mechanism=faults.path(plan, by_person))
        reasons = " ".join(reason for finding in audited.findings for reason in finding.reasons)
        assert audited.verdict == VIOLATED
        assert f"The canary person arrives {times} times" in reasons or "on a Gaussian trade-off" in reasons


def test_a_divisor_of_the_data_raises_the_measured_epsilon_of_a_person_who_comes_or_goes():
    plan = made(neighbours="add-remove")
    audited = audit(plan, trials=3_000, seed=1, mechanism=faults.path(plan, faults.rows_divided(100)))
    assert max(finding.assumption_free for finding in audited.findings) > 2
    assert audited.verdict == VIOLATED


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_a_person_in_two_silos_without_provision_is_named_and_measured(neighbours):
    plan = made(neighbours=neighbours, unit_name="patient")
    audited = whole_audit(plan, trials=20_000, seed=1, canary_silos=2)
    assert audited.verdict == VIOLATED
    [probe] = [probe for probe in audited.probes if probe.fault]
    assert probe.fault == person_checks.SEVERAL_SILOS
    assert f"epsilon {plan.person_epsilons['two_silos_above']:.4g}" in probe.reasons[0]
    assert "one patient has records in 2 silos" in probe.reasons[0]
    assert "--silos-per-person 2" in probe.reasons[0]
    reasons = [reason for finding in audited.findings for reason in finding.reasons]
    assert any(
        reason.startswith("One patient has records in 2 silos, and the plan provides for 1") for reason in reasons
    )
    north = next(finding for finding in audited.findings if (finding.node, finding.observer) == ("north", "above"))
    assert north.gaussian > 1.5 > north.stated


def test_with_provision_a_person_in_two_silos_keeps_the_stated_epsilon():
    for neighbours in ("replace", "add-remove"):
        plan = made(neighbours=neighbours, silos_per_person=2)
        audited = whole_audit(plan, trials=20_000, seed=1)
        assert audited.verdict == CONSISTENT
        above = [finding for finding in audited.findings if finding.observer == "above" and finding.node == "north"]
        assert [len(finding.further) for finding in above] == [1]
        assert 0.6 < above[0].gaussian <= above[0].exact


def test_false_alarms_over_100_audits_of_persons_are_as_few_as_stated():
    alarms = {}
    for neighbours, silos in (("replace", 1), ("add-remove", 1), ("replace", 2), ("add-remove", 3)):
        plan = made(
            sizes={"north": [120, 80, 100], "south": [300, 200], "west": [150], "east": [150]},
            rounds=6,
            neighbours=neighbours,
            silos_per_person=silos,
        )
        verdicts = [audit(plan, trials=1_000, seed=seed).verdict for seed in range(25)]
        alarms[neighbours, silos] = verdicts.count(VIOLATED)
    assert sum(alarms.values()) <= stats.binom.ppf(0.999, 100, 0.05)


def test_false_alarms_of_persons_on_a_lattice_are_as_few_as_stated():
    plan = made("deployment", sizes={"north": [120, 80], "west": [150]}, rounds=3, neighbours="add-remove")
    alarms = sum(audit(plan, trials=1_000, seed=seed).verdict == VIOLATED for seed in range(30))
    alarms += sum(whole_audit(plan, trials=1_000, seed=seed).verdict == VIOLATED for seed in range(10))
    assert alarms <= stats.binom.ppf(0.999, 40, 0.05)
