"""What the server does: keeps the global model and moves it, round by round, by what the regions send up.

>>> import tempfile
>>> import numpy as np
>>> from fulcrum.planning.planner import plan
>>> folder = tempfile.TemporaryDirectory()
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> server = Coordinator.open(folder.name, made, {"head": np.zeros((2, 3))})
>>> server.round_number, server.model_digest[:8], server.complete
(1, '34edabe0', False)
>>> server.finish_round()["missing"]
['region-1', 'region-2', 'region-3', 'region-4']
>>> Coordinator.open(folder.name, made, {"head": np.zeros((2, 3))}).round_number
2
>>> folder.cleanup()

How it moves is the plan's to say: by the rule of `fulcrum.rules` that the plan names.

The answers of a round that is not finished are in memory alone: after a restart regions send them again, byte for byte.
Answers are not signed: the engine says who sent one, since it knows whose connection it came over.
"""

import math
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from fulcrum.aggregation.norm_tests import largest_sum
from fulcrum.aggregation.presence import aggregation_of
from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.messages.layout import in_units
from fulcrum.core.messages.membership import members_of, senders_of, step_of
from fulcrum.core.messages.model_message import Model, checked_model, model_digest
from fulcrum.core.messages.regional_reply import Answer, RegionalSum, Withheld, answer_from_bytes
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified
from fulcrum.core.silo.preconditions import check_one_tier
from fulcrum.errors import ExchangeError, StorageError
from fulcrum.planning.server_settings import FactsOfPlan, server_rule_of
from fulcrum.rules.server_rule import RoundSums, ServerRule
from fulcrum.server.checkpoint import NAME, Checkpoint, RoundSummary, Standing, read_checkpoint
from fulcrum.server.sum_archive import keep_sums


