"""What a federation learns: features and labels, a training and a test split, reduced and scaled.

>>> task = load_task("digits")
>>> task.features_train.shape, task.classes
((1438, 16), ('even', 'odd'))

Principal components and scale are fitted on the pooled training split: one scale for all components, or without
components one for each column. A federation that fits them on its silos' data spends privacy that no epsilon here
accounts for: fit them on public data, or declare that release.
"""

import csv
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
from fulcrum.errors import DataError, MissingExtraError, ParameterError, listing, suggestion

DATA_VARIABLE = "FULCRUM_DATA"
"""The environment variable that names the folder of feature files."""

_Array: TypeAlias = np.ndarray[Any, Any]

_TEST_SHARE = 0.2
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A classification task.

    Attributes:
        name: For messages and results.
        features_train: Reduced and scaled, (records, p).
        labels_train: Classes 0 .. K-1 by record.
        features_test: The test split.
        labels_test: Its classes.
        classes: The names of the classes.
        records: Mean records a silo unless told otherwise; None where the federation's own sizes say.
        silo: The silo of each training record, where the data names it.
        sensitive: The classes whose common share differs between silos; the last one by default.
    """

    name: str
    features_train: FloatArray
    labels_train: IntArray
    features_test: FloatArray
    labels_test: IntArray
    classes: tuple[str, ...]
    records: int | None = None
    silo: tuple[str, ...] | None = None
    sensitive: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.sensitive:
            object.__setattr__(self, "sensitive", (len(self.classes) - 1,))


def load_task(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    components: int | None = None,
    every_class: bool = False,
    label: str | None = None,
    silo: str | None = None,
    seed: int = 0,
) -> Task:
    """Returns a task by name or from a file.

    Args:
        source: "digits"; the name of a feature file in the data folder, such as "cifar10" or "agnews"; or the path of a
            user's own .npz (X_train, y_train, X_test, y_test, or X and y, and optionally silo), CSV or Parquet file
            with a label column, where every other column is a feature, `silo` and `split` (train or test) apart.
        data_dir: The folder of feature files; the variable FULCRUM_DATA by default.
        components: Principal components to keep; all columns by default for a user's own data, each standardised.
        every_class: Whether a task known by name keeps all classes of its file, in place of the two it is known for;
            those of the second of the two are then sensitive together. A user's own data always keeps all.
        label: The label column of a CSV or Parquet file, "label" by default.
        silo: The column that names each record's silo; "silo" by default, if there is one.
        seed: Of the split, where the data has none.
    """
    name = str(source)
    path, kind = Path(name), Path(name).suffix.lower()  # a path is the user's own data, whatever its file is called
    if kind not in (".csv", ".parquet") and (label is not None or silo is not None):
        raise ParameterError(f"{name} is not a table: a label and a silo column are for CSV and Parquet files")
    try:
        if name == "digits":
            train, test = _split(_digits(), seed)
        elif kind in (".csv", ".parquet"):
            columns = _csv_columns(path) if kind == ".csv" else _parquet_columns(path)
            train, test = _from_columns(path, columns, label or "label", silo, seed)
        elif kind in ("", ".npz"):
            train, test = _from_npz(path if kind else _in_data_folder(name, data_dir), seed)
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
        name=path.stem if kind else name,
        known=known.every_class() if known and every_class else known,
        components=components,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Records:
    """Features, labels and silos as they were read, each checked against the others."""

    where: str
    features: FloatArray
    labels: list[str]
    silo: list[str] | None = None

    def part(self, chosen: _Array) -> "_Records":
        """Returns the chosen records."""
        rows = np.flatnonzero(chosen).tolist()
        if not rows:
            raise DataError(f"{self.where} must have records to train on and records to test on")
        return _Records(
            where=self.where,
            features=self.features[chosen],
            labels=[self.labels[row] for row in rows],
            silo=None if self.silo is None else [self.silo[row] for row in rows],
        )


def _records(where: str, what: str, features: _Array, labels: _Array, silo: _Array | None = None) -> _Records:
    """Checks a table of features against its labels and silos; what is missing or does not fit is refused."""
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise DataError(f"{where}: features must be a table of numbers, got {features.dtype} of shape {features.shape}")
    if not features.shape[1]:
        raise DataError(f"{where} has no features")
    if not len(features):
        raise DataError(f"{where} has no {what}records")
    found: dict[str, list[str]] = {}
    for name, values in (("label", labels), ("silo", silo)):
        if values is None:
            continue
        if values.ndim != 1:
            raise DataError(f"{where}: give one {name} a record, in one dimension, got the shape {values.shape}")
        if len(values) != len(features):
            raise DataError(f"{where}: {len(features)} {what}features and {len(values)} {name}s. Give one {name} each")
        found[name] = [_word(value) for value in values.tolist()]
        if "" in found[name]:
            missing = found[name].index("") + 1
            raise DataError(f"{where}: {what}record {missing} has no {name}. Give it one, or leave the record out")
    numbers = features.astype(np.float64)
    broken = ~np.isfinite(numbers).all(axis=1)
    if broken.any():
        raise DataError(f"{where}: {what}record {int(np.argmax(broken)) + 1} has a feature that is not finite")
    return _Records(where=where, features=numbers, labels=found["label"], silo=found.get("silo"))


def _word(value: Any) -> str:
    """Returns a label or a silo's name as text: whole numbers without a point, nothing for what is missing."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = "" if value is None else str(value).strip()
    return "" if text == "nan" else text


