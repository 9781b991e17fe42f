"""What the server measures of the model after each round, kept beside its checkpoint.

>>> import tempfile
>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> with tempfile.TemporaryDirectory() as folder:
...     note_metrics(Path(folder), made, 1, {"accuracy": 0.5})
...     read_metrics(Path(folder), made)
{1: {'accuracy': 0.5}}

The global model is made of regional sums, which were released, and it is measured on records that are public: what is
kept here costs no privacy. Nothing of a single silo, such as its loss or the norm of its update, ever comes here.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.assignment import Assignment
from fulcrum.core.silo.site import Site
from fulcrum.core.silo.training_module import Learner
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import FulcrumError, StorageError, in_one_line, listing
from fulcrum.parsing import json_of

_logger = logging.getLogger(__name__)

FORMAT = "fulcrum.metrics/1"

NAME = "metrics.json"
"""The file in the server's state folder."""


class Evaluation:
    """The server's part after each round: runs the module's `evaluate` and keeps what it gives.

    Whatever goes wrong here, in the user's function or on disk, is a note and never the end of the training.
    """

    def __init__(self, site: Site, learner: Learner) -> None:
        self.site, self._learner = site, learner
        self._trouble: dict[str, list[int]] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        try:
            self.metrics = read_metrics(site.state, site.plan)
        except StorageError as error:
            self._note(str(error), 0)

    @property
    def notes(self) -> list[str]:
        """What is to be known of the model, and what was left out of the metrics and why, with its rounds."""
        told = self._learner.form(self.site.settings.options).remarks()
        return told + [f"{_rounds(rounds)}{what}." for what, rounds in self._trouble.items()]

    def measure(self, model: Mapping[str, FloatArray], round_number: int) -> None:
        """Measures the model that a round ended with, unless that was done before."""
        if round_number < 1 or round_number in self.metrics:
            return
        site = self.site
        assignment = Assignment(
            silo="",
            round_number=round_number,
            plan=site.plan,
            seed=site.settings.seed,
            options=site.settings.options,
        )
        found, left_out = self._learner.measured(model, assignment)
        for what in left_out:
            self._note(what, round_number)
        if not found:
            return
        self.metrics[round_number] = found
        try:
            note_metrics(site.state, site.plan, round_number, found)
        except FulcrumError as error:
            self._note(f"not kept for a restart: {error}", round_number)

    def _note(self, what: str, round_number: int) -> None:
        self._trouble.setdefault(what, []).append(round_number)
        _logger.warning("round %d: %s", round_number, what)


def _rounds(numbers: list[int]) -> str:
    """In which rounds, in words; nothing for what is of no round."""
    if numbers == [0]:
        return ""
    return f"Round{'s' if len(numbers) > 1 else ''} {listing(map(str, numbers), 3)}: "


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    plan_digest: str
    rounds: dict[int, dict[str, float]]


def read_metrics(folder: Path, plan: VerifiedPlan) -> dict[int, dict[str, float]]:
    """Returns what was measured after each round of a plan; nothing where nothing was."""
    file = folder / NAME
    try:
        kept = json_of(file.read_bytes(), _Kept)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError("server.file-unreadable", file=file, reason=error.strerror or str(error)) from None
    except msgspec.MsgspecError as error:
        raise StorageError("metrics.malformed", file=file, reason=in_one_line(error)) from None
    if kept.format != FORMAT or kept.plan_digest != plan.digest:
        raise StorageError("metrics.other-plan", file=file)
    return kept.rounds


def note_metrics(folder: Path, plan: VerifiedPlan, round_number: int, metrics: Mapping[str, float]) -> None:
    """Adds what was measured after a round; written whole."""
    rounds = read_metrics(folder, plan) | {round_number: dict(metrics)}
    kept = _Kept(format=FORMAT, plan_digest=plan.digest, rounds=dict(sorted(rounds.items())))
    write_whole(folder / NAME, msgspec.json.encode(kept))
