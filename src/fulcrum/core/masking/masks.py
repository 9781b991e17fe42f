"""What hides a vector: keys that two members agree on, and the masks that are made of them, modulo a power of two.

>>> import numpy as np
>>> vector = np.array([5, 2**64 - 3], dtype=np.uint64)
>>> hidden = vector.copy()
>>> add_mask(hidden, bytes(32)); hidden.tolist()
[9910523521560253921, 9736928157321283754]
>>> add_mask(hidden, bytes(32), negative=True); bool((hidden == vector).all())
True

A pair's secret is X25519 of one's private and the other's public key. Every key is HKDF-SHA256 of a secret with an
`info` that names format, purpose, plan, group, round, attempt, model and whoever it is for: under any other of these it
is another key. A mask is the keystream of AES-256 in counter mode under such a key, used for one mask alone, read as
integers of the group's width. Whoever tells it from uniform integers breaks X25519, HKDF or AES-256, up to the
collisions that a block cipher lacks: q^2 / 2^129 for q blocks, 2^-84 for a mask of 10^7 parameters.
"""

import secrets
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.core.noise.keystream import repeated_bytes
from fulcrum.errors import ExchangeError
from fulcrum.primitives import Primitives, primitives

KEY_BYTES = 32

_CHUNK = 2**17  # bytes of a mask at a time: they stay in the processor's cache until they are added
_NONCE = bytes(12)  # every key seals one message, so one nonce is enough

Residues: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
"""Integers modulo 2^32 or 2^64, whose sums wrap as they should."""


def new_private_key() -> bytes:
    """Returns a fresh private X25519 key, raw: 256 bits from the operating system, as RFC 7748 makes one."""
    return secrets.token_bytes(KEY_BYTES)


def new_seed() -> bytes:
    """Returns a fresh seed of a silo's own mask: 256 bits from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def loaded_key(private: bytes) -> Any:
    """Returns a private key ready for use, which takes longer than to use it: once for all of a round's pairs."""
    return _suite().x25519.X25519PrivateKey.from_private_bytes(private)


def public_half(private: bytes) -> bytes:
    """Returns the public key of a private one, both raw."""
    return bytes(loaded_key(private).public_key().public_bytes_raw())


def agreed(private: Any, public: bytes, whose: str) -> bytes:
    """Returns the secret of a pair, the same from either side.

    Args:
        private: One's own key, as `loaded_key` returns it.
        public: The other's, raw.
        whose: The other's name, for messages.
    """
    try:
        theirs = _suite().x25519.X25519PublicKey.from_public_bytes(public)
        return bytes(private.exchange(theirs))
    except ValueError:
        raise ExchangeError("mask.key-invalid", silo=whose) from None


def derived_key(secret: bytes, info: bytes) -> bytes:
    """Returns the key that a secret gives for one purpose (HKDF-SHA256)."""
    suite = _suite()
    return bytes(suite.hkdf(suite.sha256(), KEY_BYTES, None, info).derive(secret))


def sealed(key: bytes, plain: bytes, about: bytes) -> bytes:
    """Returns a text encrypted under a key that seals nothing else (AES-256-GCM), bound to what it is about."""
    return bytes(_suite().aes_gcm(key).encrypt(_NONCE, plain, about))


def opened(key: bytes, sealed_text: bytes, about: bytes) -> bytes | None:
    """Returns what was sealed; None where it is not what the holder of the key sealed about this."""
    suite = _suite()
    try:
        return bytes(suite.aes_gcm(key).decrypt(_NONCE, sealed_text, about))
    except (suite.invalid_tag, ValueError):
        return None


def add_mask(vector: Residues, key: bytes, *, negative: bool = False) -> None:
    """Adds the mask of a key to a vector in place, or takes it off again."""
    draw = repeated_bytes(key)
    word = vector.dtype.newbyteorder("<")
    step = _CHUNK // word.itemsize
    combine = np.subtract if negative else np.add
    for start in range(0, len(vector), step):
        part = vector[start : start + step]
        combine(part, draw(part.nbytes).view(word), out=part)


def _suite() -> Primitives:
    return primitives("masked sums need")
