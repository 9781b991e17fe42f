"""The server of a masked federation: model and rounds over the groups' sums, whatever engine carries the messages.

    server = MaskedServer.open(folder, plan, start)
    while not server.is_finished:
        server.run_round(carry)

    def carry(requests, take):                 # an engine: sends every silo its request, hands in what comes back
        for answer in answers_of_silos(requests):
            take(answer)                       # the silo that signed it, or None where it is of no use

A round is tried again where no group gave a sum, as another attempt. Silos give what unmasks a sum once: a server that
dies after it has asked for that goes on with the next round, and what was released in the lost one stays charged.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self, TypeAlias

import msgspec
import numpy as np

from fulcrum.aggregation.masked_round import MaskedRound
from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_messages import Attested, request_from_bytes
from fulcrum.core.messages.model_message import Model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import EngineError, ExchangeError, StorageError
from fulcrum.parsing import json_of
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.coordinator import Coordinator

ATTEMPT = "attempt.json"
"""The file beside the checkpoint that says which attempt of a round was begun last."""

TRIES = 3
"""Attempts of a round in which no group gives a sum."""

Take: TypeAlias = Callable[[bytes], str | None]
Carry: TypeAlias = Callable[[Mapping[str, bytes], Take], None]

_logger = logging.getLogger(__name__)


class _Begun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attempt of which round was begun last, and whether silos were asked for what unmasks its sums."""

    plan_digest: str
    round_number: int
    attempt: int
    unmasking: bool = False


class MaskedServer:
    """Runs the rounds of a plan whose sums are masked; made by `open`.

    Guarantees: model, checkpoint and resumption are those of `Coordinator`; no attempt of a round has the number of one
    before it, after a crash neither; a round whose sums may have been unmasked and lost is never asked for again.

    Args:
        folder: Holds the checkpoint and the attempt.
        plan: With masked sums and the keys of its silos.
        coordinator: The model, where its checkpoint has it.
        single: Names of arrays that silos train in single or half precision, with their types.
    """

    def __init__(
        self, folder: Path, plan: VerifiedPlan, coordinator: Coordinator, single: Mapping[str, np.dtype]
    ) -> None:
        self._folder, self._plan, self._coordinator, self._types = folder, plan, coordinator, dict(single)

    @classmethod
    def open(cls, folder: str | Path, plan: VerifiedPlan, start: Model, *, classes: int | None = None) -> Self:
        """Opens the server on a folder: where it stopped, or at round 1; see `Coordinator.open`.

        The model is kept in double precision and sent in the precision that `start` has.
        """
        check_aggregation(plan, "masked")
        coordinator = Coordinator.open(folder, plan, start, classes=classes)
        types = {name: np.asarray(array).dtype for name, array in start.items()}
        return cls(Path(folder), plan, coordinator, types)

    @property
    def round_number(self) -> int:
        """The next round to finish; one past the plan's last when all are."""
        return self._coordinator.round_number

    @property
    def is_finished(self) -> bool:
        """Whether the plan's last round is over."""
        return self._coordinator.is_finished

    @property
    def history(self) -> tuple[RoundSummary, ...]:
        """What became of every round that is over."""
        return self._coordinator.history

    @property
    def model(self) -> dict[str, FloatArray]:
        """The global model as silos are sent it: rounded to the precision that they train in."""
        kept = self._coordinator.model
        return {name: array.astype(self._types[name]).astype(np.float64) for name, array in kept.items()}

    def run_round(self, carry: Carry, beside: str = "") -> RoundSummary:
        """Runs the next round to its end, and returns what became of it; on disk when it returns.

        Args:
            carry: Sends requests to silos and hands in their answers; it returns when it waits for no more.
            beside: The digest of what silos are told beside the model; a round that is run again keeps it.

        Raises:
            EngineError: No group gave a sum in any attempt. The round is not over: it can be run again later.
        """
        begun = self._begun()
        if begun is not None and begun.unmasking:
            _logger.warning("round %d: its sums were unmasked and lost, the next round is begun", self.round_number)
            return self._coordinator.finish_round()
        reasons = ""
        for _ in range(TRIES):
            number = self.round_number
            attempt = 1 if begun is None else begun.attempt + 1
            begun = _Begun(plan_digest=self._plan.digest, round_number=number, attempt=attempt)
            self._note(begun)
            masked = MaskedRound(self._plan, number, self.model, attempt, beside)
            begun = self._driven(masked, carry, begun)
            for name, answer in masked.answers.items():
                self._coordinator.receive(answer.to_bytes(), name)
            if any(isinstance(answer, RegionalSum) for answer in masked.answers.values()) or begun.unmasking:
                return self._coordinator.finish_round()
            told = [f"{name}: {found.reason}" for name, found in masked.answers.items() if isinstance(found, Withheld)]
            reasons = "; ".join(told)
            _logger.warning("round %d, attempt %d: no group gave a sum. %s", number, attempt, reasons)
        raise EngineError("server.groups-without-sum", round=self.round_number, reasons=reasons)

    def _driven(self, masked: MaskedRound, carry: Carry, begun: _Begun) -> _Begun:
        """Drives an attempt through its stages; notes on disk that sums are unmasked before any silo is asked to."""

        def take(answer: bytes) -> str | None:
            try:
                return masked.take(answer)
            except ExchangeError as error:
                _logger.warning("round %d: an answer is of no use: %s", begun.round_number, error)
                return None

        requests = masked.requests()
        while requests:
            asked = {type(request_from_bytes(request)) for request in set(requests.values())}
            if Attested in asked and not begun.unmasking:
                begun = msgspec.structs.replace(begun, unmasking=True)
                self._note(begun)
            carry(requests, take)
            requests = masked.proceed()
        return begun

    def _begun(self) -> _Begun | None:
        """Returns the attempt of this round that was begun last, if there is one."""
        path = self._folder / ATTEMPT
        try:
            found = json_of(path.read_bytes(), _Begun)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError("server.attempt-unreadable", file=path, reason=str(error)) from None
        same = (found.plan_digest, found.round_number) == (self._plan.digest, self.round_number)
        return found if same else None

    def _note(self, begun: _Begun) -> None:
        write_whole(self._folder / ATTEMPT, msgspec.json.encode(begun))
