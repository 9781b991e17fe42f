"""The weight of every silo in the model: by size, as in the paper, or chosen for less noise.

>>> from fulcrum.readers.profiles import profile
>>> severe = profile("severe")
>>> largest = [round(float(weights_by(rule, severe)[0]), 5) for rule in ("sizes", "equal", "least-noise")]
>>> largest
[0.01042, 0.01042, 0.01465]

Weights are public settings of a plan, like the clip norm: noise is calibrated to any weights, and every target is met.
If every silo has the same required multiplier q, a region whose heaviest silo has weight b needs noise q² b². Noise is
therefore least if the silos of a region have equal weights, and regions have weights by the squares of their numbers of
silos.

- `sizes`: by number of records.
- `equal`: equal within a region; regions by their records or, without sizes, by their numbers of silos.
- `least-noise`: b_i = t_r / q_i with t_r proportional to the sum of 1 / q_i over the region: of all weights with sum 1,
  the weights of least noise. By Cauchy and Schwarz 1, the sum of t_r (sum of 1 / q_i), is at most the root of the noise
  sum of t_r² times the root of the sum of (sum of 1 / q_i)². The same holds for any tier in place of the region.
- a number t from 0 to 1: between the first and the last, the weights that are least in (1 - t) sum (b_i - w_i)² + t sum
  over r of max (b_i q_i)², with q scaled to mean square 1. Heavy silos are capped: b_i = min(w_i + nu, T_r / q_i).

If several tiers have targets, the last two rules are the optimum of a convex program (`weights_program`). If some silos
of a region may collude or be missing, the noise of the remaining silos must do alone: with one multiplier in a region
whose silos have weights 1 / q_i the sum needs V_r / H_r times as much noise, V_r the sum of all 1 / q_i² and H_r
without the worst silos, and 1 / q_i above becomes sqrt(H_r / V_r) / q_i. A region of m silos with equal requirements
then has weight m (m - c). The noise is least for weights of this shape; no claim is made for another shape, nor for
multipliers that differ in a region.

If a plan protects persons, all rules give the shares of silos: the weight of one person times the number of persons. A
person of a silo with share b_i and n_i persons needs noise (q b_i / n_i)², so q_i / n_i takes the place of q_i.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.choices import WEIGHTS
from fulcrum.core.remaining_noise import largest_by, remaining_noise, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError, ShownValue, in_one_line, listing, suggestion

_BISECTIONS = 200
_LARGEST_WEIGHT = 1e100  # larger ones would overflow when added up
_NOTHING_ASKED = 1e-8  # of the largest multiplier: a smaller square is lost beside the square of the largest


def weights_by(
    rule: str | float | Mapping[str, float],
    federation: Topology,
    multiplier: Mapping[str, float | FloatArray] | None = None,
    *,
    excluded_silos: int = 0,
) -> FloatArray:
    """Returns the weight of every silo, or the share of every silo if persons are protected; the sum is 1.

    Args:
        rule: One of `WEIGHTS`, a number from 0 to 1, or weights by silo, which are brought to the sum 1; "declared" for
            the weights that the federation itself declares.
        federation: The silos.
        multiplier: By tier the effective multiplier q required of each silo, a number for all or an array by silo;
            proportions alone count. The same for all regions by default.
        excluded_silos: Silos of each region whose noise does not count: colluders and dropouts together.
    """
    if isinstance(rule, Mapping):
        return _weights_by_silo(rule, federation)
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
    if share < 1 and not federation.sizes_known and federation.persons is None:
        raise ParameterError("weights.records-missing", rule=rule, federation=federation.name)
    sizes = _normalise(federation.sizes)
    return (
        sizes
        if share == 0
        else _between(federation, sizes, _required_by_tier(federation, multiplier, excluded_silos), share)
    )


def least_noise(
    federation: Topology, multiplier: Mapping[str, float | FloatArray], *, excluded_silos: int = 0
) -> float:
    """Returns the noise budget of the least-noise weights; see `weights_by` for the arguments."""
    required = _required_by_tier(federation, multiplier, excluded_silos)
    if len(required) == 1:
        return least_noise_of_one_tier(federation, multiplier, excluded_silos=excluded_silos)
    weights = _between(federation, _normalise(federation.sizes), required, 1.0)
    noise = np.zeros(len(federation))  # the noise of each node of the tiers so far, on one silo of the node
    for tier, q in required.items():
        node_of, count = federation.membership(tier), federation.node_count(tier)
        need = np.maximum(largest_by(node_of, (weights * q) ** 2, count), sum_by(node_of, noise, count))
        noise = np.zeros(len(federation))
        noise[np.unique(node_of, return_index=True)[1]] = need
    return float(noise.sum())


def least_noise_of_one_tier(
    federation: Topology, multiplier: Mapping[str, float | FloatArray], *, excluded_silos: int = 0
) -> float:
    """Returns the least noise of the most demanding tier by itself: `least_noise` if no second tier has a target.

    The closed form lets a reader of a plan recompute the figures that follow from the least noise.
    """
    noise = 0.0
    for tier, q in _required_by_tier(federation, multiplier, excluded_silos).items():
        mass = np.bincount(federation.membership(tier), weights=1 / q)
        noise = max(noise, float(1 / (mass**2).sum()))
    return noise


def region_shares(federation: Topology) -> FloatArray:
    """Returns by region the share of the model by size, or by number of silos if sizes are unknown."""
    inner = federation.innermost
    return _normalise(sum_by(inner.parent_of, federation.sizes, len(inner.nodes)))


def _required_by_tier(
    federation: Topology, multiplier: Mapping[str, float | FloatArray] | None, excluded_silos: int
) -> dict[str, FloatArray]:
    """Returns by tier with a requirement, inner to outer, the noise that sums of the tier need for a weight of 1."""
    multipliers = {tier: np.asarray(required, dtype=np.float64) for tier, required in (multiplier or {}).items()}
    asking = [tier for tier in federation.tier_names if tier in multipliers and multipliers[tier].max() > 0]
    by_tier: dict[str, FloatArray] = {}
    for tier in asking or [federation.innermost.name]:
        q = np.broadcast_to(multipliers[tier] if asking else np.ones(1), (len(federation),))
        by_tier[tier] = q * np.sqrt(_loss(federation, tier, q, excluded_silos))
        if federation.persons is not None:
            by_tier[tier] = by_tier[tier] / federation.persons
    if len(by_tier) > 1 or not all(q.all() for q in by_tier.values()):
        least = _NOTHING_ASKED * max(float(q.max()) for q in by_tier.values())
        by_tier = {tier: np.maximum(q, least) for tier, q in by_tier.items()}
    return by_tier


def _loss(federation: Topology, tier: str, required: FloatArray, excluded_silos: int) -> FloatArray:
    """Returns by silo the factor by which the silo's node needs more noise because of the excluded silos."""
    if not excluded_silos or tier == SILO:
        return np.ones(len(federation))
    shape = 1 / required**2 if required.min() > 0 else np.ones(len(federation))
    node_of, count = federation.membership(tier), federation.node_count(tier)
    total = sum_by(node_of, shape, count)[node_of]
    left = remaining_noise(federation, shape, tier=tier, excluded_silos=excluded_silos)
    return largest_by(node_of, total / left, count)[node_of]


