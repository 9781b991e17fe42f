"""The middle of the hierarchy in masked rounds: a site sums its masked group, adds up sums, or relays for one group."""

import threading
import time
from abc import abstractmethod
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.edge.updater import Updater

from fulcrum.aggregation.group_relay import GroupRelay
from fulcrum.aggregation.masked_region import MaskedRegion
from fulcrum.aggregation.stage_messages import StageEnd, reply_of_region, stage_call_from_bytes
from fulcrum.aggregation.staged_node import StagedNode
from fulcrum.core.masking.masking_messages import INPUT
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.model_message import model_layout, unpack_model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.plan.figures import is_one_group
from fulcrum.core.silo.site import SUMS, Site, once_free
from fulcrum.core.silo.site_records import own_record
from fulcrum.engines.nvflare.flare_region import RegionGatherer, patience_of, sealed_upward
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, MODEL, site_of
from fulcrum.engines.nvflare.site_jobs.stage_tasks import ADDRESSES, CALL, REPLIES, REPLY, put_requests, requests_in
from fulcrum.errors import FulcrumError, StorageError


class _StageUpdater(Updater):  # type: ignore[misc]
    """A stage of a masked round at a region: waits for the silos with a request, until the region's patience ends."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self._lock = threading.Lock()
        self._deadline = 0.0

    def start_task(self, task_data: Shareable, fl_ctx: FLContext) -> Any:
        """Begins a stage, and puts the requests for the region's silos into the task that the silos receive."""
        with self._lock:
            try:
                requests = self._begin(task_data)
            except FulcrumError as error:
                self._after(error)
                raise
            put_requests(task_data, requests)
            self._deadline = time.monotonic() + patience_of(self._site)
        return super().start_task(task_data, fl_ctx)

    def process_child_update(self, update: Shareable, fl_ctx: FLContext) -> tuple[bool, Shareable | None]:
        """Accepts a silo's answer or decline; every other message is refused, logged, and counts as absent.

        The silo's signature alone identifies the sender. The name in the message is a claim of the sender, and the
        engine does not check the claim.
        """
        with self._lock:
            try:
                self._take(update.get(REPLY, update.get(ANSWER)))
            except FulcrumError as error:
                self._after(error)
                claimed = repr(peer.get_identity_name()) if (peer := fl_ctx.get_peer_context()) else "nobody"
                line = f"refused what came as from {claimed}: {error}"
                self.log_warning(fl_ctx, line, fire_event=False)
                return False, None
            return True, None

    @property
    def ready(self) -> bool:
        """True if no silo is missing, or the time is up."""
        with self._lock:
            return not self._missing() or time.monotonic() > self._deadline

    def prepare_update_for_parent(self, fl_ctx: FLContext) -> Shareable | None:
        """Returns the reply of the stage, the same at every call; None if the file of sums cannot be used."""
        with self._lock:
            try:
                if missing := sorted(self._missing()):
                    line = f"the stage ends without {', '.join(missing)}"
                    self.log_warning(fl_ctx, line, fire_event=False)
                return self._finish(fl_ctx)
            except FulcrumError as error:
                self._after(error)
                self.log_error(fl_ctx, f"no reply: {error}", fire_event=False)
                return None

    def process_parent_update_reply(self, reply: Shareable, fl_ctx: FLContext) -> None:
        """Ignores the reply: the server sends a region nothing between stages."""
        del reply, fl_ctx

    @abstractmethod
    def _begin(self, task: Shareable) -> dict[str, bytes]:
        """Begins the stage of a task, and returns the requests by silo."""

    @abstractmethod
    def _take(self, reply: Any) -> None:
        """Takes a silo's reply; raises `FulcrumError` for a reply that is refused."""

    @abstractmethod
    def _missing(self) -> frozenset[str]:
        """Returns the silos without a reply."""

    @abstractmethod
    def _finish(self, fl_ctx: FLContext) -> Shareable:
        """Returns the region's reply of the stage."""

    def _answer(self, content: bytes, fl_ctx: FLContext) -> Shareable:
        """Returns an aggregator's reply, sealed to an outer aggregator if the plan has one above the site."""
        answer, reply = Shareable(), reply_of_region(content)
        answer[ANSWER] = sealed_upward(self._site, content, reply.round_number)
        if isinstance(reply, RegionalSum):
            outcome = f"sum of {len(reply.members)}"
        elif isinstance(reply, Withheld):
            outcome = f"withheld: {reply.reason}"
        else:
            outcome = _outcome(reply)
        self.log_info(fl_ctx, f"round {reply.round_number}: {outcome}", fire_event=False)
        return answer

    def _after(self, error: FulcrumError) -> None:
        """Cleans up after an error."""
        del error


