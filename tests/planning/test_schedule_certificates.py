"""The prices of plans whose membership changes: their range, and the certificate at every scale."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scipy.sparse import csr_array

import fulcrum
from fulcrum.core.plan.verification import verify
from fulcrum.errors import PlanError
from fulcrum.planning.theory.schedule_program import Schedule
from fulcrum.planning.theory.scheduling import certificate_checks
from fulcrum.readers.schedule_file import with_schedule

SIZES = {"north": {"a": 100, "b": 100, "c": 100}}
PLAIN = fulcrum.Federation.from_sizes(SIZES)
ROUNDS = {"a": "1", "b": "1", "c": "1-"}


def made(rounds=4, schedule=ROUNDS, **options):
    return fulcrum.plan(with_schedule(PLAIN, schedule), rounds=rounds, epsilon=1.0, **options)


@pytest.mark.parametrize("price", [1e308, 1.1, -1.0])
def test_prices_of_a_file_are_shares_of_the_largest(price):
    content = made().content()
    silos = [msgspec.structs.replace(entry, price=price) for entry in content.silos]
    with pytest.raises(PlanError, match="price"):
        verify(msgspec.structs.replace(content, silos=silos))
    prices = [entry.price for entry in content.silos]
    assert max(prices) == 1.0
    assert all(value == 0 or value >= 1e-100 for value in prices)


@pytest.mark.parametrize("scale", [1e-300, 1e308])
def test_the_certificate_does_not_depend_on_the_scale_of_prices(scale):
    plan = made()
    [check] = certificate_checks(replace(plan, prices=plan.prices * scale))
    assert check.holds
    assert check.detail == next(iter(certificate_checks(plan))).detail


def test_prices_that_rounding_raises_prove_nothing_more():
    schedule = Schedule(squared_weight=csr_array([[0.81]]), rounds=np.ones(1), cost=np.ones(1), allowance=np.ones(1))
    for price in (1.0, 5e-324, 1e308):
        assert schedule.lower_bound(np.array([price])) == pytest.approx(0.81, rel=1e-12)
    for price in (0.0, np.nan, np.inf):
        assert schedule.lower_bound(np.array([price])) == 0.0


def test_a_bound_that_is_no_number_fails_the_certificate(monkeypatch):
    for bound in (np.nan, np.inf):
        monkeypatch.setattr(Schedule, "lower_bound", lambda *_, bound=bound: bound)
        assert [check.holds for check in certificate_checks(made())] == [False]
