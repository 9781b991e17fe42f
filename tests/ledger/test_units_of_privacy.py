"""A ledger names the unit of its costs, and adds costs of two units only where the silo allows it, in both units."""

import json
import math
import sqlite3

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from ledgers import holds

from fulcrum.cli.command_line import run
from fulcrum.core.noise.mechanism import GaussianMechanism, apply_by_person
from fulcrum.core.store.ledger import Allowance, Assumptions, ChargedUnit, Cost, Ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError, RefusedReleaseError

SILO = ChargedUnit()
PATIENT = ChargedUnit(name="person", neighbours="add-remove", sensitivity=1.01, largest_sum=40.0)
REPLACED = ChargedUnit(name="person", sensitivity=2.01, largest_sum=40.0)
RECORD = ChargedUnit(name="record", sensitivity=2.01, largest_sum=40.0)
SHIFTS = {"silo": 1.0, "region": 0.25}


def assumed(unit):
    return Assumptions(federation="91bc", unit=unit)


def plan(digest, unit, budget=math.inf):
    return Allowance(plan_digest=digest, rounds=9, shifts={"silo": budget, "region": budget}, assumptions=assumed(unit))


def record(ledger, allowance, number=1, **options):
    ledger.enter_plan(allowance, **options)
    return ledger.record(
        allowance, round_number=number, input_digest="model", payload=b"bytes", cost=Cost(shifts=SHIFTS)
    )


@pytest.mark.parametrize(
    ("before", "later", "factor"),
    [
        (SILO, SILO, 1),
        (SILO, PATIENT, 1),
        (SILO, RECORD, 1),
        (PATIENT, SILO, (2 * 40 / 1.01) ** 2),
        (REPLACED, SILO, (2 * 40 / 2.01) ** 2),
        (RECORD, SILO, (2 * 40 / 2.01) ** 2),
        (PATIENT, REPLACED, (2.01 / 1.01) ** 2),
        (REPLACED, PATIENT, 1),
        (PATIENT, RECORD, (2.01 / 1.01) ** 2),
        (REPLACED, RECORD, 1),
        (RECORD, PATIENT, math.inf),
        (PATIENT, ChargedUnit(name="person", neighbours="add-remove", silos_per_person=3, sensitivity=1.01), 9),
        (SILO, ChargedUnit(name="person", silos_per_person=2, sensitivity=2.01), 4),
        (ChargedUnit(name="person", silos_per_person=3, sensitivity=2.01), REPLACED, 1),
    ],
)
def test_a_release_is_charged_in_another_unit_by_the_largest_change_of_that_unit(before, later, factor):
    charged = Cost(shifts=SHIFTS, alone=2.0).charge_to(("silo", "region"), assumed(before), assumed(later))
    assert dict(charged.shifts) == pytest.approx({name: factor * shift for name, shift in SHIFTS.items()})


@given(data=st.data(), persons=st.integers(1, 6))
def test_no_change_of_another_unit_moves_a_sum_by_more_than_it_is_charged(data, persons):
    numbers = st.lists(st.floats(-50, 50), min_size=3, max_size=3)
    row = numbers.map(np.array)
    mechanism = GaussianMechanism(
        clip_norm=1.0, clip_share=1.0, weight=1.0, noise_multiplier=0.0, draw=np.zeros, largest_sum=4.0
    )
    rows = data.draw(st.lists(row, min_size=persons, max_size=persons))
    other = data.draw(st.lists(row, max_size=8))
    whole = np.linalg.norm(apply_by_person(mechanism, rows, 3) - apply_by_person(mechanism, other, 3))
    for neighbours, kappa in (("replace", 2.0), ("add-remove", 1.0)):
        unit = ChargedUnit(name="person", neighbours=neighbours, sensitivity=kappa, largest_sum=4.0)
        assert whole <= kappa * math.sqrt(unit.factor_to(SILO)) + 1e-9
        # One record of the first person is removed: the person's gradient is another one.
        changed = [rows[0] - data.draw(row), *rows[1:]]
        moved = np.linalg.norm(apply_by_person(mechanism, rows, 3) - apply_by_person(mechanism, changed, 3))
        record_unit = ChargedUnit(name="record", neighbours=neighbours, sensitivity=kappa, largest_sum=4.0)
        assert moved <= kappa * math.sqrt(unit.factor_to(record_unit)) + 1e-9


