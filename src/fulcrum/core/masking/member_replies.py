"""A silo's answers in masked rounds, on disk: a given answer is given again, and a refused request gets no answer.

`fulcrum.core.masking.member_protocol` decides on the content of answers. Here every state is on disk before its answer
is returned: a silo that forgot an answer could answer the same stage a second time, to a different request.
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
    member_reply_from_bytes,
    request_from_bytes,
)
from fulcrum.core.masking.member_protocol import MemberProtocol, State, request_digest
from fulcrum.core.masking.member_store import MemberStore
from fulcrum.core.store.database import ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError


class MemberReplies(ClosedAtTheEnd):
    """A silo in its group, over all rounds; made by `open`. Threads may share the object, processes may not.

    Guarantees, on a disk that keeps synced data, for every request of the server and every moment of a crash:

    - every stage of a round has a single answer: the same request gets the same answer again, unless the silo's policy
      forbids the answer by now; a different request is refused;
    - a single sum of a round is unmasked: after the silo gave its shares for a sum, no other attempt of the round
      is answered;
    - a round is bound to a model and to the settings sent with the model: an attempt on a different model is refused;
    - the secrets of a round are erased when its sum is unmasked, and when a new round begins.

    Refusals are `ExchangeError` or `PolicyError` and change nothing. A `StorageError` is trouble with the file.
    """

    def __init__(self, record: MemberStore, member: MemberProtocol) -> None:
        self._record, self._member = record, member

    @classmethod
    def open(cls, path: PathLike, member: MemberProtocol, *, create: bool = False) -> Self:
        """Opens the silo's record of masked rounds.

        Args:
            path: The file; no second process may hold the file.
            member: The silo in its group.
            create: True to create a missing file. Otherwise a missing file is refused, since its content is lost.
        """
        return cls(MemberStore.open(path, silo=member.silo, create=create), member)

    def close(self) -> None:
        """Releases the file; a second call does nothing."""
        self._record.close()

    def has_begun(self, session: Session) -> bool:
        """Returns True if the record holds the round of a session, in any attempt."""
        with self._record.working():
            return self._record.last_attempt(session) is not None

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a session's plan for whose sums the silo has given its shares."""
        with self._record.working():
            return self._record.unmasked_rounds(session)

    def answer(self, data: bytes) -> bytes:
        """Returns the answer to any request except a request for a masked input; the answer is on disk."""
        request = request_from_bytes(data)
        if isinstance(request, Inbox):
            raise ExchangeError("mask.request-for-input")
        with self._record.working():
            state = self._state(request, data)
            return state.answers[_TURN[type(request)]]

    def check_inbox(self, data: bytes) -> Session:
        """Accepts the request for a masked input and returns the round of the request; the state is on disk.

        Call `check_inbox` before training: a request that is refused here is refused for every update.
        """
        request = request_from_bytes(data)
        if not isinstance(request, Inbox):
            raise ExchangeError("mask.request-not-for-input")
        with self._record.working():
            return self._state(request, data).session

    def masked_input(self, data: bytes, values: np.ndarray[Any, Any]) -> bytes:
        """Returns the masked input for a request, made of the silo's release of the round.

        Args:
            data: The request, as received.
            values: The release: whole numbers in steps of the group's lattice. The release must be recorded and charged
                before, as in `fulcrum.core.silo.masked_station`. A repeated request with different values is refused.
        """
        request = request_from_bytes(data)
        if not isinstance(request, Inbox):
            raise ExchangeError("mask.request-not-for-input")
        with self._record.working():
            state = self._state(request, data)
            answer = self._member.masked_input(state, values)
            # Ed25519 is deterministic: equal signatures are of equal vectors.
            self._note_sent(state, member_reply_from_bytes(answer).signature)
            return answer

    def _note_sent(self, state: State, signature: bytes) -> None:
        """Stores the signature of the vector that leaves under the masks of a state; a second vector is refused.

        Two vectors under the same masks would reveal the difference of two releases of a single silo.
        """
        session = state.session
        if state.sent and state.sent != signature:
            raise ExchangeError(
                "mask.input-differs", silo=self._member.silo, attempt=session.attempt, round_number=session.round_number
            )
        if not state.sent:
            self._record.store(msgspec.structs.replace(state, sent=signature))

    def _state(self, request: Request, data: bytes) -> State:
        """Returns the stored state that answers the request; a new request leads to the next state."""
        session, turn = request.session, _TURN[type(request)]
        self._member.group.check_session(session)
        # Equal digests: a repetition. A different request for an answered stage is refused: two answers could uncover a
        # release.
        stored = self._record.state(session)
        state, unmasked = stored if stored is not None else (None, False)
        if state is not None and state.requests[turn : turn + 1] == (request_digest(data),):
            # Answers before the unmasking are erased; the unmasking alone is repeated.
            if unmasked and turn < _TURN[Attested]:
                raise self._unmasked_error(session)
            if isinstance(request, Inbox):
                # The seed and the pair secrets are erased by now, so the same vector cannot be made again.
                if len(state.requests) > turn + 1:
                    raise ExchangeError("mask.input-erased", round_number=session.round_number)
                self._member.check_settings(state)
            again = self._member.repeat_answer(state)
            if again is not state:
                self._record.store(again, unmasked=unmasked)
            return again
        if unmasked:
            raise self._unmasked_error(session)
        if isinstance(request, Begin):
            return self._begin(request)
        if state is None:
            raise ExchangeError("mask.round-not-begun", silo=self._member.silo, round_number=session.round_number)
        # Stored before the answer is returned: after a crash the silo must know its answers.
        following = self._next_state(state, request)
        self._record.store(following, unmasked=isinstance(request, Attested))
        return following

    def _begin(self, request: Begin) -> State:
        """Starts an attempt at a round, returns the stored state; refuses a used attempt number or a changed model."""
        session = request.session
        if (last := self._record.last_attempt(session)) is not None:
            if session.input_digest != last[1]:
                raise ExchangeError("mask.model-changed", round_number=session.round_number)
            # A repeated number would draw new keys for a session in which the silo has already answered.
            if session.attempt <= last[0]:
                raise ExchangeError(
                    "mask.attempt-not-new",
                    attempt=session.attempt,
                    round_number=session.round_number,
                    last=last[0],
                    silo=self._member.silo,
                )
        state = self._member.begin(request)
        self._record.begin(state)
        return state

    def _next_state(self, state: State, request: Roster | Inbox | Survivors | Attested) -> State:
        """Returns the state after a request of a round that has begun."""
        if isinstance(request, Roster):
            return self._member.share_secrets(state, request)
        if isinstance(request, Inbox):
            return self._member.accept_shares(state, request)
        if isinstance(request, Survivors):
            return self._member.attest_survivors(state, request)
        return self._member.unmask_sum(state, request)

    def _unmasked_error(self, session: Session) -> ExchangeError:
        """Returns the refusal of a round that is unmasked: a second sum would reveal a release by subtraction."""
        return ExchangeError("mask.round-unmasked", silo=self._member.silo, round_number=session.round_number)


_TURN = {Begin: 0, Roster: 1, Inbox: 2, Survivors: 3, Attested: 4}
