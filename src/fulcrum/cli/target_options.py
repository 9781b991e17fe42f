"""What a plan must meet, as options; how their words become numbers and targets."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.options import AllocationOption, ColludersOption, DropoutsOption, look_here_for, number, option
from fulcrum.errors import ParameterError, listing
from fulcrum.federation.structure import SILO, Federation
from fulcrum.planning.recipes import RECIPES, SERVERS
from fulcrum.planning.targets import Floor
from fulcrum.privacy.prior import Coupling
from fulcrum.privacy.weights import WEIGHTS


@Parameter(name="*")
@dataclass(kw_only=True)
class TargetOptions:
    """What a plan must meet."""

    rounds: Annotated[int, number("Number of releases of each silo.")]
    epsilon: Annotated[str | None, option("The target: a number for the innermost tier, or tier=number,...")] = None
    epsilon_inside: Annotated[float | None, option("Target against whoever sees single updates.")] = None
    delta: Annotated[float, option("The DP parameter.")] = 1e-5
    accountant: Annotated[str | None, option("exact (default for research) or renyi (for deployment).")] = None
    allocation: AllocationOption = "optimal"
    information: Annotated[float | None, option("Target bound on what is learned of a silo, in nats.")] = None
    floor: Annotated[str | None, option("Lateral floor, nats: a number, region=number,..., or coupling=number.")] = None
    bound: Annotated[str, option("paper or capacity.")] = "paper"
    budget: Annotated[float | None, option("Spend this much noise variance instead of meeting a target.")] = None
    colluders: ColludersOption = 0
    dropouts: DropoutsOption = 0
    parameters: Annotated[int | None, number("Number of trainable parameters.")] = None
    recipe: Annotated[str, option(f"Weights, clip and server together: {listing(RECIPES)}.")] = "paper"
    weights: Annotated[str | None, option(f"What silos count for: {listing(WEIGHTS)}, or a number from 0 to 1.")] = None
    clip_norm: Annotated[str | None, option("Clip norm of an update, or auto: scaled by the noise.")] = None
    server: Annotated[str | None, option(f"What is done with regional sums: {listing(SERVERS)}.")] = None
    shrink: Annotated[bool | None, Parameter(help="Whether a pooling server takes off what is noise.")] = None
    injection: Annotated[str, option("Who draws noise: silo or aggregator.")] = "silo"
    seed: Annotated[int, number("For the allocation `misallocated`.")] = 0

    def arguments(self, federation: Federation) -> dict[str, Any]:
        """Returns the keyword arguments of `fulcrum.plan`, the allocation left out."""
        look_here_for(self.allocation)
        settings = {name: value for name, value in vars(self).items() if name not in ("allocation", "epsilon_inside")}
        epsilon = None if self.epsilon is None else _by_name(self.epsilon, "--epsilon", federation.innermost.name)
        if self.epsilon_inside is not None:
            if epsilon and SILO in epsilon:
                raise ParameterError("--epsilon silo=... and --epsilon-inside ask for the same thing. Give one of them")
            epsilon = {**(epsilon or {}), SILO: self.epsilon_inside}
        chosen = {
            "weights": _word_or_number(self.weights),
            "clip_norm": _word_or_number(self.clip_norm),
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
        if name in found or (equals and not name):
            what = (
                f"gives {name!r} twice"
                if name in found and name
                else f"must be one number or name=number,..., got {text!r}"
            )
            raise ParameterError(f"{option} {what}")
        found[name] = amount
    return found


def _word_or_number(text: str | None) -> str | float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    found = _by_name(text, "--floor", "")
    if set(found) == {""}:
        return found[""]
    return Coupling(found["coupling"]) if set(found) == {"coupling"} else found
