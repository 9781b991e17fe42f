"""Weights where targets stand on several tiers: a convex program on the tree, solved by an interior-point method.

>>> problem = Tree(
...     counts=np.array([2.0, 1.0]),
...     wished=np.array([0.25, 0.5]),
...     nodes=(np.array([0, 1]), np.array([0, 0])),
...     asked=(np.array([1.0, 1.0]), np.array([1.5, 1.5])),
...     parents=(np.array([0, 0]),),
...     multiplicity=np.array([1.0, 1.0]),
... )
>>> solve_weights(problem, 1.0).round(4).tolist()
[0.3333, 0.3333]

With b_i what silo i counts for, q_iv what an observer of node v asks of it, and S_v the noise in the sum of v, the
noise that the weights need is the least sum of S over the outermost nodes such that

    q_iv² b_i² <= S_v for every silo i of v,    sum of S over the children of v <= S_v,    sum of b_i = 1,

which is convex. The method follows the primal-dual central path (Boyd and Vandenberghe 2004, section 11.7); its linear
systems are as sparse as the tree. Silos that are alike are one variable with a count.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError

_MOST_STEPS = 200
_CENTRING = 10.0  # how much nearer to the optimum every step aims
_BACK = 0.99  # of the way to the boundary that a step may go
_GAP = 1e-13  # of the objective, at which the path ends
_SMALLEST_STEP = 1e-10
_ASTRAY = 10.0  # how much farther from the path a step may end: one that may not at all is short where asks lie apart
_NEAR_ENOUGH = 1e-9  # of the objective: weights farther from their optimum would not verify


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """Kinds of silos and the tiers that have a target, inner to outer.

    Attributes:
        counts: By kind, how many silos it stands for.
        wished: By kind, what each of its silos would count for if noise were no matter.
        nodes: By tier, the node of each kind.
        asked: By tier, the effective multiplier asked of each kind; above 0.
        parents: By tier but the outermost, the node of the next tier that each node is in.
        multiplicity: By node of the innermost of these tiers, how many nodes it stands for.
    """

    counts: FloatArray
    wished: FloatArray
    nodes: tuple[IntArray, ...]
    asked: tuple[FloatArray, ...]
    parents: tuple[IntArray, ...]
    multiplicity: FloatArray


def solve_weights(tree: Tree, share: float) -> FloatArray:
    """Returns by kind the weights that are least in (1 - share) sum (b - wished)² + share times the noise they need.

    A `share` of 1 asks for the least noise, 0 for the wish itself. Whatever precision is reached, noise is calibrated
    to the weights that come out: the guarantee does not rest on it.
    """
    if share == 1:
        return _least_noise(tree)
    program = _Program(tree, share)
    weights = np.maximum(program.path()[: program.kinds], 0)
    return np.asarray(weights / (tree.counts @ weights))


def _least_noise(tree: Tree) -> FloatArray:
    """Returns the weights of least noise.

    Weights times c need c² the noise, so that a node that counts for m in all needs k m² whatever m is: the outermost
    nodes are solved for in units of their own, and then count for 1 / k. A silo's unit is 1 / q, with q the strictest
    that is asked of it. So a node of which millions of times more is asked is solved for as exactly as the others.
    """
    outermost = tree.nodes[-1]
    unit = 1 / np.max(tree.asked, axis=0)
    mass = np.bincount(outermost, weights=tree.counts * unit)
    counts = tree.counts * unit / mass[outermost]
    asked = tuple(q * unit for q in tree.asked)
    even = np.full(len(counts), 1 / counts.sum())
    program = _Program(replace(tree, counts=counts, wished=even, asked=asked), 1.0)
    found = program.capped(program.path())
    carried = np.bincount(outermost, weights=counts * found)
    weights = found * unit * (mass * carried / program.needed(found))[outermost]
    return np.asarray(weights / (tree.counts @ weights))


class _Program:
    """Minimise f(x) subject to g(x) <= 0 and counts b = total, for x = (b, S); b scaled to a mean of 1."""

    def __init__(self, tree: Tree, share: float) -> None:
        self.tree, self.share = tree, share
        self.kinds = kinds = len(tree.counts)
        self.total = float(tree.counts.sum())
        self.wished = tree.wished * self.total
        widths = [len(tree.multiplicity), *(int(parent.max()) + 1 for parent in tree.parents)]
        starts = kinds + np.concatenate([[0], np.cumsum(widths)])
        self.size = int(starts[-1])
        self.kind = np.tile(np.arange(kinds), len(widths))
        self.node = np.concatenate([start + nodes for start, nodes in zip(starts[:-1], tree.nodes, strict=True)])
        self.squared = np.concatenate(tree.asked) ** 2
        multiplicity = [tree.multiplicity, *(np.ones(width) for width in widths[1:])]
        self.levels = [
            (starts[level], starts[level + 1], parent, multiplicity[level]) for level, parent in enumerate(tree.parents)
        ]
        # Rows of sums: the noise of the children less that of the node.
        rows, columns, values = [], [], []
        first = 0
        for start, above, parent, many in self.levels:
            width = int(parent.max()) + 1
            rows += [first + parent, first + np.arange(width)]
            columns += [start + np.arange(len(parent)), above + np.arange(width)]
            values += [many, -np.ones(width)]
            first += width
        self.sums = sparse.csr_array(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(first, self.size)
        )
        self.cost = np.zeros(self.size)
        self.cost[starts[-2] :] = share * multiplicity[-1]
        self.equality = np.zeros(self.size)
        self.equality[:kinds] = tree.counts

    def start(self) -> FloatArray:
        """Returns a point inside: weights half wished and half equal, and twice the noise that they need."""
        return self._with_noise(0.5 + 0.5 * self.wished, 2.0)

    def needed(self, weights: FloatArray) -> FloatArray:
        """Returns by outermost node the noise that weights need."""
        return self._with_noise(weights, 1.0)[self.levels[-1][1] :]

    def _with_noise(self, weights: FloatArray, factor: float) -> FloatArray:
        """Returns weights with the noise that they need, times a factor at every tier."""
        x = np.zeros(self.size)
        x[: self.kinds] = weights
        np.maximum.at(x, self.node, self.squared * x[self.kind] ** 2)
        for start, above, parent, many in self.levels:
            inside = slice(start, start + len(parent))
            x[inside] *= factor
            width = int(parent.max()) + 1
            needed = np.bincount(parent, weights=many * x[inside], minlength=width)
            x[above : above + width] = np.maximum(x[above : above + width], needed)
        x[self.levels[-1][1] :] *= factor
        return x

    def bounds(self, x: FloatArray) -> FloatArray:
        """Returns g: the needs, then the sums."""
        return np.concatenate([self.squared * x[self.kind] ** 2 - x[self.node], self.sums @ x])

    def slope(self, x: FloatArray) -> Any:
        """Returns the derivative of g."""
        rows = np.arange(len(self.kind))
        needs = sparse.csr_array(
            (
                np.concatenate([2 * self.squared * x[self.kind], -np.ones(len(rows))]),
                (np.concatenate([rows, rows]), np.concatenate([self.kind, self.node])),
            ),
            shape=(len(rows), self.size),
        )
        return sparse.vstack([needs, self.sums], format="csr")

    def gradient(self, x: FloatArray) -> FloatArray:
        """Returns the derivative of f."""
        found = self.cost.copy()
        found[: self.kinds] += 2 * (1 - self.share) * self.tree.counts * (x[: self.kinds] - self.wished)
        return found

    def value(self, x: FloatArray) -> float:
        """Returns f."""
        away = x[: self.kinds] - self.wished
        return float(self.cost @ x + (1 - self.share) * (self.tree.counts @ away**2))

    def path(self) -> FloatArray:
        """Follows the central path to its end; slacks may be off the bounds on the way, so that steps stay long."""
        x = self.start()
        slack = np.maximum(-self.bounds(x), 1e-6)
        scale = max(abs(self.value(x)), 1e-3)
        point = _Point(x=x, slack=slack, price=scale / len(slack) / slack, level=0.0)
        for _ in range(_MOST_STEPS):
            if self._gap(point) <= _GAP:
                break
            after = self._after(point, float(point.slack @ point.price) / (_CENTRING * len(slack)))
            if after is None:
                break
            point = after
        if self._gap(point) > _NEAR_ENOUGH:
            asked = np.sqrt(self.squared)
            raise ParameterError("weights.program-inexact", ratio=asked.max() / asked.min())
        return point.x

    def _gap(self, point: "_Point") -> float:
        """Returns how far a point may be from the optimum, over what it is."""
        return float(point.slack @ point.price) / max(abs(self.value(point.x)), 1e-3)

    def _residuals(self, point: "_Point", barrier: float) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """Returns what keeps a point from the central path: of slopes, bounds, products, and the sum of weights."""
        return (
            self.gradient(point.x) + self.slope(point.x).T @ point.price + point.level * self.equality,
            self.bounds(point.x) + point.slack,
            point.slack * point.price - barrier,
            float(self.equality @ point.x - self.total),
        )

    def _after(self, point: "_Point", barrier: float) -> "_Point | None":
        """Returns the next point; None where rounding lets no step go further."""
        slope = self.slope(point.x)
        curvature = np.zeros(self.size)
        curvature[: self.kinds] = 2 * (1 - self.share) * self.tree.counts
        np.add.at(curvature, self.kind, 2 * self.squared * point.price[: len(self.kind)])
        edge = sparse.csr_array(self.equality[:, None])
        matrix = sparse.block_array(
            [
                [sparse.diags_array(curvature), slope.T, edge],
                [slope, sparse.diags_array(-point.slack / point.price), None],
                [edge.T, None, None],
            ],
            format="csc",
        )
        dual, bound, product, primal = self._residuals(point, barrier)
        try:
            move = splu(matrix).solve(-np.concatenate([dual, bound - product / point.price, [primal]]))
        except RuntimeError:  # singular to working precision: as near as it gets
            return None
        if not np.isfinite(move).all():
            return None
        dx, dprice = move[: self.size], move[self.size : -1]
        dslack = -(product + point.slack * dprice) / point.price
        length = min(1.0, _BACK * min(_room(point.price, dprice), _room(point.slack, dslack)))
        before = _size(self._residuals(point, barrier))
        while length > _SMALLEST_STEP:
            after = _Point(
                x=point.x + length * dx,
                slack=point.slack + length * dslack,
                price=point.price + length * dprice,
                level=point.level + length * float(move[-1]),
            )
            if _size(self._residuals(after, barrier)) <= _ASTRAY * before:
                return after
            length /= 2
        return None

    def capped(self, x: FloatArray) -> FloatArray:
        """Returns the largest weights that the noise S of a point allows: at least those of the point itself."""
        found = np.full(self.kinds, np.inf)
        np.minimum.at(found, self.kind, np.sqrt(x[self.node] / self.squared))
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Point:
    """Where the path is: x, the slack and the price of every bound, and the price of the sum of weights."""

    x: FloatArray
    slack: FloatArray
    price: FloatArray
    level: float


def _room(values: FloatArray, move: FloatArray) -> float:
    """Returns how much of a move keeps all values above 0."""
    falling = move < 0
    return float(np.min(-values[falling] / move[falling], initial=np.inf))


def _size(residuals: tuple[FloatArray, FloatArray, FloatArray, float]) -> float:
    dual, bound, product, primal = residuals
    return float(np.sqrt(dual @ dual + bound @ bound + product @ product + primal**2))
