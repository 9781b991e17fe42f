"""Whom a site listens to, and the orders it takes: to run the job of its own kit and to stop it, and no others.

By default NVIDIA FLARE also lets the server list and read a site's files, delete folders and ask for its errors; a site
looks into its own authorization.json only where the request asks it to, takes orders from any other site, and finds
settings in whatever a job brings, the names of modules to import among them.
"""

import io
import re
import threading
import zipfile
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedTopic, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.training_cmds import DeployProcessor

from fulcrum.core.messages.membership import members_of, region_of
from fulcrum.core.silo.site import Role, Site
from fulcrum.engines.nvflare.job_messages import APP, FOLDER, site_of

_ORDERS = (
    "CheckResourceProcessor",
    "CancelResourceProcessor",
    "StartJobProcessor",
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "NotifyJobStatusProcessor",
)
_COMMANDS = ("CheckStatusCommand", "AbortCommand", "AbortTaskCommand", "ByeCommand")
_SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
_MOST_BYTES = 1 << 20
"""Of an app, inflated or not, beside the one file of the kit: signatures and certificates have a few thousand."""

_MOST_ENTRIES = 16
_INFLATED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others are inflated without a bound
_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SERVER = "server"
_OF_A_ROUND = {
    (CellChannel.SERVER_COMMAND, ServerCommandNames.GET_TASK),
    (CellChannel.SERVER_COMMAND, ServerCommandNames.SUBMIT_UPDATE),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.SYNC_RUNNER),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.JOB_HEART_BEAT),
    (CellChannel.AUX_COMMUNICATION, ReservedTopic.TASK_CHECK),
    (STREAM_CHANNEL, STREAM_ACK_TOPIC),
    (STREAM_CHANNEL, STREAM_ERROR_TOPIC),
}
"""What silos and their region say to each other; answers come on a channel of their own."""


def is_job(name: object) -> bool:
    """Returns whether a name is that of a job, and not that of a folder of the kit."""
    return isinstance(name, str) and _JOB.fullmatch(name) is not None


class CarefulDeployProcessor(DeployProcessor):  # type: ignore[misc]
    """Deploys the job of this kit, byte for byte, into a folder of its own, and nothing else."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Deploys, or says why not."""
        job, meta = req.get_header(RequestHeader.JOB_ID), req.get_header(RequestHeader.JOB_META)
        if not is_job(job) or not isinstance(meta, dict) or meta.get("job_id") != job:
            return error_reply("a job is known by a UUID, and by one alone")
        own = Path(app_ctx.args.workspace) / "local" / FOLDER / Path(APP).name
        if not _holds_only(req.body, own):
            return error_reply("this is not the job of this kit")
        return super().process(req, app_ctx)


def _holds_only(body: Any, own: Path) -> bool:
    """Whether an app is the one file that the kit has too, and the signatures on it.

    A few bytes inflate to gigabytes, so neither what comes nor what it says of its own sizes is taken for small, and
    no more is inflated than is looked for.
    """
    try:
        wanted = own.read_bytes()
        most = len(wanted) + _MOST_BYTES
        if len(body) > most:
            return False
        with zipfile.ZipFile(io.BytesIO(body)) as app:
            entries = app.infolist()
            if len(entries) > _MOST_ENTRIES or any(entry.compress_type not in _INFLATED for entry in entries):
                return False
            names = [entry.filename for entry in entries if not entry.is_dir()]
            files = [name for name in names if name.rsplit("/", 1)[-1] not in _SIGNATURES]
            if len(names) != len(set(names)) or files != [APP] or sum(entry.file_size for entry in entries) > most:
                return False
            for name in names:
                with app.open(name) as file:
                    if len(content := file.read(most + 1)) > most or (name == APP and content != wanted):
                        return False
    except Exception:  # whatever zipfile makes of what a stranger packed
        return False
    return True


def take_few_orders() -> None:
    """Forgets every order but those to run a job and to end it, before the site begins to listen."""
    orders = ClientRequestProcessors.request_processors
    orders[:] = [order for order in orders if type(order).__name__ in _ORDERS] + [CarefulDeployProcessor()]
    commands = AdminCommands.commands
    commands[:] = [command for command in commands if type(command).__name__ in _COMMANDS]


def listen_to_few(cell: Any, site: Site) -> None:
    """Refuses every request but those of the server, of the site itself, and of whoever stands next to it in the plan.

    From its neighbours a site takes the messages of a round and no others. By default one silo can tell its region
    that the round, or the job, is over, or have it stop, and leave out whoever has not answered yet.

    The server vouches for who a request is from: it holds the origin against the token that it gave for a certificate.
    It does not where a site uses a token from before it came back, so nothing that protects a silo rests on this:
    releases and declines are signed.
    """
    name = site.settings.name
    near = {region_of(site.plan, name)} if site.settings.role == "silo" else set(members_of(site.plan, name))

    def refused(message: Any) -> Any:
        origin = str(message.get_header(MessageHeaderKey.ORIGIN, "")).split(".")[0]
        if origin in (_SERVER, name) or (origin in near and _is_of_a_round(message)):
            return None
        return make_reply(ReturnCode.UNAUTHENTICATED, "this site does not know you, or does not do that for you")

    cell.core_cell.add_incoming_request_filter("*", "*", refused)


def listening_from_the_start(component: Any, role: Role) -> threading.Event:
    """Has the site of a component listen to few before its first task comes; the event is set once it does."""
    listening = threading.Event()

    def listen(event_type: str, fl_ctx: Any) -> None:
        del event_type
        listen_to_few(fl_ctx.get_engine().get_cell(), site_of(fl_ctx, role))
        listening.set()

    component.register_event_handler(EventType.START_RUN, listen)
    return listening


def _is_of_a_round(message: Any) -> bool:
    """Whether a message is part of what silos and regions do in a round; most travel in pieces, inside of others."""
    said = (message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC))
    if said == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        said = (message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC))
        if said[0] == CellChannel.RETURN_ONLY:
            return True
    return said in _OF_A_ROUND
