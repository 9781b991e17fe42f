"""The options that commands share."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from cyclopts import Parameter

from fulcrum.core.store.durable_files import check_writable
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.settings import declared_settings
from fulcrum.readers.profiles import PROFILES
from fulcrum.views.terminal.screen import FORMATS


def _whole(_: Any, tokens: Sequence[Any]) -> int:
    """Reads a whole number as written; a fraction is refused, not rounded."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ParameterError("cli.number-not-whole", option=tokens[0].keyword or "the argument", text=text) from None


def option(text: str, **settings: Any) -> Parameter:
    """Returns what an option says of itself; its value may begin with a minus."""
    return Parameter(help=text, allow_leading_hyphen=True, **settings)


def number(text: str) -> Parameter:
    """Returns an option that takes a whole number."""
    return option(text, converter=_whole)


def setting(name: str) -> Parameter:
    """Returns the option of a plan's setting, with the help that `Settings` declares."""
    declared = declared_settings()[name]
    if declared.type in (int, int | None):
        return number(declared.help)
    return Parameter(help=declared.help) if bool in get_args(declared.type) else option(declared.help)


FederationArgument = Annotated[
    str,
    Parameter(
        help=f"A file (.csv or another table, .toml, .parquet, NVFLARE project.yml), or built in: {listing(PROFILES)}."
    ),
]
PlanArgument = Annotated[Path, Parameter(help="A plan file, as `fulcrum plan -o` writes it.")]
FormatOption = Annotated[str, Parameter(name="--format", help=f"One of {listing(FORMATS)}.")]
OutputOption = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write to this file.")]
RunOption = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Write the run to this folder.")]
ColludersOption = Annotated[int, setting("colluders")]
DropoutsOption = Annotated[int, setting("dropouts")]
ParametersOption = Annotated[int | None, setting("parameters")]
RecipeOption = Annotated[str, setting("recipe")]
WeightsOption = Annotated[str | None, setting("weights")]
ClipNormOption = Annotated[str | None, setting("clip_norm")]
ServerOption = Annotated[str | None, setting("server")]
LeastInfluenceOption = Annotated[float, setting("least_influence")]
AllocationOption = Annotated[str, setting("allocation")]


def check_output(path: Path | None) -> None:
    """Refuses a file that cannot be written, before anybody waits for what is to stand in it."""
    if path is not None:
        check_writable(path)


def look_here_for(name: str) -> None:
    """Lets a user's own allocation or model, "module:name", stand in the current folder."""
    if ":" in name and "" not in sys.path:
        sys.path.append("")


def word_or_number(text: str | None) -> str | float | None:
    """Reads what may be a word or a number; nothing stays nothing."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def words_of(options: Any, *always: str) -> str:
    """Returns a group of options as they are typed, those alone that differ from their defaults or are named.

    Args:
        options: A dataclass of options.
        always: Names of fields to be stated whatever they are.
    """
    words, hints = [], get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = getattr(options, field.name)
        if value is None or (value == field.default and field.name not in always):
            continue
        told = (part.name or () for part in hints[field.name].__metadata__ if isinstance(part, Parameter))
        name = next((own for names in told for own in names), f"--{field.name.replace('_', '-')}")
        if isinstance(value, bool):
            words.append(name if value else f"--no-{name.removeprefix('--')}")
        else:
            words += [f"{name} {shlex.quote(str(one))}" for one in (value if isinstance(value, tuple) else (value,))]
    return " ".join(words)


def whole_numbers(text: str, option: str) -> list[int]:
    """Reads "4,10,20"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError("cli.whole-numbers-form", option=option, text=text) from None
