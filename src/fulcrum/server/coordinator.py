"""The coordinator of the server: holds the global model and moves the model, round by round, by the regions' sums.

>>> import tempfile
>>> import numpy as np
>>> from fulcrum.planning.planner import plan
>>> folder = tempfile.TemporaryDirectory()
>>> example = plan("isic-paper", rounds=2, epsilon=1.0)
>>> server = Coordinator.open(folder.name, example, {"head": np.zeros((2, 3))})
>>> server.round_number, server.model_digest[:8], server.complete
(1, '34edabe0', False)
>>> server.finish_round()["missing"]
['region-1', 'region-2', 'region-3', 'region-4']
>>> Coordinator.open(folder.name, example, {"head": np.zeros((2, 3))}).round_number
2
>>> folder.cleanup()

The plan names the rule of `fulcrum.rules` that moves the model.

The senders of sums are the nodes of the plan's outermost tier (`fulcrum.core.messages.aggregation_tree`): the regions
of a plan with one tier. The coordinator then reads no sum of a tier further in.

The answers of an unfinished round are in memory alone: after a restart regions send the same bytes again. Answers are
not signed: the engine names the sender of an answer, known from the certificate of the connection.
"""

import math
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.aggregation.model_checks import checked_model
from fulcrum.aggregation.norm_tests import largest_sum, least_sum
from fulcrum.aggregation.presence import aggregation_of, lacking_in_round
from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.messages.layout import in_units
from fulcrum.core.messages.membership import step_of
from fulcrum.core.messages.model_message import Model, model_digest
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.errors import ExchangeError, StorageError, suggestion
from fulcrum.planning.inputs.server_settings import FactsOfPlan, server_rule_of
from fulcrum.rules.server_rule import RoundDiagnostics, RoundSums, ServerRule, ServerState
from fulcrum.server.checkpoint import NAME, Checkpoint, RoundSummary, Standing, read_checkpoint
from fulcrum.server.sum_archive import keep_sums

_RENAMED = {"finished": "is_finished", "basis": "model_digest"}


