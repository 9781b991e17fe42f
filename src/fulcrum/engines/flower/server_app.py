"""The built-in ServerApp, which runs the plan of the server's site.

An app names the component in pyproject.toml: `fulcrum.engines.flower.server_app:server_app`.
"""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fulcrum.core.training.training_module import load_training_module
from fulcrum.engines.flower.flower_records import arrays_in, as_record
from fulcrum.engines.flower.server_side.run_recorder import RunRecorder
from fulcrum.engines.flower.strategy import FulcrumStrategy, server_site
from fulcrum.server.run_results import RoundResult

server_app = ServerApp()
"""Runs the plan of the server's site."""


@server_app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Runs the remaining rounds."""
    del context
    run_plan(grid)


def run_plan(grid: Grid, on_round: Callable[[RoundResult], None] = lambda _: None) -> None:
    """Runs the remaining rounds of the server site's plan, from the start of the site's training module.

    Args:
        grid: Flower's access to the nodes.
        on_round: Called with the result of every round and the server's metrics.
    """
    site = server_site()
    training_module = load_training_module(site.settings.train)
    start = training_module.starting_model(site.settings.options)
    recorder = RunRecorder(site, training_module, on_round)

    def evaluate(round_number: int, record: ArrayRecord) -> MetricRecord | None:
        if round_number < 1:
            return None
        model = {name: array.astype(float) for name, array in arrays_in(record).items()}
        metrics = recorder.measure(round_number, model)
        return MetricRecord(metrics) if metrics else None

    training_module.check_unit(site.plan.unit)
    rate = training_module.server_rate(site.plan.unit, site.settings.options)
    strategy = FulcrumStrategy(
        site.folder,
        classes=training_module.classes(start),
        learning_rate=rate,
        on_round=recorder.record_round,
        writes_run=False,  # the recorder writes the metrics of the training module
    )
    strategy.start(grid=grid, initial_arrays=as_record(start), evaluate_fn=evaluate)
