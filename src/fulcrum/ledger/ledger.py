"""What one silo has spent: every release and its cost, on disk before a byte of it leaves the silo.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> cost = Cost(shift_above=0.006, shift_inside=0.06)
>>> allowed = Allowance(plan_digest="3f2a", rounds=10, shift_above=0.06, shift_inside=0.6)
>>> with Ledger.open(f"{folder.name}/lyon.ledger", silo="lyon") as ledger:
...     ledger.enter_plan(allowed)
...     sent = ledger.record(allowed, round_number=1, basis="model-0", payload=b"update", cost=cost)
...     again = ledger.record(allowed, round_number=1, basis="model-0", payload=b"fresh noise", cost=cost)
>>> sent.fresh, again.fresh, again.payload, ledger.spent.shift_above
(True, False, b'update', 0.006)
>>> folder.cleanup()

One SQLite file a silo, with a log beside it while it is open (`fulcrum.storage.database` says why, and how to copy
them), and large payloads in a file of their own (`fulcrum.storage.payloads`). Costs are squared mean shifts,
mu² = 4 / s² a release, which add up over releases whatever their multipliers
(`fulcrum.privacy.accounting.epsilon_of_shift` turns their sum into an epsilon). Noise and keys are never stored, only
what is sent anyway.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

from fulcrum.checks import Check
from fulcrum.errors import LedgerError, RefusedReleaseError, in_one_line
from fulcrum.ledger.entries import Allowance, Cost, Entry, entry_of, text, whole
from fulcrum.ledger.file import HASH_FORMAT, LedgerFile
from fulcrum.storage.database import MOST_BYTES, ClosedAtTheEnd, PathLike

__all__ = ["Allowance", "Cost", "Entry", "Ledger", "Recorded", "verify_ledger"]

_SLACK = 1e-12  # relative: a budget is a product, the spending a sum

_Facts: TypeAlias = tuple[int, str, int, str, str, float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A release that is on disk and may be sent.

    Attributes:
        sequence: Its number in the ledger, from 1.
        payload: The bytes to send, these and no others.
        fresh: Whether it was charged now; False where an earlier call stored it.
    """

    sequence: int
    payload: bytes
    fresh: bool


