"""A silo on Flower: a mod that any ClientApp of the Message API adds in one line.

    app = ClientApp(mods=[fulcrum_mod])

The mod precedes the app's own functions and answers the stages of a masked round. For the stage with an update, the mod
calls the app's train function, and takes the returned arrays minus the arrays that were sent. Nothing else of the reply
leaves: metrics and counts of examples are withheld, and the silo's log names them. Plan, policy, ledger, record and key
belong to the site that the node's own configuration names, `fulcrum-site="/path/of/site"`.

The server's input to the train function is equal for all silos of a sum, or no sum results: the digest of the message's
records is part of the digest that the round began with, and silos agree on the settings of the run.

The mod must be first in the list: an earlier mod sees the reply, and could add data.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_messages import request_from_bytes
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.releasing import tell_log
from fulcrum.core.silo.site import Site, read_site
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_result import update_of
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
from fulcrum.errors import DataError, ExchangeError, FulcrumError, ParameterError

SITE = "fulcrum-site"
"""The setting in a node's configuration that names the folder of the node's site."""

SITES = "FULCRUM_SITES"
"""The environment variable of a simulation: a folder with every silo's site, assigned to nodes in the plan's order."""

REFUSED = 460
"""The code of a refusal. The reply has no reason, which could depend on records: the silo's own log has the reason."""

Next = Callable[[Message, Context], Message]

_tell = functools.partial(tell_log, logging.getLogger(__name__), logging.WARNING)
"""Writes to this site's own log. Errors of log handlers must not leave: Flower sends the text of an exception on."""


class FulcrumMod:
    """The mod. `fulcrum_mod` is the instance that refuses everything but the stages of a masked round.

    Guarantees, for every input of the server and every behaviour of the app, except ending the process:

    - a reply holds an answer of `MaskedSilo` alone, or an error without further content;
    - the app's train function runs when an update is due: a released round is not trained again. If the plan protects
      persons, the site's training module runs in its place: the update of an app mixes persons before the clip;
    - the train function's records, and the settings of the run, are equal for every silo of the sum; a round asked for
      again with different records or settings is refused. Identifiers and times of a message differ between silos;
    - in deployment the exceptions and results of training are hidden, as `ReleasingSilo` hides them;
    - messages of any other type reach the app only if the app declares the type public; an exception is then refused.

    An interrupt is passed on: the operator wants the site to end. No answer leaves then, nothing is charged, and the
    round may be asked for again.

    Args:
        public: Types of messages, such as "query.version", whose replies depend on no records. Such messages pass
            Fulcrum unchanged, and nothing in them is accounted for.
    """

    def __init__(self, public: Collection[str] = ()) -> None:
        for name in public:
            if name.split(".")[0] == MESSAGE_TYPE:
                raise ParameterError("flower.type-not-public", message_type=name)
        self._public = frozenset(public)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answers a message."""
        # The replies are made before the app runs: the app receives the message itself, and a reply made afterwards
        # would carry the app's changes of the metadata to the server, a channel around the noise.
        reply = Message(RecordDict(), reply_to=message)
        refusal = Message(Error(REFUSED, "refused"), reply_to=message)
        try:
            if message.metadata.message_type in self._public:
                return call_next(message, context)
            reply.content = answer_content(self._answer(message, context, call_next))
        except KeyboardInterrupt:  # the operator's
            raise
        except FulcrumError as error:
            _tell("refused: %s", error)
            return refusal
        except BaseException:
            _tell("refused: something failed that should not", trace=True)
            return refusal
        return reply

    def _answer(self, message: Message, context: Context, call_next: Next) -> bytes:
        kind = message.metadata.message_type
        if kind != MESSAGE_TYPE:
            raise ExchangeError("flower.type-refused", message_type=kind)
        station = _station_of(_folder_of(context.node_config))
        settings = settings_digest(context.run_config)
        return station.answer(message, lambda app_message: call_next(app_message, context), settings)


fulcrum_mod = FulcrumMod()
"""For `ClientApp(mods=[fulcrum_mod])`."""


class _Station:
    """A site in this process; training uses the message that is being answered."""

    def __init__(self, site: Site) -> None:
        by_person = site.plan.unit.is_within_silo
        if (
            by_person and not site.settings.train
        ):  # the update of an app mixes persons, and no clip of it bounds a person
            raise DataError("flower.app-by-person", unit=site.plan.unit.noun)
        self._silo = MaskedSilo(site, None if by_person else self)
        self._lock = threading.Lock()
        self._calling: Callable[[], Message] | None = None

    def answer(self, message: Message, training: Callable[[Message], Message], settings: str) -> bytes:
        """Answers the request in a message.

        Args:
            message: The message of the server.
            training: The app's own function.
            settings: The digest of the settings of the run, which the function reads.
        """
        request = self._silo.own_request(requests_in(message.content))
        if not self._silo.asks_for_update(request):
            return self._silo.answer(request, settings=settings)
        model = _model_in(message.content)
        records = _records_for_the_app(message.content, request_from_bytes(request).session.round_number)
        with self._lock:
            self._calling = lambda: training(_for_the_app(message, records))
            try:
                return self._silo.masked_update(
                    request, model, config_digest=records_digest(records), settings=settings
                )
            finally:
                self._calling = None

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the change of the model by the app's training; all other content of the reply is withheld."""
        del assignment
        if self._calling is None:
            raise ExchangeError("flower.training-without-message")
        reply = self._calling()
        if not isinstance(reply, Message) or not reply.has_content():
            raise DataError("flower.reply-empty")
        record = _trained_record(reply.content)
        _tell_withheld(reply.content, record, set(model))
        trained = arrays_in(record)
        if missing := set(model) - set(trained):
            raise DataError("flower.reply-array-missing", array=min(missing))
        return update_of(model, {name: trained[name] for name in model})

    def rows(self, model: Mapping[str, FloatArray], assignment: Assignment) -> Generator[FloatArray]:
        """Refuses: an app's train function gives one update, and no rows by person."""
        del model
        raise DataError("flower.app-by-person", unit=assignment.plan.unit.noun)


