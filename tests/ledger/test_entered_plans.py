"""The plans that a ledger releases under, one after the other or side by side."""

import dataclasses
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from error_codes import coded
from ledgers import COST, PLAN, allowing, holds, opened, release

from fulcrum.core.store.ledger import Allowance
from fulcrum.errors import LedgerError, RefusedReleaseError


def test_a_new_plan_continues_from_what_is_spent(path):
    second = allowing(digest="plan-b", region=0.75)
    with opened(path) as ledger:
        release(ledger, 1, b"under a")
        release(ledger, 2)
        ledger.enter_plan(second)
        assert ledger.total_cost.shifts["region"] == 0.5
        assert ledger.stored_payload(second, 1, "model") is None
        assert release(ledger, 1, b"under b").fresh
        assert ledger.would_exceed(ledger.allowance, COST, 2) is not None


def test_a_plan_that_does_not_cover_past_spending_is_refused(path):
    with opened(path) as ledger:
        release(ledger, 1)
        release(ledger, 2)
        with pytest.raises(RefusedReleaseError, check=coded("ledger.plan-overspent", silo="lyon")):
            ledger.enter_plan(allowing(digest="plan-b", region=0.4))
        assert ledger.allowance == PLAN
        ledger.enter_plan(allowing(digest="plan-c", region=0.5))


@pytest.mark.parametrize("other", [{"rounds": 6}, {"region": 2.0}, {"silo": 9.0}, {"federation": 1.0}])
def test_a_plan_is_not_entered_again_with_other_numbers(path, other):
    with opened(path) as ledger, pytest.raises(LedgerError, check=coded("ledger.plan-changed")):
        ledger.enter_plan(allowing(**other))
    with opened(path, None) as ledger, pytest.raises(LedgerError, check=coded("ledger.plan-changed")):
        ledger.enter_plan(allowing(**other))


def test_the_plan_stays_entered_after_reopening(path):
    opened(path).close()
    with opened(path, None) as ledger:
        assert ledger.allowance == PLAN
        assert release(ledger, 1).fresh


def test_an_earlier_plan_may_be_taken_up_again(path):
    with opened(path) as ledger:
        release(ledger, 1, b"under a")
        ledger.enter_plan(dataclasses.replace(PLAN, plan_digest="plan-b"))
        release(ledger, 1, b"under b")
        ledger.enter_plan(PLAN)
        assert ledger.stored_payload(PLAN, 1, "model") == b"under a"


def test_a_release_names_its_plan_whichever_was_entered_last(path):
    other = dataclasses.replace(PLAN, plan_digest="plan-b")
    with opened(path) as ledger:
        ledger.enter_plan(other)
        assert release(ledger, 1, b"under a", plan=PLAN).fresh
        assert release(ledger, 1, b"under b", plan=other).fresh
        assert [entry.plan_digest for entry in ledger.entries()] == ["plan-a", "plan-b"]
        assert (ledger.stored_payload(PLAN, 1, "model"), ledger.stored_payload(other, 1, "model")) == (
            b"under a",
            b"under b",
        )
        foreign = dataclasses.replace(PLAN, rounds=6)
        assert ledger.stored_payload(foreign, 1, "model") is None
        with pytest.raises(RefusedReleaseError, check=coded("ledger.plan-not-entered", plan="plan-a")):
            release(ledger, 1, plan=foreign)
        assert ledger.sequence == 2


def test_threads_under_two_plans_get_one_content_a_round_filed_where_it_belongs(path):
    rounds, plans = 60, {}
    for name in ("plan-a", "plan-b"):
        plans[name] = Allowance(plan_digest=name, rounds=rounds, shifts={"silo": math.inf, "region": math.inf})
    together = threading.Barrier(4, timeout=20)

    def work(number):
        plan, found = plans["plan-a" if number % 2 else "plan-b"], []
        for round_number in range(1, rounds + 1):
            together.wait()
            ledger.enter_plan(plan)
            payload = f"{plan.plan_digest} {round_number} {number}".encode()
            found.append((plan.plan_digest, round_number, release(ledger, round_number, payload, plan=plan).payload))
        return found

    with opened(path, None) as ledger, ThreadPoolExecutor(4) as pool:
        sent = [item for found in pool.map(work, range(4)) for item in found]
        assert len(set(sent)) == 2 * rounds
        assert all(payload.startswith(f"{plan} {number} ".encode()) for plan, number, payload in sent)
        assert all(ledger.stored_payload(plans[plan], number, "model") == payload for plan, number, payload in sent)
    assert all(holds(path, least_sequence=2 * rounds).values())
