"""Every way of keeping a target side by side: what it costs, what it gives both observers, and whom it quietens.

>>> for row in compare("consortium", rounds=10, epsilon=1.0)[:2]:
...     print(f"{row.allocation:8} budget {row.noise_budget:.3f}, inside {row.epsilon_inside_worst:.2f}")
optimal  budget 1.336, inside 6.87
uniform  budget 11.134, inside 1.00

The paper's allocations come first, at weights by size. Then comes what goes beyond the paper: weights of least noise,
and weights, clip and server chosen together.

>>> last = compare("consortium", rounds=10, epsilon=1.0, parameters=66)[-1]
>>> f"{last.allocation}: the quietest region counts {last.least_influence:.2f} of its share by size"
'joint: the quietest region counts 0.05 of its share by size'
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.inside_observer import inside_observer, with_observer_name
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_figures import with_noise
from fulcrum.planning.planner import plan
from fulcrum.planning.recipes import RECIPES
from fulcrum.planning.theory.allocation import ALLOCATIONS, AllocationRule, allocate
from fulcrum.readers.federation_reader import read_federation


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What one way of keeping a target costs and gives; epsilons are worst and mean over silos, for both observers.

    Attributes:
        allocation: The paper's rule of the noise, at weights by size; or the name of one of `BEYOND`, or
            `ONE_GROUP`, or `AS_ASKED`.
        noise_budget: The noise variance entering the model, in units of C²; with a server that pools, where regions
            agree, as its influence is; with momentum, scaled to the signal of added-up sums (`Plan.model_noise`).
        epsilon_above_worst: Against whoever sees the sums of the innermost tier; under `ONE_GROUP` there are none but
            the federation's.
        epsilon_above_mean: The same, mean over silos.
        epsilon_inside_worst: Against whoever sees single updates; where sums are masked, against the server together
            with max(1, c) silos of the region; of each region, where all silos are masked as one group.
        epsilon_inside_mean: The same, mean over silos.
        least_influence: Of the region that is quietened most, its share of the model over its share by size; 1 where
            all count by size.
    """

    allocation: str
    noise_budget: float
    epsilon_above_worst: float
    epsilon_above_mean: float
    epsilon_inside_worst: float
    epsilon_inside_mean: float
    least_influence: float


BEYOND: Mapping[str, Mapping[str, Any]] = {
    "least-noise": {"weights": "least-noise"},
    "joint": {"recipe": "joint"},
}
"""What a comparison shows after the paper's rules, as arguments of `plan`: other weights alone, the joint recipe."""

ONE_GROUP = "one masked group"
"""The row of a comparison of masked plans in which all silos are masked as one group, and nobody sees a regional sum:
its target is that of the regional sums, on the federation's sum."""

AS_ASKED = "as asked"
"""The row of weights, clip and server that were asked for, where they are none of the others'."""

_CHOSEN_TOGETHER = ("recipe", "weights", "server", "shrink")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlans:
    """What a comparison sets side by side.

    Attributes:
        rows: By name of the row, how its plan differs from a plain one with the same target, as arguments of `plan`.
        plans: By name of the row, its plan.
        left_out: By name of a row that cannot keep the target, why.
    """

    rows: Mapping[str, Mapping[str, Any]]
    plans: Mapping[str, Plan]
    left_out: Mapping[str, str]


def compare(
    federation: Any, *, allocation: str | AllocationRule | None = None, **target: Any
) -> tuple[Comparison, ...]:
    """Returns a row for each of the paper's allocations, the optimum first, then for what goes beyond the paper.

    The paper's allocations count silos by size, clip at C and add sums up. After them stand the user's own allocation,
    if given, and the rows of `BEYOND` that can keep the target; `compare_plans` says which cannot, and why.

    Args:
        federation: A `Federation`, or anything `read_federation` takes.
        allocation: One more to compare, "module:function" or a callable.
        **target: What every row must meet, as in `plan`. A recipe, weights or a server asked for make a last row.
    """
    read = read_federation(federation)
    named = with_observer_name(read, target.get("epsilon"), target.get("aggregation", "trusted"), stacklevel=3)
    plans = compare_plans(read, allocation, target | {"epsilon": named}).plans
    return tuple(comparison_row(made, name) for name, made in plans.items())


