"""What a plan must meet, as options; how their words become numbers and targets."""

import re
import sys
from collections.abc import Iterator
from dataclasses import field, make_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.options import look_here_for, option, setting, word_or_number
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.inside_observer import inside_observer
from fulcrum.planning.settings import declared_settings
from fulcrum.planning.targets import Floor
from fulcrum.planning.theory.prior import Coupling

_TEXTS: dict[str, Any] = {"epsilon": str | None, "floor": str | None, "weights": str | None, "clip_norm": str | None}
_TEXTS |= {"allocation": str, "server": str | None, "shrink": bool | None, "accountant": str | None}
_TEXTS |= dict.fromkeys(("bound", "injection", "aggregation"), str)
"""Settings that the command line takes as texts: the planner refuses a wrong one with those that it knows."""

_ELSEWHERE = ("purpose", "keys")
"""Settings that only some commands take."""

_INSIDE = ("epsilon_inside", Annotated[float | None, option("Target against whoever is inside a region.")], None)


def _options() -> Iterator[tuple[str, Any, Any]]:
    """Yields name, annotation and default of every option of a target, as `Settings` declares them."""
    for declared in declared_settings().values():
        if declared.name not in _ELSEWHERE:
            kind = _TEXTS.get(declared.name, declared.type)
            annotation = Annotated[kind, setting(declared.name)]  # type: ignore[valid-type]
            yield declared.name, annotation, field() if declared.is_required else field(default=declared.default)
        if declared.name == "epsilon":
            yield _INSIDE


@Parameter(name="*")
class TargetOptions(make_dataclass("_Declared", _options(), kw_only=True)):  # type: ignore[misc]
    """What a plan must meet: an option for each setting of `Settings`."""

    def arguments(self, federation: Topology) -> dict[str, Any]:
        """Returns the keyword arguments of `fulcrum.plan`, the allocation left out."""
        look_here_for(self.allocation)
        settings = {name: value for name, value in vars(self).items() if name not in ("allocation", "epsilon_inside")}
        epsilon = None if self.epsilon is None else _by_name(self.epsilon, "--epsilon", federation.innermost.name)
        observer = inside_observer(federation, self.aggregation)
        if self.epsilon_inside is not None and {SILO, observer} & set(epsilon or ()):
            raise ParameterError("cli.epsilon-inside-twice", observer=observer)
        if epsilon and SILO in epsilon and observer not in epsilon:
            sys.stderr.write(f"note: --epsilon silo=... goes with version 0.3. Use --epsilon {observer}=...\n")
            epsilon = {observer if tier == SILO else tier: value for tier, value in epsilon.items()}
        if self.epsilon_inside is not None:
            epsilon = {**(epsilon or {}), observer: self.epsilon_inside}
        chosen = {
            "weights": word_or_number(self.weights),
            "clip_norm": word_or_number(self.clip_norm),
            "epsilon": epsilon,
            "floor": _floor(self.floor),
        }
        return settings | chosen


def _by_name(text: str, option: str, default: str) -> dict[str, float]:
    """Reads "1.0" or "region=1.0,country=2.0"; a name that stands twice is refused: one of the two would be lost."""
    found: dict[str, float] = {}
    for part in text.split(","):
        given, equals, value = part.rpartition("=")
        name = given.strip() if equals else default
        try:
            amount = float(value)
        except ValueError:
            raise ParameterError("cli.numbers-by-name-form", option=option, text=part.strip()) from None
        if name in found and name:
            decimal = re.fullmatch(r"(\d+),(\d+)", text.strip())
            advice = f"If that is one number, write it with a point: {'.'.join(decimal.groups())}" if decimal else ""
            raise ParameterError(
                "cli.name-repeated", option=option, name=name, text=text, advice=advice or "Give it once"
            )
        if name in found or (equals and not name):
            raise ParameterError("cli.number-or-names-form", option=option, text=text)
        found[name] = amount
    return found


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    found = _by_name(text, "--floor", "")
    if set(found) == {""}:
        return found[""]
    return Coupling(found["coupling"]) if set(found) == {"coupling"} else found