def test_another_unit_is_refused_with_both_budgets_until_it_is_allowed(path):
    with Ledger.open(path, silo="lyon") as ledger:
        record(ledger, plan("silos", SILO))
        with pytest.raises(RefusedReleaseError, check=coded("ledger.unit-differs")) as caught:
            ledger.enter_plan(plan("persons", PATIENT))
        told = str(caught.value)
        assert "protects the unit 'person', and silo 'lyon' has released in the unit 'silo'" in told
        assert "1 against 'silo', 0.25 against 'region' in the unit 'silo', and 1 against 'silo'" in told
        assert 'earlier_units = ["silo"]' in told
        with pytest.raises(RefusedReleaseError, check=coded("ledger.unit-differs")):
            ledger.enter_plan(plan("persons", PATIENT), earlier_units=("record",))
        assert ledger.allowance.plan_digest == "silos"
        record(ledger, plan("persons", PATIENT), earlier_units=("silo",))
        assert ledger.total_cost.shifts == {"silo": 2.0, "region": 0.5}
        ratio = (80 / 1.01) ** 2
        spent = {unit: dict(cost.shifts) for unit, cost in ledger.spent_by_unit().items()}
        assert spent["person"] == {"silo": 2.0, "region": 0.5}
        assert spent["silo"] == pytest.approx({"silo": 1 + ratio, "region": 0.25 * (1 + ratio)})
        # The silo's own budget cannot cover what the persons' plan costs it.
        with pytest.raises(RefusedReleaseError, check=coded("ledger.plan-overspent")):
            ledger.enter_plan(plan("silos again", SILO, budget=100.0), earlier_units=("person",))
    assert all(holds(path).values())
    with read_ledger(path) as ledger:
        assert ledger.spent_by_unit()["person"].shifts == {"silo": 2.0, "region": 0.5}


def test_the_unit_is_in_the_file_and_ledgers_without_one_are_for_silos(path):
    with Ledger.open(path, silo="lyon") as ledger:
        record(ledger, plan("persons", PATIENT))
    with sqlite3.connect(path) as file:
        [(text,)] = file.execute("SELECT assumptions FROM plan").fetchall()
    assert text == '["91bc",0,"",false,"person","add-remove",1,"0x1.028f5c28f5c29p+0","0x1.4000000000000p+5"]'
    assert Assumptions.from_text(text) == assumed(PATIENT)
    assert assumed(SILO).to_text() == '["91bc",0,"",false]'
    assert Assumptions.from_text('["91bc",0,"",false]').unit == SILO
    with Ledger.open(path, silo="lyon") as ledger:
        with pytest.raises(RefusedReleaseError, check=coded("ledger.unit-differs")):
            ledger.enter_plan(Allowance(plan_digest="old", rounds=2, shifts={"silo": 9.0, "region": 9.0}))
        record(ledger, plan("persons", PATIENT), number=2)


@pytest.mark.parametrize(
    "text",
    [
        '["91bc",0,"",false,"patient","replace",1,"0x1p1","0x1p1"]',
        '["91bc",0,"",false,"person","neither",1,"0x1p1","0x1p1"]',
        '["91bc",0,"",false,"person","replace",0,"0x1p1","0x1p1"]',
        '["91bc",0,"",false,"person","replace",true,"0x1p1","0x1p1"]',
        '["91bc",0,"",false,"person","replace",1,"nan","0x1p1"]',
        '["91bc",0,"",false,"person","replace",1,"0x1p1","inf"]',
        '["91bc",0,"",false,"person","replace",1,"-0x1p1","0x1p1"]',
        '["91bc",0,"",false,"person","replace",1,2.0,"0x1p1"]',
        '["91bc",0,"",false,"person"]',
    ],
)
def test_a_unit_that_nobody_wrote_is_refused(text):
    with pytest.raises(LedgerError):
        Assumptions.from_text(text)


def test_the_command_states_the_spending_in_every_unit(path, capsys):
    with Ledger.open(path, silo="lyon") as ledger:
        record(ledger, plan("silos", SILO))
        record(ledger, plan("persons", PATIENT), earlier_units=("silo",))
    assert run(["ledger", "show", str(path)]) == 0
    told = capsys.readouterr().out
    assert "spent at region, by silo" in told
    assert "spent at region, by person" in told
    assert run(["ledger", "show", str(path), "--format", "json"]) == 0
    units = json.loads(capsys.readouterr().out)["units"]
    assert units["person"]["spent"] == {"silo": 2.0, "region": 0.5}
    assert units["silo"]["epsilon"]["region"] > units["person"]["epsilon"]["region"]
