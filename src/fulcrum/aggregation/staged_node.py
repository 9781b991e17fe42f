"""An outer aggregator in masked rounds: passes the server's calls on, and adds up the sums that masked regions unmask.

    node = StagedNode.open(path, plan, "france", key)
    node.begin(call, layout)                       # for every stage that the server calls; children get the same call
    for message in carried(call):                  # by any engine; children without a message are left out
        node.take(message)
    reply = node.finish()                          # the end of the stage, the sum, or a Withheld

The messages of children are sealed (`fulcrum.aggregation.sum_sealing`), ends of stages included: no other party can
end a stage for a region. A child's sum is on disk before `take` returns, and the node's sum before `finish` returns the
sum.
"""

from pathlib import Path
from typing import Self

from fulcrum.aggregation.masked_region import check_call
from fulcrum.aggregation.presence import Aggregation, aggregation_of
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.aggregation.stage_messages import StageCall, StageEnd, stage_call_from_bytes
from fulcrum.aggregation.sum_sealing import SumOpener
from fulcrum.core.masking.masking_messages import KEYS, UNMASKING
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import LONGEST_REASON, Withheld
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.store.database import ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError


class StagedNode(ClosedAtTheEnd):
    """An outer aggregator of masked sums with its file; made by `open`.

    The sums have the guarantees of `Region`. The stages are in memory alone, and a node that restarts continues with
    the next call: the state of a masked round is at the regions and their silos.
    """

    def __init__(
        self, node: Region, plan: VerifiedPlan, name: str, aggregation: Aggregation, opener: SumOpener
    ) -> None:
        self._node, self._plan, self._name = node, plan, name
        self._aggregation, self._opener = aggregation, opener
        self._call: StageCall | None = None
        self._taken: set[str] = set()
        self._absent: set[str] = set()
        self._lost: set[str] = set()
        self._final: set[str] = set()
        self._reply: bytes | None = None

    @classmethod
    def open(cls, path: PathLike, plan: SupportsContent, name: str, key: str | Path, *, create: bool = True) -> Self:
        """Opens the file of an outer node under a plan with masked sums; see `Region.open`."""
        plan = verified_plan(plan, error=ExchangeError)
        check_aggregation(plan, "masked", sealed=True)
        node = Region.open(path, plan, name, key, create=create)
        return cls(node, plan, name, aggregation_of(plan), SumOpener(plan, name, key))

    def close(self) -> None:
        """Closes the file; a second call has no effect."""
        self._node.close()

    @property
    def identity(self) -> str:
        """The random number that identifies this node's file."""
        return self._node.identity

    @property
    def missing(self) -> frozenset[str]:
        """The children without a message in this stage, and without an answer for the round.

        A child that missed a stage is out of this attempt: the state of its group is gone, or stayed behind.
        """
        if self._call is None or self._reply is not None:
            return frozenset()
        return self._node.members - self._taken - self._final - self._lost - self._absent

    def begin(self, call: bytes, layout: Layout | None = None) -> None:
        """Begins a stage; the same call again continues the stage.

        Args:
            call: The server's `StageCall`.
            layout: The names and shapes of the global model, with the call for the first stage.
        """
        called = stage_call_from_bytes(call)
        check_call(called, self._plan, self._name)
        if layout is not None:
            self._node.expect_layout(layout)
        before = self._call
        if called == before:
            return
        if before and before.round_number == called.round_number and before.attempt > called.attempt:
            raise ExchangeError("region.attempt-over", region=self._name, attempt=called.attempt, later=before.attempt)
        if before is None or (before.round_number, before.attempt) != (called.round_number, called.attempt):
            self._absent, self._lost, self._final = set(), set(), set()
        self._call, self._taken, self._reply = called, set(), None
        if self._node.is_summed(called.round_number):
            self._reply = self._node.close_round(called.round_number).to_bytes()

    def take(self, data: bytes) -> str:
        """Stores a child's end of a stage, sum or withheld sum, and returns the child; refuses every other message."""
        child, content = self._opener.open(data)
        if self._call is None or child not in self.missing:
            raise ExchangeError("region.message-unexpected", region=self._name, child=child)
        if isinstance(content, StageEnd):
            call = self._call
            if any(getattr(content, name) != getattr(call, name) for name in call.__struct_fields__):
                raise ExchangeError("region.message-unexpected", region=self._name, child=child)
            if content.interrupted:
                self._lost.add(child)
        else:
            self._node.accept(data, self._call.round_number)
            self._final.add(child)
        self._taken.add(child)
        return child

    def finish(self) -> bytes:
        """Ends the stage and returns the reply to the parent: the same bytes at every call.

        The reply is the end of the stage while the children that go on can still make an allowed sum. An interrupted
        stage is reported as interrupted, so that the server begins another attempt.
        """
        if self._call is None:
            raise ExchangeError("region.stage-over", region=self._name)
        if self._reply is None:
            call, stage = self._call, self._call.stage
            # A child that never began may be down for long. A child that fell silent later may be back in a moment.
            (self._absent if stage == KEYS else self._lost).update(self.missing)
            going = self._node.members - self._final - self._lost - self._absent
            summed = self._node.present(call.round_number)
            silos = {silo for child in going | summed for silo in self._aggregation.tree.silos(child)}
            reason = self._aggregation.lacking(self._name, silos)
            interrupted = reason is not None and bool(self._lost)
            if reason and not interrupted and stage != UNMASKING:  # the other children need not unmask their sums
                self._reply = self._withheld(call, silos, reason)
            elif stage == UNMASKING or not (going or interrupted):
                self._reply = self._node.close_round(call.round_number).to_bytes()
            else:
                self._reply = self._end(call, interrupted=interrupted)
        return self._reply

    def _withheld(self, call: StageCall, silos: set[str], reason: str) -> bytes:
        """Returns the notice that the children that are left can make no allowed sum in this attempt."""
        return Withheld(
            plan_digest=call.plan_digest,
            region=self._name,
            round_number=call.round_number,
            missing=tuple(sorted(set(self._aggregation.tree.silos(self._name)) - silos)),
            reason=reason[:LONGEST_REASON],
        ).to_bytes()

    def _end(self, call: StageCall, *, interrupted: bool) -> bytes:
        return StageEnd(
            plan_digest=call.plan_digest,
            round_number=call.round_number,
            attempt=call.attempt,
            stage=call.stage,
            region=self._name,
            interrupted=interrupted,
        ).to_bytes()
