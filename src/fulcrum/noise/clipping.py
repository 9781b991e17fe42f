"""What one silo releases in one round: its update, clipped as a whole, before noise is added.

>>> import numpy as np
>>> clip(np.array([3.0, 4.0]), 1.0).tolist()
[0.6000000000000001, 0.8]
"""

import math

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DivergedUpdateError, ParameterError


def clip(update: FloatArray, norm: float) -> FloatArray:
    """Scales `update` down so that its L2 norm is at most `norm`.

    Guarantees, for every shape including 0-d and empty, and every finite size:

    - the result's norm is at most `norm`, up to one rounding of the dtype;
    - an update already within the norm comes back unchanged, bit for bit;
    - the dtype is kept, and the input is not written to.

    NaN or inf raises `DivergedUpdateError`: a silo that diverged has no bounded update, and zeros would hide it.
    A norm that is negative or NaN raises `ParameterError`; an infinite one clips nothing.
    """
    if not norm >= 0:
        raise ParameterError(f"the clip norm must be a number of at least 0, got {norm}")
    with np.errstate(all="ignore"):  # what overflows or underflows here is meant to, whatever NumPy was told to raise
        largest = float(np.max(np.abs(update), initial=0.0))
        if not math.isfinite(largest):
            raise DivergedUpdateError("the update is not finite. Lower the learning rate or check the data")
        exponent = math.frexp(largest)[1] - 1
        scaled = np.ldexp(np.asarray(update, dtype=np.float64), -exponent)  # exact, and its squares cannot overflow
        size = float(np.linalg.norm(np.ravel(scaled)))
        if np.ldexp(size, exponent) <= norm:
            return update
        kept = np.result_type(update, np.float16)  # a float's own dtype
        return np.asarray(scaled * (norm / size)).astype(kept, copy=False)


def clip_factor(size: FloatArray, norm: float | FloatArray) -> FloatArray:
    """Returns what updates of these L2 norms are scaled by: 1 within the norm, else norm / size."""
    return np.divide(norm, size, out=np.ones(np.broadcast_shapes(np.shape(size), np.shape(norm))), where=size > norm)
