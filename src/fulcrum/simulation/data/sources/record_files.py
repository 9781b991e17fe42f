"""Examples from files: an .npz file, a table of records, or a folder of texts or images, in training and test.

>>> columns = {"age": [61, 70], "label": ["b", "a"], "split": ["train", "test"]}
>>> train, test = examples_of_columns(Path("table.csv"), columns, "label", None, None, None, seed=0)
>>> train.features.tolist(), test.features.tolist()
([[61.0]], [[70.0]])
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fulcrum.errors import DataError, in_one_line, listing, suggestion
from fulcrum.npz import read_npz
from fulcrum.simulation.data.sources.data_records import Examples, check_examples, split_examples, word_of
from fulcrum.simulation.data.sources.feature_ranges import FeatureRanges
from fulcrum.simulation.data.sources.images import read_image_folder
from fulcrum.simulation.data.sources.record_columns import MISSING, image_column, text_column
from fulcrum.simulation.data.sources.sentences import sentence_features
from fulcrum.simulation.data.sources.texts import Texts, holds_texts, read_text_folder

_Array: TypeAlias = np.ndarray[Any, Any]

_IMAGE, _TEXT = "image", "text"  # a column of encoded images, or of texts
_CELL_CHARACTERS = 40  # of a cell in a message


def examples_of_npz(path: Path, seed: int | None, targets: str) -> tuple[Examples, Examples]:
    """Returns training and test examples of an .npz file, split by `split_examples` if the file has one split."""
    arrays = read_npz(path)
    silo, persons = arrays.get("silo"), arrays.get("person")
    odd = next((name for name in arrays if name.lower().startswith("silo") and name not in ("silo", "silo_test")), None)
    if odd is not None:
        raise DataError("data.array-unknown", file=path, array=odd)
    if {"X_train", "y_train", "X_test", "y_test"} <= set(arrays):
        trained = arrays["X_train"], arrays["y_train"], silo
        tested = arrays["X_test"], arrays["y_test"], arrays.get("silo_test")
        check = partial(check_examples, path.name, targets=targets, may_be_empty=seed is None)
        return check("training ", *trained, persons=persons), check("test ", *tested)
    if {"X", "y"} <= set(arrays):
        examples = check_examples(path.name, "", arrays["X"], arrays["y"], silo, persons=persons, targets=targets)
        return split_examples(examples, seed)
    raise DataError("data.arrays-missing", file=path, arrays=listing(arrays) or "nothing")


def examples_of_columns(
    path: Path,
    columns: Mapping[str, Sequence[Any]],
    label: str,
    silo: str | None,
    person: str | None,
    ranges: FeatureRanges | None,
    seed: int | None,
) -> tuple[Examples, Examples]:
    """Returns training and test examples of a table by column; a missing value counts as the reference of its range."""
    if label not in columns:
        raise DataError(
            "table.label-column-missing",
            file=path,
            column=label,
            columns=listing(columns),
            suggestion=suggestion(label, columns),
        )
    if silo is not None and silo not in columns:
        raise DataError(
            "table.silo-column-missing",
            file=path,
            column=silo,
            columns=listing(columns),
            suggestion=suggestion(silo, columns),
        )
    if person is not None and person not in columns:
        raise DataError(
            "table.person-column-missing",
            file=path,
            column=person,
            columns=listing(columns),
            suggestion=suggestion(person, columns),
        )
    odd = next((name for name in columns if name != "silo" and name.strip().lower() == "silo"), None)
    if silo is None and odd is not None and "silo" not in columns:
        raise DataError("table.silo-column-unclear", file=path, column=odd)
    silo = silo or "silo"
    names = [name for name in columns if name not in (label, silo, person, "split")]
    if not names:
        raise DataError("data.features-missing", data=path)
    if not len(columns[label]):
        raise DataError("data.records-missing", data=path, part="")
    features: _Array
    content = next((name for name in (_IMAGE, _TEXT) if name in names and _is_content(columns[name][0])), None)
    if content is not None and len(names) > 1:
        other = next(name for name in names if name != content)
        raise DataError("table.column-beside-content", file=path, column=content, other=other)
    if names == [_IMAGE]:
        features = image_column(path, columns[_IMAGE])
    elif names == [_TEXT]:
        features = sentence_features(text_column(path, columns[_TEXT]))
    elif ranges is None:
        features = number_columns(path, {name: columns[name] for name in names})
    else:  # a missing value counts as the reference of its range; a mean of the column would be a release
        filled = {
            name: [ranges.of(name).reference if _is_missing(cell) else cell for cell in columns[name]] for name in names
        }
        features = number_columns(path, filled)
    silos = np.fromiter(columns[silo], dtype=object) if silo in columns else None
    persons = None if person is None else np.fromiter(columns[person], dtype=object)
    examples = check_examples(
        path.name, "", features, np.fromiter(columns[label], dtype=object), silos, persons=persons
    )
    examples = replace(examples, names=tuple(names))
    return _split_examples(examples, columns.get("split"), path, seed)


def _is_missing(cell: Any) -> bool:
    """Returns true for a cell without a value."""
    return word_of(cell) in MISSING


def number_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> _Array:
    """Returns the columns of a table as numbers, (rows, columns); raises `DataError` for a cell that is no number."""
    try:
        numbers: _Array = np.array(list(columns.values()), dtype=np.float64).T
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.ndim != 2:
        column, value = next(
            (name, candidate) for name in columns for candidate in columns[name] if not _is_number(candidate)
        )
        cell = in_one_line(repr(value))
        cell = cell if len(cell) <= _CELL_CHARACTERS else f"{cell[:_CELL_CHARACTERS]}..."
        raise DataError("table.column-type", file=path, column=column, cell=cell)
    return numbers


def _is_content(value: Any) -> bool:
    """Returns true for a cell with an encoded image or words, false for a number."""
    return isinstance(value, (bytes, dict)) or (isinstance(value, str) and not _is_number(value))


def examples_of_folder(path: Path, seed: int | None) -> tuple[Examples, Examples]:
    """Returns training and test examples of a folder of texts or images."""
    contents = read_text_folder(path) if holds_texts(path) else read_image_folder(path)
    features: _Array = sentence_features(contents.texts) if isinstance(contents, Texts) else contents.pixels
    labels = np.array(contents.labels, dtype=object)
    silos = None if contents.silo is None else np.array(contents.silo, dtype=object)
    return _split_examples(check_examples(path.name, "", features, labels, silos), contents.split, path, seed)


def _split_examples(
    examples: Examples, split_column: Sequence[Any] | None, path: Path, seed: int | None
) -> tuple[Examples, Examples]:
    """Returns training and test examples, split by the data's own column, or by `split_examples` without the column."""
    if split_column is None:
        return split_examples(examples, seed)
    split = np.array([str(value) for value in split_column])
    unknown = set(split.tolist()) - {"train", "test"}
    if unknown:
        raise DataError("data.split-unknown", place=path, split=sorted(unknown)[0])
    train, test = (examples.part(split == side, may_be_empty=seed is None) for side in ("train", "test"))
    return train, test


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
