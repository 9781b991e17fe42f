"""Places for names beside the points of a curve, where no name lies on the curve, on a point or on another name.

>>> falling = [(0.0, 0.2), (1.0, 0.9)]
>>> name = NamedPoint(at=(0.5, 0.55), lines=("this plan",), right=False, below=True)
>>> place = free_places([name], curve=falling)[0]
>>> place.align, place.dy < 0
('left', True)

The width of a chart follows its page, so a place is free where it is free on a phone and on a wide page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import Literal, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray

HEIGHT = 240
"""The height of a chart with names, in pixels."""

PADDING = 14
"""Pixels between the edge of a chart and its first and last point."""

LINE = 16
"""Pixels from one line of a name to the next."""

_WIDTHS = (262, 300, 600, 900)  # of a chart on phones and on wide pages, in pixels
_LETTER = 6.8  # pixels, the mean of usual fonts
_HALF_LINE = 7
_RING = 10
_GAP = 3  # pixels between a name and the curve
_STEPS = 60  # points of a segment of the curve that are compared with a name
_RIGHT_EDGE = 16  # pixels beside the chart that a name may use

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPoint:
    """A point with a name.

    Attributes:
        at: The point, from the left and from the top, as shares of the chart.
        lines: The lines of the name.
        right: True if the name should end at the point, as at the right edge.
        below: True if the name should stand below the point.
    """

    at: Point
    lines: tuple[str, ...]
    right: bool
    below: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePlace:
    """The place of a name: `align`, `dx` and `dy` of its first line, in the words of Vega."""

    align: Literal["left", "right"]
    dx: int
    dy: int


def free_places(names: Sequence[NamedPoint], *, curve: Sequence[Point]) -> list[NamePlace]:
    """Returns the places of all names together: those with the least of the curve and of other names beneath.

    Args:
        names: The names, a few.
        curve: The points of the curve, from left to right, as shares of the chart.
    """
    paths = {width: _path(curve, [name.at for name in names], width) for width in _WIDTHS}
    options = []
    for name in names:
        places = _candidates(name)
        boxes = [[_box(name, place, width) for width in _WIDTHS] for place in places]
        costs = [sum(map(_cost, by_width, paths.values(), _WIDTHS)) for by_width in boxes]
        # Of places at the same cost, the first is preferred.
        options.append([*zip(places, boxes, (cost + k / _STEPS for k, cost in enumerate(costs)), strict=True)])

    def total(chosen: Sequence[tuple[NamePlace, Sequence[FloatArray], float]]) -> float:
        overlaps = sum(
            _overlap(box, other)
            for (_, a, _), (_, b, _) in combinations(chosen, 2)
            for box, other in zip(a, b, strict=True)
        )
        return sum(cost for *_, cost in chosen) + _STEPS * overlaps

    return [place for place, *_ in min(product(*options), key=total)]


def _candidates(name: NamedPoint) -> list[NamePlace]:
    """Returns the places of a name by preference: as wished, beside the point, and then on other sides."""
    lines = len(name.lines)

    def place(right: bool, side: str) -> NamePlace:
        dy = {"below": 18, "above": -LINE * lines - 4 * right, "beside": -(LINE // 2) * (lines - 1)}[side]
        dx = (-16 if right else 16) if side == "beside" else (4 if right else 11)
        return NamePlace(align="right" if right else "left", dx=dx, dy=dy)

    wished, other = ("below", "above") if name.below else ("above", "below")
    return [place(right, side) for right in (name.right, not name.right) for side in (wished, "beside", other)]


def _pixels(at: Point, width: int) -> Point:
    return PADDING + at[0] * (width - 2 * PADDING), at[1] * HEIGHT


def _path(curve: Sequence[Point], points: Sequence[Point], width: int) -> FloatArray:
    """Returns points along the curve, and points around the ring of each named point."""
    pixels = [np.array(_pixels(at, width)) for at in curve]
    share = np.linspace(0, 1, _STEPS)[:, None]
    segments = [start + share * (end - start) for start, end in pairwise(pixels)]
    turn = np.linspace(0, 2 * np.pi, _STEPS)
    circle = (_RING - _GAP) * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return np.concatenate([*segments, *(np.array(_pixels(at, width)) + circle for at in points)])


def _box(name: NamedPoint, place: NamePlace, width: int) -> FloatArray:
    """Returns left, top, right and bottom of a name."""
    x, y = _pixels(name.at, width)
    long = _LETTER * max(map(len, name.lines))
    left = x + place.dx - (long if place.align == "right" else 0)
    top = y + place.dy - _HALF_LINE
    return np.array([left, top, left + long, top + 2 * _HALF_LINE + LINE * (len(name.lines) - 1)])


def _cost(box: FloatArray, path: FloatArray, width: int) -> float:
    """Returns the number of points of the curve beneath a name; a name outside the chart counts as many points."""
    left, top, right, bottom = box
    beneath = (path > [left - _GAP, top - _GAP]).all(axis=1) & (path < [right + _GAP, bottom + _GAP]).all(axis=1)
    outside = left < 0 or right > width + _RIGHT_EDGE or bottom > HEIGHT or top < -_HALF_LINE
    return float(beneath.sum() + _STEPS * outside)


def _overlap(box: FloatArray, other: FloatArray) -> bool:
    return bool((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all())
