"""The built-in ClientApp: a silo that trains by the site's own training module, in a process of its own.

An app names the component in pyproject.toml: `fulcrum.engines.flower.client_app:client_app`. The module imports nothing
of the server or the planner.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fulcrum.engines.flower.flower_records import MESSAGE_TYPE
from fulcrum.engines.flower.site_mod import SiteMod
from fulcrum.errors import ExchangeError

client_app = ClientApp(mods=[SiteMod()])
"""Trains by the module that the silo's site names."""


@client_app.train()  # type: ignore[untyped-decorator]
def unreachable(message: Message, context: Context) -> Message:
    """Refuses: Flower passes messages to the mod only if a function is registered, and the mod calls no function."""
    del message, context
    raise ExchangeError("flower.type-refused", message_type=MESSAGE_TYPE)
