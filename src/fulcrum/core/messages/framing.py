"""A message as bytes: the length of the header, the header in msgpack, then the payload.

>>> class Header(msgspec.Struct):
...     silo: str
>>> data = frame(Header("lille"), b"payload")
>>> data.hex(" ")
'0c 00 00 00 81 a4 73 69 6c 6f a5 6c 69 6c 6c 65 70 61 79 6c 6f 61 64'
>>> header, payload = unframe(data, Header, "a greeting")
>>> header.silo, bytes(payload)
('lille', b'payload')
"""

from typing import Any, TypeVar

import msgspec

from fulcrum.errors import ExchangeError, in_one_line

_LENGTH_BYTES = 4
_LONGEST = 100  # characters of a reason: a sender's own words may be part of the reason, and fill a log

_Header = TypeVar("_Header", bound=msgspec.Struct)


def frame(header: Any, payload: bytes | memoryview = b"") -> bytes:
    """Returns a message: the header's length in four bytes, least significant first, then header and payload."""
    encoded = msgspec.msgpack.encode(header)
    return b"".join((len(encoded).to_bytes(_LENGTH_BYTES, "little"), encoded, payload))


def unframe(data: Any, kind: type[_Header], what: str) -> tuple[_Header, memoryview]:
    """Returns header and payload of a message; the payload is a view of `data`, not a copy.

    The payload is unchecked: length and content are for the caller to check.

    Args:
        data: The bytes that arrived, from a sender without trust.
        kind: The type of the header.
        what: The expected message, as a noun for errors.

    Raises:
        ExchangeError: `data` are not bytes, or have no header of this type in the one encoding of `decode`.
    """
    view = _bytes_of(data, what)
    end = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    return decode(view[_LENGTH_BYTES:end], kind, what), view[end:]


def decode(data: Any, kind: type[_Header], what: str) -> _Header:
    """Returns the value that bytes encode.

    A value has one encoding. Bytes that were added, or written in another way, are refused: two encodings of one value
    would have two digests and two signatures, and unread bytes could carry anything.

    Args:
        data: The bytes that arrived, from a sender without trust.
        kind: The type of the value.
        what: The expected message, as a noun for errors.

    Raises:
        ExchangeError: The bytes are not the encoding of a value of this type.
    """
    view = _bytes_of(data, what)
    try:
        value = msgspec.msgpack.decode(view, type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise _format_error(what, error) from None
    if msgspec.msgpack.encode(value) != view:
        raise _format_error(what, "it is written in another way than Fulcrum writes it")
    return value


def _bytes_of(data: Any, what: str) -> memoryview:
    """Returns a view of `data` as single bytes: a view of wider items would be sliced and compared item by item.

    `what` is the expected message, as a noun for errors.
    """
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise _format_error(what, error) from None


def header_of(kind: type[_Header], message: Any) -> _Header:
    """Returns a header of the type `kind`; `message` has an attribute for every field of the header."""
    return kind(**{field.name: getattr(message, field.name) for field in msgspec.structs.fields(kind)})


def _format_error(what: str, reason: object) -> ExchangeError:
    return ExchangeError("message.malformed", noun=what, reason=in_one_line(reason)[:_LONGEST])
