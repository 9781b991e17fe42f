"""An aggregator of any tier, for any engine: accepts releases or sums, and sends up its sum or withholds the sum.

A region sends up a single sum in a round: the difference of two sums would reveal the release of a single silo. The
region sums only with the noise that the plan counts on: all silos, or all but `plan.dropouts` silos. Weights are never
renormalised. A message that cannot be verified is refused, and a sum that lacks noise is withheld.

A node of a tier above the regions is an aggregator whose senders are aggregators. Such a node opens the sums that its
children sealed to the node (`fulcrum.aggregation.sum_sealing`), and keeps the same rules: one sum a round, on disk
before the sum leaves; each child's first sum stands; the plan decides about missing children. Such a node tests no
values of a child's sum: the server would see the outcome of the test. A node that reports to the server tests its
total, and withholds a total that no honest sums have (`fulcrum.aggregation.contributions`).

The file of a region is an SQLite file, held and synced like a ledger (`fulcrum.core.store.database` says why, and how
to copy the file): the file opens only together with the journal of its last use. The file holds the releases of a round
until the sum is stored, afterwards the digests alone. Never restore an old copy: an old copy may have forgotten a sum,
and would sum other silos.

No test of a release can tell if the noise is fresh, secret, and really noise. A silo that cheats in this way gives up
its own protection and, within `plan.colluders`, no other silo's. A signal within the size of the silo's own noise goes
unnoticed too. A region's test of norms finds accidents and crude lies: missing noise, noise of another scale, an update
that was not clipped or not weighted.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.aggregation.contributions import Absence, Contribution, Intake, intake_of
from fulcrum.aggregation.model_checks import check_model_layout
from fulcrum.aggregation.presence import Aggregation, aggregation_of, lacking_in_round
from fulcrum.aggregation.region_store import RegionFile
from fulcrum.core.messages.layout import Layout, dtype_of
from fulcrum.core.messages.membership import members_of, step_of
from fulcrum.core.messages.regional_reply import (
    LONGEST_REASON,
    RegionalReply,
    RegionalSum,
    Withheld,
    regional_reply_from_bytes,
)
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_silos_draw_noise
from fulcrum.core.store.database import ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError, StorageError

SUMMED, WITHHELD, GATHERING = "summed", "withheld", "gathering"
"""The statuses of a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRound:
    """The status of a round of a region.

    Attributes:
        round_number: The round, from 1.
        status: `SUMMED`, `WITHHELD` or `GATHERING`.
        members: The silos with a stored release, or children with a stored sum, sorted.
        missing: The further silos or children, sorted.
    """

    round_number: int
    status: str
    members: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningSum:
    """The sum of a round so far; every release or sum in the sum is on disk.

    Attributes:
        round_number: The round.
        silos: By sender in the sum, the silos whose releases came with the sender.
        values: The sum.
    """

    round_number: int
    silos: dict[str, tuple[str, ...]]
    values: np.ndarray[Any, Any]


