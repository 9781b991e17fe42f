"""The root of the hierarchy: Algorithm 1 on NVIDIA FLARE's own controller."""

import threading
import time
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.edge.assessor import Assessment, Assessor
from nvflare.edge.controllers.sage import ScatterAndGatherForEdge, TaskDoneReason

from fulcrum.core.messages.model_message import Model, pack_model
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.silo.site import Site
from fulcrum.core.training.training_module import load_training_module
from fulcrum.engines.nvflare.site_jobs.job_endings import note_ending, note_run
from fulcrum.engines.nvflare.site_jobs.job_messages import ANSWER, MODEL, ROUND, TASK, site_of
from fulcrum.engines.site_folders import task_of
from fulcrum.errors import EngineError, FulcrumError
from fulcrum.server.coordinator import Coordinator
from fulcrum.server.deployed_run import deployed_run
from fulcrum.server.evaluation import Evaluation

_INTERVAL = 0.1
_MARGIN = 1.5
"""The server's patience with regions, as a multiple of the regions' patience with silos."""


class PlanAssessor(Assessor):  # type: ignore[misc]
    """Runs the plan's rounds from the checkpoint on: sends the model, and moves the model by the regional sums."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._deadline = 0.0
        self._patience = 0.0
        self._coordinator: Coordinator | None = None
        self._evaluation: Evaluation | None = None
        self._regions: dict[str, str] = {}
        self.broken_off = False
        self.rounds_left = 0

    def open(self, fl_ctx: FLContext) -> Coordinator:
        """Opens the plan and the checkpoint, once."""
        if self._coordinator is None:
            site = site_of(fl_ctx, "server")
            training_module = load_training_module(site.settings.train)
            start = training_module.starting_model(site.settings.options)
            self._patience = _MARGIN * site.settings.patience
            self._regions = {technical: region for region, technical in site.settings.engine_names.items()}
            training_module.check_unit(site.plan.unit)
            rate = training_module.server_rate(site.plan.unit, site.settings.options)
            classes = training_module.classes(start)
            coordinator = self._open_coordinator(site, start, classes=classes, learning_rate=rate)
            self.rounds_left = site.plan.rounds - coordinator.round_number + 1
            self._coordinator, self._evaluation = coordinator, Evaluation(site, training_module)
            self._report(coordinator, self._evaluation, fl_ctx)
        return self._coordinator

    def _open_coordinator(self, site: Site, start: Model, **settings: Any) -> Coordinator:
        """Opens the coordinator on the folder of the checkpoint."""
        return Coordinator.open(site.state, site.plan, start, **settings)

    def start_task(self, fl_ctx: FLContext) -> Shareable:
        """Returns the global model of the next round."""
        coordinator = self.open(fl_ctx)
        task = Shareable()
        task[MODEL] = pack_model(coordinator.model)
        task[ROUND] = coordinator.round_number
        self._deadline = time.monotonic() + self._patience
        return task

    def take(self, sender: str, result: Shareable, fl_ctx: FLContext) -> None:
        """Adds a region's answer to the round or logs why not; `sender` is the site that the server authenticated."""
        with self._lock:
            try:
                coordinator = self.open(fl_ctx)
                coordinator.receive(result[ANSWER], self._regions.get(sender, sender))
            except (FulcrumError, KeyError, TypeError) as error:
                self.log_warning(fl_ctx, f"nothing from {sender}: {error}", fire_event=False)

    def process_child_update(self, update: Shareable, fl_ctx: FLContext) -> tuple[bool, Shareable | None]:
        """Ignores the update: regions answer with the result of their task and in no other way."""
        del update, fl_ctx
        return False, None

    def assess(self, fl_ctx: FLContext) -> Assessment:
        """Returns the state of the round: done after an answer of every region, or after the deadline."""
        over = self.open(fl_ctx).complete or time.monotonic() > self._deadline
        return Assessment.TASK_DONE if over else Assessment.CONTINUE

    def end_task(self, fl_ctx: FLContext) -> None:
        """Adds the regional sums to the model and writes the checkpoint.

        A round that was broken off, or without any regional sum, is not finished: the job ends, and the next job asks
        for the same round, at no cost to the silos that have answered.
        """
        with self._lock:
            coordinator = self.open(fl_ctx)
            number, answers = coordinator.round_number, coordinator.answers
            if self.broken_off:
                raise EngineError("flare.round-aborted", round_number=number)
            if not any(isinstance(answer, RegionalSum) for answer in answers.values()):
                reasons = [
                    f"{region}: {answer.reason}" for region, answer in answers.items() if isinstance(answer, Withheld)
                ]
                error = EngineError(
                    "flare.round-without-sums", round_number=number, reasons="; ".join(reasons) or "None answered"
                )
                note_ending(fl_ctx, error, final=False)
                raise error
            done = coordinator.finish_round()
        self.log_info(fl_ctx, f"fulcrum round: {done}", fire_event=False)
        if self._evaluation is not None:
            self._report(coordinator, self._evaluation, fl_ctx)

    def _report(self, coordinator: Coordinator, evaluation: Evaluation, fl_ctx: FLContext) -> None:
        """Measures the model after the latest round, and writes all rounds so far to run.json in the server's kit."""
        evaluation.measure(coordinator.model, coordinator.round_number - 1)
        site = evaluation.site
        run = deployed_run(
            site.plan,
            coordinator.history,
            evaluation.metrics,
            task=task_of(site),
            seed=site.settings.seed,
            notes=evaluation.notes,
        )
        try:
            note_run(fl_ctx, run)
        except FulcrumError as error:  # the rounds themselves are in the checkpoint
            self.log_warning(fl_ctx, f"nobody is told of the rounds so far: {error}", fire_event=False)


class FederationController(ScatterAndGatherForEdge):  # type: ignore[misc]
    """Runs the remaining rounds."""

    def __init__(self) -> None:
        super().__init__(
            num_rounds=1,
            assessor_id="assessor",
            task_name=TASK,
            task_check_period=_INTERVAL,
            assess_interval=_INTERVAL,
            update_interval=_INTERVAL,
        )

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Takes the number of rounds from plan and checkpoint."""
        super().start_controller(fl_ctx)
        try:
            self.assessor.open(fl_ctx)
        except Exception as error:  # plan, model and checkpoint stay the same: a second try would fail in the same way
            note_ending(fl_ctx, error, final=True)
            raise
        self._num_rounds = self.assessor.rounds_left

    def _process_train_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Accepts the answer of a region. NVIDIA FLARE's method would end the whole job if a region's process failed.

        The answer comes from the client that received the task: the server finds the sender by the token for the
        client's certificate, and drops answers of other senders for the task. The name in the message is ignored.
        """
        self.assessor.take(client_task.client.name, client_task.result, fl_ctx)
        client_task.result = None

    def _monitor_task(self, task: Task, fl_ctx: FLContext, abort_signal: Signal) -> TaskDoneReason:
        reason = super()._monitor_task(task, fl_ctx, abort_signal)
        self.assessor.broken_off = reason == TaskDoneReason.ABORTED
        return reason

    def _process_update_report(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        del topic, request, fl_ctx
        return make_reply(ReturnCode.OK)
