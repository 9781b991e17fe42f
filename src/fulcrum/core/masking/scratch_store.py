"""What a silo remembers of its masked rounds in research: one small file, not synced, for nobody it protects.

A silo that simulates answers as one that is deployed does, once to every stage, whichever process asks it next. What a
power cut takes from it costs a simulation and no secret: research draws its noise from a seed that everybody knows.

The file is written where it stands, a checksum and its length before what it holds: to put another file in its place
has the file system write both to the disk, which takes longer than a stage of a round.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fulcrum.core.masking.masking_messages import Session
from fulcrum.core.masking.member_protocol import State
from fulcrum.errors import StorageError

_CHECKSUM, _LENGTH = 32, 8  # bytes of the file's head


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one round."""

    attempt: int
    basis: str
    unmasked: bool
    state: State | None


_Rounds = dict[str, dict[int, _Round]]


class ScratchRecord:
    """In the place of `MaskingRecord`: the same questions, of a file that is there once a round was begun.

    It forgets what a round was answered, not that it was unmasked, once another is begun: a file that kept all answers
    would grow with every round, and be read in every stage.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: _Rounds | None = None

    def close(self) -> None:
        """Nothing is held."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """The file is read once for all that is asked within: a simulation asks a silo one thing at a time."""
        self._known = None
        try:
            yield
        finally:
            self._known = None

    def state(self, session: Session) -> tuple[State | None, bool] | None:
        """Returns what is known of a round; see `MaskingRecord.state`."""
        found = self._found(session)
        return None if found is None else (found.state, found.unmasked)

    def last_attempt(self, session: Session) -> tuple[int, str] | None:
        """Returns the last attempt of a round and the model it was on; None where the round is new."""
        found = self._found(session)
        return None if found is None else (found.attempt, found.basis)

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a plan that are unmasked."""
        return {number for number, found in self._read().get(session.plan_digest, {}).items() if found.unmasked}

    def begin(self, state: State) -> None:
        """Stores the first state of an attempt, and forgets those of all others."""
        rounds = self._read()
        for known in rounds.values():
            for number, found in known.items():
                known[number] = msgspec.structs.replace(found, state=None)
        self._write(rounds, state, unmasked=False)

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state."""
        self._write(self._read(), state, unmasked=unmasked)

    def _found(self, session: Session) -> _Round | None:
        return self._read().get(session.plan_digest, {}).get(session.round_number)

    def _read(self) -> _Rounds:
        if self._known is None:
            self._known = self._on_disk()
        return self._known

    def _on_disk(self) -> _Rounds:
        try:
            data = self._path.read_bytes()
            length = int.from_bytes(data[_CHECKSUM : _CHECKSUM + _LENGTH], "little")
            held = data[_CHECKSUM + _LENGTH :][:length]
            if data[:_CHECKSUM] != hashlib.sha256(held).digest():
                raise StorageError("mask.scratch-incomplete", file=self._path)
            return msgspec.msgpack.decode(held, type=_Rounds)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError("mask.scratch-unreadable", file=self._path, reason=error) from None

    def _write(self, rounds: _Rounds, state: State, *, unmasked: bool) -> None:
        session = state.session
        made = _Round(attempt=session.attempt, basis=session.basis, unmasked=unmasked, state=state)
        rounds.setdefault(session.plan_digest, {})[session.round_number] = made
        held = msgspec.msgpack.encode(rounds)
        data = b"".join((hashlib.sha256(held).digest(), len(held).to_bytes(_LENGTH, "little"), held))
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:  # nothing is cut off
            file.write(data)
