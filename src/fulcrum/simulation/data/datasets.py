"""Data as users have it in memory: a `Task`, a PyTorch dataset with a silo column, or a source for `load_task`.

>>> records = [([0.0, 1.0], 0, "lyon"), ([1.0, 0.0], 1, "rome"), ([1.0, 1.0], 1, "lyon")]
>>> task = dataset_task(records, held_out=records[:1], name="three")
>>> task.classes, task.silo
(('0', '1'), ('lyon', 'rome', 'lyon'))
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.core.topology import Topology
from fulcrum.errors import DataError, ParameterError, check_known, in_one_line, listing
from fulcrum.simulation.data.input_scaling import read_inputs, scale_inputs
from fulcrum.simulation.data.real_federations import is_real_federation, real_task
from fulcrum.simulation.data.sources.data_records import TEST_SHARE, choose_test_persons, choose_test_records, word_of
from fulcrum.simulation.data.sources.record_columns import csv_columns, parquet_columns
from fulcrum.simulation.data.tasks import TARGETS, Task, in_order, load_task


def read_data(
    data: Any, federation: Topology | None = None, *, input_factors: str | Path | None = None, **options: Any
) -> Task:
    """Returns the task of any data that `train` takes.

    Args:
        data: A `Task`, a dataset with items and a length, a name of `real_federations.REAL`, or a source for
            `load_task`.
        federation: The federation of the plan: its silo names tell a silo column from a wrong feature column.
        input_factors: A file of `input_scaling.save_inputs`, whose factors then multiply the inputs.
        **options: Options of `load_task` or `dataset_task`.
    """
    task = _read(data, federation, options)
    return task if input_factors is None else scale_inputs(task, read_inputs(input_factors))


def _read(data: Any, federation: Topology | None, options: Mapping[str, Any]) -> Task:
    if isinstance(data, Task):
        data.check_finite()
        return data
    if isinstance(data, (str, Path)):
        try:
            if is_real_federation(data, options.get("data_dir")):
                return real_task(str(data), **options)
            return load_task(data, **options)
        except DataError as error:
            if error.code == "table.column-type" and federation is not None and options.get("silo") is None:
                _suggest_silo_column(Path(data), federation)
            raise
    return dataset_task(data, **options)


def _suggest_silo_column(file: Path, federation: Topology) -> None:
    """Raises `DataError` for the first column of a table in which at least half of the values are names of silos."""
    silo_names = set(federation.silo_names.tolist())
    columns = csv_columns(file) if file.suffix.lower() == ".csv" else parquet_columns(file)
    for column, cells in columns.items():
        words = set(map(word_of, cells))
        if 2 * len(words & silo_names) >= len(words) > 0:
            raise DataError("table.silo-column-named", file=file, column=column, silo=min(words & silo_names)) from None


def dataset_task(
    dataset: Any,
    *,
    held_out: Any = None,
    targets: str = "classes",
    classes: tuple[str, ...] | None = None,
    name: str | None = None,
    seed: int = 0,
) -> Task:
    """Returns a task of a `torch.utils.data.Dataset`, or of any object with items and a length.

    An item is a record and a target, optionally followed by the name of a silo, and then by the name of a person.
    Records are arrays or tensors of equal shape and stay unchanged, but images in bytes become 0 to 1. Targets of the
    kind classes are numbers 0 .. K-1 of classes, or names of classes.

    Args:
        dataset: The data that silos train on.
        held_out: The dataset to test on; a fifth of the records drawn at random by default.
        targets: A name of `TARGETS`.
        classes: The names of classes 0 .. K-1; the numbers by default.
        name: Name in messages and results; the dataset's class by default.
        seed: Seed of the choice of test records.
    """
    check_known("targets", targets, TARGETS)
    data_name = name or type(dataset).__name__
    features, labels, silo, persons = _arrays(dataset, data_name, targets)
    if held_out is None:
        classes_of = labels.tolist() if targets == "classes" else None
        if persons is None:
            chosen = choose_test_records(classes_of, silo, len(labels), seed)
        else:
            columns = [column for column in (silo, classes_of) if column is not None]
            chosen = choose_test_persons(persons, columns, seed=seed, share=TEST_SHARE)
        if not chosen.any():
            raise DataError("dataset.records-few", data=data_name, records=len(labels))
        tested = _rows(chosen, features, labels, silo, persons)
        features, labels, silo, persons = _rows(~chosen, features, labels, silo, persons)
    else:
        tested = _arrays(held_out, f"the held-out part of {data_name}", targets)
    if tested[0].shape[1:] != features.shape[1:]:
        shapes = f"{features.shape[1:]} to train on and {tested[0].shape[1:]} to test on"
        raise DataError("dataset.record-shapes", data=data_name, shapes=shapes)
    tested_labels = tested[1]
    if targets == "classes":
        classes, labels, tested_labels = _classes(data_name, labels, tested_labels, classes)
    task = Task(
        name=data_name,
        features_train=features,
        labels_train=labels,
        features_test=tested[0],
        labels_test=tested_labels,
        classes=classes or (),
        silo=silo,
        silo_test=tested[2],
        persons=persons,
        targets=targets,
        fitted=False,
    )
    task.check_finite()
    return task


def _rows(chosen: Any, features: Any, labels: Any, *columns: tuple[str, ...] | None) -> tuple[Any, Any, Any, Any]:
    silo, persons = (column and tuple(column[place] for place in np.flatnonzero(chosen)) for column in columns)
    return features[chosen], labels[chosen], silo, persons


def _classes(name: str, labels: Any, tested: Any, classes: Sequence[str] | None) -> tuple[tuple[str, ...], Any, Any]:
    """Returns the names of the classes, and the class numbers by record; names from the data are numbered in order."""
    if isinstance(classes, str):
        raise ParameterError("dataset.classes-type", classes=classes)
    trained_on = set(labels.tolist())
    if len(trained_on) < 2:
        raise DataError("dataset.class-single", data=name, label=next(iter(trained_on)))
    unseen = set(tested.tolist()) - trained_on
    if unseen:
        raise DataError("dataset.class-untrained", data=name, label=min(unseen))
    if labels.dtype.kind == "U":
        names = tuple(classes or in_order(trained_on))
        if not trained_on <= set(names):
            missing = listing(sorted(trained_on - set(names)))
            raise ParameterError("dataset.classes-unnamed", data=name, classes=missing)
        number = {word: place for place, word in enumerate(names)}
        labels, tested = (np.array([number[word] for word in column.tolist()]) for column in (labels, tested))
        return names, labels, tested
    most = int(labels.max()) + 1
    if classes is not None and len(classes) < most:
        raise ParameterError("dataset.classes-few", data=name, label=most - 1, classes=len(classes))
    return tuple(classes or (str(number) for number in range(most))), labels, tested


def _arrays(dataset: Any, name: str, targets: str) -> tuple[Any, Any, tuple[str, ...] | None, tuple[str, ...] | None]:
    """Returns the records, targets, silos and persons of a dataset; classes as whole numbers, or as text."""
    items = _items(dataset, name)
    lengths = {len(item) if isinstance(item, (tuple, list)) else 1 for item in items}
    if lengths not in ({2}, {3}, {4}):
        raise DataError("dataset.item-form", data=name)
    examples = [_array(item[0]) for item in items]
    shapes = {example.shape for example in examples}
    if len(shapes) > 1:
        raise DataError("dataset.record-shapes", data=name, shapes=" and ".join(map(str, sorted(shapes)[:2])))
    features = np.stack(examples)
    if features.dtype.kind not in "fiub":
        raise DataError("dataset.record-type", data=name, dtype=features.dtype)
    if features.dtype == bool or (features.dtype == np.uint8 and features.ndim > 2):
        features = features.astype(np.float32) / np.float32(255 if features.dtype == np.uint8 else 1)
    silo, persons = (
        tuple(_name(item[column], place, name, noun) for place, item in enumerate(items))
        if max(lengths) > column
        else None
        for column, noun in ((2, "silo"), (3, "person"))
    )
    return features, _targets([_array(item[1]) for item in items], name, targets), silo, persons


def _items(dataset: Any, name: str) -> list[Any]:
    """Returns the items of a dataset, or raises `DataError` with the number of an unreadable item."""
    is_table = isinstance(dataset, Mapping) or hasattr(dataset, "columns")
    if is_table or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise DataError("dataset.type-unusable", data=name)
    if not len(dataset):
        raise DataError("data.records-missing", data=name, part="")
    items = []
    for place in range(len(dataset)):
        try:
            items.append(dataset[place])
        except Exception as error:  # a user's dataset may raise anything
            reason = f"{type(error).__name__}: {in_one_line(error)}"
            raise DataError("dataset.item-unreadable", item=place, data=name, reason=reason) from error
    return items


def _array(value: Any) -> Any:
    """Returns a tensor or any value as an array; half precision unknown to NumPy becomes single precision."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
    return np.asarray(value)


