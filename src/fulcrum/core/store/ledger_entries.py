"""The entries of a ledger: the cost of a release by observer, the allowance of a plan, and a line of the file.

>>> cost = Cost(shifts={"silo": 1, "region": 0.25})
>>> cost.charge_to(("silo", "region", "federation"))
Cost(shifts={'silo': 1.0, 'region': 0.25, 'federation': 0.25})

A tier with the same name in two plans may have different observers: after a silo moved, with more colluders, or with
sums masked in another way. `Assumptions` state the observers of a plan. A release of a plan with other assumptions is
charged as to an observer further inside, in the last resort as to an observer of the silo's own update:

>>> before = Assumptions(federation="91bc", colluders=0)
>>> cost.charge_to(("silo", "region"), before, Assumptions(federation="91bc", colluders=2))
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

SILO, PERSON, RECORD = "silo", "person", "record"
_NEIGHBOURS = ("replace", "add-remove")
_DIAMETER = 2.01
"""The largest change of one person's clipped gradient over C, 2, and 1 % for the cut of the sum to the lattice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedUnit:
    """The unit of privacy in which the releases of a plan are charged; by default a silo's whole dataset.

    Attributes:
        name: "silo", "person" or "record".
        neighbours: "replace" or "add-remove".
        silos_per_person: The number of silos with records of one person that the plan provides for.
        sensitivity: kappa, the largest change of the release of one silo by one unit, over weight times C.
        largest_sum: The largest norm of the silo's sum of clipped gradients over C; 1 for the unit "silo".
    """

    name: str = SILO
    neighbours: str = "replace"
    silos_per_person: int = 1
    sensitivity: float = 2.0
    largest_sum: float = 1.0

    def __post_init__(self) -> None:
        count, numbers = self.silos_per_person, (self.sensitivity, self.largest_sum)
        if self.name not in (SILO, PERSON, RECORD) or self.neighbours not in _NEIGHBOURS:
            raise LedgerError("ledger.unit-unknown", unit=self)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise LedgerError("ledger.unit-unknown", unit=self)
        if not all(isinstance(number, float) and 0 < number < math.inf for number in numbers):
            raise LedgerError("ledger.unit-unknown", unit=self)

    def factor_to(self, later: Self) -> float:
        """Returns a bound on the squared shift of a release in a later plan's unit, over the shift in this unit.

        - To replace a silo's whole dataset contains every change of a person or record: a release that was charged to
          the silo costs a person no more.
        - To replace all data of a silo moves a sum of clipped gradients by at most twice the largest sum.
        - One record of a person replaced, added or removed moves the person's clipped gradient by at most 2C.
        - A person may have any number of records: a release that was charged by record costs a person without a bound.
        - A person in h silos, where the earlier plan provided for fewer, moves all sums together by at most h times.
        """
        if self == later:
            return 1.0
        if self.name == SILO:
            ratio = 1.0
        elif later.name == SILO:
            ratio = 2 * self.largest_sum / self.sensitivity
        elif self.name == later.name:
            ratio = later.sensitivity / self.sensitivity
        else:
            ratio = _DIAMETER / self.sensitivity if later.name == RECORD else math.inf
        if later.silos_per_person > self.silos_per_person:
            ratio *= later.silos_per_person
        return max(ratio, 1.0) ** 2  # never less than was charged: a smaller bound would need the clip of every plan


