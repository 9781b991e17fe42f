"""What one silo releases in one round: its update, clipped as a whole, before noise is added.

>>> import numpy as np
>>> clip(np.array([3.0, 4.0]), 1.0).tolist()
[0.6000000000000001, 0.8]
"""

import math

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DivergedUpdateError


def clip(update: FloatArray, norm: float) -> FloatArray:
    """Scales `update` down so that its L2 norm is at most `norm`.

    Guarantees, for every shape including 0-d and empty:

    - the result's norm is at most `norm`, up to one rounding of the dtype;
    - an update already within the norm comes back unchanged, bit for bit;
    - the input is not written to.

    NaN or inf raises `DivergedUpdateError`: a silo that diverged has no bounded update, and zeros would hide it.
    """
    size = float(np.linalg.norm(np.ravel(update)))
    if not math.isfinite(size):
        raise DivergedUpdateError("the update is not finite. Lower the learning rate or check the data")
    return update * clip_factor(np.asarray(size), norm) if size > norm else update


def clip_factor(size: FloatArray, norm: float | FloatArray) -> FloatArray:
    """Returns what updates of these L2 norms are scaled by: 1 within the norm, else norm / size."""
    return np.divide(norm, size, out=np.ones(np.broadcast_shapes(np.shape(size), np.shape(norm))), where=size > norm)
