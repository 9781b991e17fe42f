"""The earlier place of components of kits, which kits of earlier versions name.

A name is imported at its first use, so that a silo of an earlier kit imports no module of the server.
"""

from fulcrum.moved_names import names_in

_SERVER = "engines.nvflare.server_files"

__getattr__ = names_in(
    __name__,
    {"SiteLauncher": "engines.nvflare.site_launcher", "KitJobs": _SERVER, "KitStorage": _SERVER},
    until="0.3",
)
