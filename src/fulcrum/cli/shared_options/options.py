"""The shared options of commands, and the groups of options in help."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import Group, Parameter

from fulcrum.core.choices import Neighbours, UnitName
from fulcrum.core.store.durable_files import check_writable
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.inputs.settings import RecipeName, declared_settings
from fulcrum.readers.profiles import PROFILES
from fulcrum.views.terminal.screen import Format

INPUT = Group("Input", sort_key=1)
TARGET = Group("Target", sort_key=2)
UNIT = Group("Unit of privacy", sort_key=2.5)
NOISE = Group("Noise", sort_key=3)
WEIGHTS_AND_SERVER = Group("Weights and server", sort_key=4)
OBSERVERS = Group("Observers", sort_key=5)
TRAINING = Group("Training", sort_key=6)
ATTACKS = Group("Attacks", sort_key=7)
DEPLOYMENT = Group("Deployment", sort_key=8)
PAGE = Group("Page", sort_key=9)
OUTPUT = Group("Output", sort_key=10)
"""The groups of options, in the order in which help lists them."""

_GROUPS = {
    TARGET: ("rounds", "epsilon", "delta", "accountant", "information", "floor", "bound", "budget"),
    UNIT: (
        "unit",
        "unit_name",
        "neighbours",
        "silos_per_person",
        "persons_per_silo",
        "silo_clip",
        "silo_epsilon",
    ),
    NOISE: ("allocation", "injection", "seed"),
    WEIGHTS_AND_SERVER: (
        "recipe",
        "weights",
        "clip_norm",
        "server",
        "shrink",
        "public",
        "embedding",
        "least_influence",
        "disputed_influence",
        "parameters",
    ),
    OBSERVERS: ("colluders", "dropouts", "aggregation"),
    DEPLOYMENT: ("purpose", "keys"),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    """Returns the whole number of a command line; a fraction is refused, not rounded."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ParameterError("cli.number-not-whole", option=tokens[0].keyword or "the argument", text=text) from None


def option(text: str, group: Group, **settings: Any) -> Parameter:
    """Returns an option with its help and its group.

    A value may begin with a minus: `--epsilon -1` gets the error of epsilons, not the error of unknown options.

    Args:
        text: The help, a sentence with unit and default.
        group: The group of the option in help.
        settings: Further arguments of `cyclopts.Parameter`.
    """
    return Parameter(help=text, group=group, allow_leading_hyphen=True, **settings)


def number(text: str, group: Group) -> Parameter:
    """Returns an option for a whole number."""
    return option(text, group, converter=_whole)


def several(text: str, group: Group, **settings: Any) -> Parameter:
    """Returns an option for several values, without a default in help."""
    return Parameter(help=text, group=group, negative=(), show_default=False, **settings)


def output_option(text: str) -> Parameter:
    """Returns the option `--output`, in short `-o`."""
    return Parameter(name=["--output", "-o"], help=text, group=OUTPUT)


def argument(text: str) -> Parameter:
    """Returns an argument of a command."""
    return Parameter(help=text, group=INPUT)


def setting(name: str) -> Parameter:
    """Returns the option of a plan's setting, with the help of `Settings`."""
    declared, group = declared_settings()[name], _GROUP_OF[name]
    if declared.type in (int, int | None):
        return number(declared.help, group)
    flag = bool in get_args(declared.type)
    return Parameter(help=declared.help, group=group) if flag else option(declared.help, group)


FederationArgument = Annotated[
    str,
    argument(
        "Federation: a file (.csv or another table, .toml, .parquet, NVFLARE project.yml), or a built-in name: "
        f"{listing(PROFILES)}."
    ),
]
PlanArgument = Annotated[Path, argument("Plan file, as `fulcrum plan -o` writes it.")]
FormatOption = Annotated[
    Format, option("Format of the result on stdout: a table for people, JSON or CSV.", OUTPUT, name="--format")
]
OutputOption = Annotated[Path | None, output_option("File to write the result to. Default: none.")]
RunOption = Annotated[Path | None, output_option("Folder to write the run to. Default: none.")]
ColludersOption = Annotated[int, setting("colluders")]
DropoutsOption = Annotated[int, setting("dropouts")]
ParametersOption = Annotated[int | None, setting("parameters")]
RecipeOption = Annotated[RecipeName, setting("recipe")]
WeightsOption = Annotated[str | None, setting("weights")]
ClipNormOption = Annotated[str | None, setting("clip_norm")]
ServerOption = Annotated[str | None, setting("server")]
UnitOption = Annotated[UnitName, setting("unit")]
UnitNameOption = Annotated[str, setting("unit_name")]
NeighboursOption = Annotated[Neighbours, setting("neighbours")]
SilosPerPersonOption = Annotated[int, setting("silos_per_person")]
PersonsPerSiloOption = Annotated[float | None, setting("persons_per_silo")]
LeastInfluenceOption = Annotated[float | None, setting("least_influence")]


def check_output(path: Path | None) -> None:
    """Checks a file for writing, before a user waits minutes for the content."""
    if path is not None:
        check_writable(path)


def look_here_for(name: str) -> None:
    """Adds the current folder to the import path for a user's own allocation or model, "module:name"."""
    if ":" in name and "" not in sys.path:
        sys.path.append("")


def word_or_number(text: str | None) -> str | float | None:
    """Returns a number for the text of a number, otherwise the text; None stays None."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def words_of(options: Any, *always: str) -> str:
    """Returns options in the form of a command line: all options in `always`, and all without their default values.

    Args:
        options: A dataclass of options.
        always: Names of fields to state even at default values.
    """
    words, hints = [], get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = getattr(options, field.name)
        if value is None or (value == field.default and field.name not in always):
            continue
        declared = (part.name or () for part in hints[field.name].__metadata__ if isinstance(part, Parameter))
        name = next((own for names in declared for own in names), f"--{field.name.replace('_', '-')}")
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name.removeprefix('--')}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"{name} {shlex.quote(str(single))}" for single in values]
    return " ".join(words)


def whole_numbers(text: str, option: str) -> list[int]:
    """Returns the numbers of a text such as "4,10,20"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError("cli.whole-numbers-form", option=option, text=text) from None


def numbers(text: str, option: str) -> list[float]:
    """Returns the numbers of a text such as "0.1,0.3"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError("cli.numbers-form", option=option, text=text) from None
