"""Weights with targets on several tiers: a convex program on the tree, solved by an interior-point method.

>>> problem = Tree(
...     counts=np.array([2.0, 1.0]),
...     wished=np.array([0.25, 0.5]),
...     nodes=(np.array([0, 1]), np.array([0, 0])),
...     required=(np.array([1.0, 1.0]), np.array([1.5, 1.5])),
...     parents=(np.array([0, 0]),),
...     multiplicity=np.array([1.0, 1.0]),
... )
>>> solve_weights(problem, 1.0).round(4).tolist()
[0.3333, 0.3333]

With b_i the weight of silo i, q_iv the multiplier that an observer of node v requires of silo i, and S_v the noise in
the sum of v, the noise for the weights is the least sum of S over the outermost nodes under the conditions

    q_iv² b_i² <= S_v for every silo i of v,    sum of S over the children of v <= S_v,    sum of b_i = 1,

which is convex. The method follows the primal-dual central path (Boyd and Vandenberghe 2004, section 11.7); the linear
systems are as sparse as the tree. Equal silos are one variable with a count.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError

_MOST_STEPS = 200
_CENTRING = 10.0  # the factor by which every step aims nearer to the optimum
_BACK = 0.99  # of the way to the boundary that a step may go
_GAP = 1e-13  # of the objective, at which the path ends
_SMALLEST_STEP = 1e-10
_ASTRAY = 10.0  # the largest growth of the residual in a step; without growth steps are short if requirements lie apart
_NEAR_ENOUGH = 1e-9  # of the objective: weights farther from their optimum would not verify


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tree:
    """Kinds of silos and the tiers with a target, inner to outer.

    Attributes:
        counts: By kind, the number of silos of the kind.
        wished: By kind, the weight of a silo if noise were no matter.
        nodes: By tier, the node of each kind.
        required: By tier, the effective multiplier required of each kind; above 0.
        parents: By tier but the outermost, the node of the next tier above each node.
        multiplicity: By node of the innermost of these tiers, the number of nodes that the node stands for.
    """

    counts: FloatArray
    wished: FloatArray
    nodes: tuple[IntArray, ...]
    required: tuple[FloatArray, ...]
    parents: tuple[IntArray, ...]
    multiplicity: FloatArray


def solve_weights(tree: Tree, share: float) -> FloatArray:
    """Returns by kind the weights that are least in (1 - share) sum (b - wished)² + share times the noise for b.

    A `share` of 1 asks for the least noise, 0 for the wish itself. The guarantee of a plan does not rest on the
    precision of the solution: noise is calibrated to the weights that come out.
    """
    if share == 1:
        return _least_noise(tree)
    program = _Program(tree, share)
    weights = np.maximum(program.path()[: program.kinds], 0)
    return np.asarray(weights / (tree.counts @ weights))


def _least_noise(tree: Tree) -> FloatArray:
    """Returns the weights of least noise.

    Weights times c need c² the noise, so a node of total weight m needs k m² for every m: the outermost nodes are
    solved for in units of their own, and then have weight 1 / k. A silo's unit is 1 / q, with q the strictest
    requirement on the silo. A node with a requirement millions of times larger is therefore solved for as exactly as
    the rest.
    """
    outermost = tree.nodes[-1]
    unit = 1 / np.max(tree.required, axis=0)
    mass = np.bincount(outermost, weights=tree.counts * unit)
    counts = tree.counts * unit / mass[outermost]
    scaled = tuple(q * unit for q in tree.required)
    even = np.full(len(counts), 1 / counts.sum())
    program = _Program(replace(tree, counts=counts, wished=even, required=scaled), 1.0)
    weights = program.largest_weights(program.path())
    carried = np.bincount(outermost, weights=counts * weights)
    weights = weights * unit * (mass * carried / program.noise_needed(weights))[outermost]
    return np.asarray(weights / (tree.counts @ weights))


class _Program:
    """Minimises f(x) subject to g(x) <= 0 and counts b = total, for x = (b, S); b is scaled to a mean of 1."""

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
        self.squared = np.concatenate(tree.required) ** 2
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
        """Returns a point inside: weights half wished and half equal, and twice the noise for these weights."""
        return self._with_noise(0.5 + 0.5 * self.wished, 2.0)

    def noise_needed(self, weights: FloatArray) -> FloatArray:
        """Returns by outermost node the noise that weights need."""
        return self._with_noise(weights, 1.0)[self.levels[-1][1] :]

    def _with_noise(self, weights: FloatArray, factor: float) -> FloatArray:
        """Returns weights with the noise that the weights need, times a factor at every tier."""
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
        gradient = self.cost.copy()
        gradient[: self.kinds] += 2 * (1 - self.share) * self.tree.counts * (x[: self.kinds] - self.wished)
        return gradient

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
            required = np.sqrt(self.squared)
            raise ParameterError("weights.program-inexact", ratio=required.max() / required.min())
        return point.x

    def _gap(self, point: "_Point") -> float:
        """Returns the largest possible distance of a point from the optimum, relative to the value at the point."""
        return float(point.slack @ point.price) / max(abs(self.value(point.x)), 1e-3)

    def _residuals(self, point: "_Point", barrier: float) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        """Returns the distance of a point from the central path: slopes, bounds, products, sum of weights."""
        return (
            self.gradient(point.x) + self.slope(point.x).T @ point.price + point.level * self.equality,
            self.bounds(point.x) + point.slack,
            point.slack * point.price - barrier,
            float(self.equality @ point.x - self.total),
        )

    def _after(self, point: "_Point", barrier: float) -> "_Point | None":
        """Returns the next point; None if rounding lets no step go further."""
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

    def largest_weights(self, x: FloatArray) -> FloatArray:
        """Returns the largest weights that the noise S of a point allows: at least the weights of the point itself."""
        largest = np.full(self.kinds, np.inf)
        np.minimum.at(largest, self.kind, np.sqrt(x[self.node] / self.squared))
        return largest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Point:
    """A point of the path: x, the slack and the price of every bound, and the price of the sum of weights."""

    x: FloatArray
    slack: FloatArray
    price: FloatArray
    level: float


def _room(values: FloatArray, move: FloatArray) -> float:
    """Returns the share of a move that keeps all values above 0."""
    falling = move < 0
    return float(np.min(-values[falling] / move[falling], initial=np.inf))


def _size(residuals: tuple[FloatArray, FloatArray, FloatArray, float]) -> float:
    dual, bound, product, primal = residuals
    return float(np.sqrt(dual @ dual + bound @ bound + product @ product + primal**2))
