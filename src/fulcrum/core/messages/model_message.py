"""The global model as bytes, from the server to the silos; and the model's digest, the input of a silo's release.

>>> import numpy as np
>>> packed = pack_model({"head": np.zeros((2, 3))})
>>> unpack_model(packed)["head"].shape, model_digest(unpack_model(packed))[:8]
((2, 3), '34edabe0')
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.framing import frame, unframe
from fulcrum.core.messages.layout import Layout, flatten_arrays, floats_by_name, layout_of, payload_of
from fulcrum.errors import ExchangeError

Model = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by name."""


def pack_model(model: Model) -> bytes:
    """Returns a model as bytes: a header with names and shapes, then the values in double precision, little-endian."""
    layout, flat = flatten_arrays(model, what="model", error=ExchangeError)
    return frame(layout, payload_of(flat, step=None))


def unpack_model(data: Any) -> dict[str, FloatArray]:
    """Returns the model in a message; raises `ExchangeError` for bytes that are not a whole model."""
    layout, flat = _parts(data)
    return layout.arrays(flat.astype(np.float64))


def model_layout(data: Any) -> Layout:
    """Returns names and shapes of the model in a message; raises `ExchangeError` as `unpack_model` does."""
    return _parts(data)[0]


def model_digest(model: Model) -> str:
    """Returns the SHA-256 of a model's names, shapes and values in double precision, in the model's order.

    A silo's release is bound to the digest: a ledger allows one release a round, on one model. A server that sent
    two models in a round, to get two releases with separate noise, is refused the second release.
    """
    arrays = floats_by_name(model, what="model", error=ExchangeError)
    sha = hashlib.sha256(msgspec.msgpack.encode(("fulcrum.model/1", layout_of(arrays))))
    with np.errstate(all="ignore"):  # as in `flatten_arrays`
        for array in arrays.values():
            if array.size:
                sha.update(payload_of(np.ravel(array), step=None))
    return sha.hexdigest()


def input_digest_of(model: Model, *config_digests: str) -> str:
    """Returns the digest of all inputs from the server to a silo's training: the model and the configuration.

    Without configuration the result is the digest of the model.

    Args:
        model: The global model.
        config_digests: A digest for every other input; empty for a missing input.
    """
    digest = model_digest(model)
    if not any(config_digests):
        return digest
    return hashlib.sha256(msgspec.msgpack.encode(("fulcrum.basis/1", digest, config_digests))).hexdigest()


def _parts(data: Any) -> tuple[Layout, FloatArray]:
    """Returns a model's layout, and all values of the model in one row, which shares the memory of `data`."""
    layout, payload = unframe(data, Layout, "a model")
    layout.check("the model")
    return layout, layout.values(payload, None, "a model")