def _in_data_folder(name: str, data_dir: str | Path | None) -> Path:
    folder = data_dir or os.environ.get(DATA_VARIABLE)
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


def _from_npz(path: Path, seed: int) -> tuple[_Records, _Records]:
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
        train = _records(path.name, "training ", arrays["X_train"], arrays["y_train"], silo)
        return train, _records(path.name, "test ", arrays["X_test"], arrays["y_test"])
    if {"X", "y"} <= set(arrays):
        return _split(_records(path.name, "", arrays["X"], arrays["y"], silo), seed)
    raise DataError(
        f"{path} must hold X_train, y_train, X_test and y_test, or X and y. It holds: {listing(arrays) or 'nothing'}"
    )


def _csv_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    header: list[str] = []
    rows: list[list[str]] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in filter(None, reader):
                if not header:
                    header = row
                    continue
                if len(row) != len(header):
                    where = f"{path} line {reader.line_num}"
                    raise DataError(f"{where}: {len(row)} cells where the header has {len(header)}")
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not header:
        raise DataError(f"{path} is empty. It needs a header and records")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns {twice!r}. Name each column once")
    return dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())


def _parquet_columns(path: Path) -> Mapping[str, Sequence[Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("reading Parquet needs pyarrow. Run: pip install 'fulcrum-dp[parquet]'") from None
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from None
    return {name: table[name].to_pylist() for name in table.column_names}


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
    try:
        features = np.array([columns[name] for name in names], dtype=np.float64).T
    except (TypeError, ValueError, OverflowError):
        column, value = next((n, v) for n in names for v in columns[n] if not _is_number(v))
        raise DataError(f"{path}: column {column!r} must hold numbers, got {value!r}. Drop it or encode it") from None
    silos = np.fromiter(columns[silo], dtype=object) if silo in columns else None
    records = _records(path.name, "", features, np.fromiter(columns[label], dtype=object), silos)
    if "split" not in columns:
        return _split(records, seed)
    split = np.array([str(value) for value in columns["split"]])
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
    for values in (records.labels, records.silo or []):
        stays |= set({values[row]: row for row in reversed(order)}.values()) if values else set()
    free = [row for row in order if row not in stays]
    held_out = np.zeros(len(order), dtype=bool)
    held_out[free[max(0, len(free) - round(_TEST_SHARE * len(order))) :]] = True
    return records.part(~held_out), records.part(held_out)


def _task(train: _Records, test: _Records, *, name: str, known: BuiltIn | None, components: int | None) -> Task:
    """Numbers the classes, and reduces and scales the features."""
    widths = train.features.shape[1], test.features.shape[1]
    if widths[0] != widths[1]:
        raise DataError(f"{train.where}: {widths[0]} features to train on, {widths[1]} to test on")
    if known:
        classes = tuple(known.classes)
        number = {str(label): place for place, group in enumerate(known.classes.values()) for label in group}
        components = known.components if components is None else components
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
    features_train, features_test = _scaled(train, test, components)
    return Task(
        name=name,
        features_train=features_train,
        labels_train=labels_train,
        features_test=features_test,
        labels_test=labels_test,
        classes=classes,
        records=known.records if known else None,
        silo=None if train.silo is None else tuple(train.silo),
        sensitive=known.sensitive if known else (),
    )


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
