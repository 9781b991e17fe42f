"""The module that both built-in apps were in: kits that were written before name it.

Each name is imported when it is asked for, so that a silo of such a kit imports nothing of the server.
"""

from fulcrum.moved_names import names_in

_CLIENT, _SERVER = "engines.flower.client_app", "engines.flower.server_app"

__getattr__ = names_in(
    __name__, {"client_app": _CLIENT, "train": _CLIENT, "server_app": _SERVER, "run_plan": _SERVER}, until="0.3"
)
