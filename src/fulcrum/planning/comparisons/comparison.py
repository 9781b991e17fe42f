"""Every way of keeping a target side by side: noise, epsilon against both observers, least influence.

>>> for row in compare("consortium", rounds=10, epsilon=1.0)[:2]:
...     print(f"{row.allocation:8} budget {row.noise_budget:.3f}, inside {row.epsilon_inside_worst:.2f}")
optimal  budget 1.336, inside 6.87
uniform  budget 11.134, inside 1.00

The paper's allocations come first, at weights by size. Then come the rows beyond the paper: equal weights within
regions, weights of least noise, weights, clip and server chosen together, and further levers.

>>> rows = {row.allocation: row for row in compare("consortium", rounds=10, epsilon=1.0, parameters=66)}
>>> f"joint: the least represented region has {rows['joint'].least_influence:.2f} of its influence by size"
'joint: the least represented region has 0.50 of its influence by size'
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from fulcrum.core.choices import SHRINKS_OF_HEADS
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.remaining_noise import sum_by
from fulcrum.core.topology import ROOT, SILO, Topology
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.notebook_display import NotebookDisplay
from fulcrum.planning.content.plan_figures import with_noise
from fulcrum.planning.inputs.inside_observer import inside_observer, with_observer_name
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import draft_plan
from fulcrum.planning.theory.allocation import ALLOCATIONS, AllocationRule, allocate
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.readers.federation_reader import read_federation


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The noise and the epsilons of one way of keeping a target; epsilons are worst and mean over silos.

    Attributes:
        allocation: The paper's rule of the noise, at weights by size; or the name of one of `BEYOND`, or `ONE_GROUP`,
            or `JOINT_GROUP`, or `AS_ASKED`.
        noise_budget: The noise variance entering the model, in units of C²; with a server that pools, for regions that
            agree, as its influence is; with momentum, scaled to the signal of added-up sums (`Plan.model_noise`).
        epsilon_above_worst: Against an observer of the sums of the innermost tier; under `ONE_GROUP` the only sum is
            the federation's.
        epsilon_above_mean: The same, mean over silos.
        epsilon_inside_worst: Against an observer of single releases; with masked sums, against the server together with
            max(1, c) silos of the region; of each region, if all silos are masked as one group.
        epsilon_inside_mean: The same, mean over silos.
        least_influence: The influence of the least represented region over its share by size; 1 if all weights are by
            size.
    """

    allocation: str
    noise_budget: float
    epsilon_above_worst: float
    epsilon_above_mean: float
    epsilon_inside_worst: float
    epsilon_inside_mean: float
    least_influence: float


Row = TypeVar("Row", bound=Comparison)


class Comparisons(NotebookDisplay, tuple[Row, ...]):
    """The rows of a comparison: a tuple of `Comparison`, with a display in notebooks and a data frame."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Returns the noise budgets of all rows in a line."""
        budgets = ", ".join(f"{row.allocation} {row.noise_budget:.4g}" for row in self)
        return f"<{type(self).__name__} of {len(self)} allocations, noise budget in C²: {budgets}>"

    def least_noise_sentence(self) -> str:
        """Returns a sentence on the row with the least noise, beside the noise of a single multiplier for all."""
        private = [row for row in self if row.noise_budget > 0]
        least = min(private, key=lambda row: row.noise_budget)
        beside = next((row for row in private if row.allocation in (EACH_SILO, "uniform")), private[0])
        return (
            f"Least noise: {least.allocation} with {least.noise_budget:.4g} C², where {beside.allocation} needs "
            f"{beside.noise_budget:.4g} C² for the same target."
        )


BEYOND: Mapping[str, Mapping[str, Any]] = {
    "equal": {"weights": "equal"},
    "least-noise": {"weights": "least-noise"},
    "joint": {"recipe": "joint"},
}
"""The rows after the paper's rules, as arguments of `plan`: other weights alone, the joint recipe. The weights "equal"
are equal within a region, and every region keeps its share."""

MASKED_SUMS = "masked sums"
"""The row with masked sums of each region, for plans with a target inside; the target then holds against the server
together with silos."""

HALF_THE_ROUNDS = "half the rounds"
"""The row with half the rounds, and the same epsilon over all of them."""

UNIT_PERSON = "unit person"
"""The row with persons as the unit of privacy: another promise, and C limits the gradient of one person, so that the
noise of the row cannot be compared with the noise of other rows."""

ONE_GROUP = "one masked group"
"""The row with all silos in one masked group, so that nobody sees a regional sum. The target of the regional sums is
then a target on the sum of the federation: another promise."""

