"""The node of the hierarchy: a region's gatherer, built on NVIDIA FLARE's own."""

import threading
import time
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.edge.constants import EdgeTaskHeaderKey
from nvflare.edge.executors.hug import HierarchicalUpdateGatherer
from nvflare.edge.updater import Updater
from nvflare.fuel.utils.waiter_utils import WaiterRC, conditional_wait

from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.model_message import model_layout
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.silo.site import SUMS, Site, once_free
from fulcrum.core.silo.site_records import own_record
from fulcrum.engines.nvflare.admission import listening_from_the_start
from fulcrum.engines.nvflare.job_messages import ANSWER, DECLINE, MODEL, RELEASE, ROUND, TASK, site_of
from fulcrum.errors import FulcrumError, StorageError

_UPDATE_TIMEOUT = 10.0


class RegionUpdater(Updater):  # type: ignore[misc]
    """Gathers the sealed releases of one round and answers with their sum, or with why there is none."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self._region: Region | None = None
        self._lock = threading.Lock()
        self._round = 0
        self._deadline = 0.0
        self._answered: set[str] = set()
        self._summed = False

    def start_task(self, task_data: Shareable, fl_ctx: FLContext) -> Any:
        """Begins a round: forgets the last one, and learns from the model what releases look like."""
        with self._lock:
            try:
                region = self._opened()
                region.expect_layout(model_layout(task_data.get(MODEL)))
                number = task_data.get(ROUND)
                summed = region.summed(number)
            except FulcrumError as error:
                self._after(error)
                raise
            self._round, self._summed = number, summed
            self._deadline = time.monotonic() + self._site.settings.patience
            self._answered = set()
        return super().start_task(task_data, fl_ctx)

    def process_child_update(self, update: Shareable, fl_ctx: FLContext) -> tuple[bool, Shareable | None]:
        """Takes a silo's release, or its decline; what does not belong in the sum is refused and logged.

        The silo's signature alone says who has answered. The name in the message is what the sender claims, and the
        engine does not check it: were it believed, one silo could answer for another, and have the round closed
        without it. So what is refused counts as if it had not come.
        """
        with self._lock:
            try:
                region = self._opened()
                if (sealed := update.get(RELEASE)) is not None:
                    self._answered.add(region.accept(sealed, self._round))
                    return True, None
                silo = region.checked_decline(update.get(DECLINE), self._round)
                self._answered.add(silo)
                self.log_warning(fl_ctx, f"round {self._round}: silo {silo!r} declined", fire_event=False)
            except FulcrumError as error:
                self._after(error)
                claimed = repr(peer.get_identity_name()) if (peer := fl_ctx.get_peer_context()) else "nobody"
                told = f"round {self._round}: refused what came as from {claimed}: {error}"
                self.log_warning(fl_ctx, told, fire_event=False)
        return False, None

    @property
    def ready(self) -> bool:
        """Whether every silo has released or declined, the time is up, or the round was summed before."""
        with self._lock:
            members = self._opened().members
            return self._summed or self._answered >= members or time.monotonic() > self._deadline

    def prepare_update_for_parent(self, fl_ctx: FLContext) -> Shareable | None:
        """Returns the round's answer, the same bytes every time; None where the file of sums is in trouble."""
        with self._lock:
            try:
                answer = self._opened().close_round(self._round, forget=False)
            except FulcrumError as error:
                self._after(error)
                self.log_error(fl_ctx, f"round {self._round}: no answer: {error}", fire_event=False)
                return None
        told = f"sum of {len(answer.members)}" if isinstance(answer, RegionalSum) else f"withheld: {answer.reason}"
        self.log_info(fl_ctx, f"round {self._round}: {told}", fire_event=False)
        threading.Thread(target=self._forget, daemon=True).start()  # while the answer is on its way
        reply = Shareable()
        reply[ANSWER] = answer.to_bytes()
        return reply

    def _forget(self) -> None:
        """Erases the releases that are in a sum."""
        with self._lock:
            try:
                self._opened().forget()
            except FulcrumError as error:
                self._after(error)
                self.logger.warning("the releases of the round are not erased yet: %s", error)

    def process_parent_update_reply(self, reply: Shareable, fl_ctx: FLContext) -> None:
        """The server tells a region nothing between rounds."""
        del reply, fl_ctx

    def _opened(self) -> Region:
        """Opens the file of sums when it is first needed, and again after trouble with it."""
        site = self._site
        if self._region is None:
            name, key = site.settings.name, site.key
            self._region = once_free(
                lambda: own_record(site, SUMS, lambda path: Region.open(path, site.plan, name, key, create=False))
            )
        return self._region

    def _after(self, error: FulcrumError) -> None:
        """Lets a file go that is in trouble, so that the next round opens it again."""
        if isinstance(error, StorageError) and self._region is not None:
            self._region.close()
            self._region = None


class RegionGatherer(HierarchicalUpdateGatherer):  # type: ignore[misc]
    """Waits for the members that the plan names, however many NVIDIA FLARE counted at the start of the job."""

    def __init__(self) -> None:
        super().__init__(learner_id="", updater_id="", update_timeout=_UPDATE_TIMEOUT)
        self._listening = listening_from_the_start(self, "region")

    def get_updater(self, fl_ctx: FLContext) -> Updater:
        """Returns the region's updater."""
        return RegionUpdater(site_of(fl_ctx, "region"))

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Gathers one round."""
        if task_name != TASK or not self._listening.is_set():
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._task_done = False  # an end of the last task that came late would end this one at once
        return super().execute(task_name, shareable, fl_ctx, abort_signal)

    def _process_task_end(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Gives up the task that the server says is over; silos are not told, who have nothing to end."""
        del topic, fl_ctx
        ended, pending = request.get_header(EdgeTaskHeaderKey.TASK_SEQ), self._pending_task
        self._task_done = self._task_done or (pending is not None and isinstance(ended, int) and pending.seq <= ended)
        return make_reply(ReturnCode.OK)

    def _do_task(self, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Waits until the round is ready, and answers once.

        By default a region reports again and again while it waits, and gives the round up when one report is not
        answered. It also answers with what is there when it is told that the task is over: whoever told it so in the
        server's name could have a sum taken without the silos that are still to come. Here such a round is given up:
        if it is over, no answer is asked for.
        """
        ended = conditional_wait(None, None, abort_signal, condition_cb=self._check_task_done)
        if ended == WaiterRC.ABORTED or not self._updater.ready:
            return make_reply(ReturnCode.TASK_ABORTED)
        return self._make_update_report(self._pending_task, fl_ctx)

    def _check_task_done(self) -> int:
        done = self._task_done or self._updater.ready
        return int(WaiterRC.IS_SET if done else WaiterRC.OK)
