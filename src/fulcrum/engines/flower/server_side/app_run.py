"""Records the rounds of a user's app: run.json in the server's site, with the metrics of the app's `evaluate_fn`."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from fulcrum.core.silo.site import Site
from fulcrum.engines.flower.server_side.run_recorder import run_of
from fulcrum.engines.site_folders import task_of
from fulcrum.errors import FulcrumError
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.deployed_run import ACCURACY, deployed_run, save_deployed_run

_logger = logging.getLogger("flwr.fulcrum")


class AppRun:
    """The run of a user's app, written after every round.

    Args:
        site: The server's site.
        history: The outcomes of the rounds before, by the checkpoint.
        notes: Sentences on the model for the reader.
    """

    def __init__(self, site: Site, history: Iterable[RoundSummary], notes: Iterable[str]) -> None:
        self._site, self._history, self._notes = site, list(history), list(notes)
        earlier = _earlier_metrics(site)
        self._metrics = {summary["round"]: earlier.get(summary["round"], {}) for summary in self._history}

    def record(self, summary: RoundSummary, metrics: Mapping[str, Any]) -> None:
        """Adds a round, and writes run.json; numbers alone are metrics."""
        self._history.append(summary)
        self._metrics[summary["round"]] = {
            name: float(value) for name, value in metrics.items() if isinstance(value, int | float)
        }
        run = deployed_run(
            self._site.plan,
            self._history,
            self._metrics,
            task=task_of(self._site),
            seed=self._site.settings.seed,
            engine="flower",
            notes=self._notes,
        )
        try:
            save_deployed_run(run, self._site.folder)
        except FulcrumError as error:  # the rounds themselves are in the checkpoint
            _logger.warning("run.json was not written: %s", error)


def _earlier_metrics(site: Site) -> dict[int, dict[str, float]]:
    """Returns the metrics of a run that the site has recorded before, by round; a broken file has none."""
    try:
        run = run_of(site)
    except FulcrumError:
        return {}
    rounds = () if run is None else run.rounds
    accuracies = {result.round: {} if result.accuracy is None else {ACCURACY: result.accuracy} for result in rounds}
    return {result.round: accuracies[result.round] | result.metrics for result in rounds}
