"""A silo on Flower that trains by its site's own module: a mod that answers every message of a ClientApp itself.

The mod answers the stages of a masked round and calls no function of an app. For the stage with an update, the training
module of the site trains in a process of its own. Plan, policy, ledger, record and key belong to the site that the
node's own configuration names, `fulcrum-site="/path/of/site"`.

The server's input to training is equal for all silos of a sum, or no sum results: the digest of the message's records
is part of the digest that the round began with, and silos agree on the settings of the run.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_messages import request_from_bytes
from fulcrum.core.silo.masked_station import MaskedStation
from fulcrum.core.silo.releasing import tell_log
from fulcrum.core.silo.releasing_silo import worker_of
from fulcrum.core.silo.site import Site, read_site
from fulcrum.core.training.assignment import Assignment, check_installed
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.engines.flower.flower_records import (
    ARRAYS,
    CONFIG,
    FULCRUM,
    MESSAGE_TYPE,
    ROUND,
    answer_content,
    arrays_in,
    parameters_in,
    records_digest,
    requests_in,
    settings_digest,
)
from fulcrum.errors import DataError, ExchangeError, FulcrumError

SITE = "fulcrum-site"
"""The setting in a node's configuration that names the folder of the node's site."""

REFUSED = 460
"""The code of a refusal. The reply has no reason, which could depend on records: the silo's own log has the reason."""

Next: TypeAlias = Callable[[Message, Context], Message]

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

tell = functools.partial(tell_log, logging.getLogger(__name__), logging.WARNING)
"""Writes to this site's own log. Errors of log handlers must not leave: Flower sends the text of an exception on."""


class SiteMod:
    """The mod of the built-in app: refuses every message except the stages of a masked round.

    Guarantees, for every message of the server:

    - a reply holds an answer of `MaskedStation` alone, or an error without further content;
    - training receives equal messages in all silos of a sum: the same model and configuration (Flower's message
      records), and the same settings of the run. Only identifiers and times of the messages differ. A second request
      for a round is refused if the model, the configuration or a setting has changed;
    - training runs only for the request of an update, and never again for a released round;
    - in deployment no reply shows if training failed, or a result of training without noise (`ReleasingSilo`).

    An interrupt by the operator ends the site: no answer leaves, the ledger charges nothing, and the server may ask for
    the round again.
    """

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answers a message."""
        # The replies are made before an app runs: the app receives the message itself, and a reply made afterwards
        # would carry the app's changes of the metadata to the server, a channel around the noise.
        reply = Message(RecordDict(), reply_to=message)
        refusal = Message(Error(REFUSED, "refused"), reply_to=message)
        try:
            return self._respond(message, reply, context, call_next)
        except KeyboardInterrupt:  # the operator's
            raise
        except FulcrumError as error:
            tell("refused: %s", error)
            return refusal
        except BaseException:
            tell("refused: something failed that should not", trace=True)
            return refusal

    def _respond(self, message: Message, reply: Message, context: Context, call_next: Next) -> Message:
        """Returns the reply with the silo's answer."""
        kind = message.metadata.message_type
        if kind != MESSAGE_TYPE:
            raise ExchangeError("flower.type-refused", message_type=kind)
        station, settings = self._station(context.node_config), settings_digest(context.run_config)
        answer = station.answer(message, settings, lambda app_message: call_next(app_message, context))
        reply.content = answer_content(answer)
        return reply

    def _station(self, node_config: Mapping[str, Any]) -> "SiteStation":
        """Returns the station of a node's site, which the node's own configuration names; no message matters."""
        if (folder := node_config.get(SITE)) is None:
            raise DataError("flower.node-site-missing", setting=SITE)
        return _station_of(Path(str(folder)))


class _SiteWorker(TrainingWorker):
    """The worker of a site's training module. Training receives all arrays as the server sent the arrays.

    Arrays of whole numbers, such as counts, are sent along and are no part of an update; the precision is the server's.
    """

    sent: Arrays = MappingProxyType({})

    def train(self, model: Arrays, assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the sent arrays after local training."""
        del model
        return super().train(self.sent, assignment)


class SiteStation:
    """A site in this process; training uses the message that is being answered."""

    def __init__(self, site: Site) -> None:
        self._silo = self._silo_of(site)
        self._lock = threading.Lock()

    def _silo_of(self, site: Site) -> MaskedStation:
        check_installed(site.settings.train)
        self._worker = worker_of(site.settings, _SiteWorker)
        return MaskedStation(site, self._worker)

    def answer(self, message: Message, settings: str, app: Callable[[Message], Message]) -> bytes:
        """Answers the request in a message.

        Args:
            message: The message of the server.
            settings: The digest of the settings of the run, which training may read.
            app: The app's own function; the site's module trains in its place.
        """
        request = self._silo.own_request(requests_in(message.content))
        if not self._silo.asks_for_update(request):
            return self._silo.answer(request, settings=settings)
        arrays = _sent_arrays(message.content)
        model = {name: array.astype(np.float64) for name, array in parameters_in(arrays).items()}
        records = _records_for_training(message.content, request_from_bytes(request).session.round_number)
        with self._lock, self._training_on(arrays, message, records, app):
            return self._silo.masked_update(request, model, config_digest=records_digest(records), settings=settings)

    @contextlib.contextmanager
    def _training_on(
        self, arrays: Arrays, message: Message, records: RecordDict, app: Callable[[Message], Message]
    ) -> Iterator[None]:
        """Hands the input of training over, for one update."""
        del message, records, app
        self._worker.sent = arrays
        try:
            yield
        finally:
            self._worker.sent = {}


def _sent_arrays(content: RecordDict) -> Arrays:
    """Returns the arrays of a request, as the server sent the arrays."""
    record = content.array_records.get(ARRAYS)
    if record is None:
        raise ExchangeError("flower.model-missing", record=ARRAYS)
    try:
        return arrays_in(record)
    except Exception as error:  # NumPy raises many kinds of errors for malformed arrays
        raise ExchangeError("flower.model-malformed", reason=str(error)) from None


def _records_for_training(content: RecordDict, round_number: int) -> RecordDict:
    """Returns the records for training: all records except the protocol's own.

    The round number comes from the checked request, not from the server's settings.
    """
    records = RecordDict({name: record for name, record in content.items() if name != FULCRUM})
    settings = content.config_records.get(CONFIG)
    records[CONFIG] = ConfigRecord({**({} if settings is None else settings), ROUND: round_number})
    return records


@functools.cache
def _station_of(folder: Path) -> SiteStation:
    """Returns the station of a site, read once in a process."""
    return SiteStation(read_site(folder, "silo"))
