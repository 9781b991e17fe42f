"""What a plan must meet, as options; how their words become numbers and targets."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.options import (
    AllocationOption,
    ClipNormOption,
    ColludersOption,
    DropoutsOption,
    LeastInfluenceOption,
    ParametersOption,
    RecipeOption,
    ServerOption,
    WeightsOption,
    look_here_for,
    number,
    option,
    word_or_number,
)
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.targets import Floor
from fulcrum.planning.theory.prior import Coupling


@Parameter(name="*")
@dataclass(kw_only=True)
class TargetOptions:
    """What a plan must meet."""

    rounds: Annotated[int, number("Number of releases of each silo.")]
    epsilon: Annotated[str | None, option("The target: a number for the innermost tier, or tier=number,...")] = None
    epsilon_inside: Annotated[float | None, option("Target against whoever is inside a region.")] = None
    delta: Annotated[float, option("The DP parameter.")] = 1e-5
    accountant: Annotated[str | None, option("exact (default for research) or renyi (for deployment).")] = None
    allocation: AllocationOption = "optimal"
    information: Annotated[float | None, option("Target in nats on what is learned of a silo, --floor included.")] = (
        None
    )
    floor: Annotated[str | None, option("Lateral floor, nats: a number, region=number,..., or coupling=number.")] = None
    bound: Annotated[str, option("paper or capacity.")] = "paper"
    budget: Annotated[float | None, option("Spend this much noise variance instead of meeting a target.")] = None
    colluders: ColludersOption = 0
    dropouts: DropoutsOption = 0
    parameters: ParametersOption = None
    recipe: RecipeOption = "paper"
    weights: WeightsOption = None
    clip_norm: ClipNormOption = None
    server: ServerOption = None
    shrink: Annotated[bool | None, Parameter(help="Whether a pooling server takes off what is noise.")] = None
    least_influence: LeastInfluenceOption = 0.0
    injection: Annotated[str, option("Who draws noise: silo or aggregator.")] = "silo"
    aggregation: Annotated[str, option("trusted: aggregators see single updates. masked: the server gets sums.")] = (
        "trusted"
    )
    seed: Annotated[int, number("For the allocation `misallocated`.")] = 0

    def arguments(self, federation: Topology) -> dict[str, Any]:
        """Returns the keyword arguments of `fulcrum.plan`, the allocation left out."""
        look_here_for(self.allocation)
        settings = {name: value for name, value in vars(self).items() if name not in ("allocation", "epsilon_inside")}
        epsilon = None if self.epsilon is None else _by_name(self.epsilon, "--epsilon", federation.innermost.name)
        if self.epsilon_inside is not None:
            if epsilon and SILO in epsilon:
                raise ParameterError("--epsilon silo=... and --epsilon-inside ask for the same thing. Give one of them")
            epsilon = {**(epsilon or {}), SILO: self.epsilon_inside}
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
            raise ParameterError(f"{option} must be a number or name=number,..., got {part.strip()!r}") from None
        if name in found and name:
            decimal = re.fullmatch(r"(\d+),(\d+)", text.strip())
            remedy = f"If that is one number, write it with a point: {'.'.join(decimal.groups())}" if decimal else ""
            raise ParameterError(f"{option} gives {name!r} twice, in {text!r}. {remedy or 'Give it once'}")
        if name in found or (equals and not name):
            raise ParameterError(f"{option} must be one number or name=number,..., got {text!r}")
        found[name] = amount
    return found


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    found = _by_name(text, "--floor", "")
    if set(found) == {""}:
        return found[""]
    return Coupling(found["coupling"]) if set(found) == {"coupling"} else found
