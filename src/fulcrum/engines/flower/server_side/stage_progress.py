"""The progress of a run on Flower: the stage of the round that silos answer, in a file of the server's site.

The strategy writes the file before each stage. The starter of the run reads the file, and shows the stage.
"""

import contextlib
from pathlib import Path

import msgspec

from fulcrum.core.masking.masking_messages import Request
from fulcrum.engines.masked_stages import STAGE_WORDS, stage_of
from fulcrum.parsing import json_of

PROGRESS = "progress.json"
"""The name of the file, in the server's site."""


class StageProgress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stage of a round that runs now.

    Attributes:
        round_number: The round, from 1.
        rounds: The last round of the run.
        stage: The stage, from 1; 0 while the server waits for nodes.
        doing: The work of the stage in words.
        begun: The number of stages that the run has begun before, for an estimate.
        left: The number of stages after the present stage, if no round is repeated.
        attempt: The attempt at the round, from 1: a round without any sum is tried again.
    """

    round_number: int
    rounds: int
    stage: int
    doing: str
    begun: int = 0
    left: int = 0
    attempt: int = 1

    def in_words(self) -> str:
        """Returns round and stage in words.

        >>> StageProgress(round_number=2, rounds=3, stage=1, doing="silos make keys").in_words()
        'round 2 of 3, stage 1 of 5: silos make keys'
        """
        stage = f", stage {self.stage} of {len(STAGE_WORDS)}" if self.stage else ""
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        return f"round {self.round_number} of {self.rounds}{again}{stage}: {self.doing}"


class ProgressFile:
    """Writes the progress of one call of `FulcrumStrategy.start`.

    Args:
        folder: The server's site; None for a server without a site, whose progress is not written.
        rounds: The last round of the call.
    """

    def __init__(self, folder: Path | None, rounds: int) -> None:
        self._folder, self._rounds, self._begun = folder, rounds, 0

    def wait(self, round_number: int, doing: str) -> None:
        """Writes that the server waits before a round, and the reason."""
        self._write(StageProgress(round_number=round_number, rounds=self._rounds, stage=0, doing=doing))

    def begin(self, round_number: int, request: Request) -> None:
        """Writes the stage of a request."""
        stage = list(STAGE_WORDS).index(stage_of(request)) + 1
        left = len(STAGE_WORDS) * (self._rounds - round_number + 1) - stage
        progress = StageProgress(
            round_number=round_number,
            rounds=self._rounds,
            stage=stage,
            doing=STAGE_WORDS[stage_of(request)],
            begun=self._begun,
            left=left,
            attempt=request.session.attempt,
        )
        self._begun += 1
        self._write(progress)

    def _write(self, progress: StageProgress) -> None:
        if self._folder is None:
            return
        scratch = self._folder / f"{PROGRESS}.new"
        with contextlib.suppress(OSError):  # progress is for people alone: a full disk must not end a round
            scratch.write_bytes(msgspec.json.encode(progress))
            scratch.replace(self._folder / PROGRESS)


def read_progress(folder: Path) -> StageProgress | None:
    """Returns the progress in the folder of a server's site; None before the first stage."""
    try:
        return json_of((folder / PROGRESS).read_bytes(), StageProgress)
    except (OSError, msgspec.MsgspecError):
        return None
