"""What the server does: keeps the global model and adds to it, round by round, what the regions send up (Algorithm 1).

>>> import tempfile
>>> import numpy as np
>>> from fulcrum.planning.making import plan
>>> folder = tempfile.TemporaryDirectory()
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> server = Coordinator.open(folder.name, made, {"head": np.zeros((2, 3))})
>>> server.round_number, server.basis[:8], server.complete
(1, '34edabe0', False)
>>> server.finish_round()["missing"]
['region-1', 'region-2', 'region-3', 'region-4']
>>> Coordinator.open(folder.name, made, {"head": np.zeros((2, 3))}).round_number
2
>>> folder.cleanup()

The answers of a round that is not finished are in memory alone: after a restart regions send them again, byte for byte.
Answers are not signed: the engine says who sent one, since it knows whose connection it came over.
"""

import io
import threading
from pathlib import Path
from typing import Self, TypedDict

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.errors import ExchangeError, StorageError, in_one_line
from fulcrum.exchange.answer import Answer, RegionalSum, Withheld, answer_from_bytes
from fulcrum.exchange.layout import Layout, in_units
from fulcrum.exchange.membership import members_of, step_of
from fulcrum.exchange.model import Model, checked_model, model_digest
from fulcrum.federation.structure import ROOT
from fulcrum.planning.plan import Plan
from fulcrum.roles.runnable import check_one_tier
from fulcrum.storage.files import write_whole

FORMAT = "fulcrum.checkpoint/1"

NAME = "checkpoint.npz"
"""The file in a coordinator's folder."""


class RoundSummary(TypedDict):
    """What became of a round.

    Attributes:
        round: Which one.
        summed: The regions whose sums are in the model.
        members: For each of them, the silos in its sum.
        withheld: For each region whose sum was withheld, why.
        missing: The regions that did not answer.
    """

    round: int
    summed: list[str]
    members: dict[str, list[str]]
    withheld: dict[str, str]
    missing: list[str]


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    plan_digest: str
    round_number: int
    layout: Layout
    history: list[RoundSummary]


