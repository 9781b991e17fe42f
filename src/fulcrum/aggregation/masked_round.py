"""A masked round of a whole federation, at the server: all groups at once, stage by stage.

    masked = MaskedRound(plan, 1, model)
    requests = masked.requests()
    while requests:
        for answer in carried(requests):       # by any engine; silos without an answer are left out
            masked.take(answer)
        requests = masked.proceed()
    masked.answers                             # by group: a RegionalSum or a Withheld

Every silo answers five requests. A late silo does not stop the round: call `proceed` after all answers, or after the
server's patience.
"""

from collections.abc import Mapping

from fulcrum.aggregation.masked_group import MaskedGroup, session_of
from fulcrum.aggregation.model_checks import checked_model
from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import UNMASKING, member_reply_from_bytes
from fulcrum.core.messages.membership import senders_of
from fulcrum.core.messages.model_message import input_digest_of
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.errors import ExchangeError, in_one_line


class MaskedRound:
    """A round of a plan with masked groups.

    Args:
        plan: A plan with the keys of the silos and without a target on an outer tier, whose sums the server cannot
            keep to; a deployment plan must verify.
        round_number: The round, from 1.
        model: The global model; the engine sends the model with the requests that `MaskedSilo.asks_for_update` names.
        attempt: The attempt, from 1. A server that begins a round again after a crash gives a higher number than
            before; a silo that has unmasked the round takes part in no further attempt.
        config_digest: The digest of the values that silos receive beside the model, such as a learning rate; the engine
            defines the digest.
    """

    def __init__(
        self,
        plan: SupportsContent,
        round_number: int,
        model: Mapping[str, FloatArray],
        attempt: int = 1,
        config_digest: str = "",
    ) -> None:
        plan = verified_plan(plan, error=ExchangeError)
        check_silos_draw_noise(plan)
        check_aggregation(plan, "masked")
        layout, _ = checked_model(plan, model)
        input_digest = input_digest_of(model, config_digest)
        self._group_of: dict[str, str] = {}
        self._running: dict[str, MaskedGroup] = {}
        self._answers: dict[str, RegionalSum | Withheld] = {}
        for name in senders_of(plan):
            group = group_of(plan, name, round_number)
            self._group_of |= dict.fromkeys(group.regions, name)
            self._running[name] = MaskedGroup(group, session_of(group, round_number, input_digest, attempt), layout)

    @property
    def answers(self) -> dict[str, RegionalSum | Withheld]:
        """The answers of the finished groups, by group: a `RegionalSum` or a `Withheld`."""
        return dict(self._answers)

    @property
    def unmasks(self) -> bool:
        """True if the requests of this stage ask any silo for the shares that unmask a sum."""
        return any(running.stage == UNMASKING for running in self._running.values())

    @property
    def missing(self) -> frozenset[str]:
        """The silos with a request and without an answer."""
        return frozenset().union(*(running.missing for running in self._running.values()))

    def requests(self) -> dict[str, bytes]:
        """Returns the requests of this stage, by silo without an answer; empty after the last stage."""
        missing = self.missing
        requests = [item for running in self._running.values() for item in running.requests().items()]
        return {silo: request for silo, request in requests if silo in missing}

    def take(self, answer: bytes) -> str:
        """Stores an answer and returns the silo of the answer.

        Raises:
            ExchangeError: The bytes are no good answer to a request of this stage, or a second answer; the answer has
                no effect.
        """
        silo = member_reply_from_bytes(answer).silo
        if (name := self._group_of.get(silo)) not in self._running:
            raise ExchangeError("mask.silo-without-group", silo=in_one_line(silo)[:60])
        return self._running[name].take(answer)

    def proceed(self) -> dict[str, bytes]:
        """Ends the stage of every group and returns the next requests; empty after the last stage."""
        for name, running in list(self._running.items()):
            outcome = running.proceed()
            if not isinstance(outcome, dict):
                self._answers[name] = outcome
                del self._running[name]
        return self.requests()
