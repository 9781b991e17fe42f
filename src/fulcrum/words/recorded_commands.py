"""Commands in files of results, for a report: plain commands alone, since readers copy them into a shell.

>>> recorded_command("fulcrum train plan.json --data digits --seeds 2 -o run", into="run")
'fulcrum train plan.json --data digits --seeds 2 -o run'
>>> recorded_command("fulcrum train plan.json --model evil:Net -o run", into="run")
'# made by a command that is not shown: it names code or an address, or is none that Fulcrum writes'

A stranger may have written the file of a run or an audit, and a reader of the report may run its command. A command is
therefore shown only as a single line of shell words in plain quotes, with options that neither import a module nor send
results to an address or another folder.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

from fulcrum.readers.profiles import PROFILES

_NOT_SHOWN = "# made by a command that is not shown: it names code or an address, or is none that Fulcrum writes"

_TRAINING = frozenset(
    {
        "--data",
        "--data-dir",
        "--components",
        "--records",
        "--targets",
        "--label",
        "--classes",
        "--silo-column",
        "--person-column",
        "--ranges",
        "--input-factors",
        "--learning-rate",
        "--steps",
        "--batch",
        "--metric",
    }
)
_TARGET = frozenset(
    {
        "--rounds",
        "--epsilon",
        "--epsilon-inside",
        "--delta",
        "--accountant",
        "--allocation",
        "--information",
        "--floor",
        "--bound",
        "--budget",
        "--colluders",
        "--dropouts",
        "--parameters",
        "--recipe",
        "--weights",
        "--clip-norm",
        "--server",
        "--least-influence",
        "--disputed-influence",
        "--injection",
        "--aggregation",
        "--unit",
        "--unit-name",
        "--neighbours",
        "--silos-per-person",
        "--persons-per-silo",
        "--silo-clip",
        "--silo-epsilon",
        "--seed",
        "--public",
    }
)
_SITES = frozenset({"--policy", "--patience", "--seed"})

_SUBJECTS: Mapping[str, frozenset[str]] = {
    "audit": frozenset({"plan.json", "SITE"}),
    "compare": frozenset({"FEDERATION", *PROFILES}),
    "follow": frozenset({"nvflare KITS"}),
    "simulate": frozenset({"flower plan.json"}),
    "train": frozenset({"plan.json"}),
    "up": frozenset({"flower plan.json", "nvflare plan.json"}),
}
"""By verb of a command with results: the words after it and before the options."""

_OPTIONS: Mapping[str, frozenset[str]] = {
    "audit": _TRAINING | {"--run", "--engine", "--silo", "--trials", "--shadows", "--confidence", "--seed"},
    "compare": _TARGET
    | _TRAINING
    | {"--size-law", "--device", "--seeds", "--clip-norms", "--learning-rates", "--choosing-data", "--choosing-seeds"},
    "follow": frozenset(),
    "simulate": _SITES | _TRAINING,
    "train": _TRAINING | {"--device", "--seeds"},
    "up": _SITES | _TRAINING,
}
"""By verb, the options with a value. Left out are --model, --trained, --train and --option, which run code of the
author, and --mlflow and --tensorboard, which send results elsewhere."""

_FLAGS: Mapping[str, frozenset[str]] = {
    "compare": frozenset({"--train", "--shrink", "--no-shrink", "--embedding", "--conflict", "--tuned"})
}
"""By verb, the options without a value."""

_DEVICE = re.compile(r"[a-z]+(:[0-9]+)?")


def recorded_command(command: str, *, into: str) -> str:
    """Returns the command in a file of results, or a comment in the place of a command that is not plain.

    Args:
        command: The command in the file.
        into: The folder for the results of the command.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return _NOT_SHOWN
    in_one_spelling = command.isprintable() and shlex.join(words) == command
    return command if in_one_spelling and _is_plain(words, into) else _NOT_SHOWN


def _is_plain(words: Sequence[str], into: str) -> bool:
    """Checks that words are a verb with results, its subject, plain options, and the folder for the results."""
    if list(words[:1]) != ["fulcrum"] or list(words[-2:]) != ["-o", into] or words[1] not in _SUBJECTS:
        return False
    verb, arguments = words[1], words[2:-2]
    start = next((place for place, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return " ".join(arguments[:start]) in _SUBJECTS[verb] and _are_plain_options(verb, arguments[start:])


def _are_plain_options(verb: str, words: Sequence[str]) -> bool:
    """Checks that words are options of a verb, every option with its plain value if the option has a value."""
    rest = iter(words)
    return all(
        name in _FLAGS.get(verb, ()) or (name in _OPTIONS[verb] and _is_plain_value(name, next(rest, "")))
        for name in rest
    )


def _is_plain_value(name: str, value: str) -> bool:
    """Checks that a value is a number, a name or a path, and no module:function, address or network share."""
    if name == "--device":
        return _DEVICE.fullmatch(value) is not None
    if name == "--run":
        return value == "run"
    return value != "" and not value.startswith("-") and not any(sign in value for sign in (":", "//", "\\"))
