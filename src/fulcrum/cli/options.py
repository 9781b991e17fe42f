"""The options that commands share."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.errors import ParameterError, listing
from fulcrum.federation.profiles import PROFILES
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


def look_here_for(allocation: str) -> None:
    """Lets a user's own allocation stand in the current folder."""
    if ":" in allocation and "" not in sys.path:
        sys.path.append("")


def whole_numbers(text: str, option: str) -> list[int]:
    """Reads "4,10,20"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option} must be whole numbers separated by commas, got {text!r}") from None
