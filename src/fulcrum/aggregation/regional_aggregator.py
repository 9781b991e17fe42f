"""What a regional aggregator does, whatever engine carries it: takes in sealed releases, sends up sums, or withholds.

A region sends up one sum a round and never another. It sums only where the noise present is what the plan counts on:
all its silos, or all but `plan.dropouts` of them. Weights are never renormalised. Whatever cannot be verified is
refused, and a sum that lacks noise is withheld.

The file of a region is an SQLite file held and synced as a ledger is (`fulcrum.core.store.database` says why, and how
to copy it): it opens with the journal that it was left with or not at all. The releases of a round are in it until
their sum is, then their digests alone. Never restore an old copy: one that has forgotten a sum may take another, of
other silos.

What no test of a release can tell: whether its noise was drawn for it alone, is known to somebody, or was left out
and replaced by something of the same size. A silo that cheats so gives up its own protection, and as one of
`plan.colluders` that of nobody else; a signal that hides in the noise of its own release is not noticed either. The
test of norms finds accidents and crude lies: noise left out or of another scale, an update not clipped or not weighted.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.aggregation.norm_tests import norm_bounds
from fulcrum.aggregation.presence import aggregation_of
from fulcrum.aggregation.region_store import RegionFile
from fulcrum.aggregation.release_opening import Opener
from fulcrum.core.messages.layout import Layout, dtype_of
from fulcrum.core.messages.membership import members_of, step_of
from fulcrum.core.messages.model_message import check_model_layout
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_one_tier
from fulcrum.core.store.database import MOST_BYTES, ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError, StorageError

SUMMED, WITHHELD, GATHERING = "summed", "withheld", "gathering"
"""The statuses of a round."""

_LARGEST = 2**53  # a coordinate: what a double still holds exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRound:
    """The status of a round of a region.

    Attributes:
        round_number: From 1.
        status: `SUMMED`, `WITHHELD` or `GATHERING`.
        members: The silos whose releases are there, sorted.
        missing: The others, sorted.
    """

    round_number: int
    status: str
    members: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningSum:
    """The releases of a round added up as they came, each on disk by then.

    Attributes:
        round_number: Which round.
        members: Whose releases are in it.
        values: Their sum.
    """

    round_number: int
    members: set[str]
    values: np.ndarray[Any, Any]


class Region(ClosedAtTheEnd):
    """A regional aggregator's memory; made by `open`. Threads may share it, processes may not.

    Guarantees, on a disk that keeps what it says it has synced:

    - a round has one sum for ever, on disk before it is returned; asked again, it comes back byte for byte;
    - a silo has one release in a round: another one is refused, after a restart as well;
    - no sum holds less noise than the plan counts on, and none holds anything but releases that were accepted.

    Refusals are `ExchangeError` and change nothing. `StorageError` is trouble with the file: stop, and open it again.
    """

    def __init__(self, file: RegionFile, plan: VerifiedPlan, region: str, opener: Opener) -> None:
        self._file, self._plan, self._region, self._opener = file, plan, region, opener
        self._members, self._aggregation = members_of(plan, region), aggregation_of(plan)
        self._step = step_of(plan, region)
        self._running: _RunningSum | None = None

    @classmethod
    def open(cls, path: PathLike, plan: SupportsContent, region: str, key: str | Path, *, create: bool = True) -> Self:
        """Opens the file of a region under a plan.

        Args:
            path: The file; no other process may hold it.
            plan: Of one tier, with the keys of its silos and regions; a deployment plan must verify.
            region: Which of the plan's regions this is.
            key: Its private X25519 key file.
            create: Whether a file that is not there is made anew; otherwise it is refused, as its sums are lost.
        """
        plan = verified_plan(plan, error=ExchangeError)
        check_one_tier(plan)
        check_aggregation(plan, "trusted")
        opener = Opener(plan, region, key)
        file = RegionFile.bound(path, region=region, plan_digest=plan.digest, create=create)
        return cls(file, plan, region, opener)

    def close(self) -> None:
        """Lets the file go; closing it again does nothing. `close_round` closes a round."""
        self._file.close()

    @property
    def identity(self) -> str:
        """The random number that tells this region's file from every other."""
        return self._file.identity

    @property
    def members(self) -> frozenset[str]:
        """The silos of the region, whether their releases are there or not."""
        return frozenset(self._members)

    def expect_layout(self, layout: Layout) -> None:
        """Takes the names and shapes of the model that the server sent: releases of any other are refused.

        What silos send decides nothing here, or one of them could have the releases of all others refused. They stay
        as they are for the plan, after a restart as well, from the first release on.
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
        """Returns which silo declines a round, as its signature proves; nothing is stored."""
        self._check_round(round_number)
        silo, number = self._opener.open_decline(data)
        if number != round_number:
            raise ExchangeError("region.decline-other-round", silo=silo, round_number=number, gathered=round_number)
        return silo

    def accept(self, sealed: bytes, round_number: int) -> str:
        """Takes in a sealed release and returns whose it is; it is on disk then.

        What model it must fit is said before, with `expect_layout`.
        The same release again, sealed anew or not, is accepted and changes nothing while its round is gathered.
        """
        self._check_round(round_number)
        release = self._opener.open(sealed)
        silo = release.silo
        if release.round_number != round_number:
            raise ExchangeError(
                "region.release-other-round", silo=silo, round_number=release.round_number, gathered=round_number
            )
        self._check_release(release)
        layout = msgspec.msgpack.encode(release.layout)
        digest = _digest(layout, release.values)
        with self._file.working():
            if self.summed(round_number):
                raise ExchangeError("region.release-late", silo=silo, round_number=round_number)
            known = self._file.rows("SELECT digest FROM release WHERE round = ? AND silo = ?", round_number, silo)
            if known:
                if known[0][0] != digest:
                    raise ExchangeError("region.release-replaced", silo=silo, round_number=round_number)
                return silo
            if self._layout() != layout:
                raise ExchangeError("region.release-layout-differs", silo=silo)
            self._file.add_release(round_number, silo, digest, release.values.data.cast("B"))
            self._add(release)
        return silo

    def present(self, round_number: int) -> set[str]:
        """Returns the silos whose releases for a round are there."""
        self._check_round(round_number)
        with self._file.working():
            return {str(row[0]) for row in self._file.rows("SELECT silo FROM release WHERE round = ?", round_number)}

    def missing(self, round_number: int) -> set[str]:
        """Returns the silos whose releases for a round are not there."""
        return set(self._members) - self.present(round_number)

    def summed(self, round_number: int) -> bool:
        """Returns whether the sum of a round is stored; such a round takes no more releases."""
        self._check_round(round_number)
        with self._file.working():
            found = self._file.rows("SELECT status FROM answer WHERE round = ?", round_number)
        return found == [(SUMMED,)]

    def close_round(self, round_number: int, *, forget: bool = True) -> RegionalReply:
        """Returns what goes up for a round: its sum if it may be taken, else that it is withheld; on disk either way.

        A round that was withheld may be closed again once more releases are there. One that is summed never changes.

        Args:
            round_number: From 1.
            forget: Whether to erase its releases before returning. Where not, call `forget` once the sum is sent.
        """
        self._check_round(round_number)
        with self._file.working():
            kept = self._answer(round_number)
            if isinstance(kept, RegionalSum):
                return kept
            present = self.present(round_number)
            missing = tuple(sorted(set(self._members) - present))
            where: dict[str, Any] = {"plan_digest": self._plan.digest, "region": self._region}
            answer: RegionalReply
            if reason := self._aggregation.lacking(self._region, present):
                answer = Withheld(**where, round_number=round_number, missing=missing, reason=reason)
                status = WITHHELD
            else:
                values = self._total(round_number, present)
                layout, members = msgspec.msgpack.decode(self._layout(), type=Layout), tuple(sorted(present))
                where |= {"members": members, "layout": layout, "step": self._step}
                answer = RegionalSum(**where, round_number=round_number, values=values)
                status = SUMMED
            if answer != kept:
                data = answer.to_bytes()
                self._file.set_answer(round_number, status, _digest(data), data)
            if forget:
                self.forget()
            return answer

    def forget(self) -> None:
        """Erases the releases of every round that is summed; sums and digests stay."""
        with self._file.working():
            self._file.forget_releases(SUMMED)

    def rounds(self) -> tuple[RegionRound, ...]:
        """Returns the status of every round that has a release or an answer."""
        with self._file.working():
            statuses = dict(self._file.rows("SELECT round, status FROM answer"))
            listed = []
            for number in sorted({row[0] for row in self._file.rows("SELECT round FROM release")} | set(statuses)):
                present = self.present(number)
                missing = tuple(sorted(set(self._members) - present))
                status, members = statuses.get(number, GATHERING), tuple(sorted(present))
                listed.append(RegionRound(round_number=number, status=status, members=members, missing=missing))
        return tuple(listed)

    def _add(self, release: Release) -> None:
        """Adds a release that is on disk to the sum of its round; integers alone have one sum in whatever order."""
        running, number = self._running, release.round_number
        if running is not None and running.round_number == number:
            np.add(running.values, release.values, out=running.values)
            running.members.add(release.silo)  # last: where an interrupt keeps it out, the sum is taken from the file
        elif self._step is not None:
            self._running = _RunningSum(round_number=number, members={release.silo}, values=release.values.copy())

    def _total(self, round_number: int, present: set[str]) -> np.ndarray[Any, Any]:
        """Returns the sum of a round's releases: as it was added up here, or from the file after a restart."""
        running, self._running = self._running, None
        if running is not None and (running.round_number, running.members) == (round_number, present):
            return running.values
        encoded = self._layout()
        total = np.zeros((), dtype=dtype_of(self._step))
        for silo in sorted(present):  # the order of names: it has one value in research too
            digest, data = self._file.release_of(round_number, silo)
            if data is None or _digest(encoded, data) != digest:
                raise StorageError("region.release-damaged", file=self._file.path, silo=silo)
            values = np.frombuffer(data, dtype=total.dtype)
            total = np.add(total, values, out=total if total.shape else None)
        return total

    def _layout(self) -> Any:
        """The model's names and shapes, encoded; None before any model was sent."""
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

    def _check_release(self, release: Release) -> None:
        """Refuses what no honest silo releases, as far as that can be told from one release."""
        plan, silo, values = self._plan, release.silo, release.values
        if len(values) != (plan.parameters or len(values)) or not len(values):
            raise ExchangeError(
                "region.release-parameters", silo=silo, parameters=len(values), expected=plan.parameters
            )
        if values.nbytes > MOST_BYTES:
            raise ExchangeError("region.release-too-long", silo=silo, bytes=values.nbytes, most=MOST_BYTES)
        # However many members there are, their sum stays within 64 bits.
        most = min(_LARGEST, (2**63 - 1) // len(self._members))
        if not np.isfinite(values).all() or (
            self._step is not None and not -most < values.min() <= values.max() < most
        ):
            raise ExchangeError("region.release-not-finite", silo=silo)
        low, high = norm_bounds(plan, self._members[silo], len(values))
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(values.astype(np.float64)))
        if not low <= size <= high:
            side = "below" if size < low else "above"
            raise ExchangeError("region.release-norm", silo=silo, side=side)


def _digest(*parts: Any) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()
