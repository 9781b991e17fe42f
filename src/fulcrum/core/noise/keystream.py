"""Unpredictable random bytes: the keystream of AES-256 in counter mode, with a fresh key for every draw.

>>> len(random_bytes(5))
5
>>> repeated_bytes(bytes(32))(4).tobytes().hex()
'dc95c078'

A draw takes a key of 256 bits from the operating system, encrypts zeros under the key and forgets the key. No state
outlives a draw: two draws share no key, in any object, thread or process, a fork included. An adversary that
distinguishes the bytes from random bytes breaks AES-256, up to the collisions that a block cipher lacks: at most 2^20
blocks are drawn under a key, which adds at most 2^-89 to a distinguisher's advantage (a permutation against a function,
q^2 / 2^129).

Why not `os.urandom` for every byte: at 10^6 parameters, with numba, the noise of a release then takes 42 ms and
not 10, and the release with its entry in the ledger and its seal 99 ms and not 57.

Sharp edges, worst first:

- A virtual machine restored twice from the same snapshot of memory draws the same bytes twice if its operating system
  does. No code here can detect the repetition.
- Python cannot erase memory: a core dump may hold keys until their memory is used again.
"""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.primitives import primitives

Bytes: TypeAlias = npt.NDArray[np.uint8]

Source: TypeAlias = Callable[[int], Bytes]
"""A function that returns a number of bytes, uniform and independent of all earlier bytes."""

_KEY_BYTES, _BLOCK_BYTES = 32, 16
_BYTES_A_KEY = 2**24
_ZEROS = memoryview(bytes(2**18))  # the plain text: a keystream is the encryption of zeros


def random_bytes(count: int) -> Bytes:
    """Returns fresh unpredictable bytes: a `Source`, as long as AES-256 stands."""
    drawn = np.empty(count + _BLOCK_BYTES, dtype=np.uint8)
    for start in range(0, count, _BYTES_A_KEY):
        _fill(drawn[start:], min(count - start, _BYTES_A_KEY), _encryptor(os.urandom(_KEY_BYTES)))
    return drawn[:count]


def repeated_bytes(key: bytes, counter: bytes = bytes(_BLOCK_BYTES)) -> Source:
    """Returns a source that every owner of the key can repeat: the source of masks, whose key two members share.

    Noise from a repeatable source protects nobody, and is for tests and doctests alone.
    """
    encryptor = _encryptor(key, counter)

    def draw(count: int) -> Bytes:
        drawn = np.empty(count + _BLOCK_BYTES, dtype=np.uint8)
        _fill(drawn, count, encryptor)
        return drawn[:count]

    return draw


def _fill(room: Bytes, count: int, encryptor: Any) -> None:
    """Writes the next `count` bytes of a keystream; the last block of `room` is required by the cipher and unused."""
    for start in range(0, count, len(_ZEROS)):
        step = min(count - start, len(_ZEROS))
        encryptor.update_into(_ZEROS[:step], room.data[start : start + step + _BLOCK_BYTES])


def _encryptor(key: bytes, counter: bytes = bytes(_BLOCK_BYTES)) -> Any:
    # The counter may start anywhere, zero included: a key that is never used twice needs no nonce.
    suite = primitives("secure noise needs")
    return suite.cipher(suite.aes_256(key), suite.counter_mode(counter)).encryptor()
