"""A silo on Flower: a mod that any ClientApp of the Message API adds in one line.

    app = ClientApp(mods=[fulcrum_mod])

The mod precedes the app's own functions and answers the stages of a masked round. For the stage with an update, the mod
calls the app's train function, and takes the returned arrays minus the arrays that were sent. Nothing else of the reply
leaves: metrics and counts of examples are withheld, and the silo's log names them. `fulcrum.engines.flower.site_mod`
has the site of a node, and the digests that silos of a sum agree on.

The mod must be first in the list: an earlier mod sees the reply, and could add data.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.silo.masked_release import MaskedSilo
from fulcrum.core.silo.site import Site, read_site
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_result import update_of
from fulcrum.engines.flower.flower_records import ARRAYS, CONFIG, MESSAGE_TYPE, ROUND, arrays_in
from fulcrum.engines.flower.site_mod import SITE, Arrays, Next, SiteMod, SiteStation, tell
from fulcrum.errors import DataError, ExchangeError, ParameterError
from fulcrum.parsing import toml_of

SITES = "FULCRUM_SITES"
"""The environment variable of a simulation: a folder with every silo's site, assigned to nodes in the plan's order."""


class FulcrumMod(SiteMod):
    """The mod. `fulcrum_mod` is the instance that refuses everything but the stages of a masked round.

    Guarantees, for every input of the server and every behaviour of the app, except ending the process: those of
    `SiteMod`, and:

    - the app's train function runs when an update is due. If the plan protects persons, the site's training module runs
      in its place: the update of an app mixes persons before the clip;
    - in deployment the exceptions and results of training are hidden, as `ReleasingSilo` hides them;
    - messages of any other type reach the app only if the app declares the type public; an exception is then refused.

    Args:
        public: Types of messages, such as "query.version", whose replies depend on no records. Such messages pass
            Fulcrum unchanged, and nothing in them is accounted for.
    """

    def __init__(self, public: Collection[str] = ()) -> None:
        for name in public:
            if name.split(".")[0] == MESSAGE_TYPE:
                raise ParameterError("flower.type-not-public", message_type=name)
        self._public = frozenset(public)

    def _respond(self, message: Message, reply: Message, context: Context, call_next: Next) -> Message:
        if message.metadata.message_type in self._public:
            return call_next(message, context)
        return super()._respond(message, reply, context, call_next)

    def _station(self, node_config: Mapping[str, Any]) -> SiteStation:
        return _station_of(folder_of(node_config))


fulcrum_mod = FulcrumMod()
"""For `ClientApp(mods=[fulcrum_mod])`."""


class _Station(SiteStation):
    """A site whose app trains in this process, with the message that is being answered."""

    _calling: Callable[[], Message] | None = None

    def _silo_of(self, site: Site) -> MaskedSilo:
        by_person = site.plan.unit.is_within_silo
        if by_person and not site.settings.train:  # the update of an app mixes persons, and no clip bounds a person
            raise DataError("flower.app-by-person", unit=site.plan.unit.noun)
        return MaskedSilo(site, None if by_person else self)

    @contextlib.contextmanager
    def _training_on(
        self, arrays: Arrays, message: Message, records: RecordDict, app: Callable[[Message], Message]
    ) -> Iterator[None]:
        del arrays
        self._calling = lambda: app(_for_the_app(message, records))
        try:
            yield
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
        tell("withheld, as only the release leaves this silo: %s", "; ".join(withheld))


def folder_of(settings: Mapping[str, Any]) -> Path:
    """Returns the folder of a node's site, from the node's own configuration; virtual nodes share a folder of sites."""
    if (named := settings.get(SITE)) is not None:
        return Path(str(named))
    sites, place = os.environ.get(SITES), settings.get("partition-id")
    if sites is None or not isinstance(place, int):
        raise DataError("flower.node-site-missing", setting=SITE)
    names = _names_in(Path(sites))
    if not 0 <= place < len(names):
        raise DataError("flower.node-number", folder=sites, silos=len(names), node=place + 1)
    folder = Path(sites) / names[place]
    return folder if folder.is_dir() else _folders_in(Path(sites)).get(names[place], folder)


@functools.cache
def _folders_in(sites: Path) -> dict[str, Path]:
    """Returns the folders of sites by name in the plan: an accent is not in the name of a folder."""
    return {toml_of(path.read_text(encoding="utf-8"))["name"]: path.parent for path in sites.glob("*/site.toml")}


@functools.cache
def _names_in(sites: Path) -> list[str]:
    return [entry.silo for entry in read_content(sites / "plan.json").silos]


@functools.cache
def _station_of(folder: Path) -> _Station:
    """Returns the station of a site, read once in a process."""
    return _Station(read_site(folder, "silo"))
