"""Restricts the peers and the commands of a site: a site runs and stops the job of its own kit, and nothing else.

By default NVIDIA FLARE lets the server list and read a site's files, delete folders and ask for errors. A site reads
its own authorization.json only if the request says to, takes commands from any other site, and reads settings,
including names of modules to import, from any file of a job.
"""

import io
import re
import threading
import zipfile
from itertools import pairwise
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

from fulcrum.core.messages.membership import region_of, regions_of, summing_tiers
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.silo.site import Role, Site
from fulcrum.engines.nvflare.site_jobs.job_messages import APP, FOLDER, site_of

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
"""The most bytes of an app, inflated or not, in addition to the kit's own file. Signatures have a few thousand."""

_MOST_ENTRIES = 16
_INFLATED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile inflates other methods without a bound
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
"""The messages between silos and their region in a round; answers use a channel of their own."""


def is_job(name: object) -> bool:
    """Returns True for the name of a job, and False for the name of a folder of the kit."""
    return isinstance(name, str) and _JOB.fullmatch(name) is not None


class CarefulDeployProcessor(DeployProcessor):  # type: ignore[misc]
    """Deploys the job of this kit, byte for byte, into a folder of its own, and no other job."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Deploys the job, or returns the reason for a refusal."""
        job, meta = req.get_header(RequestHeader.JOB_ID), req.get_header(RequestHeader.JOB_META)
        if not is_job(job) or not isinstance(meta, dict) or meta.get("job_id") != job:
            return error_reply("a job is known by a UUID, and by one alone")
        own = Path(app_ctx.args.workspace) / "local" / FOLDER / Path(APP).name
        if not _holds_only(req.body, own):
            return error_reply("this is not the job of this kit")
        return super().process(req, app_ctx)


def _holds_only(body: Any, own: Path) -> bool:
    """Returns True if an app holds the kit's own file and signatures of the file, and nothing else.

    A few bytes inflate to gigabytes. The length of the package and the sizes that the package states are therefore
    bounded first, and no more bytes are inflated than are compared.
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
    except Exception:  # zipfile raises many kinds of errors for a malformed package
        return False
    return True


def restrict_commands() -> None:
    """Removes every command except running and ending a job, before the site begins to listen."""
    orders = ClientRequestProcessors.request_processors
    orders[:] = [order for order in orders if type(order).__name__ in _ORDERS] + [CarefulDeployProcessor()]
    commands = AdminCommands.commands
    commands[:] = [command for command in commands if type(command).__name__ in _COMMANDS]


def restrict_peers(cell: Any, site: Site) -> None:
    """Refuses every request except from the server, from the site itself, and from the site's neighbours in the plan.

    A site accepts from neighbours the messages of a round alone. By default a silo can tell its region that the round
    or the job is over, or stop the region, and so exclude silos that have not answered yet.

    The server vouches for the origin of a request: the server compares the origin with the token that it issued for a
    certificate. The comparison is absent for a token from before a restart of the site. No protection of a silo
    therefore rests on the origin: releases and declines are signed.
    """
    name, technical = site.settings.name, site.settings.engine_names
    peers = {region_of(site.plan, name)} if site.settings.role == "silo" else _neighbours(site.plan, name)
    own, near = technical.get(name, name), {technical.get(peer, peer) for peer in peers}

    def refusal(message: Any) -> Any:
        origin = str(message.get_header(MessageHeaderKey.ORIGIN, "")).split(".")[0]
        if origin in (_SERVER, own) or (origin in near and _is_of_a_round(message)):
            return None
        return make_reply(ReturnCode.UNAUTHENTICATED, "this site does not know you, or does not do that for you")

    cell.core_cell.add_incoming_request_filter("*", "*", refusal)


def _neighbours(plan: PlanData, name: str) -> set[str]:
    """Returns the silos and aggregators next to an aggregator.

    A tier without sites has no neighbours: its nodes may have the names of silos elsewhere. Where all silos are one
    masked group, a region still relays for its silos.
    """
    near = {silo for silo, region in regions_of(plan.federation).items() if region == name}
    for inner, outer in pairwise(summing_tiers(plan)):
        for child, code in zip(inner.nodes, outer.parent_of.tolist(), strict=True):
            near |= {child, outer.nodes[code]} if name in (child, outer.nodes[code]) else set()
    return near


def restrict_peers_at_start(component: Any, role: Role) -> threading.Event:
    """Restricts the peers of a component's site before the first task; the returned event is set afterwards."""
    listening = threading.Event()

    def listen(event_type: str, fl_ctx: Any) -> None:
        del event_type
        restrict_peers(fl_ctx.get_engine().get_cell(), site_of(fl_ctx, role))
        listening.set()

    component.register_event_handler(EventType.START_RUN, listen)
    return listening


def _is_of_a_round(message: Any) -> bool:
    """Returns True for a message of a round between silos and region; most messages travel in pieces of a stream."""
    address = (message.get_header(MessageHeaderKey.CHANNEL), message.get_header(MessageHeaderKey.TOPIC))
    if address == (STREAM_CHANNEL, STREAM_DATA_TOPIC):
        address = (message.get_header(StreamHeaderKey.CHANNEL), message.get_header(StreamHeaderKey.TOPIC))
        if address[0] == CellChannel.RETURN_ONLY:
            return True
    return address in _OF_A_ROUND
