"""The options that commands share, and how their words become numbers and targets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.errors import ParameterError, listing
from fulcrum.federation.profiles import PROFILES
from fulcrum.federation.structure import SILO, Federation
from fulcrum.planning.targets import Floor
from fulcrum.privacy.prior import Coupling
from fulcrum.simulation.engine import LocalTraining
from fulcrum.simulation.runs import LEARNING_RATE
from fulcrum.simulation.tasks import BUILT_IN
from fulcrum.views.terminal import FORMATS


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    """Reads a whole number as written; a fraction is refused, not rounded."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ParameterError(f"{tokens[0].keyword or 'the argument'} must be a whole number, got {text!r}") from None


def option(text: str, **settings: Any) -> Parameter:
    """Returns what an option says of itself; its value may begin with a minus."""
    return Parameter(help=text, allow_leading_hyphen=True, **settings)


def number(text: str) -> Parameter:
    """Returns an option that takes a whole number."""
    return option(text, converter=_whole)


FederationArgument = Annotated[
    str,
    Parameter(help=f"A file (.toml, .csv, .parquet, NVFLARE project.yml), or built in: {listing(PROFILES)}."),
]
PlanArgument = Annotated[Path, Parameter(help="A plan file, as `fulcrum plan -o` writes it.")]
FormatOption = Annotated[str, Parameter(name="--format", help=f"One of {listing(FORMATS)}.")]
OutputOption = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write to this file.")]
RunOption = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write the run to this folder.")]
ColludersOption = Annotated[int, number("Silos of each region that may share their noise with an observer.")]
DropoutsOption = Annotated[int, number("Silos of each region that may be missing from a sum.")]
AllocationOption = Annotated[str, option("How noise is distributed; module:function for your own.")]


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
    clip_norm: Annotated[float, option("Clip norm of an update.")] = 1.0
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
        return settings | {"epsilon": epsilon, "floor": _floor(self.floor)}


def look_here_for(allocation: str) -> None:
    """Lets a user's own allocation stand in the current folder."""
    if ":" in allocation and "" not in sys.path:
        sys.path.append("")


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainingOptions:
    """On what and how silos train."""

    data: Annotated[
        str, option(f"{listing(BUILT_IN)}, another name in the data folder, or an npz, CSV or Parquet.")
    ] = "digits"
    data_dir: Annotated[Path | None, option("Folder of feature files; FULCRUM_DATA by default.")] = None
    components: Annotated[int | None, number("Principal components to keep.")] = None
    records: Annotated[float | None, option("Mean records a silo.")] = None
    label: Annotated[str | None, option("Label column of a CSV or Parquet file; label by default.")] = None
    silo_column: Annotated[str | None, option("Its column of silos; silo by default, if there is one.")] = None
    learning_rate: Annotated[float, option("Of the local steps.")] = LEARNING_RATE
    steps: Annotated[int, number("Local steps a round.")] = 10
    batch: Annotated[int, number("Records a local step.")] = 64

    @property
    def data_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `load_task`."""
        return {
            "data_dir": self.data_dir,
            "components": self.components,
            "label": self.label,
            "silo": self.silo_column,
        }

    @property
    def training(self) -> LocalTraining:
        """Returns how silos train."""
        return LocalTraining(learning_rate=self.learning_rate, steps=self.steps, batch=self.batch)


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


def _floor(text: str | None) -> Floor | None:
    if text is None:
        return None
    found = _by_name(text, "--floor", "")
    if set(found) == {""}:
        return found[""]
    return Coupling(found["coupling"]) if set(found) == {"coupling"} else found


def whole_numbers(text: str, option: str) -> list[int]:
    """Reads "4,10,20"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option} must be whole numbers separated by commas, got {text!r}") from None
