"""The noise that conceals a silo from an observer, and the part of it that a coalition takes away.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": [200, 200, 200], "south": [200]})
>>> remaining_noise(federation, np.array([1.0, 2.0, 4.0, 1.0]), tier="region", excluded_silos=1).tolist()
[3.0, 3.0, 5.0, 1.0]

An observer of a tier sees one noisy sum at each of its nodes.
"""

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError


def remaining_noise(federation: Topology, variance: FloatArray, *, tier: str, excluded_silos: int = 0) -> FloatArray:
    """Returns by silo the noise variance that conceals it from an observer of `tier`, against the worst coalition.

    Args:
        federation: Who reports to whom.
        variance: The noise variance that each silo brings into its sum, w² sigma², in units of C².
        tier: Where the observer stands.
        excluded_silos: Silos of each region, colluders and dropouts together, whose noise does not count. The worst
            ones hold the largest variances among the others; the silo's own noise always counts. An observer inside the
            region (tier "silo") sees single updates, so only the silo's own noise conceals it anyway.
    """
    if tier == SILO:
        return variance
    node_of, count = federation.membership(tier), federation.node_count(tier)
    if excluded_silos == 0:  # the same, without sorting
        return sum_by(node_of, variance, count)[node_of]
    region_of, regions = federation.innermost.parent_of, len(federation.innermost.nodes)
    left, more = left_by_coalitions(variance, region_of, regions, excluded_silos)
    node_of_region = np.zeros(regions, dtype=np.intp)
    node_of_region[region_of] = node_of
    return np.asarray(sum_by(node_of_region, left, count)[node_of] + more)


def left_by_coalitions(
    variance: FloatArray, region_of: IntArray, regions: int, size: int
) -> tuple[FloatArray, FloatArray]:
    """Returns what the worst `size` silos of a region leave: by region, and by silo what it then has beyond that.

    Only what is left is added up. Taking the worst away from a total would lose a light silo's noise to rounding
    beside a heavy one's, and state too small an epsilon.
    """
    order = np.lexsort((-variance, region_of))
    sizes = np.bincount(region_of, minlength=regions)
    rank = np.empty(len(variance), dtype=np.intp)
    rank[order] = np.arange(len(variance)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = rank >= size
    left = sum_by(region_of[kept], variance[kept], regions)
    next_one = np.zeros(regions)
    at_edge = rank == size
    next_one[region_of[at_edge]] = variance[at_edge]
    # A silo among the largest is not in its own coalition: the next largest takes its place.
    return left, np.where(kept, 0.0, variance - next_one[region_of])


def sum_by(node_of: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Returns the sum of the values at each node."""
    return np.bincount(node_of, weights=values, minlength=count).astype(np.float64, copy=False)


def largest_by(node_of: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Returns the largest of the non-negative values at each node."""
    largest = np.zeros(count)
    np.maximum.at(largest, node_of, values)
    return largest


def check_count(name: str, count: int) -> int:
    """Returns a number of silos, or raises `ParameterError` unless it is a whole number of at least 0."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
        raise ParameterError("federation.count-range", name=name, count=count)
    return int(count)
