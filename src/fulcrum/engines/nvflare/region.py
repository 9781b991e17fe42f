"""The node of the hierarchy: a region's gatherer, built on NVIDIA FLARE's own."""

import threading
import time
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.edge.executors.hug import HierarchicalUpdateGatherer
from nvflare.edge.updater import Updater
from nvflare.fuel.utils.waiter_utils import WaiterRC

from fulcrum.answers import RegionalSum
from fulcrum.engines.nvflare.common import ANSWER, RELEASE, ROUND, site_of
from fulcrum.errors import ExchangeError, FulcrumError
from fulcrum.regional import Region

_UPDATE_TIMEOUT = 10.0


class RegionUpdater(Updater):  # type: ignore[misc]
    """Gathers the sealed releases of one round and answers with their sum, or with why there is none."""

    def __init__(self, region: Region, patience: float) -> None:
        super().__init__()
        self._region = region
        self._patience = patience
        self._lock = threading.Lock()
        self._round = 0
        self._deadline = 0.0
        self._answered: set[str] = set()
        self._summed = False

    def start_task(self, task_data: Shareable, fl_ctx: FLContext) -> Any:
        """Begins a round: forgets the last one."""
        with self._lock:
            self._round = task_data.get(ROUND)
            self._deadline = time.monotonic() + self._patience
            self._answered = set()
            self._summed = self._region.summed(self._round)
        return super().start_task(task_data, fl_ctx)

    def process_child_update(self, update: Shareable, fl_ctx: FLContext) -> tuple[bool, Shareable | None]:
        """Takes a silo's release, or its decline; what does not belong in the sum is refused and logged."""
        sender = fl_ctx.get_peer_context().get_identity_name()
        with self._lock:
            try:
                if (sealed := update.get(RELEASE)) is None:
                    raise ExchangeError("it declined")
                self._answered.add(self._region.accept(sealed, self._round))
            except FulcrumError as error:
                self._answered.add(sender)
                self.log_warning(fl_ctx, f"round {self._round}: nothing from {sender}: {error}", fire_event=False)
                return False, None
        return True, None

    @property
    def ready(self) -> bool:
        """Whether every silo has answered, the time is up, or the round was summed before."""
        with self._lock:
            everyone = self._answered >= self._region.members
            return everyone or self._summed or time.monotonic() > self._deadline

    def prepare_update_for_parent(self, fl_ctx: FLContext) -> Shareable | None:
        """Returns the answer once the round is ready, the same bytes every time."""
        if not self.ready:
            return None
        with self._lock:
            answer = self._region.close(self._round)
        told = f"sum of {len(answer.members)}" if isinstance(answer, RegionalSum) else f"withheld: {answer.reason}"
        self.log_info(fl_ctx, f"round {self._round}: {told}", fire_event=False)
        reply = Shareable()
        reply[ANSWER] = answer.to_bytes()
        return reply

    def process_parent_update_reply(self, reply: Shareable, fl_ctx: FLContext) -> None:
        """The server tells a region nothing between rounds."""
        del reply, fl_ctx


class RegionGatherer(HierarchicalUpdateGatherer):  # type: ignore[misc]
    """Waits for the members that the plan names, however many NVIDIA FLARE counted at the start of the job."""

    def __init__(self) -> None:
        super().__init__(learner_id="", updater_id="", update_timeout=_UPDATE_TIMEOUT)

    def get_updater(self, fl_ctx: FLContext) -> Updater:
        """Returns the region's updater, on the region's own file of sums."""
        site = site_of(fl_ctx, "region")
        region = Region.open(site.state / "sums.db", site.plan, site.settings.name, site.key)
        return RegionUpdater(region, site.settings.patience)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Gathers one round."""
        self._task_done = False  # an end of the last task that came late would end this one at once
        self._num_children = 1 << 30  # the updater knows when all have answered
        return super().execute(task_name, shareable, fl_ctx, abort_signal)

    def _check_task_done(self) -> int:
        done = self._task_done or self._updater.ready
        return int(WaiterRC.IS_SET if done else WaiterRC.OK)
