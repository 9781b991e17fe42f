"""Checks the information floors of a plan file: recomputed from the coupling in the file, by a second method.

The floor of a silo in a group of m silos is the information about the silo's class concentration p, in 400 levels, in
the concentrations of the n = m - 1 peers (docs/maths.md, "Information floor"). The method:

- The logits of peers are cut into narrow cells, and the sum of logits is counted in cells. The sum is a function of the
  peers' data and can only hold less information about p. The sum holds nearly all information, because the sum of
  logits is sufficient for the group's mean. The masses of the sum are a convolution.
- The information that many peers leave open falls as 1/n, and is continued from two numbers of peers.
- Above `_NORMAL_FROM` the arc sines of the square roots are normal to one part in the coupling.

>>> round(float(_floor(12, 20.0)), 3)
0.877
"""

import functools
import math
from collections import Counter
from typing import Any, TypeAlias

import numpy as np
from scipy import special

from fulcrum.core.plan.plan_file import PlanFile, values_by_silo

_Array: TypeAlias = np.ndarray[Any, Any]

_SLACK = 1e-3  # nats; planner and verification are both within 5e-4 of the truth
_LEVELS = 400  # of p
_NODES = 400  # of the grid of group means: 0.8 of the width of their posterior where coupling times others is 1e4
_MOST_PEERS = 12  # that are summed up; larger numbers are continued
_WEAKEST = 1e-3  # coupling below which p is 0 or 1, and the floor that of this coupling to 1e-4 nats
_NORMAL_FROM = 1e3  # coupling from which angles are taken for normal, which errs by less than 1e-3 nats
_SHARPEST = 1e7  # coupling beyond which the open information falls as the width of p about the group's mean
_SMALLEST_LOGIT = -30.0  # below, the Beta distribution is its first term to 1e-13


def floor_problem(content: PlanFile) -> str:
    """Returns the reason for which floors do not follow from the coupling in the file, or an empty string.

    A floor below the truth would leave room for a mechanism that reveals more than promised. A floor above the truth
    would attribute information to the data that the releases reveal. Floors may be off by `_SLACK`; the floor of a
    group of one is exactly 0. A file without a coupling passes.
    """
    settings = content.settings
    if settings.coupling is None:
        return ""
    if settings.floor is None:
        return "there is a coupling, and no floor"
    groups = [entry.node if entry.group is None else entry.group for entry in content.silos]
    members = Counter(groups)
    by_silo = values_by_silo(settings.floor, len(groups))
    floors: dict[int, float] = {}
    for entry, group, floor in zip(content.silos, groups, by_silo, strict=True):
        if (other := floors.setdefault(members[group], floor)) != floor:
            return f"silo {entry.silo!r} has the floor {floor:.6g}, others in groups of its size {other:.6g}"
    for size, floor in floors.items():
        true = _floor(size, settings.coupling)
        if not abs(floor - true) <= (_SLACK if size > 1 else 0.0):
            return f"the floor of groups of {size} is {floor:.6g}, and coupling {settings.coupling:g} gives {true:.6g}"
    ordered = [floors[size] for size in sorted(floors)]
    return "" if ordered == sorted(ordered) else "a larger group has a smaller floor"


