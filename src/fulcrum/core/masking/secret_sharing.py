"""Secret sharing: any `threshold` shares restore a secret, fewer reveal nothing (Shamir 1979, "How to share a secret").

>>> shares = shares_of(bytes(31) + b"k", threshold=3, points=(1, 2, 3, 4))
>>> [len(share) for share in shares.values()]
[33, 33, 33, 33]

A secret is 32 bytes, a number below 2^256: the value at 0 of a polynomial of degree threshold - 1. The further
coefficients are uniform in the field of 2^256 + 297, the least prime above 2^256. A share is the value at its point.

Guarantee: fewer shares than the threshold are uniform and independent of the secret, for an adversary of unlimited
computing power.

The server restores secrets (`fulcrum.aggregation.secret_recovery`), members never do.
"""

import secrets
from collections.abc import Sequence

from fulcrum.errors import ParameterError

PRIME = 2**256 + 297
"""The order of the field: the least prime above 2^256, so that every secret is a number of the field."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def shares_of(secret: bytes, *, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """Returns the share at every point, from fresh random coefficients.

    Args:
        secret: 32 bytes.
        threshold: The number of shares that restore the secret.
        points: Distinct whole numbers above 0, at least as many as the threshold.
    """
    if len(secret) != SECRET_BYTES:
        raise ParameterError("mask.secret-length", expected=SECRET_BYTES, bytes=len(secret))
    # The share at 0 would be the secret itself.
    if not 1 <= threshold <= len(points) == len(set(points)) or not all(0 < point < PRIME for point in points):
        raise ParameterError("mask.share-points", threshold=threshold, points=len(points))
    # From the operating system: with predictable coefficients a single share would reveal the secret.
    drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    values = values_at([int.from_bytes(secret, "big"), *drawn], points)
    return {point: value.to_bytes(SHARE_BYTES, "big") for point, value in zip(points, values, strict=True)}


def values_at(coefficients: Sequence[int], points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Returns the values of a polynomial at all points; the first coefficient is the constant."""
    downwards, values = coefficients[::-1], []
    for point in points:
        value = 0
        for coefficient in downwards:
            value = value * point + coefficient  # reduced once, at the end: points are small
        values.append(value % prime)
    return values
