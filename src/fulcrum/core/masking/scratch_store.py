"""The file in which a silo of a simulation records its masked rounds: small, not synced, and without protection.

A silo of a simulation answers every stage once, as a deployed silo does, even if every message starts a new process. A
power cut may destroy the file. The loss costs a simulation and no secret: research draws its noise from a public seed.

The file is overwritten in place, with checksum and length before the content. To replace the file by a new file would
make the file system write both files to the disk, and take longer than a stage of a round.
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
    """The record of a round: last attempt, digest of the model, fact of the unmasking, and the member's last state."""

    attempt: int
    input_digest: str = msgspec.field(name="basis")
    unmasked: bool
    state: State | None


_Rounds = dict[str, dict[int, _Round]]


class ScratchStore:
    """A record with the methods of `MemberStore`, in a file that exists after the first round has begun.

    A new round erases the answers of earlier rounds, but not the fact of an unmasking. A file with all answers would
    grow with every round, and every stage reads the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cached: _Rounds | None = None

    def close(self) -> None:
        """Does nothing: no file is held open."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Reads the file once for all calls within the context: a simulation calls a silo sequentially."""
        self._cached = None
        try:
            yield
        finally:
            self._cached = None

    def state(self, session: Session) -> tuple[State | None, bool] | None:
        """Returns the state of a round; see `MemberStore.state`."""
        entry = self._round(session)
        return None if entry is None else (entry.state, entry.unmasked)

    def last_attempt(self, session: Session) -> tuple[int, str] | None:
        """Returns the last attempt of a round and the digest of its model; None for a new round."""
        entry = self._round(session)
        return None if entry is None else (entry.attempt, entry.input_digest)

    def unmasked_rounds(self, session: Session) -> set[int]:
        """Returns the rounds of a plan that are unmasked."""
        return {number for number, entry in self._read().get(session.plan_digest, {}).items() if entry.unmasked}

    def begin(self, state: State) -> None:
        """Stores the first state of an attempt, and erases the states of all other rounds."""
        rounds = self._read()
        for of_plan in rounds.values():
            for number, entry in of_plan.items():
                of_plan[number] = msgspec.structs.replace(entry, state=None)
        self._write(rounds, state, unmasked=False)

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state."""
        self._write(self._read(), state, unmasked=unmasked)

    def _round(self, session: Session) -> _Round | None:
        return self._read().get(session.plan_digest, {}).get(session.round_number)

    def _read(self) -> _Rounds:
        if self._cached is None:
            self._cached = self._on_disk()
        return self._cached

    def _on_disk(self) -> _Rounds:
        try:
            data = self._path.read_bytes()
            length = int.from_bytes(data[_CHECKSUM : _CHECKSUM + _LENGTH], "little")
            held = data[_CHECKSUM + _LENGTH :][:length]
            # A process that was killed amid a write leaves a wrong checksum, never a wrong state.
            if data[:_CHECKSUM] != hashlib.sha256(held).digest():
                raise StorageError("mask.scratch-incomplete", file=self._path)
            return msgspec.msgpack.decode(held, type=_Rounds)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError("mask.scratch-unreadable", file=self._path, reason=error) from None

    def _write(self, rounds: _Rounds, state: State, *, unmasked: bool) -> None:
        session = state.session
        entry = _Round(attempt=session.attempt, input_digest=session.input_digest, unmasked=unmasked, state=state)
        rounds.setdefault(session.plan_digest, {})[session.round_number] = entry
        held = msgspec.msgpack.encode(rounds)
        data = b"".join((hashlib.sha256(held).digest(), len(held).to_bytes(_LENGTH, "little"), held))
        with os.fdopen(
            os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600), "wb"
        ) as file:  # no O_TRUNC: the length in the head ends the content
            file.write(data)
