"""The accuracy of a model for every region, on records mixed like the records of the region.

>>> recall = np.array([[0.9], [0.6]])  # of a model that knows the first class better than the second
>>> mixes = np.array([[0.5, 0.5], [0.1, 0.9]])
>>> worst_region_accuracy(recall, mixes).tolist()
[0.63]

Regions differ here in the frequency of every class. A region's accuracy is therefore the model's accuracy on the test
split, reweighted to the classes of the region's silos: the sum over classes of the share of the class in the region,
times the share of correctly named test records of the class. The worst region has the least accuracy. If the silos of
test records are known, `metrics.measure_by_region` has the accuracy on the test records of the region's own silos.
"""

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.simulation.data.partition import Partition


def class_mixes(partition: Partition, labels: IntArray, region_of: IntArray, *, classes: int) -> FloatArray:
    """Returns by region and class the share of the class in the region's records.

    Args:
        partition: The records of every silo.
        labels: The class of every training record.
        region_of: The region of every silo.
        classes: Number of classes.
    """
    owner = np.repeat(region_of, partition.counts)
    regions = int(region_of.max()) + 1
    holdings = np.bincount(owner * classes + labels[partition.records], minlength=regions * classes)
    counts = holdings.reshape(regions, classes)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def worst_region_accuracy(recall: FloatArray, mixes: FloatArray) -> FloatArray:
    """Returns by variant the accuracy for the worst region.

    Args:
        recall: By class and variant; an untested class (NaN) is left out of every mix.
        mixes: By region and class.
    """
    tested = ~np.isnan(recall[:, 0])
    shares = mixes[:, tested]
    with np.errstate(invalid="ignore"):
        shares = shares / shares.sum(axis=1, keepdims=True)
    return np.asarray(np.fmin.reduce(shares @ recall[tested], axis=0))
