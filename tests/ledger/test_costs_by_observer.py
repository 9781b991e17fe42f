"""Spending by observer, for any number of tiers, and plans whose tiers differ."""

import itertools
import math

import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import holds, opened, release

from fulcrum.core.store.ledger_entries import Allowance, Cost
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError, RefusedReleaseError

FOUR = {"silo": 1.0, "ward": 0.5, "region": 0.25, "federation": 0.125}


def plan(digest, shifts, rounds=10, times=10):
    return Allowance(plan_digest=digest, rounds=rounds, shifts={name: times * shift for name, shift in shifts.items()})


def test_every_observers_spending_is_kept_added_up_and_shown(path):
    with opened(path, plan("p", FOUR)) as ledger:
        for number in (1, 2, 3):
            release(ledger, number, cost=Cost(shifts=FOUR))
        assert ledger.total_cost.shifts == {name: 3 * shift for name, shift in FOUR.items()}
    with read_ledger(path) as ledger:
        assert ledger.total_cost.shifts == {name: 3 * shift for name, shift in FOUR.items()}
        assert list(ledger.total_cost.shifts) == list(FOUR)
        assert [entry.spent.shifts["ward"] for entry in ledger.entries()] == [0.5, 1.0, 1.5]
    assert all(holds(path).values())


@pytest.mark.parametrize("observer", FOUR)
def test_the_budget_of_every_observer_is_kept(path, observer):
    budgets = dict.fromkeys(FOUR, math.inf) | {observer: 2.5 * FOUR[observer]}
    allowed = Allowance(plan_digest="p", rounds=10, shifts=budgets)
    with opened(path, allowed) as ledger:
        release(ledger, 1, cost=Cost(shifts=FOUR))
        release(ledger, 2, cost=Cost(shifts=FOUR))
        with pytest.raises(RefusedReleaseError, check=coded("ledger.budget-exceeded")):
            release(ledger, 3, cost=Cost(shifts=FOUR))
        assert ledger.sequence == 2


@pytest.mark.parametrize(
    "cost",
    [
        {"silo": 1.0},
        {"silo": 1.0, "region": 0.25},
        {"silo": 1.0, "ward": 0.5, "region": 0.25, "federation": 0.125, "world": 0.1},
        {"silo": 1.0, "ward": 0.5, "county": 0.25, "federation": 0.125},
        {"silo": 1.0, "region": 0.25, "ward": 0.5, "federation": 0.125},
        {},
    ],
)
def test_a_cost_for_other_observers_than_the_plans_is_refused_and_nothing_is_recorded(path, cost):
    with opened(path, plan("p", FOUR)) as ledger:
        refusal = ledger.would_exceed(ledger.allowance, Cost(shifts=cost), 1)
        assert coded("ledger.cost-observers", observers="silo, ward, region, federation")(refusal)
        with pytest.raises(
            RefusedReleaseError, check=coded("ledger.cost-observers", observers="silo, ward, region, federation")
        ):
            release(ledger, 1, cost=Cost(shifts=cost))
        assert ledger.sequence == 0


def test_a_tier_that_earlier_releases_do_not_name_is_charged_as_the_next_one_inside(path):
    with opened(path, plan("p", FOUR)) as ledger:
        release(ledger, 1, cost=Cost(shifts=FOUR))
        spent = ledger.spent_at(("silo", "house", "ward", "county", "region", "federation", "world"))
        assert spent.shifts == {
            "silo": 1.0, "house": 1.0, "ward": 0.5, "county": 0.5, "region": 0.25, "federation": 0.125, "world": 0.125,
        }  # fmt: skip


