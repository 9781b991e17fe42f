"""How well a model does for each region: its accuracy on records mixed as the region's own are.

>>> recall = np.array([[0.9], [0.6]])  # of a model that knows the first class better than the second
>>> mixes = np.array([[0.5, 0.5], [0.1, 0.9]])
>>> worst_region_accuracy(recall, mixes).tolist()
[0.63]

Regions differ here in how often each class occurs. So a region's accuracy is the model's on the test split, reweighted
to the classes that the region's silos hold: the sum over classes of the class's share in the region times the share of
its test records that the model names rightly. The worst region is the one where that is least. Where test records are
known to be of silos, a region's accuracy is that on the records of its own silos.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.simulation.data.partition import Partition


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


def worst_region_of_silos(
    by_silo: FloatArray, silos: Sequence[str], counts: IntArray, region_of: Mapping[str, int]
) -> FloatArray:
    """Returns by arm the accuracy for the region that it is least for, on test records of the region's own silos.

    Args:
        by_silo: The accuracy on each silo's records, by silo and arm.
        silos: Their names.
        counts: How many test records each has.
        region_of: The region of every silo.
    """
    region = np.array([region_of[name] for name in silos])
    share = (region == np.unique(region)[:, None]) * counts
    return np.asarray((share @ by_silo / share.sum(axis=1, keepdims=True)).min(axis=0))


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
