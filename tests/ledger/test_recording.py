"""What a release costs, and what comes back."""

import math
import os

import pytest
from error_codes import coded
from ledgers import COST, PLAN, allowing, opened, release

from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.errors import FulcrumError, LedgerError, RefusedReleaseError
from fulcrum.planning.theory.calibration import epsilon_of


def test_a_release_is_charged_and_stored(path):
    with opened(path) as ledger:
        first = release(ledger, 1, b"noisy")
        assert (first.sequence, first.payload, first.fresh) == (1, b"noisy", True)
        assert ledger.total_cost == COST
        assert ledger.stored_payload(PLAN, 1, "model") == b"noisy"


def test_a_retry_gets_the_stored_bytes_verbatim_and_free_of_charge(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        head = ledger.head
        again = release(ledger, 1, b"other noise")
        assert (again.sequence, again.payload, again.fresh) == (1, b"noisy", False)
        assert (ledger.total_cost, ledger.sequence, ledger.head) == (COST, 1, head)


def test_a_retry_after_reopening_gets_the_stored_bytes(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
    with opened(path) as ledger:
        assert ledger.stored_payload(PLAN, 1, "model") == b"noisy"
        assert not release(ledger, 1, b"other noise").fresh


def test_a_ledger_that_is_not_there_is_begun_only_where_that_is_allowed(path):
    with pytest.raises(LedgerError, check=coded("storage.operation-failed", operation="opened")):
        Ledger.open(path, silo="lyon", create=False)
    assert not path.exists()
    Ledger.open(path, silo="lyon").close()
    Ledger.open(path, silo="lyon", create=False).close()


def test_a_retry_is_served_even_when_the_budget_is_gone(path):
    plan = allowing(region=COST.shifts["region"])
    with opened(path, plan) as ledger:
        release(ledger, 1, b"noisy")
        assert ledger.would_exceed(ledger.allowance, COST, 2) is not None
        assert ledger.would_exceed(ledger.allowance, COST, 1, input_digest="model") is None
        assert release(ledger, 1).payload == b"noisy"


def test_a_round_is_refused_on_another_basis(path):
    with opened(path) as ledger:
        release(ledger, 1)
        assert ledger.would_exceed(PLAN, COST, 1).code == "ledger.round-released"
        assert ledger.stored_payload(PLAN, 1, "another model") is None
        with pytest.raises(RefusedReleaseError, check=coded("ledger.round-released", round_number=1, digest="model")):
            release(ledger, 1, input_digest="another model")
        assert ledger.sequence == 1


@pytest.mark.parametrize("payload", [b"\0", os.urandom(1_000_003), bytes(5_000_000)], ids=["byte", "1MB", "5MB"])
def test_payloads_of_any_size_come_back_bit_for_bit(path, payload):
    with opened(path) as ledger:
        release(ledger, 1, payload)
    with opened(path) as ledger:
        assert ledger.stored_payload(PLAN, 1, "model") == payload


def test_an_empty_payload_is_a_release_too(path):
    with opened(path) as ledger:
        ledger.record(PLAN, round_number=1, input_digest="model", payload=b"", cost=COST)
        assert ledger.stored_payload(PLAN, 1, "model") == b""
        assert ledger.total_cost == COST


def test_a_round_past_the_plan_is_refused(path):
    with opened(path, allowing(silo=math.inf, region=math.inf)) as ledger:
        assert ledger.would_exceed(ledger.allowance, COST, 5) is None
        assert ledger.would_exceed(ledger.allowance, COST, 6).code == "ledger.round-past-plan"
        with pytest.raises(RefusedReleaseError, check=coded("ledger.round-past-plan", round_number=6, rounds=5)):
            release(ledger, 6)


@pytest.mark.parametrize(("observer", "budget"), [("region", 0.7), ("silo", 2.9)])
def test_each_observers_budget_is_kept(path, observer, budget):
    with opened(path, allowing(**{observer: budget})) as ledger:
        release(ledger, 1)
        release(ledger, 2)
        refusal = ledger.would_exceed(ledger.allowance, COST, 3)
        assert (refusal.code, refusal.details["observer"]) == ("ledger.budget-exceeded", observer)
        with pytest.raises(RefusedReleaseError, check=coded("ledger.budget-exceeded")):
            release(ledger, 3)
        assert ledger.sequence == 2


def test_rounding_never_refuses_the_last_round_of_a_plan(path):
    rounds, share = 50, 4 / 23.8115**2
    plan = Allowance(plan_digest="p", rounds=rounds, shifts={"silo": math.inf, "region": rounds * share})
    with opened(path, plan) as ledger:
        for number in range(1, rounds + 1):
            release(ledger, number, cost=Cost(shifts={"silo": math.inf, "region": share}))
        spent = ledger.total_cost
        assert spent.shifts["silo"] == math.inf
        epsilon = float(epsilon_of_shift(math.sqrt(spent.shifts["region"]), delta=1e-5))
        assert epsilon == pytest.approx(epsilon_of(23.8115, rounds=rounds, delta=1e-5), rel=1e-9)


def test_slack_does_not_let_a_real_excess_through(path):
    with opened(path, allowing(region=1.0)) as ledger:
        assert ledger.would_exceed(ledger.allowance, Cost(shifts={"silo": 0, "region": 1 + 1e-13}), 1) is None
        assert ledger.would_exceed(ledger.allowance, Cost(shifts={"silo": 0, "region": 1 + 1e-11}), 1) is not None


def test_a_ledger_without_a_plan_releases_nothing(path):
    with opened(path, None) as ledger:
        assert ledger.allowance is None
        assert ledger.would_exceed(PLAN, COST, 1).code == "ledger.plan-not-entered"
        assert ledger.stored_payload(PLAN, 1, "model") is None
        with pytest.raises(RefusedReleaseError, check=coded("ledger.plan-not-entered", plan="plan-a")):
            release(ledger, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Cost(shifts={"silo": 0.0, "region": -1.0}),
        lambda: Cost(shifts={"silo": math.nan, "region": 0.0}),
        lambda: Cost(shifts={"silo": 0.0, "region": "much"}),
        lambda: Allowance(plan_digest="", rounds=1, shifts={"silo": 1, "region": 1}),
        lambda: Allowance(plan_digest="p", rounds=0, shifts={"silo": 1, "region": 1}),
        lambda: Allowance(plan_digest="p", rounds=True, shifts={"silo": 1, "region": 1}),
        lambda: Allowance(plan_digest="p", rounds=2.5, shifts={"silo": 1, "region": 1}),
        lambda: Allowance(plan_digest="p", rounds=1, shifts={"silo": 1, "region": math.nan}),
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(LedgerError, match="must be") as error:
        wrong()
    assert isinstance(error.value, FulcrumError)
    assert isinstance(error.value, ValueError)


def test_arguments_out_of_range_are_refused_and_nothing_is_recorded(path):
    with opened(path) as ledger:
        for wrong in ({"number": 0}, {"number": -1}, {"number": 1.5}, {"number": True}, {"number": 2**63}):
            with pytest.raises(LedgerError, check=coded("ledger.number-range", noun="round")):
                ledger.record(PLAN, round_number=wrong["number"], input_digest="model", payload=b"x", cost=COST)
        for basis in ("", "a\0b", "\ud800", 7):
            with pytest.raises(LedgerError, check=coded("ledger.text-invalid", noun="input digest")):
                release(ledger, 1, input_digest=basis)
        with pytest.raises(LedgerError, check=coded("ledger.payload-range")):
            ledger.record(PLAN, round_number=1, input_digest="model", payload="text", cost=COST)
        assert ledger.sequence == 0
    with pytest.raises(LedgerError, check=coded("ledger.text-invalid", noun="silo")):
        Ledger.open(path, silo="")