class Region(ClosedAtTheEnd):
    """An aggregator of any tier with its file; made by `open`. Threads may share a region, processes may not.

    At a region the senders are silos with releases; further out the senders are children with sums.

    Guarantees, on a disk that keeps synced content:

    - a round has a single sum for ever, on disk before the return; a later call returns the same bytes;
    - a sender has a single release or sum in a round: a second, different message is refused, also after a restart;
    - no sum holds less noise than the plan counts on, and every sum is a sum of accepted messages alone.

    An `ExchangeError` refuses a message and changes no state. After a `StorageError` stop, and open the file again.
    """

    def __init__(
        self, file: RegionFile, plan: VerifiedPlan, region: str, aggregation: Aggregation, intake: Intake
    ) -> None:
        self._file, self._plan, self._region = file, plan, region
        self._aggregation, self._intake = aggregation, intake
        self._silos = frozenset(aggregation.tree.silos(region))
        self._step = step_of(plan, region)
        self._running: _RunningSum | None = None

    @classmethod
    def open(cls, path: PathLike, plan: SupportsContent, region: str, key: str | Path, *, create: bool = True) -> Self:
        """Opens the file of a region under a plan.

        Args:
            path: The file; no other process may hold the file.
            plan: A plan with the keys of silos and aggregators; a deployment plan must verify. A region opens no
                release under a plan with masked sums.
            region: The region, or a node of an outer tier.
            key: The node's private X25519 key file.
            create: True makes a missing file; False refuses a missing file, since the sums of the past are lost.
        """
        plan = verified_plan(plan, error=ExchangeError)
        check_silos_draw_noise(plan)
        aggregation = aggregation_of(plan)
        if aggregation.tree.level(region) == 0:
            check_aggregation(plan, "trusted")
        intake = intake_of(plan, aggregation, region, key)
        file = RegionFile.open(path, region=region, plan_digest=plan.digest, create=create)
        return cls(file, plan, region, aggregation, intake)

    def close(self) -> None:
        """Closes the file; a second call has no effect. `close_round` closes a round."""
        self._file.close()

    @property
    def identity(self) -> str:
        """The random number that identifies this region's file."""
        return self._file.identity

    @property
    def members(self) -> frozenset[str]:
        """The silos of the region, or the children of the node, with and without a message."""
        return self._intake.senders

    def expect_layout(self, layout: Layout) -> None:
        """Stores the names and shapes of the server's model; releases with other names or shapes are refused.

        The layout comes from the server and never from a release: otherwise a single silo could have the releases of
        all other silos refused. From the first release on the layout is fixed for the plan, also after a restart.
        """
        check_model_layout(self._plan, layout)
        encoded = msgspec.msgpack.encode(layout)
        with self._file.working():
            if self._layout() == encoded:
                return
            if self._file.rows("SELECT 1 FROM release LIMIT 1"):
                raise ExchangeError("region.model-layout-differs", file=self._file.path)
            self._file.set_layout(encoded)

    def checked_decline(self, data: bytes, round_number: int) -> str:
        """Returns the sender of a signed decline, or of a withheld sum, for a round; neither message is stored."""
        self._check_round(round_number)
        return self._sender_of(self._intake.open_decline(data), round_number)

    def accept(self, sealed: bytes, round_number: int) -> str:
        """Stores a sealed release or sum on disk and returns the sender.

        The message must fit the model of `expect_layout`. The same release or sum again, also under a new seal, is
        accepted without effect until the round is summed. The notice of a child without a sum is not stored.
        """
        self._check_round(round_number)
        contribution = self._intake.open(sealed)
        if isinstance(contribution, Absence):
            return self._sender_of(contribution, round_number)
        silo = contribution.sender
        if contribution.round_number != round_number:
            raise ExchangeError(
                "region.release-other-round", silo=silo, round_number=contribution.round_number, gathered=round_number
            )
        if silo not in self.roster(round_number):
            raise ExchangeError("region.release-off-roster", silo=silo, round_number=round_number)
        self._intake.check(contribution)
        layout = msgspec.msgpack.encode(contribution.layout)
        digest = _digest(layout, contribution.data)
        with self._file.working():
            if self.is_summed(round_number):
                raise ExchangeError("region.release-late", silo=silo, round_number=round_number)
            stored = self._file.rows("SELECT digest FROM release WHERE round = ? AND silo = ?", round_number, silo)
            if stored:
                if stored[0][0] != digest:
                    raise ExchangeError("region.release-replaced", silo=silo, round_number=round_number)
                return silo
            if self._layout() != layout:
                raise ExchangeError("region.release-layout-differs", silo=silo)
            self._file.add_release(round_number, silo, digest, contribution.data)
            self._add(contribution)
        return silo

    def _sender_of(self, absence: Absence, round_number: int) -> str:
        sender, number = absence.sender, absence.round_number
        if number != round_number:
            raise ExchangeError("region.decline-other-round", silo=sender, round_number=number, gathered=round_number)
        return sender

    def present(self, round_number: int) -> set[str]:
        """Returns the silos with a release, or the children with a sum, for a round."""
        self._check_round(round_number)
        with self._file.working():
            return {str(row[0]) for row in self._file.rows("SELECT silo FROM release WHERE round = ?", round_number)}

    def missing(self, round_number: int) -> set[str]:
        """Returns the silos without a release, or the children without a sum, for a round."""
        return set(self.roster(round_number)) - self.present(round_number)

    def is_summed(self, round_number: int) -> bool:
        """Returns True if the sum of a round is stored; a summed round accepts no more releases."""
        self._check_round(round_number)
        with self._file.working():
            statuses = self._file.rows("SELECT status FROM answer WHERE round = ?", round_number)
        return statuses == [(SUMMED,)]

    def close_round(self, round_number: int, *, forget: bool = True) -> RegionalReply:
        """Returns the answer for a round, the sum or a `Withheld`; the answer is on disk before the return.

        A withheld round may be closed again after further releases. The sum of a summed round never changes.

        Args:
            round_number: The round, from 1.
            forget: True erases the releases of summed rounds before the return. With False call `forget` after
                sending the sum.
        """
        self._check_round(round_number)
        with self._file.working():
            stored = self._answer(round_number)
            if isinstance(stored, RegionalSum):
                return stored
            values, present = self._total(round_number, self.present(round_number))
            missing = tuple(sorted(self._silos_of(round_number) - set(present)))
            where: dict[str, Any] = {"plan_digest": self._plan.digest, "region": self._region}
            answer: RegionalReply
            reason = lacking_in_round(self._aggregation, self._region, present, round_number)
            if reason := reason or self._intake.fault_of(values, present, round_number):
                answer = Withheld(**where, round_number=round_number, missing=missing, reason=reason[:LONGEST_REASON])
                status = WITHHELD
            else:
                layout = msgspec.msgpack.decode(self._layout(), type=Layout)
                where |= {"members": tuple(sorted(present)), "layout": layout, "step": self._step}
                answer = RegionalSum(**where, round_number=round_number, values=values)
                status = SUMMED
            if answer != stored:
                data = answer.to_bytes()
                self._file.set_answer(round_number, status, _digest(data), data)
            if forget:
                self.forget()
            return answer

    def forget(self) -> None:
        """Erases the releases of all summed rounds; sums and digests stay."""
        with self._file.working():
            self._file.forget_releases(SUMMED)

    def rounds(self) -> tuple[RegionRound, ...]:
        """Returns the status of every round with a release or an answer."""
        with self._file.working():
            statuses = dict(self._file.rows("SELECT round, status FROM answer"))
            listed = []
            for number in sorted({row[0] for row in self._file.rows("SELECT round FROM release")} | set(statuses)):
                present = self.present(number)
                missing = tuple(sorted(self.roster(number) - present))
                status, members = statuses.get(number, GATHERING), tuple(sorted(present))
                listed.append(RegionRound(round_number=number, status=status, members=members, missing=missing))
        return tuple(listed)

    def roster(self, round_number: int) -> frozenset[str]:
        """Returns the senders of a round; a plan without changing membership has the same in all rounds."""
        if self._plan.federation.rosters is None:
            return self.members
        return frozenset(members_of(self._plan, self._region, round_number))

    def _silos_of(self, round_number: int) -> frozenset[str]:
        """Returns the silos below the node in a round."""
        return self._silos if self._plan.federation.rosters is None else self.roster(round_number)

    def _add(self, contribution: Contribution) -> None:
        """Adds a stored contribution to the running sum; only sums of integers are equal in every order."""
        running, number = self._running, contribution.round_number
        if running is not None and running.round_number == number:
            # Integers wrap around at 64 bits: a wrapped total follows from the true total, and tells nothing more.
            np.add(running.values, contribution.values, out=running.values)
            # Last: after an interrupt before this line, the sum is taken from the file.
            running.silos[contribution.sender] = contribution.silos
        elif self._step is not None:
            silos = {contribution.sender: contribution.silos}
            self._running = _RunningSum(round_number=number, silos=silos, values=contribution.values.copy())

    def _total(self, round_number: int, present: set[str]) -> tuple[np.ndarray[Any, Any], list[str]]:
        """Returns the sum of a round and the silos in the sum.

        The sum is the running sum or, after a restart, the sum of the stored contributions.
        """
        running, self._running = self._running, None
        if running is not None and (running.round_number, set(running.silos)) == (round_number, present):
            return running.values, [silo for silos in running.silos.values() for silo in silos]
        encoded, below = self._layout(), list[str]()
        total = np.zeros((), dtype=dtype_of(self._step))
        for sender in sorted(present):  # in the order of names, so that floating point sums have a single value too
            digest, data = self._file.release_of(round_number, sender)
            if data is None or _digest(encoded, data) != digest:
                raise StorageError("region.release-damaged", file=self._file.path, silo=sender)
            values, silos = self._intake.restore(sender, data)
            total = np.add(total, values, out=total if total.shape else None)
            below += silos
        return total, below

    def _layout(self) -> Any:
        """Returns the encoded names and shapes of the model; None before the first model."""
        return self._file.rows("SELECT layout FROM region")[0][0]

    def _answer(self, round_number: int) -> RegionalReply | None:
        stored = self._file.answer_of(round_number)
        if stored is None:
            return None
        digest, data = stored
        if data is None or _digest(data) != digest:
            raise StorageError("region.answer-damaged", file=self._file.path, round_number=round_number)
        return regional_reply_from_bytes(data)

    def _check_round(self, round_number: int) -> None:
        if type(round_number) is not int or not 1 <= round_number <= self._plan.rounds:
            raise ExchangeError("region.round-range", rounds=self._plan.rounds, round_number=round_number)


def _digest(*parts: Any) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()
