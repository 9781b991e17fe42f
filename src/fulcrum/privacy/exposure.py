"""What each observer sees of each silo: exposure, effective size, dispersion, and what a coalition takes away.

>>> from fulcrum.federation.structure import Federation
>>> severe = Federation.from_sizes({f"region-{m}": [200] * size for m, size in enumerate([60, 20, 8, 4, 4])})
>>> round(dispersion(severe), 6)
0.791667
>>> [round(dispersion(severe, colluders=c), 4) for c in (1, 2, 3)]
[0.8163, 0.8442, 0.8768]

An observer of a tier sees one noisy sum at each of its nodes. A silo of weight w is concealed by all the noise in
that sum; its exposure is the share w² / V of the sum's squared weight that is its own (the paper's Corollary 1).
"""

import math
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError
from fulcrum.federation.structure import ROOT, SILO, Federation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposure:
    """The exposure profile of one tier, arrays by node.

    Attributes:
        tier: Where the observer stands.
        nodes: The names of the sums it sees.
        silos: How many silos each sum holds.
        weight_mass: V, the sum of squared weights.
        peak_weight: W, the largest squared weight.
        exposure: rho = W / V, or against the worst coalition W over what the honest are left with.
        effective_size: 1 / rho: equal silos that would conceal as well.
        colluders: Silos of each region that share their noise with the observer.
        dropouts: Silos of each region that may be missing from a sum.
        dispersion: 1 - <rho>_V / rho_max, the share of the noise variance that a uniform multiplier wastes.
        noise_factor: 1 / sqrt(1 - dispersion), the same as a factor in the noise multiplier.
    """

    tier: str
    nodes: tuple[str, ...]
    silos: IntArray
    weight_mass: FloatArray
    peak_weight: FloatArray
    exposure: FloatArray
    effective_size: FloatArray
    colluders: int
    dropouts: int
    dispersion: float
    noise_factor: float


def exposure_of(federation: Federation, *, tier: str | None = None, colluders: int = 0, dropouts: int = 0) -> Exposure:
    """Returns the exposure profile of a tier, the innermost by default.

    Args:
        federation: Who reports to whom.
        tier: Where the observer stands: "silo", a tier of the federation, or "federation".
        colluders: Up to this many silos of each region share their noise with the observer.
        dropouts: Up to this many more silos of each region are missing from a sum, and their noise with them. The
            silos whose noise does not count are the worst ones for each silo; its own noise always counts, so a
            region of at most `colluders + dropouts + 1` silos has exposure 1.
    """
    uncounted = check_count("colluders", colluders) + check_count("dropouts", dropouts)
    tier = federation.innermost.name if tier is None else tier
    squared = federation.weights**2
    node_of, count = federation.membership(tier), federation.node_count(tier)
    mass, peak = sum_by(node_of, squared, count), largest_by(node_of, squared, count)
    if uncounted == 0 or tier == SILO:
        rho = peak / mass
    else:
        rho = largest_by(node_of, squared / remaining_noise(federation, squared, tier=tier, uncounted=uncounted), count)
    spread = 1 - float(rho @ mass / mass.sum()) / float(rho.max())
    spread = max(spread, 0.0) if spread > 1e-15 else 0.0  # rounding alone is not dispersion
    if tier == SILO:
        nodes = tuple(federation.silo_names.tolist())
    else:
        nodes = federation.tier(tier).nodes if tier != ROOT else (tier,)
    return Exposure(
        tier=tier,
        nodes=nodes,
        silos=np.bincount(node_of, minlength=count),
        weight_mass=mass,
        peak_weight=peak,
        exposure=rho,
        effective_size=1 / rho,
        colluders=int(colluders),
        dropouts=int(dropouts),
        dispersion=spread,
        noise_factor=1 / math.sqrt(1 - spread),
    )


def dispersion(federation: Federation, *, tier: str | None = None, colluders: int = 0, dropouts: int = 0) -> float:
    """Returns the exposure dispersion: the share of the noise budget that topology-aware allocation saves.

    It saves that much where `tier` alone has a target, the same for every silo, with one multiplier in each region. It
    is the paper's delta, known before training from weights and regions alone; 0 exactly when all regions are
    equally exposed. See `exposure_of` for the arguments.
    """
    return exposure_of(federation, tier=tier, colluders=colluders, dropouts=dropouts).dispersion


def remaining_noise(federation: Federation, variance: FloatArray, *, tier: str, uncounted: int = 0) -> FloatArray:
    """Returns by silo the noise variance that conceals it from an observer of `tier`, against the worst coalition.

    Args:
        federation: Who reports to whom.
        variance: The noise variance that each silo brings into its sum, w² sigma², in units of C².
        tier: Where the observer stands.
        uncounted: Silos of each region, colluders and dropouts together, whose noise does not count. The worst ones
            hold the largest variances among the others; the silo's own noise always counts. An observer inside the
            region (tier "silo") sees single updates, so only the silo's own noise conceals it anyway.
    """
    if tier == SILO:
        return variance
    node_of, count = federation.membership(tier), federation.node_count(tier)
    if uncounted == 0:  # the same, without sorting
        return sum_by(node_of, variance, count)[node_of]
    region_of, regions = federation.innermost.parent_of, len(federation.innermost.nodes)
    left, more = left_by_coalitions(variance, region_of, regions, uncounted)
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
        raise ParameterError(f"{name} must be a whole number of at least 0, got {count}")
    return int(count)
