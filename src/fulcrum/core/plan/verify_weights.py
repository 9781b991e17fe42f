"""Whether the weights of a plan file are what it says: recomputed, or held against what an optimum must fulfil.

Weights by size, equal ones and those of least noise on one tier are worked out anew, silo by silo. Weights between
sizes and least noise, and those for targets on several tiers, are not solved for again: they are held against the
conditions of their optimum, which no other weights fulfil. On several tiers that is a linear program:
every convex constraint is replaced by its tangent at the weights of the file, so that its optimum is below the true
one, and weights that reach it cannot be improved on.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fulcrum.core.plan.plan_file import PlanFile, Required
from fulcrum.core.topology import SILO

_TOLERANCE = 1e-9  # relative, of a weight
_NEAR_LEAST = 1e-6  # relative, of what the program minimises
_NOTHING_ASKED = 1e-8  # of the largest multiplier


class Roster(Protocol):
    """What is known of a plan file's silos: weights, places by tier, the region of each, and what coalitions leave."""

    weight: list[float]
    path: dict[str, list[str]]
    region: list[str]
    innermost: str

    def remaining(self, variance: list[float], tier: str) -> list[float]:
        """By silo, the noise that conceals it at a tier without the worst colluders and dropouts of each region."""


def weights_problem(content: PlanFile, seen: Roster) -> str:
    """Returns why the weights are not what the file says, or an empty string."""
    settings = content.settings
    total = math.fsum(seen.weight)
    if not math.isclose(total, 1, rel_tol=_TOLERANCE):
        return f"weights add up to {total:.9g}"
    share = _shares(content, seen)
    counted = _sums(seen.region, seen.weight)
    mix = settings.influence_mix
    if settings.server == "random-effects" and mix:
        return "weights are mixed with shares although the server pools"
    if settings.server != "random-effects":
        least = min(counted[region] / share[region] for region in share)
        if least < settings.least_influence * (1 - _TOLERANCE):
            return f"a {seen.innermost} has {least:.6g} of its share, promised at least {settings.least_influence:g}"
        if mix and not math.isclose(least, settings.least_influence, rel_tol=_TOLERANCE):
            return "weights are mixed with shares more than the least influence needs"
    plain = seen.weight
    if mix:
        by_rule = {node.name: node.rule_weight or 0.0 for node in content.tiers[seen.innermost]}
        for region, part in share.items():
            if not math.isclose(counted[region], (1 - mix) * by_rule[region] + mix * part, rel_tol=_TOLERANCE):
                return f"{seen.innermost} {region!r} does not count for what the rule and its share give together"
        plain = [w * by_rule[region] / counted[region] for region, w in zip(seen.region, seen.weight, strict=True)]
    if settings.weights == "by-silo":
        return ""
    if settings.weights not in ("equal", "least-noise", "declared") and content.silos[0].records is None:
        return f"weights {settings.weights!r} need sizes, and there are none"
    return _rule_problem(content, seen, plain, share)


def _rule_problem(content: PlanFile, seen: Roster, plain: list[float], share: Mapping[str, float]) -> str:
    """Whether weights, before any mixing, are those of the rule."""
    rule = content.settings.weights
    if rule in ("sizes", 0):
        return _unlike(content, plain, _by_size(content))
    if rule == "equal":
        members = Counter(seen.region)
        return _unlike(content, plain, [share[region] / members[region] for region in seen.region])
    if rule == "declared":
        return _unlike(content, plain, [entry.declared_weight or math.nan for entry in content.silos])
    asked = _asked(content, seen, {} if content.settings.budget is not None else content.settings.required_multiplier)
    toward = 1.0 if rule == "least-noise" else float(rule)
    if min(min(q) for q in asked.values()) == 0:
        return "of some silo no noise is asked, and no weights are least"
    if len(asked) > 1:
        wished = _by_size(content) if toward < 1 else plain
        gain = _improvement(seen, plain, wished, asked, toward)
        return "" if gain <= _NEAR_LEAST else f"other weights would need up to {gain:.3g} less of what was minimised"
    [(tier, q)] = asked.items()
    nodes = seen.path[tier]
    if toward == 1:
        mass = _sums(nodes, [1 / each for each in q])
        raw = [mass[node] / each for node, each in zip(nodes, q, strict=True)]
        total = math.fsum(raw)
        return _unlike(content, plain, [each / total for each in raw])
    return _cap_problem(plain, _by_size(content), nodes, q, toward)


def _cap_problem(b: list[float], w: list[float], nodes: Sequence[str], q: list[float], share: float) -> str:
    """Whether b_i = min(w_i + nu, T_v / q_i) with one nu, where those capped lose T_v share / (1 - share) together."""
    scale = math.sqrt(math.fsum(each**2 for each in q) / len(q))
    q = [each / scale for each in q]
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
    # nu is as exact as the weights it is a difference of; near least noise it is far larger than they are.
    if max(shifts) - min(shifts) > 1e-7 * max(max(b), *shifts):
        shown = f"from {min(shifts):.6g} to {max(shifts):.6g}"
        return f"weights are not the optimum between sizes and least noise: their shift from sizes goes {shown}"
    return ""


