"""The app that is built in: a ClientApp and a ServerApp that train by the module their sites name.

An app names them in its pyproject.toml as components: `fulcrum.engines.flower.app:client_app` and `:server_app`.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fulcrum.core.silo.assignment import Assignment
from fulcrum.core.silo.site import read_site
from fulcrum.core.silo.training_module import load_learner
from fulcrum.core.silo.training_worker import TrainingWorker
from fulcrum.engines.flower.client_mod import SITE, fulcrum_mod, own_site
from fulcrum.engines.flower.flower_records import ARRAYS, CONFIG, ROUND, arrays_in, as_record
from fulcrum.engines.flower.run_recorder import Telling
from fulcrum.engines.flower.strategy import FulcrumStrategy, server_site
from fulcrum.server.run_results import RoundResult

client_app = ClientApp(mods=[fulcrum_mod])
"""Trains by the module that the silo's site names."""

server_app = ServerApp()
"""Runs the plan of the server's site."""


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Returns the model after local training, which at a SuperNode runs in a process of its own."""
    site = own_site(context)
    assignment = Assignment(
        silo=site.settings.name,
        round_number=int(message.content[CONFIG][ROUND]),
        plan=site.plan,
        seed=site.settings.seed,
        options=site.settings.options,
    )
    model = arrays_in(message.content[ARRAYS])
    if SITE in context.node_config:
        trained = _worker_of(site.folder).trained(model, assignment)
    else:  # a virtual node of a simulation
        trained = dict(load_learner(site.settings.train).train(model, assignment))
    return Message(RecordDict({ARRAYS: as_record(trained)}), reply_to=message)


@functools.cache
def _worker_of(folder: Path) -> TrainingWorker:
    """Returns the training process of a site, which lives as long as the process of the app."""
    settings = read_site(folder, "silo").settings
    return TrainingWorker(settings.train, seconds=settings.training_deadline, gigabytes=settings.training_gigabytes)


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
