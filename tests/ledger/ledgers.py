"""A ledger, releases recorded in it, and what is asked of it afterwards."""

from pathlib import Path

import pytest

from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

COST = Cost(shift_above=0.25, shift_inside=1.0)
PLAN = Allowance(plan_digest="plan-a", rounds=5, shift_above=1.0, shift_inside=8.0)


def opened(path: Path, plan: Allowance | None = PLAN, silo: str = "lyon") -> Ledger:
    ledger = Ledger.open(path, silo=silo)
    if plan is not None:
        ledger.enter_plan(plan)
    return ledger


def release(ledger: Ledger, number: int, payload: bytes = b"", basis: str = "model", cost: Cost = COST, plan=None):
    """Records a release under a plan, the one last entered unless it is given."""
    plan = plan or ledger.allowance or PLAN
    return ledger.record(plan, round_number=number, basis=basis, payload=payload or b"round %d" % number, cost=cost)


def holds(path: Path, **witness) -> dict[str, bool]:
    return {check.name: check.holds for check in verify_ledger(path, **witness)}


def says(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text
