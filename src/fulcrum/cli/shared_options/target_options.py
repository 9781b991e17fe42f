"""The settings of a plan as options, and the numbers and targets that the words of a command line stand for."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.shared_options.options import (
    TARGET,
    look_here_for,
    option,
    setting,
    whole_numbers,
    word_or_number,
)
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.inputs.inside_observer import inside_observer
from fulcrum.planning.inputs.settings import RecipeName, declared_settings
from fulcrum.planning.inputs.targets import Floor
from fulcrum.planning.theory.prior import Coupling

_TEXTS: dict[str, Any] = {"epsilon": str | None, "floor": str | None, "weights": str | None, "clip_norm": str | None}
_TEXTS |= {"allocation": str, "server": str | None, "shrink": bool | None, "recipe": RecipeName, "public": str | None}
"""Settings whose type on the command line is another than in Python.

A text may be a number, numbers by name, or an open choice: allocations and server rules can come from an extension.
"""

_ELSEWHERE = ("purpose", "keys")
"""Settings that some commands alone have."""

_INSIDE = (
    "epsilon_inside",
    Annotated[
        float | None,
        option(
            "Target epsilon over all rounds against an observer inside a region, who sees single releases; with "
            "--aggregation masked, against the server together with colluding silos. Default: none.",
            TARGET,
        ),
    ],
    None,
)


def _options() -> Iterator[tuple[str, Any, Any]]:
    """Yields name, annotation and default of every option of a target, from `Settings`."""
    for declared in declared_settings().values():
        if declared.name not in _ELSEWHERE:
            kind = _TEXTS.get(declared.name, declared.type)
            annotation = Annotated[kind, setting(declared.name)]  # type: ignore[valid-type]
            yield declared.name, annotation, field() if declared.is_required else field(default=declared.default)
        if declared.name == "epsilon":
            yield _INSIDE


@Parameter(name="*")
class TargetOptions(make_dataclass("_Declared", _options(), kw_only=True)):  # type: ignore[misc]
    """An option for every setting of `Settings`."""

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
            "public": _spectrum(self.public, embedding=self.embedding),
        }
        return settings | chosen


@Parameter(name="*")
@dataclass(kw_only=True)
class ComparedTargetOptions(TargetOptions):
    """The options of a target for a comparison, which may sweep the number of rounds."""

    rounds: Annotated[
        str,
        option(
            f"{declared_settings()['rounds'].help} With --train, several numbers separated by commas: a sweep, or the "
            "choice of --tuned.",
            TARGET,
        ),
    ]

    def counts(self) -> list[int]:
        """Returns the numbers of rounds."""
        if "," in self.rounds:
            return whole_numbers(self.rounds, "--rounds")
        try:
            return [int(self.rounds)]
        except ValueError:
            raise ParameterError("cli.number-not-whole", option="--rounds", text=self.rounds) from None

    def arguments(self, federation: Topology) -> dict[str, Any]:
        """Returns the keyword arguments of `fulcrum.plan` with the largest number of rounds."""
        return super().arguments(federation) | {"rounds": max(self.counts())}


def _by_name(text: str, option: str, default: str) -> dict[str, float]:
    """Returns the numbers by name of "region=1.0,country=2.0"; of "1.0" the number under the name `default`.

    A repeated name is refused: one of its numbers would be lost.
    """
    amounts: dict[str, float] = {}
    for part in text.split(","):
        label, equals, value = part.rpartition("=")
        name = label.strip() if equals else default
        try:
            amount = float(value)
        except ValueError:
            raise ParameterError("cli.number-or-names-form", option=option, text=part.strip()) from None
        if name in amounts and name:
            decimal = re.fullmatch(r"(\d+),(\d+)", text.strip())
            advice = f"If that is one number, write it with a point: {'.'.join(decimal.groups())}" if decimal else ""
            raise ParameterError(
                "cli.name-repeated", option=option, name=name, text=text, advice=advice or "Give it once"
            )
        if name in amounts or (equals and not name):
            raise ParameterError("cli.number-or-names-form", option=option, text=text)
        amounts[name] = amount
    return amounts


def _spectrum(source: str | None, *, embedding: bool) -> Spectrum | None:
    """Returns the input variances of the data that --public names."""
    if source is None:
        if embedding:
            raise ParameterError("cli.embedding-needs-public")
        return None
    from fulcrum.simulation.data.input_variances import public_spectrum  # readers of data, which few plans need

    return public_spectrum(source, embedding=embedding)


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    amounts = _by_name(text, "--floor", "")
    if set(amounts) == {""}:
        return amounts[""]
    return Coupling(amounts["coupling"]) if set(amounts) == {"coupling"} else amounts
