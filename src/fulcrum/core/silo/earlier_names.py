"""Earlier names of members of ledgers, costs and guarantees, for scripts that take these classes from `fulcrum`.

The public names of the package load this module together with the classes; a silo's process does not.

>>> import warnings
>>> from fulcrum.core.store.ledger_entries import Cost
>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     Cost(shifts={"silo": 0.06, "region": 0.006}).shift_above, str(caught[0].message)
(0.006, "Cost.shift_above goes with version 0.3. Use Cost.shifts['region']")
"""

import warnings
from functools import partial
from typing import Any

from fulcrum.core.plan.guarantee import Guarantee
from fulcrum.core.store.database import PathLike
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_entries import Allowance, Cost
from fulcrum.core.store.ledger_reading import read_ledger

_RENAMED = {
    Ledger: {"held": "holding", "spent": "total_cost", "stored": "stored_payload", "unused": "is_unused"},
    Cost: {"charged": "charge_to"},
    Guarantee: {"whom": "describe_observer"},
}


def _warn(member: str, instead: str) -> None:
    warnings.warn(f"{member} goes with version 0.3. Use {instead}", DeprecationWarning, stacklevel=3)


def _renamed_member(owner: type, old: str, new: str) -> property:
    def member(self: Any) -> Any:
        _warn(f"{owner.__name__}.{old}", new)
        return getattr(self, new)

    return property(member)


def _shift_at(owner: type, old: str, place: int) -> property:
    """Returns the shift of the observer at a place, from the inside outward; earlier costs had two observers."""

    def member(self: Any) -> float:
        observer = tuple(self.shifts)[place]
        _warn(f"{owner.__name__}.{old}", f"{owner.__name__}.shifts[{observer!r}]")
        return float(self.shifts[observer])

    return property(member)


def _read(cls: type[Ledger], path: PathLike) -> Ledger:
    del cls
    _warn("Ledger.read", "fulcrum.read_ledger(path)")
    return read_ledger(path)


def _checks(self: Ledger) -> Any:
    _warn("Ledger.checks", "fulcrum.verify_ledger(ledger)")
    return partial(verify_ledger, self)


for _owner, _members in _RENAMED.items():
    for _old, _new in _members.items():
        setattr(_owner, _old, _renamed_member(_owner, _old, _new))
for _owner in (Allowance, Cost):
    setattr(_owner, "shift_inside", _shift_at(_owner, "shift_inside", 0))  # noqa: B010 no field of the class
    setattr(_owner, "shift_above", _shift_at(_owner, "shift_above", 1))  # noqa: B010
setattr(Ledger, "checks", property(_checks))  # noqa: B010
setattr(Ledger, "read", classmethod(_read))  # noqa: B010
