"""A federation whose regions disagree: the largest region has swapped the labels of the two classes.

Records are dealt as without the disagreement. Then every label that a silo of the largest region holds is the other
class. A model that names a record rightly for the other regions names it wrongly for the largest region.
"""

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.label_conflict import conflicting_task, largest_region
from fulcrum.simulation.embedded.regional_metrics import class_mixes


def swap_labels(task: Task, job: Job) -> Task:
    """Returns the task of one job, with the two classes swapped in the records of the largest region's silos."""
    if len(task.classes) != 2:
        raise ValueError(f"labels are swapped between two classes, and {task.name} has {len(task.classes)}")
    return conflicting_task(task, job)


def mean_over_regions(accuracy: FloatArray, regions: int) -> FloatArray:
    """Returns the mean accuracy over regions, each by its own labels, every region counted once.

    Args:
        accuracy: By the labels of the test split, those of all regions but the largest.
        regions: How many there are.
    """
    return np.asarray(((regions - 1) * accuracy + (1 - accuracy)) / regions)


def worst_region_under_swap(job: Job, run: FederationRun, task: Task) -> FloatArray:
    """Returns by arm the final accuracy for the region where it is least, each region by its own labels.

    Args:
        job: The job.
        run: Its outcome; its recall is by the labels of the test split.
        task: The task before labels were swapped.
    """
    region_of = job.variants.region_of
    mixes = class_mixes(job.partition, task.labels_train, region_of, classes=2)
    accuracy = mixes @ run.recall
    place = largest_region(job)
    accuracy[place] = mixes[place] @ (1 - run.recall)
    return np.asarray(accuracy.min(axis=0))
