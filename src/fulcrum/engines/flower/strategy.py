"""The server on Flower: a strategy that any ServerApp uses in one line.

    strategy = FulcrumStrategy("/path/of/site")
    result = strategy.start(grid=grid, initial_arrays=arrays)

A round has five stages, sent to all silos of all groups at once. The signature of an answer tells which node is which
silo. A node without an answer so far receives the requests of every group, and answers for its own group.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fulcrum.core.masking.masking_messages import Begin, request_from_bytes
from fulcrum.core.messages.membership import members_of, senders_of
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.site import Site, read_site
from fulcrum.core.training.model_form import ModelForm
from fulcrum.engines.flower.flower_records import (
    ARRAYS,
    CONFIG,
    FULCRUM,
    MESSAGE_TYPE,
    REQUESTS,
    ROUND,
    arrays_in,
    as_record,
    parameters_in,
    records_digest,
)
from fulcrum.engines.flower.server_side.app_run import AppRun
from fulcrum.engines.flower.server_side.averaging_arguments import check_averaging
from fulcrum.engines.flower.server_side.flower_version import check_version
from fulcrum.engines.flower.server_side.stage_progress import ProgressFile
from fulcrum.errors import DataError, EngineError, ExchangeError, listing
from fulcrum.planning.plan import Plan
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.masked_server import MaskedServer, Take

SITE = "FULCRUM_SITE"
"""The environment variable that names the server's site, for a strategy without the argument `site`."""

_INTERVAL = 1.0
_SOON, _SHARE = 0.2, 0.05
"""Seconds until the next look for answers: a part of the time so far, and at least `_SOON`. Flower's grid looks every 3
seconds, and a round has five stages."""

_logger = logging.getLogger("flwr.fulcrum")  # beneath Flower's own, so that `flwr log` shows it


