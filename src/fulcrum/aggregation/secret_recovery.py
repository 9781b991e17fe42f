"""The recovery of a secret from shares, at the server: the value at 0 of the polynomial through the shares (Lagrange).

>>> from fulcrum.core.masking.secret_sharing import shares_of
>>> shares = shares_of(bytes(31) + b"k", threshold=3, points=(1, 2, 3, 4))
>>> secret_from({point: shares[point] for point in (4, 1, 3)})[-1:]
b'k'
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from fulcrum.core.masking.secret_sharing import PRIME, SECRET_BYTES, SHARE_BYTES
from fulcrum.errors import ExchangeError


def secret_from(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret of Shamir shares, `SECRET_BYTES` long: the value at 0 of the polynomial through all shares.

    A value that is too large for a secret shows that the shares are not of one secret; a caller with fewer shares than
    the threshold may also get a wrong secret without an error, so a caller counts the shares and checks the secret.

    Args:
        shares: Shares by the point of each share, a number above 0.

    Raises:
        ExchangeError: There is no share, a share is malformed, or the shares are not of one secret.
    """
    values = [int.from_bytes(share, "big") for share in shares.values()]
    if not values or any(len(share) != SHARE_BYTES for share in shares.values()) or max(values) >= PRIME:
        raise ExchangeError("mask.shares-malformed")
    secret = value_at_zero(tuple(shares), values)
    if secret >= 2 ** (8 * SECRET_BYTES):
        raise ExchangeError("mask.shares-not-of-one-secret")
    return secret.to_bytes(SECRET_BYTES, "big")


def value_at_zero(points: Sequence[int], values: Sequence[int], prime: int = PRIME) -> int:
    """Returns the value at 0 of the polynomial of least degree through the points."""
    return sum(map(int.__mul__, _factors(tuple(points), prime), values)) % prime


@lru_cache(maxsize=256)
def _factors(points: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """Returns the Lagrange factors of the values; members with the same missing holders share the computation."""
    product = math.prod(points)
    below = [point * math.prod([other - point for other in points if other != point]) for point in points]
    return tuple(product * inverse % prime for inverse in _inverses(below, prime))


def _inverses(numbers: Sequence[int], prime: int) -> list[int]:
    """Returns the inverses of all numbers by a single inversion, of the product (Montgomery)."""
    before = list(accumulate(numbers, lambda left, right: left * right % prime, initial=1))
    inverse, inverses = pow(before.pop(), -1, prime), []
    for number, product_before in zip(reversed(numbers), reversed(before), strict=True):
        inverses.append(inverse * product_before % prime)
        inverse = inverse * number % prime
    return inverses[::-1]
