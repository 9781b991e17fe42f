"""The information about a silo's sensitive-class concentration: bound, informativeness, cost of a wrong prior.

>>> print(f"{mechanism_information(25.82, rounds=10):.3f} nats from the mechanism")
0.030 nats from the mechanism

All information is in nats. A multiplier here is the effective multiplier: the noise that an observer meets over the
silo's weight, in units of the clip norm. The information floor comes from the silo's group and flows around the
mechanism: no noise lowers the floor.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fulcrum.arrays import FloatArray, FloatLike, read_only
from fulcrum.core.choices import BOUNDS
from fulcrum.core.privacy_unit import SILO_UNIT
from fulcrum.errors import ParameterError, ShownValue, UnreachableTargetError, listing, suggestion
from fulcrum.planning.theory.prior import (
    Coupling,
    above_zero,
    at_least_one,
    lateral_floor,
    like_input,
    prior_entropy,
    strength_of,
)
from fulcrum.rounding import rounded_up

_PER_ROUND = {"paper": SILO_UNIT.sensitivity**2 / 2, "capacity": 0.5}
"""Nats of a round times s², in the limit of many parameters: half of a squared distance in units of C, between two
updates for `paper` and from an update to the centre for `capacity`. The unit here is always the silo."""


def mechanism_information(
    multiplier: FloatLike, *, rounds: int, bound: str = "paper", parameters: int | None = None
) -> float | FloatArray:
    """Returns the mechanism term of Theorem 2 over all rounds, in nats, at effective multiplier s.

    - `paper`: 2 T / s^2, the largest divergence between silo-adjacent inputs (diameter 2C of the clip ball).
    - `capacity`: T (d/2) ln(1 + 1/(d s^2)), the capacity of the Gaussian channel whose input lies in the ball of radius
      C; the bound holds round by round given the past. Never above T/(2 s^2), a quarter of `paper`. `capacity` tightens
      the information bound alone: at equal information the epsilon is larger.

    Args:
        multiplier: s, at least 0. 0 gives inf, inf gives 0.
        rounds: T.
        bound: One of `BOUNDS`.
        parameters: d, for `capacity`; None is the limit of many parameters, T/(2 s^2). `paper` does not use d.
    """
    _check_channel(rounds, bound, parameters)
    s = _non_negative("multiplier", multiplier)
    with np.errstate(divide="ignore", over="ignore"):
        if bound == "capacity" and parameters is not None:
            signal = -2 * np.log(s) - math.log(parameters)
            return like_input(rounds * parameters / 2 * np.logaddexp(0.0, signal))
        return like_input(_PER_ROUND[bound] * rounds * (1 / s) ** 2)


def information_of_shift(squared_shift: FloatArray, *, bound: str = "paper") -> FloatArray:
    """Returns the nats that releases of this squared shift in all (mu², the sum of kappa² / s²) reveal at most.

    The result is `mechanism_information` for releases of which the shift alone is known: mu²/2 by `paper`, mu²/8 by
    `capacity` in the limit of many parameters, which is never below the capacity for fewer.
    """
    _check_channel(1, bound, None)
    return np.asarray(squared_shift) / (2 if bound == "paper" else 2 * SILO_UNIT.sensitivity**2)


def shown_nats(nats: float, *, digits: int = 4) -> str:
    """Returns a bound in nats for people, rounded up: a printed bound must be true, the last bits of a sum apart.

    >>> shown_nats(0.88001), shown_nats(2.2 * (1 + 1e-15))
    ('0.8801', '2.2')
    """
    return f"{rounded_up(nats * (1 - 1e-12), digits=digits):g}"


def multiplier_for_information(
    nats: FloatLike, *, rounds: int, bound: str = "paper", parameters: int | None = None
) -> float | FloatArray:
    """Returns the least effective multiplier whose mechanism term over all rounds is `nats`: the inverse.

    `nats` is K - ell, the part of a target that is left to the mechanism after the floor; above 0, and inf gives 0. The
    remaining arguments are those of `mechanism_information`.
    """
    _check_channel(rounds, bound, parameters)
    left = np.asarray(nats, dtype=np.float64)
    wrong = left[~(left > 0)]
    if wrong.size:
        raise ParameterError("leakage.nats-range", nats=wrong[0])
    if bound == "capacity" and parameters is not None:
        x = 2 * left / rounds / parameters
        return like_input(np.exp(-x / 2) / np.sqrt(-parameters * np.expm1(-x)))
    return like_input(np.sqrt(_PER_ROUND[bound] * rounds / left))


def information_bound(
    multiplier: FloatLike,
    *,
    floor: FloatLike,
    entropy: FloatLike,
    rounds: int,
    bound: str = "paper",
    parameters: int | None = None,
) -> float | FloatArray:
    """Returns Theorem 2's bound on the information of any estimate of a silo's concentration, min(H, T m + ell)."""
    mechanism = mechanism_information(multiplier, rounds=rounds, bound=bound, parameters=parameters)
    total = mechanism + _non_negative("floor", floor)
    return like_input(np.minimum(_non_negative("entropy", entropy), total))


def quantised_entropy(concentrations: FloatLike, *, levels: int) -> float:
    """Returns the empirical entropy in nats of concentrations quantised to equal levels; 1.0 is in the last level."""
    at_least_one("levels", levels)
    p = np.asarray(concentrations, dtype=np.float64).ravel()
    wrong = p[~((p >= 0) & (p <= 1))]
    if wrong.size or not p.size:
        raise ParameterError(
            "leakage.concentration-range", concentration=wrong[0] if wrong.size else ShownValue("none")
        )
    counts = np.unique(np.minimum(np.floor(p * levels), levels - 1), return_counts=True)[1]
    return float(special.entr(counts / p.size).sum())


def finest_resolution(records: float) -> int:
    """Returns the most levels that a silo with `records` records can resolve, floor(2 sqrt(N)) and at least 1.

    The sampling error of a concentration is up to sqrt(1 / 4N), so a finer level is not identifiable.

    >>> finest_resolution(200)
    28
    """
    if not 0 <= records < math.inf:
        raise ParameterError("federation.records-range", least=0, records=records)
    return max(1, math.isqrt(math.floor(4 * records)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Informativeness:
    """The test of a guarantee at one resolution (Remark 3): is the bound below the entropy?

    Attributes:
        levels: R, the levels to which the concentration is quantised.
        resolution: 1 / R.
        entropy: H of the quantised concentration, in nats.
        floor: The information floor, in nats.
        margin: H - ell, the part that the mechanism is responsible for; negative when the floor alone exceeds the
            entropy.
        mechanism: The mechanism term over all rounds, in nats.
        informative: True if the mechanism term is below the margin; otherwise the bound is the entropy itself.
        identifiable: True if the silo has enough records to resolve `levels` levels.
    """

    levels: int
    resolution: float
    entropy: float
    floor: float
    margin: float
    mechanism: float
    informative: bool
    identifiable: bool


def informativeness(
    *, mechanism: float, floor: float, levels: int, entropy: float, records: float | None = None
) -> Informativeness:
    """Returns the test of Remark 3, T m < H - ell, at one resolution. Entropy grows with levels: test several.

    The arguments are the fields of `Informativeness`, and the silo's `records`, which cap the useful levels if given.
    """
    at_least_one("levels", levels)
    for name, value in (("mechanism", mechanism), ("floor", floor), ("entropy", entropy)):
        _non_negative(name, value)
    return Informativeness(
        levels=levels,
        resolution=1 / levels,
        entropy=entropy,
        floor=floor,
        margin=entropy - floor,
        mechanism=mechanism,
        informative=mechanism < entropy - floor,
        identifiable=records is None or levels <= finest_resolution(records),
    )


def informativeness_of(
    information: float | None,
    *,
    floor: float,
    coupling: float | Coupling,
    levels: int,
    records: float | None = None,
) -> Informativeness:
    """Returns the test of a bound of K nats at one resolution under the prior of `lateral_floor`.

    Args:
        information: K; None for entropy and margin alone.
        floor: The information floor, which K must exceed.
        coupling: The coupling of the prior, for the entropy.
        levels: R.
        records: The records of the smallest silo.
    """
    if information is not None and information <= floor:
        raise ParameterError("target.information-below-floor", information=information, floor=floor, whose="")
    return informativeness(
        mechanism=0.0 if information is None else information - floor,
        floor=floor,
        levels=levels,
        entropy=prior_entropy(coupling, levels=levels),
        records=records,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CouplingCost:
    """The cost of an allocation with an assumed coupling that differs from the true coupling.

    Attributes:
        overshoot: By group size, ell(true) - ell(assumed): nats by which the target is exceeded, if positive.
        worst_overshoot: The largest overshoot.
        noise_ratio: By group size, the noise variance spent over the variance that the true coupling needs, (K -
            ell(true)) / (K - ell(assumed)). 0 if no noise would do under the true coupling.
    """

    overshoot: FloatArray
    worst_overshoot: float
    noise_ratio: FloatArray


def cost_of_coupling(
    group_sizes: npt.ArrayLike,
    *,
    assumed: float | Coupling,
    true: float | Coupling,
    information: float,
    levels: int | None = 400,
) -> CouplingCost:
    """Returns the cost of an assumed coupling that differs from the true coupling (the paper's sensitivity analysis).

    The error in the floor enters the bound additively and in full. Overestimating the coupling keeps the target, but is
    paid for in noise.

    Args:
        group_sizes: Members by group; at least one group.
        assumed: The coupling that the allocation was made with.
        true: The true coupling.
        information: K, the target in nats, above every assumed floor.
        levels: The levels of `lateral_floor`.

    Raises:
        UnreachableTargetError: K is at or below an assumed floor.
    """
    sizes = np.atleast_1d(np.asarray(group_sizes, dtype=np.float64))
    if not sizes.size:
        raise ParameterError("leakage.groups-missing")
    above_zero("information", information)
    believed = np.asarray(lateral_floor(sizes, coupling=assumed, levels=levels))
    actual = np.asarray(lateral_floor(sizes, coupling=true, levels=levels))
    worst = int(believed.argmax())
    if information <= believed.flat[worst]:
        least = math.floor(believed.flat[worst] * 1000 + 1) / 1000
        raise UnreachableTargetError(
            "leakage.floor-above-information",
            information=information,
            group_size=sizes.flat[worst],
            coupling=strength_of(assumed),
            floor=believed.flat[worst],
            least=least,
        )
    overshoot = actual - believed
    return CouplingCost(
        overshoot=read_only(overshoot),
        worst_overshoot=float(overshoot.max()),
        noise_ratio=read_only(np.maximum(information - actual, 0.0) / (information - believed)),
    )


def _non_negative(name: str, value: FloatLike) -> FloatArray:
    array = np.asarray(value, dtype=np.float64)
    wrong = array[~(array >= 0)]
    if wrong.size:
        raise ParameterError("leakage.value-negative", name=name, value=wrong[0])
    return array


def _check_channel(rounds: int, bound: str, parameters: int | None) -> None:
    at_least_one("rounds", rounds)
    if bound not in BOUNDS:
        raise ParameterError(
            "leakage.bound-unknown", known=listing(BOUNDS), bound=bound, suggestion=suggestion(bound, BOUNDS)
        )
    if parameters is not None:
        at_least_one("parameters", parameters)
