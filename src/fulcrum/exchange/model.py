"""The global model as bytes, on its way from the server to the silos.

>>> import numpy as np
>>> packed = pack_model({"head": np.zeros((2, 3))})
>>> unpack_model(packed)["head"].shape
(2, 3)
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ReleaseError
from fulcrum.exchange.answer import check_layout
from fulcrum.exchange.layout import Layout


def pack_model(model: Mapping[str, FloatArray]) -> bytes:
    """Returns a model as bytes: a header with names and shapes, then the values, little-endian double precision."""
    layout = Layout(names=tuple(model), shapes=tuple(array.shape for array in model.values()))
    header = msgspec.msgpack.encode(layout)
    values = b"".join(np.ascontiguousarray(array, dtype="<f8").tobytes() for array in model.values())
    return len(header).to_bytes(4, "little") + header + values


def model_layout(data: Any) -> Layout:
    """Returns the names and shapes of the model that these bytes are, or raises as `unpack_model` does."""
    return _parts(data)[0]


def unpack_model(data: Any) -> dict[str, FloatArray]:
    """Returns the model that these bytes are, or raises `ReleaseError`, or `ExchangeError` for impossible shapes."""
    layout, flat = _parts(data)
    values = flat.astype(np.float64)
    ends = np.cumsum([math.prod(shape) for shape in layout.shapes])
    parts = np.split(values, ends[:-1]) if len(ends) else []
    return {name: part.reshape(shape) for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)}


def _parts(data: Any) -> tuple[Layout, FloatArray]:
    """Returns a model's layout, and its values where they stand."""
    try:
        view = memoryview(data)
        size = int.from_bytes(view[:4], "little")
        layout = msgspec.msgpack.decode(view[4 : 4 + size], type=Layout)
        values = np.frombuffer(view[4 + size :], dtype="<f8")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ReleaseError(f"these bytes are not a model: {error}") from None
    check_layout(layout, "the model")
    if len(values) != layout.parameters:
        raise ReleaseError(f"a model of {layout.parameters} parameters holds {len(values)}")
    return layout, values
