"""The exposure of silos to each observer: exposure, effective size, dispersion.

>>> from fulcrum.readers.federation import Federation
>>> severe = Federation.from_sizes({f"region-{m}": [200] * size for m, size in enumerate([60, 20, 8, 4, 4])})
>>> round(dispersion(severe), 6)
0.791667
>>> [round(dispersion(severe, colluders=c), 4) for c in (1, 2, 3)]
[0.8163, 0.8442, 0.8768]

An observer of a tier sees a noisy sum at each node of the tier. All the noise in the sum conceals a silo of weight w;
the exposure of the silo is its share w² / V of the sum's squared weight (the paper's Corollary 1).
"""

import math
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.remaining_noise import check_count, largest_by, remaining_noise, sum_by
from fulcrum.core.topology import ROOT, SILO, Topology


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exposure:
    """The exposure profile of one tier, arrays by node.

    Attributes:
        tier: The tier of the observer.
        nodes: The names of the sums that the observer sees.
        silos: The number of silos in each sum.
        weight_mass: V, the sum of squared weights.
        peak_weight: W, the largest squared weight.
        exposure: rho = W / V; against the worst coalition, W over the squared weights of the honest silos.
        effective_size: 1 / rho: the number of equal silos that would conceal as well.
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


def exposure_of(federation: Topology, *, tier: str | None = None, colluders: int = 0, dropouts: int = 0) -> Exposure:
    """Returns the exposure profile of a tier, the innermost by default.

    Args:
        federation: The silos and the tree of regions above them.
        tier: The tier of the observer: "silo", a tier of the federation, or "federation".
        colluders: Up to this many silos of each region share their noise with the observer.
        dropouts: Up to this many more silos of each region are missing from a sum, and their noise with them. The silos
            whose noise does not count are the worst for each silo; the silo's own noise always counts, so a region of
            at most `colluders + dropouts + 1` silos has exposure 1.
    """
    excluded_silos = check_count("colluders", colluders) + check_count("dropouts", dropouts)
    tier = federation.innermost.name if tier is None else tier
    squared = federation.weights**2
    node_of, count = federation.membership(tier), federation.node_count(tier)
    mass, peak = sum_by(node_of, squared, count), largest_by(node_of, squared, count)
    if excluded_silos == 0 or tier == SILO:
        rho = peak / mass
    else:
        rho = largest_by(
            node_of, squared / remaining_noise(federation, squared, tier=tier, excluded_silos=excluded_silos), count
        )
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


def dispersion(federation: Topology, *, tier: str | None = None, colluders: int = 0, dropouts: int = 0) -> float:
    """Returns the exposure dispersion: the share of the noise budget that topology-aware allocation saves.

    The saving is that large if `tier` alone has a target, the same for every silo, with one multiplier in each region.
    Dispersion is the paper's delta, known before training from weights and regions alone; 0 exactly when all regions
    are equally exposed. See `exposure_of` for the arguments.
    """
    return exposure_of(federation, tier=tier, colluders=colluders, dropouts=dropouts).dispersion
