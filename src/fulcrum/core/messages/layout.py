"""Arrays as one row of coordinates and back, with the names and shapes of the arrays.

>>> layout, flat = flatten_arrays({"weight": np.ones((2, 2), dtype=np.float16), "bias": np.zeros(1)})
>>> layout.names, layout.parameters, flat.tolist()
(('weight', 'bias'), 5, [1.0, 1.0, 1.0, 1.0, 0.0])
>>> layout.arrays(flat)["weight"].tolist()
[[1.0, 1.0], [1.0, 1.0]]
"""

import hashlib
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ExchangeError, FulcrumError, ReleaseError, in_one_line

Update: TypeAlias = np.ndarray[Any, Any] | Sequence[np.ndarray[Any, Any]] | Mapping[str, np.ndarray[Any, Any]]
"""An array, a list of arrays, or a mapping of arrays, of half, single or double precision and any shape."""

_MOST_AXES = 64
"""The most axes of a NumPy array."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The names and shapes of an update's arrays, in the order in which all coordinates stand in one row.

    Attributes:
        names: The name of every array.
        shapes: The shape of every array, in the order of the names.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def parameters(self) -> int:
        """The number of coordinates."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def digest(self) -> str:
        """A short name for the layout; layouts with equal names and shapes have equal digests."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def arrays(self, flat: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns arrays by name, with the coordinates of `flat`; all arrays share the memory of `flat`."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        parts = np.split(flat, ends[:-1]) if len(ends) else []
        return {name: part.reshape(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)}

    def check(self, whose: str) -> None:
        """Raises `ExchangeError` for names and shapes that no arrays have: the layout comes from another machine.

        Args:
            whose: The message with the layout, as a noun for errors.
        """
        one_to_one = len(self.names) == len(self.shapes) == len(set(self.names))
        if not one_to_one or not all(map(str.isprintable, self.names)) or not all(map(_is_shape, self.shapes)):
            raise ExchangeError("message.layout-invalid", noun=whose)

    def values(self, payload: memoryview, step: float | None, whose: str) -> np.ndarray[Any, Any]:
        """Returns the coordinates in a payload as a view of the payload.

        Args:
            payload: Eight bytes a coordinate.
            step: The step of the lattice; None for floating point.
            whose: The message with the payload, as a noun for errors.

        Raises:
            ExchangeError: The payload is shorter or longer than the layout.
        """
        expected = 8 * self.parameters
        if len(payload) != expected:
            raise ExchangeError("message.payload-length", noun=whose, bytes=len(payload), expected=expected)
        return np.frombuffer(payload, dtype=dtype_of(step))


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Returns True for the shape of a NumPy array; NumPy refuses (2^62, 0) as too large, though (2^62, 0) is empty."""
    # The number of axes first: the product of the 60,000 axes of a small message takes half a minute.
    if len(shape) > _MOST_AXES or min(shape, default=0) < 0:
        return False
    return 8 * math.prod(max(size, 1) for size in shape) <= sys.maxsize


def dtype_of(step: float | None) -> str:
    """Returns the type of stored and sent coordinates: integers on a lattice, floating point without a step.

    >>> dtype_of(0.5), dtype_of(None)
    ('<i8', '<f8')
    """
    return "<f8" if step is None else "<i8"


def payload_of(values: np.ndarray[Any, Any], step: float | None) -> memoryview:
    """Returns coordinates as the bytes to send: eight bytes a coordinate, least significant first."""
    return np.ascontiguousarray(values, dtype=dtype_of(step)).data.cast("B")


def in_units(values: np.ndarray[Any, Any], step: float | None) -> np.ndarray[Any, Any]:
    """Returns coordinates in units of the update, computed from steps of the lattice."""
    return values * (1.0 if step is None else step)


def flatten_arrays(
    arrays: Update, *, what: str = "update", error: type[FulcrumError] = ReleaseError
) -> tuple[Layout, FloatArray]:
    """Returns the layout of arrays and a copy of all coordinates; `floats_by_name` lists the refused arrays.

    Args:
        arrays: The arrays to put into one row.
        what: The meaning of the arrays, as a noun for errors.
        error: The type of the error for refused arrays.
    """
    named = floats_by_name(arrays, what=what, error=error)
    with np.errstate(all="ignore"):  # the cast of a signalling NaN warns, and no value is refused here
        parts = [np.ravel(array) for array in named.values()]
        return layout_of(named), np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)


def layout_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Layout:
    """Returns the names and shapes of arrays."""
    return Layout(names=tuple(arrays), shapes=tuple(array.shape for array in arrays.values()))


def floats_by_name(
    arrays: Update, *, what: str = "update", error: type[FulcrumError] = ReleaseError
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns arrays by name, without a copy.

    The function iterates once over `arrays`. Types, names, dtypes and shapes alone decide, never a value:

    - `arrays` is an array, a mapping or a sequence; an iterator would be empty at the second use, a set has no order;
    - names are printable texts without a repetition: 1 and "1" are not two layers;
    - dtypes are half, single or double precision, because double precision holds all three exactly. Wider floats would
      be rounded; integers, objects and structures are refused;
    - masked arrays are refused, because the mask would be lost.

    Args:
        arrays: The arrays.
        what: The meaning of the arrays, as a noun for errors.
        error: The type of the error for refused arrays.
    """
    if arrays is None:
        raise error("arrays.missing", noun=what)
    named: list[tuple[Any, Any]]
    if isinstance(arrays, np.ndarray):
        named = [("update", arrays)]
    elif isinstance(arrays, Mapping):
        named = list(arrays.items())
    elif isinstance(arrays, Sequence) and not isinstance(arrays, (str, bytes, bytearray, memoryview)):
        named = [(str(number), array) for number, array in enumerate(arrays)]
    else:
        raise error("arrays.type", noun=what, type_name=type(arrays).__name__)
    floats: dict[str, np.ndarray[Any, Any]] = {}
    for name, array in named:
        if not isinstance(name, str) or not name.isprintable():
            raise error("arrays.name-invalid", noun=what, name=name)
        if str(name) in floats:
            raise error("arrays.name-repeated", noun=what, name=name)
        floats[str(name)] = as_floats(array, f"the {what}'s array {name!r}", error)
    return floats


def as_floats(array: Any, whose: str, error: type[FulcrumError]) -> np.ndarray[Any, Any]:
    """Returns an array of half, single or double precision, without a copy; raises `error` for any other value.

    `whose` is the noun for the array in the error.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise error("arrays.masked", noun=whose)
    try:
        plain = np.asarray(array)
    except Exception as reason:  # `__array__` of a foreign object may raise anything
        raise error("arrays.not-an-array", noun=whose, reason=in_one_line(reason)) from None
    if plain.dtype.kind != "f":
        raise error("arrays.not-floats", noun=whose, dtype=plain.dtype)
    if not np.can_cast(plain.dtype, np.float64):
        raise error("arrays.too-wide", noun=whose, dtype=plain.dtype)
    return plain
