"""What travels in Flower's messages: the protocol's requests and answers, the model, and what is told beside it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fulcrum.errors import ExchangeError

FULCRUM = "fulcrum"
"""The record of a message that is Fulcrum's own: requests on the way out, the answer on the way back."""

ARRAYS, CONFIG = "arrays", "config"
"""The records that Flower's own strategies send the model and its settings in."""

ROUND = "server-round"
"""Which round it is, in `CONFIG`, as Flower's own strategies say it."""

MESSAGE_TYPE = "train"
"""Of all stages: whatever is asked, the app's own train function stands behind it."""

REQUESTS = "requests"
"""The entry of the record `FULCRUM` that holds the requests."""


def requests_in(content: RecordDict) -> list[bytes]:
    """Returns what is asked, or raises `ExchangeError`."""
    record = content.config_records.get(FULCRUM)
    found = None if record is None else record.get(REQUESTS)
    if not isinstance(found, list) or not all(isinstance(request, bytes) for request in found):
        raise ExchangeError("flower.request-missing")
    return [request for request in found if isinstance(request, bytes)]


def records_digest(records: Mapping[str, Any]) -> str:
    """Returns a SHA-256 over records as an app reads them: names, kinds, types, order, and every value.

    Silos train in one sum where theirs agree: arrays count with the bytes, type and shape that they are sent in.

    Raises:
        ExchangeError: One is of a kind that is not known here.
    """
    told = [(name, type(record).__name__, _values(name, record)) for name, record in records.items()]
    return _digest("fulcrum.flower.records/1", told)


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Returns a SHA-256 over the settings of a run, empty where there are none."""
    return _digest("fulcrum.flower.settings/1", sorted(settings.items())) if settings else ""


def _values(name: str, record: Any) -> list[tuple[Any, ...]]:
    if isinstance(record, ArrayRecord):
        return [
            (key, array.dtype, tuple(array.shape), array.stype, hashlib.sha256(array.data).digest())
            for key, array in record.items()
        ]
    if isinstance(record, ConfigRecord | MetricRecord):
        return list(record.items())
    raise ExchangeError("flower.record-kind", name=name)


def _digest(purpose: str, told: list[Any]) -> str:
    # Numbers of NumPy come as such where nothing is sent over a network.
    data = msgspec.msgpack.encode((purpose, told), enc_hook=lambda number: number.item())
    return hashlib.sha256(data).hexdigest()


def answer_content(answer: bytes) -> RecordDict:
    """Returns the content of the reply: the answer and nothing else; as an array, which Flower sends in parts."""
    return RecordDict({FULCRUM: ArrayRecord([np.frombuffer(answer, dtype=np.uint8)])})


def arrays_in(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of a record, as they are; what is no array raises whatever NumPy makes of it."""
    return {name: array.numpy() for name, array in record.items()}


def parameters_in(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays that are trained: those of real numbers. Counts and other buffers are not updates."""
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def as_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Returns named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
