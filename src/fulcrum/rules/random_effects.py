"""Pools regional sums into a single estimate, by the differences between regions and the noise of every region.

>>> sums = np.array([[1, 2, 0, -1], [1.2, 1.5, 0.3, -0.8], [3, 0, 1, 0.0]])
>>> pooled = pool_sums(sums, variance=np.array([0.01, 0.05, 0.2]), shares=np.array([0.6, 0.3, 0.1]))
>>> pooled.estimate.round(4).tolist(), round(float(pooled.heterogeneity), 5)
([1.2263, 1.686, 0.1716, -0.8576], 0.26452)

The statistical model is a random-effects meta-analysis: region r has y_r = g + b_r + noise. The effect b_r of the
region has variance t² in every coordinate; the noise has variance v_r, known to the server from the plan. t² is
estimated by the method of DerSimonian and Laird 1986, "Meta-analysis in clinical trials", pooled over all coordinates.
For a t², every region's effect is shrunk toward the common mean, and the effects are added up by the target shares of
regions: t² = 0 gives pooling by precision, with the least noise; a large t² gives the sum by shares, without bias.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray

_AT_ONCE = 1 << 20
"""Numbers of a piece: the values of all regions for some coordinates, few enough for the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledEstimate:
    """An estimate from the sums of several regions; a further last axis, if present, has the variants.

    Attributes:
        estimate: The estimate by coordinate.
        variance: The variance of the noise in a coordinate of the estimate, for the `coefficients`.
        heterogeneity: t², the variance of regional effects in a coordinate.
        coefficients: By region the factor of the region's values in the estimate; the factors add up to 1.
    """

    estimate: FloatArray
    variance: FloatArray
    heterogeneity: FloatArray
    coefficients: FloatArray


def pool_sums(
    values: Sequence[np.ndarray[Any, Any]] | FloatArray,
    *,
    variance: FloatArray,
    shares: FloatArray,
    scale: FloatArray | None = None,
    free: int | None = None,
    classes: int | None = None,
    exact: bool = False,
    least: FloatArray | float = 0.0,
) -> PooledEstimate:
    """Returns the pooled estimate of regional means; time and memory are linear in regions times coordinates.

    Args:
        values: By region and coordinate, and by variant if there are several: the region's estimate of the whole.
        variance: By region (and variant): the variance of the noise in a coordinate of the scaled values; above 0.
        shares: By region (and variant): the target share in the estimate; shares add up to 1.
        scale: By region (and variant): the factor of the values before pooling; 1 by default.
        free: The number of free coordinates; by default all, or with `classes` all but 1 in a row.
        classes: The length of a row of coordinates in which only differences count, as in a softmax head: the mean of a
            row is projected out.
        exact: True takes the shares as coefficients: no pooling, no bias.
        least: (By variant) the least part of a region's share that the coefficient must have, from 0 to 1: coefficients
            are mixed with the shares as far as necessary. The estimate stays linear, with a known variance.
    """
    scale = np.ones(variance.shape) if scale is None else scale
    if free is None:
        free = len(values[0]) if classes is None else len(values[0]) // classes * (classes - 1)
    heterogeneity = np.zeros(variance.shape[1:])
    coefficients = np.broadcast_to(shares, variance.shape).astype(np.float64)
    if not exact and len(values) > 1:
        spread = _spread(values, scale, variance, classes)
        heterogeneity = _heterogeneity(spread, variance, free)
        weight = 1 / (variance + heterogeneity)
        own = heterogeneity * weight  # t² / (t² + v): the part of a region's own effect that survives the shrinking
        coefficients = shares * own + (shares * (1 - own)).sum(axis=0) * weight / weight.sum(axis=0)
        coefficients = mix_shares(coefficients, shares, mixing_share(coefficients, shares, least))
    estimate = np.zeros(np.shape(values[0]))
    for piece in _pieces(values, classes):
        for region, factor in zip(values, coefficients * scale, strict=True):
            estimate[piece] += region[piece] * factor
    return PooledEstimate(
        estimate=estimate if classes is None else without_common(estimate, classes),
        variance=np.asarray((coefficients**2 * variance).sum(axis=0)),
        heterogeneity=heterogeneity,
        coefficients=coefficients,
    )


def mixing_share(counted: FloatArray, shares: FloatArray, least: FloatArray | float) -> FloatArray:
    """Returns the smallest part of `shares` to mix in for every coefficient to be at least `least` times its share.

    `counted` and `shares` both add up to 1 over the first axis.

    >>> round(float(mixing_share(np.array([0.9, 0.1]), np.array([0.5, 0.5]), 0.5)), 6)
    0.375
    """
    lacking = least * shares - counted
    short = lacking > 0
    part = np.divide(lacking, shares - counted, out=np.zeros_like(lacking), where=short)
    return np.asarray(np.minimum(part.max(axis=0), 1.0))


def mix_shares(counted: FloatArray, shares: FloatArray, part: FloatArray | float) -> FloatArray:
    """Returns the coefficients `counted` with a part of the shares mixed in."""
    return np.asarray((1 - part) * counted + part * shares) if np.any(part) else counted


def without_common(values: FloatArray, classes: int) -> FloatArray:
    """Returns values without the mean of every row, a row being `classes` consecutive coordinates."""
    common = _row_sums(values[None], classes)[0] / classes
    return np.asarray(values - np.repeat(common, classes, axis=0))


def _pieces(values: Sequence[np.ndarray[Any, Any]] | FloatArray, classes: int | None) -> Iterator[slice]:
    """Yields runs of coordinates, in whole rows, of about `_AT_ONCE` numbers over all regions."""
    together = classes or 1
    length = max(1, _AT_ONCE // (len(values) * values[0][:1].size * together)) * together
    for start in range(0, len(values[0]), length):
        yield slice(start, min(start + length, len(values[0])))


def _spread(
    values: Sequence[np.ndarray[Any, Any]] | FloatArray,
    scale: FloatArray,
    variance: FloatArray,
    classes: int | None,
) -> FloatArray:
    """Returns Cochran's Q: squared distances of regions from the mean, in units of noise, over all coordinates."""
    weight = 1 / variance
    share, spread = weight / weight.sum(axis=0), np.zeros(variance.shape)
    room: FloatArray = np.empty(0)
    for piece in _pieces(values, classes):
        shape = (len(values), piece.stop - piece.start, *values[0].shape[1:])
        room = room if room.size else np.empty(shape)  # the first piece is the longest
        apart = room[:, : shape[1]]
        for region, factor, scaled in zip(values, scale, apart, strict=True):
            np.multiply(region[piece], factor, out=scaled)
        apart -= np.einsum("r...,rc...->c...", share, apart)
        spread += np.einsum("rc...,rc...->r...", apart, apart)
        if classes is not None:
            common = _row_sums(apart, classes)
            spread -= np.einsum("rc...,rc...->r...", common, common) / classes
    return np.asarray((weight * spread).sum(axis=0))


def _row_sums(values: FloatArray, classes: int) -> FloatArray:
    """Returns by region the sums of rows, adding class by class: NumPy is slow to add up many short rows."""
    total = values[:, ::classes].copy()
    for place in range(1, classes):
        total += values[:, place::classes]
    return total


def _heterogeneity(spread: FloatArray, variance: FloatArray, free: int) -> FloatArray:
    """Returns t² by the method of moments: the excess of the spread of regions over the noise."""
    weight = 1 / variance
    total = weight.sum(axis=0)
    excess = np.maximum(spread - free * (len(variance) - 1), 0)
    return np.asarray(excess / (free * (total - (weight**2).sum(axis=0) / total)))
