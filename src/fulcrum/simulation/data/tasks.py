"""The task of a federation: features and labels, a training and a test split, reduced and scaled.

>>> task = load_task("digits")
>>> task.features_train.shape, task.classes
((1438, 16), ('even', 'odd'))

Principal components and scale are fitted on the pooled training split: a single scale for all components, or without
components a scale for every column. A federation that fits components or scale on its silos' data spends privacy
outside every epsilon here: fit on public data, or declare the release.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError, ParameterError, check_known, listing, suggestion
from fulcrum.simulation.data.sources.data_records import Examples, check_examples, split_at_random, word_of
from fulcrum.simulation.data.sources.digits import read_digits
from fulcrum.simulation.data.sources.feature_ranges import FeatureRanges, RangesLike, read_ranges
from fulcrum.simulation.data.sources.record_columns import csv_columns, parquet_columns
from fulcrum.simulation.data.sources.record_files import examples_of_columns, examples_of_folder, examples_of_npz

DATA_VARIABLE = "FULCRUM_DATA"
"""The environment variable that names the folder of feature files."""

_Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """The default settings of a task known by name.

    Attributes:
        classes: By name of a class of the task, the labels of the file that belong to the class.
        components: The number of principal components to keep.
        records: The number of records of a silo; None for as many as available.
        sensitive: The indices of the sensitive classes; empty for the last class.
    """

    classes: Mapping[str, Sequence[int]]
    components: int
    records: int | None
    sensitive: tuple[int, ...] = ()
    embedding: bool = False

    def every_class(self) -> "BuiltIn":
        """Returns the task with all classes of the file; the classes of the second group are sensitive together."""
        first, second = self.classes.values()
        return replace(
            self,
            classes={str(label): (label,) for label in (*first, *second)},
            sensitive=tuple(range(len(first), len(first) + len(second))),
        )


BUILT_IN: Mapping[str, BuiltIn] = {
    "digits": BuiltIn(classes={"even": (0, 2, 4, 6, 8), "odd": (1, 3, 5, 7, 9)}, components=16, records=None),
    "cifar10": BuiltIn(
        classes={"vehicle": (0, 1, 8, 9), "animal": (2, 3, 4, 5, 6, 7)}, components=32, records=200, embedding=True
    ),
    "agnews": BuiltIn(
        classes={"world or sports": (0, 1), "business or science": (2, 3)}, components=32, records=200, embedding=True
    ),
}
"""Tasks by name: two-class targets, principal components, and records a silo (None: as many as available)."""


TARGETS = ("classes", "numbers", "labels")
"""Kinds of targets: the class of a record, numbers of a record, or a set of labels of a record."""

METRIC_NAMES = {
    "classes": ("accuracy", "auc", "concordance"),
    "numbers": ("explained variance",),
    "labels": ("right labels",),
}
"""The metrics of a task by kind of target, the default first; `embedded.metrics` has the functions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A task to learn, with the records to train and to test on.

    Attributes:
        name: Name in messages and results.
        features_train: Reduced and scaled, (records, p); or unchanged, (records, ...) of any shape, for a model of the
            user's own.
        labels_train: Classes 0 .. K-1 by record; or numbers by record; or 0 and 1 by record and label.
        features_test: The features of the test split.
        labels_test: The labels of the test split.
        classes: The names of the classes; empty for numbers and labels.
        records: Default of the mean records a silo; None for the federation's own sizes.
        silo: The silo of every training record; None if the data names no silos.
        silo_test: The silo of every test record; None if the data names no silos.
        persons: The person of every training record; None if the data names no persons.
        sensitive: The classes whose common share differs between silos; the last class by default.
        targets: A name of `TARGETS`.
        fitted: True if components or a scale were fitted on the training split.
        public: True for published records that are known by name, which no person joins or leaves.
        embedding: True if the features come from a frozen public network.
        metric: A name of `METRIC_NAMES` for the kind of target; empty for the default. "auc" and "concordance" need two
            classes.
        times_test: The time of the event, or of the end of observation, by test record; the class of the record is 1
            for an event. "concordance" needs the times; None for any other metric.
    """

    name: str
    features_train: FloatArray
    labels_train: IntArray
    features_test: FloatArray
    labels_test: IntArray
    classes: tuple[str, ...] = ()
    records: int | None = None
    silo: tuple[str, ...] | None = None
    silo_test: tuple[str, ...] | None = None
    persons: tuple[str, ...] | None = None
    sensitive: tuple[int, ...] = ()
    targets: str = "classes"
    fitted: bool = True
    public: bool = False
    embedding: bool = False
    metric: str = ""
    times_test: FloatArray | None = None

    def __post_init__(self) -> None:
        check_known("targets", self.targets, TARGETS)
        names = METRIC_NAMES[self.targets]
        object.__setattr__(self, "metric", self.metric or names[0])
        check_known("metric", self.metric, names)
        if self.metric in ("auc", "concordance") and len(self.classes) != 2:
            raise ParameterError("metric.classes-number", metric=self.metric, data=self.name, classes=len(self.classes))
        times = () if self.times_test is None else self.times_test
        if self.metric == "concordance" and np.shape(times) != (len(self.labels_test),):
            raise ParameterError("metric.times-missing", data=self.name, records=len(self.labels_test))
        if (self.targets == "classes") != bool(self.classes):
            raise DataError(
                "data.classes-unfit", data=self.name, targets=self.targets, whose="its" if not self.classes else "no"
            )
        if self.classes and not self.sensitive:
            object.__setattr__(self, "sensitive", (len(self.classes) - 1,))
        for part in ("train", "test"):
            self._check(part)
        shapes = self.features_train.shape[1:], self.features_test.shape[1:]
        if shapes[0] != shapes[1]:
            raise DataError("data.record-shapes", data=self.name, train=shapes[0], test=shapes[1])

    def check_finite(self) -> None:
        """Raises `DataError` for a feature that is not finite."""
        for part, features in (("train", self.features_train), ("test", self.features_test)):
            if features.dtype.kind == "f" and not np.isfinite(features).all():
                worst = int(np.argmin(np.isfinite(features.reshape(len(features), -1)).all(axis=1)))
                raise DataError("data.feature-not-finite", data=self.name, part=f"{part} ", record=worst, precision="")

    def _check(self, part: str) -> None:
        """Raises `DataError` for records, targets and silos of a split that do not fit; `part` is "train" or "test"."""
        features, labels = (np.asarray(getattr(self, f"{what}_{part}")) for what in ("features", "labels"))
        object.__setattr__(self, f"features_{part}", features)
        object.__setattr__(self, f"labels_{part}", labels)
        silo = self.silo if part == "train" else self.silo_test
        columns: dict[str, Any] = {
            "labels": labels,
            "silos": silo,
            "persons": self.persons if part == "train" else None,
        }
        for what, count in ((name, len(column)) for name, column in columns.items() if column is not None):
            if count != len(features):
                raise DataError(
                    "data.records-length", data=self.name, records=len(features), part=part, count=count, noun=what
                )
        whole = labels.dtype.kind in "iu" and labels.ndim == 1
        if self.classes and not (whole and (labels >= 0).all() and (labels < len(self.classes)).all()):
            raise DataError("data.labels-range", data=self.name, part=part, largest=len(self.classes) - 1)

    @property
    def width(self) -> int:
        """Number of features of a record; raises `DataError` unless records are rows of numbers with a class."""
        if self.targets != "classes" or self.features_train.ndim != 2:
            what = f"records of shape {self.features_train.shape[1:]}" if self.targets == "classes" else self.targets
            raise DataError("data.head-unfit", data=self.name, targets=what)
        return int(self.features_train.shape[1])


def load_task(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    components: int | None = None,
    every_class: bool = False,
    label: str | None = None,
    silo: str | None = None,
    seed: int | None = 0,
    targets: str = "classes",
    person: str | None = None,
    ranges: RangesLike | None = None,
    metric: str | None = None,
    classes: str | Sequence[Any] | None = None,
) -> Task:
    """Returns a task by name or from a file.

    Args:
        source: "digits"; the name of a feature file in the data folder, such as "cifar10" or "agnews"; or the path of a
            user's own .npz (X_train, y_train, X_test, y_test, or X and y, and optionally silo, silo_test and person,
            the person of every training record), CSV or Parquet file with a label column. All columns of a table are
            features, except the label, `silo`, the person column and `split` (train or test). In an .npz records may
            have any shape, such as (channels, height, width), and stay unchanged, but bytes become 0 to 1. Images of
            equal size are also read from a folder class/image or silo/class/image, below train and test if both exist,
            and from a Parquet file whose only feature column is `image`. Texts are read from a folder class.txt or
            silo/class.txt, a text on every line, and from a table whose only feature column is `text`; texts become the
            features of `sentence_features`.
        data_dir: The folder of feature files; the variable FULCRUM_DATA by default.
        components: Number of principal components; by default all columns of a user's own data, standardised.
        every_class: True keeps all classes of the file of a task known by name, in place of the two default groups; the
            classes of the second group are then sensitive together. A user's own data always keeps all classes.
        label: The label column of a CSV or Parquet file, "label" by default.
        silo: The column with the silo of every record; "silo" by default, if present.
        seed: Seed of the split, for data without a split. None reads a user's own data by rules that look at one person
            at a time: nothing is drawn (`split_examples`), a side may be empty, and classes must be declared.
        targets: A name of `TARGETS`; numbers and labels need an .npz and a model of the user's own.
        person: The column with the person of every record of a CSV or Parquet file; by default no persons are named.
            Data without a split is then split by person.
        ranges: Public ranges of the features, as `read_ranges` takes them: features are scaled by the ranges and
            clamped, and nothing is fitted on the data. By default components or a scale are fitted.
        metric: A name of `METRIC_NAMES` for the kind of target, "auc" for example; the first name by default.
        classes: The declared classes of a user's own data, as `read_classes` takes them: every other label is refused,
            and a class may have no record. By default the labels that occur are the classes.
    """
    check_known("targets", targets, TARGETS)
    name = str(source)
    path, kind = Path(name), Path(name).suffix.lower()  # a path is the user's own data, under any name
    if kind not in (".csv", ".parquet") and any(column is not None for column in (label, silo, person)):
        raise ParameterError("data.column-unneeded", data=name)
    if targets != "classes" and kind != ".npz":
        raise ParameterError("data.targets-file", targets=targets, data=name)
    public = None if ranges is None else read_ranges(ranges)
    has_own_classes = name not in BUILT_IN and targets == "classes"
    if classes is not None and not has_own_classes:
        raise ParameterError("data.classes-unneeded", data=name)
    if classes is None and has_own_classes and seed is None:
        raise DataError("data.classes-undeclared", data=path.name)
    declared = None if classes is None else read_classes(classes)
    if name in BUILT_IN and seed is None:  # published records, which no person joins or leaves
        seed = 0
    if public is not None and components is not None:
        raise ParameterError("ranges.with-components", components=components)
    try:
        if name == "digits":
            train, test = split_at_random(check_examples("digits", "", *read_digits()), seed or 0)
        elif path.is_dir() and name not in BUILT_IN:
            train, test = examples_of_folder(path, seed)
        elif kind in (".csv", ".parquet"):
            path.stat()  # raises an OSError that names a missing file
            columns = csv_columns(path) if kind == ".csv" else parquet_columns(path)
            train, test = examples_of_columns(path, columns, label or "label", silo, person, public, seed)
        elif kind in ("", ".npz"):
            train, test = examples_of_npz(path if kind else _in_data_folder(name, data_dir), seed, targets)
        else:
            raise DataError("data.suffix-unknown", file=path, suffix=kind)
    except OSError as error:
        raise DataError("file.unreadable", file=error.filename or name, reason=error.strerror or error) from None
    except MemoryError:
        raise DataError("data.memory-exceeded", data=name) from None
    built_in = BUILT_IN.get(name)
    return _task(
        train,
        test,
        name=path.name if path.is_dir() and name not in BUILT_IN else path.stem if kind else name,
        built_in=built_in.every_class() if built_in and every_class else built_in,
        components=components,
        targets=targets,
        ranges=public,
        metric=metric or "",
        declared=declared,
    )


def _in_data_folder(name: str, data_dir: str | Path | None) -> Path:
    if Path(name).name != name:
        raise DataError("data.source-unknown", source=name)
    folder = data_dir or os.environ.get(DATA_VARIABLE)
    if not folder and name in BUILT_IN:
        raise DataError("data.folder-unset", data=name, variable=DATA_VARIABLE)
    if not folder:
        raise DataError("data.name-unknown", data=name, variable=DATA_VARIABLE, suggestion=suggestion(name, BUILT_IN))
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        names = sorted(file.stem for file in Path(folder).glob("*.npz"))
        present = listing(names) or "nothing"
        if name in BUILT_IN:
            raise DataError("data.feature-file-missing", file=path, names=present)
        raise DataError("data.file-missing", file=path, names=present, suggestion=suggestion(name, names))
    return path


def _task(
    train: Examples,
    test: Examples,
    *,
    name: str,
    built_in: BuiltIn | None,
    components: int | None,
    targets: str,
    ranges: FeatureRanges | None,
    metric: str,
    declared: tuple[str, ...] | None,
) -> Task:
    """Returns a task with numbered classes, and with reduced and scaled rows of features."""
    widths = train.features.shape[1:], test.features.shape[1:]
    if widths[0] != widths[1]:
        described = [str(width[0]) if len(width) == 1 else str(width) for width in widths]
        raise DataError("data.widths-differ", data=train.where, train=described[0], test=described[1])
    has_rows = train.features.ndim == 2
    if not has_rows and components is not None:
        raise DataError("data.components-unfit", data=train.where, shape=widths[0])
    classes: tuple[str, ...] = ()
    labels_train, labels_test = np.array(train.labels), np.array(test.labels)
    if targets == "classes":
        classes, labels_train, labels_test = _classes(train, test, built_in, declared)
        components = built_in.components if built_in and components is None else components
    features = train.features, test.features
    if ranges is not None:
        scaled = [ranges.scale(part.features, part.names, part.where) for part in (train, test)]
        features = scaled[0], scaled[1]
    elif has_rows:
        features = _scale_features(train, test, components)
    return Task(
        name=name,
        features_train=features[0],
        labels_train=labels_train,
        features_test=features[1],
        labels_test=labels_test,
        classes=classes,
        records=built_in.records if built_in else None,
        silo=None if train.silo is None else tuple(train.silo),
        silo_test=None if test.silo is None else tuple(test.silo),
        sensitive=built_in.sensitive if built_in else (),
        targets=targets,
        persons=None if train.persons is None else tuple(train.persons),
        fitted=has_rows and ranges is None,
        public=built_in is not None,
        embedding=built_in is not None and built_in.embedding,
        metric=metric,
    )


def read_classes(classes: str | Sequence[Any]) -> tuple[str, ...]:
    """Returns declared classes in their order; a text has the names separated by commas.

    >>> read_classes("no, yes"), read_classes([0, 1])
    (('no', 'yes'), ('0', '1'))
    """
    listed: Any = classes.split(",") if isinstance(classes, str) else classes
    names = tuple(map(word_of, listed)) if isinstance(listed, (list, tuple)) else ()
    if len(names) < 2 or "" in names or len(set(names)) < len(names):
        raise ParameterError("data.classes-form", classes=classes)
    return names


def _classes(
    train: Examples, test: Examples, built_in: BuiltIn | None, declared: tuple[str, ...] | None
) -> tuple[tuple[str, ...], IntArray, IntArray]:
    """Returns the names of the classes, and the class numbers by record."""
    if declared is not None:  # a class may lack records: the only person of a class may leave
        return declared, _declared_labels(train, "training", declared), _declared_labels(test, "test", declared)
    if built_in:
        classes = tuple(built_in.classes)
        number = {str(label): place for place, group in enumerate(built_in.classes.values()) for label in group}
    else:
        classes = in_order(set(train.labels))
        number = {label: place for place, label in enumerate(classes)}
    if len(classes) < 2:
        raise DataError("data.class-single", data=train.where, label=classes[0])
    labels_train, labels_test = _number_labels(train, "training", number), _number_labels(test, "test", number)
    held = np.bincount(labels_train, minlength=len(classes))
    if not held.all():
        raise DataError("data.class-untrained", data=train.where, label=classes[held.argmin()])
    return classes, labels_train, labels_test


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Sorts numbers by value, and any words as text."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _declared_labels(examples: Examples, what: str, declared: tuple[str, ...]) -> IntArray:
    number = {label: place for place, label in enumerate(declared)}
    unknown = next((label for label in examples.labels if label not in number), None)
    if unknown is not None:
        listed = listing(declared)
        raise DataError("data.label-undeclared", data=examples.where, part=what, label=unknown, known=listed)
    return np.array([number[label] for label in examples.labels], dtype=np.intp)


def _number_labels(examples: Examples, what: str, number: Mapping[str, int]) -> IntArray:
    unknown = next((label for label in examples.labels if label not in number), None)
    if unknown is not None:
        raise DataError("data.label-unknown", data=examples.where, part=what, label=unknown, known=listing(number))
    return np.array([number[label] for label in examples.labels])


def _scale_features(train: Examples, test: Examples, components: int | None) -> tuple[FloatArray, FloatArray]:
    """Returns features scaled by the training split: components and a single scale, or a scale for every column."""
    if not len(train.features):
        raise DataError("data.split-empty", data=train.where)
    varies = train.features.max(axis=0) > train.features.min(axis=0)
    if not varies.any():
        raise DataError("data.features-constant", data=train.where)
    spread: _Array
    with np.errstate(all="ignore"):  # an overflow is refused below
        centre = train.features.mean(axis=0)
        parts = [train.features - centre, test.features - centre]
        if components is not None:
            axes = _principal_axes(parts[0], components, train.where)
            parts = [part @ axes for part in parts]
            spread = np.asarray(parts[0].std(axis=0).mean())
        else:
            spread = np.where(varies, parts[0].std(axis=0), 1.0)
            parts = [np.where(varies, part, 0.0) for part in parts]  # a constant column carries no information
        parts = [part / spread for part in parts]
    if not (np.all((spread > 0) & (spread < np.inf)) and all(np.isfinite(part).all() for part in parts)):
        raise DataError("data.features-unscalable", data=train.where)
    return parts[0], parts[1]


def _principal_axes(centred: FloatArray, components: int, where: str) -> FloatArray:
    if not 1 <= components <= centred.shape[1]:
        raise DataError("data.components-range", features=centred.shape[1], data=where, components=components)
    product = centred.T @ centred
    if not np.isfinite(product).all():
        raise DataError("data.features-unscalable", data=where)
    axes: FloatArray = np.linalg.eigh(product)[1][:, ::-1][:, :components]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])  # the same sign with every BLAS
    return axes
