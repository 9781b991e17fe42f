"""The numbers that one silo's releases under a plan are made from, taken from the plan once it is verified.

>>> from fulcrum.planning.making import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0, parameters=6, purpose="deployment")
>>> terms = terms_of(made, "region-1-1")
>>> terms.region, terms.rounds, terms.clip_norm, terms.width >= made.lattice_width(0)
('region-1', 2, 1.0, True)
"""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import msgspec

from fulcrum.errors import FulcrumError, ReleaseError, suggestion
from fulcrum.ledger.ledger import Allowance, Assumptions, Cost
from fulcrum.planning.content_reading import content_in
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_reading import plan_of
from fulcrum.planning.verified_contents import check_verified
from fulcrum.privacy.lattice import check_fits
from fulcrum.roles.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The numbers of one plan that a silo's releases are made from, and nothing else of the plan.

    Attributes:
        plan_digest: The plan.
        silo: Whose releases.
        region: Whose sum they go into.
        parameters: Coordinates of an update.
        clip_norm: C.
        clip_share: The share of C at which an update is clipped before it is scaled up.
        weight: Of the silo in the sum.
        step: Of the lattice.
        width: Of the noise, in steps: multiplier * weight * C / step, the next number above where that is not one.
        cost: What a release spends.
        allowance: What the plan allows in all.
        numbers: What the plan said of this silo when it was verified.
    """

    plan_digest: str
    silo: str
    region: str
    parameters: int
    clip_norm: float
    clip_share: float
    weight: float
    step: float
    width: float
    cost: Cost
    allowance: Allowance
    numbers: tuple[Any, ...] = field(repr=False)

    @property
    def rounds(self) -> int:
        """How many releases the plan allows."""
        return self.allowance.rounds


_PASSED: dict[tuple[str, str, str, type, bytes], Terms] = {}
_VERIFIED: dict[tuple[str, str], Plan] = {}
_MOST_VERIFIED = 4
"""Plans that are kept as they were verified; of a large federation each is large."""


def terms_of(plan: Plan, silo: str, *, policy: Policy | None = None) -> Terms:
    """Returns what a silo's releases are made from, under a plan that verifies and that its policy passes.

    A plan that was read from a file was verified as it was read (`fulcrum.planning.plan_reading`), a plan made in
    memory is verified here; either once a process, whichever silos ask. A policy is asked once for a silo. The terms
    are made of what was verified, not of the object that was handed in. Every call holds the object's own numbers
    against them. So a plan that was changed in memory is refused: before it was verified, whatever was changed;
    afterwards, in any field, array or cached figure that this silo's releases use.

    This guards against accidents and objects used again, not against hostile code in the silo's own process.

    Raises:
        ReleaseError: The plan does not know the silo, does not hold what it says, or was changed in memory.
        PolicyError: The policy forbids it.
    """
    rules = b"" if policy is None else msgspec.msgpack.encode(policy)  # JSON would take inf and nan for one
    if (key := (plan.digest, plan.issuer, silo, type(policy), rules)) not in _PASSED:
        _PASSED[key] = _verified(plan, silo, policy)
    terms = _PASSED[key]
    try:
        unchanged = _numbers(plan, silo) == terms.numbers
    except (IndexError, TypeError, ValueError):  # not even of the right shape
        unchanged = False
    if not unchanged:
        raise _changed()
    return terms


def index_of(plan: Plan, silo: str) -> int:
    """Returns where a silo stands in a plan, or raises `ReleaseError`."""
    names: list[str] = plan.federation.silo_names.tolist()
    if silo not in names:
        raise ReleaseError(f"the plan knows no silo {silo!r}.{suggestion(silo, names)}")
    return names.index(silo)


def verified_plan(plan: Plan, *, error: type[FulcrumError] = ReleaseError) -> Plan:
    """Returns the plan of a digest and an issuer as it was verified: one object for all who ask, to be read alone.

    Another object of the same digest may have been changed in memory since. Nothing of it is in what is returned.

    Args:
        plan: The plan that was handed in.
        error: As in `verified_copy`.
    """
    key = (plan.digest, plan.issuer)
    copy = _VERIFIED.get(key)
    if copy is None:
        copy = _VERIFIED.setdefault(key, verified_copy(plan, error=error))  # of two threads, the first one's
        for oldest in list(_VERIFIED)[:-_MOST_VERIFIED]:
            _VERIFIED.pop(oldest, None)
    return copy


def verified_copy(plan: Plan, *, error: type[FulcrumError] = ReleaseError) -> Plan:
    """Returns a plan of the numbers that were verified, which nothing done to the given object changes any more.

    Args:
        plan: What was handed in.
        error: What is raised where it was changed in memory, or does not hold what it says.
    """
    if plan.changed:
        raise _changed(error)
    content = replace(plan).content()  # a copy has cached nothing
    check_verified(content, error)
    # The digest stays that of the file: another version of this program may word a plan differently, and silos, regions
    # and server know each other's messages by the digest of the file that they all hold.
    return plan_of(content_in(content)).read_from(plan.digest, issuer=plan.issuer)


def _verified(plan: Plan, silo: str, policy: Policy | None) -> Terms:
    index = index_of(plan, silo)
    sound = verified_plan(plan)
    if policy is not None:
        policy.check(sound, silo)
    if sound.lattice_steps is None or sound.parameters is None:
        raise ReleaseError("a research plan has no lattice. Make one with purpose='deployment'")
    region = int(sound.federation.innermost.parent_of[index])
    multiplier, weight = float(sound.noise_multiplier[index]), float(sound.federation.weights[index])
    step = float(sound.lattice_steps[region])
    width = _rounded_up(Fraction(multiplier) * Fraction(weight) * Fraction(sound.clip_norm) / Fraction(step))
    check_fits(signal=weight * sound.clip_norm / step, width=width, members=len(sound.federation), silo=silo)
    each = sound.cost(index)
    before = {tier: float(sound.target.spent[tier][index]) if tier in sound.target.spent else 0.0 for tier in each}
    total = {tier: before[tier] + sound.rounds * each[tier] for tier in each}
    return Terms(
        plan_digest=plan.digest,
        silo=silo,
        region=sound.federation.innermost.nodes[region],
        parameters=sound.parameters,
        clip_norm=sound.clip_norm,
        clip_share=sound.clip_share,
        weight=weight,
        step=step,
        width=width,
        cost=Cost(shifts=each, alone=sound.cost_alone(index)),
        allowance=Allowance(
            plan_digest=plan.digest, rounds=sound.rounds, shifts=total, assumptions=assumptions_of(sound)
        ),
        numbers=_numbers(sound, silo),
    )


def assumptions_of(plan: Plan) -> Assumptions:
    """Returns whom a plan counts as observers, for the ledger to compare plans by."""
    return Assumptions(
        federation=plan.federation.digest,
        colluders=plan.target.colluders,
        group=plan.group_tier if plan.aggregation == "masked" else "",
        continuing=plan.follows,
    )


def _numbers(plan: Plan, silo: str) -> tuple[Any, ...]:
    """What a plan says of one silo, as it stands in the object at this moment."""
    index, inner = index_of(plan, silo), plan.federation.innermost
    region, steps = int(inner.parent_of[index]), plan.lattice_steps
    return (
        plan.purpose,
        plan.injection,
        plan.aggregation,
        plan.rounds,
        plan.parameters,
        plan.clip_norm,
        plan.clip_share,
        float(plan.noise_multiplier[index]),
        float(plan.federation.weights[index]),
        inner.nodes[region],
        None if steps is None else float(steps[region]),
        dict(plan.keys),
    )


def _changed(error: type[FulcrumError] = ReleaseError) -> FulcrumError:
    return error("the plan was changed in memory, and nothing is released under it. Read or make it again")


def _rounded_up(exact: Fraction) -> float:
    """The least number of double precision that is not below a fraction."""
    near = float(exact)
    return near if Fraction(near) >= exact else math.nextafter(near, math.inf)
