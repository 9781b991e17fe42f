import math

import numpy as np
import pytest

import fulcrum
from fulcrum.accounting import epsilon_of_shift
from fulcrum.errors import PlanError, UnreachableTargetError
from fulcrum.ledger import Ledger
from fulcrum.releasing import release
from fulcrum.replanning import replan

SIZES = {"north": {"lille": 100, "metz": 80}, "south": {"nice": 120, "lyon": 60}}
TARGET = {"epsilon": {"region": 2.0, "silo": 6.0}, "parameters": 5, "purpose": "deployment"}


@pytest.fixture
def running(tmp_path):
    """A plan of six rounds of which two are done."""
    old = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=6, **TARGET)
    for name in old.federation.silo_names.tolist():
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
            for round_number in (1, 2):
                release(np.ones(5), old, name, round_number, ledger=ledger)
    return old, tmp_path


def changed():
    return fulcrum.Federation.from_sizes({"north": {"lille": 150, "metz": 80, "caen": 40}, "south": {"nice": 120}})


def test_the_promise_covers_what_was_spent_and_what_is_to_come(running):
    old, folder = running
    new = replan(old, changed(), folder)
    assert new.rounds == 4
    assert new.epsilon_above.max() <= 2.0 * (1 + 1e-12)
    assert new.epsilon_inside.max() <= 6.0 * (1 + 1e-12)
    for index, name in enumerate(new.federation.silo_names.tolist()):
        path = folder / f"{name}.ledger"
        with Ledger.open(path, silo=name) as ledger:
            for round_number in range(1, 5):
                release(np.ones(5), new, name, round_number, ledger=ledger)
            spent = ledger.spent
        delta = new.target.accounted_delta
        above = epsilon_of_shift(math.sqrt(spent.shift_above), delta=delta, accountant="renyi")
        assert above <= 2.0 * (1 + 1e-9)
        assert above == pytest.approx(new.epsilon_above[index], rel=1e-9)


def test_every_observer_is_told_what_was_spent(running):
    old, folder = running
    new = replan(old, changed(), folder)
    fresh = fulcrum.plan(changed(), rounds=4, **TARGET)
    assert set(new.target.spent) == {"silo", "region", "federation"}
    shift = epsilon_of_shift(
        np.sqrt(4 * 4 / new.effective_multiplier("federation") ** 2),
        delta=new.target.accounted_delta,
        accountant="renyi",
    )
    assert (new.epsilon("federation")[:2] > shift[:2]).all()
    assert new.target.reserve > fresh.target.reserve


def test_a_silo_that_spent_nothing_needs_less_noise_than_one_that_spent(running):
    old, folder = running
    new = replan(old, changed(), folder)
    fresh = fulcrum.plan(changed(), rounds=4, **TARGET)
    assert new.noise_budget > fresh.noise_budget
    assert new.requirement.multiplier["silo"][2] < new.requirement.multiplier["silo"][0]


def test_a_replanned_file_keeps_what_was_spent_and_verifies(running, tmp_path):
    old, folder = running
    new = replan(old, changed(), folder)
    new.save(tmp_path / "new.json")
    again = fulcrum.read_plan(tmp_path / "new.json")
    assert again.digest == new.digest
    assert (again.epsilon_above == new.epsilon_above).all()
    assert all(check.holds for check in fulcrum.verify(tmp_path / "new.json"))


def test_a_silo_that_shows_no_ledger_is_not_planned_for(running):
    old, folder = running
    (folder / "lille.ledger").unlink()
    with pytest.raises(PlanError, match="silo 'lille' was in the old plan and shows no ledger"):
        replan(old, changed(), folder)


def test_the_ledger_of_somebody_else_is_refused(running):
    old, folder = running
    (folder / "metz.ledger").rename(folder / "lille.ledger")
    with pytest.raises(PlanError, match="is the ledger of silo 'metz', not of 'lille'"):
        replan(old, changed(), folder)


def test_a_silo_without_budget_and_a_plan_without_rounds_are_refused(running):
    old, folder = running
    for name in old.federation.silo_names.tolist():
        with Ledger.open(folder / f"{name}.ledger", silo=name) as ledger:
            for round_number in (3, 4, 5, 6):
                release(np.ones(5), old, name, round_number, ledger=ledger)
    with pytest.raises(UnreachableTargetError, match="all 6 rounds of the plan are done"):
        replan(old, changed(), folder)
    longer = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=9, **TARGET)
    with pytest.raises(UnreachableTargetError, match="has spent its whole budget"):
        replan(longer, changed(), folder)


def test_only_plans_with_epsilon_targets_are_replanned(tmp_path):
    with pytest.raises(PlanError, match="this one has none"):
        replan(fulcrum.plan("mild", rounds=3, information=1.0), "mild", tmp_path)
    with pytest.raises(PlanError, match="only epsilon adds up"):
        replan(fulcrum.plan("mild", rounds=3, information=1.0, epsilon=1.0), "mild", tmp_path)
    with pytest.raises(fulcrum.ParameterError, match="is counted for epsilon targets alone"):
        fulcrum.plan("mild", rounds=3, information=1.0, spent={"region": np.zeros(96), "silo": np.zeros(96)})
    with pytest.raises(fulcrum.ParameterError, match="spent must be given for the tiers 'region' and 'silo'"):
        fulcrum.plan("mild", rounds=3, epsilon=1.0, spent={"region": np.zeros(96)})
