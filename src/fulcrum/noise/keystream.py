"""Random words that nobody else can predict: the keystream of AES-256 in counter mode, under a key nobody holds.

>>> Keystream._for_test(bytes(32)).take(4).hex()
'dc95c078'
>>> Keystream()
<Keystream, key withheld>

The key comes from the operating system and is handed to the cipher; no attribute holds it. Whoever tells the words from
random ones breaks AES-256, up to the collisions that a block cipher lacks: under one key at most 2^20 blocks are drawn,
so that this adds at most 2^-89 to a distinguisher's advantage (a permutation against a function, q^2 / 2^129).

Sharp edges, worst first:

- A virtual machine restored twice from one snapshot of its memory draws the same words twice, which nothing here can
  see: make the Keystream after the restore.
- Words drawn before a fork are in the memory of both processes: draw after it.
- Python cannot erase memory: a core dump may hold the key in use, and earlier ones until their memory is reused.
"""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import NoReturn, Self

import numpy as np
import numpy.typing as npt

from fulcrum.errors import MissingExtraError, ParameterError

_KEY_BYTES, _BLOCK_BYTES = 32, 16
_BYTES_A_KEY = 2**24
_ZEROS = memoryview(bytes(2**18))  # what is encrypted: a keystream is the encryption of zeros


class Keystream:
    """Uniform random bytes and words, none of them ever drawn twice.

    Guarantees, for as long as AES-256 stands:

    - every byte is uniform and independent of every other, whichever method, thread or process drew it;
    - two Keystreams have keys of their own, 256 bits each from `os.urandom`;
    - after a fork the child draws under a new key, and so do its children (`os.register_at_fork`, and the process
      number compared on every call where that is missing);
    - a key is replaced after 16 MiB by another from `os.urandom`, which tells nothing of it;
    - a Keystream cannot be pickled or copied, since both copies would draw the same words.

    One Keystream may be shared between threads.
    """

    __slots__ = ("__weakref__", "_encryptor", "_fresh_key", "_left", "_lock", "_process")

    def __init__(self) -> None:
        self._begin(_key_from_system, counter=bytes(_BLOCK_BYTES))

    @classmethod
    def _for_test(cls, key: bytes, counter: bytes = bytes(_BLOCK_BYTES)) -> Self:
        """A stream that anyone can repeat, so that it protects nobody: for tests and doctests alone.

        After 16 MiB the next key is the SHA-256 of the last, so that long tests repeat as well; after a fork it is
        fresh, as everywhere.
        """
        if len(key) != _KEY_BYTES or len(counter) != _BLOCK_BYTES:
            raise ParameterError(f"key and counter must be 32 and 16 bytes, got {len(key)} and {len(counter)}")
        stream = cls.__new__(cls)
        stream._begin(_chain_from(key), counter)
        return stream

    def _begin(self, fresh_key: Callable[[], bytes], counter: bytes) -> None:
        self._fresh_key = fresh_key
        self._lock = threading.Lock()
        self._rekey(counter)
        _ALIVE.add(self)

    def _rekey(self, counter: bytes = bytes(_BLOCK_BYTES)) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise MissingExtraError(
                "secure noise needs the package cryptography. Run: pip install 'fulcrum-dp[secure]'"
            ) from None
        # The counter may start anywhere, zero included: a key that is never used twice needs no nonce.
        self._encryptor = Cipher(algorithms.AES(self._fresh_key()), modes.CTR(counter)).encryptor()
        self._left = _BYTES_A_KEY
        self._process = os.getpid()

    def _forked(self) -> None:
        """Run in the child alone, before anything else there can draw."""
        self._lock = threading.Lock()  # another thread may have held the old one, and does not exist here
        self._fresh_key = _key_from_system
        self._rekey()

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes.

        Raises:
            ParameterError: `count` is negative or no integer.
        """
        count = _checked(count)
        return self._filled(count)[:count].tobytes()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Returns the next `count` words of 64 bits, uniform over all 2^64 values.

        A word is eight bytes of the stream, least significant first, on every machine.

        Raises:
            ParameterError: `count` is negative or no integer.
        """
        count = _checked(count)
        return self._filled(8 * count)[: 8 * count].view("<u8").astype(np.uint64, copy=False)

    def _filled(self, count: int) -> npt.NDArray[np.uint8]:
        """An array whose first `count` bytes are the next of the stream."""
        # A block more than asked for: the cipher's interface may demand that room, and leaves it untouched.
        array = np.empty(count + _BLOCK_BYTES, dtype=np.uint8)
        room = array.data
        if self._process != os.getpid():  # before the lock, which a fork may have left held
            self._forked()
        with self._lock:
            done = 0
            while done < count:
                if self._left == 0:
                    self._rekey()
                step = min(count - done, self._left, len(_ZEROS))
                self._encryptor.update_into(_ZEROS[:step], room[done : done + step + _BLOCK_BYTES])
                done += step
                self._left -= step
        return array

    def __repr__(self) -> str:
        return "<Keystream, key withheld>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Keystream cannot be pickled or copied: both copies would draw the same words")


def _key_from_system() -> bytes:
    return os.urandom(_KEY_BYTES)


def _chain_from(key: bytes) -> Callable[[], bytes]:
    """The given key, then the SHA-256 of the key before, for tests."""

    def next_key() -> bytes:
        nonlocal key
        key, this = hashlib.sha256(key).digest(), key
        return this

    return next_key


def _checked(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise ParameterError(f"count must be an integer of at least 0, got {count!r}")
    return int(count)


_ALIVE: "weakref.WeakSet[Keystream]" = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for stream in list(_ALIVE):
        stream._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