def _name(value: Any, place: int, name: str, noun: str) -> str:
    array = _array(value)
    word = word_of(array.item()) if array.ndim == 0 else ""
    if not word:
        if noun == "person":
            raise DataError("dataset.person-unnamed", item=place, data=name, value=in_one_line(value))
        raise DataError("dataset.silo-unnamed", item=place, data=name, value=in_one_line(value))
    return word


def _targets(values: list[Any], name: str, targets: str) -> Any:
    """Checks the targets of all records, and returns the targets as a single array."""
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise DataError("dataset.target-shapes", data=name, shapes=" and ".join(map(str, sorted(shapes)[:2])))
    array = np.stack(values)
    dtype, shape = array.dtype, array.shape
    if targets == "classes":
        array = array.astype(np.intp) if array.dtype == bool else array
        whole = array.dtype.kind in "iu" and array.min() >= 0
        if array.ndim != 1 or not (whole or array.dtype.kind == "U"):
            raise DataError("dataset.targets-classes", data=name, dtype=dtype, shape=shape)
        return array.astype(np.intp) if whole else array
    if array.dtype.kind not in "fiub":
        raise DataError("dataset.targets-type", data=name, dtype=dtype, shape=shape)
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise DataError("dataset.target-not-finite", data=name)
    if targets == "labels" and (array.ndim != 2 or not np.isin(array, (0, 1)).all()):
        raise DataError("dataset.targets-labels", data=name, dtype=dtype, shape=shape)
    return array
