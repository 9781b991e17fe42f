"""The ClientApp of a virtual node in Flower's simulation: trains by the site's own module, in this process.

A process of its own for every virtual node would take a Python interpreter for every silo of the simulation.
"""

import importlib

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fulcrum.core.silo.site import read_site
from fulcrum.core.training.assignment import Assignment
from fulcrum.engines.flower.client_mod import folder_of, fulcrum_mod
from fulcrum.engines.flower.flower_records import ARRAYS, CONFIG, ROUND, arrays_in, as_record

client_app = ClientApp(mods=[fulcrum_mod])
"""Trains by the module that the node's site names."""


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Returns the model after local training in this process."""
    site = read_site(folder_of(context.node_config), "silo")
    assignment = Assignment(
        silo=site.settings.name,
        round_number=int(message.content[CONFIG][ROUND]),
        plan=site.plan,
        seed=site.settings.seed,
        options=site.settings.options,
    )
    model = arrays_in(message.content[ARRAYS])
    trained = dict(importlib.import_module(site.settings.train).train(model, assignment))
    return Message(RecordDict({ARRAYS: as_record(trained)}), reply_to=message)