class Coordinator:
    """The server's side of a federation; made by `open`. Threads may share it.

    Guarantees:

    - the model is what the plan's rule makes of start and sums, and nothing else; by the rule "sum" it is the start
      plus the regions' sums, added in the order of their names. The same sums in the same rounds give the same bits,
      however often the server was restarted between them;
    - where the plan's epsilon for the global sum counts on every region's noise, a round adds all sums or none;
    - what `finish_round` returns is on disk, so a restart goes on from there;
    - an answer is used in its own round, once; what does not fit plan, round and model is refused.
    """

    def __init__(self, folder: Path, plan: VerifiedPlan, rule: ServerRule, checkpoint: Checkpoint) -> None:
        self._folder, self._plan, self._rule, self._checkpoint = folder, plan, rule, checkpoint
        self._aggregation = aggregation_of(plan)
        self._answers: dict[str, tuple[bytes, Answer]] = {}
        self._lock = threading.RLock()
        self._spare: dict[str, FloatArray] = {}

    @classmethod
    def open(cls, folder: str | Path, plan: SupportsContent, start: Model, *, classes: int | None = None) -> Self:
        """Opens a coordinator on a folder: where it stopped, or at round 1 where nothing is there yet.

        Args:
            folder: Holds the checkpoint; one server at a time. It is made if it is not there.
            plan: Of one tier; a deployment plan must verify. A checkpoint of another plan is refused.
            start: The model before round 1. Where there is a checkpoint its names and shapes alone count.
            classes: Where the model is a softmax head, the last axis of all its arrays; None for any other model. The
                server's rule knows by it what such a head ignores.
        """
        plan = verified(plan, error=ExchangeError)  # as silos and regions do: the server must not run what they refuse
        check_one_tier(plan)
        rule, place = server_rule_of(plan), Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError("server.folder-unusable", folder=folder, reason=error.strerror) from None
        layout, flat = checked_model(plan, start)
        if classes is not None and any(shape[-1:] != (classes,) for shape in layout.shapes):
            raise ExchangeError("server.model-not-head", shapes=layout.shapes, classes=classes)
        if not os.path.lexists(place / NAME):  # a link that leads nowhere is a checkpoint that is lost, not none
            standing = Standing(plan_digest=plan.digest, round_number=1, layout=layout, history=[])
            if not rule.adds_up:
                standing = msgspec.structs.replace(standing, pooling={"classes": classes})
            # Written before the first round: silos that release on this model release on no other in that round.
            Checkpoint(standing=standing, state=rule.begin(flat)).write(place)
        resumed = cls.read(place, plan)
        if resumed._standing.layout != layout:
            raise ExchangeError("checkpoint.model-differs", file=place / NAME)
        if not rule.adds_up and resumed._standing.classes != classes:
            raise ExchangeError(
                "checkpoint.classes-differ",
                file=place / NAME,
                stored=resumed._standing.classes or "no",
                declared=classes or "none",
            )
        # As large as the sums of all regions: it takes turns with the arrays of the state, and no round asks for more.
        resumed._spare = {name: np.full_like(resumed._checkpoint.state.arrays[name], 0.0) for name in rule.reused}
        return resumed

    @classmethod
    def read(cls, folder: str | Path, plan: SupportsContent) -> Self:
        """Returns a coordinator where its checkpoint has it; one of another plan, or none, is refused."""
        place, plan = Path(folder), verified(plan, error=ExchangeError)
        return cls(place, plan, server_rule_of(plan), read_checkpoint(place, plan))

    @property
    def _standing(self) -> Standing:
        return self._checkpoint.standing

    @property
    def round_number(self) -> int:
        """The next round to finish; one past the plan's last when all are."""
        return self._standing.round_number

    @property
    def is_finished(self) -> bool:
        """Whether the plan's last round is over."""
        return self.round_number > self._plan.rounds

    @property
    def model(self) -> dict[str, FloatArray]:
        """The global model, read-only arrays by name."""
        with self._lock:
            return self._standing.layout.arrays(self._checkpoint.state.model)

    @property
    def model_digest(self) -> str:
        """The digest of the global model; see `model_digest`."""
        return model_digest(self.model)

    @property
    def history(self) -> tuple[RoundSummary, ...]:
        """What became of every round that is over."""
        return tuple(self._standing.history)

    @property
    def answers(self) -> dict[str, Answer]:
        """What regions have answered in this round so far, by name."""
        with self._lock:
            return {region: self._answers[region][1] for region in sorted(self._answers)}

    @property
    def complete(self) -> bool:
        """Whether every region has answered in this round."""
        with self._lock:
            return len(self._answers) == len(senders_of(self._plan))

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
                raise ExchangeError("server.sender-differs", sender=sender, region=received.region)
            self._check(received)
            known = self._answers.get(received.region)
            if known is not None and isinstance(known[1], RegionalSum) and known[0] != answer:
                raise ExchangeError("server.sum-replaced", region=received.region, round=self.round_number)
            self._answers[received.region] = (bytes(answer), received)

    def finish_round(self) -> RoundSummary:
        """Moves the model by the sums of this round and goes on to the next; on disk when it returns.

        Regions that withheld their sum, or did not answer, contribute nothing. Where sums are added up, nothing is
        rescaled; "random-effects" takes a region that it hears in some rounds alone for what it says in these.
        Where the plan counts on the noise of every region and one contributes nothing, then none does
        (`Aggregation.usable`).
        """
        with self._lock:
            self._check_open()
            answers = self.answers
            sums = {region: answer for region, answer in answers.items() if isinstance(answer, RegionalSum)}
            withheld = {region: answer.reason for region, answer in answers.items() if isinstance(answer, Withheld)}
            complete = self._aggregation.usable(sums)
            unused = "the plan's epsilon for the global sum counts on the noise of every region"
            withheld |= {region: unused for region in sums if region not in complete}
            sums = {region: answer for region, answer in sums.items() if region in complete}
            summary = RoundSummary(
                round=self.round_number,
                summed=list(sums),
                members={region: list(answer.members) for region, answer in sums.items()},
                withheld=withheld,
                missing=sorted(set(senders_of(self._plan)) - set(answers)),
            )
            before = self._checkpoint.state
            state, diagnostics = self._rule.step(before, self._sums(sums))
            if not state.finite:
                raise ExchangeError("server.model-overflow", round=self.round_number)
            if diagnostics is not None:
                summary["diagnostics"] = diagnostics
            standing = msgspec.structs.replace(
                self._standing, round_number=self.round_number + 1, history=[*self._standing.history, summary]
            )
            keep_sums(self._folder, sums)
            after = Checkpoint(standing=standing, state=replace(state, model=read_only(state.model)))
            after.write(self._folder)
            self._checkpoint, self._answers = after, {}
            for name in self._rule.reused:  # a round without sums may leave an array where it is
                if not np.may_share_memory(state.arrays[name], before.arrays[name]):
                    self._spare[name] = before.arrays[name]
            return summary

    def _sums(self, sums: Mapping[str, RegionalSum]) -> RoundSums:
        """Returns the sums of a round as the rule reads them.

        A sum that silos are missing from has less weight and less noise: both are those of the silos that are in it.
        """
        plan, regions, parameters = self._plan, senders_of(self._plan), self._standing.layout.parameters
        present, classes = np.array([region in sums for region in regions]), self._standing.classes
        if not self._rule.reads_regions:
            values = [_added_up(sums, parameters)]
            return RoundSums(values=values, present=present, classes=classes, spare=self._spare)
        facts = FactsOfPlan(plan=plan)
        weight, variance = facts.weight.copy(), facts.variance.copy()
        for place, region in enumerate(regions):
            members = members_of(plan, region)
            if region in sums and len(sums[region].members) < len(members):
                there = [members[silo] for silo in sums[region].members]
                weight[place] = math.fsum(plan.weights[there].tolist())
                variance[place] = math.fsum(plan.noise_variance[there].tolist()) * plan.clip_norm**2
        nothing = np.broadcast_to(0.0, parameters)
        return RoundSums(
            values=[sums[region].values if region in sums else nothing for region in regions],
            present=present,
            weight=weight,
            variance=variance,
            unit=next((answer.step for answer in sums.values() if answer.step is not None), 1.0),  # one lattice for all
            classes=classes,
            spare=self._spare,
        )

    def _check_open(self) -> None:
        if self.is_finished:
            raise ExchangeError("server.plan-finished", rounds=self._plan.rounds)

    def _check(self, answer: Answer) -> None:
        """Refuses what is not an answer to this round's question."""
        plan, region = self._plan, answer.region
        if answer.plan_digest != plan.digest:
            raise ExchangeError("server.answer-other-plan")
        members = members_of(plan, region)
        if answer.round_number != self.round_number:
            raise ExchangeError(
                "server.answer-other-round", region=region, round=answer.round_number, expected=self.round_number
            )
        named = answer.members if isinstance(answer, RegionalSum) else answer.missing
        if not set(named) <= set(members):
            raise ExchangeError("server.silos-foreign", region=region)
        if isinstance(answer, RegionalSum):
            if answer.step != step_of(plan, region):
                raise ExchangeError("server.sum-off-lattice", region=region)
            if answer.layout != self._standing.layout:
                raise ExchangeError("server.sum-shape", region=region)
            if reason := self._aggregation.lacking(region, named):  # an honest region withholds it
                raise ExchangeError("server.sum-lacks-noise", region=region, reason=reason)
            with np.errstate(over="ignore"):
                size = float(np.linalg.norm(answer.values.astype(np.float64)))
            if not size <= largest_sum(plan, [members[silo] for silo in named], len(answer.values)):
                raise ExchangeError("server.sum-norm", region=region)


def _added_up(sums: Mapping[str, RegionalSum], parameters: int) -> FloatArray:
    """Returns the sums of the regions added up, in the order of their names."""
    # Integers times a power of two: exact, in whatever order, while the sum has no more than 53 bits.
    total = np.zeros(parameters)
    for answer in sums.values():
        total += in_units(answer.values, answer.step)
    return total