class Coordinator:
    """The server's side of a federation; made by `open`. Threads may share it.

    Guarantees:

    - the model is the start plus the regions' sums, added in the order of their names, and nothing else;
    - where the plan promises something against who sees the global sum alone, a round adds all sums or none;
    - what `finish_round` returns is on disk, so a restart goes on from there;
    - an answer is used in its own round, once; what does not fit plan, round and model is refused.
    """

    def __init__(self, folder: Path, plan: Plan, state: _State, flat: FloatArray) -> None:
        self._file, self._plan = folder / NAME, plan
        self._state, self._flat = state, read_only(flat)
        self._answers: dict[str, tuple[bytes, Answer]] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(cls, folder: str | Path, plan: Plan, start: Model) -> Self:
        """Opens a coordinator on a folder: where it stopped, or at round 1 where nothing is there yet.

        Args:
            folder: Holds the checkpoint; one server at a time. It is made if it is not there.
            plan: Of one tier. A checkpoint of another plan is refused.
            start: The model before round 1. Where there is a checkpoint its names and shapes alone count.
        """
        check_one_tier(plan)
        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror}") from None
        layout, flat = checked_model(plan, start)
        if not (place / NAME).exists():
            state = _State(format=FORMAT, plan_digest=plan.digest, round_number=1, layout=layout, history=[])
            # Written before the first round: silos that release on this model release on no other in that round.
            _write(place / NAME, state, flat)
            return cls(place, plan, state, flat)
        resumed = cls.read(place, plan)
        if resumed._state.layout != layout:
            raise ExchangeError(f"{place / NAME} holds a model of other names or shapes. Choose another folder")
        return resumed

    @classmethod
    def read(cls, folder: str | Path, plan: Plan) -> Self:
        """Returns a coordinator where its checkpoint has it; one of another plan, or none, is refused."""
        place = Path(folder)
        state, flat = _read(place / NAME)
        if state.plan_digest != plan.digest:
            raise ExchangeError(f"{place / NAME} was written under another plan. Choose another folder")
        return cls(place, plan, state, flat)

    @property
    def round_number(self) -> int:
        """The next round to finish; one past the plan's last when all are."""
        return self._state.round_number

    @property
    def finished(self) -> bool:
        """Whether the plan's last round is over."""
        return self.round_number > self._plan.rounds

    @property
    def model(self) -> dict[str, FloatArray]:
        """The global model, read-only arrays by name."""
        with self._lock:
            return self._state.layout.arrays(self._flat)

    @property
    def basis(self) -> str:
        """The digest of the global model; see `model_digest`."""
        return model_digest(self.model)

    @property
    def history(self) -> tuple[RoundSummary, ...]:
        """What became of every round that is over."""
        return tuple(self._state.history)

    @property
    def answers(self) -> dict[str, Answer]:
        """What regions have answered in this round so far, by name."""
        with self._lock:
            return {region: self._answers[region][1] for region in sorted(self._answers)}

    @property
    def complete(self) -> bool:
        """Whether every region has answered in this round."""
        with self._lock:
            return len(self._answers) == len(self._plan.federation.innermost.nodes)

    def receive(self, answer: bytes, sender: str) -> None:
        """Takes in what a region sends up for this round; the same bytes again change nothing.

        A sum that was received cannot be replaced. That it is withheld can: a region may sum later in the round.

        Args:
            answer: The bytes that came.
            sender: Who sent them, as the engine knows by a certificate; never what the bytes themselves say.
        """
        with self._lock:
            self._check_open()
            received = answer_from_bytes(answer)
            if received.region != sender:
                raise ExchangeError(f"{sender!r} answers for region {received.region!r}, and may for itself alone")
            self._check(received)
            known = self._answers.get(received.region)
            if known is not None and isinstance(known[1], RegionalSum) and known[0] != answer:
                raise ExchangeError(
                    f"region {received.region!r} sent another answer for round {self.round_number} before"
                )
            self._answers[received.region] = (bytes(answer), received)

    def finish_round(self) -> RoundSummary:
        """Adds the sums of this round to the model and goes on to the next; on disk when it returns.

        Regions that withheld their sum, or did not answer, contribute nothing. Nothing is rescaled. A target on the
        tier 'federation' counts on the noise of every region: where one contributes nothing, then none does.
        """
        with self._lock:
            self._check_open()
            # Integers times a power of two: exact, in whatever order, while the sum has no more than 53 bits.
            total = np.zeros_like(self._flat)
            answers = self.answers
            sums = {region: answer for region, answer in answers.items() if isinstance(answer, RegionalSum)}
            withheld = {region: answer.reason for region, answer in answers.items() if isinstance(answer, Withheld)}
            if ROOT in self._plan.epsilon_target and len(sums) < len(self._plan.federation.innermost.nodes):
                withheld |= dict.fromkeys(sums, "the plan's target on 'federation' counts on the noise of every region")
                sums = {}
            for answer in sums.values():
                total += in_units(answer.values, answer.step)
            summary = RoundSummary(
                round=self.round_number,
                summed=list(sums),
                members={region: list(answer.members) for region, answer in sums.items()},
                withheld=withheld,
                missing=sorted(set(self._plan.federation.innermost.nodes) - set(answers)),
            )
            flat = self._flat + total
            state = msgspec.structs.replace(
                self._state, round_number=self.round_number + 1, history=[*self._state.history, summary]
            )
            _write(self._file, state, flat)
            self._state, self._flat, self._answers = state, read_only(flat), {}
            return summary

    def _check_open(self) -> None:
        if self.finished:
            raise ExchangeError(f"the plan's last round, {self._plan.rounds}, is over. Make another plan to go on")

    def _check(self, answer: Answer) -> None:
        """Refuses what is not an answer to this round's question."""
        plan, region = self._plan, answer.region
        if answer.plan_digest != plan.digest:
            raise ExchangeError("the answer is given under another plan")
        members = members_of(plan, region)
        if answer.round_number != self.round_number:
            raise ExchangeError(
                f"region {region!r} answers for round {answer.round_number}, this is round {self.round_number}"
            )
        named = answer.members if isinstance(answer, RegionalSum) else answer.missing
        if not set(named) <= set(members):
            raise ExchangeError(f"region {region!r} names silos that are not its own")
        if isinstance(answer, RegionalSum):
            if answer.step != step_of(plan, region):
                raise ExchangeError(f"the sum of region {region!r} is not on its lattice")
            if answer.layout != self._state.layout:
                raise ExchangeError(f"the sum of region {region!r} has other names or shapes than the model")


def _write(file: Path, state: _State, flat: FloatArray) -> None:
    """Writes a checkpoint whole; synced when it returns."""
    data = io.BytesIO()
    np.savez(data, state=np.frombuffer(msgspec.json.encode(state), dtype=np.uint8), model=flat)
    write_whole(file, data.getvalue())


def _read(file: Path) -> tuple[_State, FloatArray]:
    """Reads a checkpoint; what is not one raises and is not written over."""
    try:
        with file.open("rb") as stream:
            found = np.load(stream, allow_pickle=False)
            state = msgspec.json.decode(found["state"].tobytes(), type=_State)
            flat = np.asarray(found["model"], dtype=np.float64)
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # whatever zipfile, numpy and msgspec make of it
        raise StorageError(f"{file} is not a checkpoint: {in_one_line(error)}") from None
    if (
        state.format != FORMAT
        or flat.shape != (state.layout.parameters,)
        or len(state.history) + 1 != state.round_number
    ):
        raise StorageError(f"{file} is not a checkpoint of format {FORMAT}")
    return state, flat
