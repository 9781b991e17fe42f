"""The page docs/commands.md, made from the command line itself.

`python docs/_ext/command_reference.py` writes the page. A test compares the page with the commands, so every change of
an option or of its words shows in a difference of the page.
"""

import re
import sys
from collections import defaultdict
from enum import Enum
from pathlib import Path
from typing import Literal, get_args, get_origin

from fulcrum.cli.command_line import app

PAGE = Path(__file__).resolve().parents[1] / "commands.md"
HEAD = """# Commands

Every command and option of `fulcrum`. `fulcrum plan --help` prints the part of a command in the terminal. Results go to
stdout, progress and notes to stderr; with `--format json` a result is JSON. A mistake gives one line on stderr and exit
code 2 ([errors](errors.md)); a plan with a failing check, or an audit with a broken claim, gives exit code 1.

`python docs/_ext/command_reference.py` makes this page.
"""
_CODE = re.compile(r"(`[^`]*`)")


def commands(parent=app, prefix=("fulcrum",)):
    """Yields every command with its whole name, in the order of the list of commands."""
    for name, command in parent.resolved_commands().items():
        if name.startswith("-"):
            continue
        if command.default_command:
            yield " ".join((*prefix, name)), command
        else:
            yield from commands(command, (*prefix, name))


def options(command):
    """Returns the arguments and options of a command by group, in the order of its help."""
    groups = defaultdict(list)
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if argument.show:
            group = argument.parameter.group[0]
            groups[(group.sort_key, group.name)].append(argument)
    return {name: groups[(key, name)] for key, name in sorted(groups, key=lambda group: group[0])}


def page():
    """Returns the text of docs/commands.md."""
    parts = [HEAD]
    for name, command in commands():
        example = command.help_epilogue.removeprefix("Example: ")
        parts += [f"## {name}", _escaped(command.help), f"```sh\n{example}\n```"]
        for group, arguments in options(command).items():
            rows = [f"| {_name(argument)} | {_meaning(argument)} | {_default(argument)} |" for argument in arguments]
            parts.append("\n".join([f"| {group} | meaning | default |", "|---|---|---|", *rows]))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _name(argument):
    names = ", ".join(f"`{name}`" for name in argument.names)
    if argument.index is not None:
        return f"`{argument.names[0].lstrip('-').upper()}`"
    return names


def _meaning(argument):
    text = _escaped(argument.parameter.help or "")
    choices = _choices(argument.hint)
    unlisted = [choice for choice in choices if choice not in text]
    return f"{text} Choices: {', '.join(choices)}." if unlisted else text


def _default(argument):
    if argument.required:
        return "required"
    value = argument.field_info.default
    if value is None or value is False or value in ((), "") or value is argument.field_info.empty:
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _choices(hint):
    """Returns the values of a closed choice, also inside an optional type."""
    if get_origin(hint) is Literal:
        return [str(value) for value in get_args(hint)]
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _escaped(text):
    """Returns a text without meaning for Markdown, except for code; options are code."""

    def plain(words):
        return re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", re.sub(r"([|*_$\[\]<])", r"\\\1", words))

    parts = _CODE.split(" ".join(text.split()))
    return "".join(part.replace("|", "\\|") if part.startswith("`") else plain(part) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"docs/{PAGE.name} has {sum(1 for _ in commands())} commands\n")
