"""The global model as bytes, on its way from the server to the silos; and its digest, which silos answer to.

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
from fulcrum.core.messages.framing import framed, unframed
from fulcrum.core.messages.layout import Layout, flattened, floats_by_name, layout_of, payload_of
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.errors import ExchangeError

Model = Mapping[str, np.ndarray[Any, Any]]
"""Arrays by name."""


def pack_model(model: Model) -> bytes:
    """Returns a model as bytes: a header with names and shapes, then the values, little-endian double precision."""
    layout, flat = _flattened(model)
    return framed(layout, payload_of(flat, step=None))


def unpack_model(data: Any) -> dict[str, FloatArray]:
    """Returns the model that these bytes are, or raises `ExchangeError`."""
    layout, flat = _parts(data)
    return layout.arrays(flat.astype(np.float64))


def model_layout(data: Any) -> Layout:
    """Returns the names and shapes of the model that these bytes are, or raises `ExchangeError`."""
    return _parts(data)[0]


def model_digest(model: Model) -> str:
    """Returns a SHA-256 over a model's names, shapes and values in double precision, in the order given.

    A silo names it as the basis of its release, so that one round has one release on one model.
    """
    arrays = floats_by_name(model, what="model", error=ExchangeError)
    sha = hashlib.sha256(msgspec.msgpack.encode(("fulcrum.model/1", layout_of(arrays))))
    with np.errstate(all="ignore"):  # as in `flattened`
        for array in arrays.values():
            if array.size:
                sha.update(payload_of(np.ravel(array), step=None))
    return sha.hexdigest()


def basis_of(model: Model, *beside: str) -> str:
    """Returns what a release is computed from: the model's digest, with the digests of all else that training is told.

    Args:
        model: The global model.
        beside: A digest for each other thing that training is told, empty where there is none.
    """
    digest = model_digest(model)
    if not any(beside):
        return digest
    return hashlib.sha256(msgspec.msgpack.encode(("fulcrum.basis/1", digest, beside))).hexdigest()


def checked_model(plan: PlanData, model: Model) -> tuple[Layout, FloatArray]:
    """Returns a model's layout and coordinates, or raises `ExchangeError` unless the plan was made for such a one."""
    layout, flat = _flattened(model)
    check_model_layout(plan, layout)
    return layout, flat


def check_model_layout(plan: PlanData, layout: Layout) -> None:
    """Raises `ExchangeError` unless the plan was made for a model of these names and shapes."""
    layout.check("the model")
    if not layout.parameters:
        raise ExchangeError("model.parameters-missing")
    if plan.parameters not in (None, layout.parameters):
        raise ExchangeError("model.parameters-differ", parameters=layout.parameters, expected=plan.parameters)


def _flattened(model: Model) -> tuple[Layout, FloatArray]:
    return flattened(model, what="model", error=ExchangeError)


def _parts(data: Any) -> tuple[Layout, FloatArray]:
    """Returns a model's layout, and its values where they stand."""
    layout, payload = unframed(data, Layout, "a model")
    layout.check("the model")
    return layout, layout.values(payload, None, "a model")
