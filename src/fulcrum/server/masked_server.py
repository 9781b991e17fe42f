"""The server of a masked federation: model and rounds over the groups' sums, with any engine for the messages.

    server = MaskedServer.open(folder, plan, start)
    while not server.is_finished:
        server.run_round(carry)

    def carry(requests, take):                 # an engine: sends every silo a request, hands in the answers
        for answer in answers_of_silos(requests):
            take(answer)                       # returns the silo that signed the answer, or None for a useless answer

If no group gives a sum, the round is repeated as a new attempt. Silos give the shares that unmask a sum once: after a
crash of the server behind the request for shares, the next round begins, and the releases of the lost round stay
charged. Where regional aggregators sum the groups (`by_region`), an aggregator keeps its sum on disk, so the round is
asked for once more before the next round begins.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

import msgspec
import numpy as np

from fulcrum.aggregation.masked_round import MaskedRound
from fulcrum.arrays import FloatArray
from fulcrum.core.messages.model_message import Model
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.preconditions import check_aggregation
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import EngineError, ExchangeError, StorageError
from fulcrum.parsing import json_of
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.regional_round import RegionalRound

ATTEMPT = "attempt.json"
"""The file beside the checkpoint with the last attempt of a round."""

TRIES = 3
"""The number of attempts of a round, if no group gives a sum."""

Take: TypeAlias = Callable[..., str | None]
Carry: TypeAlias = Callable[[Mapping[str, bytes], Take], None]

_logger = logging.getLogger(__name__)


class _Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last attempt of a round; `unmasking` is True once silos were asked for the shares that unmask sums."""

    plan_digest: str
    round_number: int
    attempt: int
    unmasking: bool = False


class _Round(Protocol):
    """An attempt of a round: a `MaskedRound` over groups, or a `RegionalRound` over regional aggregators."""

    @property
    def answers(self) -> Mapping[str, RegionalReply]: ...

    @property
    def unmasks(self) -> bool: ...

    def requests(self) -> dict[str, bytes]: ...

    def take(self, *answer: Any) -> str: ...

    def proceed(self) -> dict[str, bytes]: ...


