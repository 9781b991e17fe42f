"""What a federation learns: features and labels, a training and a test split, reduced and scaled.

>>> task = load_task("digits")
>>> task.features_train.shape, task.classes
((1438, 16), ('even', 'odd'))

Principal components and scale are fitted on the pooled training split: one scale for all components, or without
components one for each column. A federation that fits them on its silos' data spends privacy that no epsilon here
accounts for: fit them on public data, or declare that release.
"""

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError, MissingExtraError, ParameterError, check_known, listing, suggestion
from fulcrum.simulation.columns import csv_columns, image_column, parquet_columns, text_column
from fulcrum.simulation.images import read_image_folder
from fulcrum.simulation.sentences import sentence_features
from fulcrum.simulation.texts import Texts, holds_texts, read_text_folder

DATA_VARIABLE = "FULCRUM_DATA"
"""The environment variable that names the folder of feature files."""

_Array: TypeAlias = np.ndarray[Any, Any]

_TEST_SHARE = 0.2
_IMAGE, _TEXT = "image", "text"  # a column of encoded images, or of texts
_UNSCALABLE = "features are too large or too small to be scaled. Give them in other units"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """What a task known by name means unless told otherwise."""

    classes: Mapping[str, Sequence[int]]
    components: int
    records: int | None
    sensitive: tuple[int, ...] = ()

    def every_class(self) -> "BuiltIn":
        """Returns the task with the classes of its file, those of the second of its two sensitive together."""
        first, second = self.classes.values()
        return replace(
            self,
            classes={str(label): (label,) for label in (*first, *second)},
            sensitive=tuple(range(len(first), len(first) + len(second))),
        )


BUILT_IN: Mapping[str, BuiltIn] = {
    "digits": BuiltIn(classes={"even": (0, 2, 4, 6, 8), "odd": (1, 3, 5, 7, 9)}, components=16, records=None),
    "cifar10": BuiltIn(classes={"vehicle": (0, 1, 8, 9), "animal": (2, 3, 4, 5, 6, 7)}, components=32, records=200),
    "agnews": BuiltIn(classes={"world or sports": (0, 1), "business or science": (2, 3)}, components=32, records=200),
}
"""Tasks by name: their two-class targets, principal components, and records a silo (None: as many as there are)."""


TARGETS = ("classes", "numbers", "labels")
"""What is learnt of a record: which class it is of, one or more numbers, or which of several labels it has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """What is to be learnt, and on which records.

    Attributes:
        name: For messages and results.
        features_train: Reduced and scaled, (records, p); or as they are, (records, ...) of any shape, for a model of
            the user's own.
        labels_train: Classes 0 .. K-1 by record; or numbers by record; or 0 and 1 by record and label.
        features_test: The test split.
        labels_test: What is true of it.
        classes: The names of the classes; none for other targets.
        records: Mean records a silo unless told otherwise; None where the federation's own sizes say.
        silo: The silo of each training record, where the data names it.
        silo_test: The silo of each test record, where the data names it.
        sensitive: The classes whose common share differs between silos; the last one by default.
        targets: One of `TARGETS`.
        fitted: Whether components or a scale were fitted on the training split.
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
    sensitive: tuple[int, ...] = ()
    targets: str = "classes"
    fitted: bool = True

    def __post_init__(self) -> None:
        check_known("targets", self.targets, TARGETS)
        if (self.targets == "classes") != bool(self.classes):
            raise DataError(
                f"{self.name}: a task of {self.targets} must name {'its' if not self.classes else 'no'} classes"
            )
        if self.classes and not self.sensitive:
            object.__setattr__(self, "sensitive", (len(self.classes) - 1,))

    @property
    def width(self) -> int:
        """How many features a record has; `DataError` where records are no rows of numbers with a class."""
        if self.targets != "classes" or self.features_train.ndim != 2:
            what = f"records of shape {self.features_train.shape[1:]}" if self.targets == "classes" else self.targets
            raise DataError(f"{self.name} has {what}, and the built-in head learns classes of rows. Give a model")
        return int(self.features_train.shape[1])


