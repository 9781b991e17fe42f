"""Finds regions that oppose the model, from the slopes of their sums along the displacement of the model.

>>> regions_dispute(np.array([2.0, -1.5]), np.array([0.1, 1.0]), heard=np.ones(2))
True
>>> regions_dispute(np.array([2.0, 1.5]), np.array([0.1, 1.0]), heard=np.ones(2))
False

A slope is the part of a region's sums along the displacement that the model had before each round. The noise of these
sums is fresh, so the displacement does not depend on that noise, and the noise of a slope has a sloped variance. A
single direction has signal where all coordinates together have more noise than signal: the variance of regional
effects (`random_effects`) sees a conflict late, a slope sees the conflict early.

While regions agree, all slopes have the same mean above 0. If the largest region has other labels than the rest, the
model follows the largest region, and the slopes of the others have a mean below 0. The regions are in dispute if the
others together have a slope below 0, although a slope like the first region's would stand out of their noise. With much
noise no slope stands out, and no dispute is found.
"""

import numpy as np

from fulcrum.arrays import FloatArray

_STANDS_OUT = 1.28
"""Standard deviations of the others' noise: noise alone brings a slope of this size below 0 in one of ten cases."""


def regions_dispute(slopes: FloatArray, noise: FloatArray, heard: FloatArray) -> bool:
    """Returns True if the other regions oppose the region with the least noise.

    Args:
        slopes: By region, the slope added up over rounds, every round multiplied by its step.
        noise: By region, the variance of the noise in the slope; 0 for a region without a slope.
        heard: By region, the sum of the steps of the rounds with a sum of the region.
    """
    sloped = np.flatnonzero(noise > 0)
    if len(sloped) < 2:
        return False
    slope, variance = slopes[sloped] / heard[sloped], noise[sloped] / heard[sloped] ** 2
    first = int(np.argmin(variance))
    others = np.arange(len(sloped)) != first
    precision = 1 / variance[others]
    opposed = float((precision * slope[others]).sum()) < 0
    return opposed and float(slope[first]) * float(np.sqrt(precision.sum())) > _STANDS_OUT
