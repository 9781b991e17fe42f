"""The noise that conceals a silo from an observer, and the part of the noise that a coalition removes.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": [200, 200, 200], "south": [200]})
>>> remaining_noise(federation, np.array([1.0, 2.0, 4.0, 1.0]), tier="region", excluded_silos=1).tolist()
[3.0, 3.0, 5.0, 1.0]

An observer of a tier sees a noisy sum at every node of the tier.
"""

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError


def remaining_noise(federation: Topology, variance: FloatArray, *, tier: str, excluded_silos: int = 0) -> FloatArray:
    """Returns by silo the noise variance that conceals the silo from an observer of `tier`, in the worst case.

    Guarantees:

    - the silo's own noise always counts;
    - of all coalitions of `excluded_silos` silos in every region, the result is for the worst: the silos
      with the largest variances among the other silos;
    - for the tier "silo" the result is the silo's own noise: an observer inside the region sees single updates.

    Args:
        federation: The tree of regions and outer tiers.
        variance: The noise variance that every silo brings into its sum, w² sigma², in units of C².
        tier: The tier of the observer.
        excluded_silos: The number of silos of every region, colluders and dropouts together, whose noise does not
            count.
    """
    if tier == SILO:
        return variance
    node_of, count = federation.membership(tier), federation.node_count(tier)
    if excluded_silos == 0:  # the same result, without sorting
        return sum_by(node_of, variance, count)[node_of]
    region_of, regions = federation.innermost.parent_of, len(federation.innermost.nodes)
    left, more = left_by_coalitions(variance, region_of, regions, excluded_silos)
    node_of_region = np.zeros(regions, dtype=np.intp)
    node_of_region[region_of] = node_of
    return np.asarray(sum_by(node_of_region, left, count)[node_of] + more)


def left_by_coalitions(
    variance: FloatArray, region_of: IntArray, regions: int, size: int
) -> tuple[FloatArray, FloatArray]:
    """Returns the noise that the worst coalitions leave: the sum by region, and by silo the silo's addition to the sum.

    Only the remaining noise is added up. To subtract the coalition from a total instead would lose the noise of a light
    silo to rounding beside the noise of a heavy silo, and state too small an epsilon.
    """
    # Region by region, the largest variance first; `rank` is the place of a silo within its region.
    order = np.lexsort((-variance, region_of))
    sizes = np.bincount(region_of, minlength=regions)
    rank = np.empty(len(variance), dtype=np.intp)
    rank[order] = np.arange(len(variance)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    outside = rank >= size
    left = sum_by(region_of[outside], variance[outside], regions)
    next_largest = np.zeros(regions)
    at_edge = rank == size
    next_largest[region_of[at_edge]] = variance[at_edge]
    # A silo of the `size` largest is not in its own coalition: the next largest silo joins the coalition instead.
    return left, np.where(outside, 0.0, variance - next_largest[region_of])


def sum_by(node_of: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Returns the sum of the values at every node."""
    return np.bincount(node_of, weights=values, minlength=count).astype(np.float64, copy=False)


def largest_by(node_of: IntArray, values: FloatArray, count: int) -> FloatArray:
    """Returns the largest of the non-negative values at every node."""
    largest = np.zeros(count)
    np.maximum.at(largest, node_of, values)
    return largest


def check_count(name: str, count: int) -> int:
    """Returns a number of silos, or raises `ParameterError` unless the number is whole and at least 0."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
        raise ParameterError("number.whole-range", name=name, least=0, value=count)
    return int(count)
