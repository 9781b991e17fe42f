"""A unit of another sensitivity, registered here, is carried by planner, plan file, verification, words and ledger."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.plan.figures import effective_multiplier
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.privacy_unit import SILO_UNIT, UNITS, PrivacyUnit
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import ParameterError, PlanError, ReleaseError
from fulcrum.planning.planner import Execution, make_plan, plan
from fulcrum.planning.targets import Target
from fulcrum.planning.theory.calibration import epsilon_of, noise_for
from fulcrum.planning.theory.observer_power import observer_power
from fulcrum.readers.federation import Federation

FEDERATION = Federation.from_sizes({"north": [120, 80, 40], "south": [300]})
TARGET = Target(rounds=10, epsilon={"region": 1.0})


@pytest.fixture
def patient(monkeypatch):
    """Add or remove: the empty update lies in the middle of the ball, so its radius is the sensitivity."""
    unit = PrivacyUnit(
        name="patient",
        protected="patient's records",
        relation="add or remove one patient's records",
        sensitivity=1.0,
    )
    monkeypatch.setitem(UNITS, "patient", unit)
    return unit


def test_the_sensitivity_of_a_silo_is_the_diameter_of_the_clip_ball():
    assert SILO_UNIT.sensitivity == 2
    assert UNITS == {"silo": SILO_UNIT}
    made = plan(FEDERATION, rounds=10, epsilon=1.0)
    assert made.unit is SILO_UNIT
    assert b'"unit"' not in msgspec.json.encode(made.content())


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.inf, math.nan])
def test_a_unit_without_a_sensitivity_is_refused(sensitivity):
    with pytest.raises(ParameterError, check=coded("unit.sensitivity-range")):
        dataclasses.replace(SILO_UNIT, sensitivity=sensitivity)


@pytest.mark.parametrize("accountant", ["exact", "renyi"])
def test_half_the_sensitivity_needs_half_the_multiplier(patient, accountant):
    settings = {"rounds": 10, "delta": 1e-5, "accountant": accountant}
    assert epsilon_of(3.0, unit=patient, **settings) == epsilon_of(6.0, **settings)
    assert epsilon_of(3.0, unit=patient, **settings) < epsilon_of(3.0, **settings)
    assert noise_for(1.0, unit=patient, **settings) == pytest.approx(noise_for(1.0, **settings) / 2, rel=1e-12)
    assert observer_power(3.0, rounds=10, unit=patient) == observer_power(6.0, rounds=10)


def test_planner_and_verification_agree_on_another_unit(patient):
    silo = make_plan(FEDERATION, TARGET, Execution())
    made = make_plan(FEDERATION, dataclasses.replace(TARGET, unit=patient), Execution())
    assert made.noise_multiplier == pytest.approx(silo.noise_multiplier / 2, rel=1e-12)
    assert made.epsilon_above.max() == pytest.approx(1.0, rel=1e-9)
    assert made.epsilon_inside == pytest.approx(silo.epsilon_inside, rel=1e-9)
    content = made.content()
    assert (content.settings.unit, content.guarantee.sensitivity) == ("patient", made.clip_norm)
    assert content.guarantee.adjacency == "add or remove one patient's records, its declared size kept"
    assert "every patient's records has epsilon 1 against" in content.guarantee.statement
    checks = fulcrum.verify(content)
    assert [check for check in checks if not check.holds] == []
    assert "sensitivity is 1C" in {check.name for check in checks}
    sound = verified_plan(content)
    assert sound.unit is patient
    assert fulcrum.verify(silo.content())[2].name == "sensitivity is 2C"


def test_a_plan_that_claims_a_unit_it_was_not_made_for_fails_verification(patient):
    # Half of the noise that a silo needs, said to protect silos: every figure of the file but epsilon could agree.
    content = make_plan(FEDERATION, dataclasses.replace(TARGET, unit=patient), Execution()).content()
    claimed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, unit="silo"))
    claimed = msgspec.structs.replace(claimed, digest=content_digest(claimed))
    failing = {check.name for check in fulcrum.verify(claimed) if not check.holds}
    assert {"sensitivity is 2C", "epsilon at region", "requirement at region", "epsilon target at region"} <= failing


def test_a_plan_of_an_unknown_unit_is_refused(patient, monkeypatch):
    content = make_plan(FEDERATION, dataclasses.replace(TARGET, unit=patient), Execution()).content()
    monkeypatch.delitem(UNITS, "patient")
    with pytest.raises(PlanError, check=coded("plan.inconsistent")):
        fulcrum.verify(content)


def test_bounds_on_what_is_learned_of_a_silo_need_the_unit_silo(patient):
    learned = Target(rounds=10, information=2.0, floor=np.zeros(len(FEDERATION)), unit=patient)
    with pytest.raises(ParameterError, check=coded("plan.unit-unsupported")):
        make_plan(FEDERATION, learned, Execution())
    content = plan(FEDERATION, rounds=10, information=2.0).content()
    claimed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, unit="patient"))
    with pytest.raises(PlanError, check=coded("plan.inconsistent")):
        fulcrum.verify(msgspec.structs.replace(claimed, digest=""))


def test_a_release_charges_by_the_sensitivity_of_the_unit(patient):
    made = verified_plan(make_plan(FEDERATION, dataclasses.replace(TARGET, unit=patient), Execution()))
    name = FEDERATION.silo_name(0)
    cost = made.release_cost(name)["region"]
    assert cost == pytest.approx(1 / float(effective_multiplier(made, "region")[0]) ** 2, rel=1e-12)
    assert made.release_cost_alone(name) == pytest.approx(1 / float(made.noise_multiplier[0]) ** 2, rel=1e-12)
    # At the same noise a silo would have spent four times as much.
    epsilon = epsilon_of_shift(math.sqrt(10 * cost), delta=made.delta, accountant=made.accountant)
    assert float(epsilon) == pytest.approx(1.0, rel=1e-6)


def test_a_silo_releases_nothing_under_a_plan_of_another_unit(patient, tmp_path):
    """Its cost would be added to the costs of silos, and nothing clips what the unit is."""
    target = dataclasses.replace(TARGET, parameters=6, accountant="renyi", unit=patient)
    made = make_plan(FEDERATION, target, Execution(purpose="deployment"))
    name = FEDERATION.silo_name(0)
    with Ledger.open(tmp_path / "silo.ledger", silo=name) as ledger:
        with pytest.raises(ReleaseError, check=coded("release.unit-unsupported", unit="patient")):
            release({"w": np.ones(6)}, made, name, 1, ledger=ledger)
        assert not ledger.entries()
