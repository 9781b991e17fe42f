"""Checks the lateral floors of a plan file against the coupling that the file names: computed anew, in another way.

A floor is what the n = m - 1 others of a silo's group say of its class concentration p, in 400 levels. Logits of the
others are cut into narrow cells, and their sum is counted in cells: a function of the others' data, which can only say
less of p than the data, and says nearly all, since the sum of logits is sufficient for the group's mean. The masses of
that sum are a convolution. What many others leave unsaid falls as 1/n, so it is continued from two numbers of others.
Above `_NORMAL_FROM` the arc sines of the square roots are normal to one part in the coupling.

>>> round(float(_floor(12, 20.0)), 3)
0.877
"""

import functools
import math
from collections import Counter
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from fulcrum.core.plan.plan_file import PlanFile

_Array: TypeAlias = np.ndarray[Any, Any]

_SLACK = 1e-3  # nats; planner and verifier are each within 5e-4 of the truth
_LEVELS = 400  # that p is resolved to
_NODES = 400  # of the grid of group means: 0.8 of the width of their posterior where coupling times others is 1e4
_MOST_OTHERS = 12  # that are summed up; more are continued
_WEAKEST = 1e-3  # coupling below which p is 0 or 1, and the floor that of this coupling to 1e-4 nats
_NORMAL_FROM = 1e3  # coupling from which angles are taken for normal, which errs by less than 1e-3 nats
_SHARPEST = 1e7  # coupling beyond which what others leave unsaid falls as the width of p about the group's mean
_SMALLEST_LOGIT = -30.0  # below, the Beta distribution is its first term to 1e-13


def floor_problem(content: PlanFile) -> str:
    """Returns why the floors are not those of the coupling that the file names, or an empty string.

    A floor below the truth would leave room for a mechanism that reveals more than was promised, a floor above it would
    claim that less was lost to the mechanism. Either may be off by `_SLACK`.
    """
    settings = content.settings
    if settings.coupling is None:
        return ""
    if settings.floor is None:
        return "there is a coupling, and no floor"
    groups = [entry.node if entry.group is None else entry.group for entry in content.silos]
    members = Counter(groups)
    by_silo = settings.floor if isinstance(settings.floor, list) else [settings.floor] * len(groups)
    found: dict[int, float] = {}
    for entry, group, floor in zip(content.silos, groups, by_silo, strict=True):
        if (other := found.setdefault(members[group], floor)) != floor:
            return f"silo {entry.silo!r} has the floor {floor:.6g}, others in groups of its size {other:.6g}"
    for size, floor in found.items():
        true = _floor(size, settings.coupling)
        if not abs(floor - true) <= (_SLACK if size > 1 else 0.0):
            return f"the floor of groups of {size} is {floor:.6g}, and coupling {settings.coupling:g} gives {true:.6g}"
    ordered = [found[size] for size in sorted(found)]
    return "" if ordered == sorted(ordered) else "a larger group has a smaller floor"


