"""A message as bytes: how long its header is, the header in msgpack, then the payload.

>>> class Header(msgspec.Struct):
...     silo: str
>>> data = framed(Header("lille"), b"payload")
>>> data.hex(" ")
'0c 00 00 00 81 a4 73 69 6c 6f a5 6c 69 6c 6c 65 70 61 79 6c 6f 61 64'
>>> header, payload = unframed(data, Header, "a greeting")
>>> header.silo, bytes(payload)
('lille', b'payload')
"""

from typing import Any, TypeVar

import msgspec

from fulcrum.errors import ExchangeError, in_one_line

_LENGTH_BYTES = 4
_LONGEST = 100  # characters of a reason: part of it may be the sender's words

_Header = TypeVar("_Header", bound=msgspec.Struct)


def framed(header: Any, payload: bytes | memoryview = b"") -> bytes:
    """Returns a message: the length of its header in four bytes, least significant first, the header, the payload."""
    encoded = msgspec.msgpack.encode(header)
    return b"".join((len(encoded).to_bytes(_LENGTH_BYTES, "little"), encoded, payload))


def unframed(data: Any, kind: type[_Header], what: str) -> tuple[_Header, memoryview]:
    """Returns header and payload of a message, the payload where it stands in `data`.

    Args:
        data: What came, whatever it is.
        kind: The type of the header.
        what: What it should be, for messages.

    Raises:
        ExchangeError: It is no such message.
    """
    view = _bytes_of(data, what)
    end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    return decoded(view[_LENGTH_BYTES:end], kind, what), view[end:]


def decoded(data: Any, kind: type[_Header], what: str) -> _Header:
    """Returns what these bytes hold. It has one encoding: a byte added, or written in another way, is refused."""
    view = _bytes_of(data, what)
    try:
        found = msgspec.msgpack.decode(view, type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise _refused(what, error) from None
    if msgspec.msgpack.encode(found) != view:
        raise _refused(what, "it is written in another way than Fulcrum writes it")
    return found


def _bytes_of(data: Any, what: str) -> memoryview:
    """Returns what came as bytes, where it stands: an array would compare item by item."""
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise _refused(what, error) from None


def header_of(kind: type[_Header], message: Any) -> _Header:
    """Returns the header of a message, which has a field for each of the header's."""
    return kind(**{field.name: getattr(message, field.name) for field in msgspec.structs.fields(kind)})


def _refused(what: str, reason: object) -> ExchangeError:
    return ExchangeError("message.malformed", noun=what, reason=in_one_line(reason)[:_LONGEST])
