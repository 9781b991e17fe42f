"""What a federation learns: features and labels, a training and a test split, reduced and scaled.

>>> task = load_task("digits")
>>> task.features_train.shape, task.classes
((1438, 16), ('even', 'odd'))

Principal components and scale are fitted on the pooled training split. A federation that fits them on its silos' data
spends privacy that no epsilon here accounts for: fit them on public data, or declare that release.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError, MissingExtraError, listing, suggestion

DATA_VARIABLE = "FULCRUM_DATA"
"""The environment variable that names the folder of feature files."""

_TEST_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """What a task known by name means unless told otherwise."""

    classes: Mapping[str, Sequence[int]]
    components: int
    records: int | None


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
        classes: The names of the classes; the last is the sensitive one whose share differs between silos.
        records: Mean records a silo unless told otherwise; None where the federation's own sizes say.
        silo: The silo of each training record, where the data names it.
    """

    name: str
    features_train: FloatArray
    labels_train: IntArray
    features_test: FloatArray
    labels_test: IntArray
    classes: tuple[str, ...]
    records: int | None = None
    silo: tuple[str, ...] | None = None


def load_task(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    components: int | None = None,
    label: str = "label",
    silo: str = "silo",
    seed: int = 0,
) -> Task:
    """Returns a task by name or from a file.

    Args:
        source: "digits"; the name of a feature file in the data folder, such as "cifar10" or "agnews"; or the path of a
            user's own .npz (X_train, y_train, X_test, y_test, or X and y, and optionally silo), CSV or Parquet file
            with a label column, where every other column is a feature, `silo` and `split` (train or test) apart.
        data_dir: The folder of feature files; the variable FULCRUM_DATA by default.
        components: Principal components to keep; all by default for a user's own data.
        label: The label column of a CSV or Parquet file.
        silo: The column that names each record's silo, if there is one.
        seed: Of the split, where the data has none.
    """
    name = str(source)
    if name == "digits":
        raw = _digits(seed)
    elif Path(name).suffix:
        raw = _from_file(Path(name), label, silo, seed)
    else:
        raw = _from_npz(_in_data_folder(name, data_dir), seed)
    known = BUILT_IN.get(name)
    labels = known.classes if known else None
    task = _with_classes(raw, labels)
    return _reduced(
        task,
        name=name if known else Path(name).stem,
        components=components if components is not None or known is None else known.components,
        records=known.records if known else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Raw:
    """Features and labels as they were read."""

    where: str
    features_train: FloatArray
    labels_train: np.ndarray[Any, Any]
    features_test: FloatArray
    labels_test: np.ndarray[Any, Any]
    silo: tuple[str, ...] | None = None


def _in_data_folder(name: str, data_dir: str | Path | None) -> Path:
    folder = data_dir or os.environ.get(DATA_VARIABLE)
    if folder is None:
        raise DataError(
            f"no built-in data {name!r} and no data folder to look for {name}.npz in. Give --data-dir, or set "
            f"{DATA_VARIABLE}.{suggestion(name, BUILT_IN)}"
        )
    path = Path(folder) / f"{name}.npz"
    if not path.is_file():
        found = sorted(file.stem for file in Path(folder).glob("*.npz"))
        raise DataError(f"{path} does not exist. Found there: {listing(found) or 'nothing'}.{suggestion(name, found)}")
    return path


def _digits(seed: int) -> _Raw:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtraError("the digits come with scikit-learn. Run: pip install 'fulcrum-dp[train]'") from None
    features, labels = load_digits(return_X_y=True)
    return _split("digits", features, labels, None, seed)


def _from_file(path: Path, label: str, silo: str, seed: int) -> _Raw:
    readers = {".npz": lambda: _from_npz(path, seed), ".csv": lambda: _from_csv(path, label, silo, seed)}
    readers[".parquet"] = lambda: _from_parquet(path, label, silo, seed)
    if path.suffix not in readers:
        raise DataError(f"{path}: data must be .npz, .csv or .parquet, got {path.suffix!r}")
    try:
        return readers[path.suffix]()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def _from_npz(path: Path, seed: int) -> _Raw:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, EOFError) as error:
        raise DataError(f"{path} is not a NumPy archive without pickles: {error}") from None
    silo = tuple(str(name) for name in arrays["silo"].tolist()) if "silo" in arrays else None
    if {"X_train", "y_train", "X_test", "y_test"} <= set(arrays):
        return _Raw(
            where=path.name,
            features_train=_numbers(arrays["X_train"], path),
            labels_train=arrays["y_train"],
            features_test=_numbers(arrays["X_test"], path),
            labels_test=arrays["y_test"],
            silo=silo,
        )
    if {"X", "y"} <= set(arrays):
        return _split(path.name, _numbers(arrays["X"], path), arrays["y"], silo, seed)
    raise DataError(
        f"{path} must hold X_train, y_train, X_test and y_test, or X and y. It holds: {listing(arrays) or 'nothing'}"
    )


