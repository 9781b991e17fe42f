"""Epsilons rounded up, so that every printed guarantee is true.

Files hold six significant digits and displays four, both rounded up: a displayed epsilon is never below the epsilon in
the file, and an epsilon reads the same in a sentence, a table and a chart.
"""

import math


def rounded_up(epsilon: float, digits: int = 6) -> float:
    """Returns an epsilon rounded up to `digits` significant digits.

    >>> rounded_up(0.98999999999), rounded_up(0.9900001), rounded_up(10.0501, digits=4)
    (0.99, 0.990001, 10.06)
    """
    if epsilon == 0 or not math.isfinite(epsilon):
        return epsilon
    places = digits - 1 - math.floor(math.log10(abs(epsilon)))
    rounded = round(epsilon, places)
    return rounded if rounded >= epsilon else round(epsilon + 10.0**-places, places)


def display_epsilon(epsilon: float) -> float:
    """Returns an epsilon rounded up for display: the same with and without an earlier rounding for a file.

    >>> display_epsilon(23.880454), display_epsilon(rounded_up(23.880454))
    (23.89, 23.89)
    """
    return rounded_up(epsilon, digits=4)
