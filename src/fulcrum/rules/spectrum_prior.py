"""The spectrum prior: rows of a head shrunk by a prior that follows the public variances of the head's inputs.

>>> rows = np.array([[3.0, -3.0], [3.0, -3.0], [0.1, -0.1]])
>>> shrink_by_spectrum(rows, np.array([9.0, 0.01, 1.0]), variance=4.0, free=1).round(2).tolist()
[[2.14, -2.14], [0.62, -0.62], [0.03, -0.03]]

Row k has the coefficients of input k, and the prior variance tau times the variance of the input to the power gamma.
There are two priors:

- `shrink_by_one_scale`: all rows have the same tau. The posterior means are averaged over a grid of tau and gamma, by
  the likelihood of all rows. gamma = 0 multiplies all rows by the same number.
- `shrink_by_spectrum`, the prior of earlier plans: every row has a tau of its own. For each gamma of the grid the
  distribution of tau is fitted by maximum likelihood over all rows (EM, as in `shrinkage`); the posterior means are
  averaged by the likelihood of each gamma. gamma = 0 is the rule of `shrinkage`.

With a few dozen rows the fitted distribution follows the noise of the rows; one scale has nothing to fit. A large gamma
says that directions in which inputs hardly vary carry no class: true of principal components and of frozen embeddings,
and not true in general. The likelihood notices the difference if the signal stands out of the noise.

The variances are public figures of the plan, and the rows are released sums pooled: the prior is post-processing.
"""

from collections.abc import Callable

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.rules.shrinkage import PRIOR_SCALES, mixture_weights

GAMMAS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""The powers of the input variances, all with the same prior probability."""

_LEAST_SHARE = 1e-12
"""Of the largest input variance: a smaller variance counts as this share of it, so that no power underflows."""


def shrink_by_spectrum(
    rows: FloatArray, input_variance: FloatArray, *, variance: FloatArray | float, free: int
) -> FloatArray:
    """Returns the posterior mean of the rows.

    Args:
        rows: By row and class, and by variant if there are several.
        input_variance: By row, the public variance of the input; 1 for the bias.
        variance: The variance of the noise in a free coordinate, by variant; 0 leaves the rows unchanged.
        free: Free coordinates of a row: the number of classes, less 1 if the common shift was projected out.
    """
    return _shrink(_factor, rows, input_variance, variance, free)


def shrink_by_one_scale(
    rows: FloatArray, input_variance: FloatArray, *, variance: FloatArray | float, free: int
) -> FloatArray:
    """Returns the posterior mean of the rows under the prior with the same tau for all rows.

    The arguments are those of `shrink_by_spectrum`.

    >>> rows = np.array([[3.0, -3.0], [3.0, -3.0], [0.1, -0.1]])
    >>> shrink_by_one_scale(rows, np.array([9.0, 0.01, 1.0]), variance=4.0, free=1).round(2).tolist()
    [[1.63, -1.63], [0.43, -0.43], [0.03, -0.03]]
    """
    return _shrink(_factor_of_one_scale, rows, input_variance, variance, free)


def _shrink(
    factor: Callable[[FloatArray, FloatArray, int], FloatArray],
    rows: FloatArray,
    input_variance: FloatArray,
    variance: FloatArray | float,
    free: int,
) -> FloatArray:
    """Returns the rows times their factors, by squared norms over the noise variance; without noise the rows."""
    noise = np.asarray(variance, dtype=np.float64)
    spread = np.maximum(input_variance / input_variance.max(), _LEAST_SHARE)

    def factors(size: FloatArray, noise: float) -> FloatArray:
        return np.ones(len(size)) if noise == 0 else factor(size / noise, spread, free)

    if noise.ndim == 0:
        return rows * factors(np.einsum("rk,rk->r", rows, rows), float(noise))[:, None]
    size = np.einsum("rka,rka->ra", rows, rows)
    by_variant = [factors(size[:, variant], float(noise[variant])) for variant in range(len(noise))]
    return rows * np.stack(by_variant, axis=1)[:, None, :]


def _factor_of_one_scale(ratio: FloatArray, spread: FloatArray, free: int) -> FloatArray:
    """Returns the factor of each row, averaged over tau and gamma by the likelihood of all rows."""
    prior = np.power.outer(spread, GAMMAS)[:, :, None] * PRIOR_SCALES[1:]  # by row, gamma and tau above 0
    factors = prior / (1 + prior)
    log = 0.5 * (np.einsum("r,rgt->gt", ratio, factors) - free * np.log1p(prior).sum(axis=0))
    share = np.exp(log - log.max())
    return np.asarray(np.einsum("gt,rgt->r", share / share.sum(), factors))


def _factor(ratio: FloatArray, spread: FloatArray, free: int) -> FloatArray:
    """Returns the factor of each row: the factors of all gammas, averaged by likelihood."""
    fits = [_factor_and_likelihood(ratio, spread**gamma, free) for gamma in GAMMAS]
    log_likelihood = np.array([fit[1] for fit in fits])
    share = np.exp(log_likelihood - log_likelihood.max())
    return np.asarray((share / share.sum()) @ np.stack([fit[0] for fit in fits]))


def _factor_and_likelihood(ratio: FloatArray, prior: FloatArray, free: int) -> tuple[FloatArray, float]:
    """Returns the factors of rows for one gamma, and the log-likelihood of all rows.

    Args:
        ratio: By row, the squared norm over the noise variance.
        prior: By row, the prior variance up to tau.
        free: Free coordinates of a row.
    """
    scales = prior[:, None] * PRIOR_SCALES
    log = -0.5 * free * np.log1p(scales) - 0.5 * ratio[:, None] / (1 + scales)
    largest = log.max(axis=1, keepdims=True)
    likelihood = np.exp(log - largest)
    posterior = likelihood * mixture_weights(likelihood, np.ones(len(ratio)))
    evidence = posterior.sum(axis=1)
    factors = np.einsum("rs,rs->r", posterior, scales / (1 + scales)) / evidence
    return factors, float((np.log(evidence) + largest[:, 0]).sum())
