"""Whether the lateral floors of a plan file are those of the coupling that it names: by a coarser way of its own.

A floor is what the m - 1 others of a silo's group say of its class concentration p. Two of them are plain sums over a
grid: what one other says, and what the mean of the group says, which infinitely many others tell. In between, what is
still missing after n others falls like 1/n: at least as fast as from the first other on, and at first no faster than
for Gaussian groups. That leaves a few hundredths of a nat, which is enough to tell a floor that was made up.

>>> low, high = _bracket(12, 20.0)
>>> low < 0.875 < high, round(high - low, 2)
(True, 0.08)
"""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
from scipy import special

from fulcrum.planning.plan_file import PlanFile

_LEVELS = 400  # that p is resolved to
_NODES = 400  # of the grid of group means
_SLACK = 0.03  # nats; what the grid, and levels for the other silo too, may lose
_WEAKEST, _STRONGEST = 1e-3, 1e4  # couplings that the grid resolves


def floor_problem(content: PlanFile) -> str:
    """Returns why the floors are not those of the coupling that the file names, or an empty string."""
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
        low, high = _bracket(size, settings.coupling)
        if not low <= floor <= high:
            about = f"coupling {settings.coupling:g} gives from {max(low, 0):.3g} to {high:.3g}"
            return f"the floor of groups of {size} is {floor:.6g}, and {about}"
    ordered = [found[size] for size in sorted(found)]
    return "" if ordered == sorted(ordered) else "a larger group has a smaller floor"


def _bracket(size: int, coupling: float) -> tuple[float, float]:
    """Returns between what the floor of a group of so many lies."""
    if size == 1:
        return 0.0, 0.0
    if not _WEAKEST <= coupling <= _STRONGEST:
        return 0.0, math.log(_LEVELS)
    one, all_others = _ends(coupling)
    others, missing = size - 1, all_others - one
    gaussian = all_others - 0.5 * math.log1p(1 / others) + (0.5 * math.log(2) - missing) / others**2
    falling = all_others - missing / others
    return min(gaussian, falling) - _SLACK, max(gaussian, falling) + _SLACK


@functools.lru_cache(maxsize=64)
def _ends(coupling: float) -> tuple[float, float]:
    """Returns what one other member says of p, and what the mean of the group says."""
    angle = (np.arange(_NODES) + 0.5) * np.pi / 2 / _NODES
    mean, rest = np.sin(angle) ** 2, np.cos(angle) ** 2
    prior = (mean * rest) ** 1.5  # Beta(2, 2), and how far apart means are that are equally far apart in the angle
    prior /= prior.sum()
    below = special.betainc(coupling * mean[:, None], coupling * rest[:, None], np.linspace(0, 1, _LEVELS + 1))
    level = np.maximum(np.diff(below), 0.0)
    both = prior[:, None] * level
    return _shared(both.T @ level), _shared(both)


def _shared(joint: np.ndarray[Any, Any]) -> float:
    """Returns the information that rows and columns of a table of probabilities have of each other."""
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(special.rel_entr(joint, apart).sum())