def compare_plans(federation: Topology, own: str | AllocationRule | None, target: Mapping[str, Any]) -> ComparedPlans:
    """Returns what a comparison sets side by side.

    `least-under-collusion` differs from the optimum with colluders or dropouts alone, and takes a target on the
    innermost tier. A row beyond the paper is left out where planning refuses it: the recipe needs the number of
    parameters, and a server that pools keeps no target on an outer tier. Masked plans have the row `ONE_GROUP` too.

    Args:
        federation: Whom the plans are for.
        own: One more allocation, "module:function" or a callable.
        target: As `plan` takes it.
    """
    epsilon = target.get("epsilon")
    innermost_alone = not isinstance(epsilon, Mapping) or set(epsilon) <= {federation.innermost.name}
    fits = bool(target.get("colluders") or target.get("dropouts")) and innermost_alone
    rows: dict[str, Mapping[str, Any]] = {
        name: {"allocation": name} for name in ALLOCATIONS if name != "least-under-collusion" or fits
    }
    if own is not None and own not in rows:
        rows[own if isinstance(own, str) else getattr(own, "__name__", "custom")] = {"allocation": own}
    asked = {name: target[name] for name in _CHOSEN_TOGETHER if target.get(name) is not None}
    if asked and asked not in ({"recipe": "paper"}, *BEYOND.values()):
        asked |= {"clip_norm": target["clip_norm"]} if target.get("clip_norm") == "auto" else {}
    else:
        asked = {}
    plans = {name: row_plan(federation, settings, target) for name, settings in rows.items()}
    left_out = {}
    more = {**BEYOND, **_as_one_group(federation, target), **({AS_ASKED: asked} if asked else {})}
    for name, settings in more.items():
        try:
            plans[name] = row_plan(federation, settings, target)
            rows[name] = settings
        except (ParameterError, UnreachableTargetError) as error:
            if name == AS_ASKED:
                raise
            left_out[name] = str(error)
    return ComparedPlans(rows=rows, plans=plans, left_out=left_out)


def _as_one_group(federation: Topology, target: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the row in which all silos are masked as one group; none where sums are not masked, or there is one."""
    epsilon = target.get("epsilon")
    if target.get("aggregation") != "masked" or epsilon is None or len(federation.innermost.nodes) == 1:
        return {}
    asked = dict(epsilon) if isinstance(epsilon, Mapping) else {federation.innermost.name: epsilon}
    inside = (SILO, inside_observer(federation, "masked"))
    outside = {tier: asked.pop(tier) for tier in list(asked) if tier not in inside}
    if set(outside) <= {ROOT}:  # it is one group in every row
        return {}
    return {ONE_GROUP: {"epsilon": asked | {ROOT: min(outside.values())}}}


def row_plan(federation: Topology, settings: Mapping[str, Any], target: Mapping[str, Any]) -> Plan:
    """Returns the plan of one row: the target, with nothing chosen but what the row says."""
    plain = {name: value for name, value in target.items() if name not in _CHOSEN_TOGETHER}
    if plain.get("clip_norm") == "auto" or "recipe" in settings:
        plain.pop("clip_norm", None)  # the recipe chooses its own
    return plan(federation, **(plain | dict(settings)))


def row_of(made: Plan, *, least_influence: float = 0.0) -> str | None:
    """Returns the name of the row that a plan would be in a comparison; None where it is none of those with a name.

    Args:
        made: The plan.
        least_influence: The least influence of a region that every row of the comparison keeps.
    """
    plain = made.server_rule.adds_up and made.clip_share == 1
    if plain and made.weights_rule == "sizes":
        return made.allocation
    if made.allocation != "optimal" or made.least_influence != least_influence:
        return None
    if plain and made.weights_rule == "least-noise":
        return "least-noise"
    joint = RECIPES["joint"]
    together = (made.weights_rule, made.server, made.shrink) == (joint.weights, joint.server, joint.shrink)
    return "joint" if together and made.clip_share < 1 else None


def least_influence(made: Plan) -> float:
    """Returns, of the region that is quietened most, its share of the model over its share by size."""
    inner = made.federation.innermost
    sizes = sum_by(inner.parent_of, made.federation.sizes, len(inner.nodes))
    return float((made.node_influence(inner.name) / (sizes / sizes.sum())).min())


def comparison_row(made: Plan, name: str) -> Comparison:
    """Returns the row of one plan."""
    return Comparison(
        allocation=name,
        noise_budget=made.model_noise,
        epsilon_above_worst=float(made.epsilon_above.max()),
        epsilon_above_mean=float(made.epsilon_above.mean()),
        epsilon_inside_worst=float(made.epsilon_inside.max()),
        epsilon_inside_mean=float(made.epsilon_inside.mean()),
        least_influence=least_influence(made),
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
    trade: aggregators inject the noise, sums are masked, single updates alone have a target, or the two ends are the
    same.

    >>> ends = observer_trade(plan("consortium", rounds=10, epsilon=1.0), points=2)
    >>> [(round(end.epsilon_inside, 2), round(end.noise_budget, 2)) for end in ends]
    [(6.87, 1.34), (1.0, 11.13)]
    """
    federation = made.federation
    others = {tier: asked for tier, asked in made.requirement.multiplier.items() if tier != SILO}
    if made.injection == "aggregator" or made.aggregation == "masked" or not others:
        return ()
    outside = replace(made.requirement, multiplier=others)
    least = float(allocate(federation, outside).min())
    most = float(allocate(federation, outside, "uniform")[0])
    if least >= most * (1 - 1e-9):
        return ()
    found = []
    for inside in np.geomspace(least, most, points).tolist():
        asked = replace(outside, multiplier=others | {SILO: inside})
        kept = with_noise(made, "optimal", allocate(federation, asked))
        factor = (made.noise_budget / kept.noise_budget) ** 0.5
        scaled = with_noise(made, "optimal", factor * kept.noise_multiplier)
        found.append(
            Trade(
                epsilon_inside=kept.worst_epsilon(SILO),
                noise_budget=kept.noise_budget,
                above_at_budget=scaled.worst_epsilon(),
                inside_at_budget=scaled.worst_epsilon(SILO),
            )
        )
    return tuple(found)