JOINT_GROUP = "joint, one group"
"""The row of `ONE_GROUP` with the joint recipe for the one sum of the federation, where silos are protected."""

AS_ASKED = "as asked"
"""The row of the user's own weights, clip and server, if no other row has them."""

EACH_SILO = "each silo for itself"
"""The first row for persons and records: each silo draws noise for its own persons alone, as without regional sums. The
target above is then a target inside, and the sums hold more noise than any observer above needs."""

NO_PRIVACY = "no privacy"
"""The last row for persons and records: neither clip nor noise. The row has no plan."""

_CHOSEN_TOGETHER = ("recipe", "weights", "server", "shrink")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPlans:
    """The plans of a comparison, by row.

    Attributes:
        rows: Maps the name of a row to the arguments of `plan` that differ from a plan with the target alone.
        plans: Maps the name of a row to the plan of the row.
        left_out: Maps the name of a row without a plan to the reason for which no plan keeps the target.
        baseline: The name of the row from which gains in accuracy are counted.
    """

    rows: Mapping[str, Mapping[str, Any]]
    plans: Mapping[str, Plan]
    left_out: Mapping[str, str]
    baseline: str = "uniform"

    @property
    def unit(self) -> PrivacyUnit:
        """The unit of privacy, the same in every row."""
        return next(iter(self.plans.values())).unit

    def comparisons(self) -> list[Comparison]:
        """Returns the row of every plan; for persons and records also the row without privacy."""
        rows = [comparison_row(plan, name) for name, plan in self.plans.items()]
        return [*rows, row_without_privacy()] if self.unit.is_within_silo else rows


def compare(
    federation: Any, *, allocation: str | AllocationRule | None = None, **target: Any
) -> Comparisons[Comparison]:
    """Returns a row for each of the paper's allocations, the optimum first, then the rows beyond the paper.

    The paper's allocations have weights by size, a clip at C and added-up sums. After them stand the user's own
    allocation, if given, and the rows of `BEYOND` that can keep the target; `compare_plans` gives the reason for every
    row left out. The last rows are further levers: masked sums, half the rounds, and rows with another promise: one
    masked group, and the unit person. For persons and records the rows are: each silo for itself, regional sums with
    one multiplier, the optimum, the joint recipe, one masked group, and no privacy.

    Args:
        federation: A `Federation`, or any value that `read_federation` takes.
        allocation: One more allocation to compare, "module:function" or a callable.
        **target: The target of every row, as in `plan`. A recipe, weights or a server make a last row.
    """
    read = read_federation(federation)
    named = with_observer_name(read, target.get("epsilon"), target.get("aggregation", "trusted"), stacklevel=3)
    return Comparisons(compare_plans(read, allocation, target | {"epsilon": named}, levers=True).comparisons())


def compare_plans(
    federation: Topology, own: str | AllocationRule | None, target: Mapping[str, Any], *, levers: bool = False
) -> ComparedPlans:
    """Returns the plans of a comparison, by row.

    `least-under-collusion` differs from the optimum with colluders or dropouts alone, and takes a target on the
    innermost tier. A row beyond the paper is left out if planning refuses the row: the recipe needs the number of
    parameters, and a server that pools keeps no target on an outer tier. Masked plans have the row `ONE_GROUP` too. All
    rows for persons and records meet the same epsilon against the observer above, and `EACH_SILO` against the observer
    inside.

    Args:
        federation: The federation of the plans.
        own: One more allocation, "module:function" or a callable.
        target: As `plan` takes it.
        levers: True for the rows with other rounds, masks or another unit, which are not trained beside the others.
    """
    check_one_roster(federation, "a comparison")
    epsilon = target.get("epsilon")
    innermost_alone = not isinstance(epsilon, Mapping) or set(epsilon) <= {federation.innermost.name}
    fits = bool(target.get("colluders") or target.get("dropouts")) and innermost_alone
    by_person = target.get("unit", "silo") != "silo"
    rows: dict[str, Mapping[str, Any]] = {
        name: {"allocation": name} for name in ALLOCATIONS if name != "least-under-collusion" or fits
    }
    if by_person:
        rows = {**_by_itself(federation, target), **{name: {"allocation": name} for name in ("uniform", "optimal")}}
    baseline = EACH_SILO if EACH_SILO in rows else "uniform"
    if own is not None and own not in rows:
        rows[own if isinstance(own, str) else getattr(own, "__name__", "custom")] = {"allocation": own}
    choices = {name: target[name] for name in _CHOSEN_TOGETHER if target.get(name) is not None}
    if choices and choices not in ({"recipe": "paper"}, *BEYOND.values()):
        choices |= {"clip_norm": target["clip_norm"]} if target.get("clip_norm") == "auto" else {}
    else:
        choices = {}
    plans = {name: row_plan(federation, settings, target) for name, settings in rows.items()}
    left_out = {}
    beyond = {name: settings for name, settings in BEYOND.items() if name == "joint" or not by_person}
    more = {**beyond, **_as_one_group(federation, target)}
    further = _lever_rows(federation, target) if levers and not by_person else {}
    last = {AS_ASKED: choices} if choices else {}
    for name, settings in {**more, **further, **last}.items():
        try:
            plans[name] = row_plan(federation, settings, target)
            rows[name] = settings
        except (ParameterError, UnreachableTargetError) as error:
            if name == AS_ASKED:
                raise
            if name in more:  # a lever that cannot keep the target is no lever, and nobody asked for its row
                left_out[name] = str(error)
    return ComparedPlans(rows=rows, plans=plans, left_out=left_out, baseline=baseline)


