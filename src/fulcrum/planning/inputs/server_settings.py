"""The server rule of a plan, with the server's knowledge of the regions before the first round."""

import math
from dataclasses import dataclass
from numbers import Real

import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.plan import figures
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import ROOT
from fulcrum.errors import ParameterError, ShownValue, in_one_line
from fulcrum.planning.theory.allocation import Requirement
from fulcrum.planning.theory.weights import least_noise_of_one_tier, region_shares
from fulcrum.rules.rule_registry import rule_named
from fulcrum.rules.server_rule import ServerRule


def requirement_of(plan: PlanData) -> Requirement:
    """Returns the effective multiplier that a plan's targets require of each silo, by tier."""
    return Requirement(
        multiplier=plan.required_multiplier,
        colluders=plan.colluders,
        dropouts=plan.dropouts,
        masked=plan.is_masked,
    )


def server_rule_of(plan: PlanData) -> ServerRule:
    """Returns the rule by which a plan's server moves the model.

    Raises:
        ParameterError: No rule has this name, or the rule's noise factor is no finite number above 0.
    """
    rule = rule_named(plan.server).of(FactsOfPlan(plan=plan))
    factor: object = rule.noise_factor()
    if not isinstance(factor, Real) or not 0 < float(factor) < math.inf:
        raise ParameterError(
            "server-rule.noise-factor-range", rule=plan.server, factor=ShownValue(in_one_line(repr(factor))[:60])
        )
    return rule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactsOfPlan:
    """The facts of a plan, computed when a rule needs them; see `fulcrum.rules.server_rule.PlanFacts`.

    If all silos are masked as one group, the federation is the only region: the server gets one sum.
    """

    plan: PlanData

    @property
    def shares(self) -> FloatArray:
        """The share of each region in all records, or in all silos."""
        if figures.is_one_group(self.plan):
            return read_only(np.ones(1))  # type: ignore[no-any-return]
        return read_only(region_shares(self.plan.federation))  # type: ignore[no-any-return]

    @property
    def weight(self) -> FloatArray:
        """The sum of the shares of each region's silos."""
        tier, federation = self._summed_tier, self.plan.federation
        return read_only(sum_by(federation.membership(tier), federation.shares, federation.node_count(tier)))  # type: ignore[no-any-return]

    @property
    def variance(self) -> FloatArray:
        """The variance of the noise in each coordinate of a region's sum, by region."""
        noise = figures.node_noise(self.plan, self._summed_tier)
        return read_only(noise * self.plan.clip_norm**2)  # type: ignore[no-any-return]

    @property
    def _summed_tier(self) -> str:
        return ROOT if figures.is_one_group(self.plan) else self.plan.federation.innermost.name

    @property
    def least_noise(self) -> float:
        """The noise budget of the least-noise weights: variance in the model in one round, in squared clip norms."""
        federation = self.plan.federation
        above = requirement_of(self.plan).by_observer(federation)[0]
        return least_noise_of_one_tier(federation, above.multiplier, excluded_silos=above.excluded_silos)
