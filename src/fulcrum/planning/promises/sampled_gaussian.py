"""The epsilon of a Gaussian mechanism on Poisson samples, by Rényi differential privacy of integer orders.

Mironov, Talwar and Zhang 2019 (Rényi Differential Privacy of the Sampled Gaussian Mechanism), section 3.3, for
neighbours by adding or removing a unit; the conversion is by Canonne, Kamath and Steinke 2020, proposition 12.

>>> round(sampled_epsilon(multiplier=1.1, rate=0.01, steps=1000, delta=1e-5), 3)
1.725
"""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

_ORDERS = np.arange(2, 257)


def sampled_epsilon(*, multiplier: float, rate: float, steps: int, delta: float) -> float:
    """Returns the epsilon of `steps` Gaussian releases, each on a Poisson sample with the rate `rate`.

    Neighbours differ by adding or removing a unit with a contribution of at most the clip norm. The bound holds against
    observers who do not know the samples.
    """
    if multiplier == 0:
        return math.inf
    epsilons = [
        steps * _renyi(int(order), multiplier, rate)
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1)
        for order in _ORDERS.tolist()
    ]
    return max(0.0, min(epsilons))


def _renyi(order: int, multiplier: float, rate: float) -> float:
    """Returns the Rényi divergence of an integer order for a single release: the sum over the binomial expansion."""
    if rate == 1:
        return order / (2 * multiplier**2)
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * multiplier**2)
    return float(logsumexp(terms)) / (order - 1)
