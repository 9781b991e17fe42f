"""The parameters of a silo's releases under a plan, taken from the verified plan.

>>> from fulcrum.planning.planner import plan
>>> sample = plan("isic-paper", rounds=2, epsilon=1.0, parameters=6, purpose="deployment")
>>> parameters = release_parameters_of(sample, "region-1-1")
>>> parameters.region, parameters.rounds, parameters.clip_norm, parameters.width >= sample.lattice_width(0)
('region-1', 2, 1.0, True)
"""

import math
import operator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from fulcrum.core.lattice import check_fits
from fulcrum.core.noise.mechanism import LatticeMechanism
from fulcrum.core.plan.figures import group_tier, multiplier_of_round, own_rounds
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
        own_rounds: The number of releases that the plan expects of the silo.
        cost: The squared shifts of a release, by observer.
        allowance: The squared shifts that the plan allows in total.
    """

    plan_digest: str
    silo: str
    region: str
    own_rounds: int
    cost: Cost
    allowance: Allowance

    @property
    def rounds(self) -> int:
        """The number of releases that the plan allows."""
        return self.own_rounds


_SHOWN = 2**63
"""The largest round that an error shows."""

_PASSED: dict[tuple[str, str, int, str, type, bytes], ReleaseParameters] = {}


def release_parameters_of(
    plan: SupportsContent, silo: str, round_number: int | None = None, *, policy: Policy | None = None
) -> ReleaseParameters:
    """Returns the parameters of a silo's releases under a plan that verifies and that the silo's policy allows.

    Where membership changes, the parameters belong to the phase of one round, and `round_number` is required: the noise
    of another phase may be less than the round needs.

    All parameters come from the `VerifiedPlan`: a plan object that was changed in memory after its verification has no
    influence. The policy is checked once for a plan, issuer and silo, and again after every change of the policy.

    Raises:
        ReleaseError: The plan does not know the silo, fails verification, or is a plan for research; or the silo takes
            no part in the round.
        PolicyError: The policy forbids the plan.
    """
    sound = verified_plan(plan, error=ReleaseError)
    rules = b"" if policy is None else msgspec.msgpack.encode(policy)  # not JSON, which writes inf and nan alike
    phase, rosters = -1, sound.federation.rosters
    if rosters is not None:
        if round_number is None:
            raise ReleaseError("release.round-missing")
        phase = rosters.phase(checked_round(sound, round_number, silo))
    if (key := (sound.digest, silo, phase, sound.issuer, type(policy), rules)) not in _PASSED:
        _PASSED[key] = _checked_parameters(sound, silo, round_number, policy)
    return _PASSED[key]


def checked_round(plan: VerifiedPlan, round_number: Any, silo: str | None = None) -> int:
    """Returns a round as an integer; raises `ReleaseError` for a round outside of the plan, or without the silo."""
    try:
        number = operator.index(round_number)
    except TypeError:
        raise ReleaseError("release.round-type", round_number=round_number) from None
    if not 1 <= number <= plan.rounds:
        shown = max(-_SHOWN, min(number, _SHOWN))  # Python writes no integer of more than 4,300 digits
        raise ReleaseError("release.round-outside-plan", round_number=shown, rounds=plan.rounds)
    rosters = plan.federation.rosters
    if silo is not None and rosters is not None and not rosters.has(plan.index_of(silo, ReleaseError), number):
        raise ReleaseError("release.round-without-silo", round_number=number, silo=silo)
    return number


def _checked_parameters(
    plan: VerifiedPlan, silo: str, round_number: int | None, policy: Policy | None
) -> ReleaseParameters:
    index = plan.index_of(silo, ReleaseError)
    if policy is not None:
        policy.check(plan, silo)
    if plan.lattice_steps is None or plan.parameters is None:
        raise ReleaseError("plan.lattice-missing")
    region = int(plan.federation.innermost.parent_of[index])
    weight = float(plan.federation.weights[index])
    multiplier = multiplier_of_round(plan, index, round_number or 1)
    step = float(plan.lattice_steps[region])
    width = _rounded_up(Fraction(multiplier) * Fraction(weight) * Fraction(plan.clip_norm) / Fraction(step))
    signal = weight * plan.clip_norm / step * float(plan.largest_sums[index])
    check_fits(signal=signal, width=width, members=len(plan.federation), silo=silo)
    cost = plan.release_cost(silo, round_number)
    before = {tier: float(plan.spent[tier][index]) if tier in plan.spent else 0.0 for tier in cost}
    total = {tier: before[tier] + spent for tier, spent in plan.whole_cost(silo).items()}
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
        own_rounds=own_rounds(plan, index),
        cost=Cost(shifts=cost, alone=plan.release_cost_alone(silo, round_number or 0)),
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
