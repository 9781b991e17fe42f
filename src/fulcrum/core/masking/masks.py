"""Masks of vectors modulo a power of two, and the keys on which two members agree.

>>> import numpy as np
>>> vector = np.array([5, 2**64 - 3], dtype=np.uint64)
>>> hidden = vector.copy()
>>> add_mask(hidden, bytes(32)); hidden.tolist()
[9910523521560253921, 9736928157321283754]
>>> add_mask(hidden, bytes(32), negative=True); bool((hidden == vector).all())
True

The secret of a pair is X25519 of a member's private key and the neighbour's public key. Every key is HKDF-SHA256 of a
secret with an `info` that names format, purpose, plan, group, round, attempt, model and parties. A change of any part
of the `info` gives an independent key. A mask is the keystream of AES-256 in counter mode under a key that makes no
second mask, read as integers of the group's width.

An adversary that distinguishes a mask from uniform integers breaks X25519, HKDF or AES-256, up to the collisions that a
block cipher lacks: q^2 / 2^129 for q blocks, 2^-84 for a mask of 10^7 parameters.
"""

import secrets
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.core.noise.keystream import repeated_bytes
from fulcrum.errors import ExchangeError
from fulcrum.primitives import primitives

KEY_BYTES = 32

_CHUNK = 2**17  # bytes of a mask at a time: a chunk stays in the processor's cache until added
_NONCE = bytes(12)  # constant: a key of `seal` seals a single message, so no nonce is used twice under a key

Residues: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.uint64]
"""Integers modulo 2^32 or 2^64; sums wrap by intention."""


def new_private_key() -> bytes:
    """Returns a fresh private X25519 key, raw: 256 bits from the operating system, as in RFC 7748."""
    return secrets.token_bytes(KEY_BYTES)


def new_seed() -> bytes:
    """Returns a fresh seed of a silo's self-mask: 256 bits from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def loaded_key(private: bytes) -> Any:
    """Returns a private key in the form for `pair_secret`.

    Loading takes longer than the key agreement, so a caller loads a key once for all pairs of a round.
    """
    return _suite().x25519.X25519PrivateKey.from_private_bytes(private)


def public_half(private: bytes) -> bytes:
    """Returns the public key of a private key, both raw."""
    return bytes(loaded_key(private).public_key().public_bytes_raw())


def pair_secret(private: Any, public: bytes, whose: str) -> bytes:
    """Returns the secret of a pair of members, the same from both sides.

    Args:
        private: The member's own private key, from `loaded_key`.
        public: The neighbour's public key, raw.
        whose: The neighbour's name, for messages.

    Raises:
        ExchangeError: `public` is no X25519 key, or a key of low order, under which the secret would be public.
    """
    try:
        theirs = _suite().x25519.X25519PublicKey.from_public_bytes(public)
        # `exchange` refuses keys of low order, with which a member would make the secret, and so the mask, public.
        return bytes(private.exchange(theirs))
    except ValueError:
        raise ExchangeError("mask.key-invalid", silo=whose) from None


def derived_key(secret: bytes, info: bytes) -> bytes:
    """Returns the key that HKDF-SHA256 derives from a secret for the purpose `info`."""
    suite = _suite()
    # No salt: both sides must derive the key without a further message. `info` separates the purposes.
    return bytes(suite.hkdf(suite.sha256(), KEY_BYTES, None, info).derive(secret))


def seal(key: bytes, plain: bytes, about: bytes) -> bytes:
    """Returns `plain` encrypted with AES-256-GCM and bound to `about`. The key must seal no second text."""
    return bytes(_suite().aes_gcm(key).encrypt(_NONCE, plain, about))


def unseal(key: bytes, sealed_text: bytes, about: bytes) -> bytes | None:
    """Returns the plain text of a sealed text, or None if the key's owner sealed no such text about `about`."""
    suite = _suite()
    try:
        return bytes(suite.aes_gcm(key).decrypt(_NONCE, sealed_text, about))
    except (suite.invalid_tag, ValueError):
        return None


def add_mask(vector: Residues, key: bytes, *, negative: bool = False) -> None:
    """Adds the mask of a key to a vector in place, or subtracts the mask."""
    # In chunks: the mask of a large model is never whole in memory.
    draw = repeated_bytes(key)
    word = vector.dtype.newbyteorder("<")
    step = _CHUNK // word.itemsize
    combine = np.subtract if negative else np.add
    for start in range(0, len(vector), step):
        part = vector[start : start + step]
        combine(part, draw(part.nbytes).view(word), out=part)


def _suite() -> SimpleNamespace:
    return primitives("masked sums need")
