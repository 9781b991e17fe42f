"""The relay of a region in the masked round of a whole federation: carries requests down and answers up.

If all silos are one masked group, the server adds the masked vectors, and nobody has a sum of a region. A region's site
then passes messages on. The relay has no key and adds nothing: every vector on the way carries the masks of silos of
other regions too.
"""

from collections.abc import Mapping

from fulcrum.aggregation.masked_group import longest_answer_of
from fulcrum.core.masking.declines import DECLINED, check_decline, stage_of
from fulcrum.core.masking.masking_group import group_of
from fulcrum.core.masking.masking_messages import Session, member_reply_from_bytes, request_from_bytes
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.core.topology import ROOT
from fulcrum.errors import ExchangeError


class GroupRelay:
    """Carries the messages between the server and the silos of a region, stage by stage.

    An answer passes if a silo of the region signed the answer for the stage, once. A message under the name of a silo
    that did not sign the message therefore neither passes nor ends the wait for that silo.

    Args:
        plan: A plan whose silos are one masked group, with the keys of the silos.
        region: The region.
    """

    def __init__(self, plan: SupportsContent, region: str) -> None:
        plan = verified_plan(plan, error=ExchangeError)
        check_silos_draw_noise(plan)
        check_aggregation(plan, "masked")
        self._region, self._group = region, group_of(plan, ROOT)
        self._own = {silo for silo, place in self._group.regions.items() if place == region}
        self._requests: dict[str, bytes] = {}
        self._session: Session | None = None
        self._stage = ""
        self._answers: dict[str, bytes] = {}
        self._declined: set[str] = set()

    @property
    def missing(self) -> frozenset[str]:
        """The silos of the region with a request and without an answer or a decline."""
        return frozenset(set(self._requests) - set(self._answers) - self._declined)

    def begin(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Begins a stage and returns the requests to the silos of this region; the same stage again continues."""
        own = {silo: request for silo, request in requests.items() if silo in self._own}
        messages = [request_from_bytes(request) for request in own.values()]
        if not messages:
            self._requests, self._session, self._answers, self._declined = {}, None, {}, set()
            return {}
        session, stage = messages[0].session, stage_of(messages[0])
        if any((message.session, stage_of(message)) != (session, stage) for message in messages):
            raise ExchangeError("region.requests-differ", region=self._region)
        self._group.check_session(session)
        if (session, stage, own) != (self._session, self._stage, self._requests):
            self._requests, self._session, self._stage = own, session, stage
            self._answers, self._declined = {}, set()
        return dict(own)

    def take(self, data: bytes) -> str:
        """Stores a silo's answer or decline and returns the silo; refuses every other message."""
        if self._session is None:
            raise ExchangeError("region.stage-over", region=self._region)
        answer = member_reply_from_bytes(data)
        if self._group.parameters is not None and len(data) > (most := longest_answer_of(self._group)):
            raise ExchangeError("mask.reply-too-long", bytes=len(data), most=most)
        if answer.holds == DECLINED:
            check_decline(answer, self._stage, self._session, self._group.keys)
        else:
            answer.check(self._stage, self._session, self._group.keys)
        if answer.silo not in self.missing:
            raise ExchangeError("mask.reply-unexpected", silo=answer.silo)
        if answer.holds == DECLINED:
            self._declined.add(answer.silo)
        else:
            self._answers[answer.silo] = bytes(data)
        return answer.silo

    def finish(self) -> list[bytes]:
        """Returns the answers of this stage; the same answers at every call."""
        return [self._answers[silo] for silo in sorted(self._answers)]
