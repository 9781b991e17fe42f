"""A federation with weights by a rule, raised for a region with less influence than the least influence.

>>> from fulcrum.readers.profiles import profile
>>> found = choose_weights(profile("severe"), "least-noise", Requirement(multiplier={}), server="sum")
>>> round(float(found.federation.weights[0]), 5), found.mix
(0.01465, 0.0)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import ROOT, Topology
from fulcrum.planning.theory.allocation import Requirement
from fulcrum.planning.theory.weights import region_shares, weights_by
from fulcrum.rules.random_effects import mix_shares, mixing_share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedFederation:
    """A federation with weights by a rule.

    Attributes:
        federation: The federation with its weights.
        mix: The part of the regions' weights that is by share, for the least influence of every region.
        by_rule: By region, the weight by the rule alone; None if no shares are mixed in. A reader of a plan cannot
            recover these weights to a useful precision if shares are most of the mixture.
    """

    federation: Topology
    mix: float = 0.0
    by_rule: FloatArray | None = None


def choose_weights(
    federation: Topology,
    rule: str | float | Mapping[str, float],
    requirement: Requirement,
    *,
    server: str,
    least_influence: float = 0.0,
) -> WeightedFederation:
    """Returns the federation with the weights that a rule gives.

    The regions' weights are mixed with their shares as far as `least_influence` needs; within a region silos keep their
    proportions. The server rule "random-effects" mixes by itself, unless all silos are masked as one group.
    """
    federation = replace(federation, chosen_weights=None)
    if (
        rule == "sizes"
        and federation.sizes_known
        and federation.declared_weights is None
        and federation.persons is None
    ):
        return WeightedFederation(federation=federation)
    above = requirement.by_observer(federation)[0]
    weights = weights_by(rule, federation, above.multiplier, excluded_silos=above.excluded_silos)
    one_group = requirement.masked and requirement.group_tier(federation) == ROOT
    if server == "random-effects" and not one_group:
        return WeightedFederation(federation=_with_shares(federation, weights))
    inner, shares = federation.innermost, region_shares(federation)
    counted = sum_by(inner.parent_of, weights, len(inner.nodes))
    mix = float(mixing_share(counted, shares, least_influence))
    if not mix:
        return WeightedFederation(federation=_with_shares(federation, weights))
    raised = weights * (mix_shares(counted, shares, mix) / counted)[inner.parent_of]
    return WeightedFederation(federation=_with_shares(federation, raised), mix=mix, by_rule=read_only(counted))


def _with_shares(federation: Topology, shares: FloatArray) -> Topology:
    """Returns the federation in which every silo has its share: weights of silos, or of each of a silo's persons."""
    return federation.with_weights(shares if federation.persons is None else shares / federation.persons)
