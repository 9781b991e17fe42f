"""A secret in shares, of which a threshold gives it back and fewer say nothing (Shamir 1979, "How to share a secret").

>>> points = (1, 2, 3, 4)
>>> shares = shares_of(bytes(31) + b"k", threshold=3, points=points)
>>> secret_from({point: shares[point] for point in (4, 1, 3)})[-1:]
b'k'

A secret is 32 bytes, a number below 2^256. It is the value at 0 of a polynomial of degree threshold - 1 whose other
coefficients are uniform in the field of 2^256 + 297, the least prime above 2^256; a share is the value at its point.
Fewer than the threshold are uniform and independent of the secret, whatever the computing power of whoever holds them.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

from fulcrum.errors import ExchangeError, ParameterError

PRIME = 2**256 + 297
"""The field."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def shares_of(secret: bytes, *, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Returns the share at every point, from fresh random coefficients.

    Args:
        secret: 32 bytes.
        threshold: How many shares give the secret back.
        points: Whole numbers above 0, each once; at least as many as the threshold.
    """
    if len(secret) != SECRET_BYTES:
        raise ParameterError("mask.secret-length", expected=SECRET_BYTES, bytes=len(secret))
    if not 1 <= threshold <= len(points) == len(set(points)) or not all(0 < point < PRIME for point in points):
        raise ParameterError("mask.share-points", threshold=threshold, points=len(points))
    drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    values = values_at([int.from_bytes(secret, "big"), *drawn], points)
    return {point: value.to_bytes(SHARE_BYTES, "big") for point, value in zip(points, values, strict=True)}


def secret_from(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret that these shares give, all of them used; raises `ExchangeError` where they give none."""
    values = [int.from_bytes(share, "big") for share in shares.values()]
    if not values or any(len(share) != SHARE_BYTES for share in shares.values()) or max(values) >= PRIME:
        raise ExchangeError("mask.shares-malformed")
    found = value_at_zero(tuple(shares), values)
    if found >= 2 ** (8 * SECRET_BYTES):
        raise ExchangeError("mask.shares-not-of-one-secret")
    return found.to_bytes(SECRET_BYTES, "big")


def values_at(coefficients: Sequence[int], points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Returns a polynomial's values, its coefficients given from that of the constant on."""
    downwards, values = coefficients[::-1], []
    for point in points:
        value = 0
        for coefficient in downwards:
            value = value * point + coefficient  # reduced once, at the end: points are small, and so it grows slowly
        values.append(value % prime)
    return values


def value_at_zero(points: Sequence[int], values: Sequence[int], prime: int = PRIME) -> int:
    """Returns the value at 0 of the polynomial of least degree through these points."""
    return sum(map(int.__mul__, _factors(tuple(points), prime), values)) % prime


@lru_cache(maxsize=256)
def _factors(points: tuple[int, ...], prime: int) -> tuple[int, ...]:
    """What each value is multiplied by (Lagrange). Members who lost the same holders share one computation."""
    product = math.prod(points)
    below = [point * math.prod([other - point for other in points if other != point]) for point in points]
    return tuple(product * inverse % prime for inverse in _inverses(below, prime))


def _inverses(numbers: Sequence[int], prime: int) -> list[int]:
    """Returns the inverse of every number, from that of their product (Montgomery)."""
    before = list(accumulate(numbers, lambda one, other: one * other % prime, initial=1))
    inverse, found = pow(before.pop(), -1, prime), []
    for number, those_before in zip(reversed(numbers), reversed(before), strict=True):
        found.append(inverse * those_before % prime)
        inverse = inverse * number % prime
    return found[::-1]