def _from_csv(path: Path, label: str, silo: str, seed: int) -> _Raw:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {error}") from None
    except ValueError:
        raise DataError(f"{path} is empty. It needs a header and records") from None
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise DataError(f"{path} line {number}: {len(row)} cells where the header has {len(header)}")
    columns = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return _from_columns(path, columns, label, silo, seed)


def _from_parquet(path: Path, label: str, silo: str, seed: int) -> _Raw:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("reading Parquet needs pyarrow. Run: pip install 'fulcrum-dp[parquet]'") from None
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from None
    return _from_columns(path, {name: table[name].to_pylist() for name in table.column_names}, label, silo, seed)


def _from_columns(path: Path, columns: Mapping[str, Sequence[Any]], label: str, silo: str, seed: int) -> _Raw:
    if label not in columns:
        raise DataError(f"{path} has no label column {label!r}. Name it with --label.{suggestion(label, columns)}")
    names = [name for name in columns if name not in (label, silo, "split")]
    if not names or not len(columns[label]):
        raise DataError(f"{path} has no {'features' if not names else 'records'}")
    try:
        features = np.array([columns[name] for name in names], dtype=np.float64).T
    except (TypeError, ValueError):
        column, value = next((n, v) for n in names for v in columns[n] if not _is_number(v))
        raise DataError(f"{path}: column {column!r} must hold numbers, got {value!r}. Drop it or encode it") from None
    labels = np.array([str(value) for value in columns[label]])
    silos = tuple(str(value) for value in columns[silo]) if silo in columns else None
    if "split" not in columns:
        return _split(path.name, features, labels, silos, seed)
    split = np.array([str(value) for value in columns["split"]])
    unknown = set(split.tolist()) - {"train", "test"}
    if unknown:
        raise DataError(f"{path}: split must be train or test, got {sorted(unknown)[0]!r}")
    return _parted(path.name, features, labels, silos, split == "test")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _numbers(values: np.ndarray[Any, Any], path: Path) -> FloatArray:
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        raise DataError(f"{path}: features must be a table of numbers, got {values.dtype} of shape {values.shape}")
    return values.astype(np.float64)


def _split(
    where: str, features: FloatArray, labels: np.ndarray[Any, Any], silo: tuple[str, ...] | None, seed: int
) -> _Raw:
    """Parts records into a training and a test split at random."""
    held_out = np.zeros(len(features), dtype=bool)
    order = np.random.default_rng(seed).permutation(len(features))
    held_out[order[len(features) - round(_TEST_SHARE * len(features)) :]] = True
    return _parted(where, features, labels, silo, held_out)


def _parted(
    where: str,
    features: FloatArray,
    labels: np.ndarray[Any, Any],
    silo: tuple[str, ...] | None,
    held_out: np.ndarray[Any, np.dtype[np.bool_]],
) -> _Raw:
    if held_out.all() or not held_out.any():
        raise DataError(f"{where} must have records to train on and records to test on")
    return _Raw(
        where=where,
        features_train=features[~held_out],
        labels_train=labels[~held_out],
        features_test=features[held_out],
        labels_test=labels[held_out],
        silo=None if silo is None else tuple(np.array(silo)[~held_out].tolist()),
    )


