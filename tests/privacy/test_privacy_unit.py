"""The unit of privacy is carried by planner, plan file, verification, words and the cost of a release."""

import dataclasses
import math

import msgspec
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.plan.figures import effective_multiplier
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit, ratio_of_conventions, whole_silo_ratio
from fulcrum.errors import ParameterError, PlanError
from fulcrum.planning.planner import plan
from fulcrum.planning.theory.calibration import epsilon_of, noise_for
from fulcrum.planning.theory.observer_power import observer_power
from fulcrum.readers.federation import Federation

FEDERATION = Federation.from_sizes({"north": [120, 80, 40], "south": [300]})
PATIENT = PrivacyUnit(name="person", neighbours="add-remove", label="patient")


def made(**settings):
    return plan(FEDERATION, **({"rounds": 10, "epsilon": 1.0, "unit": "person"} | settings))


def test_the_sensitivity_of_a_silo_is_the_diameter_of_the_clip_ball():
    assert SILO_UNIT.sensitivity == 2
    silo = plan(FEDERATION, rounds=10, epsilon=1.0)
    assert silo.unit == SILO_UNIT
    content = msgspec.json.encode(silo.content())
    assert not any(
        word in content for word in (b'"unit"', b'"neighbours"', b'"silos_per_person"', b'"two_silos_above"')
    )


@pytest.mark.parametrize(
    ("neighbours", "is_cut", "sensitivity"),
    [("replace", False, 2.0), ("add-remove", False, 1.0), ("replace", True, 2.01), ("add-remove", True, 1.01)],
)
def test_the_sensitivity_of_a_person_is_the_diameter_or_the_radius(neighbours, is_cut, sensitivity):
    unit = PrivacyUnit(name="person", neighbours=neighbours, is_cut=is_cut)
    assert unit.sensitivity == sensitivity
    assert whole_silo_ratio(unit) == 2 / sensitivity
    other = dataclasses.replace(unit, neighbours="replace" if neighbours == "add-remove" else "add-remove")
    assert ratio_of_conventions(unit) == other.sensitivity / sensitivity
    assert PrivacyUnit(is_cut=is_cut).sensitivity == 2


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"name": "patient"}, "errors.name-unknown"),
        ({"name": "person", "neighbours": "add/remove"}, "errors.name-unknown"),
        ({"neighbours": "add-remove"}, "unit.silo-alone"),
        ({"silos_per_person": 2}, "unit.silo-alone"),
        ({"label": "patient"}, "unit.silo-alone"),
        ({"name": "person", "silos_per_person": 0}, "unit.silos-per-person-range"),
        ({"name": "person", "silos_per_person": 1.5}, "unit.silos-per-person-range"),
        ({"name": "person", "silos_per_person": True}, "unit.silos-per-person-range"),
        ({"name": "person", "silos_per_person": 10**7}, "unit.silos-per-person-range"),
        ({"name": "person", "label": "two words"}, "unit.label-invalid"),
        ({"name": "person", "label": "Patient"}, "unit.label-invalid"),
        ({"name": "person", "label": "patient\n"}, "unit.label-invalid"),
        ({"name": "person", "label": "p" * 33}, "unit.label-invalid"),
        ({"name": "record", "label": "person"}, "unit.label-of-other-unit"),
        ({"name": "record", "label": "patient"}, "unit.label-of-other-unit"),
        ({"name": "person", "label": "silo"}, "unit.label-of-other-unit"),
        ({"name": "person", "label": "hospital"}, "unit.label-of-other-unit"),
        ({"name": "person", "label": "sites"}, "unit.label-of-other-unit"),
    ],
)
def test_a_unit_that_is_none_is_refused(settings, code):
    with pytest.raises(ParameterError, check=coded(code)):
        PrivacyUnit(**settings)


@pytest.mark.parametrize(
    ("unit", "relation"),
    [
        (SILO_UNIT, "replace one silo's whole dataset"),
        (
            PrivacyUnit(name="person"),
            "replace all records of one person in one silo by the records of another person in the same silo",
        ),
        (PATIENT, "add or remove all records of one patient in one silo"),
        (PrivacyUnit(name="record"), "replace one record in one silo by another record in the same silo"),
        (
            PrivacyUnit(name="person", label="patient", silos_per_person=3),
            "replace all records of one patient in up to 3 silos by the records of another patient in the same silos",
        ),
    ],
)
def test_the_relation_names_the_change_the_unit_and_the_silos(unit, relation):
    assert unit.relation == relation


@pytest.mark.parametrize("accountant", ["exact", "renyi"])
def test_half_the_sensitivity_needs_half_the_multiplier(accountant):
    settings = {"rounds": 10, "delta": 1e-5, "accountant": accountant}
    assert epsilon_of(3.0, unit=PATIENT, **settings) == epsilon_of(6.0, **settings)
    assert epsilon_of(3.0, unit=PATIENT, **settings) < epsilon_of(3.0, **settings)
    assert noise_for(1.0, unit=PATIENT, **settings) == pytest.approx(noise_for(1.0, **settings) / 2, rel=1e-12)
    assert observer_power(3.0, rounds=10, unit=PATIENT) == observer_power(6.0, rounds=10)


