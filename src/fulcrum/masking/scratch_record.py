"""What a silo remembers of its masked rounds in research: one small file, not synced, for nobody it protects.

A silo that simulates answers as one that is deployed does, once to every stage, whichever process asks it next. What a
power cut takes from it costs a simulation and no secret: research draws its noise from a seed that everybody knows.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fulcrum.errors import StorageError
from fulcrum.masking.messages import Session
from fulcrum.masking.silo import State


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one round."""

    attempt: int
    basis: str
    unmasked: bool
    state: State | None


_Rounds = dict[str, dict[int, _Round]]


class ScratchRecord:
    """In the place of `MaskingRecord`: the same questions, of a file that is there once a round was begun."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self) -> None:
        """Nothing is held."""

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Nothing is held: a simulation asks a silo one thing at a time."""
        yield

    def state(self, session: Session) -> tuple[State | None, bool] | None:
        """Returns what is known of a round; see `MaskingRecord.state`."""
        found = self._found(session)
        return None if found is None else (found.state, found.unmasked)

    def last_attempt(self, session: Session) -> tuple[int, str] | None:
        """Returns the last attempt of a round and the model it was on; None where the round is new."""
        found = self._found(session)
        return None if found is None else (found.attempt, found.basis)

    def begin(self, state: State) -> None:
        """Stores the first state of an attempt, and forgets the secrets of all others."""
        rounds = self._read()
        for known in rounds.values():
            for number, found in known.items():
                known[number] = msgspec.structs.replace(found, state=found.state if found.unmasked else None)
        self._write(rounds, state, unmasked=False)

    def store(self, state: State, *, unmasked: bool = False) -> None:
        """Stores the next state."""
        self._write(self._read(), state, unmasked=unmasked)

    def _found(self, session: Session) -> _Round | None:
        return self._read().get(session.plan_digest, {}).get(session.round_number)

    def _read(self) -> _Rounds:
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=_Rounds)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError(f"{self._path} cannot be read: {error}. Simulate in a new folder") from None

    def _write(self, rounds: _Rounds, state: State, *, unmasked: bool) -> None:
        session = state.session
        made = _Round(attempt=session.attempt, basis=session.basis, unmasked=unmasked, state=state)
        rounds.setdefault(session.plan_digest, {})[session.round_number] = made
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_bytes(msgspec.msgpack.encode(rounds))
        beside.replace(self._path)
