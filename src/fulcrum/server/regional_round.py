"""A masked round whose groups are summed by regional aggregators: the server calls the stages and gets the sums.

    masked = RegionalRound(plan, 1, attempt, receive)
    requests = masked.requests()
    while requests:
        for reply, sender in carried(requests):    # by any engine; regions without a reply are left out
            masked.take(reply, sender)
        requests = masked.proceed()
    masked.answers                                 # by region: a RegionalSum or a Withheld

The round has the interface of `MaskedRound`, whose groups the server sums itself.
"""

from collections.abc import Callable

from fulcrum.aggregation.masked_group import STAGES
from fulcrum.aggregation.stage_messages import StageCall, StageEnd, reply_of_region
from fulcrum.core.masking.masking_messages import UNMASKING
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.regional_reply import RegionalReply
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError


class RegionalRound:
    """An attempt of a masked round over all regions.

    An attempt ends early if a region has lost the attempt before any sum is unmasked, such as by a restart: the next
    attempt can have the sums of all regions.

    Args:
        plan: A plan with masked sums by region.
        round_number: The round, from 1.
        attempt: The attempt, from 1.
        receive: Checks and stores a region's answer for the round, as `Coordinator.receive` does.
        ends_early: False for the last attempt, which goes on with the remaining regions.
    """

    def __init__(
        self,
        plan: VerifiedPlan,
        round_number: int,
        attempt: int,
        receive: Callable[[bytes, str], None],
        *,
        ends_early: bool = True,
    ) -> None:
        self._plan, self._number, self._attempt = plan, round_number, attempt
        self._receive, self._ends_early = receive, ends_early
        self._stage = 0
        self._asked = set(tree_of(plan).reporting)
        self._taken: set[str] = set()
        self._lost: set[str] = set()
        self._answers: dict[str, RegionalReply] = {}

    @property
    def answers(self) -> dict[str, RegionalReply]:
        """The answers of this attempt, by region: a `RegionalSum` or a `Withheld`."""
        return dict(self._answers)

    @property
    def stage(self) -> str:
        """The present stage, a value of `STAGES`."""
        return STAGES[self._stage]

    @property
    def unmasks(self) -> bool:
        """True if this stage asks silos for the shares that unmask a sum."""
        return self.stage == UNMASKING

    def requests(self) -> dict[str, bytes]:
        """Returns the calls of this stage, by region without a reply; empty after the last stage."""
        return dict.fromkeys(sorted(self._asked - self._taken), self._call().to_bytes())

    def take(self, data: bytes, sender: str) -> str:
        """Stores a region's reply and returns the region.

        Args:
            data: The bytes of the reply.
            sender: The region of the connection's certificate, from the engine; never the name in the bytes.

        Raises:
            ExchangeError: The bytes are no good reply to a call of this stage, or a second reply; the reply has no
                effect.
        """
        reply = reply_of_region(data)
        if reply.region != sender:
            raise ExchangeError("server.sender-differs", sender=sender, region=reply.region)
        if sender not in self._asked - self._taken:
            raise ExchangeError("server.stage-unexpected", region=sender)
        if isinstance(reply, StageEnd):
            call = self._call()
            if any(getattr(reply, name) != getattr(call, name) for name in call.__struct_fields__):
                raise ExchangeError("server.stage-differs", region=sender, stage=self.stage)
            if reply.interrupted or self.unmasks:  # behind the last stage comes an answer, and no end of a stage
                self._lost.add(sender)
        else:
            self._receive(data, sender)
            self._answers[sender] = reply
        self._taken.add(sender)
        return sender

    def proceed(self) -> dict[str, bytes]:
        """Ends the stage and returns the next calls; empty after the last stage."""
        silent = self._asked - self._taken
        going = self._taken - set(self._answers) - self._lost
        # A region that never began may be down for long. A region that fell silent later may be back in a moment.
        lost = bool(self._lost or (silent and self._stage)) and not self.unmasks
        if self.unmasks or not going or (lost and self._ends_early):
            self._asked, self._taken = set(), set()
            return {}
        self._asked, self._taken, self._stage = going, set(), self._stage + 1
        return self.requests()

    def _call(self) -> StageCall:
        return StageCall(
            plan_digest=self._plan.digest, round_number=self._number, attempt=self._attempt, stage=self.stage
        )
