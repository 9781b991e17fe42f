"""The ServerApp that is built in: it runs the plan of the server's site.

An app names it in its pyproject.toml as a component: `fulcrum.engines.flower.server_app:server_app`.
"""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fulcrum.core.training.training_module import load_learner
from fulcrum.engines.flower.flower_records import arrays_in, as_record
from fulcrum.engines.flower.run_recorder import Telling
from fulcrum.engines.flower.strategy import FulcrumStrategy, server_site
from fulcrum.server.run_results import RoundResult

server_app = ServerApp()
"""Runs the plan of the server's site."""


@server_app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds that are left."""
    del context
    run_plan(grid)


def run_plan(grid: Grid, on_round: Callable[[RoundResult], None] = lambda _: None) -> None:
    """Runs the rounds that are left of the plan of the server's site, from the start that its training module gives.

    Args:
        grid: How nodes are reached.
        on_round: Told what came of each round, and what the server measured after it.
    """
    site = server_site()
    learner = load_learner(site.settings.train)
    start = learner.starting_model(site.settings.options)
    telling = Telling(site, learner, on_round)

    def evaluate(round_number: int, record: ArrayRecord) -> MetricRecord | None:
        if round_number < 1:
            return None
        found = telling.measured(round_number, {name: array.astype(float) for name, array in arrays_in(record).items()})
        return MetricRecord(found) if found else None

    strategy = FulcrumStrategy(site.folder, classes=learner.classes(start), on_round=telling.ended)
    strategy.start(grid=grid, initial_arrays=as_record(start), evaluate_fn=evaluate)
