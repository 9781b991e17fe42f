"""The file in which a silo remembers its masked rounds: one answer to every stage, and one unmasking, for ever.

How the file is held, synced and copied is in `fulcrum.core.store.database`. Overwritten content is gone from the file
and from its journal; it may still be in a copy of the file, in a snapshot of the disk, or in cells that a drive has set
aside. Never restore an old copy of it: one that has forgotten an unmasking may give another, of other survivors, and
the difference of two sums is what one silo released.
"""

from typing import Self

import msgspec

from fulcrum.core.masking.masking_messages import Session
from fulcrum.core.masking.member_protocol import State
from fulcrum.core.store.database import DatabaseFile, PathLike, Statement
from fulcrum.errors import ExchangeError, StorageError

FORMAT = 3
"""Of the file. Format 2 was kept with a write-ahead log."""

_SCHEMA = """
CREATE TABLE silo (name TEXT NOT NULL);
CREATE TABLE round (
    plan TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, basis TEXT NOT NULL,
    unmasked INTEGER NOT NULL, state BLOB, PRIMARY KEY (plan, number)
);
"""


class MaskingRecord(DatabaseFile):
    """A silo's record of its masked rounds, held and connected to; made by `bound`."""

    application = 0x46554C4D  # "FULM"
    version = FORMAT
    schema = _SCHEMA
    noun = "a silo's record of masked rounds"
    wanted = "the silo's record of masked rounds"
    advice = "Ask for a new plan"
    older = "Finish its plan with the version that wrote it, or ask for a new plan and begin a new record"
    lost = "what this silo has unmasked"
    erases = True

    @classmethod
    def bound(cls, path: PathLike, *, silo: str, create: bool = False) -> Self:
        """Opens a silo's record, creating it where there is none and `create` allows it."""
        with cls.writing(path, ("INSERT INTO silo VALUES (?)", (silo,)) if create else None) as file:
            if file.rows("SELECT name FROM silo") != [(silo,)]:
                raise ExchangeError("mask.record-of-other-silo", file=file.path, silo=silo)
        return file

    @property
    def unused(self) -> bool:
        """True where no round was ever begun."""
        return not self.rows("SELECT 1 FROM round LIMIT 1")

    def state(self, session: Session) -> tuple[State | None, bool] | None:
        """Returns what is known of a round: its state where it still has one, and whether it is unmasked.

        None where the round is new. A round of another attempt or model is returned as it is.
        """
        found = self.rows(
            "SELECT state, unmasked FROM round WHERE plan = ? AND number = ?",
            session.plan_digest,
            session.round_number,
        )
        if not found:
            return None
        data, unmasked = found[0]
        try:
            return (None if data is None else msgspec.msgpack.decode(data, type=State)), bool(unmasked)
        except (msgspec.MsgspecError, TypeError):
            raise StorageError("mask.record-damaged", file=self.path, advice=self.advice) from None

    def last_attempt(self, session: Session) -> tuple[int, str] | None:
        """Returns the last attempt of a round and the model it was on; None where the round is new."""
        found = self.rows(
            "SELECT attempt, basis FROM round WHERE plan = ? AND number = ?", session.plan_digest, session.round_number
        )
        return (int(found[0][0]), str(found[0][1])) if found else None

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a plan that are unmasked."""
        found = self.rows("SELECT number FROM round WHERE plan = ? AND unmasked = 1", session.plan_digest)
        return {int(number) for (number,) in found}

    def begin(self, state: State) -> None:
        """Stores the first state of an attempt, in the place of an earlier one, and forgets the secrets of all others.

        A silo is in one round at a time: a server that begins another has given up those before.
        """
        self._store(state, ("UPDATE round SET state = NULL WHERE unmasked = 0", ()), unmasked=False)

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state in the place of the one before; secrets that are not in it are erased."""
        self._store(state, unmasked=unmasked)

    def _store(self, state: State, *before: Statement, unmasked: bool) -> None:
        session = state.session
        round_, attempt = (session.plan_digest, session.round_number), (session.attempt, session.basis, int(unmasked))
        row = (*round_, *attempt, msgspec.msgpack.encode(state))
        self.write(
            *before,
            ("INSERT OR REPLACE INTO round VALUES (?, ?, ?, ?, ?, ?)", row),
            proofs=(("SELECT * FROM round WHERE plan = ? AND number = ?", round_, [row]),),
        )
        self.in_doubt = False  # nothing is kept in memory that could disagree with the file
