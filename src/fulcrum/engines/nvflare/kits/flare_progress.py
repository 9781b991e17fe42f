"""The progress of a federation on this machine, from the logs of its sites: the round, the stage, and the time left.

A round has two stages: silos train and release, then regions sum. NVIDIA FLARE logs both, and reports rounds alone. A
masked round has five stages, and Fulcrum's server logs each.
"""

import re
import time
from collections.abc import Callable, Collection
from pathlib import Path

from fulcrum.engines.log_reasons import whole_lines

_BEGUN = re.compile(rb"Round (\d+) started\.")
_MASKED = re.compile(rb"fulcrum stage: round (\d+), (stage \d of \d: [a-z ]+)\.")
_SENT = b"SubmitUpdate to:"
_STAGES = ("silos train and release", "regions sum")


class FlareProgress:
    """Shows every stage of a run once, in words.

    Args:
        server: The kit of the server.
        silos: The kits of all silos.
        rounds: The number of rounds of the plan.
        say: Called with every stage in words.
    """

    def __init__(self, server: Path, silos: Collection[Path], rounds: int, say: Callable[[str], None]) -> None:
        self._server, self._rounds, self._say = server / "output.log", rounds, say
        self._silos = [silo / "output.log" for silo in silos]
        self._read = dict.fromkeys([self._server, *self._silos], 0)
        self._sent: set[Path] = set()
        self._first, self._done, self._shown = 1, 0, (0, 0)
        self._began = self._ended = 0.0

    def hear(self) -> None:
        """Notes the end of a round."""
        self._done += 1
        self._ended = time.monotonic()

    def look(self) -> None:
        """Reads the lines that sites have logged since the last call, and says a stage that has begun."""
        # Silos first: answers in these lines belong to the round before a round that the server begins meanwhile.
        self._sent.update(log for log in self._silos if _SENT in self._lines(log))
        number, stage = self._shown
        lines = self._lines(self._server)
        for round_number, words in _MASKED.findall(lines):
            self._began = self._began or time.monotonic()
            self._say_stage(int(round_number), words.decode())
        for index in map(int, _BEGUN.findall(lines)):
            if index == 0:  # a job counts its rounds from 0, and another job continues the plan
                self._first, self._began = self._done + 1, self._began or time.monotonic()
            self._sent.clear()
            number, stage = self._first + index, 1
        if stage == 1 and len(self._sent) == len(self._silos):
            stage = 2
        if (number, stage) == self._shown:
            return
        self._shown = number, stage
        self._say_stage(number, f"stage {stage} of {len(_STAGES)}: {_STAGES[stage - 1]}")

    def _say_stage(self, number: int, stage: str) -> None:
        if number > self._done:  # a fast round may be reported before its last stage is read
            self._say(f"round {number} of {self._rounds}, {stage}{self._time_left()}")

    def _lines(self, log: Path) -> bytes:
        new = whole_lines(log, self._read[log])
        self._read[log] += len(new)
        return new

    def _time_left(self) -> str:
        """Returns the time left in words, by the mean time of the rounds so far; nothing before the end of a round."""
        if not self._done:
            return ""
        seconds = (self._ended - self._began) / self._done * (self._rounds - self._done)
        return f" (about {seconds:.0f} s left)"
