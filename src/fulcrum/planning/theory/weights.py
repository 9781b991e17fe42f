"""What every silo counts for in the model: by size, as the paper has it, or chosen so that less noise is needed.

>>> from fulcrum.readers.profiles import profile
>>> severe = profile("severe")
>>> largest = [round(float(weights_by(rule, severe)[0]), 5) for rule in ("sizes", "equal", "least-noise")]
>>> largest
[0.01042, 0.01042, 0.01465]

Weights are public settings of a plan, like the clip norm: whatever they are, noise is calibrated to them and every
target is met. Where every silo is asked for the same effective multiplier q, a region whose heaviest silo counts b
needs noise q² b², so that noise is least where the silos of a region count alike, and regions by the squares of their
numbers of silos.

- `sizes`: by number of records.
- `equal`: alike within a region; regions by their records or, where no sizes are given, by their numbers of silos.
- `least-noise`: b_i = t_r / q_i with t_r proportional to the sum of 1 / q_i over the region: of all weights that add up
  to 1, those of least noise. By Cauchy and Schwarz 1, the sum of t_r (sum of 1 / q_i), is at most the root of the noise
  sum of t_r² times the root of the sum of (sum of 1 / q_i)². The same holds for any one tier in place of the region.
- a number t from 0 to 1: between the first and the last, the weights that are least in
  (1 - t) sum (b_i - w_i)² + t sum over r of max (b_i q_i)², with q scaled to mean square 1. They cap the heavy ones:
  b_i = min(w_i + nu, T_r / q_i).

Where several tiers have targets, the last two are the optimum of a convex program (`weights_by_program`). Where some
silos of a region may collude or be missing, the noise of the others must do alone: with one multiplier in a region
whose silos count 1 / q_i its sum needs V_r / H_r times as much, V_r the sum of all 1 / q_i² and H_r without the worst
ones, and 1 / q_i above becomes sqrt(H_r / V_r) / q_i. A region of m silos that are asked alike then counts m (m - c).
That is least for weights of this shape; no claim is made for other shapes, nor for multipliers that differ in a region.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.choices import WEIGHTS
from fulcrum.core.remaining_noise import largest_by, remaining_noise, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError, in_one_line, listing, suggestion

_BISECTIONS = 200
_LARGEST_WEIGHT = 1e100  # larger ones would overflow when added up
_NOTHING_ASKED = 1e-8  # of the largest multiplier: its square is lost beside that of any other


def weights_by(
    rule: str | float | Mapping[str, float],
    federation: Topology,
    multiplier: Mapping[str, float | FloatArray] | None = None,
    *,
    excluded_silos: int = 0,
) -> FloatArray:
    """Returns the weight of every silo; they add up to 1.

    Args:
        rule: One of `WEIGHTS`, a number from 0 to 1, or weights by silo, which are brought to the sum 1; "declared" for
            the weights that the federation itself declares.
        federation: Whom they are for.
        multiplier: By tier the effective multiplier q asked of each silo, one number or one by silo; proportions alone
            count. The same for all regions by default.
        excluded_silos: Silos of each region whose noise does not count: colluders and dropouts together.
    """
    if isinstance(rule, Mapping):
        return _declared(rule, federation)
    if rule == "declared":
        if federation.declared_weights is None:
            raise ParameterError("weights.declaration-missing", federation=federation.name)
        return federation.declared_weights
    if isinstance(rule, str):
        if rule not in WEIGHTS:
            raise ParameterError(
                "weights.rule-unknown", rule=rule, known=listing(WEIGHTS), suggestion=suggestion(rule, WEIGHTS)
            )
        if rule == "equal":
            return _equal(federation)
    elif isinstance(rule, bool) or not isinstance(rule, (int, float, np.number)) or not 0 <= rule <= 1:
        raise ParameterError("weights.rule-type", known=listing(WEIGHTS), rule=rule)
    share = {"sizes": 0.0, "least-noise": 1.0}[rule] if isinstance(rule, str) else float(rule)
    if share < 1 and not federation.sizes_known:
        raise ParameterError("weights.records-missing", rule=rule, federation=federation.name)
    sizes = _normalised(federation.sizes)
    return sizes if share == 0 else _between(federation, sizes, _asked(federation, multiplier, excluded_silos), share)


def least_noise(
    federation: Topology, multiplier: Mapping[str, float | FloatArray], *, excluded_silos: int = 0
) -> float:
    """Returns the noise variance, over the squared clip norm, that the least-noise weights need; see `weights_by`."""
    asked = _asked(federation, multiplier, excluded_silos)
    if len(asked) == 1:
        return least_noise_of_one_tier(federation, multiplier, excluded_silos=excluded_silos)
    weights = _between(federation, _normalised(federation.sizes), asked, 1.0)
    noise = np.zeros(len(federation))  # by silo, what its node of the tiers so far needs, on one silo of each node
    for tier, q in asked.items():
        node_of, count = federation.membership(tier), federation.node_count(tier)
        need = np.maximum(largest_by(node_of, (weights * q) ** 2, count), sum_by(node_of, noise, count))
        noise = np.zeros(len(federation))
        noise[np.unique(node_of, return_index=True)[1]] = need
    return float(noise.sum())


def least_noise_of_one_tier(
    federation: Topology, multiplier: Mapping[str, float | FloatArray], *, excluded_silos: int = 0
) -> float:
    """Returns the least noise that the most demanding tier needs by itself: `least_noise` where no other tier asks.

    It has a closed form, so that whoever reads a plan can work out anew what follows from it.
    """
    found = 0.0
    for tier, q in _asked(federation, multiplier, excluded_silos).items():
        mass = np.bincount(federation.membership(tier), weights=1 / q)
        found = max(found, float(1 / (mass**2).sum()))
    return found


def region_shares(federation: Topology) -> FloatArray:
    """Returns by region the share of the model that it has by size, or by number of silos where sizes are unknown."""
    inner = federation.innermost
    return _normalised(sum_by(inner.parent_of, federation.sizes, len(inner.nodes)))


def _asked(
    federation: Topology, multiplier: Mapping[str, float | FloatArray] | None, excluded_silos: int
) -> dict[str, FloatArray]:
    """Returns by tier that asks for anything, inner to outer, what the noise of its sums must be for a weight of 1."""
    given = {tier: np.asarray(asked, dtype=np.float64) for tier, asked in (multiplier or {}).items()}
    asking = [tier for tier in federation.tier_names if tier in given and given[tier].max() > 0]
    found: dict[str, FloatArray] = {}
    for tier in asking or [federation.innermost.name]:
        q = np.broadcast_to(given[tier] if asking else np.ones(1), (len(federation),))
        found[tier] = q * np.sqrt(_loss(federation, tier, q, excluded_silos))
    if len(found) > 1:
        least = _NOTHING_ASKED * max(float(q.max()) for q in found.values())
        found = {tier: np.maximum(q, least) for tier, q in found.items()}
    return found


def _loss(federation: Topology, tier: str, asked: FloatArray, excluded_silos: int) -> FloatArray:
    """Returns by silo how much more noise its node needs because of the silos whose noise does not count."""
    if not excluded_silos or tier == SILO:
        return np.ones(len(federation))
    shape = 1 / asked**2 if asked.min() > 0 else np.ones(len(federation))
    node_of, count = federation.membership(tier), federation.node_count(tier)
    total = sum_by(node_of, shape, count)[node_of]
    left = remaining_noise(federation, shape, tier=tier, excluded_silos=excluded_silos)
    return largest_by(node_of, total / left, count)[node_of]


def _declared(weights: Mapping[str, float], federation: Topology) -> FloatArray:
    names = federation.silo_names.tolist()
    unknown = next((name for name in weights if name not in set(names)), None)
    if unknown is not None:
        raise ParameterError("weights.silo-unknown", silo=unknown, suggestion=suggestion(str(unknown), names))
    missing = next((name for name in names if name not in weights), None)
    if missing is not None:
        raise ParameterError("weights.silo-missing", silo=missing)
    for name in names:
        value = weights[name]
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.complexfloating))
        if not number or not 0 < value <= _LARGEST_WEIGHT:
            raise ParameterError("weights.range", most=_LARGEST_WEIGHT, value=in_one_line(value)[:40], silo=name)
    return _normalised(np.array([weights[name] for name in names], dtype=np.float64))


def _equal(federation: Topology) -> FloatArray:
    region_of = federation.innermost.parent_of
    return np.asarray((region_shares(federation) / np.bincount(region_of))[region_of])


def _between(federation: Topology, wished: FloatArray, asked: Mapping[str, FloatArray], share: float) -> FloatArray:
    """The weights between a wish and least noise: in closed form where one tier asks, else by the convex program."""
    if len(asked) > 1:
        strictest = np.max(list(asked.values()), axis=0)
        return _by_program(federation, wished, asked, float(np.sqrt(np.mean(strictest**2))), share)
    [(tier, q)] = asked.items()
    node_of = federation.membership(tier)
    return _least_noise(node_of, q) if share == 1 else _capped(wished, node_of, q, share)


def _by_program(
    federation: Topology, wished: FloatArray, asked: Mapping[str, FloatArray], scale: float, share: float
) -> FloatArray:
    """The optimum where several tiers ask; silos of a node that are asked alike, and wish alike, are one kind."""
    from fulcrum.planning.theory.weights_program import (  # with SciPy's sparse matrices, which few plans need
        Tree,
        solve_weights,
    )

    tiers, single = list(asked), SILO in asked
    places = [federation.membership(tier) for tier in tiers]
    columns = [places[1 if single else 0], *asked.values(), *([] if share == 1 else [wished])]
    order = np.lexsort(columns)
    new = np.any([np.diff(column[order]) != 0 for column in columns], axis=0)
    kind_of = np.empty(len(federation), dtype=np.intp)
    kind_of[order] = np.concatenate([[0], np.cumsum(new)])
    first = order[np.concatenate([[True], new])]
    counts = np.bincount(kind_of).astype(np.float64)
    nodes = [
        np.arange(len(counts)) if tier == SILO else place[first] for tier, place in zip(tiers, places, strict=True)
    ]
    parents = []
    for inner, outer in pairwise(nodes):
        parent = np.zeros(int(inner.max()) + 1, dtype=np.intp)
        parent[inner] = outer
        parents.append(parent)
    tree = Tree(
        counts=counts,
        wished=wished[first],
        nodes=tuple(nodes),
        asked=tuple(q[first] / scale for q in asked.values()),
        parents=tuple(parents),
        multiplicity=counts if single else np.ones(int(nodes[0].max()) + 1),
    )
    return np.asarray(solve_weights(tree, share)[kind_of])


def _least_noise(region_of: IntArray, asked: FloatArray) -> FloatArray:
    inverse = 1 / asked
    mass = np.bincount(region_of, weights=inverse)
    return _normalised(mass[region_of] * inverse)


def _capped(sizes: FloatArray, region_of: IntArray, asked: FloatArray, share: float) -> FloatArray:
    """The weights between sizes and least noise; their shift nu is found by bisection, as the total grows with it."""
    shifted = _Shifted(sizes, region_of, asked / np.sqrt(np.mean(asked**2)), price=share / (1 - share))
    low, high = 0.0, 1.0
    while shifted.weights(high).sum() < 1:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:  # no number lies between them
            break
        low, high = (middle, high) if shifted.weights(middle).sum() < 1 else (low, middle)
    return _normalised(shifted.weights(high))


class _Shifted:
    """What silos count for when each wishes for its size and a shift, and is capped at T_r / q_i.

    Those capped lose price T_r together. Silos are kept in the order of what they wish for times q, region by region:
    it changes little from one shift to the next, and sorting takes far longer than all the rest.
    """

    def __init__(self, sizes: FloatArray, region_of: IntArray, scaled: FloatArray, *, price: float) -> None:
        self._sizes, self._region_of, self._scaled, self._price = sizes, region_of, scaled, price
        self._members = np.bincount(region_of)
        self._starts = np.cumsum(self._members) - self._members
        self._last = np.zeros(len(sizes), dtype=bool)
        self._last[self._starts + self._members - 1] = True
        self._sort(scaled * sizes)

    def _sort(self, level: FloatArray) -> None:
        self._order = np.lexsort((-level, self._region_of))
        self._mass = _running(1 / self._scaled[self._order] ** 2, self._starts, self._members)

    def weights(self, shift: float) -> FloatArray:
        """Returns the weights at a shift; they do not add up to 1 yet."""
        wished = self._sizes + shift
        level = wished * self._scaled
        following = np.where(self._last, 0.0, np.append(level[self._order][1:], 0.0))
        if (following > level[self._order]).any():
            self._sort(level)
            following = np.where(self._last, 0.0, np.append(level[self._order][1:], 0.0))
        gain = _running(wished[self._order] / self._scaled[self._order], self._starts, self._members)
        candidate = gain / (self._price + self._mass)  # T_r if the first silos, up to here, are the capped ones
        position = np.where(candidate >= following, np.arange(len(level)), len(level))
        cap = candidate[np.minimum.reduceat(position, self._starts)][self._region_of]
        return np.asarray(np.minimum(wished, cap / self._scaled))


def _normalised(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / weights.sum())


def _running(values: FloatArray, starts: IntArray, sizes: IntArray) -> FloatArray:
    """Sums up to each place within its region."""
    total = np.cumsum(values)
    return np.asarray(total - np.repeat(total[starts] - values[starts], sizes))
