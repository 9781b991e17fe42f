"""What one silo has spent: every release and its cost, on disk before a byte of it leaves the silo.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> cost = Cost(shift_above=0.006, shift_inside=0.06)
>>> with Ledger.open(f"{folder.name}/lyon.ledger", silo="lyon") as ledger:
...     ledger.begin(Allowance(plan_digest="3f2a", rounds=10, shift_above=0.06, shift_inside=0.6))
...     sent = ledger.record(round_number=1, basis="model-0", payload=b"update", cost=cost)
...     again = ledger.record(round_number=1, basis="model-0", payload=b"fresh noise", cost=cost)
>>> sent.fresh, again.fresh, again.payload, ledger.spent.shift_above
(True, False, b'update', 0.006)
>>> folder.cleanup()

One SQLite file a silo. Costs are squared mean shifts, mu² = 4 / s² a release, which add up over releases whatever
their multipliers (`fulcrum.accounting.epsilon_of_shift` turns their sum into an epsilon). Noise and keys are never
stored, only what is sent anyway.

Why a write-ahead log (`WAL` at `synchronous=FULL`): a release is one append and one sync, which is the least that any
durable write costs, where a rollback journal takes four syncs. Each frame of the log carries a checksum over all before
it, so a commit that a kill or a power cut tore apart is seen and dropped as a whole. While a ledger is open its last
releases may be in the log alone (`<name>-wal`): copy or move both files or, better, a closed ledger. Closing folds the
log into the file, and opening does so first of all after a crash: a ledger that is closed is one file.
"""

import contextlib
import ctypes
import hashlib
import io
import json
import math
import operator
import os
import sqlite3
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from fulcrum.errors import FulcrumError

if sys.platform != "win32":
    import fcntl

FORMAT = 1

_APPLICATION = 0x46554C43  # "FULC" in the file's header: tells a ledger from any other SQLite file
_PAGE_BYTES = 32_768  # payloads are large: an eighth of the pages, and of the writes, of SQLite's default
_MOST_BYTES = 900_000_000  # SQLite holds up to 10^9 bytes in a row
_SLACK = 1e-12  # relative: a budget is a product, the spending a sum
_FAILURES = (sqlite3.Error, OSError, MemoryError, OverflowError)
_SCHEMA = """
CREATE TABLE silo (name TEXT NOT NULL, plan TEXT);
CREATE TABLE plan (
    digest TEXT PRIMARY KEY, rounds INTEGER NOT NULL, shift_above REAL NOT NULL, shift_inside REAL NOT NULL
);
CREATE TABLE entry (
    sequence INTEGER PRIMARY KEY, plan TEXT NOT NULL, round INTEGER NOT NULL, basis TEXT NOT NULL,
    payload_digest TEXT NOT NULL, shift_above REAL NOT NULL, shift_inside REAL NOT NULL,
    spent_above REAL NOT NULL, spent_inside REAL NOT NULL, hash TEXT NOT NULL, UNIQUE (plan, round)
);
CREATE TABLE payload (sequence INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
"""
_ENTRY_TYPES = (int, str, int, str, str, float, float, float, float, str)

_PathLike: TypeAlias = str | os.PathLike[str]
_Statement: TypeAlias = tuple[str, tuple[object, ...]]
_Facts: TypeAlias = tuple[int, str, int, str, str, float, float, float, float]


class LedgerError(FulcrumError, ValueError):
    """A ledger cannot be read, written or trusted, or refuses what was asked."""


class RefusedReleaseError(LedgerError):
    """The plan does not allow this release; nothing was recorded and nothing may be sent."""


