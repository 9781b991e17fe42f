"""JSON and TOML of foreign origin, with a single kind of error for every failure.

>>> toml_of('rounds = 3')
{'rounds': 3}
>>> toml_of('rounds = ' + '[' * 100_000)
Traceback (most recent call last):
    ...
tomllib.TOMLDecodeError: it is nested too deeply to be read

The parsers beneath raise `RecursionError` for deep nesting, `UnicodeDecodeError` for text that is no UTF-8 and a bare
`ValueError` for a number of thousands of digits. A caller that forgets a kind of error shows a traceback.
"""

import json
import tomllib
from collections import Counter
from typing import Any, TypeVar

import msgspec

_Kind = TypeVar("_Kind")

_TOO_DEEP = "it is nested too deeply to be read"


def json_of(data: bytes, kind: type[_Kind]) -> _Kind:
    """Returns the object in JSON, or raises `msgspec.MsgspecError`; a repeated key in an object is an error.

    Args:
        data: The bytes.
        kind: The type of the object.
    """
    try:
        content = msgspec.json.decode(data, type=kind)
        check_unique_keys(data)
    except RecursionError:
        raise msgspec.DecodeError(_TOO_DEEP) from None
    except msgspec.MsgspecError:  # a ValueError too, with the damaged place in the message
        raise
    except ValueError:
        raise msgspec.DecodeError("it is not UTF-8") from None
    return content


def check_unique_keys(data: bytes) -> None:
    """Raises `msgspec.DecodeError` if an object in JSON has a repeated key.

    Parsers take the last value of a repeated key, and people read the first: a signed file would show people a
    different content from the signed content. A file that is equal to the encoding of its own content has no repeated
    key, and most files are equal to that encoding. The comparison takes half the time of Python's own parser. Python's
    parser reads the other files and names the repeated key.

    >>> check_unique_keys(b'{"rounds": 3, "rounds": 300}')
    Traceback (most recent call last):
        ...
    msgspec.DecodeError: the key 'rounds' stands twice in one object

    Args:
        data: JSON, decoded before without an error.
    """
    if msgspec.json.format(data, indent=-1) != msgspec.json.encode(msgspec.json.decode(data)):
        json.loads(data, object_pairs_hook=_object_of)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of keys and values, or raises `msgspec.DecodeError` for a repeated key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise msgspec.DecodeError(f"the key {twice[:40]!r} stands twice in one object")
    return members


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