def test_planner_and_verification_agree_on_another_unit():
    replaced, added = made(), made(neighbours="add-remove", unit_name="patient")
    assert added.noise_multiplier == pytest.approx(replaced.noise_multiplier / 2, rel=1e-12)
    assert added.epsilon_above.max() == pytest.approx(1.0, rel=1e-9)
    assert added.epsilon_inside == pytest.approx(replaced.epsilon_inside, rel=1e-9)
    content = added.content()
    assert (content.settings.unit, content.guarantee.sensitivity) == ("person", added.clip_norm)
    assert content.guarantee.adjacency.startswith("add or remove all records of one patient in one silo, in all rounds")
    assert "every patient's records in one silo have epsilon 1 against" in content.guarantee.statement
    checks = fulcrum.verify(content)
    assert [check for check in checks if not check.holds] == []
    assert {"sensitivity is 1C", "persons"} <= {check.name for check in checks}
    assert verified_plan(content).unit == PATIENT
    assert fulcrum.verify(replaced.content())[2].name == "sensitivity is 2C"


@pytest.mark.parametrize("change", [{"unit": "silo"}, {"neighbours": "replace"}, {"silos_per_person": 2}])
def test_a_plan_that_claims_a_unit_it_was_not_made_for_fails_verification(change):
    content = made(neighbours="add-remove").content()
    change = change | ({"neighbours": "replace"} if change == {"unit": "silo"} else {})
    claimed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, **change))
    further = ("other_neighbours_above", "other_neighbours_inside", "two_silos_above", "whole_silo_above")
    left_out = {"silo": further, "person": () if "neighbours" in change else ("two_silos_above",)}
    unset = dict.fromkeys(left_out[claimed.settings.unit], msgspec.UNSET)
    claimed = msgspec.structs.replace(claimed, summary=msgspec.structs.replace(content.summary, **unset))
    claimed = msgspec.structs.replace(claimed, digest=content_digest(claimed))
    failing = {check.name for check in fulcrum.verify(claimed) if not check.holds}
    assert {"epsilon at region", "requirement at region", "epsilon target at region", "words"} <= failing


def test_a_plan_of_an_unknown_unit_is_refused():
    content = made().content()
    claimed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, unit="patient"))
    with pytest.raises(PlanError, check=coded("plan.field-invalid")):
        fulcrum.verify(msgspec.structs.replace(claimed, digest=""))


@pytest.mark.parametrize("settings", [{"information": 2.0}, {"floor": 0.5, "epsilon": 1.0}])
@pytest.mark.parametrize("unit", ["person", "record"])
def test_bounds_on_what_is_learned_of_a_silo_need_the_unit_silo(settings, unit):
    with pytest.raises(ParameterError, check=coded("plan.unit-unsupported", unit=unit)):
        plan(FEDERATION, rounds=10, unit=unit, **settings)
    content = plan(FEDERATION, rounds=10, **settings).content()
    claimed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, unit=unit))
    with pytest.raises(PlanError, check=coded("plan.inconsistent")):
        fulcrum.verify(msgspec.structs.replace(claimed, digest=""))


def test_a_release_charges_by_the_sensitivity_of_the_unit():
    sound = verified_plan(made(neighbours="add-remove"))
    name = FEDERATION.silo_name(0)
    cost = sound.release_cost(name)["region"]
    assert cost == pytest.approx(1 / float(effective_multiplier(sound, "region")[0]) ** 2, rel=1e-12)
    assert sound.release_cost_alone(name) == pytest.approx(1 / float(sound.noise_multiplier[0]) ** 2, rel=1e-12)
    epsilon = epsilon_of_shift(math.sqrt(10 * cost), delta=sound.delta, accountant=sound.accountant)
    assert float(epsilon) == pytest.approx(1.0, rel=1e-6)


def test_a_release_charges_for_a_person_in_several_silos():
    sound = verified_plan(made(silos_per_person=2))
    costs = [sound.release_cost(FEDERATION.silo_name(silo)) for silo in range(4)]
    kappa = [2 * math.sqrt(2 * members) for members in (2, 2, 2, 1)]  # "south" has one silo
    expected = [float(k / s) ** 2 for k, s in zip(kappa, effective_multiplier(sound, "region"), strict=True)]
    assert [cost["region"] for cost in costs] == pytest.approx(expected, rel=1e-12)
    alone = [sound.release_cost_alone(FEDERATION.silo_name(silo)) for silo in range(4)]
    assert alone == pytest.approx([cost["silo"] for cost in costs], rel=1e-12)
    assert alone == pytest.approx([8 / float(s) ** 2 for s in sound.noise_multiplier], rel=1e-12)


def test_the_epsilon_of_every_silo_covers_its_persons_in_other_silos():
    """A person of a silo with much noise may also be in a silo with little noise."""
    sizes = {"large": [40] * 6, "small": [40, 40]}
    shared = plan(Federation.from_sizes(sizes), rounds=5, epsilon=1.0, unit="person", silos_per_person=2)
    alone = plan(Federation.from_sizes(sizes), rounds=5, epsilon=1.0, unit="person")
    inside = shared.epsilon_inside
    assert alone.epsilon_inside[0] > 1.5 * alone.epsilon_inside[-1]
    assert inside == pytest.approx([inside.max()] * 8, rel=1e-12)
    content = shared.content()
    assert [check for check in fulcrum.verify(content) if not check.holds] == []
    silo = msgspec.structs.replace(content.silos[-1], epsilon=content.silos[-1].epsilon | {"silo": 1.0})
    understated = msgspec.structs.replace(content, silos=[*content.silos[:-1], silo], digest="")
    assert "epsilon at silo" in {check.name for check in fulcrum.verify(understated) if not check.holds}