def _lever_rows(federation: Topology, target: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the rows of levers that change more than weights and noise; the last two rows change the promise."""
    if target.get("budget") is not None or target.get("injection", "silo") != "silo":
        return {}
    rows: dict[str, Mapping[str, Any]] = {}
    inside, outside = _targets_of(federation, {} if target.get("epsilon") is None else target["epsilon"])
    masked = target.get("aggregation") == "masked"
    if inside and not masked:
        targets = {inside_observer(federation, "masked"): value for value in inside.values()}
        rows[MASKED_SUMS] = {"aggregation": "masked", "epsilon": targets | outside}
    if target["rounds"] > 1:
        rows[HALF_THE_ROUNDS] = {"rounds": target["rounds"] // 2}
    if outside and set(outside) != {ROOT} and federation.preferences is None and len(federation.innermost.nodes) > 1:
        targets = {inside_observer(federation, "masked"): value for value in inside.values()}
        rows[ONE_GROUP] = {"aggregation": "masked", "epsilon": targets | {ROOT: min(outside.values())}}
    return rows | {UNIT_PERSON: {"unit": "person"}}


def _as_one_group(federation: Topology, target: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the row with all silos masked as one group.

    Plans of silos have the row if their sums are masked and there are several regions; plans of persons always.
    """
    epsilon, masked = target.get("epsilon"), target.get("aggregation") == "masked"
    by_person = target.get("unit", "silo") != "silo"
    if epsilon is None or not (by_person or (masked and len(federation.innermost.nodes) > 1)):
        return {}
    inside, outside = _targets_of(federation, epsilon)
    if not outside or (masked and set(outside) <= {ROOT}):  # every row has one group then
        return {}
    targets = {inside_observer(federation, "masked"): value for value in inside.values()}
    group: dict[str, Any] = {"epsilon": targets | {ROOT: min(outside.values())}}
    group = group if masked else group | {"aggregation": "masked"}
    return {ONE_GROUP: group} | ({} if by_person else {JOINT_GROUP: group | {"recipe": "joint"}})


def _by_itself(federation: Topology, target: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the row of silos that each protect their own persons; no row without a target in epsilon."""
    if target.get("epsilon") is None:
        return {}
    inside, outside = _targets_of(federation, target["epsilon"])
    strictest = min([*inside.values(), *outside.values()])
    return {EACH_SILO: {"epsilon": {inside_observer(federation, "trusted"): strictest}, "aggregation": "trusted"}}


def _targets_of(federation: Topology, epsilon: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the epsilon targets against the observer inside, and against observers of sums."""
    targets = dict(epsilon) if isinstance(epsilon, Mapping) else {federation.innermost.name: epsilon}
    names = {SILO, *(inside_observer(federation, aggregation) for aggregation in ("trusted", "masked"))}
    inside = {tier: targets.pop(tier) for tier in list(targets) if tier in names}
    return inside, targets


def row_plan(federation: Topology, settings: Mapping[str, Any], target: Mapping[str, Any]) -> Plan:
    """Returns the plan of one row: the target, with the choices of the row alone."""
    plain = {name: value for name, value in target.items() if name not in _CHOSEN_TOGETHER}
    if "recipe" not in settings and "server" not in settings:  # a server that adds up has no prior
        plain = {name: value for name, value in plain.items() if name not in ("public", "embedding")}
    if plain.get("clip_norm") == "auto" or "recipe" in settings:
        plain.pop("clip_norm", None)  # the recipe chooses its own
    return draft_plan(federation, **(plain | dict(settings)))


def row_of(plan: Plan, *, least_influence: float | None = None) -> str | None:
    """Returns the name of a plan's row in a comparison; None if no row has the plan's settings.

    Args:
        plan: The plan.
        least_influence: The least influence of a region that every row of the comparison keeps; the recipe's if None.
    """
    plain = plan.server_rule.adds_up and plan.clip_share == 1
    if plain and plan.weights_rule == "sizes":
        return plan.allocation
    if plan.allocation != "optimal":
        return None
    if plain and plan.weights_rule in ("equal", "least-noise"):
        return str(plan.weights_rule) if plan.least_influence == (least_influence or 0.0) else None
    joint = recipe_for(RECIPES["joint"], plan.unit, one_group=plan.one_group)
    together = (plan.weights_rule, plan.server) == (joint.weights, joint.server)
    together = together and plan.shrink in SHRINKS_OF_HEADS
    least = joint.least_influence if least_influence is None else least_influence
    return "joint" if together and plan.clip_share < 1 and plan.least_influence == least else None


def least_influence(plan: Plan) -> float:
    """Returns the influence of the least represented region over its share by size."""
    inner = plan.federation.innermost
    sizes = sum_by(inner.parent_of, plan.federation.sizes, len(inner.nodes))
    return float((plan.node_influence(inner.name) / (sizes / sizes.sum())).min())


def comparison_row(plan: Plan, name: str) -> Comparison:
    """Returns the row of one plan."""
    return Comparison(
        allocation=name,
        noise_budget=plan.model_noise,
        epsilon_above_worst=float(plan.epsilon_above.max()),
        epsilon_above_mean=float(plan.epsilon_above.mean()),
        epsilon_inside_worst=float(plan.epsilon_inside.max()),
        epsilon_inside_mean=float(plan.epsilon_inside.mean()),
        least_influence=least_influence(plan),
    )


def row_without_privacy() -> Comparison:
    """Returns the row of training with neither clip nor noise: no epsilon is finite."""
    return Comparison(
        allocation=NO_PRIVACY,
        noise_budget=0.0,
        epsilon_above_worst=math.inf,
        epsilon_above_mean=math.inf,
        epsilon_inside_worst=math.inf,
        epsilon_inside_mean=math.inf,
        least_influence=1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """A division of noise between the observer above the regions and the observer inside; epsilons are the worst.

    Attributes:
        epsilon_inside: Against an observer of single releases, while the plan keeps every other promise.
        noise_budget: The noise of the division, in units of C².
        above_at_budget: The epsilon above if the same division spends the plan's own budget.
        inside_at_budget: The epsilon inside then.
    """

    epsilon_inside: float
    noise_budget: float
    above_at_budget: float
    inside_at_budget: float


def observer_trade(plan: Plan, *, points: int = 17) -> tuple[Trade, ...]:
    """Returns divisions of noise, from the division for sums alone to one multiplier for all.

    Between the two ends stand tighter and tighter targets inside, each met with the least noise. Empty if the plan has
    nothing to trade: aggregators inject the noise, sums are masked, single releases alone have a target, membership
    changes, or the two ends are the same.

    >>> ends = observer_trade(draft_plan("consortium", rounds=10, epsilon=1.0), points=2)
    >>> [(round(end.epsilon_inside, 2), round(end.noise_budget, 2)) for end in ends]
    [(6.87, 1.34), (1.0, 11.13)]
    """
    federation = plan.federation
    others = {tier: required for tier, required in plan.requirement.multiplier.items() if tier != SILO}
    if not plan.silos_draw_noise or plan.is_masked or not others or federation.rosters is not None:
        return ()
    outside = replace(plan.requirement, multiplier=others)
    least = float(allocate(federation, outside).min())
    most = float(allocate(federation, outside, "uniform")[0])
    if least >= most * (1 - 1e-9):
        return ()
    trades = []
    for inside in np.geomspace(least, most, points).tolist():
        required = replace(outside, multiplier=others | {SILO: inside})
        division = with_noise(plan, "optimal", allocate(federation, required))
        factor = (plan.noise_budget / division.noise_budget) ** 0.5
        scaled = with_noise(plan, "optimal", factor * division.noise_multiplier)
        trades.append(
            Trade(
                epsilon_inside=division.worst_epsilon(SILO),
                noise_budget=division.noise_budget,
                above_at_budget=scaled.worst_epsilon(),
                inside_at_budget=scaled.worst_epsilon(SILO),
            )
        )
    return tuple(trades)
