"""What travels in Flower's messages: the protocol's requests and answers, and the model as named arrays."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fulcrum.errors import ExchangeError

FULCRUM = "fulcrum"
"""The record of a message that is Fulcrum's own: requests on the way out, the answer on the way back."""

ARRAYS, CONFIG = "arrays", "config"
"""The records that Flower's own strategies send the model and its settings in."""

ROUND = "server-round"
"""Which round it is, in `CONFIG`, as Flower's own strategies say it."""

MESSAGE_TYPE = "train"
"""Of all stages: whatever is asked, the app's own train function stands behind it."""

_REQUESTS = "requests"


def request_content(requests: Iterable[bytes]) -> RecordDict:
    """Returns the content of a message that asks for one stage, of whichever group the silo is in."""
    return RecordDict({FULCRUM: ConfigRecord({_REQUESTS: list(requests)})})


def requests_in(content: RecordDict) -> list[bytes]:
    """Returns what is asked, or raises `ExchangeError`."""
    record = content.config_records.get(FULCRUM)
    found = None if record is None else record.get(_REQUESTS)
    if not isinstance(found, list) or not all(isinstance(request, bytes) for request in found):
        raise ExchangeError("the message holds no request of a masked round")
    return [request for request in found if isinstance(request, bytes)]


def answer_content(answer: bytes) -> RecordDict:
    """Returns the content of the reply: the answer and nothing else; as an array, which Flower sends in parts."""
    return RecordDict({FULCRUM: ArrayRecord([np.frombuffer(answer, dtype=np.uint8)])})


def answer_in(content: RecordDict) -> bytes:
    """Returns what a silo answered, or raises `ExchangeError`."""
    record = content.array_records.get(FULCRUM)
    if record is None or len(record) != 1:
        raise ExchangeError("the reply holds no answer")
    try:
        found = record.to_numpy_ndarrays()[0]
    except Exception as error:  # whatever NumPy makes of the bytes
        raise ExchangeError(f"the reply holds no answer: {error}") from None
    if found.dtype != np.uint8:
        raise ExchangeError("the reply holds no answer")
    return bytes(found.tobytes())


def arrays_in(record: ArrayRecord) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of a record, as they are; what is no array raises whatever NumPy makes of it."""
    return {name: array.numpy() for name, array in record.items()}


def parameters_in(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays that are trained: those of real numbers. Counts and other buffers are not updates."""
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def as_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    """Returns named arrays as a record."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
