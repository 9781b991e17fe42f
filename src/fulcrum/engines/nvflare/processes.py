"""The module that components of kits were in: kits that were written before name it.

Each name is imported when it is asked for, so that a silo of such a kit imports nothing of the server.
"""

from fulcrum.moved_names import names_in

_SERVER = "engines.nvflare.server_files"

__getattr__ = names_in(
    __name__,
    {"SiteLauncher": "engines.nvflare.site_launcher", "KitJobs": _SERVER, "KitStorage": _SERVER},
    until="0.3",
)