def least_possible_noise(content: PlanFile, seen: Roster) -> float:
    """Returns the least noise, over the squared clip norm, that the most demanding tier needs by itself."""
    asked = _asked(content, seen, content.settings.required_multiplier)
    if min(min(q) for q in asked.values()) == 0:
        return 0.0
    return max(
        1 / math.fsum(mass**2 for mass in _sums(seen.path[tier], [1 / each for each in q]).values())
        for tier, q in asked.items()
    )


def _improvement(
    seen: Roster, b: list[float], wish: list[float], asked: Mapping[str, list[float]], share: float
) -> float:
    """Returns how far below other weights might bring what is minimised, relative to it; 0 at the optimum."""
    wished = np.array(wish)
    strictest = [max(each) for each in zip(*asked.values(), strict=True)]
    scale = math.sqrt(math.fsum(each**2 for each in strictest) / len(strictest))
    weight = np.array(b)
    # Every node of a tier that asks is a variable, after the weights: the root T of its noise.
    column: dict[tuple[str, str], int] = {}
    for tier in asked:
        for node in seen.path[tier]:
            column.setdefault((tier, node), len(b) + len(column))
    root = np.zeros(len(b) + len(column))
    root[: len(b)] = weight
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    of: list[int] = []  # by bound, the node whose noise it is on

    def add(here: int, *entries: tuple[int, float]) -> None:
        for where, value in (*entries, (here, -1.0)):
            rows.append(len(of))
            columns.append(where)
            values.append(value)
        of.append(here)

    inner: str | None = None
    for tier, q in asked.items():
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
    # In units of what they are, every bound too, so that the solver's tolerances mean the same for every federation.
    unit = np.where(root > 0, root, root.max())
    bounded = sparse.diags_array(1 / unit[of])
    found = linprog(
        cost * unit / value,
        A_ub=bounded @ (matrix * unit),
        b_ub=np.zeros(len(of)),
        A_eq=whole * unit,
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    if found.status != 0:
        return math.inf
    return float(cost @ root / value) - float(found.fun or 0.0)


def _asked(content: PlanFile, seen: Roster, given: Mapping[str, Required]) -> dict[str, list[float]]:
    """By tier that asks, inner to outer, what it asks of each silo, coalitions counted; alike in regions by default."""
    settings, silos = content.settings, len(content.silos)
    inside = settings.aggregation == "masked" and set(given) == {SILO}
    if settings.aggregation == "masked":  # whoever is inside sees sums as well: weights look to those above, if any
        given = {seen.innermost if inside else tier: asked for tier, asked in given.items() if inside or tier != SILO}
    by_silo = {
        tier: value if isinstance(value, list) else [value] * silos
        for tier, value in ((tier, given.get(tier, 0.0)) for tier in seen.path)
    }
    asking = {tier: q for tier, q in by_silo.items() if max(q) > 0} or {seen.innermost: [1.0] * silos}
    found: dict[str, list[float]] = {}
    for tier in [tier for tier in (SILO, *content.federation.tiers, *asking) if tier in asking]:
        q = asking[tier]
        found[tier] = q
        if inside or (tier != SILO and settings.colluders + settings.dropouts):
            shape = [1 / each**2 for each in q] if min(q) > 0 else [1.0] * silos
            total, left = _sums(seen.path[tier], shape), seen.remaining(shape, SILO if inside else tier)
            loss: dict[str, float] = {}
            for node, each in zip(seen.path[tier], left, strict=True):
                loss[node] = max(loss.get(node, 0.0), total[node] / each)
            found[tier] = [each * math.sqrt(loss[node]) for each, node in zip(q, seen.path[tier], strict=True)]
    if len(found) > 1:
        least = _NOTHING_ASKED * max(max(q) for q in found.values())
        found = {tier: [max(each, least) for each in q] for tier, q in found.items()}
    return found


def _shares(content: PlanFile, seen: Roster) -> dict[str, float]:
    """By region, its share of all records, or of all silos where sizes are not declared."""
    parts = _sums(seen.region, [1.0 if entry.records is None else entry.records for entry in content.silos])
    total = math.fsum(parts.values())
    return {region: part / total for region, part in parts.items()}


def _by_size(content: PlanFile) -> list[float]:
    sizes = [entry.records or math.nan for entry in content.silos]
    total = math.fsum(sizes)
    return [size / total for size in sizes]


def _unlike(content: PlanFile, has: list[float], ought: list[float]) -> str:
    for entry, one, other in zip(content.silos, has, ought, strict=True):
        if not math.isclose(one, other, rel_tol=_TOLERANCE):
            return f"silo {entry.silo!r} counts {one:.9g} where {content.settings.weights!r} gives {other:.9g}"
    return ""


def _sums(nodes: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    gathered: dict[str, list[float]] = defaultdict(list)
    for node, value in zip(nodes, values, strict=True):
        gathered[node].append(value)
    return {node: math.fsum(parts) for node, parts in gathered.items()}
