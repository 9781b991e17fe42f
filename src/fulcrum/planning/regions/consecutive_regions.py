"""The best regions of consecutive silos in an order, by dynamic programming: exact where sorting is optimal.

>>> consecutive(4, least=1, most=2, cost=lambda start, stop: np.array([9.0, 4.0, 1.0, 0.5])[start])
(10.0, [2, 4])

`docs/maths.md` proves by exchange that some optimum has consecutive regions in the order of w q if the cost of a region
is the largest (w q)² of its silos, and in the order of 1 / q if the gain is the squared sum of 1 / q.
"""

from collections.abc import Callable

import numpy as np

from fulcrum.arrays import FloatArray, IntArray


def consecutive(
    silos: int, *, least: int, most: int, cost: Callable[[IntArray, int], FloatArray]
) -> tuple[float, list[int]] | None:
    """Returns the least total cost and the end of every region; None if no sizes add up to the number of silos.

    Args:
        silos: The number of silos in the order.
        least: The fewest silos of a region.
        most: The most silos of a region.
        cost: The costs of the regions from several starts up to a stop, the stop left out.
    """
    best = np.full(silos + 1, np.inf)
    best[0] = 0.0
    first = np.zeros(silos + 1, dtype=np.intp)
    for stop in range(least, silos + 1):
        start = np.arange(max(0, stop - most), stop - least + 1)
        total = best[start] + cost(start, stop)
        choice = int(np.argmin(total))
        best[stop], first[stop] = total[choice], start[choice]
    if not np.isfinite(best[silos]):
        return None
    ends, stop = [], silos
    while stop:
        ends.append(stop)
        stop = int(first[stop])
    return float(best[silos]), ends[::-1]


def largest_of_region(values: FloatArray, fixed: float) -> Callable[[IntArray, int], FloatArray]:
    """Returns the cost for values in descending order: the largest value of the region, and a fixed cost."""
    return lambda start, _: values[start] + fixed


def squared_sum_of_region(values: FloatArray) -> Callable[[IntArray, int], FloatArray]:
    """Returns the cost for values in any order: the negative squared sum of the region."""
    before = np.append(0.0, np.cumsum(values))
    return lambda start, stop: -((before[stop] - before[start]) ** 2)
