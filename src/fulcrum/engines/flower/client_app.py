"""The built-in ClientApp: a silo that trains by the site's own training module, in a process of its own.

An app names the component in pyproject.toml: `fulcrum.engines.flower.client_app:client_app`. The module imports nothing
of the server or the planner.
"""

import functools
import importlib
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fulcrum.core.silo.releasing_silo import worker_of
from fulcrum.core.silo.site import read_site
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.engines.flower.client_mod import SITE, fulcrum_mod, own_site
from fulcrum.engines.flower.flower_records import ARRAYS, CONFIG, ROUND, arrays_in, as_record

client_app = ClientApp(mods=[fulcrum_mod])
"""Trains by the module that the silo's site names."""


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
        trained = _worker_of(site.folder).train(model, assignment)
    else:  # a virtual node of a simulation, which imports and runs the module in this process
        trained = dict(importlib.import_module(site.settings.train).train(model, assignment))
    return Message(RecordDict({ARRAYS: as_record(trained)}), reply_to=message)


@functools.cache
def _worker_of(folder: Path) -> TrainingWorker:
    """Returns the training process of a site, which lives as long as the process of the app."""
    return worker_of(read_site(folder, "silo").settings)
