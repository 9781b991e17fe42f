"""The file in which a silo records its masked rounds: a single answer to every stage, and a single unmasking, for ever.

`fulcrum.core.store.database` holds, syncs and copies the file. Overwritten content is gone from the file and from the
journal. Overwritten content may remain in a copy of the file, in a snapshot of the disk, or in retired cells of a
drive.

Never restore an old copy of the file. A record without an unmasking may unmask a second sum of different survivors, and
the difference of two sums is the release of a silo.
"""

from typing import Self

import msgspec

from fulcrum.core.masking.masking_messages import Session
from fulcrum.core.masking.member_protocol import State
from fulcrum.core.store.database import DatabaseFile, PathLike, Statement
from fulcrum.errors import ExchangeError, StorageError

FORMAT = 3
"""The format of the file. Format 2 used a write-ahead log."""

_SCHEMA = """
CREATE TABLE silo (name TEXT NOT NULL);
CREATE TABLE round (
    plan TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, basis TEXT NOT NULL,
    unmasked INTEGER NOT NULL, state BLOB, PRIMARY KEY (plan, number)
);
"""


class MemberStore(DatabaseFile):
    """The file in which a silo records its masked rounds: the last attempt, its state, and the unmasking of each round.

    The record stops a silo from unmasking a second sum of a round. A store is locked and connected; `open` makes it.
    """

    application = 0x46554C4D  # "FULM"
    version = FORMAT
    schema = _SCHEMA
    noun = "a silo's record of masked rounds"
    wanted = "the silo's record of masked rounds"
    advice = "Ask for a new plan"
    older = "Finish its plan with the version that wrote it, or ask for a new plan and begin a new record"
    lost = "the record of the rounds that this silo has unmasked"
    erases = True

    @classmethod
    def open(cls, path: PathLike, *, silo: str, create: bool = False) -> Self:
        """Opens a silo's record, or creates a missing record if `create` is True."""
        with cls.writing(path, ("INSERT INTO silo VALUES (?)", (silo,)) if create else None) as file:
            if file.rows("SELECT name FROM silo") != [(silo,)]:
                raise ExchangeError("mask.record-of-other-silo", file=file.path, silo=silo)
        return file

    @property
    def is_unused(self) -> bool:
        """True if no round has ever begun."""
        return not self.rows("SELECT 1 FROM round LIMIT 1")

    def state(self, session: Session) -> tuple[State | None, bool] | None:
        """Returns two values, the state of a round and the fact of its unmasking; None in place of both if it is new.

        The state is None after the state was erased. A round of a different attempt or model is returned unchanged.
        """
        rows = self.rows(
            "SELECT state, unmasked FROM round WHERE plan = ? AND number = ?",
            session.plan_digest,
            session.round_number,
        )
        if not rows:
            return None
        data, unmasked = rows[0]
        try:
            return (None if data is None else msgspec.msgpack.decode(data, type=State)), bool(unmasked)
        except (msgspec.MsgspecError, TypeError):
            raise StorageError("mask.record-damaged", file=self.path, advice=self.advice) from None

    def last_attempt(self, session: Session) -> tuple[int, str] | None:
        """Returns the last attempt of a round and the digest of its model; None for a new round."""
        rows = self.rows(
            "SELECT attempt, basis FROM round WHERE plan = ? AND number = ?", session.plan_digest, session.round_number
        )
        return (int(rows[0][0]), str(rows[0][1])) if rows else None

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a plan that are unmasked."""
        rows = self.rows("SELECT number FROM round WHERE plan = ? AND unmasked = 1", session.plan_digest)
        return {int(number) for (number,) in rows}

    def begin(self, state: State) -> None:
        """Stores the first state of an attempt in place of an earlier attempt, and erases all unfinished rounds.

        A silo is in a single round at a time: a server that begins a new round has given up the earlier rounds.
        """
        self._store(state, ("UPDATE round SET state = NULL WHERE unmasked = 0", ()), unmasked=False)

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state in place of the previous state; secrets that the next state lacks are erased."""
        self._store(state, unmasked=unmasked)

    def _store(self, state: State, *before: Statement, unmasked: bool) -> None:
        session = state.session
        round_ = (session.plan_digest, session.round_number)
        attempt = (session.attempt, session.input_digest, int(unmasked))
        # A single row for a round: the secrets of an earlier state or attempt are overwritten.
        row = (*round_, *attempt, msgspec.msgpack.encode(state))
        self.write(
            *before,
            ("INSERT OR REPLACE INTO round VALUES (?, ?, ?, ?, ?, ?)", row),
            proofs=(("SELECT * FROM round WHERE plan = ? AND number = ?", round_, [row]),),
        )
        self.in_doubt = False  # no copy in memory could disagree with the file
