"""A ledger, releases recorded in it, and what is asked of it afterwards."""

from pathlib import Path

import pytest

from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger

COST = Cost(shifts={"silo": 1.0, "region": 0.25})
PLAN = Allowance(plan_digest="plan-a", rounds=5, shifts={"silo": 8.0, "region": 1.0})


def allowing(plan: Allowance = PLAN, *, digest: str = "", rounds: int = 0, **shifts: float) -> Allowance:
    """A plan with other numbers: `region=0.5` is its budget against that observer."""
    return Allowance(
        plan_digest=digest or plan.plan_digest, rounds=rounds or plan.rounds, shifts={**plan.shifts, **shifts}
    )


def opened(path: Path, plan: Allowance | None = PLAN, silo: str = "lyon") -> Ledger:
    ledger = Ledger.open(path, silo=silo)
    if plan is not None:
        ledger.enter_plan(plan)
    return ledger


def release(
    ledger: Ledger, number: int, payload: bytes = b"", input_digest: str = "model", cost: Cost = COST, plan=None
):
    """Records a release under a plan, the one last entered unless it is given."""
    plan = plan or ledger.allowance or PLAN
    return ledger.record(
        plan, round_number=number, input_digest=input_digest, payload=payload or b"round %d" % number, cost=cost
    )


def holds(path: Path, **witness) -> dict[str, bool]:
    return {check.name: check.holds for check in verify_ledger(path, **witness)}


def says(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text
