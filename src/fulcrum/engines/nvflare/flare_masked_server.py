"""The root of the hierarchy in masked rounds: a stage is a task of NVIDIA FLARE's own controller."""

import time
from collections.abc import Mapping
from typing import Any, cast

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.edge.assessor import Assessment
from nvflare.edge.constants import EdgeTaskHeaderKey
from nvflare.edge.controllers.sage import TaskDoneReason
from nvflare.security.logging import secure_format_exception

from fulcrum.aggregation.stage_messages import stage_call_from_bytes
from fulcrum.core.masking.masking_messages import KEYS, Inbox, request_from_bytes
from fulcrum.core.messages.model_message import Model, pack_model
from fulcrum.core.plan.figures import is_one_group
from fulcrum.core.silo.site import Site
from fulcrum.engines.masked_stages import stage_in_words, stage_of
from fulcrum.engines.nvflare.flare_server import FederationController, PlanAssessor
from fulcrum.engines.nvflare.site_jobs.job_endings import note_ending
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, MODEL, TASK
from fulcrum.engines.nvflare.site_jobs.stage_tasks import CALL, REPLIES, put_requests
from fulcrum.errors import FulcrumError
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.masked_server import MaskedServer, Take


class MaskedAssessor(PlanAssessor):
    """Runs the plan's masked rounds from the checkpoint on: by regional aggregators, or as the sum of one group."""

    def __init__(self) -> None:
        super().__init__()
        self.by_region = True
        self._receive: Take | None = None
        self._most = 0

    def _open_coordinator(self, site: Site, start: Model, **settings: Any) -> Coordinator:
        """Opens the server of masked rounds, which has the checkpoint of a coordinator."""
        self.by_region = not is_one_group(site.plan)
        opened = MaskedServer.open(site.state, site.plan, start, by_region=self.by_region, **settings)
        return cast("Coordinator", opened)  # of which the base class reads model, round and history

    @property
    def server(self) -> MaskedServer:
        """The server of masked rounds, after `open`."""
        return cast(MaskedServer, self._coordinator)

    def stage_task(self, requests: Mapping[str, bytes], take: Take) -> Shareable:
        """Returns the task of a stage, whose replies go to `take`.

        Args:
            requests: By region the server's call, or by silo the request for the one group.
            take: Takes a reply.
        """
        task, first = Shareable(), next(iter(requests.values()))
        if self.by_region:
            task[CALL] = first
            needs_model = stage_call_from_bytes(first).stage == KEYS  # a region keeps the model for its silos
        else:
            put_requests(task, requests)
            needs_model = isinstance(request_from_bytes(first), Inbox)
        if needs_model:
            task[MODEL] = pack_model(self.server.model)
        with self._lock:
            self._receive, self._most = take, len(requests)
            self._deadline = time.monotonic() + self._patience
        return task

    def stage_name(self, requests: Mapping[str, bytes]) -> str:
        """Returns the stage of the server's calls, or of the requests for the one group."""
        first = next(iter(requests.values()))
        return stage_call_from_bytes(first).stage if self.by_region else stage_of(request_from_bytes(first))

    def end_stage(self) -> None:
        """Ends a stage: later replies have no effect."""
        with self._lock:
            self._receive = None

    def targets(self, requests: Mapping[str, bytes]) -> list[str] | None:
        """Returns the technical names of the regions with a call; None for all regions."""
        if not self.by_region:
            return None
        technical = {region: name for name, region in self._regions.items()}
        return [technical.get(region, region) for region in requests]

    def take(self, sender: str, result: Shareable, fl_ctx: FLContext) -> None:
        """Takes a region's reply or logs why not; `sender` is the site that the server authenticated."""
        with self._lock:
            if self._receive is None:
                return
            try:
                if self.by_region:
                    self._receive(result[ANSWER], self._regions.get(sender, sender))
                else:
                    for answer in _answers_in(result, self._most):
                        self._receive(answer)
            except (FulcrumError, KeyError, TypeError) as error:
                self.log_warning(fl_ctx, f"nothing from {sender}: {error}", fire_event=False)

    def assess(self, fl_ctx: FLContext) -> Assessment:
        """Returns the state of the stage: done after the deadline; the task itself ends after all replies."""
        del fl_ctx
        return Assessment.TASK_DONE if time.monotonic() > self._deadline else Assessment.CONTINUE

    def report(self, fl_ctx: FLContext) -> None:
        """Measures and reports the model after a round."""
        self.log_info(fl_ctx, f"fulcrum round: {self.server.history[-1]}", fire_event=False)
        if self._coordinator is not None and self._evaluation is not None:
            self._report(self._coordinator, self._evaluation, fl_ctx)


def _answers_in(result: Shareable, most: int) -> list[Any]:
    """Returns the answers in a relay's reply; raises `TypeError` for more answers than silos have a request."""
    answers = result[REPLIES]
    if not isinstance(answers, list) or len(answers) > most:
        # Each answer of no use is a line of the server's log: a relay could fill the disk.
        raise TypeError(f"a relay sends a list of at most {most} answers")
    return answers


class _AbortedError(Exception):
    """The job was aborted amid a stage."""


class MaskedFederationController(FederationController):
    """Runs the remaining rounds; every stage of a round is a task for the regions."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Runs rounds to the end of the plan.

        A round that was aborted, or in which no group gave a sum, is not finished: the job ends, and the next job
        repeats the round as another attempt.
        """
        self.fire_event(AppEventType.TRAINING_STARTED, fl_ctx)
        server = self.assessor.server
        try:
            while not server.is_finished:
                server.run_round(lambda requests, take: self._carry(requests, take, abort_signal, fl_ctx))
                self.assessor.report(fl_ctx)
            self._wf_done = True
            time.sleep(self._update_interval + 1.0)  # as NVIDIA FLARE's method: sites end gracefully
        except _AbortedError:
            self.log_info(fl_ctx, f"round {server.round_number} was interrupted", fire_event=False)
        except Exception as error:
            if isinstance(error, FulcrumError):
                note_ending(fl_ctx, error, final=False)
            self.log_exception(fl_ctx, "a masked round failed")
            self.system_panic(secure_format_exception(error), fl_ctx)

    def _carry(self, requests: Mapping[str, bytes], take: Take, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Sends the requests of a stage as a task, and returns after all replies or after the deadline."""
        if abort_signal.triggered:
            raise _AbortedError
        assessor: MaskedAssessor = self.assessor
        stage = stage_in_words(assessor.stage_name(requests))
        self.log_info(fl_ctx, f"fulcrum stage: round {assessor.server.round_number}, {stage}.", fire_event=False)
        data = assessor.stage_task(requests, take)
        self._current_task_seq = self.get_next_task_seq()
        self._current_round = assessor.server.round_number - 1
        data.set_header(AppConstants.CURRENT_ROUND, self._current_round)
        data.set_header(EdgeTaskHeaderKey.TASK_SEQ, self._current_task_seq)
        data.set_header(EdgeTaskHeaderKey.UPDATE_INTERVAL, self._update_interval)
        targets = assessor.targets(requests) or self._children
        task = Task(name=TASK, data=data, result_received_cb=self._process_train_result)
        self.broadcast(
            task=task, fl_ctx=fl_ctx, targets=targets, min_responses=len(targets), wait_time_after_min_received=0
        )
        reason = self._monitor_task(task, fl_ctx, abort_signal)
        assessor.end_stage()
        self._current_task_seq = 0
        if not task.completion_status:
            self.cancel_task(task, fl_ctx=fl_ctx)
        if reason == TaskDoneReason.ABORTED:
            raise _AbortedError
