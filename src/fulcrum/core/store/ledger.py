"""What one silo has spent: every release and its cost, on disk before a byte of it leaves the silo.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> cost = Cost(shifts={"silo": 0.06, "region": 0.006})
>>> allowed = Allowance(plan_digest="3f2a", rounds=10, shifts={"silo": 0.6, "region": 0.06})
>>> with Ledger.open(f"{folder.name}/lyon.ledger", silo="lyon") as ledger:
...     ledger.enter_plan(allowed)
...     sent = ledger.record(allowed, round_number=1, basis="model-0", payload=b"update", cost=cost)
...     again = ledger.record(allowed, round_number=1, basis="model-0", payload=b"fresh noise", cost=cost)
>>> sent.fresh, again.fresh, again.payload, ledger.spent.shifts["region"]
(True, False, b'update', 0.006)
>>> folder.cleanup()

A silo has one SQLite file, with a journal beside it while it is open (`fulcrum.core.store.database` says why, and how
to copy them). Costs are squared mean shifts, mu² = kappa² / s² a release and observer, which add up over releases
whatever their multipliers (`fulcrum.core.accounting.epsilon_of_shift` turns their sum into an epsilon). Noise and keys
are never stored, only what is sent anyway.
"""

import hashlib
import importlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from fulcrum.checks import Check
from fulcrum.core.store.database import MOST_BYTES, ClosedAtTheEnd, PathLike
from fulcrum.core.store.ledger_entries import Allowance, Assumptions, Cost, Entry, text, whole
from fulcrum.core.store.ledger_file import LedgerFile, row_of
from fulcrum.errors import LedgerError, RefusedReleaseError, in_one_line

__all__ = ["Allowance", "Assumptions", "Cost", "Entry", "Ledger", "Recorded"]

HASH_FORMAT = 2
"""Of the hashes of entries. The first format covered two observers without names."""

