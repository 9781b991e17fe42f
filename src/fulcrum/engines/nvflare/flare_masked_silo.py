"""The leaf of the hierarchy in masked rounds: the executor of a silo whose releases leave the silo masked."""

import contextlib

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.edge.constants import EdgeTaskHeaderKey

from fulcrum.core.masking.declines import signed_decline
from fulcrum.core.masking.masking_messages import request_from_bytes
from fulcrum.core.messages.model_message import unpack_model
from fulcrum.core.silo.masked_station import MaskedStation
from fulcrum.core.silo.releasing_silo import worker_of
from fulcrum.core.silo.site import Site
from fulcrum.core.training.assignment import check_installed
from fulcrum.engines.nvflare.site_jobs.admission import restrict_peers_at_start
from fulcrum.engines.nvflare.site_jobs.job_messages import MODEL, TASK, site_of
from fulcrum.engines.nvflare.site_jobs.stage_tasks import REPLY, requests_in
from fulcrum.errors import FulcrumError


class _Station(MaskedStation):
    """A silo of masked rounds that trains by its site's own module, in a process of its own.

    Every message to the region passes the server, so under outer aggregators all of them are sealed, declines included.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site, worker_of(site.settings), sealed=True)
        check_installed(site.settings.train)

    @property
    def silo(self) -> str:
        """The silo's name in the plan."""
        return self._site.settings.name

    def respond(self, request: bytes, model: object) -> bytes:
        """Returns the answer to a request; `model` counts for a request that asks for an update."""
        if self.asks_for_update(request):
            return self.masked_update(request, unpack_model(model))
        return self.answer(request)

    def decline(self, request: bytes) -> bytes:
        """Returns the signed decline of a request: no answer of this silo will come in this stage."""
        message = request_from_bytes(request)
        self._group_of_round(message.session.round_number).check_session(message.session)
        return self._leave(signed_decline(message, self.silo, self._key), message.session.round_number)


class MaskedSiloExecutor(Executor):  # type: ignore[misc]
    """Answers the stages of masked rounds; after any error the silo declines, and its own log alone has the reason."""

    def __init__(self) -> None:
        super().__init__()
        self._station: _Station | None = None
        self._listening = restrict_peers_at_start(self, "silo")

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answers a stage."""
        del abort_signal
        if task_name != TASK or not self._listening.is_set():
            return make_reply(ReturnCode.TASK_UNKNOWN)
        reply = make_reply(ReturnCode.OK)
        reply.set_header(EdgeTaskHeaderKey.HAS_UPDATE_DATA, True)  # a decline is an answer too
        request = None
        try:
            if self._station is None:
                self._station = _Station(site_of(fl_ctx, "silo"))
            if (request := requests_in(shareable).get(self._station.silo)) is not None:
                reply[REPLY] = self._station.respond(request, shareable.get(MODEL))
        except FulcrumError as error:
            self.log_warning(fl_ctx, f"declined: {error}", fire_event=False)
        except Exception:
            self.logger.exception("declined: something failed that should not")  # in this site's own log alone
        if REPLY not in reply and self._station is not None and request is not None:
            with contextlib.suppress(FulcrumError):  # a request outside of the plan is not declined either
                reply[REPLY] = self._station.decline(request)
        return reply
