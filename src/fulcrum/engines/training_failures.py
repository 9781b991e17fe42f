"""Finds the silos at which training failed, in the silos' logs: on one machine, with a single owner of all sites.

A deployed silo reports no failure to any other site: the silo releases zero plus noise, and its own log alone has the
reason.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from fulcrum.core.silo.releasing_silo import FAILED
from fulcrum.engines.log_reasons import exception_in, whole_lines

ALL_SILOS = ""
"""The name for `Failures` of a log that all silos share: virtual nodes write into the log of their run."""

_MARK = re.compile(re.escape(FAILED) + r" (\d+)")


class Failures:
    """Failures of training in the logs of silos so far; `look` reads the new lines.

    Args:
        kits: The folder of every silo, with the silo's log; the name ALL_SILOS for a log that all silos share.
    """

    def __init__(self, kits: Mapping[str, Path]) -> None:
        self._logs = {silo: kit / "output.log" for silo, kit in kits.items()}
        self._read = dict.fromkeys(self._logs, 0)
        self._by_round: dict[int, set[str]] = {}

    def look(self) -> None:
        """Reads the lines that silos have logged since the last call."""
        for silo, log in self._logs.items():
            new = whole_lines(log, self._read[silo])
            self._read[silo] += len(new)
            for number in _MARK.findall(new.decode(errors="replace")):
                self._by_round.setdefault(int(number), set()).add(silo)

    @property
    def everywhere(self) -> bool:
        """True if training failed at every silo in the same round; a log that all silos share does not tell."""
        return ALL_SILOS not in self._logs and any(len(at) == len(self._logs) for at in self._by_round.values())

    def in_words(self) -> str:
        """Returns the number of silos with failed training, a log to read, and the reason; empty without a failure."""
        failed = sorted(set().union(*self._by_round.values()))
        if not failed:
            return ""
        log = self._logs[failed[0]]
        _, _, after = log.read_text(encoding="utf-8", errors="replace").partition(FAILED)
        why = exception_in(after)
        place = "" if ALL_SILOS in failed else f" at {len(failed)} of {len(self._logs)} silos"
        return f"training failed{place}, see {log}{f': {why}' if why else ''}"
