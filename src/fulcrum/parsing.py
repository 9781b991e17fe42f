"""JSON and TOML from other people, read with one kind of error for every failure.

>>> toml_of('rounds = 3')
{'rounds': 3}
>>> toml_of('rounds = ' + '[' * 100_000)
Traceback (most recent call last):
    ...
tomllib.TOMLDecodeError: it is nested too deeply to be read

The parsers beneath raise `RecursionError` for deep nesting, `UnicodeDecodeError` for text that is no UTF-8 and a bare
`ValueError` for a number of thousands of digits. A caller shows a traceback for every kind of error that is forgotten.
"""

import tomllib
from typing import Any, TypeVar

import msgspec

_Kind = TypeVar("_Kind")

_TOO_DEEP = "it is nested too deeply to be read"


def json_of(data: bytes, kind: type[_Kind]) -> _Kind:
    """Returns the object in JSON, or raises `msgspec.MsgspecError`.

    Args:
        data: The bytes.
        kind: The type of the object.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError(_TOO_DEEP) from None
    except msgspec.MsgspecError:  # a ValueError too, and it says what is damaged
        raise
    except ValueError:
        raise msgspec.DecodeError("it is not UTF-8") from None


def toml_of(text: str | bytes) -> dict[str, Any]:
    """Returns the tables in TOML, or raises `tomllib.TOMLDecodeError`."""
    try:
        return tomllib.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError(str(error)) from None
