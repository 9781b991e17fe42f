"""A regional aggregator of masked sums: runs the stages of its group, adds masked vectors, and keeps the sum on disk.

    region = MaskedRegion.open(path, plan, "north")
    requests = region.begin(call, model)           # for every stage that the server calls
    for answer in carried(requests):               # by any engine; silos without an answer are left out
        region.take(answer)
    reply = region.finish()                        # the end of the stage, the sum, or a Withheld

The aggregator sees no release: every vector that arrives carries masks, and the unmasked sum is the finest result.
Silos do not trust the aggregator with this: `fulcrum.core.masking.member_protocol` protects the silos of the group
against an aggregator that deviates. If an outer aggregator adds up the sum, silos seal their answers to the key of
their aggregator, and no other answer counts; otherwise the aggregator has no key.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from fulcrum.aggregation.answer_opening import AnswerOpener
from fulcrum.aggregation.masked_group import STAGES, MaskedGroup, longest_answer_of, session_of
from fulcrum.aggregation.model_checks import checked_model
from fulcrum.aggregation.region_store import RegionFile
from fulcrum.aggregation.regional_aggregator import SUMMED
from fulcrum.aggregation.stage_messages import StageCall, StageEnd, stage_call_from_bytes
from fulcrum.arrays import FloatArray
from fulcrum.core.masking.declines import DECLINED, check_decline
from fulcrum.core.masking.masking_group import Group, group_of
from fulcrum.core.masking.masking_messages import KEYS, member_reply_from_bytes
from fulcrum.core.messages.membership import seals_answers
from fulcrum.core.messages.model_message import input_digest_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.core.store.database import ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError, StorageError


class MaskedRegion(ClosedAtTheEnd):
    """A regional aggregator of a masked group with its file; made by `open`.

    Guarantees, on a disk that keeps synced content:

    - a round has a single sum for ever, on disk before `finish` returns the sum; later calls return the same bytes;
    - every sum is a sum that the silos of the group have unmasked together.

    The stages of an attempt are in memory alone: after a restart in the middle of an attempt the next stage ends as
    interrupted, and the server begins another attempt. An `ExchangeError` refuses a message and changes no state.
    """

    def __init__(self, file: RegionFile, plan: VerifiedPlan, region: str, opener: AnswerOpener | None = None) -> None:
        self._file, self._plan, self._region, self._opener = file, plan, region, opener
        self._group: Group | None = None
        self._call: StageCall | None = None
        self._running: MaskedGroup | None = None
        self._declined: set[str] = set()
        self._reply: bytes | None = None

    @classmethod
    def open(
        cls,
        path: PathLike,
        plan: SupportsContent,
        region: str,
        key: str | Path | None = None,
        *,
        create: bool = True,
    ) -> Self:
        """Opens the file of a region under a plan.

        Args:
            path: The file; no other process may hold the file.
            plan: A plan with masked sums by region and the keys of the silos; a deployment plan must verify.
            region: The region.
            key: The region's private X25519 key file, under a plan with outer aggregators.
            create: True makes a missing file; False refuses a missing file, since the sums of the past are lost.
        """
        plan = verified_plan(plan, error=ExchangeError)
        check_silos_draw_noise(plan)
        check_aggregation(plan, "masked", sealed=True)
        group_of(plan, region, 1)  # before the file: a plan without this group makes no file
        opener = None
        if seals_answers(plan):
            if key is None:
                raise ExchangeError("region.key-missing", region=region)
            opener = AnswerOpener(plan, region, key)
        return cls(RegionFile.open(path, region=region, plan_digest=plan.digest, create=create), plan, region, opener)

    def close(self) -> None:
        """Closes the file; a second call has no effect."""
        self._file.close()

    @property
    def identity(self) -> str:
        """The random number that identifies this region's file."""
        return self._file.identity

    @property
    def missing(self) -> frozenset[str]:
        """The silos with a request and without an answer or a decline."""
        if self._reply is not None or self._running is None:
            return frozenset()
        return self._running.missing - self._declined

    def begin(self, call: bytes, model: Mapping[str, FloatArray] | None = None) -> dict[str, bytes]:
        """Begins a stage and returns the requests by silo; empty if `finish` has the reply already.

        Args:
            call: The server's `StageCall`. The same call again continues the stage.
            model: The global model, with the call for the first stage.
        """
        called = stage_call_from_bytes(call)
        check_call(called, self._plan, self._region)
        if called == self._call and self._reply is not None:
            return {}
        stored = self._stored_sum(called.round_number)
        starts = stored is None and called.stage == KEYS and not self._continues(called)
        running = self._new_group(called, model) if starts else self._running  # first: an error changes no state
        if called != self._call:
            self._call, self._declined = called, set()
        self._running, self._reply = running, stored
        if stored is None and not self._continues(called):
            self._reply = self._end(called, interrupted=True)
        if self._reply is not None or self._running is None:
            self._running = None
            return {}
        return self._running.requests()

    def take(self, data: bytes) -> str:
        """Stores a silo's answer or decline and returns the silo; refuses every other message."""
        if self._running is None or self._group is None or self._reply is not None:
            raise ExchangeError("region.stage-over", region=self._region)
        most = longest_answer_of(replace(self._group, parameters=self._running.parameters))
        if self._opener is not None:
            _check_length(data, most + self._opener.overhead)
            data = self._opener.open(data)  # refuses an answer that is not sealed, which its carrier has read
        answer = member_reply_from_bytes(data)
        _check_length(data, most)
        if answer.holds != DECLINED:
            return self._running.take(data)
        check_decline(answer, self._running.stage, self._running.session, self._group.keys)
        self._declined.add(answer.silo)
        return answer.silo

    def finish(self) -> bytes:
        """Ends the stage and returns the reply to the server: the same bytes at every call.

        The reply is a `StageEnd`, a `Withheld`, or a `RegionalSum` that is on disk before the return.
        """
        if self._call is None:
            raise ExchangeError("region.stage-over", region=self._region)
        if self._reply is None and self._running is not None:
            outcome = self._running.proceed()
            if isinstance(outcome, dict):
                self._reply = self._end(self._call)
            else:
                reply = outcome.to_bytes()
                if isinstance(outcome, RegionalSum):
                    with self._file.working():
                        self._file.set_answer(self._call.round_number, SUMMED, _digest(reply), reply)
                self._running, self._reply = None, reply
        if self._reply is None:
            raise ExchangeError("region.stage-over", region=self._region)
        return self._reply

    def _continues(self, call: StageCall) -> bool:
        """Returns True if the group is at the stage of a call."""
        if self._running is None:
            return False
        session = self._running.session
        here = (session.round_number, session.attempt, self._running.stage)
        return here == (call.round_number, call.attempt, call.stage)

    def _new_group(self, call: StageCall, model: Mapping[str, FloatArray] | None) -> MaskedGroup:
        if model is None:
            raise ExchangeError("region.stage-without-model", region=self._region)
        layout, _ = checked_model(self._plan, model)
        group = group_of(self._plan, self._region, call.round_number)  # the roster of the round
        running = MaskedGroup(group, session_of(group, call.round_number, input_digest_of(model), call.attempt), layout)
        self._group = group
        return running

    def _end(self, call: StageCall, *, interrupted: bool = False) -> bytes:
        return StageEnd(
            plan_digest=call.plan_digest,
            round_number=call.round_number,
            attempt=call.attempt,
            stage=call.stage,
            region=self._region,
            interrupted=interrupted,
        ).to_bytes()

    def _stored_sum(self, round_number: int) -> bytes | None:
        """Returns the sum of a round as stored, if any."""
        with self._file.working():
            stored = self._file.answer_of(round_number)
        if stored is None:
            return None
        digest, data = stored
        if data is None or _digest(data) != digest:
            raise StorageError("region.answer-damaged", file=self._file.path, round_number=round_number)
        return data


def _check_length(data: Any, most: int) -> None:
    """Raises `ExchangeError` for bytes beyond a length; a value that is no bytes is refused where it is read."""
    if isinstance(data, bytes | bytearray | memoryview) and (size := memoryview(data).nbytes) > most:
        raise ExchangeError("mask.reply-too-long", bytes=size, most=most)


def check_call(call: StageCall, plan: VerifiedPlan, region: str) -> None:
    """Raises `ExchangeError` for a call of another plan, or of a round or stage that no plan has."""
    if call.plan_digest != plan.digest or call.stage not in STAGES or call.attempt < 1:
        raise ExchangeError("region.stage-foreign", region=region)
    if not 1 <= call.round_number <= plan.rounds:
        raise ExchangeError("region.round-range", rounds=plan.rounds, round_number=call.round_number)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
