r"""Logs of processes on this machine: new lines, and the reason of a failure.

>>> log = "Traceback (most recent call last):\n  File 'app.py', line 3\nKeyError: 'age'\nFor more information: ...\n"
>>> end_of(log)
"KeyError: 'age'"
"""

import re
from pathlib import Path

from fulcrum.errors import in_one_line

_BEGIN = "Traceback (most recent call last):"
_LONGEST = 300
_OWN = re.compile(r"^fulcrum\.errors\.\w+: ")
_DRAWN = re.compile(r"\x1b\[[0-9;]*m|^(?:\x1b\[[0-9;]*m)*\(\w+ pid=\d+\)(?:\x1b\[[0-9;]*m)* ", re.MULTILINE)
"""Colours, and the name of the process with which Ray begins a line."""
_NO_REASON = ("For more information", "An unhandled exception occurred", "Exit Code")
"""Beginnings of lines that Flower writes after a traceback or an error."""


def exception_in(text: str) -> str:
    """Returns the exception of the first traceback in a text, in one line; empty without a traceback."""
    _, begin, traceback = _DRAWN.sub("", text).partition(_BEGIN)
    for line in traceback.splitlines()[1:] if begin else []:
        if line and not line[0].isspace():
            return in_one_line(_OWN.sub("", line))[:_LONGEST]
    return ""


def end_of(text: str) -> str:
    """Returns the exception of the last traceback in a log, or else the last line with letters that states a reason.

    Flower draws frames around messages, colours the level of a line, and ends with the address of a page.
    """
    text = _DRAWN.sub("", text)
    if exception := exception_in(text[max(text.rfind(_BEGIN), 0) :]):
        return exception
    lines = [line.strip(" │") for line in text.splitlines() if any(map(str.isalnum, line))]
    reasons = [line for line in lines if not any(words in line for words in _NO_REASON)]
    return in_one_line(reasons[-1])[:_LONGEST] if reasons else "the log is empty"


def whole_lines(log: Path, start: int) -> bytes:
    """Returns the content of a log from a byte on, up to the last whole line; empty without a log."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            new = file.read()
    except OSError:
        return b""
    return new[: new.rfind(b"\n") + 1]