class FulcrumStrategy(Strategy):  # type: ignore[misc]
    """Runs a plan with masked sums, in the place of `FedAvg` and similar strategies.

    Args:
        site: The folder of the server's site, as `fulcrum deploy flower` writes the folder; by default $FULCRUM_SITE.
            Or a plan, for a server without a site.
        state: The folder of the checkpoint; by default the site's own. Required with a plan.
        patience: Seconds that silos have to answer in a stage; by default the site's setting, or 120.
        classes: For a softmax head, the length of the last axis of all arrays; see `Coordinator.open`.
        learning_rate: For a plan that protects persons, the server's factor on the mean gradient.
        on_round: Called with the summary of every round.
        writes_run: True to write run.json in the server's site after every round, with the metrics of `evaluate_fn`.
        averaging: Arguments of Flower's `FedAvg`, with values that agree with the plan.

    Raises:
        FulcrumError: Site or plan cannot be read, the plan's sums are not masked, the installed Flower has no tested
            version, or the plan cannot honour an argument of `FedAvg`.
    """

    def __init__(
        self,
        site: str | Path | Plan | VerifiedPlan | None = None,
        *,
        state: str | Path | None = None,
        patience: float | None = None,
        classes: int | None = None,
        learning_rate: float = 1.0,
        on_round: Callable[[RoundSummary], None] = lambda _: None,
        writes_run: bool = True,
        **averaging: Any,
    ) -> None:
        check_version()
        check_averaging(averaging)
        self._site: Site | None = None
        if isinstance(site, Plan | VerifiedPlan):
            if state is None:
                raise DataError("flower.checkpoint-folder-missing")
            self._plan, self._state, wait = verified_plan(site), Path(state), 120.0
        else:
            self._site = server = server_site(site)
            self._plan, wait = server.plan, server.settings.patience
            self._state = server.state if state is None else Path(state)
        self._patience = wait if patience is None else patience
        self._classes, self._rate, self._on_round = classes, learning_rate, on_round
        self._nodes: dict[str, int] = {}
        self._writes_run = writes_run

    @property
    def plan(self) -> VerifiedPlan:
        """The plan that the strategy runs."""
        return self._plan

    def summary(self) -> None:
        """Logs digest, silos and rounds of the plan."""
        plan = self._plan
        _logger.info("\tplan %s: %d silos, %d rounds", plan.digest[:16], len(plan.federation), plan.rounds)
        _logger.info("\tThe server gets masked sums; metrics and counts of examples stay with the silos.")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the remaining rounds, and returns the model and the metrics of `evaluate_fn`.

        Args:
            grid: Flower's access to the nodes.
            initial_arrays: The model before round 1. Arrays of whole numbers, such as counts of batches, are sent to
                silos unchanged and never change.
            num_rounds: The round to stop after; by default the plan's last, and never later.
            timeout: Seconds that silos have to answer in a stage; the strategy's patience by default.
            train_config: Settings for the apps' train functions, the same for all silos. A repeated round needs the
                same settings.
            evaluate_config: Not used: silos send no metrics.
            evaluate_fn: Measures the global model at the server, on public records: before the first round of this call
                and after every round.
        """
        del evaluate_config
        initial = arrays_in(initial_arrays)
        parameters = parameters_in(initial)
        notes = _notes(initial, parameters)
        for note in notes:
            _logger.warning("%s", note)
        last = self._plan.rounds if num_rounds is None else num_rounds
        if not 1 <= last <= self._plan.rounds:
            raise DataError("flower.rounds-range", rounds=self._plan.rounds, num_rounds=last)
        rate = self._rate
        server = MaskedServer.open(self._state, self._plan, parameters, classes=self._classes, learning_rate=rate)
        if server.round_number > last:
            _logger.warning("All %d rounds are over: no silo trains, and the checkpoint has the model.", last)
            _logger.warning("For another run, make a new plan and new sites.")
        else:
            _logger.info("Starting FulcrumStrategy at round %d of %d:", server.round_number, last)
        self.summary()
        result = Result()
        record = _in_form(initial, server.model)
        app_run = None if self._site is None or not self._writes_run else AppRun(self._site, server.history, notes)
        _measure(result, evaluate_fn, server.round_number - 1, record)
        wait = self._patience if timeout is None else timeout
        progress = ProgressFile(None if self._site is None else self._site.folder, last)
        if server.round_number <= last:
            progress.wait(server.round_number, "the server waits for the silos' nodes")
        self._wait_for_nodes(grid, wait, server.round_number)
        while server.round_number <= last:
            number = server.round_number
            records = {ARRAYS: record, CONFIG: ConfigRecord({**(train_config or {}), ROUND: number})}

            def carry(requests: Mapping[str, bytes], take: Take) -> None:
                progress.begin(number, request_from_bytes(next(iter(requests.values()))))  # noqa: B023 this round's alone
                self._carry(grid, requests, take, records=records, number=number, wait=wait)  # noqa: B023 this round's alone

            done = server.run_round(carry, records_digest(records))
            self._on_round(done)
            _logger.info("[ROUND %d/%d] summed %s, withheld %s", number, last, done["summed"], done["withheld"])
            record = _in_form(initial, server.model)
            metrics = _measure(result, evaluate_fn, number, record)
            if app_run is not None:
                app_run.record(done, metrics)
        result.arrays = record
        return result

    def _carry(
        self,
        grid: Grid,
        requests: Mapping[str, bytes],
        take: Take,
        *,
        records: Mapping[str, Any],
        number: int,
        wait: float,
    ) -> None:
        """Sends the requests of one stage of a masked round to the nodes, and passes every answer in time to `take`.

        Args:
            grid: Flower's connection to the nodes.
            requests: The request for every silo, by name.
            take: Takes an answer, and returns the name of the silo that answered, or None.
            records: Flower's records for training, the model and the settings: sent only in the stage with an update.
            number: The number of the round.
            wait: Seconds for answers; later answers are not read.
        """
        waiting, reached = set(requests), set[int]()

        def messages() -> list[Message]:
            """Returns the messages for nodes that have none yet in this stage."""
            addressed = self._requests_by_node(grid, {silo: requests[silo] for silo in waiting})
            new = {node: texts for node, texts in addressed.items() if node not in reached}
            reached.update(new)
            return [_message(node, texts, records, number, 2 * wait) for node, texts in new.items()]

        first = isinstance(request_from_bytes(next(iter(requests.values()))), Begin)
        joins = first and self._plan.federation.rosters is not None

        def awaits_more() -> bool:
            """Returns True while the node of a silo that has not come so far may still come, or be asked."""
            if not joins or waiting <= self._nodes.keys():  # a known node that is gone is missing, as with one roster
                return False
            there = set(grid.get_node_ids())
            return len(there) < len(self._plan.federation) or bool(there - reached - set(self._nodes.values()))

        for reply in _replies(grid, messages, wait, awaits_more):
            if reply.has_error():
                # Where membership changes, the nodes of silos that have not joined yet are unknown, and decline.
                level = logging.INFO if joins else logging.WARNING
                waiting -= {silo for silo, node in self._nodes.items() if node == reply.metadata.src_node_id}
                _logger.log(level, "round %d: a node answered with error %d", number, reply.error.code)
                continue
            try:
                silo = take(answer_in(reply.content))
            except ExchangeError as error:
                _logger.warning("round %d: %s", number, error)
                continue
            if silo is not None:
                self._nodes[silo] = reply.metadata.src_node_id
                waiting.discard(silo)

    def _requests_by_node(self, grid: Grid, requests: Mapping[str, bytes]) -> dict[int, list[bytes]]:
        """Returns the requests for every node: the request of the node's silo; for an unknown node, of all groups."""
        online = set(grid.get_node_ids())
        silo_of = {node: silo for silo, node in self._nodes.items()}
        addressed = {node: [requests[silo]] for node, silo in silo_of.items() if node in online and silo in requests}
        if set(requests) - {silo_of[node] for node in addressed}:
            addressed |= dict.fromkeys(sorted(online - set(silo_of)), sorted(set(requests.values())))
        return addressed

    def _wait_for_nodes(self, grid: Grid, wait: float, number: int) -> None:
        """Waits for as many nodes as a round has silos, or until the time is up."""
        silos = [silo for name in senders_of(self._plan) for silo in members_of(self._plan, name, number)]
        wanted, deadline = len(silos), time.monotonic() + wait
        while (there := len(list(grid.get_node_ids()))) < wanted:
            if time.monotonic() > deadline:
                if not there:
                    raise EngineError("flower.nodes-missing", seconds=wait)
                _logger.warning("%d of %d nodes are there: the others are left out for now", there, wanted)
                return
            time.sleep(_SOON)

    def configure_train(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Raises `EngineError`: a masked round is more than one message, and `start` runs all of them."""
        raise _by_start_alone()

    def aggregate_train(self, *_: Any, **__: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raises `EngineError`: a masked round is more than one message, and `start` runs all of them."""
        raise _by_start_alone()

    def configure_evaluate(self, *_: Any, **__: Any) -> Iterable[Message]:
        """Returns no messages: silos send no metrics."""
        return ()

    def aggregate_evaluate(self, *_: Any, **__: Any) -> MetricRecord | None:
        """Returns None: silos send no metrics."""
        return None


def _message(node: int, requests: list[bytes], records: Mapping[str, Any], number: int, lifetime: float) -> Message:
    """Returns the message of a stage for a node; the records for training go along with a request for an update."""
    content = request_content(requests)
    if any(MaskedSilo.asks_for_update(request) for request in requests):
        for name, record in records.items():
            content[name] = record
    return Message(content, dst_node_id=node, message_type=MESSAGE_TYPE, group_id=str(number), ttl=lifetime)


def _replies(
    grid: Grid, messages: Callable[[], list[Message]], wait: float, awaits_more: Callable[[], bool]
) -> Iterator[Message]:
    """Sends messages, and gives the replies as they come, until all have come or the time is up.

    Args:
        grid: Flower's connection to the nodes.
        messages: Returns the messages to send; called again while more are awaited, for nodes that come later.
        wait: Seconds for replies.
        awaits_more: Returns True if further nodes may still come that have to answer.
    """
    pending = {identifier for identifier in grid.push_messages(messages()) if identifier}
    began = time.monotonic()
    while pending or awaits_more():
        for reply in grid.pull_messages(pending) if pending else ():
            pending.discard(reply.metadata.reply_to_message_id)
            yield reply
        spent, more = time.monotonic() - began, awaits_more()
        if not (pending or more) or spent > wait:
            return
        time.sleep(min(max(_SOON, _SHARE * spent), _INTERVAL, wait))
        if more and (late := messages()):
            pending.update(identifier for identifier in grid.push_messages(late) if identifier)


def server_site(folder: str | Path | None = None) -> Site:
    """Returns the server's site in a folder; by default in the folder that the environment names."""
    place = os.environ.get(SITE) if folder is None else folder
    if place is None:
        raise DataError("flower.server-site-unnamed", variable=SITE)
    return read_site(place, "server")


def _by_start_alone() -> EngineError:
    return EngineError("flower.round-without-start")


def _in_form(initial: Mapping[str, np.ndarray[Any, Any]], model: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Returns the model with the names, order and types of the initial arrays; untrained arrays stay unchanged."""
    trained = {name: array.astype(initial[name].dtype) for name, array in model.items()}
    return as_record({name: trained.get(name, array) for name, array in initial.items()})


def _measure(result: Result, evaluate_fn: Any, number: int, record: ArrayRecord) -> Mapping[str, Any]:
    """Calls the server's `evaluate_fn` on a model, as Flower's own strategies do, and returns the metrics."""
    measured = None if evaluate_fn is None else evaluate_fn(number, record)
    if measured is None:
        return {}
    _logger.info("round %d: %s", number, dict(measured))
    result.evaluate_metrics_serverapp[number] = measured
    return dict(measured)


def _notes(initial: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    """Returns sentences on arrays of a model that learn little or nothing under a plan, as for a training module."""
    fixed = tuple(name for name in initial if name not in parameters)
    notes = [f"Not trained, as they are not real numbers: {listing(fixed)}."] if fixed else []
    return notes + ModelForm(like=initial).remarks()


def request_content(requests: Iterable[bytes]) -> RecordDict:
    """Returns the content of a message with the requests of a stage, for every group that may have the silo."""
    return RecordDict({FULCRUM: ConfigRecord({REQUESTS: list(requests)})})


def answer_in(content: RecordDict) -> bytes:
    """Returns the answer of a silo in a reply, or raises `ExchangeError`."""
    record = content.array_records.get(FULCRUM)
    if record is None or len(record) != 1:
        raise ExchangeError("flower.answer-missing")
    try:
        payload = record.to_numpy_ndarrays()[0]
    except Exception as error:  # NumPy raises many kinds of errors for malformed bytes
        raise ExchangeError("flower.answer-malformed", reason=str(error)) from None
    if payload.dtype != np.uint8:
        raise ExchangeError("flower.answer-missing")
    return bytes(payload.tobytes())