def load_task(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    components: int | None = None,
    every_class: bool = False,
    label: str | None = None,
    silo: str | None = None,
    seed: int = 0,
    targets: str = "classes",
) -> Task:
    """Returns a task by name or from a file.

    Args:
        source: "digits"; the name of a feature file in the data folder, such as "cifar10" or "agnews"; or the path of a
            user's own .npz (X_train, y_train, X_test, y_test, or X and y, and optionally silo and silo_test), CSV or
            Parquet file with a label column, where every other column is a feature, `silo` and `split` (train or test)
            apart. In an .npz records may have any shape, such as (channels, height, width): they stay as they are, and
            bytes become 0 to 1. Images of one size are also read from a folder class/image or silo/class/image, in
            train and test if there are these two, and from a Parquet file whose only feature column is `image`.
            Texts are read from a folder class.txt or silo/class.txt, one a line, and from a table whose only feature
            column is `text`; they become the features of `sentence_features`.
        data_dir: The folder of feature files; the variable FULCRUM_DATA by default.
        components: Principal components to keep; all columns by default for a user's own data, each standardised.
        every_class: Whether a task known by name keeps all classes of its file, in place of the two it is known for;
            those of the second of the two are then sensitive together. A user's own data always keeps all.
        label: The label column of a CSV or Parquet file, "label" by default.
        silo: The column that names each record's silo; "silo" by default, if there is one.
        seed: Of the split, where the data has none.
        targets: What is learnt, one of `TARGETS`; numbers and labels are for an .npz and a model of the user's own.
    """
    check_known("targets", targets, TARGETS)
    name = str(source)
    path, kind = Path(name), Path(name).suffix.lower()  # a path is the user's own data, whatever its file is called
    if kind not in (".csv", ".parquet") and (label is not None or silo is not None):
        raise ParameterError(f"{name} is not a table: a label and a silo column are for CSV and Parquet files")
    if targets != "classes" and kind != ".npz":
        raise ParameterError(f"targets that are {targets} are read from an .npz file, got {name}")
    try:
        if name == "digits":
            train, test = _split(_digits(), seed)
        elif path.is_dir() and name not in BUILT_IN:
            train, test = _from_folder(path, seed)
        elif kind in (".csv", ".parquet"):
            columns = csv_columns(path) if kind == ".csv" else parquet_columns(path)
            train, test = _from_columns(path, columns, label or "label", silo, seed)
        elif kind in ("", ".npz"):
            train, test = _from_npz(path if kind else _in_data_folder(name, data_dir), seed, targets)
        else:
            raise DataError(f"{path}: data must be .npz, .csv or .parquet, got {kind!r}")
    except OSError as error:
        raise DataError(f"{error.filename or name} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise DataError(f"{name} does not fit into memory") from None
    known = BUILT_IN.get(name)
    return _task(
        train,
        test,
        name=path.name if path.is_dir() and name not in BUILT_IN else path.stem if kind else name,
        known=known.every_class() if known and every_class else known,
        components=components,
        targets=targets,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Records:
    """Features, labels and silos as they were read, each checked against the others."""

    where: str
    features: FloatArray
    labels: list[Any]
    silo: list[str] | None = None

    def part(self, chosen: _Array) -> "_Records":
        """Returns the chosen records."""
        rows = np.flatnonzero(chosen).tolist()
        if not rows:
            raise DataError(
                f"{self.where} must have records to train on and records to test on. Give more of them and, where a "
                "column says the split, both train and test"
            )
        return _Records(
            where=self.where,
            features=self.features[chosen],
            labels=[self.labels[row] for row in rows],
            silo=None if self.silo is None else [self.silo[row] for row in rows],
        )


def _records(
    where: str,
    what: str,
    features: _Array,
    labels: _Array,
    silo: _Array | None = None,
    *,
    targets: str = "classes",
) -> _Records:
    """Checks features against their labels and silos; what is missing or does not fit is refused."""
    if features.ndim < 2 or features.dtype.kind not in "fiu":
        raise DataError(f"{where}: features must be a table of numbers, got {features.dtype} of shape {features.shape}")
    if not math.prod(features.shape[1:]):
        raise DataError(f"{where} has no features")
    if not len(features):
        raise DataError(f"{where} has no {what}records")
    found: dict[str, list[Any]] = {}
    for name, values in (("label", labels), ("silo", silo)):
        if values is None:
            continue
        if name == "label" and targets != "classes":
            found[name] = _numbers(where, what, targets, values, len(features))
            continue
        if values.ndim != 1:
            raise DataError(f"{where}: give one {name} a record, in one dimension, got the shape {values.shape}")
        if len(values) != len(features):
            raise DataError(f"{where}: {len(features)} {what}features and {len(values)} {name}s. Give one {name} each")
        found[name] = [_word(value) for value in values.tolist()]
        if "" in found[name]:
            missing = found[name].index("") + 1
            raise DataError(f"{where}: {what}record {missing} has no {name}. Give it one, or leave the record out")
    # Rows are scaled in double precision. Anything else stays as it is, in single, and bytes become 0 to 1.
    numbers: _Array = features.astype(np.float64 if features.ndim == 2 else np.float32)
    if features.ndim > 2 and features.dtype == np.uint8:
        numbers /= 255
    broken = ~np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1)
    if broken.any():
        raise DataError(f"{where}: {what}record {int(np.argmax(broken)) + 1} has a feature that is not finite")
    return _Records(where=where, features=numbers, labels=found["label"], silo=found.get("silo"))


def _numbers(where: str, what: str, targets: str, values: _Array, records: int) -> list[Any]:
    """Checks targets that are no classes, and returns them by record."""
    shape = "(records,) or (records, numbers)" if targets == "numbers" else "(records, labels)"
    if values.dtype.kind not in "fiub" or values.ndim not in ((1, 2) if targets == "numbers" else (2,)):
        raise DataError(f"{where}: {targets} must be of shape {shape}, got {values.dtype} of shape {values.shape}")
    if len(values) != records:
        raise DataError(f"{where}: {records} {what}features and {len(values)} {targets}. Give as many")
    right = np.isfinite(values) if targets == "numbers" else (values == 0) | (values == 1)
    if not right.all():
        rule = "finite" if targets == "numbers" else "0 or 1"
        worst = int(np.argmin(right.reshape(records, -1).all(axis=1))) + 1
        raise DataError(f"{where}: {targets} must be {rule}, unlike those of {what}record {worst}")
    return values.astype(np.float64).tolist()  # type: ignore[no-any-return]


def _word(value: Any) -> str:
    """Returns a label or a silo's name as text: whole numbers without a point, nothing for what is missing."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = "" if value is None else str(value).strip()
    return "" if text == "nan" else text


def _in_data_folder(name: str, data_dir: str | Path | None) -> Path:
    folder = data_dir or os.environ.get(DATA_VARIABLE)
    if not folder and name in BUILT_IN:
        raise DataError(
            f"{name} needs its feature file {name}.npz, and there is no data folder to look for it in. "
            f"Give --data-dir, or set {DATA_VARIABLE}"
        )
    if not folder:
        raise DataError(
            f"no built-in data {name!r} and no data folder to look for {name}.npz in. Give --data-dir, or set "
            f"{DATA_VARIABLE}.{suggestion(name, BUILT_IN)}"
        )
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        found = sorted(file.stem for file in Path(folder).glob("*.npz"))
        raise DataError(f"{path} does not exist. Found there: {listing(found) or 'nothing'}.{suggestion(name, found)}")
    return path


def _digits() -> _Records:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("the digits come with scikit-learn. Run: pip install 'fulcrum-dp[train]'") from None
    return _records("digits", "", *load_digits(return_X_y=True))


def _from_npz(path: Path, seed: int, targets: str) -> tuple[_Records, _Records]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            single = isinstance(loaded, np.ndarray)
            arrays = {} if single else {name: np.asarray(loaded[name]) for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError) as error:
        raise DataError(f"{path} is not a NumPy archive without pickles: {error}") from None
    if single:
        raise DataError(f"{path} is a single array, not an archive. Write it with: np.savez(path, X=X, y=y)")
    silo = arrays.get("silo")
    if {"X_train", "y_train", "X_test", "y_test"} <= set(arrays):
        train = _records(path.name, "training ", arrays["X_train"], arrays["y_train"], silo, targets=targets)
        tested = arrays["X_test"], arrays["y_test"], arrays.get("silo_test")
        return train, _records(path.name, "test ", *tested, targets=targets)
    if {"X", "y"} <= set(arrays):
        return _split(_records(path.name, "", arrays["X"], arrays["y"], silo, targets=targets), seed)
    raise DataError(
        f"{path} must hold X_train, y_train, X_test and y_test, or X and y. It holds: {listing(arrays) or 'nothing'}"
    )


def _from_columns(
    path: Path, columns: Mapping[str, Sequence[Any]], label: str, silo: str | None, seed: int
) -> tuple[_Records, _Records]:
    if label not in columns:
        raise DataError(f"{path} has no label column {label!r}. Name it with --label.{suggestion(label, columns)}")
    if silo is not None and silo not in columns:
        raise DataError(f"{path} has no silo column {silo!r}.{suggestion(silo, columns)}")
    silo = silo or "silo"
    names = [name for name in columns if name not in (label, silo, "split")]
    if not names or not len(columns[label]):
        raise DataError(f"{path} has no {'features' if not names else 'records'}")
    features: _Array
    if names == [_IMAGE]:
        features = image_column(path, columns[_IMAGE])
    elif names == [_TEXT]:
        features = sentence_features(text_column(path, columns[_TEXT]))
    else:
        features = _number_columns(path, {name: columns[name] for name in names})
    silos = np.fromiter(columns[silo], dtype=object) if silo in columns else None
    records = _records(path.name, "", features, np.fromiter(columns[label], dtype=object), silos)
    return _parted(records, columns.get("split"), path, seed)


def _number_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> _Array:
    try:
        return np.array(list(columns.values()), dtype=np.float64).T
    except (TypeError, ValueError, OverflowError):
        column, value = next((name, each) for name in columns for each in columns[name] if not _is_number(each))
        raise DataError(f"{path}: column {column!r} must hold numbers, got {value!r}. Drop it or encode it") from None


def _from_folder(path: Path, seed: int) -> tuple[_Records, _Records]:
    found = read_text_folder(path) if holds_texts(path) else read_image_folder(path)
    features: _Array = sentence_features(found.texts) if isinstance(found, Texts) else found.pixels
    labels = np.array(found.labels, dtype=object)
    silos = None if found.silo is None else np.array(found.silo, dtype=object)
    return _parted(_records(path.name, "", features, labels, silos), found.split, path, seed)


def _parted(records: _Records, told: Sequence[Any] | None, path: Path, seed: int) -> tuple[_Records, _Records]:
    """Parts records as the data says, or at random where it does not."""
    if told is None:
        return _split(records, seed)
    split = np.array([str(value) for value in told])
    unknown = set(split.tolist()) - {"train", "test"}
    if unknown:
        raise DataError(f"{path}: split must be train or test, got {sorted(unknown)[0]!r}")
    return records.part(split == "train"), records.part(split == "test")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _split(records: _Records, seed: int) -> tuple[_Records, _Records]:
    """Holds out records at random, but neither the first drawn of a class nor the first drawn of a silo."""
    order = np.random.default_rng(seed).permutation(len(records.labels)).tolist()
    stays: set[int] = set()
    for values in (records.labels if isinstance(records.labels[0], str) else [], records.silo or []):
        stays |= set({values[row]: row for row in reversed(order)}.values()) if values else set()
    free = [row for row in order if row not in stays]
    held_out = np.zeros(len(order), dtype=bool)
    held_out[free[max(0, len(free) - round(_TEST_SHARE * len(order))) :]] = True
    return records.part(~held_out), records.part(held_out)


def _task(
    train: _Records,
    test: _Records,
    *,
    name: str,
    known: BuiltIn | None,
    components: int | None,
    targets: str,
) -> Task:
    """Numbers the classes, and reduces and scales rows of features."""
    widths = train.features.shape[1:], test.features.shape[1:]
    if widths[0] != widths[1]:
        wide = [str(width[0]) if len(width) == 1 else str(width) for width in widths]
        raise DataError(f"{train.where}: {wide[0]} features to train on, {wide[1]} to test on")
    rows = train.features.ndim == 2
    if not rows and components is not None:
        raise DataError(f"{train.where}: components are of rows of features, not of records of shape {widths[0]}")
    classes: tuple[str, ...] = ()
    labels_train, labels_test = np.array(train.labels), np.array(test.labels)
    if targets == "classes":
        classes, labels_train, labels_test = _classes(train, test, known)
        components = known.components if known and components is None else components
    features = _scaled(train, test, components) if rows else (train.features, test.features)
    return Task(
        name=name,
        features_train=features[0],
        labels_train=labels_train,
        features_test=features[1],
        labels_test=labels_test,
        classes=classes,
        records=known.records if known else None,
        silo=None if train.silo is None else tuple(train.silo),
        silo_test=None if test.silo is None else tuple(test.silo),
        sensitive=known.sensitive if known else (),
        targets=targets,
        fitted=rows,
    )


def _classes(train: _Records, test: _Records, known: BuiltIn | None) -> tuple[tuple[str, ...], IntArray, IntArray]:
    """Returns the names of the classes, and their numbers by record."""
    if known:
        classes = tuple(known.classes)
        number = {str(label): place for place, group in enumerate(known.classes.values()) for label in group}
    else:
        classes = _in_order(set(train.labels))
        number = {label: place for place, label in enumerate(classes)}
    if len(classes) < 2:
        raise DataError(f"{train.where} has one class, {classes[0]!r}. There is nothing to learn")
    labels_train, labels_test = _numbered(train, "training", number), _numbered(test, "test", number)
    held = np.bincount(labels_train, minlength=len(classes))
    if not held.all():
        raise DataError(
            f"{train.where} has no training record of class {classes[held.argmin()]!r}: it cannot be learnt"
        )
    return classes, labels_train, labels_test


def _in_order(labels: set[str]) -> tuple[str, ...]:
    """Sorts numbers as numbers, and everything else as text."""
    try:
        return tuple(sorted(labels, key=lambda label: (float(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _numbered(records: _Records, what: str, number: Mapping[str, int]) -> IntArray:
    unknown = next((label for label in records.labels if label not in number), None)
    if unknown is not None:
        raise DataError(f"{records.where}: {what} label {unknown} is outside the head. Known: {listing(number)}")
    return np.array([number[label] for label in records.labels])


def _scaled(train: _Records, test: _Records, components: int | None) -> tuple[FloatArray, FloatArray]:
    """Fits components and one scale, or without components a scale for each column, on the training split."""
    varies = train.features.max(axis=0) > train.features.min(axis=0)
    if not varies.any():
        raise DataError(f"{train.where}: every training record has the same features. There is nothing to learn")
    spread: _Array
    with np.errstate(all="ignore"):  # what overflows is refused below
        centre = train.features.mean(axis=0)
        parts = [train.features - centre, test.features - centre]
        if components is not None:
            axes = _principal_axes(parts[0], components, train.where)
            parts = [part @ axes for part in parts]
            spread = np.asarray(parts[0].std(axis=0).mean())
        else:
            spread = np.where(varies, parts[0].std(axis=0), 1.0)
            parts = [np.where(varies, part, 0.0) for part in parts]  # what is constant in training says nothing
        parts = [part / spread for part in parts]
    if not (np.all((spread > 0) & (spread < np.inf)) and all(np.isfinite(part).all() for part in parts)):
        raise DataError(f"{train.where}: {_UNSCALABLE}")
    return parts[0], parts[1]


def _principal_axes(centred: FloatArray, components: int, where: str) -> FloatArray:
    if not 1 <= components <= centred.shape[1]:
        raise DataError(f"components must be from 1 to the {centred.shape[1]} features of {where}, got {components}")
    product = centred.T @ centred
    if not np.isfinite(product).all():
        raise DataError(f"{where}: {_UNSCALABLE}")
    axes: FloatArray = np.linalg.eigh(product)[1][:, ::-1][:, :components]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])  # one sign on every machine
    return axes