class SummingUpdater(_StageUpdater):
    """Runs the masked group of a region: the site adds the masked vectors, and learns the region's sum alone."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._region: MaskedRegion | None = None
        self._model: Any = None

    def _begin(self, task: Shareable) -> dict[str, bytes]:
        packed = task.pop(MODEL, None)
        requests = self._open_region().begin(task.get(CALL), None if packed is None else unpack_model(packed))
        self._model = self._model if packed is None else packed
        if requests and stage_call_from_bytes(task.get(CALL)).stage == INPUT:
            task[MODEL] = self._model
        return requests

    def _take(self, reply: Any) -> None:
        self._open_region().take(reply)

    def _missing(self) -> frozenset[str]:
        return self._open_region().missing

    def _finish(self, fl_ctx: FLContext) -> Shareable:
        return self._answer(self._open_region().finish(), fl_ctx)

    def _open_region(self) -> MaskedRegion:
        """Opens the file of sums at the first use, and again after an error of the file."""
        site = self._site
        if self._region is None:
            name, key = site.settings.name, site.key
            self._region = once_free(
                lambda: own_record(site, SUMS, lambda path: MaskedRegion.open(path, site.plan, name, key, create=False))
            )
        return self._region

    def _after(self, error: FulcrumError) -> None:
        """Closes a file of sums after a storage error, so that the next attempt opens the file again."""
        if isinstance(error, StorageError) and self._region is not None:
            self._region.close()
            self._region = None


class OuterUpdater(_StageUpdater):
    """Runs a stage at an outer aggregator: the children get the server's call, and their sums are added up here."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._node: StagedNode | None = None

    def _begin(self, task: Shareable) -> dict[str, bytes]:
        packed = task.get(MODEL)
        self._open_node().begin(task.get(CALL), None if packed is None else model_layout(packed))
        return {}  # children take the call itself from the task

    def _take(self, reply: Any) -> None:
        self._open_node().take(reply)

    def _missing(self) -> frozenset[str]:
        return self._open_node().missing

    def _finish(self, fl_ctx: FLContext) -> Shareable:
        return self._answer(self._open_node().finish(), fl_ctx)

    def _open_node(self) -> StagedNode:
        """Opens the file of sums at the first use, and again after an error of the file."""
        site = self._site
        if self._node is None:
            name, key = site.settings.name, site.key
            self._node = once_free(
                lambda: own_record(site, SUMS, lambda path: StagedNode.open(path, site.plan, name, key, create=False))
            )
        return self._node

    def _after(self, error: FulcrumError) -> None:
        """Closes a file of sums after a storage error, so that the next attempt opens the file again."""
        if isinstance(error, StorageError) and self._node is not None:
            self._node.close()
            self._node = None


class RelayUpdater(_StageUpdater):
    """Relays for a federation that is one masked group: the site adds nothing, and learns no sum."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._relay = GroupRelay(site.plan, site.settings.name)

    def _begin(self, task: Shareable) -> dict[str, bytes]:
        return self._relay.begin(requests_in(task))

    def _take(self, reply: Any) -> None:
        self._relay.take(reply)

    def _missing(self) -> frozenset[str]:
        return self._relay.missing

    def _finish(self, fl_ctx: FLContext) -> Shareable:
        answer = Shareable()
        answer[REPLIES] = self._relay.finish()
        self.log_info(fl_ctx, f"{len(answer[REPLIES])} answers relayed", fire_event=False)
        return answer


class MaskedRegionGatherer(RegionGatherer):
    """Gathers the stages of masked rounds."""

    def __init__(self) -> None:
        super().__init__()
        self._silos: dict[str, str] = {}
        self.register_event_handler(EventType.POST_TASK_ASSIGNMENT_SENT, self._address_task)

    def get_updater(self, fl_ctx: FLContext) -> Updater:
        """Returns the region's updater."""
        site = site_of(fl_ctx, "region")
        self._silos = {technical: silo for silo, technical in site.settings.engine_names.items()}
        if is_one_group(site.plan):
            return RelayUpdater(site)
        is_region = tree_of(site.plan).level(site.settings.name) == 0
        return SummingUpdater(site) if is_region else OuterUpdater(site)

    def _address_task(self, event_type: str, fl_ctx: FLContext) -> None:
        """Leaves in the copy of a task that goes to a silo the request of the silo alone, to save the network.

        Nothing rests on the name that a silo gives: a request holds nothing that others may not read.
        """
        del event_type
        task, peer = fl_ctx.get_prop(FLContextKey.TASK_DATA), fl_ctx.get_peer_context()
        if not isinstance(task, Shareable) or ADDRESSES not in task or peer is None:
            return
        technical = peer.get_identity_name()
        silo, requests = self._silos.get(technical, technical), requests_in(task)
        if silo in requests:
            put_requests(task, {silo: requests[silo]})


def _outcome(reply: StageEnd) -> str:
    """Returns the end of a stage in words, for the region's log."""
    state = "interrupted in" if reply.interrupted else "end of"
    return f"{state} stage {reply.stage!r}, attempt {reply.attempt}"
