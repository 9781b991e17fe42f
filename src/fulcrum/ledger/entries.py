"""The records of a ledger: the cost of a release by observer, the allowance of a plan, and one line of the file.

>>> cost = Cost(shifts={"silo": 1, "region": 0.25})
>>> cost.charged(("silo", "region", "federation"))
Cost(shifts={'silo': 1.0, 'region': 0.25, 'federation': 0.25})
"""

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from fulcrum.errors import LedgerError


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost:
    """The spending of releases, as squared mean shifts (mu²), additive over releases; infinite without noise.

    Attributes:
        shifts: By observer, from the one inside the region, "silo", outward: the innermost tier, outer tiers,
            "federation". The order tells who sees less.
    """

    shifts: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shifts", _shifts(self.shifts))

    def __repr__(self) -> str:
        return f"Cost(shifts={dict(self.shifts)})"

    def charged(self, observers: Sequence[str]) -> Self:
        """Returns the cost as other observers are charged with it, who are named from the inside outward.

        An observer that the cost does not name is charged as the next one inside: further out, nobody sees more.

        Raises:
            LedgerError: The cost does not name the innermost of them, or names two of them in the other order.
        """
        if [name for name in self.shifts if name in observers] != [name for name in observers if name in self.shifts]:
            theirs, ours = ", ".join(observers), ", ".join(self.shifts)
            raise LedgerError(f"a plan names its tiers {theirs}, and a release was charged to {ours}, in another order")
        shifts: dict[str, float] = {}
        inside = None
        for name in observers:
            inside = self.shifts.get(name, inside)
            if inside is None:
                raise LedgerError(f"a release was charged to {', '.join(self.shifts)}, and nobody there is {name!r}")
            shifts[name] = inside
        return type(self)(shifts=shifts)

    @classmethod
    def total(cls, costs: Iterable[Self], observers: Sequence[str]) -> Self:
        """Returns the sum of costs for some observers: the exact sum rounded once, in whatever order."""
        charged = [cost.charged(observers) for cost in costs]
        return cls(shifts={name: _sum(cost.shifts[name] for cost in charged) for name in observers})

    def to_text(self) -> str:
        """Returns the cost as it is in the file, every bit of its numbers."""
        return json.dumps([[name, shift.hex()] for name, shift in self.shifts.items()], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the cost that a text of the file holds; a text that `to_text` does not write raises LedgerError."""
        try:
            cost = cls(shifts={name: float.fromhex(shift) for name, shift in json.loads(text)})
        except (TypeError, ValueError, RecursionError):
            cost = None
        if cost is None or cost.to_text() != text:
            raise LedgerError("a cost is not as it was written")
        return cost


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Allowance:
    """The budget of a plan for one silo in total, everything the silo ever spent included.

    Attributes:
        plan_digest: Which plan.
        rounds: Rounds, numbered from 1; one release a round.
        shifts: The budget of mu² by observer, from the inside outward, as in `Cost`.
    """

    plan_digest: str
    rounds: int
    shifts: Mapping[str, float]

    def __post_init__(self) -> None:
        text("plan digest", self.plan_digest)
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        object.__setattr__(self, "shifts", _shifts(self.shifts))
        if not self.shifts:
            raise LedgerError("an allowance must be for one observer at least, got none")

    def __repr__(self) -> str:
        return f"Allowance(plan_digest={self.plan_digest!r}, rounds={self.rounds}, shifts={dict(self.shifts)})"

    @property
    def observers(self) -> tuple[str, ...]:
        """The observers that the plan names, from the inside outward."""
        return tuple(self.shifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the ledger, without the payload.

    Attributes:
        sequence: Its number, from 1.
        plan_digest: The plan it was released under.
        round_number: The round of that plan.
        basis: The question that it answers, such as the digest of the global model.
        payload_digest: SHA-256 of the bytes.
        cost: Its cost, by the observers of its plan.
        spent: The silo's spending in all, this release included, by the same observers.
        former_hash: The hash that it had in a ledger of an earlier format; None where it was recorded in this one.
        chain_hash: SHA-256 over the previous entry's hash and everything above.
    """

    sequence: int
    plan_digest: str
    round_number: int
    basis: str
    payload_digest: str
    cost: Cost
    spent: Cost
    former_hash: str | None = None
    chain_hash: str = ""


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


def _shifts(value: object) -> Mapping[str, float]:
    """Returns squared shifts by observer that nobody can change any more."""
    if not isinstance(value, Mapping):
        raise LedgerError(f"shifts must be squared shifts by observer, the innermost first, got {value!r}")
    return MappingProxyType({text("an observer", name): _shift(name, shift) for name, shift in value.items()})


def _shift(observer: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        raise LedgerError(f"the squared shift of {observer!r} must be a number of at least 0, got {value!r}")
    return number + 0.0  # not -0.0


def _sum(shifts: Iterable[float]) -> float:
    try:
        return math.fsum(shifts)
    except OverflowError:
        return math.inf