def _floor(size: int, coupling: float) -> float:
    """Returns what the others of a group of so many members say of a member's p, in nats."""
    others, coupling = size - 1, max(coupling, _WEAKEST)
    if others == 0:
        return 0.0
    # Above, the grid of group means would not resolve what the others say of theirs.
    summed = int(min(_MOST_OTHERS, 1e4 // coupling)) if coupling <= _NORMAL_FROM else _MOST_OTHERS
    if others <= summed:
        return _said_by(others, coupling)
    # What is left unsaid is a/n + b/n² + ...: a and b from two numbers of others.
    few, many, limit = summed // 2, summed, _said_by(math.inf, coupling)
    at_few, at_many = (n * (limit - _said_by(n, coupling)) for n in (few, many))
    slope = (at_few - at_many) / (1 / few - 1 / many)
    return limit - (at_many + slope * (1 / others - 1 / many)) / others


@functools.lru_cache(maxsize=256)
def _said_by(others: float, coupling: float) -> float:
    """Returns the information that so many others have of a member's level; infinitely many know the group's mean."""
    if coupling > _NORMAL_FROM:
        return _said_by_normal(others, coupling)
    prior, level = _prior(), _levels(coupling)
    weighted = prior[:, None] * level
    return _shared(weighted if math.isinf(others) else weighted.T @ _sums(int(others), coupling))


def _mean() -> _Array:
    """Returns the grid of group means: equally far apart in the angle, in which posteriors are equally wide."""
    return np.sin((np.arange(_NODES) + 0.5) * np.pi / 2 / _NODES) ** 2


def _prior() -> _Array:
    """Returns the mass of every group mean under Beta(2, 2)."""
    mean = _mean()
    mass = (mean * (1 - mean)) ** 1.5
    return np.asarray(mass / mass.sum())


@functools.lru_cache(maxsize=2)
def _levels(coupling: float) -> _Array:
    """Returns by group mean the mass of every level of p."""
    mean = _mean()[:, None]
    below = special.betainc(coupling * mean, coupling * (1 - mean), np.linspace(0, 1, _LEVELS + 1))
    return np.maximum(np.diff(below), 0.0)


@functools.lru_cache(maxsize=2)
def _cells(coupling: float) -> _Array:
    """Returns by group mean the mass of every cell of the logit of one p; the outermost cells go on for ever."""
    mean = _mean()[:, None]
    own, rest = coupling * mean, coupling * (1 - mean)
    # An eighth of the standard deviation of a logit, or narrower; a tail falls as exp(-coupling * mean * logit).
    step = 0.15 / coupling**0.8 if coupling < 1 else 0.15 / math.sqrt(max(coupling, 4.0) / 4.0)
    edge = -step * np.arange(math.ceil((8 + 25 / coupling) / step), -1, -1)
    near = special.betainc(own, rest, special.expit(np.maximum(edge, _SMALLEST_LOGIT)))
    far = np.exp(own * edge - np.log(own) - special.betaln(own, rest))
    low = np.diff(np.where(edge < _SMALLEST_LOGIT, far, near), axis=1, prepend=0.0)
    return np.concatenate([low, low[::-1, ::-1]], axis=1)  # p and the group's mean may be counted from either end


def _sums(others: int, coupling: float) -> _Array:
    """Returns by group mean the mass of every cell of the sum of so many logits."""
    cells = _cells(coupling)
    width = others * (cells.shape[1] - 1) + 1
    length = 1 << (width - 1).bit_length()
    masses = np.fft.irfft(np.fft.rfft(cells, length, axis=1) ** others, length, axis=1)[:, :width]
    together = round(math.sqrt(others))  # as the sum spreads: a function of it still
    return np.asarray(np.add.reduceat(np.maximum(masses, 0.0), np.arange(0, width, together), axis=1))


def _said_by_normal(others: float, coupling: float) -> float:
    """Returns the same where p's angle is normal about the others' mean angle, of variance (1 + 1/n) / (4 coupling)."""
    held = min(coupling, _SHARPEST)
    width = 0.5 * math.sqrt((1 + 1 / others) / held)
    points = math.ceil(4 * np.pi / 2 / width)
    angle = (np.arange(points) + 0.5) * np.pi / 2 / points
    prior = (np.sin(angle) * np.cos(angle)) ** 3
    edges = np.arcsin(np.sqrt(np.arange(1, _LEVELS) / _LEVELS))
    unsaid = 0.0
    for some in np.array_split(np.arange(points), math.ceil(points / 2000)):  # a few megabytes at a time
        level = np.diff(special.ndtr((edges - angle[some, None]) / width), axis=1, prepend=0.0, append=1.0)
        unsaid += float(prior[some] @ special.entr(np.maximum(level, 0.0)).sum(axis=1))
    known = float(special.entr(_prior() @ _levels(min(coupling, 1e4))).sum())
    return known - math.sqrt(held / coupling) * unsaid / float(prior.sum())


def _shared(joint: _Array) -> float:
    """Returns the information that rows and columns of a table of probabilities have of each other."""
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(special.rel_entr(joint, apart).sum())