class Ledger(ClosedAtTheEnd):
    """The ledger of one silo; made by `open` and `read`.

    Guarantees, on a disk that keeps what it says it has synced:

    - what `record` and `stored` return is on disk, so a killed process or a power cut loses nothing that was sent;
    - a ledger whose log is missing, cut short, damaged or another's does not open, rather than forget what was in it,
      nor does one whose large payloads are missing, cut short, older, newer or another's;
    - a file or log that was deleted, moved or replaced while it was open takes nothing that may be sent;
    - a round of a plan has one content for ever: asked again on the same basis it comes back bit for bit, free of
      charge; on another basis it is refused;
    - a release is filed under the plan it is said to be made under, whichever plan another thread enters meanwhile;
    - the spending recorded is never less than that of what was sent; a release that was recorded and not sent counts;
    - a write that fails records nothing that may be sent. The object then still says what it said before, and refuses
      further work until the ledger is opened again, since only the file knows what a failed sync left behind.

    One process holds a ledger at a time, and the kernel releases it however the process ends. Threads may share the
    object, and keep each other out over several calls with `held`; a forked child may not. `spent`, `sequence`, `head`
    and `entries` keep answering after `close`.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self._path = file.path
        self._lock = file.lock
        self._silo, self._plan, self._plans, self._entries = file.contents()
        self._of_round = {(entry.plan_digest, entry.round_number): entry for entry in self._entries}

    @classmethod
    def open(cls, path: PathLike, *, silo: str, create: bool = True) -> Self:
        """Opens a silo's ledger to release from.

        Args:
            path: The file.
            silo: Whose ledger it is.
            create: Whether one that is not there is begun anew; otherwise it is refused, as what was spent is lost.

        Raises:
            LedgerInUseError: Another process holds it.
            LedgerError: It is another silo's, of another format, read-only, damaged, or no ledger at all.
        """
        text("silo", silo)
        with LedgerFile.opened(path, silo=silo, create=create) as file:
            ledger = cls(file)
            if ledger.silo != silo:
                raise LedgerError(f"{file.path} is the ledger of silo {ledger.silo!r}, not of {silo!r}")
            for check in ledger._entry_checks():
                if not check.holds:
                    raise LedgerError(f"{file.path} is damaged: {check.detail}. Nothing may be released from it")
        return ledger

    @classmethod
    def read(cls, path: PathLike) -> Self:
        """Opens a ledger to look at; no writer can open it meanwhile.

        What a killed process left in the log is folded into the file first, as `open` does. A ledger beside newer
        payloads is refused: it no longer knows all that was spent.
        """
        with LedgerFile.reading(path) as file:
            return cls(file)

    def close(self) -> None:
        """Lets the ledger go; closing it again does nothing."""
        self._file.close()

    @property
    def silo(self) -> str:
        """Whose ledger it is."""
        return self._silo

    @property
    def allowance(self) -> Allowance | None:
        """What the plan last entered allows; None before the first."""
        with self._lock:
            return None if self._plan is None else self._plans[self._plan]

    @property
    def spent(self) -> Cost:
        """What the silo has spent, under every plan."""
        with self._lock:
            return self._entries[-1].spent if self._entries else Cost(shift_above=0.0, shift_inside=0.0)

    @property
    def sequence(self) -> int:
        """The number of the last release, 0 before the first; an outside witness should keep it."""
        with self._lock:
            return len(self._entries)

    @property
    def head(self) -> str:
        """The hash of the last entry, which stands for all of them."""
        with self._lock:
            return self._entries[-1].chain_hash if self._entries else _genesis(self._silo)

    def entries(self) -> tuple[Entry, ...]:
        """Returns every release, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def releases_besides(self, plan_digest: str) -> int:
        """Returns how many releases were made under other plans than this one."""
        return sum(entry.plan_digest != plan_digest for entry in self.entries())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets other threads wait until several calls that belong together are done."""
        with self._lock:
            yield

    def enter_plan(self, allowance: Allowance) -> None:
        """Lets releases be made under a plan; on disk when it returns. Entering the current plan again changes nothing.

        What was spent under earlier plans counts against the new budget. Earlier plans stay entered: each release
        names the plan it is made under.

        Raises:
            RefusedReleaseError: What is already spent exceeds the budget.
            LedgerError: The plan is known with other numbers.
        """
        with self._lock:
            self._check_works()
            digest = allowance.plan_digest
            known = self._plans.get(digest)
            if known not in (None, allowance):
                raise LedgerError(f"plan {digest} is in {self._path} with another allowance: {known}, got {allowance}")
            if reason := self._over(allowance, self.spent):
                raise RefusedReleaseError(f"plan {digest} does not cover what silo {self._silo!r} spent: {reason}")
            if digest == self._plan:
                return
            self._file.add_plan(allowance)
            self._plans[digest] = allowance
            self._plan = digest
            self._file.in_doubt = False

    def would_exceed(
        self, allowance: Allowance, cost: Cost, round_number: int, *, basis: str | None = None
    ) -> str | None:
        """Returns why a release would be refused, to ask before any work is done; None where it would not be.

        Args:
            allowance: Of the plan it would be made under, as it was entered.
            cost: What it would spend.
            round_number: Its round, from 1.
            basis: What it would answer; a round already released on this basis is a resend, and never refused.
        """
        round_number = whole("round", round_number)
        with self._lock:
            if reason := self._idle():
                return reason
            digest = allowance.plan_digest
            if self._plans.get(digest) != allowance:
                return f"silo {self._silo!r} has not entered plan {digest} with these numbers. Call enter_plan"
            known = self._released(allowance, round_number)
            if known is not None:
                return None if known.basis == basis else f"round {round_number} is released, on basis {known.basis}"
            if round_number > allowance.rounds:
                return f"round {round_number} is past the {allowance.rounds} rounds of plan {digest}"
            return self._over(allowance, self._spent_with(cost))

    def stored(self, allowance: Allowance, round_number: int, basis: str) -> bytes | None:
        """Returns the bytes released in a round of a plan on this basis, to resend; None if there are none.

        The bytes are checked against their digest: damaged ones raise and are never resent.
        """
        with self._lock:
            self._check_works()
            known = self._released(allowance, round_number)
            return self._payload(known) if known is not None and known.basis == basis else None

    def record(self, allowance: Allowance, *, round_number: int, basis: str, payload: bytes, cost: Cost) -> Recorded:
        """Charges a release and stores its bytes; when it returns they are on disk and may be sent.

        Check and entry are one step for other threads. Send `payload` of the result, not the argument: a round already
        released on this basis comes back as it was.

        Args:
            allowance: Of the plan it is made under, as it was entered.
            round_number: The round of that plan, from 1.
            basis: What was asked, such as the digest of the global model the update was computed from.
            payload: What is to be sent, noise included.
            cost: What it spends.

        Raises:
            RefusedReleaseError: The plan does not allow it. Nothing was recorded.
            LedgerError: It could not be written. Nothing may be sent; open the ledger again and ask `stored`.
        """
        round_number = whole("round", round_number)
        text("basis", basis)
        if not isinstance(payload, bytes) or len(payload) > MOST_BYTES:
            raise LedgerError(f"a payload is bytes, at most {MOST_BYTES:,} of them, got {_shape(payload)}")
        with self._lock:
            self._check_works()
            known = self._released(allowance, round_number)
            if known is not None and known.basis == basis:
                return Recorded(sequence=known.sequence, payload=self._payload(known), fresh=False)
            reason = self.would_exceed(allowance, cost, round_number)
            if reason is not None:
                raise RefusedReleaseError(f"{self._path}: {reason}")
            sha = hashlib.sha256()
            held = self._file.keep(payload, sha)
            made = (len(self._entries) + 1, allowance.plan_digest, round_number, basis, sha.hexdigest())
            spent = self._spent_with(cost)
            figures = (cost.shift_above, cost.shift_inside, spent.shift_above, spent.shift_inside)
            row = (*made, *figures, _chain_hash(self.head, (*made, *figures)))
            entry = entry_of(row)
            self._file.add_entry(row, held)
            self._entries.append(entry)
            self._of_round[entry.plan_digest, entry.round_number] = entry
            self._file.in_doubt = False
            return Recorded(sequence=entry.sequence, payload=payload, fresh=True)

    def checks(self, *, least_sequence: int | None = None, witnessed_hash: str | None = None) -> tuple[Check, ...]:
        """Returns what `verify_ledger` does, for a ledger that is open."""
        with self._lock:
            if reason := self._idle(writes=False):
                raise LedgerError(reason)
            found = self._file.integrity()
            checks = [
                Check(name="file", holds=found == ["ok"], detail=in_one_line(" ".join(found))),
                *self._entry_checks(),
                self._payload_check(),
            ]
        if least_sequence is not None:
            detail = f"{self.sequence} releases, {least_sequence} were seen by a witness"
            checks.append(Check(name="witness", holds=self.sequence >= least_sequence, detail=detail))
        if witnessed_hash is not None:
            seen = witnessed_hash in (_genesis(self._silo), *(entry.chain_hash for entry in self._entries))
            detail = f"hash {witnessed_hash[:12]} is {'' if seen else 'not '}in the chain"
            checks.append(Check(name="witnessed hash", holds=seen, detail=detail))
        return tuple(checks)

    def _idle(self, *, writes: bool = True) -> str | None:
        """Why this object does no work, if so."""
        if self._file.closed:
            return f"{self._path} is closed. Open it again"
        if os.getpid() != self._file.process:
            return f"{self._path} was opened before a fork. Open it in the process that releases"
        if self._file.in_doubt:
            return f"{self._path} could not be written earlier. Open it again, and ask what is stored"
        if writes and not self._file.writable:
            return f"{self._path} was opened to be read"
        return None

    def _check_works(self) -> None:
        if reason := self._idle():
            raise LedgerError(reason)

    def _released(self, allowance: Allowance, round_number: int) -> Entry | None:
        """The entry of a round of a plan that was entered with these numbers."""
        digest = allowance.plan_digest
        return self._of_round.get((digest, round_number)) if self._plans.get(digest) == allowance else None

    def _payload(self, entry: Entry) -> bytes:
        payload = self._file.payload(entry.sequence)
        if not isinstance(payload, bytes) or hashlib.sha256(payload).hexdigest() != entry.payload_digest:
            raise LedgerError(f"{self._path} is damaged: the bytes of entry {entry.sequence} are not those released")
        return payload

    def _spent_with(self, cost: Cost) -> Cost:
        return _sum([*(entry.cost for entry in self._entries), cost])

    def _over(self, allowance: Allowance, spent: Cost) -> str | None:
        for observer, total, budget in (
            ("above", spent.shift_above, allowance.shift_above),
            ("inside", spent.shift_inside, allowance.shift_inside),
        ):
            if total > budget * (1 + _SLACK):
                return f"the squared shift {observer} the region would be {total:g}, its budget is {budget:g}"
        return None

    def _entry_checks(self) -> Iterator[Check]:
        """The checks that need no payload, cheap enough for every opening."""
        entries = self._entries
        gap = next((number for number, entry in enumerate(entries, 1) if entry.sequence != number), None)
        yield Check(
            name="sequence",
            holds=gap is None,
            detail=f"{len(entries)} releases" if gap is None else f"entry {gap} is missing",
        )
        previous, broken = _genesis(self._silo), None
        for entry in entries:
            if broken is None and _chain_hash(previous, _facts(entry)) != entry.chain_hash:
                broken = entry.sequence
            previous = entry.chain_hash
        yield Check(
            name="chain",
            holds=broken is None,
            detail=f"head {previous[:12]}"
            if broken is None
            else f"entry {broken} does not follow from those before it",
        )
        true = _sum([entry.cost for entry in entries])
        stated = self.spent
        yield Check(
            name="sums",
            holds=true == stated,
            detail=f"costs add up to {true.shift_above:g} above and {true.shift_inside:g} inside the region"
            + ("" if true == stated else f", stated {stated.shift_above:g} and {stated.shift_inside:g}"),
        )
        twice = len(entries) - len(self._of_round)
        yield Check(name="rounds", holds=not twice, detail=f"{twice} releases of a round already released")
        outside = [entry.sequence for entry in entries if not self._allowed(entry)]
        yield Check(
            name="allowance",
            holds=not outside,
            detail=f"entry {outside[0]} is beyond its plan" if outside else "every release was within its plan",
        )

    def _allowed(self, entry: Entry) -> bool:
        plan = self._plans.get(entry.plan_digest)
        return plan is not None and 1 <= entry.round_number <= plan.rounds and not self._over(plan, entry.spent)

    def _payload_check(self) -> Check:
        damaged = ""
        for entry in self._entries:
            try:
                self._payload(entry)
            except LedgerError as error:
                damaged = damaged or str(error).removeprefix(f"{self._path} is damaged: ")
        more = self._file.payload_count() - len(self._entries)
        detail = f"{len(self._entries)} payloads" + (f", {more} too many" if more > 0 else "")
        return Check(name="payloads", holds=not damaged and more == 0, detail=damaged or detail)


def verify_ledger(
    path: PathLike, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[Check, ...]:
    """Returns the checks of a ledger file, every payload read; it holds up if all of them do.

    A ledger restored from an old copy, with all files beside it, is sound in itself: only whoever saw a later state can
    tell.

    Args:
        path: The ledger; no process may be releasing from it.
        least_sequence: The highest `Ledger.sequence` that a witness outside the silo saw.
        witnessed_hash: A `Ledger.head` that a witness saw, which must still be in the chain: a restored copy that
            went on to release something else has lost it, even where its sequence has caught up.

    Raises:
        LedgerError: It cannot be read as a ledger at all.
    """
    with Ledger.read(path) as ledger:
        return ledger.checks(least_sequence=least_sequence, witnessed_hash=witnessed_hash)


def _shape(payload: object) -> str:
    return f"{len(payload):,}" if isinstance(payload, bytes) else type(payload).__name__


def _sum(costs: list[Cost]) -> Cost:
    """The exact sum rounded once, in whatever order: what was spent does not drift."""
    totals = []
    for values in ([cost.shift_above for cost in costs], [cost.shift_inside for cost in costs]):
        try:
            totals.append(math.fsum(values))
        except OverflowError:
            totals.append(math.inf)
    return Cost(shift_above=totals[0], shift_inside=totals[1])


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def _genesis(silo: str) -> str:
    return _digest(["fulcrum.ledger", HASH_FORMAT, silo])


def _chain_hash(previous: str, facts: _Facts) -> str:
    return _digest([previous, *facts[:5], *(figure.hex() for figure in facts[5:])])


def _facts(entry: Entry) -> _Facts:
    """What the hash of an entry covers, in the order of its columns."""
    made = (entry.sequence, entry.plan_digest, entry.round_number, entry.basis, entry.payload_digest)
    cost, spent = entry.cost, entry.spent
    return (*made, cost.shift_above, cost.shift_inside, spent.shift_above, spent.shift_inside)
