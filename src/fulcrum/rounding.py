"""Figures of a guarantee rounded so that what is printed is true.

Files hold six significant digits, people are shown four, both rounded up: what is shown is never below what a file
says, and the same epsilon reads the same in a sentence, a table and a chart.
"""

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


def display_epsilon(epsilon: float) -> float:
    """Returns an epsilon as people are shown it everywhere, whether it was rounded for a file before or not.

    >>> display_epsilon(23.880454), display_epsilon(rounded_up(23.880454))
    (23.89, 23.89)
    """
    return rounded_up(epsilon, digits=4)