_SLACK = 1e-12  # relative: a budget is a product, the spending a sum


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
    - a ledger that was left in the middle of a write does not open without the journal it was left with, whole, and
      none opens with a journal of another file or time, rather than forget what was sent;
    - a ledger whose tables are not exactly those of a ledger does not open, so that nothing in it runs;
    - a file or journal that was deleted, moved or replaced while it was open takes nothing that may be sent;
    - a round of a plan has one content for ever: asked again on the same basis it comes back bit for bit, free of
      charge; on another basis it is refused;
    - a release is filed under the plan it is said to be made under, whichever plan another thread enters meanwhile;
    - the spending recorded is never less than that of what was sent, for every observer; a release that was recorded
      and not sent counts, and an observer that an earlier plan did not name is charged as the next one inside;
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
        self._silo, self._plan, self._recorded, self._head, self._plans, self._entries = file.contents()
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
        with LedgerFile.opened(path, silo=silo, head=genesis(silo), create=create) as file:
            ledger = cls(file)
            if ledger.silo != silo:
                raise LedgerError("ledger.other-silo", file=file.path, owner=ledger.silo, silo=silo)
            ledger._refuse_damage("Nothing may be released from it")
            file.forget_unrecorded(ledger.sequence)
        return ledger

    @classmethod
    def read(cls, path: PathLike) -> Self:
        """Opens a ledger to look at; no writer can open it meanwhile.

        A write that a killed process left unfinished is taken back first, as `open` does. A ledger of which a check
        of `verify_ledger` fails is refused, payloads aside: forged spending must be neither shown nor planned with.
        """
        with LedgerFile.reading(path) as file:
            ledger = cls(file)
            ledger._refuse_damage("Run fulcrum ledger verify for all of its checks")
        return ledger

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
    def identity(self) -> str:
        """The random number that tells this ledger from every other, one of the same silo too."""
        return self._file.identity

    @property
    def is_unused(self) -> bool:
        """True where nothing was ever recorded, not even a plan."""
        with self._lock:
            return not self._entries and not self._plans

    @property
    def spent(self) -> Cost:
        """The silo's spending under every plan, by the observers of the plan it released under last."""
        with self._lock:
            return self._entries[-1].spent if self._entries else Cost(shifts={})

    def spent_at(self, observers: Sequence[str], assumptions: Assumptions | None = None) -> Cost:
        """Returns the silo's spending under every plan against some observers, named from the inside outward.

        An observer that a plan did not name, or that may have seen more than the plan of a release assumed, is charged
        as the next one inside (`Cost.charged`).

        Args:
            observers: The tiers.
            assumptions: Whom a plan counts as these observers.
        """
        with self._lock:
            return Cost.total((self._charged(entry, observers, assumptions) for entry in self._entries), observers)

    def _charged(self, entry: Entry, observers: Sequence[str], assumptions: Assumptions | None) -> Cost:
        plan = self._plans.get(entry.plan_digest)
        return entry.cost.charged(observers, None if plan is None else plan.assumptions, assumptions)

    @property
    def sequence(self) -> int:
        """The number of the last release, 0 before the first; an outside witness should keep it."""
        with self._lock:
            return len(self._entries)

    @property
    def head(self) -> str:
        """The hash of the last entry, which stands for all of them."""
        with self._lock:
            return self._entries[-1].chain_hash if self._entries else genesis(self._silo)

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
            RefusedReleaseError: The spending so far exceeds the budget of an observer.
            LedgerError: The plan is known with other numbers, or its observers are not those of earlier plans.
        """
        with self._lock:
            self._check_works()
            digest = allowance.plan_digest
            if digest in self._plans and not self._is_entered(allowance):
                entered = self._plans[digest]
                raise LedgerError("ledger.plan-changed", plan=digest, file=self._path, entered=entered, got=allowance)
            if excess := _excess(allowance, self.spent_at(allowance.observers, allowance.assumptions)):
                raise RefusedReleaseError("ledger.plan-overspent", plan=digest, silo=self._silo, reason=str(excess))
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
            try:
                self._check_works()
                if self._resend_of(allowance, round_number, basis) is None:
                    self._check_release(allowance, cost, round_number)
            except LedgerError as error:
                return str(error)
            return None

    def _check_release(self, allowance: Allowance, cost: Cost, round_number: int) -> None:
        """Raises `LedgerError` for a new release that the ledger would refuse."""
        digest, rounds = allowance.plan_digest, allowance.rounds
        if not self._is_entered(allowance):
            raise RefusedReleaseError("ledger.plan-not-entered", silo=self._silo, plan=digest)
        if (entry := self._of_round.get((digest, round_number))) is not None:
            raise RefusedReleaseError("ledger.round-released", round_number=round_number, basis=entry.basis)
        if round_number > rounds:
            raise RefusedReleaseError("ledger.round-past-plan", round_number=round_number, rounds=rounds, plan=digest)
        if tuple(cost.shifts) != allowance.observers:
            theirs, ours = ", ".join(cost.shifts) or "nobody", ", ".join(allowance.observers)
            raise RefusedReleaseError("ledger.cost-observers", plan=digest, observers=ours, got=theirs)
        # A release under another plan may name the same observers in another order: that is refused here too.
        if excess := _excess(allowance, self._spent_with(allowance, cost)):
            raise excess

    def stored(self, allowance: Allowance, round_number: int, basis: str) -> bytes | None:
        """Returns the bytes released in a round of a plan on this basis, to resend; None if there are none.

        The bytes are checked against their digest: damaged ones raise and are never resent.
        """
        with self._lock:
            self._check_works()
            entry = self._resend_of(allowance, round_number, basis)
            return None if entry is None else self.payload_of(entry)

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
            raise LedgerError("ledger.payload-range", most=MOST_BYTES, payload=_shape(payload))
        with self._lock:
            self._check_works()
            if resend := self._resend_of(allowance, round_number, basis):
                return Recorded(sequence=resend.sequence, payload=self.payload_of(resend), fresh=False)
            try:
                self._check_release(allowance, cost, round_number)
            except LedgerError as error:
                raise RefusedReleaseError.at(self._path, error) from None
            sequence = len(self._entries) + 1
            digest, unstored = self._file.store_payload(sequence, payload)
            entry = Entry(
                sequence=sequence,
                plan_digest=allowance.plan_digest,
                round_number=round_number,
                basis=basis,
                payload_digest=digest,
                cost=cost,
                spent=self._spent_with(allowance, cost),
            )
            entry = replace(entry, chain_hash=chain_hash(self.head, entry))
            self._file.add_entry(entry, unstored)
            self._entries.append(entry)
            self._recorded, self._head = entry.sequence, entry.chain_hash
            self._of_round[entry.plan_digest, entry.round_number] = entry
            self._file.in_doubt = False
            return Recorded(sequence=entry.sequence, payload=payload, fresh=True)

    def checks(self, **witness: Any) -> tuple[Check, ...]:
        """Returns the checks of the ledger; goes with version 0.3, use `fulcrum.verify_ledger(ledger)`."""
        warnings.warn(
            "Ledger.checks goes with version 0.3. Use fulcrum.verify_ledger(ledger)", DeprecationWarning, stacklevel=2
        )
        verify = importlib.import_module("fulcrum.core.store.ledger_checks").verify_ledger  # a silo does not load it
        checks: tuple[Check, ...] = verify(self, **witness)
        return checks

    def _check_works(self, *, writes: bool = True) -> None:
        """Refuses work with a file that this object does not hold, or cannot rely on."""
        if self._file.closed:
            raise LedgerError("ledger.closed", file=self._path)
        if os.getpid() != self._file.process:
            raise LedgerError("ledger.forked", file=self._path)
        if self._file.in_doubt:
            raise LedgerError("ledger.in-doubt", file=self._path)
        if writes and not self._file.writable:
            raise LedgerError("storage.opened-to-read", file=self._path)

    def _is_entered(self, allowance: Allowance) -> bool:
        """Returns True if a plan was entered with these numbers, for these observers in this order."""
        known = self._plans.get(allowance.plan_digest)
        return known is not None and known == allowance and known.observers == allowance.observers

    def _resend_of(self, allowance: Allowance, round_number: int, basis: str | None) -> Entry | None:
        """Returns the entry of a round released on this basis, under a plan that was entered with these numbers."""
        entry = self._of_round.get((allowance.plan_digest, round_number))
        return entry if entry is not None and entry.basis == basis and self._is_entered(allowance) else None

    def payload_of(self, entry: Entry) -> bytes:
        """Returns the bytes of a release, held against the digest of its entry."""
        payload = self._file.payload(entry.sequence)
        if payload is None or hashlib.sha256(payload).hexdigest() != entry.payload_digest:
            raise LedgerError("ledger.payload-damaged", file=self._path, entry=entry.sequence)
        return payload

    def _spent_with(self, allowance: Allowance, cost: Cost) -> Cost:
        observers, assumed = allowance.observers, allowance.assumptions
        before = (self._charged(entry, observers, assumed) for entry in self._entries)
        return Cost.total((*before, cost.charged(observers)), observers)

    def _refuse_damage(self, advice: str) -> None:
        """Raises LedgerError for the first check of the entries that fails."""
        for check in self.entry_checks():
            if not check.holds:
                fault = in_one_line(check.detail)
                raise LedgerError("ledger.check-failed", file=self._path, fault=fault, advice=advice)

    def entry_checks(self) -> Iterator[Check]:
        """The checks that need no payload, cheap enough for every opening."""
        entries = self._entries
        gap = next((number for number, entry in enumerate(entries, 1) if entry.sequence != number), None)
        lacking = gap or (min(len(entries), self._recorded) + 1 if len(entries) != self._recorded else None)
        yield Check(
            name="sequence",
            holds=lacking is None,
            detail=f"{len(entries)} releases" if lacking is None else f"entry {lacking} is missing",
        )
        previous, broken = genesis(self._silo), None
        for entry in entries:
            if broken is None and chain_hash(previous, entry) != entry.chain_hash:
                broken = entry.sequence
            previous = entry.chain_hash
        headed = broken is not None or previous == self._head
        yield Check(
            name="chain",
            holds=broken is None and headed,
            detail=(f"head {previous[:12]}" if headed else "its last entry is not the one that was recorded last")
            if broken is None
            else f"entry {broken} does not follow from those before it",
        )
        yield self._sums_check()
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
        if plan is None or not plan.observers == tuple(entry.cost.shifts) == tuple(entry.spent.shifts):
            return False
        return 1 <= entry.round_number <= plan.rounds and not _excess(plan, entry.spent)

    def _sums_check(self) -> Check:
        """Adds up what was spent, by the observers of the last entry."""
        stated = self.spent
        plan = self._plans.get(self._entries[-1].plan_digest) if self._entries else None
        try:
            true = self.spent_at(tuple(stated.shifts), None if plan is None else plan.assumptions)
        except LedgerError as error:
            return Check(name="sums", holds=False, detail=str(error))
        more = "" if true == stated else f", stated {_listed(stated)}"
        return Check(name="sums", holds=true == stated, detail=f"costs add up to {_listed(true)}{more}")


def _shape(payload: object) -> str:
    return f"{len(payload):,}" if isinstance(payload, bytes) else type(payload).__name__


def _excess(allowance: Allowance, spent: Cost) -> RefusedReleaseError | None:
    """Returns the error that names the first observer with more spending than the plan allows; None within budget."""
    for observer, budget in allowance.shifts.items():
        if (total := spent.shifts[observer]) > budget * (1 + _SLACK):
            return RefusedReleaseError("ledger.budget-exceeded", observer=observer, total=total, budget=budget)
    return None


def _listed(cost: Cost) -> str:
    return ", ".join(f"{shift:g} against {observer!r}" for observer, shift in cost.shifts.items()) or "nothing"


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def genesis(silo: str) -> str:
    """Returns the hash that the first entry of a silo's ledger follows."""
    return _digest(["fulcrum.ledger", HASH_FORMAT, silo])


def chain_hash(previous: str, entry: Entry) -> str:
    """Returns the hash of an entry that follows another; it covers every column but itself."""
    return _digest([previous, *row_of(entry)[:-1]])
