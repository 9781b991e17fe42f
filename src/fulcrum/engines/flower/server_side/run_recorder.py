"""Records the rounds of a plan on Flower: run.json in the server's site, with the metrics of every round.

The built-in ServerApp measures the global model on the server's own records, by the `evaluate` of the site's training
module, and writes the results of all rounds so far to run.json. The starter of the run reads run.json.
"""

import logging
from collections.abc import Callable, Mapping

import msgspec

from fulcrum.arrays import FloatArray
from fulcrum.core.silo.site import Site
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.engines.site_folders import LocalRun, task_of
from fulcrum.errors import DataError, FulcrumError, in_one_line
from fulcrum.parsing import json_of
from fulcrum.server.checkpoint import RoundSummary, history_of
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.deployed_run import deployed_run, save_deployed_run
from fulcrum.server.evaluation import Evaluation
from fulcrum.server.run_results import RoundResult, RunResult

_logger = logging.getLogger("flwr.fulcrum")  # beneath Flower's own, so that `flwr log` shows it


class RunRecorder:
    """Follows the rounds of a server: records every round, measures the model after the round, and writes run.json.

    Args:
        site: The server's site.
        training_module: The training module, which has the server's `evaluate`.
        on_round: Called with the result of every round that this server ran.
    """

    def __init__(self, site: Site, training_module: TrainingModule, on_round: Callable[[RoundResult], None]) -> None:
        self._site, self._on_round = site, on_round
        self._evaluation = Evaluation(site, training_module)
        self._history = list(history_of(site.state, site.plan, logical=True))
        self._has_new_round = False

    def record_round(self, summary: RoundSummary) -> None:
        """Records the summary of a round."""
        self._history.append(summary)
        self._has_new_round = True

    def measure(self, round_number: int, model: Mapping[str, FloatArray]) -> dict[str, float]:
        """Measures the model after a round, writes run.json for all rounds so far, and returns the metrics."""
        self._evaluation.measure(model, round_number)
        run = deployed_run(
            self._site.plan,
            self._history,
            self._evaluation.metrics,
            task=task_of(self._site),
            seed=self._site.settings.seed,
            engine="flower",
            notes=self._evaluation.notes,
        )
        try:
            save_deployed_run(run, self._site.folder)
        except FulcrumError as error:  # the rounds themselves are in the checkpoint
            _logger.warning("nobody is told of the rounds so far: %s", error)
        if self._has_new_round:
            self._on_round(run.rounds[-1])
            self._has_new_round = False
        return self._evaluation.metrics.get(round_number, {})


def run_of(site: Site) -> RunResult | None:
    """Returns the recorded run of a server; None before the first record."""
    try:
        return json_of((site.folder / "run.json").read_bytes(), RunResult)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError("engine.run-file-malformed", file=site.folder / "run.json", reason=in_one_line(error)) from None


def local_run(site: Site, seconds: float, failed: str = "") -> LocalRun:
    """Returns the result of a finished run, read from the folder of a server on this machine.

    Args:
        site: The server's site.
        seconds: The time from the end of the first round to the end of the last round, for the result.
        failed: Failures of training at silos of this machine, in words.
    """
    done, run = Coordinator.read(site.state, site.plan, logical=True), run_of(site)
    if run is None:
        run = deployed_run(
            site.plan, done.history, {}, task=task_of(site), seed=site.settings.seed, engine="flower", notes=()
        )
    return LocalRun(run=run, history=done.history, model=done.model, seconds=seconds, failed=failed)
