"""At which silos training failed, read from their logs: on one machine alone, where one operator owns them all.

A deployed silo tells nobody: it releases zero plus noise, and its own log alone says why.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from fulcrum.core.silo.releasing_silo import FAILED
from fulcrum.errors import in_one_line

_MARK = re.compile(re.escape(FAILED) + r" (\d+)")
_LONGEST = 200


class Failures:
    """What the logs of silos say so far; `look` reads what is new."""

    def __init__(self, kits: Path, silos: Iterable[str]) -> None:
        self._logs = {silo: kits / silo / "output.log" for silo in silos}
        self._read = dict.fromkeys(self._logs, 0)
        self._by_round: dict[int, set[str]] = {}

    def look(self) -> None:
        """Reads what silos have logged since."""
        for silo, log in self._logs.items():
            new = _whole_lines(log, self._read[silo])
            self._read[silo] += len(new)
            for number in _MARK.findall(new.decode(errors="replace")):
                self._by_round.setdefault(int(number), set()).add(silo)

    @property
    def everywhere(self) -> bool:
        """Whether there is a round in which training failed at every silo."""
        return any(len(failed) == len(self._logs) for failed in self._by_round.values())

    def in_words(self) -> str:
        """Returns at how many silos training failed, in which log to look, and what it says; nothing if at none."""
        failed = sorted(set().union(*self._by_round.values()))
        if not failed:
            return ""
        log = self._logs[failed[0]]
        why = _reason(log.read_text(encoding="utf-8", errors="replace"))
        return f"training failed at {len(failed)} of {len(self._logs)} silos, see {log}{f': {why}' if why else ''}"


def _whole_lines(log: Path, start: int) -> bytes:
    """Returns what a log holds from some byte on, up to its last whole line; nothing where it is not there yet."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            new = file.read()
    except OSError:
        return b""
    return new[: new.rfind(b"\n") + 1]


def _reason(text: str) -> str:
    """Returns what training raised first, by the line that ends its traceback."""
    _, _, after = text.partition(FAILED)
    for line in after.split("Traceback (most recent call last):", 1)[-1].splitlines()[1:]:
        if line and not line[0].isspace():
            return in_one_line(line)[:_LONGEST]
    return ""
