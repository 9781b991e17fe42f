"""Public ranges of features: features become numbers from -1 to 1 without any statistic of the silos' data.

>>> age = FeatureRange(name="age", low=18, high=90, reference=60)
>>> age.scale(np.array([18.0, 60.0, 102.0, np.nan])).tolist()
[-1.0, 0.0, 0.7142857142857143, 0.0]
>>> read_ranges("0,16").scale(np.array([[0.0, 20.0]]), None, "digits").tolist()
[[-1.0, 1.0]]

A mean, a spread or a principal component of the silos' records is a release that no epsilon of a person counts. A range
comes from public knowledge: the measuring device, the guideline, the encoder.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, ParameterError, listing, suggestion
from fulcrum.parsing import toml_of
from fulcrum.simulation.data.sources.record_columns import csv_table

_COLUMNS = ("feature", "low", "high", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRange:
    """The public range of a feature in the unit of the source.

    Attributes:
        name: The name of the feature.
        low: The lower end; a smaller value counts as this value.
        high: The upper end; a larger value counts as this value.
        reference: The value of a healthy or typical person, in the place of a missing value; 0 after scaling.
        coded: True for whole numbers that are codes; the source has no code outside of the range.
    """

    name: str
    low: float
    high: float
    reference: float
    coded: bool = False

    @property
    def limits(self) -> tuple[float, float] | None:
        """The range of a feature of codes; None for measurements, which may lie outside of the range."""
        return (self.low, self.high) if self.coded else None

    def scale(self, values: FloatArray) -> FloatArray:
        """Returns values from -1 to 1: the distance to the reference over the longer part of the range."""
        present = np.where(np.isnan(values), self.reference, values)
        width = max(self.high - self.reference, self.reference - self.low)
        return np.asarray((np.clip(present, self.low, self.high) - self.reference) / width)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRanges:
    """The public ranges of all features.

    Attributes:
        by_name: The range by name of the feature; empty if one range is for all features.
        common: The range of all features; None for ranges by name.
    """

    by_name: Mapping[str, FeatureRange]
    common: FeatureRange | None = None

    def of(self, name: str) -> FeatureRange:
        """Returns the range of a feature, or raises `DataError` for a feature without a range."""
        if self.common is not None:
            return self.common
        if name not in self.by_name:
            raise DataError(
                "ranges.feature-missing",
                feature=name,
                known=listing(self.by_name),
                suggestion=suggestion(name, self.by_name),
            )
        return self.by_name[name]

    def scale(self, features: FloatArray, names: Sequence[str] | None, where: str) -> FloatArray:
        """Returns features scaled by their ranges and clamped, every number from -1 to 1.

        Args:
            features: By record and feature.
            names: The names of the features; None if the data names no features.
            where: The name of the data in messages.
        """
        if features.ndim != 2:
            raise DataError("ranges.rows-missing", data=where, shape=features.shape[1:])
        if self.common is not None:
            return self.common.scale(features)
        if names is None:
            raise DataError("ranges.names-missing", data=where)
        unknown = next((name for name in self.by_name if name not in names), None)
        if unknown is not None:
            raise DataError(
                "ranges.feature-unknown",
                feature=unknown,
                data=where,
                known=listing(names),
                suggestion=suggestion(unknown, names),
            )
        return np.stack([self.of(name).scale(features[:, place]) for place, name in enumerate(names)], axis=1)


RangesLike: TypeAlias = str | Path | Sequence[float] | Mapping[str, Sequence[float]] | FeatureRanges
"""Ranges as users give them: a file, "low,high", or the numbers for all features or by name of the feature."""


def read_ranges(source: RangesLike) -> FeatureRanges:
    """Returns public ranges of features.

    Args:
        source: "low,high" or two numbers for all features; a mapping from a feature to low, high and optionally the
            reference; a TOML file with lines such as `age = [18, 90, 60]`; or a CSV file with the columns feature, low,
            high and optionally reference. The middle of the range is the reference by default.
    """
    if isinstance(source, FeatureRanges):
        return source
    if isinstance(source, Mapping):
        return FeatureRanges(by_name={name: _range(name, numbers) for name, numbers in source.items()})
    if not isinstance(source, (str, Path)):
        return FeatureRanges(by_name={}, common=_range("all", source))
    path = Path(source)
    try:
        if path.suffix.lower() == ".toml":
            return read_ranges(toml_of(path.read_bytes()))
        if path.suffix.lower() in (".csv", ".gz"):
            return read_ranges(_from_csv(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError("ranges.toml-unreadable", file=path, reason=error) from None
    except OSError as error:
        raise DataError("file.unreadable", file=path, reason=error.strerror or error) from None
    return FeatureRanges(by_name={}, common=_range("all", str(source).split(",")))


def _from_csv(path: Path) -> dict[str, list[float]]:
    table = csv_table(path)
    names = table.words(_COLUMNS[0], required=True)
    table.check_unique(_COLUMNS[0])
    columns = [table.numbers(column) for column in _COLUMNS[1:] if column in table.columns or column != "reference"]
    rows = zip(names, zip(*(column.tolist() for column in columns), strict=True), strict=True)
    return {name: [value for value in row if not math.isnan(value)] for name, row in rows}


def _range(name: str, numbers: Any) -> FeatureRange:
    """Returns the range of two numbers, or of three with the reference last; refuses a range without a width."""
    try:
        values = [float(value) for value in numbers]
    except (TypeError, ValueError):
        values = []
    if len(values) not in (2, 3) or not all(map(math.isfinite, values)):
        raise ParameterError("ranges.form-invalid", feature=name, value=numbers)
    low, high, reference = (*values, (values[0] + values[1]) / 2)[:3]
    if not (low < high and low <= reference <= high):
        raise ParameterError("ranges.order-invalid", feature=name, low=low, high=high, reference=reference)
    return FeatureRange(name=name, low=low, high=high, reference=reference)