class Coordinator:
    """The server's side of a federation, made by `open`. Threads may share a coordinator.

    Guarantees:

    - the model is a function of the plan's rule, the start and the sums alone; under the rule "sum" the model is the
      start plus the regions' sums, added in the order of names. The same sums in the same rounds give the same bits,
      with any number of restarts in between;
    - if the plan's epsilon for the global sum counts on every region's noise, a round adds all sums or no sum;
    - the outcome that `finish_round` returns is on disk, and a restart goes on from the outcome;
    - an answer is used in the answer's own round, once; an answer that does not fit plan, round and model is refused.
    """

    def __init__(
        self, folder: Path, plan: VerifiedPlan, rule: ServerRule, checkpoint: Checkpoint, *, logical: bool = False
    ) -> None:
        self._folder, self._plan, self._rule, self._checkpoint = folder, plan, rule, checkpoint
        self._rate = 1.0
        self._aggregation = aggregation_of(plan, logical=logical)
        self._senders = self._aggregation.tree.reporting
        self._answers: dict[str, tuple[bytes, RegionalReply]] = {}
        self._lock = threading.RLock()
        self._spare: dict[str, FloatArray] = {}

    @classmethod
    def open(
        cls,
        folder: str | Path,
        plan: SupportsContent,
        start: Model,
        *,
        classes: int | None = None,
        learning_rate: float = 1.0,
        logical: bool = False,
    ) -> Self:
        """Opens a coordinator on a folder: at the round of the checkpoint, or at round 1 without a checkpoint.

        Args:
            folder: The folder of the checkpoint, for a single server at a time; made if necessary.
            plan: A plan; a deployment plan must verify. A checkpoint of a different plan is refused.
            start: The model before round 1. With a checkpoint, names and shapes alone count.
            classes: The number of classes of a softmax head, the last axis of all arrays; None for any further model.
                The server's rule projects out the shift that a softmax head ignores.
            learning_rate: For a plan that protects persons, the factor of the mean gradient in the model's
                displacement. A rate before the clip would change the noise over the signal.
            logical: True for an engine without aggregators: the sums come from masked regions, whatever the tiers
                further out. A plan with a target on an outer tier is refused.
        """
        # Silos and regions verify too: a server must not run a plan that they would refuse.
        plan = verified_plan(plan, error=ExchangeError)
        check_silos_draw_noise(plan)
        if logical:
            check_aggregation(plan, "masked")
        rule, place = server_rule_of(plan), Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError("server.folder-unusable", folder=folder, reason=error.strerror) from None
        layout, flat = checked_model(plan, start)
        if classes is not None and any(shape[-1:] != (classes,) for shape in layout.shapes):
            raise ExchangeError("server.model-not-head", shapes=layout.shapes, classes=classes)
        rule.check_model(layout.shapes, classes)
        if not os.path.lexists(place / NAME):  # a dangling link is a lost checkpoint: do not start anew
            standing = Standing(plan_digest=plan.digest, round_number=1, layout=layout, history=[])
            if not rule.adds_up:
                standing = msgspec.structs.replace(standing, pooling={"classes": classes})
            # Written before the first round: a server that restarts with a different start must not ask silos for
            # releases on a second model in round 1.
            Checkpoint(standing=standing, state=rule.begin(flat)).write(place)
        resumed = cls(place, plan, rule, read_checkpoint(place, plan, logical=logical), logical=logical)
        resumed._rate = learning_rate if plan.unit.is_within_silo else 1.0
        if resumed._standing.layout != layout:
            raise ExchangeError("checkpoint.model-differs", file=place / NAME)
        if not rule.adds_up and resumed._standing.classes != classes:
            raise ExchangeError(
                "checkpoint.classes-differ",
                file=place / NAME,
                stored=resumed._standing.classes or "no",
                declared=classes or "none",
            )
        # As large as the sums of all regions: spare memory and state arrays take turns, and no round allocates more.
        resumed._spare = {name: np.full_like(resumed._checkpoint.state.arrays[name], 0.0) for name in rule.reused}
        return resumed

    @classmethod
    def read(cls, folder: str | Path, plan: SupportsContent, *, logical: bool = False) -> Self:
        """Returns a coordinator at the round of the checkpoint; refuses a folder without a checkpoint of the plan.

        Args:
            folder: The folder of the checkpoint.
            plan: The plan of the checkpoint.
            logical: True for the folder of an engine without aggregators, as in `open`.
        """
        place, plan = Path(folder), verified_plan(plan, error=ExchangeError)
        checkpoint = read_checkpoint(place, plan, logical=logical)
        return cls(place, plan, server_rule_of(plan), checkpoint, logical=logical)

    def __getattr__(self, name: str) -> Any:
        """Returns a property under an earlier name, with a warning: engines outside of Fulcrum use a coordinator."""
        if name not in _RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        message = f"Coordinator.{name} goes with version 0.3. Use {_RENAMED[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, _RENAMED[name])

    @property
    def _standing(self) -> Standing:
        return self._checkpoint.standing

    @property
    def round_number(self) -> int:
        """The number of the next round to finish; the plan's rounds plus 1 at the end."""
        return self._standing.round_number

    @property
    def is_finished(self) -> bool:
        """True after the plan's last round."""
        return self.round_number > self._plan.rounds

    @property
    def model(self) -> dict[str, FloatArray]:
        """The global model as read-only arrays by name."""
        with self._lock:
            return self._standing.layout.arrays(self._checkpoint.state.model)

    @property
    def model_digest(self) -> str:
        """The digest of the global model, by the function `model_digest`."""
        return model_digest(self.model)

    @property
    def history(self) -> tuple[RoundSummary, ...]:
        """The outcomes of all finished rounds."""
        return tuple(self._standing.history)

    @property
    def answers(self) -> dict[str, RegionalReply]:
        """The answers in the current round so far, by region."""
        with self._lock:
            return {region: self._answers[region][1] for region in sorted(self._answers)}

    @property
    def complete(self) -> bool:
        """True if every region has answered in the current round."""
        with self._lock:
            return len(self._answers) == len(self._senders)

    def receive(self, answer: bytes, sender: str) -> None:
        """Takes in a region's answer for the current round; the same bytes again change nothing.

        A received sum cannot be replaced: an honest region sends the same bytes again. A notice that a sum is withheld
        can be replaced: a region may sum later in the round.

        Args:
            answer: The bytes of the answer.
            sender: The region of the connection's certificate, from the engine; never the name in the bytes.
        """
        with self._lock:
            self._check_open()
            received = regional_reply_from_bytes(answer)
            if received.region != sender:
                raise ExchangeError("server.sender-differs", sender=sender, region=received.region)
            self._check(received)
            before = self._answers.get(received.region)
            if before is not None and isinstance(before[1], RegionalSum) and before[0] != answer:
                raise ExchangeError("server.sum-replaced", region=received.region, round=self.round_number)
            self._answers[received.region] = (bytes(answer), received)

    def finish_round(self) -> RoundSummary:
        """Moves the model by the sums of the current round, goes on to the next round, and returns the outcome.

        The outcome is on disk at the return. Regions with a withheld sum, or without an answer, contribute nothing.
        Under the rule "sum" no sum is rescaled for an absent region; "random-effects" lets a region's sums of some
        rounds stand for the missing rounds. If the plan counts on the noise of every region and a region contributes
        nothing, no region contributes (`Aggregation.usable`).
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
                missing=sorted(set(self._senders) - set(answers)),
            )
            before = self._checkpoint.state
            state, diagnostics = self._step(before, sums)
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
            for name in self._rule.reused:  # a round without sums may return the same array
                if not np.may_share_memory(state.arrays[name], before.arrays[name]):
                    self._spare[name] = before.arrays[name]
            return summary

    def _step(
        self, before: ServerState, sums: Mapping[str, RegionalSum]
    ) -> tuple[ServerState, RoundDiagnostics | None]:
        """Returns the state after the rule's step, with the displacement of the model times the learning rate.

        A rule knows noise and clip norm in the unit of the sums. So the rule moves the model divided by the rate.
        """
        if self._rate == 1:
            return self._rule.step(before, self._sums(sums))
        scaled = replace(before, model=before.model / self._rate)
        state, diagnostics = self._rule.step(scaled, self._sums(sums))
        return replace(state, model=state.model * self._rate), diagnostics

    def _sums(self, sums: Mapping[str, RegionalSum]) -> RoundSums:
        """Returns the sums of a round as input of the rule.

        A sum without some silos has less weight and less noise: the weight and noise of the silos in the sum.
        """
        plan, regions, parameters = self._plan, self._senders, self._standing.layout.parameters
        present, classes = np.array([region in sums for region in regions]), self._standing.classes
        if not self._rule.reads_regions:
            values = [_added_up(sums, parameters)]
            return RoundSums(values=values, present=present, classes=classes, spare=self._spare)
        facts = FactsOfPlan(plan=plan)
        weight, variance = facts.weight.copy(), facts.variance.copy()
        for place, region in enumerate(regions):
            members = self._aggregation.tree.silos(region)
            if region in sums and len(sums[region].members) < len(members):
                rows = [members[silo] for silo in sums[region].members]
                weight[place] = math.fsum(plan.federation.shares[rows].tolist())
                variance[place] = math.fsum(plan.noise_variance[rows].tolist()) * plan.clip_norm**2
        zeros = np.broadcast_to(0.0, parameters)
        return RoundSums(
            values=[sums[region].values if region in sums else zeros for region in regions],
            present=present,
            weight=weight,
            variance=variance,
            unit=next(
                (answer.step for answer in sums.values() if answer.step is not None), 1.0
            ),  # all regions share a lattice
            classes=classes,
            spare=self._spare,
        )

    def _check_open(self) -> None:
        if self.is_finished:
            raise ExchangeError("server.plan-finished", rounds=self._plan.rounds)

    def _check(self, answer: RegionalReply) -> None:
        """Refuses an answer that does not fit the plan, the current round or the model."""
        plan, region = self._plan, answer.region
        if answer.plan_digest != plan.digest:
            raise ExchangeError("server.answer-other-plan")
        if region not in self._senders:
            raise ExchangeError("plan.region-unknown", region=region, suggestion=suggestion(region, self._senders))
        members = self._aggregation.tree.silos(region)
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
            if reason := lacking_in_round(
                self._aggregation, region, named, self.round_number
            ):  # an honest region withholds such a sum
                raise ExchangeError("server.sum-lacks-noise", region=region, reason=reason)
            with np.errstate(over="ignore"):
                size = float(np.linalg.norm(answer.values.astype(np.float64)))
            rows, parameters = [members[silo] for silo in named], len(answer.values)
            # A node that passes on one child's sum under all names has less noise than the plan counts on.
            if size < least_sum(plan, rows, parameters, self.round_number):
                raise ExchangeError("server.sum-norm", region=region, side="below the noise of its releases")
            if not size <= largest_sum(plan, rows, parameters):
                raise ExchangeError("server.sum-norm", region=region, side="above the largest sum of releases")


def _added_up(sums: Mapping[str, RegionalSum], parameters: int) -> FloatArray:
    """Returns the sum of the regions' sums, in the order of names."""
    # Integers times a power of two: exact in every order, while the sum has at most 53 bits.
    total = np.zeros(parameters)
    for answer in sums.values():
        total += in_units(answer.values, answer.step)
    return total
