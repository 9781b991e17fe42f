"""A silo on Flower: a mod that any ClientApp of the Message API adds in one line.

    app = ClientApp(mods=[fulcrum_mod])

It stands before the app's own functions and answers the stages of a masked round itself. One of them asks for an
update: there it calls the app's train function, and takes what came back less what went in. Nothing else of the reply
leaves: metrics and counts of examples are withheld, and the silo's log says so. Plan, policy, ledger, record and key
are those of the site that the node's own configuration names, `fulcrum-site="/path/of/site"`.

What the server tells the train function is the same for all silos of a sum, or there is no sum: the records of the
message are in the basis that the round was begun on, and the settings of the run are agreed on between silos.

Put it first in the list: a mod before it sees what leaves, and could add to it.
"""

import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
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
"""The name in a node's configuration of the folder of its site."""

SITES = "FULCRUM_SITES"
"""The environment variable of a simulation: a folder with every silo's site, which nodes take in the plan's order."""

REFUSED = 460
"""The code of an answer that is refused. It tells no more: why is in the silo's own log."""

Next = Callable[[Message, Context], Message]

_tell = functools.partial(tell_log, logging.getLogger(__name__), logging.WARNING)
"""Tells this site's own log. What a listener raises must not leave: Flower sends the text of an exception on."""


class FulcrumMod:
    """The mod. `fulcrum_mod` is the one that refuses everything but the stages of a masked round.

    Guarantees, whatever the server sends and whatever the app does in return, short of ending its process:

    - a reply holds an answer of `MaskedSilo`, or an error that says that there is none, and nothing else;
    - the app's train function runs where an update is due: a round that was released is not trained again;
    - all records that it is given, and the settings of the run, are those that every silo of the sum is given; asked
      again with others, a round is refused. Identifiers and times of a message are each silo's own;
    - in deployment what training raises or returns is hidden, as `ReleasingSilo` hides it;
    - messages of any other type reach the app only where it declares them public, and what it raises then is refused.

    An interrupt is handed on: it is the operator's, who wants the site to end. No answer leaves then, nothing is
    charged, and the round may be asked for again.

    Args:
        public: Types of messages, such as "query.version", whose replies hold nothing that depends on records. They go
            past Fulcrum as they are, and nothing in them is accounted for.
    """

    def __init__(self, public: Collection[str] = ()) -> None:
        for name in public:
            if name.split(".")[0] == MESSAGE_TYPE:
                raise ParameterError("flower.type-not-public", message_type=name)
        self._public = frozenset(public)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answers a message."""
        # Made first: the app is handed the message itself, and a reply made of it afterwards would carry off whatever
        # the app wrote into its metadata.
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
        return station.answer(message, lambda given: call_next(given, context), settings)


fulcrum_mod = FulcrumMod()
"""For `ClientApp(mods=[fulcrum_mod])`."""


class _Station:
    """One site in this process; the message at hand is what its training is made of."""

    def __init__(self, site: Site) -> None:
        self._silo = MaskedSilo(site, self)
        self._lock = threading.Lock()
        self._calling: Callable[[], Message] | None = None

    def answer(self, message: Message, training: Callable[[Message], Message], settings: str) -> bytes:
        """Answers what a message asks.

        Args:
            message: As it came.
            training: The app's own function.
            settings: The digest of the settings of the run, which that function goes by.
        """
        request = self._silo.own_request(requests_in(message.content))
        if not self._silo.asks_for_update(request):
            return self._silo.answer(request, settings=settings)
        model = _model_in(message.content)
        told = _told_to_the_app(message.content, request_from_bytes(request).session.round_number)
        with self._lock:
            self._calling = lambda: training(_for_the_app(message, told))
            try:
                return self._silo.masked_update(request, model, beside=records_digest(told), settings=settings)
            finally:
                self._calling = None

    def update(self, model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
        """Returns the change that the app's training made to the model; what else the app returns is withheld."""
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


def _model_in(content: RecordDict) -> dict[str, FloatArray]:
    """Returns the model that came with a request: its arrays of real numbers, in double precision."""
    record = content.array_records.get(ARRAYS)
    if record is None:
        raise ExchangeError("flower.model-missing", record=ARRAYS)
    try:
        arrays = arrays_in(record)
    except Exception as error:  # whatever NumPy makes of what the server sent
        raise ExchangeError("flower.model-malformed", reason=str(error)) from None
    return {name: array.astype(np.float64) for name, array in parameters_in(arrays).items()}


def _told_to_the_app(content: RecordDict, round_number: int) -> RecordDict:
    """Returns the records that the app's train function is given: all but the protocol's own.

    The round is that of the request, which is checked, not what the server's settings say.
    """
    told = RecordDict({name: record for name, record in content.items() if name != FULCRUM})
    settings = content.config_records.get(CONFIG)
    told[CONFIG] = ConfigRecord({**({} if settings is None else settings), ROUND: round_number})
    return told


def _for_the_app(message: Message, told: RecordDict) -> Message:
    """Returns the message as the app's train function would have it of Flower's own strategies."""
    message.content = told
    message.metadata.group_id = str(told[CONFIG][ROUND])
    return message


def _trained_record(content: RecordDict) -> ArrayRecord:
    """Returns the record of the arrays that were trained: that of the model's own name, or the only one."""
    records = content.array_records
    if ARRAYS in records:
        return records[ARRAYS]
    if len(records) != 1:
        raise DataError("flower.reply-records", records=len(records), record=ARRAYS)
    return next(iter(records.values()))


def _tell_withheld(content: RecordDict, record: ArrayRecord, released: set[str]) -> None:
    """Tells the silo's log what the app would have sent beside its arrays; names alone, no values."""
    beside = [f"{name!r} ({', '.join(map(str, other))})" for name, other in content.items() if other is not record]
    beside += [repr(name) for name in record if name not in released]
    if beside:
        _tell("withheld, as only the release leaves this silo: %s", "; ".join(beside))


def _folder_of(settings: Mapping[str, Any]) -> Path:
    """Returns the folder of the site that a node acts for, by its own configuration; nothing the server says counts."""
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
    """Returns the station of a site; read once a process."""
    return _Station(read_site(folder, "silo"))


def own_site(context: Context) -> Site:
    """Returns the site that a node acts for, for an app that trains by the module that the site names."""
    return read_site(_folder_of(context.node_config), "silo")
