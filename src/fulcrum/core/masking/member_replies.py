"""A silo's part in masked rounds, on disk: what it answered, it answers again; what it refused, it sends nothing for.

`fulcrum.core.masking.member_protocol` says what may be answered. Here every state is on disk before its answer is
returned, since an answer that was forgotten could be given a second time, to another question.
"""

from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.core.masking.masking_messages import (
    Attested,
    Begin,
    Inbox,
    Request,
    Roster,
    Session,
    Survivors,
    answer_from_bytes,
    request_from_bytes,
)
from fulcrum.core.masking.member_protocol import Member, State, request_digest
from fulcrum.core.masking.member_store import MaskingRecord
from fulcrum.core.masking.scratch_store import ScratchRecord
from fulcrum.core.store.database import ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError


class MaskingSilo(ClosedAtTheEnd):
    """One silo in its group, over all rounds; made by `open`. Threads may share it, processes may not.

    Guarantees, on a disk that keeps what it says it has synced, whatever the server asks and whenever the silo dies:

    - every stage of a round has one answer: the same request again gets it again, unless the silo's policy forbids
      it by now; any other is refused;
    - one sum of a round is unmasked: once the silo gave its shares for it, no other attempt of the round is answered;
    - a round is on one model, and on what is told beside it: an attempt on another is refused;
    - the secrets of a round are erased when its sum is unmasked, and when another round begins.

    Refusals are `ExchangeError` or `PolicyError`, and change nothing. `StorageError` is trouble with the file.
    """

    def __init__(self, record: MaskingRecord | ScratchRecord, member: Member) -> None:
        self._record, self._member = record, member

    @classmethod
    def open(cls, path: PathLike, member: Member, *, create: bool = False) -> Self:
        """Opens the silo's record of masked rounds.

        Args:
            path: The file; no other process may hold it.
            member: The silo in its group.
            create: Whether a file that is not there is made anew; otherwise it is refused, as its content is lost.
        """
        return cls(MaskingRecord.bound(path, silo=member.silo, create=create), member)

    def close(self) -> None:
        """Lets the file go; closing it again does nothing."""
        self._record.close()

    def has_begun(self, session: Session) -> bool:
        """Returns whether the record holds a round, in whichever attempt."""
        with self._record.working():
            return self._record.last_attempt(session) is not None

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a session's plan whose sums this silo has given its shares for."""
        with self._record.working():
            return self._record.unmasked_rounds(session)

    def answer(self, data: bytes) -> bytes:
        """Returns the answer to any request but that for a masked input; on disk when it returns."""
        request = request_from_bytes(data)
        if isinstance(request, Inbox):
            raise ExchangeError("mask.request-for-input")
        with self._record.working():
            state = self._state(request, data)
            return state.answers[_TURN[type(request)]]

    def check_inbox(self, data: bytes) -> Session:
        """Takes in the request for a masked input, and returns the round that it is for; on disk when it returns.

        To be asked before anything is trained: a request that is refused here is refused whatever the update is.
        """
        request = request_from_bytes(data)
        if not isinstance(request, Inbox):
            raise ExchangeError("mask.request-not-for-input")
        with self._record.working():
            return self._state(request, data).session

    def masked_input(self, data: bytes, values: np.ndarray[Any, Any]) -> bytes:
        """Returns the masked input that a request asks for, made of the silo's release of that round.

        Args:
            data: The request, as it came.
            values: The release: whole numbers in steps of the group's lattice. It must be recorded and charged before,
                which `fulcrum.core.silo.masked_release` sees to. Where the request comes again, other values are
                refused.
        """
        request = request_from_bytes(data)
        if not isinstance(request, Inbox):
            raise ExchangeError("mask.request-not-for-input")
        with self._record.working():
            state = self._state(request, data)
            answer = self._member.masked_input(state, values)
            self._note_sent(state, answer_from_bytes(answer).signature)
            return answer

    def _note_sent(self, state: State, signature: bytes) -> None:
        """Keeps which vector leaves under the masks of a state; of two the difference would tell of one silo alone."""
        session = state.session
        if state.sent and state.sent != signature:
            raise ExchangeError(
                "mask.input-differs", silo=self._member.silo, attempt=session.attempt, round_number=session.round_number
            )
        if not state.sent:
            self._record.store(msgspec.structs.replace(state, sent=signature))

    def _state(self, request: Request, data: bytes) -> State:
        """Returns the state in which the request is answered, stored; one that is new leads to the next state."""
        session, turn = request.session, _TURN[type(request)]
        self._member.group.check_session(session)
        known = self._record.state(session)
        state, unmasked = known if known is not None else (None, False)
        if state is not None and state.requests[turn : turn + 1] == (request_digest(data),):
            if unmasked and turn < _TURN[Attested]:
                raise self._over(session)
            if isinstance(request, Inbox):
                if len(state.requests) > turn + 1:
                    raise ExchangeError("mask.input-erased", round_number=session.round_number)
                self._member.check_settings(state)
            again = self._member.asked_again(state)
            if again is not state:
                self._record.store(again, unmasked=unmasked)
            return again
        if unmasked:
            raise self._over(session)
        if isinstance(request, Begin):
            return self._begun(request)
        if state is None:
            raise ExchangeError("mask.round-not-begun", silo=self._member.silo, round_number=session.round_number)
        following = self._following(state, request)
        self._record.store(following, unmasked=isinstance(request, Attested))
        return following

    def _begun(self, request: Begin) -> State:
        session = request.session
        if (last := self._record.last_attempt(session)) is not None:
            if session.basis != last[1]:
                raise ExchangeError("mask.model-changed", round_number=session.round_number)
            if session.attempt <= last[0]:
                raise ExchangeError(
                    "mask.attempt-not-new",
                    attempt=session.attempt,
                    round_number=session.round_number,
                    last=last[0],
                    silo=self._member.silo,
                )
        state = self._member.begun(request)
        self._record.begin(state)
        return state

    def _following(self, state: State, request: Roster | Inbox | Survivors | Attested) -> State:
        if isinstance(request, Roster):
            return self._member.shared(state, request)
        if isinstance(request, Inbox):
            return self._member.received(state, request)
        if isinstance(request, Survivors):
            return self._member.attested(state, request)
        return self._member.unmasked(state, request)

    def _over(self, session: Session) -> ExchangeError:
        return ExchangeError("mask.round-unmasked", silo=self._member.silo, round_number=session.round_number)


_TURN = {Begin: 0, Roster: 1, Inbox: 2, Survivors: 3, Attested: 4}
