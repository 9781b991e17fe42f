"""The leaf of the hierarchy: a silo's executor."""

import contextlib

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.edge.constants import EdgeTaskHeaderKey

from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.engines.nvflare.admission import listening_from_the_start
from fulcrum.engines.nvflare.job_messages import DECLINE, MODEL, RELEASE, ROUND, TASK, site_of
from fulcrum.errors import FulcrumError


class SiloExecutor(Executor):  # type: ignore[misc]
    """Trains and sends the sealed release; whatever goes wrong, it declines and tells its own log alone."""

    def __init__(self) -> None:
        super().__init__()
        self._station: SiloStation | None = None
        self._listening = listening_from_the_start(self, "silo")

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers one round."""
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
            self.logger.exception("declined: something failed that should not")  # told to this site's own log alone
        if RELEASE not in reply and self._station is not None:
            with contextlib.suppress(FulcrumError):  # a round that the plan does not have is not declined either
                reply[DECLINE] = self._station.decline(number)
        return reply