SILO_CHARGED = ChargedUnit()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The assumptions of a plan about observers, for charging the costs of earlier plans.

    Attributes:
        federation: The digest of the federation: silos and their regions.
        colluders: The number of silos in every region that may share their noise with an observer.
        group: The tier with masked sums; empty if aggregators are trusted with single releases.
        continuing: True if the plan continues earlier plans: the promise is then against observers who were outside of
            the silo's region in every plan, with the same colluders throughout.
        unit: The unit of privacy of the plan's costs; ledgers of earlier versions have the unit "silo" alone.
    """

    federation: str
    colluders: int = 0
    group: str = ""
    continuing: bool = False
    unit: ChargedUnit = SILO_CHARGED

    def __post_init__(self) -> None:
        text("federation", self.federation)
        if not isinstance(self.colluders, int) or isinstance(self.colluders, bool) or self.colluders < 0:
            raise LedgerError("ledger.colluders-range", colluders=self.colluders)
        if (
            not isinstance(self.group, str)
            or not isinstance(self.continuing, bool)
            or type(self.unit) is not ChargedUnit
        ):
            raise LedgerError("ledger.assumptions-type", assumptions=self)

    def to_text(self) -> str:
        """Returns the text of the assumptions in the file."""
        fields = [self.federation, self.colluders, self.group, self.continuing]
        if (unit := self.unit) != SILO_CHARGED:
            numbers = [unit.sensitivity.hex(), unit.largest_sum.hex()]
            fields += [unit.name, unit.neighbours, unit.silos_per_person, *numbers]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the assumptions from a text of the file; raises `LedgerError` for any other text."""
        try:
            federation, colluders, group, continuing, *unit = json.loads(text)
            charged = SILO_CHARGED
            if unit:
                name, neighbours, count, sensitivity, largest = unit
                numbers = {"sensitivity": float.fromhex(sensitivity), "largest_sum": float.fromhex(largest)}
                charged = ChargedUnit(name=name, neighbours=neighbours, silos_per_person=count, **numbers)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise LedgerError("ledger.assumptions-malformed") from None
        return cls(federation=federation, colluders=colluders, group=group, continuing=continuing, unit=charged)

    def covers(self, observer: str, later: Self, *, inner_tiers: bool) -> bool:
        """Returns True if an observer of a later plan has seen no more of this plan's releases than this plan charged.

        False is the safe answer: the caller then charges the release as to an observer further inside.

        Args:
            observer: The name of the tier, the same in both plans.
            later: The assumptions of the later plan.
            inner_tiers: True if every tier of this plan inside `observer` is also inside `observer` in the later plan.
        """
        if self.federation != later.federation and not later.continuing:
            return False  # a silo may have moved: the earlier aggregator is now an observer outside of the region
        if self.was_one_group(later):
            return False
        if observer == INSIDE:  # without masks the observer inside meets the silo's own noise alone, for any colluders
            return not self.group or max(1, later.colluders) <= max(1, self.colluders)
        return later.colluders <= self.colluders and inner_tiers

    def was_one_group(self, later: Self) -> bool:
        """Returns True if all silos were masked as one group under this plan, and are not under the later plan.

        The cost of a single group is against an observer outside of the federation, or with few silos of every region.
        Under the later plan all silos of other regions are observers. Together, the silos of other regions know all
        noise in the global sum except the noise of one region, possibly the silo's own noise alone. No
        observer inside sees less than an observer further out, so the observer inside may know as much.
        """
        return self.group == ROOT != later.group


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Cost:
    """The cost of releases as squared mean shifts (mu²), additive over releases; infinite without noise.

    Neighbouring federations differ in the unit of the release's plan (`ChargedUnit`, `fulcrum.core.privacy_unit`).

    Attributes:
        shifts: By observer, from the inside outward: "silo" (inside of the region), the innermost tier, outer tiers,
            "federation". An observer further out sees less.
        alone: The cost against an observer who meets the silo's own noise and no other noise; None if the observer
            "silo" is such an observer. With masked sums the observer "silo" meets the noise of other silos too.
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

    def charge_to(
        self, observers: Sequence[str], before: Assumptions | None = None, later: Assumptions | None = None
    ) -> Self:
        """Returns the cost of the same releases against the observers of a later plan.

        Rules, each on the safe side:

        - an observer that the cost names, and that has seen no more than charged (`Assumptions.covers`), keeps its
          cost;
        - any other observer is charged as the next observer inside, because an observer further out sees no more;
        - the innermost charge is the cost against an observer of the silo's own update (`alone`);
        - a cost in another unit of privacy is multiplied by `ChargedUnit.factor_to`.

        Args:
            observers: The observers of the later plan, from the inside outward.
            before: The assumptions of the releases' plan; None if unknown.
            later: The assumptions of the later plan. Two plans without assumptions are compared by names alone.

        Raises:
            LedgerError: The cost does not name the innermost observer, or names two observers in the other order.
        """
        if [name for name in self.shifts if name in observers] != [name for name in observers if name in self.shifts]:
            theirs, ours = ", ".join(observers), ", ".join(self.shifts)
            raise LedgerError("ledger.tiers-order", tiers=theirs, observers=ours)
        return self._times(unit_of(before).factor_to(unit_of(later)))._charge_to(observers, before, later)

    def _charge_to(self, observers: Sequence[str], before: Assumptions | None, later: Assumptions | None) -> Self:
        own = next(iter(self.shifts.values()), None) if self.alone is None else self.alone
        shifts: dict[str, float] = {}
        inside = None if before == later else own
        for place, name in enumerate(observers):
            if name in self.shifts and self._covers(name, before, later, within=observers[:place]):
                inside = self.shifts[name]
            if inside is None:
                raise LedgerError("ledger.observer-missing", observers=", ".join(self.shifts), observer=name)
            shifts[name] = inside
        return type(self)(shifts=shifts)

    def _times(self, factor: float) -> Self:
        """Returns the cost with all squared shifts multiplied; an infinite factor has no bound for any release."""
        if factor == 1:
            return self
        scaled = {name: math.inf if factor == math.inf else shift * factor for name, shift in self.shifts.items()}
        alone = self.alone if self.alone is None else (math.inf if factor == math.inf else self.alone * factor)
        return type(self)(shifts=scaled, alone=alone)

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
        """Returns the sum of costs against `observers`: the exact sum, rounded once, independent of the order."""
        charged = [cost.charge_to(observers) for cost in costs]
        return cls(shifts={name: _sum(cost.shifts[name] for cost in charged) for name in observers})

    def to_text(self) -> str:
        """Returns the text of the cost in the file, with every bit of the numbers; `alone` is first, without a name."""
        alone = [] if self.alone is None else [[None, self.alone.hex()]]
        pairs = [*alone, *([name, shift.hex()] for name, shift in self.shifts.items())]
        return json.dumps(pairs, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the cost from a text of the file; raises `LedgerError` for a text that `to_text` does not write."""
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
    """The budget of a plan for a silo in total: the budget covers all releases of the silo, under every plan.

    Attributes:
        plan_digest: The digest of the plan.
        rounds: The number of rounds, counted from 1; a round has a single release.
        shifts: The budget of mu² by observer, from the inside outward, as in `Cost`.
        assumptions: The assumptions of the plan about observers; None if unknown.
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
        """The observers of the plan, from the inside outward."""
        return tuple(self.shifts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the ledger: a release without the payload.

    Attributes:
        sequence: The number of the entry, from 1.
        plan_digest: The digest of the release's plan.
        round_number: The round of the plan.
        input_digest: The digest of the inputs from the server, such as the global model.
        payload_digest: SHA-256 of the payload.
        cost: The cost of the release, by the observers of the plan.
        spent: The cost of all releases of the silo up to this entry, by the same observers.
        former_hash: The hash of the entry in a ledger of an earlier format; None for an entry recorded in this format.
        chain_hash: SHA-256 of the previous entry's hash and all values above.
    """

    sequence: int
    plan_digest: str
    round_number: int
    input_digest: str
    payload_digest: str
    cost: Cost
    spent: Cost
    former_hash: str | None = None
    chain_hash: str = ""


def unit_of(assumptions: Assumptions | None) -> ChargedUnit:
    """Returns the unit of a plan's costs; a plan without assumptions was made before units other than the silo."""
    return SILO_CHARGED if assumptions is None else assumptions.unit


def text(what: str, value: object) -> str:
    """Returns a text that is not empty, and that SQLite and JSON keep unchanged; raises `LedgerError` otherwise."""
    if not isinstance(value, str) or not value or "\0" in value or value != value.encode("utf-8", "ignore").decode():
        raise LedgerError("ledger.text-invalid", noun=what, value=value)
    return value


def whole(what: str, value: object) -> int:
    """Returns a whole number from 1 to 2^63 - 1, SQLite's largest; raises `LedgerError` otherwise."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if isinstance(value, bool) or not 1 <= number < 2**63:
        raise LedgerError("ledger.number-range", noun=what, value=value)
    return number


def _shifts(value: object) -> Mapping[str, float]:
    """Returns a read-only copy of squared shifts by observer."""
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
    return number + 0.0  # -0.0 would have another text in the file, and so another hash, than the equal 0.0


def _sum(shifts: Iterable[float]) -> float:
    try:
        return math.fsum(shifts)
    except OverflowError:
        return math.inf
