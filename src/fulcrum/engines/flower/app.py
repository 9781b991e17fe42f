"""The earlier place of both built-in apps, which kits of earlier versions name.

A name is imported at its first use, so that a silo of an earlier kit imports no module of the server.
"""

from fulcrum.moved_names import names_in

_CLIENT, _SERVER = "engines.flower.client_app", "engines.flower.server_app"

__getattr__ = names_in(
    __name__, {"client_app": _CLIENT, "train": _CLIENT, "server_app": _SERVER, "run_plan": _SERVER}, until="0.3"
)