def _with_classes(raw: _Raw, classes: Mapping[str, Sequence[int]] | None) -> _Raw:
    """Checks the splits against each other and numbers the classes 0 .. K-1, kept as `labels_*` integers."""
    for name, features, labels in (
        ("training", raw.features_train, raw.labels_train),
        ("test", raw.features_test, raw.labels_test),
    ):
        if len(features) != len(labels):
            raise DataError(
                f"{raw.where}: {len(features)} {name} features and {len(labels)} labels. Give one label each"
            )
        if not len(features):
            raise DataError(f"{raw.where} has no {name} records")
        broken = ~np.isfinite(features).all(axis=1)
        if broken.any():
            raise DataError(f"{raw.where}: {name} record {int(np.argmax(broken)) + 1} has a feature that is not finite")
    if raw.features_train.shape[1] != raw.features_test.shape[1]:
        raise DataError(
            f"{raw.where}: {raw.features_train.shape[1]} features to train on, {raw.features_test.shape[1]} to test on"
        )
    return raw if classes is None else _grouped(raw, classes)


def _grouped(raw: _Raw, classes: Mapping[str, Sequence[int]]) -> _Raw:
    """Replaces labels by the names of the classes they belong to."""
    group_of = {label: name for name, labels in classes.items() for label in labels}

    def grouped(labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        unknown = set(labels.tolist()) - set(group_of)
        if unknown:
            raise DataError(
                f"{raw.where}: label {sorted(unknown)[0]!r} is outside the head. Known: {listing(map(str, group_of))}"
            )
        return np.array([group_of[label] for label in labels.tolist()])

    return _Raw(
        where=raw.where,
        features_train=raw.features_train,
        labels_train=grouped(raw.labels_train),
        features_test=raw.features_test,
        labels_test=grouped(raw.labels_test),
        silo=raw.silo,
    )


def _reduced(raw: _Raw, *, name: str, components: int | None, records: int | None) -> Task:
    """Fits principal components and scale on the training split and applies them to both."""
    known = BUILT_IN[name].classes if name in BUILT_IN else None
    classes = tuple(known) if known else tuple(sorted({str(label) for label in raw.labels_train.tolist()}))
    if len(classes) < 2:
        raise DataError(f"{raw.where} has one class, {classes[0]!r}. There is nothing to learn")
    number = {label: index for index, label in enumerate(classes)}
    for label in raw.labels_test.tolist():
        if str(label) not in number:
            raise DataError(f"{raw.where}: test label {label!r} is outside the head. Known: {listing(classes)}")
    absent = [label for label in classes if label not in {str(value) for value in raw.labels_train.tolist()}]
    if absent:
        raise DataError(f"{raw.where} has no training record of class {absent[0]!r}: it cannot be learnt")
    centre = raw.features_train.mean(axis=0)
    train, test = raw.features_train - centre, raw.features_test - centre
    if components is not None:
        if not 1 <= components <= train.shape[1]:
            raise DataError(
                f"components must be from 1 to the {train.shape[1]} features of {raw.where}, got {components}"
            )
        axes = np.linalg.eigh(train.T @ train)[1][:, ::-1][:, :components]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])  # one sign on every machine
        train, test = train @ axes, test @ axes
    spread = float(train.std(axis=0).mean())
    if spread == 0:
        raise DataError(f"{raw.where}: every training record has the same features. There is nothing to learn")
    return Task(
        name=name,
        features_train=train / spread,
        labels_train=np.array([number[str(label)] for label in raw.labels_train.tolist()]),
        features_test=test / spread,
        labels_test=np.array([number[str(label)] for label in raw.labels_test.tolist()]),
        classes=classes,
        records=records,
        silo=raw.silo,
    )
