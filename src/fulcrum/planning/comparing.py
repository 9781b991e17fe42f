"""Every allocation side by side, each meeting the same target: what it costs, and what it gives both observers.

>>> for row in compare("consortium", rounds=10, epsilon=1.0)[:2]:
...     print(f"{row.allocation:8} budget {row.noise_budget:.3f}, inside {row.epsilon_inside_worst:.2f}")
optimal  budget 1.336, inside 6.87
uniform  budget 11.134, inside 1.00
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.federation.reading import read_federation
from fulcrum.federation.structure import SILO, Federation
from fulcrum.planning.making import plan
from fulcrum.planning.plan import Plan
from fulcrum.privacy.allocation import ALLOCATIONS, AllocationRule, allocate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What one allocation costs and gives; epsilons are worst and mean over silos, for both observers."""

    allocation: str
    noise_budget: float
    epsilon_above_worst: float
    epsilon_above_mean: float
    epsilon_inside_worst: float
    epsilon_inside_mean: float


def compare(
    federation: Any, *, allocation: str | AllocationRule | None = None, **target: Any
) -> tuple[Comparison, ...]:
    """Returns one row for each built-in allocation, the optimum first, and one for the user's own if given.

    Args:
        federation: A `Federation`, or anything `read_federation` takes.
        allocation: One more to compare, "module:function" or a callable.
        **target: What every allocation must meet, as in `plan`.
    """
    federation = read_federation(federation)
    names = compared_allocations(federation, allocation, target)
    return tuple(summarised(plan(federation, allocation=name, **target)) for name in names)


def compared_allocations(
    federation: Federation, own: str | AllocationRule | None, target: Mapping[str, Any]
) -> list[str | AllocationRule]:
    """Returns the allocations that a comparison sets side by side, the user's own last.

    `least-under-collusion` differs from the optimum with colluders or dropouts alone, and takes a target on the
    innermost tier.
    """
    epsilon = target.get("epsilon")
    innermost_alone = not isinstance(epsilon, Mapping) or set(epsilon) <= {federation.innermost.name}
    fits = bool(target.get("colluders") or target.get("dropouts")) and innermost_alone
    names: list[str | AllocationRule] = [name for name in ALLOCATIONS if name != "least-under-collusion" or fits]
    return names if own is None or own in names else [*names, own]


def summarised(made: Plan) -> Comparison:
    """Returns the row of one plan."""
    return Comparison(
        allocation=made.allocation,
        noise_budget=made.noise_budget,
        epsilon_above_worst=float(made.epsilon_above.max()),
        epsilon_above_mean=float(made.epsilon_above.mean()),
        epsilon_inside_worst=float(made.epsilon_inside.max()),
        epsilon_inside_mean=float(made.epsilon_inside.mean()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """One way to divide noise between the observer above the regions and the one inside; epsilons are the worst.

    Attributes:
        epsilon_inside: Against whoever sees single updates, while every other promise of the plan is kept.
        noise_budget: What that needs, in units of C².
        above_at_budget: The epsilon above if the same division spends the plan's own budget.
        inside_at_budget: The epsilon inside then.
    """

    epsilon_inside: float
    noise_budget: float
    above_at_budget: float
    inside_at_budget: float


def observer_trade(made: Plan, *, points: int = 17) -> tuple[Trade, ...]:
    """Returns divisions of noise from the one that looks at the sums alone to one multiplier for all.

    Between them stand targets inside that grow tighter, each met with the least noise. Empty where there is nothing to
    trade: aggregators inject the noise, single updates alone have a target, or the two ends are the same.

    >>> ends = observer_trade(plan("consortium", rounds=10, epsilon=1.0), points=2)
    >>> [(round(end.epsilon_inside, 2), round(end.noise_budget, 2)) for end in ends]
    [(6.87, 1.34), (1.0, 11.13)]
    """
    federation = made.federation
    others = {tier: asked for tier, asked in made.requirement.multiplier.items() if tier != SILO}
    if made.injection == "aggregator" or not others:
        return ()
    outside = replace(made.requirement, multiplier=others)
    least = float(allocate(federation, outside).min())
    most = float(allocate(federation, outside, "uniform")[0])
    if least >= most * (1 - 1e-9):
        return ()
    found = []
    for inside in np.geomspace(least, most, points).tolist():
        asked = replace(outside, multiplier=others | {SILO: inside})
        kept = made.with_noise("optimal", allocate(federation, asked))
        factor = (made.noise_budget / kept.noise_budget) ** 0.5
        scaled = made.with_noise("optimal", factor * kept.noise_multiplier)
        found.append(
            Trade(
                epsilon_inside=kept.worst_epsilon(SILO),
                noise_budget=kept.noise_budget,
                above_at_budget=scaled.worst_epsilon(),
                inside_at_budget=scaled.worst_epsilon(SILO),
            )
        )
    return tuple(found)
