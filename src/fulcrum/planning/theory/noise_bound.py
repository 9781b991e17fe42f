"""A proven lower bound on the noise of any allocation, with colluders and dropouts and targets on any tiers.

>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
>>> federation = Federation.from_sizes({"a": [1] * 9, "b": [1]})
>>> asked = Requirement(multiplier={"federation": 1.0}, colluders=1)
>>> noise = noise_variance(federation, allocate(federation, asked)).sum()
>>> f"{noise / noise_lower_bound(federation, asked):.3f} times the bound"
'1.111 times the bound'

`docs/maths.md` has the proof, under collusion and dropout. The bound is the least noise itself if no silo colludes or
is missing, and if one tier alone has a target.
"""

from collections.abc import Iterator

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.remaining_noise import largest_by, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.planning.theory.allocation import Requirement


def noise_lower_bound(federation: Topology, requirement: Requirement) -> float:
    """Returns a noise variance, in units of C², below which no allocation meets the requirement with these weights.

    Bottom up, a node needs at least the noise of its children together, and at least the noise of every target on its
    own tier. Multipliers may differ within a region.
    """
    least = np.zeros(len(federation))  # by node of the tier so far, silos first
    node_of = np.arange(len(federation))
    for tier in federation.tier_names:
        if tier != SILO:
            above, count = federation.membership(tier), federation.node_count(tier)
            parent = np.zeros(len(least), dtype=np.intp)
            parent[node_of] = above
            least, node_of = sum_by(parent, least, count), above
        for need, excluded_silos in _demands(federation, requirement, tier):
            least = np.maximum(least, _least_by_node(federation, need, node_of, len(least), excluded_silos))
    return float(least.sum())


def outer_coalitions(federation: Topology, requirement: Requirement) -> list[str]:
    """Returns the tiers outside the regions whose targets count on noise that some silos can remove."""
    inner = federation.innermost.name
    return sorted(
        {
            tier
            for part in requirement.by_observer(federation)
            for tier in part.multiplier
            if part.excluded_silos and tier not in (SILO, inner)
        }
    )


def _demands(federation: Topology, requirement: Requirement, tier: str) -> Iterator[tuple[FloatArray, int]]:
    """Yields by target on a tier the noise that must conceal each silo, and the number of excluded silos."""
    for part in requirement.by_observer(federation):
        if tier in part.multiplier:
            yield (federation.weights * part.multiplier[tier]) ** 2, 0 if tier == SILO else part.excluded_silos


def _least_by_node(
    federation: Topology, need: FloatArray, node_of: IntArray, count: int, excluded_silos: int
) -> FloatArray:
    """Returns by node the least noise that leaves every silo its need without `excluded_silos` of each region."""
    if not excluded_silos:
        return largest_by(node_of, need, count)
    region_of = federation.innermost.parent_of
    order = np.lexsort((-need, region_of, node_of))
    ends = np.cumsum(np.bincount(node_of, minlength=count))[:-1]
    return np.array([_least_of_node(need[part], region_of[part], excluded_silos) for part in np.split(order, ends)])


def _least_of_node(need: FloatArray, region_of: IntArray, excluded_silos: int) -> float:
    """Returns the minimum over R of R M / (M - c) + sum of (n_i - R)+, for needs sorted downward within each region.

    M is the size of the largest region, and R is at least the (c + 1)-th largest need of every region.
    """
    sizes = np.unique(region_of, return_counts=True)[1]
    largest = int(sizes.max())
    if largest <= excluded_silos:  # everyone of every region may be gone but the silo itself
        return float(need.sum())
    rank = np.arange(len(need)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rest = float(need[rank == excluded_silos].max())
    above = np.sort(need[need > rest])[::-1]
    share = largest / (largest - excluded_silos)
    if len(above) > share:  # the slope in R is `share` less the number of needs above R
        rest = float(above[int(share)])
    return rest * share + float(np.maximum(above - rest, 0).sum())
