"""The regional aggregator, for any engine: accepts sealed releases, and sends up sums or withholds them.

A region sends up a single sum in a round: the difference of two sums would reveal the release of a single silo. The
region sums only with the noise that the plan counts on: all silos, or all but `plan.dropouts` silos. Weights are never
renormalised. A message that cannot be verified is refused, and a sum that lacks noise is withheld.

The file of a region is an SQLite file, held and synced like a ledger (`fulcrum.core.store.database` says why, and how
to copy the file): the file opens only together with the journal of its last use. The file holds the releases of a round
until the sum is stored, afterwards the digests alone. Never restore an old copy: an old copy may have forgotten a sum,
and would sum other silos.

No test of a release can tell if the noise is fresh, secret, and really noise. A silo that cheats in this way gives up
its own protection and, within `plan.colluders`, no other silo's. A signal within the size of the silo's own noise goes
unnoticed too. The test of norms finds accidents and crude lies: missing noise, noise of another scale, an update that
was not clipped or not weighted.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from fulcrum.aggregation.model_checks import check_model_layout
from fulcrum.aggregation.norm_tests import norm_bounds
from fulcrum.aggregation.presence import aggregation_of, lacking_in_round
from fulcrum.aggregation.region_store import RegionFile
from fulcrum.aggregation.release_opening import Opener
from fulcrum.core.messages.layout import Layout, dtype_of
from fulcrum.core.messages.membership import members_of, step_of
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.messages.release_message import Release
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.preconditions import check_aggregation, check_one_tier
from fulcrum.core.store.database import MOST_BYTES, ClosedAtTheEnd, PathLike
from fulcrum.errors import ExchangeError, StorageError

SUMMED, WITHHELD, GATHERING = "summed", "withheld", "gathering"
"""The statuses of a round."""

_LARGEST = 2**53  # a double holds every coordinate up to here exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRound:
    """The status of a round of a region.

    Attributes:
        round_number: The round, from 1.
        status: `SUMMED`, `WITHHELD` or `GATHERING`.
        members: The silos with a stored release, sorted.
        missing: The silos without a stored release, sorted.
    """

    round_number: int
    status: str
    members: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningSum:
    """The sum of a round's releases so far; every release in the sum is on disk.

    Attributes:
        round_number: The round.
        members: The silos whose releases are in the sum.
        values: The sum.
    """

    round_number: int
    members: set[str]
    values: np.ndarray[Any, Any]


class Region(ClosedAtTheEnd):
    """A regional aggregator with its file; made by `open`. Threads may share a region, processes may not.

    Guarantees, on a disk that keeps synced content:

    - a round has a single sum for ever, on disk before the return; a later call returns the same bytes;
    - a silo has a single release in a round: a second, different release is refused, also after a restart;
    - no sum holds less noise than the plan counts on, and every sum is a sum of accepted releases alone.

    An `ExchangeError` refuses a message and changes no state. After a `StorageError` stop, and open the file again.
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
            path: The file; no other process may hold the file.
            plan: A plan of one tier, with the keys of silos and regions; a deployment plan must verify.
            region: The region, a region of the plan.
            key: The region's private X25519 key file.
            create: True makes a missing file; False refuses a missing file, since the sums of the past are lost.
        """
        plan = verified_plan(plan, error=ExchangeError)
        check_one_tier(plan)
        check_aggregation(plan, "trusted")
        opener = Opener(plan, region, key)
        file = RegionFile.open(path, region=region, plan_digest=plan.digest, create=create)
        return cls(file, plan, region, opener)

    def close(self) -> None:
        """Closes the file; a second call has no effect. `close_round` closes a round."""
        self._file.close()

    @property
    def identity(self) -> str:
        """The random number that identifies this region's file."""
        return self._file.identity

    @property
    def members(self) -> frozenset[str]:
        """The silos of the region, with and without a release."""
        return frozenset(self._members)

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
        """Returns the silo of a signed decline for a round; a decline is not stored."""
        self._check_round(round_number)
        silo, number = self._opener.open_decline(data)
        if number != round_number:
            raise ExchangeError("region.decline-other-round", silo=silo, round_number=number, gathered=round_number)
        return silo

    def accept(self, sealed: bytes, round_number: int) -> str:
        """Stores a sealed release on disk and returns the silo of the release.

        The release must fit the model of `expect_layout`. The same release again, also under a new seal, is accepted
        without effect until the round is summed.
        """
        self._check_round(round_number)
        release = self._opener.open(sealed)
        silo = release.silo
        if release.round_number != round_number:
            raise ExchangeError(
                "region.release-other-round", silo=silo, round_number=release.round_number, gathered=round_number
            )
        if silo not in self.roster(round_number):
            raise ExchangeError("region.release-off-roster", silo=silo, round_number=round_number)
        self._check_release(release)
        layout = msgspec.msgpack.encode(release.layout)
        digest = _digest(layout, release.values)
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
            self._file.add_release(round_number, silo, digest, release.values.data.cast("B"))
            self._add(release)
        return silo

    def present(self, round_number: int) -> set[str]:
        """Returns the silos with a release for a round."""
        self._check_round(round_number)
        with self._file.working():
            return {str(row[0]) for row in self._file.rows("SELECT silo FROM release WHERE round = ?", round_number)}

    def missing(self, round_number: int) -> set[str]:
        """Returns the silos without a release for a round."""
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
            present = self.present(round_number)
            missing = tuple(sorted(set(self.roster(round_number)) - present))
            where: dict[str, Any] = {"plan_digest": self._plan.digest, "region": self._region}
            answer: RegionalReply
            if reason := lacking_in_round(self._aggregation, self._region, present, round_number):
                answer = Withheld(**where, round_number=round_number, missing=missing, reason=reason)
                status = WITHHELD
            else:
                values = self._total(round_number, present)
                layout, members = msgspec.msgpack.decode(self._layout(), type=Layout), tuple(sorted(present))
                where |= {"members": members, "layout": layout, "step": self._step}
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
                missing = tuple(sorted(set(self.roster(number)) - present))
                status, members = statuses.get(number, GATHERING), tuple(sorted(present))
                listed.append(RegionRound(round_number=number, status=status, members=members, missing=missing))
        return tuple(listed)

    def roster(self, round_number: int) -> Mapping[str, int]:
        """Returns the silos of the region in a round; a plan without changing membership has the same in all rounds."""
        if self._plan.federation.rosters is None:
            return self._members
        return members_of(self._plan, self._region, round_number)

    def _add(self, release: Release) -> None:
        """Adds a stored release to the running sum of its round; only sums of integers are equal in every order."""
        running, number = self._running, release.round_number
        if running is not None and running.round_number == number:
            np.add(running.values, release.values, out=running.values)
            running.members.add(
                release.silo
            )  # last: after an interrupt before this line, the sum is taken from the file
        elif self._step is not None:
            self._running = _RunningSum(round_number=number, members={release.silo}, values=release.values.copy())

    def _total(self, round_number: int, present: set[str]) -> np.ndarray[Any, Any]:
        """Returns the sum of a round's releases: the running sum, or, after a restart, the stored ones added anew."""
        running, self._running = self._running, None
        if running is not None and (running.round_number, running.members) == (round_number, present):
            return running.values
        encoded = self._layout()
        total = np.zeros((), dtype=dtype_of(self._step))
        for silo in sorted(present):  # in the order of names, so that floating point sums have a single value too
            digest, data = self._file.release_of(round_number, silo)
            if data is None or _digest(encoded, data) != digest:
                raise StorageError("region.release-damaged", file=self._file.path, silo=silo)
            values = np.frombuffer(data, dtype=total.dtype)
            total = np.add(total, values, out=total if total.shape else None)
        return total

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

    def _check_release(self, release: Release) -> None:
        """Refuses a release that no honest silo sends, as far as a single release can show."""
        plan, silo, values = self._plan, release.silo, release.values
        if len(values) != (plan.parameters or len(values)) or not len(values):
            raise ExchangeError(
                "region.release-parameters", silo=silo, parameters=len(values), expected=plan.parameters
            )
        if values.nbytes > MOST_BYTES:
            raise ExchangeError("region.release-too-long", silo=silo, bytes=values.nbytes, most=MOST_BYTES)
        # The bound keeps the sum of all members within 64 bits: an overflow would wrap around unnoticed.
        most = min(_LARGEST, (2**63 - 1) // len(self._members))
        if not np.isfinite(values).all() or (
            self._step is not None and not -most < values.min() <= values.max() < most
        ):
            raise ExchangeError("region.release-not-finite", silo=silo)
        low, high = norm_bounds(plan, self._members[silo], len(values), release.round_number)
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
