"""The records of a ledger: what a release costs, what a plan allows, and one line of the file.

>>> Cost(shift_above=1, shift_inside=-0.0)
Cost(shift_above=1.0, shift_inside=0.0)
"""

import math
import operator
from dataclasses import dataclass
from typing import TypeAlias

from fulcrum.errors import LedgerError

EntryRow: TypeAlias = tuple[int, str, int, str, str, float, float, float, float, str]
"""An entry as it is in the file, in the order of its columns."""


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
        text("plan digest", self.plan_digest)
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        object.__setattr__(self, "shift_above", _shift("shift_above", self.shift_above))
        object.__setattr__(self, "shift_inside", _shift("shift_inside", self.shift_inside))


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


def entry_of(row: EntryRow) -> Entry:
    """Returns the entry that a row of the file holds."""
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


def text(what: str, value: object) -> str:
    """Returns a text that SQLite and JSON keep as it is, not empty; anything else raises LedgerError."""
    if not isinstance(value, str) or not value or "\0" in value or value != value.encode("utf-8", "ignore").decode():
        raise LedgerError(f"{what} must be text, not empty, got {value!r}")
    return value


def whole(what: str, value: object) -> int:
    """Returns a whole number from 1 that SQLite can hold; anything else raises LedgerError."""
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
