"""The leaf of the hierarchy: a silo's executor."""

import contextlib

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.edge.constants import EdgeTaskHeaderKey

from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers_at_start
from fulcrum.engines.nvflare.site_jobs.job_messages import DECLINE, MODEL, RELEASE, ROUND, TASK, site_of
from fulcrum.errors import FulcrumError


class SiloExecutor(Executor):  # type: ignore[misc]
    """Trains and sends the sealed release; after any error the silo declines, and its own log alone has the reason."""

    def __init__(self) -> None:
        super().__init__()
        self._station: SiloStation | None = None
        self._listening = restrict_peers_at_start(self, "silo")

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers a round."""
        del abort_signal
        if task_name != TASK or not self._listening.is_set():
            return make_reply(ReturnCode.TASK_UNKNOWN)
        reply = make_reply(ReturnCode.OK)
        reply.set_header(EdgeTaskHeaderKey.HAS_UPDATE_DATA, True)  # a decline is an answer too
        number = shareable.get(ROUND)
        try:
            if self._station is None:
                self._station = SiloStation(site_of(fl_ctx, "silo"))
            reply[RELEASE] = self._station.answer(shareable.get(MODEL), number)
        except FulcrumError as error:
            self.log_warning(fl_ctx, f"declined: {error}", fire_event=False)
        except Exception:
            self.logger.exception("declined: something failed that should not")  # in this site's own log alone
        if RELEASE not in reply and self._station is not None:
            with contextlib.suppress(FulcrumError):  # a round outside of the plan is not declined either
                reply[DECLINE] = self._station.decline(number)
        return reply
