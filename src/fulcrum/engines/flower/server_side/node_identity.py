"""The SuperNode behind a request: Flower's signed headers, checked against the registered keys.

A SuperNode of Flower 1.41.0 sends a public key, a time and a signature of the time with every request. The SuperLink
takes the whole request into memory, from any sender, before checking these headers. The gate checks the headers
before reading a byte of content.
"""

import binascii
import contextlib
import datetime
import sqlite3
import time
from base64 import b64decode
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
"""The headers, as Flower 1.41.0 names them."""

_EARLIEST, _LATEST = -5.0, 305.0
"""Seconds from the future to the past for a signed time, the same as in Flower's SuperLink."""

_REGISTERED = "SELECT public_key FROM node WHERE status != 'unregistered' AND public_key IS NOT NULL"
"""The query of Flower's SuperLink, in `get_node_id_by_public_key` of the LinkState."""

_FRESH, _SOON = 1.0, 0.05
"""Seconds until the keys are read again, and until then for an unknown key, which may be registered by now.

Strangers cause at most 20 reads a second.
"""

_WAIT = 0.2  # seconds for a database that is being written


class RegisteredNodes:
    """The public keys of a SuperLink's registered SuperNodes.

    Args:
        database: The SuperLink's database, read and never written.
    """

    def __init__(self, database: Path) -> None:
        self._address = f"file:{quote(str(database.absolute()))}?mode=ro"
        self._keys: frozenset[bytes] | None = None
        self._read_at = -_FRESH

    def has(self, key: bytes | None) -> bool | None:
        """Returns True for a registered key, PEM; None before the first reading of the database."""
        age = time.monotonic() - self._read_at
        if age >= _FRESH or (age >= _SOON and (self._keys is None or key not in self._keys)):
            with contextlib.suppress(sqlite3.Error):  # the SuperLink starts, or writes: the keys known stay known
                self._keys = self._read()
            self._read_at = time.monotonic()
        return None if self._keys is None else key in self._keys

    def _read(self) -> frozenset[bytes]:
        connection = sqlite3.connect(self._address, uri=True, timeout=_WAIT)
        try:
            return frozenset(bytes(key) for (key,) in connection.execute(_REGISTERED))
        finally:
            connection.close()


def claimed_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Returns the public key in a request's headers; None without a key, or with several."""
    return _decode(_only(headers, PUBLIC_KEY))


def is_signed(key: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Returns True where the headers of a request hold a fresh time and a good signature of the time.

    Args:
        key: A registered public key, PEM.
        headers: Of the request.
    """
    from cryptography.exceptions import InvalidSignature

    headers_read = list(headers)
    signature, timestamp = _decode(_only(headers_read, SIGNATURE)), _only(headers_read, TIMESTAMP)
    if signature is None or timestamp is None or not _is_fresh(timestamp):
        return False
    verify = _verifier(key)
    try:
        verify(signature, timestamp)
    except InvalidSignature:
        return False
    return True


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Returns the value of a header; None for two of a name, since gate and SuperLink might read different values."""
    values = [value for header, value in headers if header.lower() == name]
    return values[0] if len(values) == 1 else None


def _decode(value: bytes | None) -> bytes | None:
    try:
        return None if value is None else b64decode(value, validate=True)
    except binascii.Error:
        return None


def _is_fresh(timestamp: bytes) -> bool:
    try:
        signed_at = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - signed_at).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no time, or one without a zone
        return False
    return _EARLIEST < age < _LATEST


@lru_cache(maxsize=4096)
def _verifier(key: bytes) -> Any:
    """Returns the check of Flower's signatures by a key."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public: Any = serialization.load_pem_public_key(key)
    rule = ec.ECDSA(hashes.SHA256())
    return lambda signature, message: public.verify(signature, message, rule)