def _weights_by_silo(weights: Mapping[str, float], federation: Topology) -> FloatArray:
    """Returns weights that were given by silo, checked and brought to the sum 1."""
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
            raise ParameterError(
                "weights.range", most=_LARGEST_WEIGHT, value=ShownValue(in_one_line(value)[:40]), silo=name
            )
    return _normalise(np.array([weights[name] for name in names], dtype=np.float64))


def _equal(federation: Topology) -> FloatArray:
    """Returns weights that are equal within each region."""
    region_of = federation.innermost.parent_of
    return np.asarray((region_shares(federation) / np.bincount(region_of))[region_of])


def _between(federation: Topology, wished: FloatArray, required: Mapping[str, FloatArray], share: float) -> FloatArray:
    """Returns weights between a wish and least noise: in closed form for one tier, else by the convex program."""
    if len(required) > 1:
        strictest = np.max(list(required.values()), axis=0)
        return _by_program(federation, wished, required, float(np.sqrt(np.mean(strictest**2))), share)
    [(tier, q)] = required.items()
    node_of = federation.membership(tier)
    return _least_noise(node_of, q) if share == 1 else _cap_weights(wished, node_of, q, share)


def _by_program(
    federation: Topology, wished: FloatArray, required: Mapping[str, FloatArray], scale: float, share: float
) -> FloatArray:
    """Returns the optimum for several tiers; silos of a node with the same requirement and wish are one kind."""
    from fulcrum.planning.theory.weights_program import (  # with SciPy's sparse matrices, which few plans need
        Tree,
        solve_weights,
    )

    tiers, single = list(required), SILO in required
    places = [federation.membership(tier) for tier in tiers]
    columns = [places[1 if single else 0], *required.values(), *([] if share == 1 else [wished])]
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
        required=tuple(q[first] / scale for q in required.values()),
        parents=tuple(parents),
        multiplicity=counts if single else np.ones(int(nodes[0].max()) + 1),
    )
    return np.asarray(solve_weights(tree, share)[kind_of])


def _least_noise(region_of: IntArray, required: FloatArray) -> FloatArray:
    """Returns the weights of least noise for one tier, in closed form."""
    inverse = 1 / required
    mass = np.bincount(region_of, weights=inverse)
    return _normalise(mass[region_of] * inverse)


def _cap_weights(sizes: FloatArray, region_of: IntArray, required: FloatArray, share: float) -> FloatArray:
    """Returns weights between sizes and least noise; bisection finds the shift nu, since the total grows with nu."""
    shifted = _Shifted(sizes, region_of, required / np.sqrt(np.mean(required**2)), price=share / (1 - share))
    low, high = 0.0, 1.0
    while shifted.weights(high).sum() < 1:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:  # no number lies between them
            break
        low, high = (middle, high) if shifted.weights(middle).sum() < 1 else (low, middle)
    return _normalise(shifted.weights(high))


class _Shifted:
    """The weights of silos that wish for their size and a shift, and are capped at T_r / q_i.

    The capped silos lose price T_r together. Silos stay in the order of their wish times q, region by region: the order
    changes little from one shift to the next, and sorting takes far longer than all the rest.
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
        """Returns the weights at a shift, before they are brought to the sum 1."""
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


def _normalise(weights: FloatArray) -> FloatArray:
    return np.asarray(weights / weights.sum())


def _running(values: FloatArray, starts: IntArray, sizes: IntArray) -> FloatArray:
    """Returns the sum up to each place within its region."""
    total = np.cumsum(values)
    return np.asarray(total - np.repeat(total[starts] - values[starts], sizes))
