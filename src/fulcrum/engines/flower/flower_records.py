"""The records of Flower's messages: requests and answers of the protocol, the model, and the settings for the app."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fulcrum.errors import ExchangeError

FULCRUM = "fulcrum"
"""The name of Fulcrum's own record in a message: requests on the way out, the answer on the way back."""

ARRAYS, CONFIG = "arrays", "config"
"""The names of the records in which Flower's own strategies send the model and the settings."""

ROUND = "server-round"
"""The name of the round's number in `CONFIG`, as in Flower's own strategies."""

MESSAGE_TYPE = "train"
"""The type of the messages of all stages: the app handles them by its own train function."""

REQUESTS = "requests"
"""The entry of the record `FULCRUM` that holds the requests."""


def requests_in(content: RecordDict) -> list[bytes]:
    """Returns the requests in a message, or raises `ExchangeError`."""
    record = content.config_records.get(FULCRUM)
    requests = None if record is None else record.get(REQUESTS)
    if not isinstance(requests, list) or not all(isinstance(request, bytes) for request in requests):
        raise ExchangeError("flower.request-missing")
    return [request for request in requests if isinstance(request, bytes)]


def records_digest(records: Mapping[str, Any]) -> str:
    """Returns a SHA-256 over records as an app reads them: names, kinds, types, order, and every value.

    Silos train in a common sum if their digests agree. The digest of an array covers bytes, type and shape as sent.

    Raises:
        ExchangeError: A record is of an unknown kind.
    """
    rows = [(name, type(record).__name__, _values(name, record)) for name, record in records.items()]
    return _digest("fulcrum.flower.records/1", rows)


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Returns a SHA-256 over the settings of a run; empty for a run without settings."""
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


def _digest(purpose: str, rows: list[Any]) -> str:
    # A simulation sends nothing over a network, so numbers may still be NumPy's own.
    data = msgspec.msgpack.encode((purpose, rows), enc_hook=lambda number: number.item())
    return hashlib.sha256(data).hexdigest()


def answer_content(answer: bytes) -> RecordDict:
    """Returns the content of the reply: the answer alone, as an array, because Flower sends arrays in parts."""
    return RecordDict({FULCRUM: ArrayRecord([np.frombuffer(answer, dtype=np.uint8)])})


def arrays_in(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of a record, unchanged; a malformed array raises NumPy's own error."""
    return {name: array.numpy() for name, array in record.items()}


def parameters_in(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the trained arrays: the arrays of real numbers. Counts and other buffers are not updates."""
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def as_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Returns named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
