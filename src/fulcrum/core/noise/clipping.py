"""What one silo releases in one round: its update, clipped as a whole, before noise is added.

>>> import numpy as np
>>> clip(np.array([3.0, 4.0]), 1.0).tolist()
[0.6000000000000001, 0.8]
"""

import math

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DivergedUpdateError, ParameterError


def clip(update: FloatArray, norm: float, share: float = 1.0) -> FloatArray:
    """Scales `update` so that its L2 norm is at most `norm`: clipped at `share` of it, then scaled up by 1 / share.

    Guarantees, for every shape including 0-d and empty, and every finite size:

    - the result's norm is at most `norm`, up to one rounding of the dtype, so that two results differ by at most twice
      `norm` whatever the share; where the dtype does not hold so much, it is the largest that it does;
    - with a share of 1, an update already within the norm comes back unchanged, bit for bit;
    - the dtype is kept, and the input is not written to.

    NaN or inf raises `DivergedUpdateError`: a silo that diverged has no bounded update, and zeros would hide it. A norm
    that is negative or NaN, or a share that is not above 0 and at most 1, raises `ParameterError`; an infinite norm
    clips nothing.
    """
    if not norm >= 0:
        raise ParameterError(f"the clip norm must be a number of at least 0, got {norm}")
    if not 0 < share <= 1:
        raise ParameterError(f"the share of the clip norm must be above 0 and at most 1, got {share}")
    with np.errstate(all="ignore"):  # what overflows or underflows here is meant to, whatever NumPy was told to raise
        largest = max(float(np.max(update, initial=0.0)), -float(np.min(update, initial=0.0)))
        if not math.isfinite(largest):
            raise DivergedUpdateError("the update is not finite. Lower the learning rate or check the data")
        exponent = math.frexp(largest)[1] - 1
        # Exact, and its squares cannot overflow.
        scaled = np.asarray(np.ldexp(np.asarray(update, dtype=np.float64), -exponent))
        size = float(np.linalg.norm(np.ravel(scaled)))
        if share == 1 and np.ldexp(size, exponent) <= norm:
            return update
        kept = np.result_type(update, np.float16)  # a float's own dtype
        # Never more than brings it to the norm, however the share was rounded, nor than the dtype holds.
        room = float(np.finfo(kept).max) * (1 - 2.0**-50) / max(1.0, math.ldexp(largest, -exponent))
        factor = min(float(np.ldexp(1 / share, exponent)), norm / size if size else 0.0, room)
        return np.asarray(np.multiply(scaled, factor, out=scaled).astype(kept, copy=False))


def clip_factor(size: FloatArray, norm: float | FloatArray, share: float | FloatArray = 1.0) -> FloatArray:
    """Returns what updates of these L2 norms are scaled by: 1 / share within that share of the norm, or norm / size."""
    inverse = np.broadcast_to(
        1 / np.asarray(share), np.broadcast_shapes(np.shape(size), np.shape(norm), np.shape(share))
    )
    return np.divide(norm, size, out=inverse.copy(), where=size > norm * np.asarray(share))
