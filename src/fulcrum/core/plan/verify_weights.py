"""Checks the weights of a plan file: recomputed, or compared with the conditions of an optimum.

Weights by size, equal weights and weights of least noise on a single tier are recomputed silo by silo. Weights between
sizes and least noise, and weights for targets on several tiers, are not solved for again: a solver shared with the
planner would repeat the planner's mistakes. Instead the weights are compared with the conditions of their optimum,
which no other weights fulfil. On several tiers the condition is a linear program: every convex constraint is replaced
by the tangent at the weights of the file, so the optimum of the program is below the true optimum, and weights that
reach the program's optimum cannot be improved.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fulcrum.core.plan.plan_file import PlanFile, Required, values_by_silo
from fulcrum.core.plan.recomputed import Recomputed, largest_by_node, sum_by_node
from fulcrum.core.topology import ROOT, SILO

_TOLERANCE = 1e-9  # relative, of a weight
_NEAR_LEAST = 1e-6  # relative, of the quantity that the program minimises
_NOTHING_ASKED = 1e-8  # of the largest multiplier


def weights_problem(content: PlanFile, seen: Recomputed) -> str:
    """Returns the reason for which the weights do not follow from the settings, or an empty string.

    - The weights of all silos add up to 1.
    - Every region has the promised least influence; shares are mixed in exactly as far as the promise needs.
    - Without the mixed shares the weights are those of the rule. Weights given by silo have no rule.
    """
    settings = content.settings
    total = math.fsum(seen.share)
    if not math.isclose(total, 1, rel_tol=_TOLERANCE):
        return f"weights add up to {total:.9g}"
    share = _shares(content, seen)
    counted = sum_by_node(seen.region, seen.share)
    mix = settings.influence_mix
    pools = settings.server == "random-effects" and seen.group != ROOT
    if pools and mix:
        return "weights are mixed with shares although the server pools"
    if not pools:
        least = min(counted[region] / share[region] for region in share)
        if least < settings.least_influence * (1 - _TOLERANCE):
            return f"a {seen.innermost} has {least:.6g} of its share, promised at least {settings.least_influence:g}"
        if mix and not math.isclose(least, settings.least_influence, rel_tol=_TOLERANCE):
            return "weights are mixed with shares more than the least influence needs"
    plain = seen.share
    if mix:
        by_rule = {node.name: node.rule_weight or 0.0 for node in content.tiers[seen.innermost]}
        for region, part in share.items():
            if not math.isclose(counted[region], (1 - mix) * by_rule[region] + mix * part, rel_tol=_TOLERANCE):
                return f"{seen.innermost} {region!r} does not count for what the rule and its share give together"
        plain = [w * by_rule[region] / counted[region] for region, w in zip(seen.region, seen.share, strict=True)]
    if settings.weights == "by-silo":
        return ""
    sizes_missing = content.silos[0].records is None and settings.unit == "silo"
    if settings.weights not in ("equal", "least-noise", "declared") and sizes_missing:
        return f"weights {settings.weights!r} need sizes, and there are none"
    return _rule_problem(content, seen, plain, share)


def _rule_problem(content: PlanFile, seen: Recomputed, plain: list[float], share: Mapping[str, float]) -> str:
    """Returns the reason for which weights, before any mixing, are not those of the rule, or an empty string."""
    settings, rule = content.settings, content.settings.weights
    if rule in ("sizes", 0):
        return _difference(content, plain, _weights_by_size(content))
    if rule == "equal":
        members = Counter(seen.region)
        return _difference(content, plain, [share[region] / members[region] for region in seen.region])
    if rule == "declared":
        return _difference(content, plain, [entry.declared_weight or math.nan for entry in content.silos])
    required = _required_by_tier(content, seen, {} if settings.budget is not None else settings.required_multiplier)
    toward = 1.0 if rule == "least-noise" else float(rule)
    if min(min(q) for q in required.values()) == 0:
        return "of some silo no noise is asked, and no weights are least"
    if len(required) > 1:
        wish = _weights_by_size(content) if toward < 1 else plain
        gain = _improvement(seen, plain, wish, required, toward)
        return "" if gain <= _NEAR_LEAST else f"other weights would need up to {gain:.3g} less of what was minimised"
    [(tier, q)] = required.items()
    nodes = seen.path[tier]
    if toward == 1:
        mass = sum_by_node(nodes, [1 / multiplier for multiplier in q])
        raw = [mass[node] / multiplier for node, multiplier in zip(nodes, q, strict=True)]
        total = math.fsum(raw)
        return _difference(content, plain, [weight / total for weight in raw])
    return _cap_problem(plain, _weights_by_size(content), nodes, q, toward)


def _cap_problem(b: list[float], w: list[float], nodes: Sequence[str], q: list[float], share: float) -> str:
    """Returns the reason for which weights are not the optimum between sizes and least noise, or an empty string.

    The optimum is b_i = min(w_i + nu, T_v / q_i) with a single nu; the capped silos of a node lose together
    T_v share / (1 - share). All silos must agree on nu.
    """
    scale = math.sqrt(math.fsum(multiplier**2 for multiplier in q) / len(q))
    q = [multiplier / scale for multiplier in q]
    members: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        members[node].append(index)
    shifts = []
    for some in members.values():
        cap = max(b[i] * q[i] for i in some)
        capped = [i for i in some if b[i] * q[i] >= cap * (1 - _TOLERANCE)]
        lost = share / (1 - share) * cap
        shifts.append((lost + math.fsum((b[i] - w[i]) / q[i] for i in capped)) / math.fsum(1 / q[i] for i in capped))
        shifts += [b[i] - w[i] for i in set(some) - set(capped)]
    # nu is a difference of weights and as exact as they are; near least noise nu is far larger than every weight.
    if max(shifts) - min(shifts) > 1e-7 * max(max(b), *shifts):
        shown = f"from {min(shifts):.6g} to {max(shifts):.6g}"
        return f"weights are not the optimum between sizes and least noise: their shift from sizes goes {shown}"
    return ""


def least_possible_noise(content: PlanFile, seen: Recomputed) -> float:
    """Returns the least noise budget, in squared clip norms, that the most demanding tier needs by itself."""
    required = _required_by_tier(content, seen, content.settings.required_multiplier)
    if min(min(q) for q in required.values()) == 0:
        return 0.0
    return max(
        1 / math.fsum(mass**2 for mass in sum_by_node(seen.path[tier], [1 / multiplier for multiplier in q]).values())
        for tier, q in required.items()
    )


def _improvement(
    seen: Recomputed, b: list[float], wish: list[float], required: Mapping[str, list[float]], share: float
) -> float:
    """Returns a bound on the relative improvement of the minimised quantity by other weights; 0 at the optimum.

    The minimised quantity is (1 - share) times the squared distance from the wished weights, plus share times the
    noise of the outermost tier. A program without a solution returns infinity, and the check fails.

    Args:
        seen: The figures of the file.
        b: The weights of the file, before any mixing.
        wish: The weights at share 0.
        required: By tier, inner to outer, the multiplier required of every silo.
        share: The way from the wished weights (0) to least noise (1).
    """
    wished = np.array(wish)
    strictest = [max(multipliers) for multipliers in zip(*required.values(), strict=True)]
    scale = math.sqrt(math.fsum(multiplier**2 for multiplier in strictest) / len(strictest))
    weight = np.array(b)
    # Every node of a tier with a requirement is a variable, after the weights: the root T of the node's noise.
    column: dict[tuple[str, str], int] = {}
    for tier in required:
        for node in seen.path[tier]:
            column.setdefault((tier, node), len(b) + len(column))
    root = np.zeros(len(b) + len(column))
    root[: len(b)] = weight
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    of: list[int] = []  # by bound, the node whose noise is bounded

    def add(here: int, *entries: tuple[int, float]) -> None:
        for where, value in (*entries, (here, -1.0)):
            rows.append(len(of))
            columns.append(where)
            values.append(value)
        of.append(here)

    inner: str | None = None
    for tier, q in required.items():
        children: dict[int, set[int]] = defaultdict(set)
        for index, node in enumerate(seen.path[tier]):
            here = column[tier, node]
            root[here] = max(root[here], q[index] / scale * b[index])
            add(here, (index, q[index] / scale))
            if inner is not None:
                children[here].add(column[inner, seen.path[inner][index]])
        for here, below in children.items():
            within = math.sqrt(math.fsum(root[child] ** 2 for child in below))
            root[here] = max(root[here], within)
            add(here, *((child, root[child] / within) for child in sorted(below)))
        inner = tier
    outermost = [column[inner or "", node] for node in dict.fromkeys(seen.path[inner or ""])]
    cost = np.zeros(len(root))
    cost[: len(b)] = 2 * (1 - share) * (weight - wished)
    cost[outermost] += 2 * share * root[outermost]
    value = (1 - share) * float(((weight - wished) ** 2).sum()) + share * float((root[outermost] ** 2).sum())
    from scipy import sparse  # a tenth of a second and more, for plans whose weights are a program's alone
    from scipy.optimize import linprog

    matrix: Any = sparse.csr_array((values, (rows, columns)), shape=(len(of), len(root)))
    whole = np.zeros((1, len(root)))
    whole[0, : len(b)] = 1
    # Variables and bounds are in units of their own size: the solver's absolute tolerances then suit every federation.
    unit = np.where(root > 0, root, root.max())
    bounded = sparse.diags_array(1 / unit[of])
    optimum = linprog(
        cost * unit / value,
        A_ub=bounded @ (matrix * unit),
        b_ub=np.zeros(len(of)),
        A_eq=whole * unit,
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    if optimum.status != 0:
        return math.inf
    return float(cost @ root / value) - float(optimum.fun or 0.0)


def _required_by_tier(
    content: PlanFile, seen: Recomputed, requirement: Mapping[str, Required]
) -> dict[str, list[float]]:
    """Returns by tier with a requirement, inner to outer, the multiplier required of every silo.

    A multiplier is larger by the root of the noise that the worst coalition takes out of the node. Without any
    requirement all silos of a region count alike.
    """
    settings, silos = content.settings, len(content.silos)
    inside = settings.aggregation == "masked" and set(requirement) == {SILO}
    if settings.aggregation == "masked":  # an observer inside sees sums too: weights serve targets above, if any
        requirement = {
            seen.innermost if inside else tier: value for tier, value in requirement.items() if inside or tier != SILO
        }
    by_silo = {tier: values_by_silo(requirement.get(tier, 0.0), silos) for tier in seen.path}
    requiring = {tier: q for tier, q in by_silo.items() if max(q) > 0} or {seen.innermost: [1.0] * silos}
    required: dict[str, list[float]] = {}
    for tier in [tier for tier in (SILO, *content.federation.tiers, *requiring) if tier in requiring]:
        q = required[tier] = requiring[tier]
        if inside or (tier != SILO and settings.colluders + settings.dropouts):
            shape = [1 / multiplier**2 for multiplier in q] if min(q) > 0 else [1.0] * silos
            nodes, left = seen.path[tier], seen.remaining(shape, SILO if inside else tier)
            total = sum_by_node(nodes, shape)
            loss = largest_by_node(nodes, [total[node] / rest for node, rest in zip(nodes, left, strict=True)])
            required[tier] = [multiplier * math.sqrt(loss[node]) for multiplier, node in zip(q, nodes, strict=True)]
        required[tier] = [multiplier / count for multiplier, count in zip(required[tier], seen.persons, strict=True)]
    if len(required) > 1:
        least = _NOTHING_ASKED * max(max(q) for q in required.values())
        required = {tier: [max(multiplier, least) for multiplier in q] for tier, q in required.items()}
    return required


def _shares(content: PlanFile, seen: Recomputed) -> dict[str, float]:
    """Returns by region the share of all records, or of all silos where sizes are not declared."""
    parts = sum_by_node(seen.region, [1.0 if entry.records is None else entry.records for entry in content.silos])
    total = math.fsum(parts.values())
    return {region: part / total for region, part in parts.items()}


def _weights_by_size(content: PlanFile) -> list[float]:
    """Returns by silo the share of all records."""
    unknown = math.nan if content.settings.unit == "silo" else 1.0
    sizes = [entry.records or unknown for entry in content.silos]
    total = math.fsum(sizes)
    return [size / total for size in sizes]


def _difference(content: PlanFile, weights: list[float], expected: list[float]) -> str:
    """Returns the first silo whose weight is not the expected weight, or an empty string; NaN differs from all."""
    for entry, weight, ought in zip(content.silos, weights, expected, strict=True):
        if not math.isclose(weight, ought, rel_tol=_TOLERANCE):
            return f"silo {entry.silo!r} counts {weight:.9g} where {content.settings.weights!r} gives {ought:.9g}"
    return ""
