"""The epsilons of many shifts, read from a table whose chords lie above the accountant's convex curve.

>>> import numpy as np
>>> shifts = np.linspace(0.1, 1.0, 20_000)
>>> table, curve = epsilon_of_shifts(shifts, delta=1e-5), epsilon_of_shift(shifts, delta=1e-5)
>>> bool((table >= curve * (1 - 1e-12)).all()), bool((table <= curve * (1 + 1e-6)).all())
(True, True)
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray, FloatLike
from fulcrum.core.accounting import CURVES, Curve, epsilon_of_shift, solve_each, zero_shift

_TABLE_FROM = 20_000  # entries from which a table is cheaper than solving for each
_TABLE_STEP = 5e-4  # relative spacing in mu; a chord is then at most 1e-7 above the curve, relatively
_BLOCK = 32_768  # entries looked up at a time, so that temporaries stay in cache


def epsilon_of_shifts(shift: FloatLike, *, delta: float, accountant: str = "exact") -> FloatArray:
    """Returns `epsilon_of_shift` of every entry; a long array is read from a table, which errs upward."""
    solve = _read_from_table if np.size(shift) >= _TABLE_FROM else solve_each
    return epsilon_of_shift(shift, delta=delta, accountant=accountant, solve=solve)


def _read_from_table(shift: FloatArray, delta: float, curve: Curve) -> FloatArray:
    """Returns epsilons from the chords of the convex curve, never below the curve; the largest shift is met exactly."""
    low, high = float(shift.min()), float(shift.max())
    edge = zero_shift(delta)
    if curve is CURVES["exact"] and low < edge < high:  # no chord may span the bend
        epsilon = np.zeros_like(shift)
        epsilon[shift > edge] = _read_from_table(shift[shift > edge], delta, curve)
        return epsilon
    cells = max(1, math.ceil(math.log(high / low) / _TABLE_STEP))
    step = math.log(high / low) / cells or 1.0
    nodes = low * np.exp(step * np.arange(cells + 1))
    nodes[0], nodes[-1] = low, high
    values = curve(nodes, delta)[0]
    right, top = nodes[1:], values[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(right > nodes[:-1], (top - values[:-1]) / (right - nodes[:-1]), 0.0)
    epsilon = np.empty_like(shift)
    scratch = np.empty(_BLOCK)
    for start in range(0, len(shift), _BLOCK):
        block = shift[start : start + _BLOCK]
        position = np.log(block / low, out=scratch[: len(block)])
        position /= step
        cell: npt.NDArray[Any] = position.astype(np.intp)
        np.minimum(cell, cells - 1, out=cell)
        out = epsilon[start : start + _BLOCK]
        right.take(cell, out=out, mode="clip")
        out -= block
        out *= slope.take(cell)
        np.subtract(top.take(cell), out, out=out)
    return np.maximum(epsilon, 0, out=epsilon)
