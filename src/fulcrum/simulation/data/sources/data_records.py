"""Examples as read from a source: features, labels and silos, checked against each other; split into train and test."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray
from fulcrum.errors import DataError

_Array: TypeAlias = np.ndarray[Any, Any]

TEST_SHARE = 0.2
"""The share of records, or of persons, to test on."""

_PERSON_STREAM = 0x706572736F6E  # keeps the choice of test persons apart from every other use of the same seed

_NAME_DOMAIN = b"fulcrum test person\0"  # public: a name that is hashed for another purpose has another hash


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """Features, labels, silos and persons of all examples of a source, checked against each other.

    Attributes:
        where: The name of the source in messages.
        features: By example.
        labels: By example.
        silo: By example; None if the source names no silos.
        persons: By example; None if the source names no persons.
        names: The names of the features; None if the source names no features.
    """

    where: str
    features: FloatArray
    labels: list[Any]
    silo: list[str] | None = None
    persons: list[str] | None = None
    names: tuple[str, ...] | None = None

    def part(self, chosen: _Array, *, may_be_empty: bool = False) -> "Examples":
        """Returns the chosen examples, or refuses a choice of none."""
        rows = np.flatnonzero(chosen).tolist()
        if not rows and not may_be_empty:
            raise DataError("data.split-empty", data=self.where)
        return replace(
            self,
            features=self.features[chosen],
            labels=[self.labels[row] for row in rows],
            silo=None if self.silo is None else [self.silo[row] for row in rows],
            persons=None if self.persons is None else [self.persons[row] for row in rows],
        )


def check_examples(
    where: str,
    what: str,
    features: _Array,
    labels: _Array,
    silo: _Array | None = None,
    *,
    persons: _Array | None = None,
    targets: str = "classes",
    may_be_empty: bool = False,
) -> Examples:
    """Returns examples of features, labels, silos and persons, or refuses missing and unfitting values.

    Args:
        where: The name of the data, for errors.
        what: The split with a blank behind, such as "training ", for errors; may be empty.
        features: By record, an array of at least one axis.
        labels: By record, the class, number or labels.
        silo: By record, the silo; None for data without silos.
        persons: By record, the person; None for data without persons.
        targets: A kind of `TARGETS`.
        may_be_empty: True accepts a split without records.
    """
    if features.ndim < 2 or features.dtype.kind not in "fiu":
        raise DataError("data.features-type", data=where, dtype=features.dtype, shape=features.shape)
    if not math.prod(features.shape[1:]):
        raise DataError("data.features-missing", data=where)
    if not len(features) and not may_be_empty:
        raise DataError("data.records-missing", data=where, part=what)
    columns: dict[str, list[Any]] = {}
    for name, values in (("label", labels), ("silo", silo), ("person", persons)):
        if values is None:
            continue
        if name == "label" and targets != "classes":
            columns[name] = _numbers(where, what, targets, values, len(features))
            continue
        if values.ndim != 1:
            advice = ". For numbers or several labels a record give --targets" if name == "label" else ""
            raise DataError("data.column-shape", data=where, column=name, shape=values.shape, advice=advice)
        if len(values) != len(features):
            raise DataError(
                "data.column-length", data=where, records=len(features), part=what, count=len(values), column=name
            )
        columns[name] = [word_of(value) for value in values.tolist()]
        if "" in columns[name]:
            missing = columns[name].index("") + 1
            raise DataError("data.cell-missing", data=where, part=what, record=missing, column=name)
    # Rows of features are scaled later, in double precision. Images and other shapes are not scaled, and single
    # precision halves their memory; bytes become 0 to 1.
    with np.errstate(over="ignore"):  # an overflow is refused below, as a feature that is not finite
        numbers: _Array = features.astype(np.float64 if features.ndim == 2 else np.float32)
    if features.ndim > 2 and features.dtype == np.uint8:
        numbers /= 255
    broken = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
    if broken.any():
        single = "" if features.ndim == 2 else " in single precision"
        raise DataError(
            "data.feature-not-finite", data=where, part=what, record=int(np.argmax(broken)) + 1, precision=single
        )
    return Examples(
        where=where,
        features=numbers,
        labels=columns["label"],
        silo=columns.get("silo"),
        persons=columns.get("person"),
    )


def _numbers(where: str, what: str, targets: str, values: _Array, records: int) -> list[Any]:
    """Checks targets that are numbers (regression) or labels (0 or 1 each); returns a list, a target per example."""
    shape = "(records,) or (records, numbers)" if targets == "numbers" else "(records, labels)"
    if values.dtype.kind not in "fiub" or values.ndim not in ((1, 2) if targets == "numbers" else (2,)):
        raise DataError(
            "data.targets-shape", data=where, targets=targets, expected=shape, dtype=values.dtype, shape=values.shape
        )
    if len(values) != records:
        raise DataError(
            "data.targets-length", data=where, records=records, part=what, count=len(values), targets=targets
        )
    right = np.isfinite(values) if targets == "numbers" else (values == 0) | (values == 1)
    if not right.all():
        rule = "finite" if targets == "numbers" else "0 or 1"
        worst = int(np.argmin(right.reshape(records, -1).all(axis=1))) + 1
        raise DataError("data.targets-range", data=where, targets=targets, rule=rule, part=what, record=worst)
    return values.astype(np.float64).tolist()  # type: ignore[no-any-return]


def word_of(value: Any) -> str:
    """Returns a label or a silo's name as text: a whole number without a point, a missing value as an empty text.

    >>> word_of(3.0), word_of(" lyon "), word_of(b"lyon"), word_of(float("nan"))
    ('3', 'lyon', 'lyon', '')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = "" if value is None else str(value).strip()
    return "" if text == "nan" else text


