"""The parameters of a silo's releases under a plan, taken from the verified plan.

>>> from fulcrum.planning.planner import plan
>>> sample = plan("isic-paper", rounds=2, epsilon=1.0, parameters=6, purpose="deployment")
>>> parameters = release_parameters_of(sample, "region-1-1")
>>> parameters.region, parameters.rounds, parameters.clip_norm, parameters.width >= sample.lattice_width(0)
('region-1', 2, 1.0, True)
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import msgspec

from fulcrum.core.lattice import check_fits
from fulcrum.core.noise.mechanism import LatticeMechanism
from fulcrum.core.plan.figures import group_tier
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.core.store.ledger import Allowance, Assumptions, ChargedUnit, Cost
from fulcrum.errors import ReleaseError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseParameters(LatticeMechanism):
    """The mechanism of a silo's releases under a plan, together with the cost of a release.

    A single object holds mechanism and cost, so the noise that is drawn is the noise that is charged. The width of the
    noise is multiplier * weight * C / step, rounded up to a number of double precision: the noise is never narrower
    than the plan's.

    Attributes:
        plan_digest: The digest of the plan.
        silo: The silo that releases.
        region: The region of the silo, whose sum contains the releases.
        cost: The squared shifts of a release, by observer.
        allowance: The squared shifts that the plan allows in total.
    """

    plan_digest: str
    silo: str
    region: str
    cost: Cost
    allowance: Allowance

    @property
    def rounds(self) -> int:
        """The number of releases that the plan allows."""
        return self.allowance.rounds


_PASSED: dict[tuple[str, str, str, type, bytes], ReleaseParameters] = {}


def release_parameters_of(plan: SupportsContent, silo: str, *, policy: Policy | None = None) -> ReleaseParameters:
    """Returns the parameters of a silo's releases under a plan that verifies and that the silo's policy allows.

    All parameters come from the `VerifiedPlan`: a plan object that was changed in memory after its verification has no
    influence. The policy is checked once for a plan, issuer and silo, and again after every change of the policy.

    Raises:
        ReleaseError: The plan does not know the silo, fails verification, or is a plan for research.
        PolicyError: The policy forbids the plan.
    """
    sound = verified_plan(plan, error=ReleaseError)
    rules = b"" if policy is None else msgspec.msgpack.encode(policy)  # not JSON, which writes inf and nan alike
    if (key := (sound.digest, sound.issuer, silo, type(policy), rules)) not in _PASSED:
        _PASSED[key] = _checked_parameters(sound, silo, policy)
    return _PASSED[key]


def _checked_parameters(plan: VerifiedPlan, silo: str, policy: Policy | None) -> ReleaseParameters:
    index = plan.index_of(silo, ReleaseError)
    if policy is not None:
        policy.check(plan, silo)
    if plan.lattice_steps is None or plan.parameters is None:
        raise ReleaseError("plan.lattice-missing")
    region = int(plan.federation.innermost.parent_of[index])
    multiplier, weight = float(plan.noise_multiplier[index]), float(plan.federation.weights[index])
    step = float(plan.lattice_steps[region])
    width = _rounded_up(Fraction(multiplier) * Fraction(weight) * Fraction(plan.clip_norm) / Fraction(step))
    signal = weight * plan.clip_norm / step * float(plan.largest_sums[index])
    check_fits(signal=signal, width=width, members=len(plan.federation), silo=silo)
    cost = plan.release_cost(silo)
    before = {tier: float(plan.spent[tier][index]) if tier in plan.spent else 0.0 for tier in cost}
    total = {tier: before[tier] + plan.rounds * cost[tier] for tier in cost}
    return ReleaseParameters(
        plan_digest=plan.digest,
        silo=silo,
        region=plan.federation.innermost.nodes[region],
        parameters=plan.parameters,
        clip_norm=plan.clip_norm,
        clip_share=plan.clip_share,
        weight=weight,
        step=step,
        width=width,
        largest_sum=float(plan.largest_sums[index]),
        cost=Cost(shifts=cost, alone=plan.release_cost_alone(silo)),
        allowance=Allowance(
            plan_digest=plan.digest, rounds=plan.rounds, shifts=total, assumptions=assumptions_of(plan, index)
        ),
    )


def assumptions_of(plan: PlanData, silo: int | None = None) -> Assumptions:
    """Returns the assumptions of a plan about its observers; the ledger compares plans by their assumptions.

    Args:
        plan: The plan.
        silo: The index of the silo whose releases are charged; None to compare earlier releases with the plan, which
            needs no largest sum of the plan.
    """
    return Assumptions(
        federation=plan.federation.digest,
        colluders=plan.colluders,
        group=group_tier(plan) if plan.is_masked else "",
        continuing=bool(plan.spent),
        unit=ChargedUnit(
            name=plan.unit.name,
            neighbours=plan.unit.neighbours,
            silos_per_person=int(plan.unit.silos_per_person),
            sensitivity=plan.unit.sensitivity,
            largest_sum=1.0 if silo is None else float(plan.largest_sums[silo]),
        ),
    )


def _rounded_up(exact: Fraction) -> float:
    """Returns the smallest number of double precision that is at least a fraction."""
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)
