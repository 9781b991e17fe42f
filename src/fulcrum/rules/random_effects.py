"""Regional sums pooled into one estimate, by how much regions differ and how noisy each of them is.

>>> sums = np.array([[1, 2, 0, -1], [1.2, 1.5, 0.3, -0.8], [3, 0, 1, 0.0]])
>>> found = pool_sums(sums, variance=np.array([0.01, 0.05, 0.2]), shares=np.array([0.6, 0.3, 0.1]))
>>> found.estimate.round(4).tolist(), round(float(found.heterogeneity), 5)
([1.2263, 1.686, 0.1716, -0.8576], 0.26452)

The model is that of a random-effects meta-analysis: region r has y_r = g + b_r + noise, where b_r is what makes the
region differ, of variance t² in every coordinate, and the noise has a variance v_r that is known because the server
knows the plan. t² is estimated by the method of DerSimonian and Laird 1986, "Meta-analysis in clinical trials", pooled
over all coordinates. Given t², each region's own effect is shrunk toward the common mean, and the effects are added up
by the shares that regions ought to have: with t² = 0 that pools by precision, the least noise; with t² large it is the
sum by shares, which has no bias.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray

_AT_ONCE = 1 << 20
"""Numbers worked on together: what all regions say of some coordinates, few enough to stay near the processor."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledEstimate:
    """One estimate from the sums of several regions; the last axis, where there is one, is that of arms.

    Attributes:
        estimate: By coordinate.
        variance: Of the noise in each coordinate of the estimate, given `coefficients`.
        heterogeneity: t², how much regions differ in a coordinate.
        coefficients: By region: the estimate is the sum of them times the regions' values. They add up to 1.
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
        values: By region and coordinate, and by arm where there are several: what each region says of the whole.
        variance: By region (and arm): of the noise in each coordinate, the values scaled; above 0.
        shares: By region (and arm): what it ought to count for; they add up to 1.
        scale: By region (and arm): what its values are multiplied by before anything else; 1 by default.
        free: How many of the coordinates are free; all by default, or all but one a row where there are classes.
        classes: So many coordinates after each other are one row, of which only differences count, as in a softmax
            head: what is common to a row is projected out.
        exact: Whether to take the shares as they are: no pooling, no bias.
        least: (By arm) how much of its share every region counts for at least, from 0 to 1: coefficients are mixed with
            the shares as far as that needs. The estimate stays linear, and its variance known.
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
        kept = heterogeneity * weight  # t² / (t² + v): how far a region's own effect is believed
        coefficients = shares * kept + (shares * (1 - kept)).sum(axis=0) * weight / weight.sum(axis=0)
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
    """Returns the smallest part of `shares` that must be mixed in so that none counts for less than `least` of its own.

    Both add up to 1 over the first axis.

    >>> round(float(mixing_share(np.array([0.9, 0.1]), np.array([0.5, 0.5]), 0.5)), 6)
    0.375
    """
    lacking = least * shares - counted
    short = lacking > 0
    part = np.divide(lacking, shares - counted, out=np.zeros_like(lacking), where=short)
    return np.asarray(np.minimum(part.max(axis=0), 1.0))


def mix_shares(counted: FloatArray, shares: FloatArray, part: FloatArray | float) -> FloatArray:
    """Returns what is counted with a part of the shares mixed in."""
    return np.asarray((1 - part) * counted + part * shares) if np.any(part) else counted


def without_common(values: FloatArray, classes: int) -> FloatArray:
    """Returns rows of so many coordinates after each other without what is common to all of a row."""
    common = _row_sums(values[None], classes)[0] / classes
    return np.asarray(values - np.repeat(common, classes, axis=0))


def _pieces(values: Sequence[np.ndarray[Any, Any]] | FloatArray, classes: int | None) -> Iterator[slice]:
    """Yields runs of coordinates, of whole rows, short enough to work on what all regions say of them."""
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
    """Returns Q: how far regions are from their mean, in units of their noise, over all coordinates."""
    weight = 1 / variance
    share, spread = weight / weight.sum(axis=0), np.zeros(variance.shape)
    room: FloatArray = np.empty(0)
    for piece in _pieces(values, classes):
        shape = (len(values), piece.stop - piece.start, *values[0].shape[1:])
        room = room if room.size else np.empty(shape)  # the first is the longest
        apart = room[:, : shape[1]]
        for region, factor, found in zip(values, scale, apart, strict=True):
            np.multiply(region[piece], factor, out=found)
        apart -= np.einsum("r...,rc...->c...", share, apart)
        spread += np.einsum("rc...,rc...->r...", apart, apart)
        if classes is not None:
            common = _row_sums(apart, classes)
            spread -= np.einsum("rc...,rc...->r...", common, common) / classes
    return np.asarray((weight * spread).sum(axis=0))


def _row_sums(values: FloatArray, classes: int) -> FloatArray:
    """Returns by region the sums of rows, one class at a time: NumPy is slow to add up many short rows."""
    total = values[:, ::classes].copy()
    for place in range(1, classes):
        total += values[:, place::classes]
    return total


def _heterogeneity(spread: FloatArray, variance: FloatArray, free: int) -> FloatArray:
    """Returns t² by the method of moments: what the spread of the regions has beyond their noise."""
    weight = 1 / variance
    total = weight.sum(axis=0)
    excess = np.maximum(spread - free * (len(variance) - 1), 0)
    return np.asarray(excess / (free * (total - (weight**2).sum(axis=0) / total)))
