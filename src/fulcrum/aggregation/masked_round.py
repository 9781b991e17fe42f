"""One masked round of a whole federation, at the server: all its groups at once, stage by stage.

    masked = MaskedRound(plan, 1, model)
    requests = masked.requests()
    while requests:
        for answer in carried(requests):       # by whatever engine; silos that do not answer are left out
            masked.take(answer)
        requests = masked.proceed()
    masked.answers                             # by group, its sum, or that it is withheld

Five times every silo is asked and answers. The silos that answer in time are enough: `proceed` when all have answered,
or when no more is waited for.
"""

from collections.abc import Mapping

from fulcrum.aggregation.masked_group import MaskedGroup
from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import member_reply_from_bytes
from fulcrum.core.messages.membership import senders_of
from fulcrum.core.messages.model_message import basis_of, checked_model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_one_tier
from fulcrum.errors import ExchangeError, in_one_line


class MaskedRound:
    """One round of a plan whose groups are masked.

    Args:
        plan: Of one tier, with the keys of its silos; a deployment plan must verify.
        round_number: From 1.
        model: The global model, which silos are sent with the requests that `MaskedSilo.asks_for_update`.
        attempt: From 1. A server that begins a round again, after a crash, gives a higher number than before; silos
            that have unmasked the round take part in no other attempt of it.
        beside: The digest of what silos are told beside the model, such as a learning rate; the engine's to define.
    """

    def __init__(
        self,
        plan: SupportsContent,
        round_number: int,
        model: Mapping[str, FloatArray],
        attempt: int = 1,
        beside: str = "",
    ) -> None:
        plan = verified_plan(plan, error=ExchangeError)
        check_one_tier(plan)
        check_aggregation(plan, "masked")
        layout, _ = checked_model(plan, model)
        basis = basis_of(model, beside)
        self._group_of: dict[str, str] = {}
        self._running: dict[str, MaskedGroup] = {}
        self._answers: dict[str, RegionalSum | Withheld] = {}
        for name in senders_of(plan):
            group = group_of(plan, name)
            self._group_of |= dict.fromkeys(group.regions, name)
            self._running[name] = MaskedGroup(group, group.session(round_number, basis, attempt), layout)

    @property
    def answers(self) -> dict[str, RegionalSum | Withheld]:
        """By group that is done: its sum, or that it is withheld."""
        return dict(self._answers)

    @property
    def missing(self) -> frozenset[str]:
        """The silos that were asked and have not answered."""
        return frozenset().union(*(running.missing for running in self._running.values()))

    def requests(self) -> dict[str, bytes]:
        """Returns what is asked of which silo now, of those that have not answered; nothing once all are done."""
        missing = self.missing
        asked = [item for running in self._running.values() for item in running.requests().items()]
        return {silo: request for silo, request in asked if silo in missing}

    def take(self, answer: bytes) -> str:
        """Takes in what a silo answered, and returns whose it is.

        Raises:
            ExchangeError: It is no good answer to what is asked now, or a second one; nothing of it was used.
        """
        silo = member_reply_from_bytes(answer).silo
        if (name := self._group_of.get(silo)) not in self._running:
            raise ExchangeError("mask.silo-without-group", silo=in_one_line(silo)[:60])
        return self._running[name].take(answer)

    def proceed(self) -> dict[str, bytes]:
        """Ends a stage of every group and returns what is asked next; nothing once all groups are done."""
        for name, running in list(self._running.items()):
            outcome = running.proceed()
            if not isinstance(outcome, dict):
                self._answers[name] = outcome
                del self._running[name]
        return self.requests()
