"""The app that is built in: a ClientApp and a ServerApp that train by the module their sites name.

An app names them in its pyproject.toml as components: `fulcrum.engines.flower.app:client_app` and `:server_app`.
"""

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fulcrum.engines.flower.records import ARRAYS, CONFIG, ROUND, arrays_in, as_record
from fulcrum.engines.flower.server import FulcrumStrategy, server_site
from fulcrum.engines.flower.silo import fulcrum_mod, own_site
from fulcrum.roles.checkpoint import RoundSummary
from fulcrum.roles.learning import Assignment, load_learner

client_app = ClientApp(mods=[fulcrum_mod])
"""Trains by the module that the silo's site names."""

server_app = ServerApp()
"""Runs the plan of the server's site."""


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Returns the model after local training."""
    site = own_site(context)
    assignment = Assignment(
        silo=site.settings.name,
        round_number=int(message.content[CONFIG][ROUND]),
        plan=site.plan,
        seed=site.settings.seed,
        options=site.settings.options,
    )
    model = arrays_in(message.content[ARRAYS])
    trained = load_learner(site.settings.train).train(model, assignment)
    return Message(RecordDict({ARRAYS: as_record(trained)}), reply_to=message)


@server_app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds that are left."""
    del context
    run_plan(grid)


def run_plan(grid: Grid, on_round: Callable[[RoundSummary], None] = lambda _: None) -> None:
    """Runs the rounds that are left of the plan of the server's site, from the start that its training module gives."""
    site = server_site()
    learner = load_learner(site.settings.train)
    start = learner.starting_model(site.settings.options)
    strategy = FulcrumStrategy(site.folder, classes=learner.classes(start), on_round=on_round)
    strategy.start(grid=grid, initial_arrays=as_record(start))
