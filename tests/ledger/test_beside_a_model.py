"""A ledger asked the same as plain dictionaries."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledgers import PLAN, holds

from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.errors import LedgerError, RefusedReleaseError


class LedgerBesideAModel(RuleBasedStateMachine):
    """A ledger and plain dictionaries, asked the same; quarters add up exactly."""

    quarters = st.integers(0, 8).map(lambda count: count / 4)
    rounds = st.integers(1, 4)
    bases = st.sampled_from(["a", "b"])

    @initialize()
    def make(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "lyon.ledger"
        self.ledger = Ledger.open(self.path, silo="lyon")
        self.plans, self.plan, self.released, self.spent = {}, None, {}, (0.0, 0.0)

    @property
    def current(self):
        """The plan that releases are made under; one that is not entered before the first."""
        return PLAN if self.plan is None else self.plans[self.plan]

    def refusal(self, cost, number):
        if self.plan is None:
            return True
        plan = self.plans[self.plan]
        return (
            number > plan.rounds
            or (self.plan, number) in self.released
            or self.spent[0] + cost.shifts["region"] > plan.shifts["region"]
            or self.spent[1] + cost.shifts["silo"] > plan.shifts["silo"]
        )

    @rule(digest=st.sampled_from("pq"), rounds=st.integers(2, 3), above=st.integers(1, 4), inside=st.just(6))
    def begin(self, digest, rounds, above, inside):
        plan = Allowance(plan_digest=digest, rounds=rounds, shifts={"silo": inside, "region": above})
        known = self.plans.get(digest, plan)
        if known != plan or self.spent[0] > above or self.spent[1] > inside:
            with pytest.raises(LedgerError):
                self.ledger.enter_plan(plan)
        else:
            self.ledger.enter_plan(plan)
            self.plans[digest] = plan
            self.plan = digest

    @rule(number=rounds, basis=bases, payload=st.binary(max_size=30), above=quarters, inside=quarters)
    def record(self, number, basis, payload, above, inside):
        cost = Cost(shifts={"silo": inside, "region": above})
        known = self.released.get((self.plan, number))
        if known is not None and known[0] == basis:
            result = self.ledger.record(
                self.current, round_number=number, input_digest=basis, payload=payload, cost=cost
            )
            assert (result.payload, result.fresh) == (known[1], False)
        elif self.refusal(cost, number):
            with pytest.raises(RefusedReleaseError):
                self.ledger.record(self.current, round_number=number, input_digest=basis, payload=payload, cost=cost)
        else:
            result = self.ledger.record(
                self.current, round_number=number, input_digest=basis, payload=payload, cost=cost
            )
            self.released[self.plan, number] = (basis, payload)
            self.spent = (self.spent[0] + above, self.spent[1] + inside)
            assert (result.payload, result.fresh, result.sequence) == (payload, True, len(self.released))

    @rule(number=rounds, basis=bases)
    def stored(self, number, basis):
        known = self.released.get((self.plan, number))
        assert self.ledger.stored_payload(self.current, number, basis) == (
            known[1] if known is not None and known[0] == basis else None
        )

    @rule(number=rounds, above=quarters, inside=quarters)
    def would_exceed(self, number, above, inside):
        cost = Cost(shifts={"silo": inside, "region": above})
        assert (self.ledger.would_exceed(self.current, cost, number) is not None) == self.refusal(cost, number)

    @rule()
    def reopen(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path, silo="lyon")

    @invariant()
    def agree(self):
        assert self.ledger.sequence == len(self.released)
        spent = self.ledger.spent_at(("silo", "region")).shifts
        assert (spent["region"], spent["silo"]) == self.spent
        assert [(e.plan_digest, e.round_number) for e in self.ledger.entries()] == list(self.released)

    def teardown(self):
        self.ledger.close()
        assert all(holds(self.path, least_sequence=len(self.released)).values())
        self.folder.cleanup()


TestLedgerBesideAModel = LedgerBesideAModel.TestCase
TestLedgerBesideAModel.settings = settings(max_examples=30, stateful_step_count=25)
