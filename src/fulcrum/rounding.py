"""How epsilons are rounded: up, since what is printed must be true."""

import math


def rounded_up(epsilon: float, digits: int = 6) -> float:
    """Returns an epsilon at so many significant digits, never below itself: what is printed must be true.

    >>> rounded_up(0.98999999999), rounded_up(0.9900001), rounded_up(10.0501, digits=4)
    (0.99, 0.990001, 10.06)
    """
    if epsilon == 0 or not math.isfinite(epsilon):
        return epsilon
    places = digits - 1 - math.floor(math.log10(abs(epsilon)))
    rounded = round(epsilon, places)
    return rounded if rounded >= epsilon else round(epsilon + 10.0**-places, places)
