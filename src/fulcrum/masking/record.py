"""The file in which a silo remembers its masked rounds: one answer to every stage, and one unmasking, for ever.

How the file is held, synced and copied is in `fulcrum.storage.database`, how it forgets secrets in
`fulcrum.storage.erasing`. Never restore an old copy of it: one that has forgotten an unmasking may give another, of
other survivors, and the difference of two sums is what one silo released.
"""

from pathlib import Path
from typing import Self

import msgspec

from fulcrum.errors import ExchangeError, StorageError
from fulcrum.masking.messages import Session
from fulcrum.masking.silo import State
from fulcrum.storage.database import PathLike, Statement
from fulcrum.storage.erasing import ErasingFile

FORMAT = 2
"""Of the file: the first that there is. Format 1 of any file carries no mark of how far its log goes."""

_SCHEMA = """
CREATE TABLE silo (name TEXT NOT NULL);
CREATE TABLE round (
    plan TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, basis TEXT NOT NULL,
    unmasked INTEGER NOT NULL, state BLOB, PRIMARY KEY (plan, number)
);
"""


class MaskingRecord(ErasingFile):
    """A silo's record of its masked rounds, held and connected to; made by `bound`."""

    application = 0x46554C4D  # "FULM"
    version = FORMAT
    schema = _SCHEMA
    noun = "a silo's record of masked rounds"
    wanted = "the silo's record of masked rounds"
    advice = "Ask for a new plan"
    lost = "what this silo has unmasked"

    @classmethod
    def bound(cls, path: PathLike, *, silo: str, create: bool = False) -> Self:
        """Opens a silo's record, creating it where there is none and `create` allows it."""
        with cls.erasing(path, ("INSERT INTO silo VALUES (?)", (silo,)) if create else None) as file:
            if file.connection.execute("SELECT name FROM silo").fetchall() != [(silo,)]:
                raise ExchangeError(f"{file.path} is the record of another silo than {silo!r}")
        return file

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
            raise StorageError(f"{self.path} is damaged: it does not hold what a record holds. {self.advice}") from None

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
        self.write(
            ("UPDATE round SET state = NULL WHERE unmasked = 0", ()), self._storing(state, unmasked=False), erase=True
        )

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state; once the sum is unmasked, the secrets of the round are erased."""
        self.write(self._storing(state, unmasked=unmasked), erase=unmasked)

    @staticmethod
    def _storing(state: State, *, unmasked: bool) -> Statement:
        session = state.session
        row = (session.plan_digest, session.round_number, session.attempt, session.basis, int(unmasked))
        return ("INSERT OR REPLACE INTO round VALUES (?, ?, ?, ?, ?, ?)", (*row, msgspec.msgpack.encode(state)))


def create_masking_record(path: PathLike, *, silo: str) -> None:
    """Creates the empty record of a silo's masked rounds, and closes it.

    Refuses a file that is there: it may hold what the silo has unmasked.
    """
    if (file := Path(path).resolve()).exists():
        raise StorageError(f"{file} is there already, and may hold rounds that were unmasked. Name a new file")
    MaskingRecord.bound(file, silo=silo, create=True).close()
