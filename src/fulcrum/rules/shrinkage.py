"""Shrinks an estimate with noise of known variance toward zero: empirical Bayes with a scale for every row.

>>> rows = np.array([[9.0, -9.0], [0.1, -0.1], [-0.2, 0.2]])
>>> shrink_rows(rows, variance=1.0, free=1).round(2).tolist()
[[8.93, -8.93], [0.01, -0.01], [-0.01, 0.01]]

A row has the coefficients of all classes for a single input. The prior of a row is a mixture of Gaussians of mean 0:
variances on a fixed grid of multiples of the noise variance, zero included, and weights by maximum likelihood over all
rows (EM). The posterior mean multiplies a row by a number in [0, 1]: near 1 for a row far above the noise, near 0 for a
row within the noise. Shrinkage is for linear heads: in networks signal is dense, and shrinkage holds training back.
"""

import numpy as np

from fulcrum.arrays import FloatArray

PRIOR_SCALES = np.concatenate([[0.0], np.geomspace(2.0**-6, 2.0**16, 23)])
"""Prior variances, in units of the noise variance."""

_EM_STEPS = 50
_ROWS_AT_ONCE = 1 << 14
_CELLS = 2048
"""Cells of a histogram of row norms, which gives the weights if there are more rows than cells."""


def shrink_rows(rows: FloatArray, *, variance: FloatArray | float, free: int) -> FloatArray:
    """Returns the posterior mean of the rows.

    Args:
        rows: By row and class, and by variant if there are several.
        variance: The variance of the noise in a free coordinate, by variant; 0 leaves the rows unchanged.
        free: Free coordinates of a row: the number of classes, less 1 if the common shift was projected out.
    """
    noise = np.asarray(variance, dtype=np.float64)
    if noise.ndim == 0:
        return rows * _factor(np.einsum("rk,rk->r", rows, rows), float(noise), free)[:, None]
    size = np.einsum("rka,rka->ra", rows, rows)
    factors = [_factor(size[:, variant], float(noise[variant]), free) for variant in range(len(noise))]
    return rows * np.stack(factors, axis=1)[:, None, :]


def even_out(rows: FloatArray, shrunk_rows: FloatArray, *, power: float) -> FloatArray:
    """Returns rows times their factors to a power, the factors being those that gave `shrunk_rows`.

    A posterior mean has rows that are shorter than the rows of the signal, and unevenly so: weak rows lose most. With
    the power 1/2 the expected squared norm of a row is that of the signal's row under the prior (the constrained
    estimates of Louis 1984 and Ghosh 1992), and weak rows keep their part in the order of the classes.

    Args:
        rows: By row and class, and by variant if there are several.
        shrunk_rows: The rows, each multiplied by a factor from 0 to 1.
        power: From 0 to 1: 0 leaves the rows unchanged, 1 gives `shrunk_rows`.

    >>> even_out(np.array([[4.0, -4.0], [2.0, -2.0]]), np.array([[4.0, -4.0], [0.5, -0.5]]), power=0.5).tolist()
    [[4.0, -4.0], [1.0, -1.0]]
    """
    if power == 1:
        return shrunk_rows
    before, after = (np.einsum("rk...,rk...->r...", values, values) for values in (rows, shrunk_rows))
    squared_factor = np.divide(after, before, out=np.zeros_like(before), where=before > 0)
    return np.asarray(rows * (squared_factor ** (power / 2))[:, None])


def _factor(size: FloatArray, variance: float, free: int) -> FloatArray:
    """Returns the factor of every row, by squared norms of rows."""
    if variance == 0:
        return np.ones(len(size))
    ratio = size / variance
    cells, counts = _histogram(ratio)
    likelihood = _likelihood(cells, free)
    weights = mixture_weights(likelihood, counts)
    if cells is ratio:
        return _posterior_factor(likelihood * weights)
    factors = np.empty(len(ratio))
    for start in range(0, len(ratio), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        factors[some] = _posterior_factor(_likelihood(ratio[some], free) * weights)
    return factors


def _posterior_factor(posterior: FloatArray) -> FloatArray:
    """Returns the posterior mean factor of every row, from unnormalised posteriors by row and scale."""
    return np.asarray(posterior @ (PRIOR_SCALES / (1 + PRIOR_SCALES)) / posterior.sum(axis=1))


def mixture_weights(likelihood: FloatArray, counts: FloatArray) -> FloatArray:
    """Returns the weights of the scales with the largest likelihood of the rows."""
    weights = np.full(len(PRIOR_SCALES), 1 / len(PRIOR_SCALES))
    share = counts / counts.sum()
    evidence, factor = np.empty(len(likelihood)), np.empty(len(weights))
    for _ in range(
        _EM_STEPS
    ):  # EM: the mean posterior of a scale is its weight times the mean of likelihood / evidence
        np.dot(likelihood, weights, out=evidence)
        np.divide(share, evidence, out=evidence)
        np.dot(evidence, likelihood, out=factor)
        np.multiply(weights, factor, out=weights)
    return weights


def _likelihood(ratio: FloatArray, free: int) -> FloatArray:
    """Returns likelihoods by row and scale, up to a factor for every row."""
    spread = 1 + PRIOR_SCALES
    log = -0.5 * free * np.log(spread) - 0.5 * ratio[:, None] / spread
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _histogram(ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the squared norms of rows with counts 1, or means and counts of cells if there are many rows."""
    if len(ratio) <= _CELLS:
        return ratio, np.ones(len(ratio))
    edges = np.quantile(ratio, np.linspace(0, 1, _CELLS + 1))
    cell = np.clip(np.searchsorted(edges, ratio, side="right") - 1, 0, _CELLS - 1)
    counts = np.bincount(cell, minlength=_CELLS)
    filled = counts > 0
    means = np.bincount(cell, weights=ratio, minlength=_CELLS)[filled] / counts[filled]
    return means, counts[filled].astype(np.float64)
