"""How well a model does for each region: its accuracy on records mixed as the region's own are.

>>> recall = np.array([[0.9], [0.6]])  # of a model that knows the first class better than the second
>>> mixes = np.array([[0.5, 0.5], [0.1, 0.9]])
>>> worst_region_accuracy(recall, mixes).tolist()
[0.63]

Regions differ here in how often each class occurs. So a region's accuracy is the model's on the test split, reweighted
to the classes that the region's silos hold: the sum over classes of the class's share in the region times the share of
its test records that the model names rightly. The worst region is the one where that is least.
"""

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.simulation.partition import Partition


def class_mixes(partition: Partition, labels: IntArray, region_of: IntArray, *, classes: int) -> FloatArray:
    """Returns by region and class what share of the region's records it has.

    Args:
        partition: Who holds what.
        labels: The class of every training record.
        region_of: The region of every silo.
        classes: How many there are.
    """
    owner = np.repeat(region_of, partition.counts)
    regions = int(region_of.max()) + 1
    held = np.bincount(owner * classes + labels[partition.records], minlength=regions * classes)
    counts = held.reshape(regions, classes)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def worst_region_accuracy(recall: FloatArray, mixes: FloatArray) -> FloatArray:
    """Returns by arm the accuracy for the region that it is least for.

    Args:
        recall: By class and arm; a class that was not tested (NaN) is left out of every mix.
        mixes: By region and class.
    """
    tested = ~np.isnan(recall[:, 0])
    known = mixes[:, tested]
    with np.errstate(invalid="ignore"):
        known = known / known.sum(axis=1, keepdims=True)
    return np.asarray((known @ recall[tested]).min(axis=0))
