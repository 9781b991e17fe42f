"""A ledger, releases recorded in it, and what is asked of it afterwards."""

import os
import warnings
from pathlib import Path

import pytest

from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
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


def in_child(work) -> str:
    """Runs the work in a forked process and returns what it returned, or the error it raised."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            try:
                said = str(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(send, said.encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said