def _floor(size: int, coupling: float) -> float:
    """Returns the information floor, in nats, of a group of `size` members."""
    peers, coupling = size - 1, max(coupling, _WEAKEST)
    if peers == 0:
        return 0.0
    # With more peers the grid of group means would not resolve the posterior of the group's mean.
    summed = int(min(_MOST_PEERS, 1e4 // coupling)) if coupling <= _NORMAL_FROM else _MOST_PEERS
    if peers <= summed:
        return _information_of(peers, coupling)
    # The open information is a/n + b/n² + ...: a and b from two numbers of peers.
    few, many, limit = summed // 2, summed, _information_of(math.inf, coupling)
    at_few, at_many = (n * (limit - _information_of(n, coupling)) for n in (few, many))
    slope = (at_few - at_many) / (1 / few - 1 / many)
    return limit - (at_many + slope * (1 / peers - 1 / many)) / peers


@functools.lru_cache(maxsize=256)
def _information_of(peers: float, coupling: float) -> float:
    """Returns the information of a number of peers about a member's level; infinitely many know the group's mean."""
    if coupling > _NORMAL_FROM:
        return _information_of_normal(peers, coupling)
    weighted = _prior()[:, None] * _levels(coupling)
    return _mutual_information(weighted if math.isinf(peers) else weighted.T @ _sums(int(peers), coupling))


def _mean() -> _Array:
    """Returns the grid of group means, equidistant in the angle: posteriors are equally wide in the angle."""
    return np.sin((np.arange(_NODES) + 0.5) * np.pi / 2 / _NODES) ** 2


def _prior() -> _Array:
    """Returns the probability of every group mean under Beta(2, 2)."""
    mean = _mean()
    mass = (mean * (1 - mean)) ** 1.5
    return np.asarray(mass / mass.sum())


@functools.lru_cache(maxsize=2)
def _levels(coupling: float) -> _Array:
    """Returns the probability of every level of p, a row for every group mean."""
    mean = _mean()[:, None]
    below = special.betainc(coupling * mean, coupling * (1 - mean), np.linspace(0, 1, _LEVELS + 1))
    return np.maximum(np.diff(below), 0.0)


@functools.lru_cache(maxsize=2)
def _cells(coupling: float) -> _Array:
    """Returns the probability of every cell of logit(p), a row for every group mean; both end cells are unbounded."""
    mean = _mean()[:, None]
    own, rest = coupling * mean, coupling * (1 - mean)
    # An eighth of the standard deviation of a logit, or narrower; a tail falls as exp(-coupling * mean * logit).
    step = 0.15 / coupling**0.8 if coupling < 1 else 0.15 / math.sqrt(max(coupling, 4.0) / 4.0)
    edge = -step * np.arange(math.ceil((8 + 25 / coupling) / step), -1, -1)
    near = special.betainc(own, rest, special.expit(np.maximum(edge, _SMALLEST_LOGIT)))
    far = np.exp(own * edge - np.log(own) - special.betaln(own, rest))
    low = np.diff(np.where(edge < _SMALLEST_LOGIT, far, near), axis=1, prepend=0.0)
    return np.concatenate([low, low[::-1, ::-1]], axis=1)  # p and the group's mean may be counted from either end


def _sums(peers: int, coupling: float) -> _Array:
    """Returns by group mean the mass of every cell of the sum of the peers' logits."""
    cells = _cells(coupling)
    width = peers * (cells.shape[1] - 1) + 1
    length = 1 << (width - 1).bit_length()
    masses = np.fft.irfft(np.fft.rfft(cells, length, axis=1) ** peers, length, axis=1)[:, :width]
    together = round(math.sqrt(peers))  # cells are joined as the sum spreads: still a function of the sum
    return np.asarray(np.add.reduceat(np.maximum(masses, 0.0), np.arange(0, width, together), axis=1))


def _information_of_normal(peers: float, coupling: float) -> float:
    """Returns the result of `_information_of` for a large coupling, by a normal distribution.

    The angle of a member's concentration p is arcsin(sqrt(p)). For a large coupling the member's angle is normal about
    the mean angle of the n peers, with variance (1 + 1/n) / (4 coupling).
    """
    held = min(coupling, _SHARPEST)
    width = 0.5 * math.sqrt((1 + 1 / peers) / held)
    points = math.ceil(4 * np.pi / 2 / width)
    angle = (np.arange(points) + 0.5) * np.pi / 2 / points
    prior = (np.sin(angle) * np.cos(angle)) ** 3
    edges = np.arcsin(np.sqrt(np.arange(1, _LEVELS) / _LEVELS))
    left_open = 0.0
    for some in np.array_split(np.arange(points), math.ceil(points / 2000)):  # a few megabytes at a time
        level = np.diff(special.ndtr((edges - angle[some, None]) / width), axis=1, prepend=0.0, append=1.0)
        left_open += float(prior[some] @ special.entr(np.maximum(level, 0.0)).sum(axis=1))
    entropy = float(special.entr(_prior() @ _levels(min(coupling, 1e4))).sum())
    return entropy - math.sqrt(held / coupling) * left_open / float(prior.sum())


def _mutual_information(joint: _Array) -> float:
    """Returns the mutual information, in nats, of rows and columns of a table of probabilities."""
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(special.rel_entr(joint, apart).sum())
