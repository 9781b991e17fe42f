"""An estimate with noise of known variance, shrunk toward zero: empirical Bayes with one scale a row.

>>> rows = np.array([[9.0, -9.0], [0.1, -0.1], [-0.2, 0.2]])
>>> shrink_rows(rows, variance=1.0, free=1).round(2).tolist()
[[8.93, -8.93], [0.01, -0.01], [-0.01, 0.01]]

A row is what all classes have in one input. Its prior is a mixture of Gaussians of mean 0: variances on a fixed grid of
multiples of the noise's, zero included, and their weights by maximum likelihood over all rows (EM). The posterior mean
multiplies a row by a number in [0, 1]: near 1 where it stands out of the noise, near 0 where it does not. It holds
training back where signal is dense, as in networks: it is meant for linear heads.
"""

import numpy as np

from fulcrum.arrays import FloatArray

_SCALES = np.concatenate([[0.0], np.geomspace(2.0**-6, 2.0**16, 23)])
"""Prior variances, in units of the noise's."""

_EM_STEPS = 50
_ROWS_AT_ONCE = 1 << 14
_CELLS = 2048
"""Where there are more rows than this, their weights come from a histogram of row norms that is this fine."""


def shrink_rows(rows: FloatArray, *, variance: FloatArray | float, free: int) -> FloatArray:
    """Returns the posterior mean of the rows.

    Args:
        rows: By row and class, and by arm where there are several.
        variance: Of the noise in each free coordinate, by arm; 0 leaves the rows as they are.
        free: Free coordinates of a row: the classes, less one where their common shift was projected out.
    """
    noise = np.asarray(variance, dtype=np.float64)
    if noise.ndim == 0:
        return rows * _factor(np.einsum("rk,rk->r", rows, rows), float(noise), free)[:, None]
    size = np.einsum("rka,rka->ra", rows, rows)
    factors = [_factor(size[:, arm], float(noise[arm]), free) for arm in range(len(noise))]
    return rows * np.stack(factors, axis=1)[:, None, :]


def _factor(size: FloatArray, variance: float, free: int) -> FloatArray:
    """Returns what each row, of this squared norm, is multiplied by."""
    if variance == 0:
        return np.ones(len(size))
    ratio = size / variance
    cells, counts = _histogram(ratio)
    likelihood = _likelihood(cells, free)
    weights = _mixture(likelihood, counts)
    if cells is ratio:
        return _kept(likelihood * weights)
    found = np.empty(len(ratio))
    for start in range(0, len(ratio), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        found[some] = _kept(_likelihood(ratio[some], free) * weights)
    return found


def _kept(posterior: FloatArray) -> FloatArray:
    """Returns what the posterior mean keeps of each row, from the posterior by row and scale up to a factor a row."""
    return np.asarray(posterior @ (_SCALES / (1 + _SCALES)) / posterior.sum(axis=1))


def _mixture(likelihood: FloatArray, counts: FloatArray) -> FloatArray:
    """Returns the weights of the scales that make the rows most likely."""
    weights = np.full(len(_SCALES), 1 / len(_SCALES))
    share = counts / counts.sum()
    evidence, factor = np.empty(len(likelihood)), np.empty(len(weights))
    for _ in range(_EM_STEPS):  # the mean posterior of a scale is its weight times the mean of likelihood over evidence
        np.dot(likelihood, weights, out=evidence)
        np.divide(share, evidence, out=evidence)
        np.dot(evidence, likelihood, out=factor)
        np.multiply(weights, factor, out=weights)
    return weights


def _likelihood(ratio: FloatArray, free: int) -> FloatArray:
    """Returns by row and scale how likely the row is, up to a factor of each row's own."""
    spread = 1 + _SCALES
    log = -0.5 * free * np.log(spread) - 0.5 * ratio[:, None] / spread
    return np.asarray(np.exp(log - log.max(axis=1, keepdims=True)))


def _histogram(ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the rows' squared norms, or cells of them and how many rows each holds."""
    if len(ratio) <= _CELLS:
        return ratio, np.ones(len(ratio))
    edges = np.quantile(ratio, np.linspace(0, 1, _CELLS + 1))
    cell = np.clip(np.searchsorted(edges, ratio, side="right") - 1, 0, _CELLS - 1)
    counts = np.bincount(cell, minlength=_CELLS)
    filled = counts > 0
    means = np.bincount(cell, weights=ratio, minlength=_CELLS)[filled] / counts[filled]
    return means, counts[filled].astype(np.float64)
