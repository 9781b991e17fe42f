"""Finds the silos at which training failed, in the silos' logs: on one machine, with a single owner of all sites.

A deployed silo reports no failure to any other site: the silo releases zero plus noise, and its own log alone has the
reason.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from fulcrum.core.silo.releasing_silo import FAILED
from fulcrum.errors import in_one_line

_MARK = re.compile(re.escape(FAILED) + r" (\d+)")
_LONGEST = 200


class Failures:
    """Failures of training in the logs of silos so far; `look` reads the new lines."""

    def __init__(self, kits: Mapping[str, Path]) -> None:
        self._logs = {silo: kit / "output.log" for silo, kit in kits.items()}
        self._read = dict.fromkeys(self._logs, 0)
        self._by_round: dict[int, set[str]] = {}

    def look(self) -> None:
        """Reads the lines that silos have logged since the last call."""
        for silo, log in self._logs.items():
            new = _whole_lines(log, self._read[silo])
            self._read[silo] += len(new)
            for number in _MARK.findall(new.decode(errors="replace")):
                self._by_round.setdefault(int(number), set()).add(silo)

    @property
    def everywhere(self) -> bool:
        """True if training failed at every silo in the same round."""
        return any(len(failed) == len(self._logs) for failed in self._by_round.values())

    def in_words(self) -> str:
        """Returns the number of silos with failed training, a log to read, and the reason; empty without a failure."""
        failed = sorted(set().union(*self._by_round.values()))
        if not failed:
            return ""
        log = self._logs[failed[0]]
        why = _reason(log.read_text(encoding="utf-8", errors="replace"))
        return f"training failed at {len(failed)} of {len(self._logs)} silos, see {log}{f': {why}' if why else ''}"


def _whole_lines(log: Path, start: int) -> bytes:
    """Returns the content of a log from a byte on, up to the last whole line; empty without a log."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            new = file.read()
    except OSError:
        return b""
    return new[: new.rfind(b"\n") + 1]


def _reason(text: str) -> str:
    """Returns the first exception of training, from the last line of the traceback."""
    _, _, after = text.partition(FAILED)
    for line in after.split("Traceback (most recent call last):", 1)[-1].splitlines()[1:]:
        if line and not line[0].isspace():
            return in_one_line(line)[:_LONGEST]
    return ""
