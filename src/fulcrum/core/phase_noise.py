"""The noise of sums whose rosters change: by phase, and as constant noise with the same squared shift.

>>> from dataclasses import replace
>>> from fulcrum.core.rosters import Rosters
>>> from fulcrum.readers.federation import Federation
>>> rosters = Rosters.of_stays([[(1, 4, 1)], [(1, 4, 1)], [(3, 4, 1)]], 4)
>>> federation = replace(Federation.from_sizes({"north": [4, 3, 6]}), rosters=rosters)
>>> concealing_noise(federation, np.ones((2, 1)), "region").round(3).tolist()
[0.21, 0.21, 0.722]

In a phase all silos of a region draw noise with the multiplier of the region in that phase. An observer who sees L_p
sums with noise variance N_p learns the squared shift kappa² w² times the sum of L_p / N_p over the rounds of the silo.
Rounds of absence add nothing, and give nothing back.
"""

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.core.rosters import Rosters
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError


def rosters_of(federation: Topology) -> Rosters:
    """Returns the rosters of a federation whose membership changes; raises `ParameterError` for any other."""
    if federation.rosters is None:
        raise ParameterError("schedule.missing", federation=federation.name)
    return federation.rosters


def variance_by_silo(federation: Topology, multiplier: FloatArray, phase: int) -> FloatArray:
    """Returns by silo the noise variance in the sums of a phase, in units of C²; 0 for a silo outside of the roster."""
    squared = (federation.weights * multiplier[phase][federation.innermost.parent_of]) ** 2
    return np.asarray(np.where(rosters_of(federation).present[phase], squared, 0.0))


def noise_of_phase(
    federation: Topology, multiplier: FloatArray, phase: int, tier: str, excluded_silos: int = 0
) -> FloatArray:
    """Returns by silo the noise variance that conceals the silo from an observer of a tier, in one phase.

    Against coalitions the result is for the worst of each region, as in `remaining_noise`.
    """
    variance = variance_by_silo(federation, multiplier, phase)
    return remaining_noise(federation, variance, tier=tier, excluded_silos=excluded_silos)


def concealing_noise(federation: Topology, multiplier: FloatArray, tier: str, excluded_silos: int = 0) -> FloatArray:
    """Returns by silo the constant noise variance of T rounds with the squared shift of the silo's own rounds.

    Args:
        federation: The silos, with rosters.
        multiplier: By phase and region, the noise multiplier of each silo.
        tier: The observer's tier.
        excluded_silos: The number of silos of every region whose noise does not count, the worst in every phase.
    """
    rosters = rosters_of(federation)
    inverse = np.zeros(len(federation))
    for phase, length in enumerate(rosters.lengths.tolist()):
        there = rosters.present[phase]
        inverse[there] += length / noise_of_phase(federation, multiplier, phase, tier, excluded_silos)[there]
    return np.asarray(rosters.rounds / inverse)


def mean_variance(federation: Topology, multiplier: FloatArray) -> FloatArray:
    """Returns by silo the noise variance that the silo brings into a sum, as the mean of all rounds."""
    lengths = rosters_of(federation).lengths
    by_phase = (
        length * variance_by_silo(federation, multiplier, phase) for phase, length in enumerate(lengths.tolist())
    )
    return np.asarray(sum(by_phase) / lengths.sum())
