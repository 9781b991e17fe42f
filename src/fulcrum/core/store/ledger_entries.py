"""The records of a ledger: the cost of a release by observer, the allowance of a plan, and one line of the file.

>>> cost = Cost(shifts={"silo": 1, "region": 0.25})
>>> cost.charged(("silo", "region", "federation"))
Cost(shifts={'silo': 1.0, 'region': 0.25, 'federation': 0.25})

A tier has the same name in two plans and other observers: after a silo moved, with more colluders, or with sums that
are masked otherwise. `Assumptions` say whom a plan counts as an observer. A release of a plan with other assumptions is
charged as to an observer further inside, at last as to somebody who saw the silo's own update:

>>> before = Assumptions(federation="91bc", colluders=0)
>>> cost.charged(("silo", "region"), before, Assumptions(federation="91bc", colluders=2))
Cost(shifts={'silo': 1.0, 'region': 1.0})
"""

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from fulcrum.errors import LedgerError

INSIDE, ROOT = "silo", "federation"
"""The observer inside the region, and the outermost tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The assumptions of a plan about its observers, by which costs under another plan can be compared.

    Attributes:
        federation: The digest of the federation: who reports to whom.
        colluders: Silos of each region that may share their noise with an observer.
        group: The tier whose sums are masked; empty where aggregators are trusted with updates.
        continuing: True where the plan continues earlier plans, so that its promise is against those who were outside
            in every plan, with the same colluders throughout.
    """

    federation: str
    colluders: int = 0
    group: str = ""
    continuing: bool = False

    def __post_init__(self) -> None:
        text("federation", self.federation)
        if not isinstance(self.colluders, int) or isinstance(self.colluders, bool) or self.colluders < 0:
            raise LedgerError("ledger.colluders-range", colluders=self.colluders)
        if not isinstance(self.group, str) or not isinstance(self.continuing, bool):
            raise LedgerError("ledger.assumptions-type", assumptions=self)

    def to_text(self) -> str:
        """Returns the assumptions as they are in the file."""
        return json.dumps([self.federation, self.colluders, self.group, self.continuing], separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the assumptions that a text of the file holds; any other text raises LedgerError."""
        try:
            federation, colluders, group, continuing = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise LedgerError("ledger.assumptions-malformed") from None
        return cls(federation=federation, colluders=colluders, group=group, continuing=continuing)

    def covers(self, observer: str, later: Self, *, inner_tiers: bool) -> bool:
        """Returns True if an observer of a later plan has seen no more of this plan's releases than this plan charged.

        Args:
            observer: The name of the tier, the same in both plans.
            later: The assumptions of the later plan.
            inner_tiers: True if every tier of this plan inside `observer` is inside it in the later plan too.
        """
        if self.federation != later.federation and not later.continuing:
            return False  # a silo may have moved: its earlier aggregator is outside its region now
        if observer == INSIDE:  # without masks the observer inside meets the silo's own noise alone, whoever colludes
            return not self.group or max(1, later.colluders) <= max(1, self.colluders)
        if later.colluders > self.colluders or not inner_tiers:
            return False
        return not self.was_one_group(later)

    def was_one_group(self, later: Self) -> bool:
        """Returns True if all silos were masked as one group under this plan and are not under the later plan.

        Of one group the cost is that against somebody outside the federation, or with few silos of each region. Under
        the later plan all silos of other regions are observers, and together they know all noise in the global sum but
        that of one region, which may be the silo's own alone.
        """
        return self.group == ROOT != later.group


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost:
    """The spending of releases, as squared mean shifts (mu²), additive over releases; infinite without noise.

    Attributes:
        shifts: By observer, from the one inside the region, "silo", outward: the innermost tier, outer tiers,
            "federation". The order tells who sees less.
        alone: Against somebody who meets the silo's own noise and no other; None where the observer inside does. With
            masked sums the observer inside meets the noise of other silos too.
    """

    shifts: Mapping[str, float]
    alone: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shifts", _shifts(self.shifts))
        if self.alone is not None:
            object.__setattr__(self, "alone", _shift("alone", self.alone))

    def __repr__(self) -> str:
        alone = "" if self.alone is None else f", alone={self.alone}"
        return f"Cost(shifts={dict(self.shifts)}{alone})"

    def charged(
        self, observers: Sequence[str], before: Assumptions | None = None, later: Assumptions | None = None
    ) -> Self:
        """Returns the cost as the observers of a later plan are charged with it, who are named from the inside outward.

        An observer is charged as the next one inside where the cost does not name it, or where the assumptions of the
        two plans differ so that it may have seen more (`Assumptions.covers`): further out, nobody sees more. The last
        resort inside is somebody who saw the silo's own update.

        Args:
            observers: The tiers of the later plan.
            before: The assumptions of the plan that the release was made under; None where they are not known.
            later: Those of the later plan. Two plans without assumptions are compared by names alone.

        Raises:
            LedgerError: The cost does not name the innermost of them, or names two of them in the other order.
        """
        if [name for name in self.shifts if name in observers] != [name for name in observers if name in self.shifts]:
            theirs, ours = ", ".join(observers), ", ".join(self.shifts)
            raise LedgerError("ledger.tiers-order", tiers=theirs, observers=ours)
        own = next(iter(self.shifts.values()), None) if self.alone is None else self.alone
        shifts: dict[str, float] = {}
        inside = None if before == later else own
        for place, name in enumerate(observers):
            if name in self.shifts and self._covers(name, before, later, within=observers[:place]):
                inside = self.shifts[name]
            elif name != INSIDE and before is not None and later is not None and before.was_one_group(later):
                inside = own
            if inside is None:
                raise LedgerError("ledger.observer-missing", observers=", ".join(self.shifts), observer=name)
            shifts[name] = inside
        return type(self)(shifts=shifts)

    def _covers(
        self, name: str, before: Assumptions | None, later: Assumptions | None, *, within: Sequence[str]
    ) -> bool:
        if before == later:
            return True
        if before is None or later is None:
            return False
        ours = list(self.shifts)
        return before.covers(name, later, inner_tiers=set(ours[: ours.index(name)]) <= set(within))

    @classmethod
    def total(cls, costs: Iterable[Self], observers: Sequence[str]) -> Self:
        """Returns the sum of costs for some observers: the exact sum rounded once, in whatever order."""
        charged = [cost.charged(observers) for cost in costs]
        return cls(shifts={name: _sum(cost.shifts[name] for cost in charged) for name in observers})

    def to_text(self) -> str:
        """Returns the cost as it is in the file, every bit of its numbers; `alone` stands first, without a name."""
        alone = [] if self.alone is None else [[None, self.alone.hex()]]
        pairs = [*alone, *([name, shift.hex()] for name, shift in self.shifts.items())]
        return json.dumps(pairs, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the cost that a text of the file holds; a text that `to_text` does not write raises LedgerError."""
        try:
            shifts = {name: float.fromhex(shift) for name, shift in json.loads(text)}
            cost = cls(alone=shifts.pop(None, None), shifts=shifts)
        except (TypeError, ValueError, RecursionError):
            cost = None
        if cost is None or cost.to_text() != text:
            raise LedgerError("ledger.cost-malformed")
        return cost


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Allowance:
    """The budget of a plan for one silo in total, everything the silo ever spent included.

    Attributes:
        plan_digest: Which plan.
        rounds: Rounds, numbered from 1; one release a round.
        shifts: The budget of mu² by observer, from the inside outward, as in `Cost`.
        assumptions: Whom the plan counts as an observer; None where that is not known.
    """

    plan_digest: str
    rounds: int
    shifts: Mapping[str, float]
    assumptions: Assumptions | None = None

    def __post_init__(self) -> None:
        text("plan digest", self.plan_digest)
        object.__setattr__(self, "rounds", whole("rounds", self.rounds))
        object.__setattr__(self, "shifts", _shifts(self.shifts))
        if not self.shifts:
            raise LedgerError("ledger.observers-missing")

    def __repr__(self) -> str:
        assumed = "" if self.assumptions is None else f", assumptions={self.assumptions}"
        return f"Allowance(plan_digest={self.plan_digest!r}, rounds={self.rounds}, shifts={dict(self.shifts)}{assumed})"

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
        raise LedgerError("ledger.text-invalid", noun=what, value=value)
    return value


def whole(what: str, value: object) -> int:
    """Returns a whole number from 1 that SQLite can hold; anything else raises LedgerError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number < 2**63:
        raise LedgerError("ledger.number-range", noun=what, value=value)
    return number


def _shifts(value: object) -> Mapping[str, float]:
    """Returns squared shifts by observer that nobody can change any more."""
    if not isinstance(value, Mapping):
        raise LedgerError("ledger.shifts-type", shifts=value)
    return MappingProxyType({text("an observer", name): _shift(name, shift) for name, shift in value.items()})


def _shift(observer: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number >= 0:
        raise LedgerError("ledger.shift-range", observer=observer, shift=value)
    return number + 0.0  # not -0.0


def _sum(shifts: Iterable[float]) -> float:
    try:
        return math.fsum(shifts)
    except OverflowError:
        return math.inf
