"""The server's metrics of the model after every round, stored beside the checkpoint.

>>> import tempfile
>>> from fulcrum.planning.planner import plan
>>> example = plan("isic-paper", rounds=2, epsilon=1.0)
>>> with tempfile.TemporaryDirectory() as folder:
...     note_metrics(Path(folder), example, 1, {"accuracy": 0.5})
...     read_metrics(Path(folder), example)
{1: {'accuracy': 0.5}}

The global model is a function of released regional sums, and the metrics are measured on public records: the metrics
cost no privacy. No figure of a single silo, such as a loss or the norm of an update, is among the metrics.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.site import Site
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import FulcrumError, StorageError, in_one_line, listing
from fulcrum.parsing import json_of

_logger = logging.getLogger(__name__)

FORMAT = "fulcrum.metrics/1"

NAME = "metrics.json"
"""The file in the server's state folder."""


class Evaluation:
    """The server's work after every round: runs the module's `evaluate` and stores the metrics.

    A failure, in the user's function or on disk, becomes a note and never ends the training.
    """

    def __init__(self, site: Site, training_module: TrainingModule) -> None:
        self.site, self._training_module = site, training_module
        self._trouble: dict[str, list[int]] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        try:
            self.metrics = read_metrics(site.state, site.plan)
        except StorageError as error:
            self._note(str(error), 0)

    @property
    def notes(self) -> list[str]:
        """Sentences on the model, and on every metric that was left out, with the reason and the rounds."""
        remarks = self._training_module.form(self.site.settings.options).remarks()
        return remarks + [f"{_rounds(rounds)}{problem}." for problem, rounds in self._trouble.items()]

    def measure(self, model: Mapping[str, FloatArray], round_number: int) -> None:
        """Measures the model after a round, unless the round has metrics already."""
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
        metrics, left_out = self._training_module.metrics_of(model, assignment)
        for problem in left_out:
            self._note(problem, round_number)
        if not metrics:
            return
        self.metrics[round_number] = metrics
        try:
            note_metrics(site.state, site.plan, round_number, metrics)
        except FulcrumError as error:
            self._note(f"not kept for a restart: {error}", round_number)

    def _note(self, problem: str, round_number: int) -> None:
        self._trouble.setdefault(problem, []).append(round_number)
        _logger.warning("round %d: %s", round_number, problem)


def _rounds(numbers: list[int]) -> str:
    """Returns the rounds of a problem in words; "" for a problem before all rounds."""
    if numbers == [0]:
        return ""
    return f"Round{'s' if len(numbers) > 1 else ''} {listing(map(str, numbers), 3)}: "


class _MetricsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    plan_digest: str
    rounds: dict[int, dict[str, float]]


def read_metrics(folder: Path, plan: VerifiedPlan) -> dict[int, dict[str, float]]:
    """Returns the metrics after rounds of a plan, by number of the round; {} without a file of metrics."""
    file = folder / NAME
    try:
        content = json_of(file.read_bytes(), _MetricsFile)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError("file.unreadable", file=file, reason=error.strerror or str(error)) from None
    except msgspec.MsgspecError as error:
        raise StorageError("metrics.malformed", file=file, reason=in_one_line(error)) from None
    if content.format != FORMAT or content.plan_digest != plan.digest:
        raise StorageError("metrics.other-plan", file=file)
    return content.rounds


def note_metrics(folder: Path, plan: VerifiedPlan, round_number: int, metrics: Mapping[str, float]) -> None:
    """Adds the metrics after a round to the file, which is written whole."""
    rounds = read_metrics(folder, plan) | {round_number: dict(metrics)}
    content = _MetricsFile(format=FORMAT, plan_digest=plan.digest, rounds=dict(sorted(rounds.items())))
    write_whole(folder / NAME, msgspec.json.encode(content))
