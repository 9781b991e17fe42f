"""Which SuperNode a request comes from: by the headers that Flower signs, against the keys that are registered.

Flower 1.41.0 sends with every request of a SuperNode its public key, a time, and a signature of that time. Its
SuperLink checks them after it has taken the whole request into memory, whoever sent it. The same three headers are
checked here before a byte of the request's content is read.
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
"""Seconds by which the time may lie in the future or in the past, as Flower's SuperLink has them."""

_REGISTERED = "SELECT public_key FROM node WHERE status != 'unregistered' AND public_key IS NOT NULL"
"""What Flower's SuperLink goes by: `get_node_id_by_public_key` of its LinkState."""

_FRESH, _SOON = 1.0, 0.05
"""Seconds after which the keys are read again, and sooner for a key that is not known: it may be registered by now.

Strangers can have the database read 20 times a second, and no more often.
"""

_WAIT = 0.2  # seconds for a database that is being written


class RegisteredNodes:
    """The public keys of SuperNodes that are registered at a SuperLink.

    Args:
        database: The SuperLink's database, which is read and never written.
    """

    def __init__(self, database: Path) -> None:
        self._address = f"file:{quote(str(database.absolute()))}?mode=ro"
        self._keys: frozenset[bytes] | None = None
        self._read_at = -_FRESH

    def has(self, key: bytes | None) -> bool | None:
        """Returns whether a key, PEM, is registered; None where the database could not be read yet."""
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
    """Returns the public key that a request claims to come from; None where it claims none, or several."""
    return _decoded(_only(headers, PUBLIC_KEY))


def is_signed(key: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Returns whether the headers of a request hold a fresh time that a key signed.

    Args:
        key: A registered public key, PEM.
        headers: Of the request.
    """
    from cryptography.exceptions import InvalidSignature

    known = list(headers)
    signature, timestamp = _decoded(_only(known, SIGNATURE)), _only(known, TIMESTAMP)
    if signature is None or timestamp is None or not _is_fresh(timestamp):
        return False
    verify = _verifier(key)
    try:
        verify(signature, timestamp)
    except InvalidSignature:
        return False
    return True


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Returns the value of a header that is there once. Of two, the SuperLink might go by the other."""
    found = [value for header, value in headers if header.lower() == name]
    return found[0] if len(found) == 1 else None


def _decoded(value: bytes | None) -> bytes | None:
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
    """Returns the check of signatures by a key, as Flower signs."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public: Any = serialization.load_pem_public_key(key)
    rule = ec.ECDSA(hashes.SHA256())
    return lambda signature, message: public.verify(signature, message, rule)