class MaskedServer:
    """Runs the rounds of a plan whose sums are masked; made by `open`.

    Guarantees:

    - model, checkpoint and resumption are those of `Coordinator`;
    - no two attempts of a round have the same number, also after a crash;
    - a round whose sums may have been unmasked and lost is never repeated.

    Args:
        folder: The folder of the checkpoint and the attempt.
        plan: A plan with masked sums and the keys of the silos.
        coordinator: The coordinator, at the round of the checkpoint.
        single: Types of arrays by name, for arrays that silos train in single or half precision.
        by_region: True if regional aggregators sum the groups: requests are then calls to regions, and `take` takes a
            reply with its sender.
    """

    def __init__(
        self,
        folder: Path,
        plan: VerifiedPlan,
        coordinator: Coordinator,
        single: Mapping[str, np.dtype],
        *,
        by_region: bool = False,
    ) -> None:
        self._folder, self._plan, self._coordinator, self._types = folder, plan, coordinator, dict(single)
        self._by_region = by_region

    @classmethod
    def open(
        cls,
        folder: str | Path,
        plan: VerifiedPlan,
        start: Model,
        *,
        classes: int | None = None,
        learning_rate: float = 1.0,
        by_region: bool = False,
    ) -> Self:
        """Opens the server on a folder: at the round of the checkpoint, or at round 1; see `Coordinator.open`.

        The model is stored in double precision and sent in the precision of `start`. With `by_region` the groups of
        regions are summed by regional aggregators, to which silos seal their answers under outer aggregators.
        """
        check_aggregation(plan, "masked", sealed=by_region)
        coordinator = Coordinator.open(
            folder, plan, start, classes=classes, learning_rate=learning_rate, logical=not by_region
        )
        types = {name: np.asarray(array).dtype for name, array in start.items()}
        return cls(Path(folder), plan, coordinator, types, by_region=by_region)

    @property
    def round_number(self) -> int:
        """The number of the next round to finish; the plan's rounds plus 1 at the end."""
        return self._coordinator.round_number

    @property
    def is_finished(self) -> bool:
        """True after the plan's last round."""
        return self._coordinator.is_finished

    @property
    def history(self) -> tuple[RoundSummary, ...]:
        """The outcomes of all finished rounds."""
        return self._coordinator.history

    @property
    def model(self) -> dict[str, FloatArray]:
        """The global model as silos receive the model: rounded to the precision of training."""
        model = self._coordinator.model
        return {name: array.astype(self._types[name]).astype(np.float64) for name, array in model.items()}

    def run_round(self, carry: Carry, config_digest: str = "") -> RoundSummary:
        """Runs the next round to the end and returns the outcome, which is on disk at the return.

        Args:
            carry: Sends requests to silos and hands in the answers; returns after the last awaited answer.
            config_digest: The digest of the configuration that silos receive beside the model; a repeated round has the
                same digest.

        Raises:
            EngineError: No group gave a sum in any attempt. The round is not over and can be repeated later.
        """
        attempt = self._last_attempt()
        unmasked = attempt is not None and attempt.unmasking
        if unmasked and not self._by_region:
            _logger.warning("round %d: its sums were unmasked and lost, the next round is begun", self.round_number)
            return self._coordinator.finish_round()
        reasons = ""
        for tries_left in reversed(range(TRIES)):
            number = self.round_number
            attempt = _Attempt(
                plan_digest=self._plan.digest,
                round_number=number,
                attempt=1 if attempt is None else attempt.attempt + 1,
                unmasking=unmasked,
            )
            self._note(attempt)
            masked = self._new_round(number, attempt.attempt, config_digest, ends_early=tries_left > 0 and not unmasked)
            attempt = self._drive(masked, carry, attempt)
            if not self._by_region:  # the answers of regions were received as they came
                for name, answer in masked.answers.items():
                    self._coordinator.receive(answer.to_bytes(), name)
            if any(isinstance(answer, RegionalSum) for answer in masked.answers.values()) or attempt.unmasking:
                return self._coordinator.finish_round()
            withheld = {name: answer for name, answer in masked.answers.items() if isinstance(answer, Withheld)}
            reasons = "; ".join(f"{name}: {answer.reason}" for name, answer in withheld.items()) or "None answered"
            _logger.warning("round %d, attempt %d: no group gave a sum. %s", number, attempt.attempt, reasons)
        raise EngineError("server.groups-without-sum", round=self.round_number, reasons=reasons)

    def _new_round(self, number: int, attempt: int, config_digest: str, *, ends_early: bool) -> _Round:
        """Returns a new attempt of a round."""
        if self._by_region:
            return RegionalRound(self._plan, number, attempt, self._coordinator.receive, ends_early=ends_early)
        return MaskedRound(self._plan, number, self.model, attempt, config_digest)

    def _drive(self, masked: _Round, carry: Carry, attempt: _Attempt) -> _Attempt:
        """Drives an attempt through all stages; returns the attempt with the final `unmasking`.

        `unmasking` is on disk before the first silo is asked for shares: after a crash the round is then not repeated.
        """

        def take(*answer: Any) -> str | None:
            try:
                return masked.take(*answer)
            except ExchangeError as error:
                _logger.warning("round %d: an answer is of no use: %s", attempt.round_number, error)
                return None

        requests = masked.requests()
        while requests:
            if masked.unmasks and not attempt.unmasking:
                attempt = msgspec.structs.replace(attempt, unmasking=True)
                self._note(attempt)
            carry(requests, take)
            requests = masked.proceed()
        return attempt

    def _last_attempt(self) -> _Attempt | None:
        """Returns the last attempt of the current round, if any."""
        path = self._folder / ATTEMPT
        try:
            attempt = json_of(path.read_bytes(), _Attempt)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError("server.attempt-unreadable", file=path, reason=str(error)) from None
        same = (attempt.plan_digest, attempt.round_number) == (self._plan.digest, self.round_number)
        return attempt if same else None

    def _note(self, attempt: _Attempt) -> None:
        write_whole(self._folder / ATTEMPT, msgspec.json.encode(attempt))
