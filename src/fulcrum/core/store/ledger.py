"""The ledger of a silo: every release with its cost, on disk before the first byte of the release leaves the silo.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> cost = Cost(shifts={"silo": 0.06, "region": 0.006})
>>> allowed = Allowance(plan_digest="3f2a", rounds=10, shifts={"silo": 0.6, "region": 0.06})
>>> with Ledger.open(f"{folder.name}/lyon.ledger", silo="lyon") as ledger:
...     ledger.enter_plan(allowed)
...     sent = ledger.record(allowed, round_number=1, input_digest="model-0", payload=b"update", cost=cost)
...     again = ledger.record(allowed, round_number=1, input_digest="model-0", payload=b"fresh noise", cost=cost)
>>> sent.fresh, again.fresh, again.payload, ledger.total_cost.shifts["region"]
(True, False, b'update', 0.006)
>>> folder.cleanup()

A ledger is an SQLite file, with a journal beside the file while the ledger is open (`fulcrum.core.store.database`
explains the journal, and how to copy both). A cost is a squared mean shift, mu² = kappa² / s² for a release and an
observer. Squared shifts add up over releases with any multipliers, and `fulcrum.core.accounting.epsilon_of_shift` turns
the sum into an epsilon. A ledger stores the bytes that are sent, and never noise or keys.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fulcrum.checks import Check
from fulcrum.core.store.database import MOST_BYTES, ClosedAtTheEnd, PathLike
from fulcrum.core.store.ledger_entries import Allowance, Assumptions, ChargedUnit, Cost, Entry, text, unit_of, whole
from fulcrum.core.store.ledger_file import LedgerFile, row_of
from fulcrum.errors import LedgerError, RefusedReleaseError, in_one_line

__all__ = ["Allowance", "Assumptions", "ChargedUnit", "Cost", "Entry", "Ledger", "Recorded"]

HASH_FORMAT = 2
"""Of the hashes of entries. Format 1 covered two observers without names."""

_SLACK = 1e-12  # relative: a budget is rounds times a cost, the spending a sum, and both are rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A release that is on disk and may be sent.

    Attributes:
        sequence: The number of the entry in the ledger, from 1.
        payload: The bytes to send, and the only bytes that may be sent for the round.
        fresh: True if the release was charged now; False if an earlier call stored the release.
    """

    sequence: int
    payload: bytes
    fresh: bool