class LedgerInUseError(LedgerError):
    """Another process, or another part of this one, holds the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What releases spend, as squared mean shifts (mu²), additive over releases; infinite where there is no noise.

    Attributes:
        shift_above: Against the observer above the silo's region.
        shift_inside: Against the observer inside it.
    """

    shift_above: float
    shift_inside: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shift_above", _shift("shift_above", self.shift_above))
        object.__setattr__(self, "shift_inside", _shift("shift_inside", self.shift_inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a plan allows one silo in total, everything it ever spent included.

    Attributes:
        plan_digest: Which plan.
        rounds: Rounds, numbered from 1; one release a round.
        shift_above: The budget of mu² against the observer above the region.
        shift_inside: The budget against the one inside it.
    """

    plan_digest: str
    rounds: int
    shift_above: float
    shift_inside: float

    def __post_init__(self) -> None:
        _text("plan digest", self.plan_digest)
        object.__setattr__(self, "rounds", _whole("rounds", self.rounds))
        object.__setattr__(self, "shift_above", _shift("shift_above", self.shift_above))
        object.__setattr__(self, "shift_inside", _shift("shift_inside", self.shift_inside))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger, without the payload.

    Attributes:
        sequence: Its number, from 1.
        plan_digest: The plan it was released under.
        round_number: The round of that plan.
        basis: What was asked, such as the digest of the global model.
        payload_digest: SHA-256 of the bytes.
        cost: What it spent.
        spent: What the silo had spent in all, this release included.
        chain_hash: SHA-256 over the previous entry's hash and everything above.
    """

    sequence: int
    plan_digest: str
    round_number: int
    basis: str
    payload_digest: str
    cost: Cost
    spent: Cost
    chain_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCheck:
    """One thing that was recomputed.

    Attributes:
        name: What was checked.
        holds: Whether the ledger agrees.
        detail: The figures, or where they part.
    """

    name: str
    holds: bool
    detail: str


class Ledger:
    """The ledger of one silo; made by `open` and `read`.

    Guarantees, on a disk that keeps what it says it has synced:

    - what `record` and `stored` return is on disk, so a killed process or a power cut loses nothing that was sent;
    - a plan and round have one content for ever: asked again on the same basis it comes back bit for bit, free of
      charge; on another basis it is refused;
    - the spending recorded is never less than that of what was sent; a release that was recorded and not sent counts;
    - a write that fails records nothing that may be sent. The object then still says what it said before, and refuses
      further work until the ledger is opened again, since only the file knows what a failed sync left behind.

    One process holds a ledger at a time, and the kernel releases it however the process ends. Threads may share the
    object; a forked child may not. `spent`, `sequence`, `head` and `entries` keep answering after `close`.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, hold: io.FileIO, *, writable: bool) -> None:
        self._path = path
        self._connection = connection
        self._hold = hold
        self._writable = writable
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._in_doubt = False
        self._silo, self._plan, self._plans, self._entries = _contents(connection, path)
        self._of_round = {(entry.plan_digest, entry.round_number): entry for entry in self._entries}

    @classmethod
    def open(cls, path: _PathLike, *, silo: str) -> Self:
        """Opens a silo's ledger to release from, creating it where there is none.

        Raises:
            LedgerInUseError: Another process holds it.
            LedgerError: It is another silo's, of another format, read-only, damaged, or no ledger at all.
        """
        _text("silo", silo)
        file = Path(path).resolve()
        with _translated(file, "opened"), _REGISTRY:
            if not file.exists():
                _create(file, silo)
            _check_is_file(file)
            for place in (file, file.parent):
                if not os.access(place, os.W_OK):
                    raise LedgerError(f"{place} is read-only: a release cannot be recorded. Make it writable")
            with contextlib.ExitStack() as undo:
                hold = undo.enter_context(_held(file, exclusive=True))
                connection = undo.enter_context(contextlib.closing(_folded(file)))
                ledger = cls(file, connection, hold, writable=True)
                if ledger.silo != silo:
                    raise LedgerError(f"{file} is the ledger of silo {ledger.silo!r}, not of {silo!r}")
                for check in ledger._entry_checks():
                    if not check.holds:
                        raise LedgerError(f"{file} is damaged: {check.detail}. Nothing may be released from it")
                if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
                    raise LedgerError(f"{file} is on a disk that cannot keep a write-ahead log beside it")
                connection.execute("SELECT name FROM silo").fetchone()  # makes the log
                _sync_folder(file.parent)  # SQLite does so for the log too, and ignores it where that fails
                _LIVE[_inode(file)] = ledger
                undo.pop_all()
        return ledger

    @classmethod
    def read(cls, path: _PathLike) -> Self:
        """Opens a ledger to look at; no writer can open it meanwhile.

        What a killed process left in the log is folded into the file first, as `open` does.
        """
        file = Path(path).resolve()
        with _translated(file, "read"), _REGISTRY, contextlib.ExitStack() as undo:
            _check_is_file(file)
            beside = (file.with_name(f"{file.name}-{kind}") for kind in ("wal", "journal"))
            crashed = any(other.exists() and other.stat().st_size > 0 for other in beside)
            hold = undo.enter_context(_held(file, exclusive=crashed))
            if crashed:
                with contextlib.closing(_folded(file)) as connection:
                    _tidy(connection)
            # A log left empty, or folded in by a process that ended without closing, must not be looked for.
            connection = undo.enter_context(contextlib.closing(_connected(file, "mode=ro&immutable=1")))
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")
            _check_format(connection, file)
            _check_size(connection, file)
            ledger = cls(file, connection, hold, writable=False)
            undo.pop_all()
        return ledger

    def close(self) -> None:
        """Lets the ledger go; closing it again does nothing."""
        with self._lock:
            if self._closed or os.getpid() != self._process:
                return
            self._closed = True
            if self._writable:
                _tidy(self._connection)
            self._connection.close()
            self._hold.close()
        with _REGISTRY:
            for key in [key for key, ledger in _LIVE.items() if ledger is self]:
                del _LIVE[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def silo(self) -> str:
        """Whose ledger it is."""
        return self._silo

    @property
    def allowance(self) -> Allowance | None:
        """What the plan last begun allows; None before the first."""
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

    def begin(self, allowance: Allowance) -> None:
        """Binds the ledger to a plan, durably; beginning the plan it is bound to again changes nothing.

        What was spent under earlier plans counts against the new budget.

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
            numbers = (digest, allowance.rounds, allowance.shift_above, allowance.shift_inside)
            self._write(
                ("INSERT OR IGNORE INTO plan VALUES (?, ?, ?, ?)", numbers), ("UPDATE silo SET plan = ?", (digest,))
            )
            self._plans[digest] = allowance
            self._plan = digest
            self._in_doubt = False

    def would_exceed(self, cost: Cost, round_number: int, *, basis: str | None = None) -> str | None:
        """Returns why a release would be refused, to ask before any work is done; None where it would not be.

        Args:
            cost: What it would spend.
            round_number: Its round, from 1.
            basis: What it would answer; a round already released on this basis is a resend, and never refused.
        """
        round_number = _whole("round", round_number)
        with self._lock:
            if reason := self._idle():
                return reason
            allowance = self.allowance
            if allowance is None:
                return f"silo {self._silo!r} has no plan yet. Begin one"
            known = self._of_round.get((allowance.plan_digest, round_number))
            if known is not None:
                return None if known.basis == basis else f"round {round_number} is released, on basis {known.basis}"
            if round_number > allowance.rounds:
                return f"round {round_number} is past the {allowance.rounds} rounds of plan {allowance.plan_digest}"
            return self._over(allowance, self._spent_with(cost))

    def stored(self, round_number: int, basis: str) -> bytes | None:
        """Returns the bytes released in a round of the current plan on this basis, to resend; None if there are none.

        The bytes are checked against their digest: damaged ones raise and are never resent.
        """
        with self._lock:
            self._check_works()
            known = self._of_round.get((self._plan or "", round_number))
            return self._payload(known) if known is not None and known.basis == basis else None

    def record(self, *, round_number: int, basis: str, payload: bytes, cost: Cost) -> Recorded:
        """Charges a release and stores its bytes; when it returns they are on disk and may be sent.

        Send `payload` of the result, not the argument: a round already released on this basis comes back as it was.

        Args:
            round_number: The round of the current plan, from 1.
            basis: What was asked, such as the digest of the global model the update was computed from.
            payload: What is to be sent, noise included.
            cost: What it spends.

        Raises:
            RefusedReleaseError: The plan does not allow it. Nothing was recorded.
            LedgerError: It could not be written. Nothing may be sent; open the ledger again and ask `stored`.
        """
        round_number = _whole("round", round_number)
        _text("basis", basis)
        if not isinstance(payload, bytes) or len(payload) > _MOST_BYTES:
            raise LedgerError(f"a payload is bytes, at most {_MOST_BYTES:,} of them, got {_shape(payload)}")
        with self._lock:
            self._check_works()
            known = self._of_round.get((self._plan or "", round_number))
            if known is not None and known.basis == basis:
                return Recorded(sequence=known.sequence, payload=self._payload(known), fresh=False)
            reason = self.would_exceed(cost, round_number)
            if reason is not None or self._plan is None:
                raise RefusedReleaseError(f"{self._path}: {reason}")
            made = (len(self._entries) + 1, self._plan, round_number, basis, hashlib.sha256(payload).hexdigest())
            spent = self._spent_with(cost)
            figures = (cost.shift_above, cost.shift_inside, spent.shift_above, spent.shift_inside)
            row = (*made, *figures, _chain_hash(self.head, (*made, *figures)))
            entry = _entry(row)
            self._write(
                ("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row),
                ("INSERT INTO payload VALUES (?, ?)", (entry.sequence, payload)),
            )
            self._entries.append(entry)
            self._of_round[entry.plan_digest, entry.round_number] = entry
            self._in_doubt = False
            return Recorded(sequence=entry.sequence, payload=payload, fresh=True)

    def checks(
        self, *, least_sequence: int | None = None, witnessed_hash: str | None = None
    ) -> tuple[LedgerCheck, ...]:
        """Returns what `verify` does, for a ledger that is open."""
        with self._lock:
            if reason := self._idle(writes=False):
                raise LedgerError(reason)
            with _translated(self._path, "read"):
                found = [str(row[0]) for row in self._connection.execute("PRAGMA integrity_check(1)")]
            checks = [
                LedgerCheck(name="file", holds=found == ["ok"], detail=" ".join(" ".join(found).split())),
                *self._entry_checks(),
                self._payload_check(),
            ]
        if least_sequence is not None:
            detail = f"{self.sequence} releases, {least_sequence} were seen by a witness"
            checks.append(LedgerCheck(name="witness", holds=self.sequence >= least_sequence, detail=detail))
        if witnessed_hash is not None:
            seen = witnessed_hash in (_genesis(self._silo), *(entry.chain_hash for entry in self._entries))
            detail = f"hash {witnessed_hash[:12]} is {'' if seen else 'not '}in the chain"
            checks.append(LedgerCheck(name="witnessed hash", holds=seen, detail=detail))
        return tuple(checks)

    def _idle(self, *, writes: bool = True) -> str | None:
        """Why this object does no work, if so."""
        if self._closed:
            return f"{self._path} is closed. Open it again"
        if os.getpid() != self._process:
            return f"{self._path} was opened before a fork. Open it in the process that releases"
        if self._in_doubt:
            return f"{self._path} could not be written earlier. Open it again, and ask what is stored"
        if writes and not self._writable:
            return f"{self._path} was opened to be read"
        return None

    def _check_works(self) -> None:
        if reason := self._idle():
            raise LedgerError(reason)

    def _write(self, *statements: _Statement) -> None:
        """Writes in one transaction and syncs. The caller takes the doubt away once memory agrees with the disk."""
        self._in_doubt = True  # an interrupt too leaves it so, wherever it strikes
        try:
            with _translated(self._path, "written, so nothing may be sent"):
                self._connection.execute("BEGIN IMMEDIATE")
                for sql, values in statements:
                    self._connection.execute(sql, values)
                self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # else the next to open drops it
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise

    def _payload(self, entry: Entry) -> bytes:
        with _translated(self._path, "read"):
            row = self._connection.execute("SELECT bytes FROM payload WHERE sequence = ?", (entry.sequence,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or hashlib.sha256(row[0]).hexdigest() != entry.payload_digest:
            raise LedgerError(f"{self._path} is damaged: the bytes of entry {entry.sequence} are not those released")
        return row[0]

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

    def _entry_checks(self) -> Iterator[LedgerCheck]:
        """The checks that need no payload, cheap enough for every opening."""
        entries = self._entries
        gap = next((number for number, entry in enumerate(entries, 1) if entry.sequence != number), None)
        yield LedgerCheck(
            name="sequence",
            holds=gap is None,
            detail=f"{len(entries)} releases" if gap is None else f"entry {gap} is missing",
        )
        previous, broken = _genesis(self._silo), None
        for entry in entries:
            if broken is None and _chain_hash(previous, _facts(entry)) != entry.chain_hash:
                broken = entry.sequence
            previous = entry.chain_hash
        yield LedgerCheck(
            name="chain",
            holds=broken is None,
            detail=f"head {previous[:12]}"
            if broken is None
            else f"entry {broken} does not follow from those before it",
        )
        true = _sum([entry.cost for entry in entries])
        stated = self.spent
        yield LedgerCheck(
            name="sums",
            holds=true == stated,
            detail=f"costs add up to {true.shift_above:g} above and {true.shift_inside:g} inside the region"
            + ("" if true == stated else f", stated {stated.shift_above:g} and {stated.shift_inside:g}"),
        )
        twice = len(entries) - len(self._of_round)
        yield LedgerCheck(name="rounds", holds=not twice, detail=f"{twice} releases of a round already released")
        outside = [entry.sequence for entry in entries if not self._allowed(entry)]
        yield LedgerCheck(
            name="allowance",
            holds=not outside,
            detail=f"entry {outside[0]} is beyond its plan" if outside else "every release was within its plan",
        )

    def _allowed(self, entry: Entry) -> bool:
        plan = self._plans.get(entry.plan_digest)
        return plan is not None and 1 <= entry.round_number <= plan.rounds and not self._over(plan, entry.spent)

    def _payload_check(self) -> LedgerCheck:
        damaged = []
        for entry in self._entries:
            try:
                self._payload(entry)
            except LedgerError:
                damaged.append(entry.sequence)
        with _translated(self._path, "read"):
            more = self._connection.execute("SELECT count(*) FROM payload").fetchone()[0] - len(self._entries)
        detail = f"{len(self._entries)} payloads" + (f", {more} too many" if more > 0 else "")
        if damaged:
            detail = f"the bytes of entry {damaged[0]} are not those released"
        return LedgerCheck(name="payloads", holds=not damaged and more == 0, detail=detail)


def verify(
    path: _PathLike, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[LedgerCheck, ...]:
    """Returns the checks of a ledger file, every payload read; it holds up if all of them do.

    A ledger restored from an old copy is sound in itself: only whoever saw a later state can tell.

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


_LIVE: weakref.WeakValueDictionary[tuple[int, int], Ledger] = weakref.WeakValueDictionary()  # open here, by inode
_REGISTRY = threading.RLock()
_FORKING: list[Ledger] = []


def _before_fork() -> None:
    """Waits for writes under way, so that a child does not inherit half of one."""
    _REGISTRY.acquire()
    _FORKING.extend(_LIVE.values())
    for ledger in _FORKING:
        ledger._lock.acquire()


def _after_fork() -> None:
    while _FORKING:
        _FORKING.pop()._lock.release()
    _REGISTRY.release()


def _after_fork_in_child() -> None:
    for ledger in _FORKING:
        # SQLite does not notice a fork: closed in the child, it would fold in and delete the log under the parent.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(ledger._connection))
        ledger._hold.close()  # or a child that outlives its parent would keep the ledger from being opened
    _LIVE.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value or value != value.encode("utf-8", "ignore").decode():
        raise LedgerError(f"{what} must be text, not empty, got {value!r}")
    return value


def _whole(what: str, value: object) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number < 2**63:
        raise LedgerError(f"{what} must be a whole number of at least 1, got {value!r}")
    return number


def _shift(what: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        raise LedgerError(f"{what} must be a number of at least 0, got {value!r}")
    return number + 0.0  # SQLite has no -0.0


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
    return _digest(["fulcrum.ledger", FORMAT, silo])


def _chain_hash(previous: str, facts: _Facts) -> str:
    return _digest([previous, *facts[:5], *(figure.hex() for figure in facts[5:])])


def _facts(entry: Entry) -> _Facts:
    """What the hash of an entry covers, in the order of its columns."""
    made = (entry.sequence, entry.plan_digest, entry.round_number, entry.basis, entry.payload_digest)
    cost, spent = entry.cost, entry.spent
    return (*made, cost.shift_above, cost.shift_inside, spent.shift_above, spent.shift_inside)


def _entry(row: tuple[int, str, int, str, str, float, float, float, float, str]) -> Entry:
    return Entry(
        sequence=row[0],
        plan_digest=row[1],
        round_number=row[2],
        basis=row[3],
        payload_digest=row[4],
        cost=Cost(shift_above=row[5], shift_inside=row[6]),
        spent=Cost(shift_above=row[7], shift_inside=row[8]),
        chain_hash=row[9],
    )


def _contents(connection: sqlite3.Connection, file: Path) -> tuple[str, str | None, dict[str, Allowance], list[Entry]]:
    """The silo, its current plan, all its plans and its entries, each of the type it was written as."""
    damaged = LedgerError(f"{file} is damaged: it does not hold what a ledger holds")
    silos = connection.execute("SELECT name, plan FROM silo").fetchall()
    if len(silos) != 1 or not isinstance(silos[0][0], str) or not isinstance(silos[0][1], str | None):
        raise damaged
    plans, entries = {}, []
    try:
        for digest, rounds, above, inside in connection.execute("SELECT * FROM plan"):
            plans[digest] = Allowance(plan_digest=digest, rounds=rounds, shift_above=above, shift_inside=inside)
        for row in connection.execute("SELECT * FROM entry ORDER BY sequence"):
            if tuple(map(type, row)) != _ENTRY_TYPES:
                raise damaged
            entries.append(_entry(row))
    except LedgerError:
        raise damaged from None
    if silos[0][1] is not None and silos[0][1] not in plans:
        raise damaged
    return silos[0][0], silos[0][1], plans, entries


def _check_is_file(file: Path) -> None:
    about = file.stat()
    if not stat.S_ISREG(about.st_mode):
        raise LedgerError(f"{file} is {'a folder' if file.is_dir() else 'not a file'}. Name the file of the ledger")
    if about.st_size == 0:  # a new ledger appears under its name complete, so this one was emptied
        raise LedgerError(f"{file} is empty: it was a ledger that lost its content, or never was one")


def _check_format(connection: sqlite3.Connection, file: Path) -> None:
    application, version = _pragmas(connection, "application_id", "user_version")
    if application != _APPLICATION:
        raise LedgerError(f"{file} is an SQLite file but not a ledger")
    if version != FORMAT:
        raise LedgerError(f"{file} is a ledger of format {version}, this Fulcrum knows format {FORMAT}. Update Fulcrum")


def _check_size(connection: sqlite3.Connection, file: Path) -> None:
    """SQLite itself reads a last page that was cut short as if it ended in zeros."""
    pages, page_bytes = _pragmas(connection, "page_count", "page_size")
    if (size := file.stat().st_size) != pages * page_bytes:
        raise LedgerError(f"{file} is damaged: it has {size:,} bytes, its header says {pages * page_bytes:,}")


def _pragmas(connection: sqlite3.Connection, *names: str) -> list[int]:
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


def _inode(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino


def _held(file: Path, *, exclusive: bool) -> io.FileIO:
    """Takes the lock of the ledger's life, beside SQLite's own.

    POSIX drops SQLite's locks as soon as this process closes any other descriptor of the file, after copying it for
    example. A lock of `flock` lasts as long as its own descriptor. Windows has no such trap and needs no second lock.
    """
    if _inode(file) in _LIVE:  # looked up first: opening and closing the file here would drop SQLite's lock
        raise LedgerInUseError(f"{file} is open in this process. Close it first")
    hold = io.FileIO(file, "r+" if exclusive else "r")
    if sys.platform != "win32":
        try:
            fcntl.flock(hold, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            hold.close()
            raise LedgerInUseError(_in_use(file)) from None
        except OSError:
            hold.close()
            raise
    return hold


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.as_uri()}?{mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=0
    )
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def _folded(file: Path) -> sqlite3.Connection:
    """Takes SQLite's lock for good, recovers what a killed process left, and makes the file alone the whole ledger."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(contextlib.closing(_connected(file, "mode=rw")))
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # before the log is touched: no shared memory beside it
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")  # macOS: past the cache of the drive
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute("BEGIN EXCLUSIVE")
        _check_format(connection, file)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=TRUNCATE")
        _check_size(connection, file)
        undo.pop_all()
    return connection


def _tidy(connection: sqlite3.Connection) -> None:
    """Leaves one file behind where the disk allows it; where it does not, the log stays and nothing is lost."""
    with contextlib.suppress(sqlite3.Error):
        for setting in ("journal_mode=TRUNCATE", "locking_mode=NORMAL", "journal_mode=DELETE"):
            connection.execute(f"PRAGMA {setting}")


def _create(file: Path, silo: str) -> None:
    """Makes an empty ledger under another name and links it into place: a name never stands for half a ledger."""
    if not file.parent.is_dir():
        raise LedgerError(f"the folder {file.parent} does not exist. Make it first")
    handle, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".new", dir=file.parent)
    os.close(handle)
    made = Path(name)
    try:
        with contextlib.closing(sqlite3.connect(made, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO silo VALUES (?, NULL)", (silo,))
        with made.open("rb+") as written:
            os.fsync(written.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its ledger is the one to open
            file.hardlink_to(made)
    finally:
        made.unlink()


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _in_use(file: Path) -> str:
    return f"{file} is in use by another process, or on a network drive that cannot lock it. Close it there first"


@contextlib.contextmanager
def _translated(file: Path, done: str) -> Iterator[None]:
    """Turns what SQLite and the system raise into one line."""
    try:
        yield
    except _FAILURES as error:
        if isinstance(error, FulcrumError):
            raise
        name = getattr(error, "sqlite_errorname", "")
        said = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            raise LedgerInUseError(_in_use(file)) from error
        if name == "SQLITE_NOTADB":
            raise LedgerError(f"{file} is not a ledger, or its first bytes are damaged") from error
        if name.startswith("SQLITE_CORRUPT") or (isinstance(error, sqlite3.Error) and not name):
            raise LedgerError(f"{file} is damaged ({said}). Restore a copy and compare it with a witness") from error
        if name == "SQLITE_FULL":
            said = "the disk is full"
        elif name.startswith("SQLITE_READONLY"):
            said = "it is read-only"
        raise LedgerError(f"{file} cannot be {done} ({said})") from error