def _model_in(content: RecordDict) -> dict[str, FloatArray]:
    """Returns the model of a request: the arrays of real numbers, in double precision."""
    record = content.array_records.get(ARRAYS)
    if record is None:
        raise ExchangeError("flower.model-missing", record=ARRAYS)
    try:
        arrays = arrays_in(record)
    except Exception as error:  # NumPy raises many kinds of errors for malformed arrays
        raise ExchangeError("flower.model-malformed", reason=str(error)) from None
    return {name: array.astype(np.float64) for name, array in parameters_in(arrays).items()}


def _records_for_the_app(content: RecordDict, round_number: int) -> RecordDict:
    """Returns the records for the app's train function: all records except the protocol's own.

    The round number comes from the checked request, not from the server's settings.
    """
    records = RecordDict({name: record for name, record in content.items() if name != FULCRUM})
    settings = content.config_records.get(CONFIG)
    records[CONFIG] = ConfigRecord({**({} if settings is None else settings), ROUND: round_number})
    return records


def _for_the_app(message: Message, records: RecordDict) -> Message:
    """Returns the message with the app's records as content and the round as group id, as Flower's strategies send."""
    message.content = records
    message.metadata.group_id = str(records[CONFIG][ROUND])
    return message


def _trained_record(content: RecordDict) -> ArrayRecord:
    """Returns the record of the trained arrays: the record with the model's name, or the only record."""
    records = content.array_records
    if ARRAYS in records:
        return records[ARRAYS]
    if len(records) != 1:
        raise DataError("flower.reply-records", records=len(records), record=ARRAYS)
    return next(iter(records.values()))


def _tell_withheld(content: RecordDict, record: ArrayRecord, released: set[str]) -> None:
    """Logs at the silo which content of the app's reply was withheld: names alone, no values."""
    withheld = [f"{name!r} ({', '.join(map(str, other))})" for name, other in content.items() if other is not record]
    withheld += [repr(name) for name in record if name not in released]
    if withheld:
        _tell("withheld, as only the release leaves this silo: %s", "; ".join(withheld))


def _folder_of(settings: Mapping[str, Any]) -> Path:
    """Returns the folder of a node's site, from the node's own configuration; no message of the server matters."""
    if (named := settings.get(SITE)) is not None:
        return Path(str(named))
    sites, place = os.environ.get(SITES), settings.get("partition-id")
    if sites is None or not isinstance(place, int):
        raise DataError("flower.node-site-missing", setting=SITE)
    names = _names_in(Path(sites))
    if not 0 <= place < len(names):
        raise DataError("flower.node-number", folder=sites, silos=len(names), node=place + 1)
    return Path(sites) / names[place]


@functools.cache
def _names_in(sites: Path) -> list[str]:
    return [entry.silo for entry in read_content(sites / "plan.json").silos]


@functools.cache
def _station_of(folder: Path) -> _Station:
    """Returns the station of a site, read once in a process."""
    return _Station(read_site(folder, "silo"))


def own_site(context: Context) -> Site:
    """Returns the site of a node, for an app that trains by the module that the site names."""
    return read_site(_folder_of(context.node_config), "silo")