class Ledger(ClosedAtTheEnd):
    """The ledger of one silo; made by `open`, and by `fulcrum.read_ledger`.

    Guarantees, on a disk that keeps synced writes:

    - a payload from `record` or `stored_payload` is on disk: a killed process or a power cut forgets no sent release;
    - a ledger with an interrupted write opens only with the whole journal of the write, and no ledger opens with a
      journal of another file or time: either would forget sent releases;
    - a ledger with other tables than Fulcrum's does not open, so that no code in the file runs;
    - a file or journal that was deleted, moved or replaced while open takes no release that may be sent;
    - a round of a plan has a single content for ever: for the same inputs the release comes back bit for bit, free
      of charge; for other inputs the release is refused. Two contents would let an observer average the noise away;
    - a release is charged to the plan of the caller's allowance, even if another thread enters another plan meanwhile;
    - the recorded cost is at least the cost of all sent releases, for every observer: a release that was recorded and
      not sent counts, and an observer without a name in an earlier plan is charged as the next observer inside;
    - a plan whose unit of privacy differs from the unit of earlier releases is refused, unless the silo allows the
      earlier unit by name. Every release then counts in the unit of the new plan too;
    - a failed write records no release that may be sent. The object keeps its answers from before the write, and
      refuses further work until the ledger is opened again: only the file shows the result of a failed sync.

    A single process holds a ledger at a time, and the kernel unlocks the ledger at the end of the process. Threads may
    share the object, and exclude the other threads over several calls with `holding`; a forked child may not use the
    object. `total_cost`, `sequence`, `head` and `entries` keep answering after `close`.
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
            silo: The silo of the ledger.
            create: True to begin a new ledger if the file is missing. False refuses a missing file: the record of
                earlier releases is lost, and a new ledger would allow the whole budget again.

        Raises:
            LedgerInUseError: Another process holds the ledger.
            LedgerError: The file is the ledger of another silo, of another format, read-only, damaged, or no ledger.
        """
        text("silo", silo)
        with LedgerFile.opening(path, silo=silo, head=genesis(silo), create=create) as file:
            ledger = cls(file)
            if ledger.silo != silo:
                raise LedgerError("ledger.other-silo", file=file.path, owner=ledger.silo, silo=silo)
            ledger.refuse_damage("Nothing may be released from it")
            file.forget_unrecorded(ledger.sequence)
        return ledger

    def close(self) -> None:
        """Closes and unlocks the ledger; a second call does nothing."""
        self._file.close()

    @property
    def path(self) -> Path:
        """The file of the ledger."""
        return self._path

    @property
    def silo(self) -> str:
        """The silo of the ledger."""
        return self._silo

    @property
    def allowance(self) -> Allowance | None:
        """The allowance of the plan that was entered last; None before the first plan."""
        with self._lock:
            return None if self._plan is None else self._plans[self._plan]

    @property
    def identity(self) -> str:
        """The random number of the file: two ledgers of the same silo have different numbers."""
        return self._file.identity

    @property
    def is_unused(self) -> bool:
        """True if the ledger has no entry and no plan."""
        with self._lock:
            return not self._entries and not self._plans

    @property
    def total_cost(self) -> Cost:
        """The cost of all releases under every plan, by the observers of the last release's plan."""
        with self._lock:
            return self._entries[-1].spent if self._entries else Cost(shifts={})

    def spent_at(self, observers: Sequence[str], assumptions: Assumptions | None = None) -> Cost:
        """Returns the cost of all releases under every plan against `observers`.

        An observer that a plan did not name, or that may have seen more than the plan of a release assumed, is charged
        as the next observer inside (`Cost.charge_to`).

        Args:
            observers: The observers, from the inside outward.
            assumptions: The assumptions of the observers' plan.
        """
        with self._lock:
            return Cost.total((self._charge(entry, observers, assumptions) for entry in self._entries), observers)

    def spent_by_unit(self) -> dict[str, Cost]:
        """Returns the cost of all releases in every unit of privacy in which the silo has released, by name.

        The observers and assumptions of a unit are those of the last released plan in the unit.
        """
        with self._lock:
            last = {self._unit_of(entry).name: entry for entry in self._entries}
            plans = {name: self._plans[entry.plan_digest] for name, entry in last.items()}
            return {name: self.spent_at(plan.observers, plan.assumptions) for name, plan in plans.items()}

    def _unit_of(self, entry: Entry) -> ChargedUnit:
        plan = self._plans.get(entry.plan_digest)
        return unit_of(None if plan is None else plan.assumptions)

    def _check_units(self, allowance: Allowance, earlier_units: Collection[str]) -> None:
        """Raises `RefusedReleaseError`, with both budgets, for releases in another unit that nobody has allowed."""
        unit = unit_of(allowance.assumptions).name
        others = {name: cost for name, cost in self.spent_by_unit().items() if name not in (unit, *earlier_units)}
        for earlier, cost in others.items():
            raise RefusedReleaseError(
                "ledger.unit-differs",
                plan=allowance.plan_digest,
                silo=self._silo,
                unit=unit,
                earlier_unit=earlier,
                earlier_spent=_listing(cost),
                spent=_listing(self.spent_at(allowance.observers, allowance.assumptions)),
            )

    def _charge(self, entry: Entry, observers: Sequence[str], assumptions: Assumptions | None) -> Cost:
        plan = self._plans.get(entry.plan_digest)
        return entry.cost.charge_to(observers, None if plan is None else plan.assumptions, assumptions)

    @property
    def sequence(self) -> int:
        """The number of the last release, 0 before the first release.

        A witness outside of the silo should note the number: an old copy of the ledger, put back, has a smaller number.
        """
        with self._lock:
            return len(self._entries)

    @property
    def head(self) -> str:
        """The hash of the last entry; the hash covers all entries."""
        with self._lock:
            return self._entries[-1].chain_hash if self._entries else genesis(self._silo)

    def entries(self) -> tuple[Entry, ...]:
        """Returns the entries of all releases, oldest first."""
        with self._lock:
            return tuple(self._entries)

    def releases_besides(self, plan_digest: str) -> int:
        """Returns the number of releases under other plans than `plan_digest`."""
        return sum(entry.plan_digest != plan_digest for entry in self.entries())

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Makes other threads wait until the end of the block, for several calls that belong together.

        Open and close no file in the block: a fork waits for the block, and opening waits for the fork.
        """
        with self._lock:
            yield

    def enter_plan(self, allowance: Allowance, *, earlier_units: Collection[str] = ()) -> None:
        """Enters a plan, on disk at the return, to allow releases under it; a second call with this plan has no effect.

        The cost of releases under earlier plans counts against the new budget. Earlier plans stay entered: every
        release names its plan.

        Args:
            allowance: The allowance of the plan.
            earlier_units: The units of earlier releases, other than the unit of the plan, that the silo allows in the
                same ledger; see `Policy.earlier_units`.

        Raises:
            RefusedReleaseError: The cost of earlier releases exceeds the budget of an observer, or the ledger has
                releases in another unit of privacy that `earlier_units` does not name.
            LedgerError: The ledger has the plan with other numbers, or the order of the observers contradicts earlier
                plans.
        """
        with self._lock:
            self._check_works()
            digest = allowance.plan_digest
            if digest in self._plans and not self._is_entered(allowance):
                entered = self._plans[digest]
                raise LedgerError("ledger.plan-changed", plan=digest, file=self._path, entered=entered, got=allowance)
            self._check_units(allowance, earlier_units)
            if excess := _excess(allowance, self.spent_at(allowance.observers, allowance.assumptions)):
                raise RefusedReleaseError("ledger.plan-overspent", plan=digest, silo=self._silo, reason=str(excess))
            if digest == self._plan:
                return
            self._file.add_plan(allowance)
            self._plans[digest] = allowance
            self._plan = digest
            self._file.in_doubt = False

    def would_exceed(
        self, allowance: Allowance, cost: Cost, round_number: int, *, input_digest: str | None = None
    ) -> LedgerError | None:
        """Returns the error by which a release would be refused, before any work; None for an allowed release.

        Args:
            allowance: The allowance of the plan, as entered.
            cost: The cost of the release.
            round_number: The round, from 1.
            input_digest: The digest of the inputs, as in `record`; a second release for the inputs of the first is a
                resend, never refused.
        """
        round_number = whole("round", round_number)
        with self._lock:
            try:
                self._check_works()
                if self._resend_of(allowance, round_number, input_digest) is None:
                    self._check_release(allowance, cost, round_number)
            except LedgerError as error:
                return error
            return None

    def _check_release(self, allowance: Allowance, cost: Cost, round_number: int) -> None:
        """Raises `LedgerError` for a new release that the ledger would refuse."""
        digest, rounds = allowance.plan_digest, allowance.rounds
        if not self._is_entered(allowance):
            raise RefusedReleaseError("ledger.plan-not-entered", silo=self._silo, plan=digest)
        if (entry := self._of_round.get((digest, round_number))) is not None:
            raise RefusedReleaseError("ledger.round-released", round_number=round_number, digest=entry.input_digest)
        if round_number > rounds:
            raise RefusedReleaseError("ledger.round-past-plan", round_number=round_number, rounds=rounds, plan=digest)
        if tuple(cost.shifts) != allowance.observers:
            theirs, ours = ", ".join(cost.shifts) or "nobody", ", ".join(allowance.observers)
            raise RefusedReleaseError("ledger.cost-observers", plan=digest, observers=ours, got=theirs)
        # `_spent_with` refuses, too: an earlier plan may name the same observers in another order.
        if excess := _excess(allowance, self._spent_with(allowance, cost)):
            raise excess

    def stored_payload(self, allowance: Allowance, round_number: int, input_digest: str) -> bytes | None:
        """Returns the payload that was released in a round of a plan for these inputs, to resend, or None.

        The payload is compared with the digest of the entry: a damaged payload raises `LedgerError`, and is never
        resent.
        """
        with self._lock:
            self._check_works()
            entry = self._resend_of(allowance, round_number, input_digest)
            return None if entry is None else self.payload_of(entry)

    def record(
        self, allowance: Allowance, *, round_number: int, input_digest: str, payload: bytes, cost: Cost
    ) -> Recorded:
        """Charges a release and stores the payload; at the return the payload is on disk and may be sent.

        For other threads, check and entry are a single step. Send `payload` of the result, never the argument: for a
        second call for the same inputs the result has the payload of the first call.

        Args:
            allowance: The allowance of the plan, as entered.
            round_number: The round of the plan, from 1.
            input_digest: The digest of the inputs from the server, such as the global model.
            payload: The bytes to send, with noise.
            cost: The cost of the release.

        Raises:
            RefusedReleaseError: The plan does not allow the release. Nothing was recorded.
            LedgerError: The write failed. Nothing may be sent; open the ledger again and ask `stored_payload`.
        """
        round_number = whole("round", round_number)
        text("input digest", input_digest)
        if not isinstance(payload, bytes) or len(payload) > MOST_BYTES:
            length = f"{len(payload):,}" if isinstance(payload, bytes) else type(payload).__name__
            raise LedgerError("ledger.payload-range", most=MOST_BYTES, payload=length)
        with self._lock:
            self._check_works()
            if resend := self._resend_of(allowance, round_number, input_digest):
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
                input_digest=input_digest,
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

    def _check_works(self, *, writes: bool = True) -> None:
        """Refuses work with a file that is closed, opened before a fork, in doubt, or opened to read."""
        if self._file.closed:
            raise LedgerError("ledger.closed", file=self._path)
        if os.getpid() != self._file.process:
            raise LedgerError("ledger.forked", file=self._path)
        if self._file.in_doubt:
            raise LedgerError("ledger.in-doubt", file=self._path)
        if writes and not self._file.writable:
            raise LedgerError("storage.opened-to-read", file=self._path)

    def _is_entered(self, allowance: Allowance) -> bool:
        """Returns True if a plan was entered with these numbers, and with the observers in this order."""
        entered = self._plans.get(allowance.plan_digest)  # equality of mappings ignores the order of observers
        return entered is not None and entered == allowance and entered.observers == allowance.observers

    def _resend_of(self, allowance: Allowance, round_number: int, digest: str | None) -> Entry | None:
        """Returns the entry of a round that was released for these inputs, under a plan entered with these numbers."""
        entry = self._of_round.get((allowance.plan_digest, round_number))
        return entry if entry is not None and entry.input_digest == digest and self._is_entered(allowance) else None

    def payload_of(self, entry: Entry) -> bytes:
        """Returns the payload of a release, compared with the digest of the entry."""
        payload = self._file.payload(entry.sequence)
        if payload is None or hashlib.sha256(payload).hexdigest() != entry.payload_digest:
            raise LedgerError("ledger.payload-damaged", file=self._path, entry=entry.sequence)
        return payload

    def _spent_with(self, allowance: Allowance, cost: Cost) -> Cost:
        observers, assumed = allowance.observers, allowance.assumptions
        before = (self._charge(entry, observers, assumed) for entry in self._entries)
        return Cost.total((*before, cost.charge_to(observers)), observers)

    def refuse_damage(self, advice: str) -> None:
        """Raises `LedgerError` for the first check of the entries that fails."""
        for check in self.entry_checks():
            if not check.holds:
                fault = in_one_line(check.detail)
                raise LedgerError("ledger.check-failed", file=self._path, fault=fault, advice=advice)

    def entry_checks(self) -> Iterator[Check]:
        """Yields the checks that need no payload, cheap enough for every opening."""
        entries = self._entries
        gap = next((number for number, entry in enumerate(entries, 1) if entry.sequence != number), None)
        lacking = gap or (min(len(entries), self._recorded) + 1 if len(entries) != self._recorded else None)
        yield _check("sequence", f"entry {lacking} is missing" if lacking else "", f"{len(entries)} releases")
        hashes = [genesis(self._silo), *(entry.chain_hash for entry in entries)]
        links = zip(entries, hashes, strict=False)  # an entry, and the hash before
        broken = [entry.sequence for entry, previous in links if chain_hash(previous, entry) != entry.chain_hash]
        fault = "" if hashes[-1] == self._head else "its last entry is not the one that was recorded last"
        fault = f"entry {broken[0]} does not follow from those before it" if broken else fault
        yield _check("chain", fault, f"head {hashes[-1][:12]}")
        yield self._sums_check()
        twice = len(entries) - len(self._of_round)
        yield Check(name="rounds", holds=not twice, detail=f"{twice} releases of a round already released")
        outside = [f"entry {entry.sequence} is beyond its plan" for entry in entries if not self._is_allowed(entry)]
        yield _check("allowance", outside[0] if outside else "", "every release was within its plan")

    def _is_allowed(self, entry: Entry) -> bool:
        plan = self._plans.get(entry.plan_digest)
        if plan is None or not plan.observers == tuple(entry.cost.shifts) == tuple(entry.spent.shifts):
            return False
        return 1 <= entry.round_number <= plan.rounds and not _excess(plan, entry.spent)

    def _sums_check(self) -> Check:
        """Compares the sum of all costs with the last entry, by the observers of the last entry."""
        stated = self.total_cost
        plan = self._plans.get(self._entries[-1].plan_digest) if self._entries else None
        try:
            true = self.spent_at(tuple(stated.shifts), None if plan is None else plan.assumptions)
        except LedgerError as error:
            return Check(name="sums", holds=False, detail=str(error))
        more = "" if true == stated else f", stated {_listing(stated)}"
        return Check(name="sums", holds=true == stated, detail=f"costs add up to {_listing(true)}{more}")


def _check(name: str, fault: str, detail: str) -> Check:
    """Returns a check that fails with a fault; without a fault the check holds, and has the detail."""
    return Check(name=name, holds=not fault, detail=fault or detail)


def _excess(allowance: Allowance, spent: Cost) -> RefusedReleaseError | None:
    """Returns the error that names the first observer with more spending than the plan allows; None within budget."""
    for observer, budget in allowance.shifts.items():
        if (total := spent.shifts[observer]) > budget * (1 + _SLACK):
            return RefusedReleaseError("ledger.budget-exceeded", observer=observer, total=total, budget=budget)
    return None


def _listing(cost: Cost) -> str:
    return ", ".join(f"{shift:g} against {observer!r}" for observer, shift in cost.shifts.items()) or "nothing"


def _digest(parts: list[object]) -> str:
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()


def genesis(silo: str) -> str:
    """Returns the hash in the place of a previous entry for the first entry of a silo's ledger.

    Every entry holds a hash over its columns and the hash before (`chain_hash`); the chain of a silo begins with
    SHA-256 over the words "fulcrum.ledger", the format of hashes and the name of the silo.
    """
    return _digest(["fulcrum.ledger", HASH_FORMAT, silo])


def chain_hash(previous: str, entry: Entry) -> str:
    """Returns the hash of an entry after an entry with the hash `previous`; covers all columns except the hash."""
    return _digest([previous, *row_of(entry)[:-1]])
