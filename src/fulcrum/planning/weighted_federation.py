"""A federation whose silos count for what was asked: weights by a rule, raised where a region would have too little.

>>> from fulcrum.readers.profiles import profile
>>> found = choose_weights(profile("severe"), "least-noise", Requirement(multiplier={}), server="sum")
>>> round(float(found.federation.weights[0]), 5), found.mix
(0.01465, 0.0)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import Topology
from fulcrum.planning.theory.allocation import Requirement
from fulcrum.planning.theory.weights import region_shares, weights_by
from fulcrum.rules.random_effects import mix_shares, mixing_share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightedFederation:
    """A federation whose silos count for what was asked.

    Attributes:
        federation: With its weights.
        mix: Which part of the regions' weights is by share, so that each has as much as it must.
        by_rule: By region, what it counts for by the rule alone; None where no shares are mixed in. Whoever reads a
            plan cannot take the shares out again to a useful precision where they are most of it.
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

    The regions' weights are mixed with their shares so far as `least_influence` needs; within a region silos keep their
    proportions. The rule "random-effects" sees to it itself.
    """
    federation = replace(federation, chosen_weights=None)
    if rule == "sizes" and federation.sizes_known and federation.declared_weights is None:
        return WeightedFederation(federation=federation)
    above = requirement.by_observer(federation)[0]
    weights = weights_by(rule, federation, above.multiplier, excluded_silos=above.excluded_silos)
    if server == "random-effects":
        return WeightedFederation(federation=federation.weighted(weights))
    inner, shares = federation.innermost, region_shares(federation)
    counted = sum_by(inner.parent_of, weights, len(inner.nodes))
    mix = float(mixing_share(counted, shares, least_influence))
    if not mix:
        return WeightedFederation(federation=federation.weighted(weights))
    raised = weights * (mix_shares(counted, shares, mix) / counted)[inner.parent_of]
    return WeightedFederation(federation=federation.weighted(raised), mix=mix, by_rule=read_only(counted))
