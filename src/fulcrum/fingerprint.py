"""One short text for all that a frozen object holds at this moment, to notice what changed in memory since.

>>> import numpy as np
>>> numbers = {"noise": np.ones(2)}
>>> before = fingerprint_of(numbers)
>>> numbers["noise"][1] = 2.0
>>> fingerprint_of(numbers) == before
False
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def fingerprint_of(value: Any, *, without: tuple[str, ...] = ()) -> str:
    """Returns a SHA-256 over the fields of dataclasses, mappings, sequences and arrays, all the way down.

    Args:
        value: What is looked at. Figures that a dataclass caches beside its fields are not part of it.
        without: Fields to leave out.
    """
    sha = hashlib.sha256()
    for part in _parts(value, without):
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.hexdigest()


def _parts(value: Any, without: tuple[str, ...]) -> Iterator[bytes]:
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.name not in without}
    if isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode()
        if value.dtype.kind in "biuf":
            yield value.tobytes()
            return
        value = value.tolist()  # texts are elsewhere in memory, and their array holds where
    if isinstance(value, Mapping):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        yield f"{len(value)} items".encode()
        for item in value:
            yield from _parts(item, without)
    else:
        yield repr(value).encode()
