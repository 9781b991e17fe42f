"""Data as users have it in memory: a `Task`, a PyTorch dataset with a silo column, or what `load_task` reads.

>>> records = [([0.0, 1.0], 0, "lyon"), ([1.0, 0.0], 1, "rome"), ([1.0, 1.0], 1, "lyon")]
>>> task = dataset_task(records, held_out=records[:1], name="three")
>>> task.classes, task.silo
(('0', '1'), ('lyon', 'rome', 'lyon'))
"""

from typing import Any

import numpy as np

from fulcrum.errors import DataError, ParameterError, check_known
from fulcrum.simulation.tasks import TARGETS, Task, load_task

_TEST_SHARE = 0.2


def read_data(data: Any, **options: Any) -> Task:
    """Returns a task of whatever `train` takes.

    Args:
        data: A `Task`, a dataset with items and a length, or anything `load_task` takes.
        **options: As `load_task` or `dataset_task` takes them.
    """
    if isinstance(data, Task):
        return data
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, str):
        return dataset_task(data, **options)
    return load_task(data, **options)


def dataset_task(
    dataset: Any,
    *,
    held_out: Any = None,
    targets: str = "classes",
    classes: tuple[str, ...] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """Returns a task of a `torch.utils.data.Dataset`, or anything with items and a length.

    An item is a record and its target, or these and the name of the silo that holds it. Records are any arrays or
    tensors of one shape and stay as they are.

    Args:
        dataset: What silos train on.
        held_out: What is tested on, a dataset too; a fifth of the records drawn at random by default.
        targets: One of `TARGETS`.
        classes: The names of classes 0 .. K-1; their numbers by default.
        name: For messages and results; the dataset's class by default.
        seed: Of what is held out.
    """
    check_known("targets", targets, TARGETS)
    called = name or type(dataset).__name__
    features, labels, silo = _arrays(dataset, called, targets)
    if held_out is None:
        order = np.random.default_rng(seed).permutation(len(labels))
        kept, out = np.sort(order[round(_TEST_SHARE * len(order)) :]), np.sort(order[: round(_TEST_SHARE * len(order))])
        if not len(out):
            raise DataError(f"{called} has {len(labels)} records, too few to hold some out. Give held_out")
        tested = features[out], labels[out], silo and tuple(silo[place] for place in out)
        features, labels, silo = features[kept], labels[kept], silo and tuple(silo[place] for place in kept)
    else:
        tested = _arrays(held_out, f"the held-out part of {called}", targets)
    if targets == "classes":
        most = int(max(labels.max(), tested[1].max())) + 1
        if classes is not None and len(classes) < most:
            raise ParameterError(f"{called} has class {most - 1}, and {len(classes)} classes are named. Name them all")
        classes = classes or tuple(str(number) for number in range(max(most, 2)))
    return Task(
        name=called,
        features_train=features,
        labels_train=labels,
        features_test=tested[0],
        labels_test=tested[1],
        classes=classes or (),
        silo=silo,
        silo_test=tested[2],
        targets=targets,
        fitted=False,
    )


def _arrays(dataset: Any, name: str, targets: str) -> tuple[Any, Any, tuple[str, ...] | None]:
    """Returns the records, targets and silos of a dataset."""
    if not len(dataset):
        raise DataError(f"{name} has no records")
    items = [dataset[place] for place in range(len(dataset))]
    lengths = {len(item) if isinstance(item, (tuple, list)) else 1 for item in items}
    if lengths not in ({2}, {3}):
        raise DataError(f"an item of {name} must be a record and its target, or these and its silo")
    shapes = {np.shape(item[0]) for item in items}
    if len(shapes) > 1:
        raise DataError(f"the records of {name} must be of one shape, got {' and '.join(map(str, sorted(shapes)[:2]))}")
    features = np.stack([np.asarray(item[0]) for item in items])
    labels = np.stack([np.asarray(item[1]) for item in items])
    if features.dtype.kind == "f" and not np.isfinite(features).all():
        worst = int(np.argmin(np.isfinite(features.reshape(len(features), -1)).all(axis=1)))
        raise DataError(f"record {worst} of {name} has a feature that is not finite")
    if targets == "classes":
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise DataError(
                f"the targets of {name} must be classes 0 .. K-1, got {labels.dtype} of shape {labels.shape}. "
                "Say what they are with targets="
            )
        labels = labels.astype(np.intp)
    else:
        labels = labels.astype(np.float64)
        if not np.isfinite(labels).all():
            raise DataError(f"the targets of {name} must be finite")
    silo = tuple(str(item[2]) for item in items) if lengths == {3} else None
    return features, labels, silo
