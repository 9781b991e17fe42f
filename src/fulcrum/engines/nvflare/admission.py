"""The orders that a site takes from the server: to run Fulcrum's job and to stop it, and no others.

Stock, a site also lets the server list and read its files, delete folders and ask for its errors, and looks into its
own authorization.json only where the request asks it to.
"""

import re
from typing import Any

from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.training_cmds import DeployProcessor

_NEEDED = (
    "CheckResourceProcessor",
    "CancelResourceProcessor",
    "StartJobProcessor",
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "NotifyJobStatusProcessor",
)
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CarefulDeployProcessor(DeployProcessor):  # type: ignore[misc]
    """Deploys a job into a folder of its own: its name is a job's, and not that of a folder of the kit."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Deploys, or says why not."""
        if not _JOB.fullmatch(str(req.get_header(RequestHeader.JOB_ID))):
            return error_reply("a job is known by a UUID")
        return super().process(req, app_ctx)


def take_few_orders() -> None:
    """Forgets every order but those of a job's life, before the site begins to listen."""
    known = ClientRequestProcessors.request_processors
    known[:] = [order for order in known if type(order).__name__ in _NEEDED] + [CarefulDeployProcessor()]