def split_examples(examples: Examples, seed: int | None) -> tuple[Examples, Examples]:
    """Returns examples to train on and examples to test on; without a seed nothing is drawn.

    Without a seed the side of a person follows from the name of the person alone, records without the name of a person
    are all trained on, and a side may be empty: a person who joins or leaves moves no other record, and a silo whose
    only test person leaves still trains.
    """
    if seed is not None:
        return split_at_random(examples, seed)
    persons = examples.persons or [""] * len(examples.labels)
    tested = np.array([examples.persons is not None and is_tested_by_name(person) for person in persons], dtype=bool)
    return examples.part(~tested, may_be_empty=True), examples.part(tested, may_be_empty=True)


def is_tested_by_name(person: str) -> bool:
    """Returns true for about a fifth of all names: the persons to test on, by a hash that looks at one name alone.

    >>> [name for name in ("ann", "bob", "cid", "dora", "eve", "finn") if is_tested_by_name(name)]
    ['bob']
    """
    digest = hashlib.sha256(_NAME_DOMAIN + person.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def split_at_random(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Returns examples to train on, and a fifth to test on: a fifth of the persons if the source names persons."""
    labels = examples.labels if isinstance(examples.labels[0], str) else None
    if examples.persons is not None:
        columns = [column for column in (examples.silo, labels) if column is not None]
        tested = choose_test_persons(examples.persons, columns, seed=seed, share=TEST_SHARE)
    else:
        tested = choose_test_records(labels, examples.silo, len(examples.labels), seed)
    return examples.part(~tested), examples.part(tested)


def choose_test_records(labels: Sequence[Any] | None, silo: Sequence[str] | None, records: int, seed: int) -> BoolArray:
    """Returns a mask of the records to test on: a fifth at random, but not the first draw of a class or of a silo.

    The exceptions keep every class and every silo in the training split.

    Args:
        labels: The class of every record; None for a task without classes.
        silo: The silo of every record; None if the silos are unknown.
        records: Number of records.
        seed: Seed of the draw.
    """
    order = np.random.default_rng(seed).permutation(records).tolist()
    trained_on: set[int] = set()
    for values in (labels, silo):
        trained_on |= set({values[row]: row for row in reversed(order)}.values()) if values is not None else set()
    free = [row for row in order if row not in trained_on]
    chosen = np.zeros(records, dtype=bool)
    chosen[free[max(0, len(free) - round(TEST_SHARE * records)) :]] = True
    return chosen


def choose_test_persons(
    persons: Sequence[str], columns: Sequence[Sequence[Any]], *, seed: int, share: float
) -> BoolArray:
    """Returns a mask of the records to test on: all records of persons drawn at random.

    The first draw of every value of a column is a person to train on, so that the training split contains every value.

    Args:
        persons: The person of every record.
        columns: The silo and the class of every record, as far as the data has them.
        seed: Seed of the draw.
        share: The share of persons to test on.
    """
    names, person_of = np.unique(persons, return_inverse=True)
    rank = np.random.default_rng([_PERSON_STREAM, seed]).permutation(len(names))
    last_first = np.argsort(-rank[person_of], kind="stable").tolist()
    trained_on = np.zeros(len(names), dtype=bool)
    for column in columns:
        first_draws = {column[row]: int(person_of[row]) for row in last_first}
        trained_on[list(first_draws.values())] = True
    free = np.flatnonzero(~trained_on)
    tested = free[np.argsort(rank[free])][max(0, len(free) - round(share * len(names))) :]
    return np.isin(person_of, tested)