def test_a_plan_whose_tiers_have_other_names_is_entered_only_if_it_covers_all_that_was_spent_inside(path):
    with opened(path, plan("p", {"silo": 1.0, "region": 0.01})) as ledger:
        for number in (1, 2):
            release(ledger, number, cost=Cost(shifts={"silo": 1.0, "region": 0.01}))
        renamed = {"silo": 8.0, "county": 0.5}  # a new name does not buy a new budget
        with pytest.raises(RefusedReleaseError, check=coded("ledger.plan-overspent")):
            ledger.enter_plan(Allowance(plan_digest="q", rounds=5, shifts=renamed))
        assert ledger.allowance.plan_digest == "p"
        wide = Allowance(plan_digest="r", rounds=5, shifts={"silo": 8.0, "county": 2.5})
        ledger.enter_plan(wide)
        release(ledger, 1, cost=Cost(shifts={"silo": 1.0, "county": 0.4}), plan=wide)
        assert ledger.total_cost.shifts == {"silo": 3.0, "county": 2.4}
        with pytest.raises(RefusedReleaseError, check=coded("ledger.budget-exceeded", observer="county")):
            release(ledger, 2, cost=Cost(shifts={"silo": 1.0, "county": 0.4}), plan=wide)
    assert all(holds(path).values())


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ({"county": 9.0, "federation": 9.0}, "no observer there is 'county'"),
        ({"silo": 9.0, "federation": 9.0, "region": 9.0}, "in another order"),
    ],
)
def test_a_plan_that_names_nobody_inside_or_tiers_in_another_order_is_not_entered(path, shifts, words):
    """Without an observer inside there is no charge to take over; in another order it cannot be told who sees less."""
    three = {"silo": 1.0, "region": 0.5, "federation": 0.25}
    with opened(path, plan("p", three)) as ledger:
        release(ledger, 1, cost=Cost(shifts=three))
        other = Allowance(plan_digest="q", rounds=5, shifts=shifts)
        with pytest.raises(LedgerError, match=words):
            ledger.enter_plan(other)
        assert ledger.allowance.plan_digest == "p"
        refusal = ledger.would_exceed(other, Cost(shifts=dict.fromkeys(shifts, 0.1)), 1)
        assert coded("ledger.plan-not-entered", plan="q")(refusal)


def test_two_plans_entered_before_the_first_release_do_not_mix_orders(path):
    first = {"silo": 1.0, "ward": 0.5, "region": 0.25}
    second = {"silo": 1.0, "region": 0.25, "ward": 0.5}
    with opened(path, plan("p", first)) as ledger:
        ledger.enter_plan(plan("q", second))
        release(ledger, 1, cost=Cost(shifts=first), plan=plan("p", first))
        with pytest.raises(LedgerError, check=coded("ledger.tiers-order")):
            release(ledger, 1, cost=Cost(shifts=second), plan=plan("q", second))
        assert ledger.sequence == 1


def test_a_plan_is_not_entered_again_with_its_tiers_in_another_order(path):
    entered, turned = plan("p", {"silo": 1.0, "ward": 1.0}), plan("p", {"ward": 1.0, "silo": 1.0})
    with opened(path, entered) as ledger, pytest.raises(LedgerError, check=coded("ledger.plan-changed")):
        ledger.enter_plan(turned)


@given(
    names=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    asked=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
)
@settings(max_examples=300)
def test_nobody_is_charged_less_than_the_cost_says_where_costs_fall_outward(names, asked):
    cost = Cost(shifts={name: 2.0**-place for place, name in enumerate(names)})
    common = [name for name in asked if name in names]
    if asked[0] not in names or common != [name for name in names if name in asked]:
        with pytest.raises(LedgerError):
            cost.charge_to(asked)
        return
    charged = cost.charge_to(asked).shifts
    assert list(charged) == asked
    assert all(charged[name] == cost.shifts[name] for name in common)
    assert all(inner >= outer for inner, outer in itertools.pairwise(charged.values()))


@pytest.mark.parametrize(
    "text",
    ["", "[]x", "{}", '{"silo":"0x1p+0"}', '[["silo","1.0"]]', '[["silo",1.0]]', '[["silo","0x1p+0"]]', "null", "[1]",
     '[["silo","-0x1.0000000000000p+0"]]', '[["silo","nan"]]', '[["a","inf"],["a","inf"]]', '[["","inf"]]', "[" * 99999],
)  # fmt: skip
def test_a_cost_that_was_not_written_so_is_refused(text):
    with pytest.raises(LedgerError):
        Cost.from_text(text)


def test_a_cost_comes_back_from_its_text_bit_for_bit():
    cost = Cost(shifts={"silo": math.inf, 'a "tier", é': math.nextafter(0.1, 1), "federation": 5e-324})
    assert Cost.from_text(cost.to_text()) == cost
    assert list(Cost.from_text(cost.to_text()).shifts) == list(cost.shifts)
    with pytest.raises(TypeError):
        cost.shifts["silo"] = 0.0
