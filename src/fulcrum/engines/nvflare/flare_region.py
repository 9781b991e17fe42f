"""The middle of the hierarchy: the gatherer of a region or of an outer aggregator, built on NVIDIA FLARE's own."""

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
from fulcrum.aggregation.sum_sealing import SumSealer
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.model_message import model_layout
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.silo.site import SUMS, Site, once_free
from fulcrum.core.silo.site_records import own_record
from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers_at_start
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, DECLINE, MODEL, RELEASE, ROUND, TASK, site_of
from fulcrum.errors import FulcrumError, StorageError

_UPDATE_TIMEOUT = 10.0


class RegionUpdater(Updater):  # type: ignore[misc]
    """Gathers the sealed releases or sums of a round, and answers with their sum or the reason for withholding the sum.

    An answer to an outer aggregator is sealed to the aggregator: the server, which carries the answer, cannot read it.
    """

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
        """Begins a round: drops the last round, and learns the layout of releases from the model."""
        with self._lock:
            try:
                region = self._open_region()
                region.expect_layout(model_layout(task_data.get(MODEL)))
                number = task_data.get(ROUND)
                summed = region.is_summed(number)
            except FulcrumError as error:
                self._after(error)
                raise
            self._round, self._summed = number, summed
            self._deadline = time.monotonic() + patience_of(self._site)
            self._answered = set()
        return super().start_task(task_data, fl_ctx)

    def process_child_update(self, update: Shareable, fl_ctx: FLContext) -> tuple[bool, Shareable | None]:
        """Accepts a silo's release or decline, or a child's answer; other messages are refused and logged.

        The signature of a silo, or the proof of a child, alone identifies the sender. The name in the message is a
        claim of the sender, and the engine does not check the claim. A region that trusted the claim would let a silo
        answer for another silo, and close the round without the other silo's release. A refused message therefore
        counts as absent.
        """
        with self._lock:
            try:
                region = self._open_region()
                if (sealed := update.get(RELEASE, update.get(ANSWER))) is not None:
                    self._answered.add(region.accept(sealed, self._round))
                    return True, None
                silo = region.checked_decline(update.get(DECLINE), self._round)
                self._answered.add(silo)
                self.log_warning(fl_ctx, f"round {self._round}: silo {silo!r} declined", fire_event=False)
            except FulcrumError as error:
                self._after(error)
                claimed = repr(peer.get_identity_name()) if (peer := fl_ctx.get_peer_context()) else "nobody"
                line = f"round {self._round}: refused what came as from {claimed}: {error}"
                self.log_warning(fl_ctx, line, fire_event=False)
        return False, None

    @property
    def ready(self) -> bool:
        """True if every silo of the round has released or declined, the time is up, or the round was summed before."""
        with self._lock:
            members = self._open_region().roster(self._round)  # a silo that joins later is not waited for
            return self._summed or self._answered >= members or time.monotonic() > self._deadline

    def prepare_update_for_parent(self, fl_ctx: FLContext) -> Shareable | None:
        """Returns the round's answer, the same bytes at every call; None if the file of sums cannot be used."""
        with self._lock:
            try:
                answer = self._open_region().close_round(self._round, forget=False)
                sent = sealed_upward(self._site, answer.to_bytes(), self._round)
            except FulcrumError as error:
                self._after(error)
                self.log_error(fl_ctx, f"round {self._round}: no answer: {error}", fire_event=False)
                return None
        outcome = f"sum of {len(answer.members)}" if isinstance(answer, RegionalSum) else f"withheld: {answer.reason}"
        self.log_info(fl_ctx, f"round {self._round}: {outcome}", fire_event=False)
        threading.Thread(target=self._forget, daemon=True).start()  # while the answer is on its way
        reply = Shareable()
        reply[ANSWER] = sent
        return reply

    def _forget(self) -> None:
        """Erases the releases that a sum includes."""
        with self._lock:
            try:
                self._open_region().forget()
            except FulcrumError as error:
                self._after(error)
                self.logger.warning("the releases of the round are not erased yet: %s", error)

    def process_parent_update_reply(self, reply: Shareable, fl_ctx: FLContext) -> None:
        """Ignores the reply: the server sends a region nothing between rounds."""
        del reply, fl_ctx

    def _open_region(self) -> Region:
        """Opens the file of sums at the first use, and again after an error of the file."""
        site = self._site
        if self._region is None:
            name, key = site.settings.name, site.key
            self._region = once_free(
                lambda: own_record(site, SUMS, lambda path: Region.open(path, site.plan, name, key, create=False))
            )
        return self._region

    def _after(self, error: FulcrumError) -> None:
        """Closes a file of sums after a storage error, so that the next round opens the file again."""
        if isinstance(error, StorageError) and self._region is not None:
            self._region.close()
            self._region = None


def patience_of(site: Site) -> float:
    """Returns the seconds that an aggregator waits: a region its patience, an outer aggregator longer.

    The server waits half as long again (`flare_server`), and every tier in between has an equal part of the difference.
    """
    tree = tree_of(site.plan)
    return site.settings.patience * (1 + tree.level(site.settings.name) / (2 * len(tree.levels)))


def sealed_upward(site: Site, content: bytes, round_number: int) -> bytes:
    """Returns a message to the server as it is, and a message to an outer aggregator sealed to the aggregator."""
    name, tree = site.settings.name, tree_of(site.plan)
    if tree.level(name) == len(tree.levels) - 1:
        return content
    return SumSealer(site.plan, name, site.key).seal(content, round_number)


class RegionGatherer(HierarchicalUpdateGatherer):  # type: ignore[misc]
    """Waits for the members that the plan names, regardless of NVIDIA FLARE's count at the start of the job.

    The updater has a property `ready`, true once the task needs no further message of a silo.
    """

    def __init__(self) -> None:
        super().__init__(learner_id="", updater_id="", update_timeout=_UPDATE_TIMEOUT)
        self._listening = restrict_peers_at_start(self, "region")

    def get_updater(self, fl_ctx: FLContext) -> Updater:
        """Returns the region's updater."""
        return RegionUpdater(site_of(fl_ctx, "region"))

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Gathers a round."""
        if task_name != TASK or not self._listening.is_set():
            return make_reply(ReturnCode.TASK_UNKNOWN)
        self._task_done = False  # a late end of the last task would end this task at once
        return super().execute(task_name, shareable, fl_ctx, abort_signal)

    def _process_task_end(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        """Gives up the task that the server calls over; silos are not informed, since silos have nothing to end."""
        del topic, fl_ctx
        ended, pending = request.get_header(EdgeTaskHeaderKey.TASK_SEQ), self._pending_task
        self._task_done = self._task_done or (pending is not None and isinstance(ended, int) and pending.seq <= ended)
        return make_reply(ReturnCode.OK)

    def _do_task(self, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Waits until the round is ready, and answers once.

        NVIDIA FLARE's method reports repeatedly while waiting, and gives the round up after an unanswered report. On
        the message that the task is over, NVIDIA FLARE's method also answers with a partial sum: a forger of the
        message in the server's name could obtain a sum without the remaining silos. On the same message this method
        sends no sum and gives the round up, because a server that has ended a round needs no sum.
        """
        ended = conditional_wait(None, None, abort_signal, condition_cb=self._check_task_done)
        if ended == WaiterRC.ABORTED or not self._updater.ready:
            return make_reply(ReturnCode.TASK_ABORTED)
        return self._make_update_report(self._pending_task, fl_ctx)

    def _check_task_done(self) -> int:
        done = self._task_done or self._updater.ready
        return int(WaiterRC.IS_SET if done else WaiterRC.OK)
