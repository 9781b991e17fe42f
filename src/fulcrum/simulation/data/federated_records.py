"""Records of a real federation: features by public ranges, persons, silos and regions as the source names them.

>>> age = FeatureRange(name="age", low=18, high=90, reference=60)
>>> age.scale(np.array([18.0, 60.0, 102.0, np.nan])).tolist()
[-1.0, 0.0, 0.7142857142857143, 0.0]

A person may have several records, at several silos. Splits into training and test records are therefore by person. No
number here is fitted on the data: a range fitted on silos' data is a release that no epsilon counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.errors import DataError, ParameterError
from fulcrum.readers.federation import Federation
from fulcrum.simulation.data.record_columns import CsvTable, csv_table
from fulcrum.simulation.data.tasks import Task

UNKNOWN_REGION = "unknown"
"""The region of silos for which the source names no region."""

_STREAM = 0x706572736F6E  # keeps the choice of test persons apart from every other use of the same seed


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
class DataSource:
    """A source of tables, named in errors: users get the tables from there, because Fulcrum contains no data.

    Attributes:
        title: The name of the source.
        address: The web page with the files.
        licence: The licence of the files.
        prefix: A prefix that file names may have.
    """

    title: str
    address: str
    licence: str
    prefix: str = ""

    def read_table(self, folder: Path, name: str, *, header: tuple[str, ...] = (), rows: int | None = None) -> CsvTable:
        """Returns a table of the source from a folder.

        Args:
            folder: The folder with the files.
            name: The file name as the source has it, in capital or small letters, with or without .gz.
            header: The names of the columns of a file without a header.
            rows: The published number of rows; None accepts any number.
        """
        about = {"title": self.title, "address": self.address, "licence": self.licence}
        if not folder.is_dir():
            raise DataError("source.folder-missing", folder=folder, **about)
        files = sorted(file for file in folder.iterdir() if self._plain_name(file.name) == self._plain_name(name))
        if not files:
            raise DataError("source.file-missing", folder=folder, file=name, **about)
        if len(files) > 1:
            raise DataError(
                "source.file-repeated", folder=folder, table=name, first=files[0].name, second=files[1].name
            )
        try:
            table = csv_table(files[0], header=header)
        except OSError as error:
            raise DataError("file.unreadable", file=files[0], reason=error.strerror or error) from None
        if rows is not None and len(table.lines) != rows:
            raise DataError("source.count-differs", file=files[0], rows=len(table.lines), published=rows, **about)
        return table

    def _plain_name(self, name: str) -> str:
        return name.lower().removeprefix(self.prefix).removesuffix(".gz")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FederatedRecords:
    """The records of a real federation, ready to plan and to train.

    Attributes:
        name: Name in messages and results.
        features: By record and range, from -1 to 1; a missing value is 0.
        labels: The class of every record, 0 or 1.
        classes: The names of both classes.
        persons: The person of every record.
        silos: The silo of every record.
        region_of: The region of every silo, in the order of the source's table of silos.
        ranges: The public range of every feature.
        metric: The metric of a task on these records, a name of `tasks.METRIC_NAMES`.
        left_out: The number of rows left out, by reason.
    """

    name: str
    features: FloatArray
    labels: IntArray
    classes: tuple[str, ...]
    persons: tuple[str, ...]
    silos: tuple[str, ...]
    region_of: Mapping[str, str]
    ranges: tuple[FeatureRange, ...]
    metric: str = "accuracy"
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def _memberships(self) -> set[tuple[str, str]]:
        """All pairs of a person and a silo with records of the person."""
        return set(zip(self.persons, self.silos, strict=True))

    @property
    def silos_per_person(self) -> int:
        """The largest number of silos with records of the same person."""
        persons = [person for person, _ in self._memberships]
        return int(np.unique(persons, return_counts=True)[1].max())

    def federation(self, *, sizes: Literal["records", "persons"] = "records") -> Federation:
        """Returns silos, regions and sizes.

        The sizes are counted from the data. A plan that must not reveal counts needs declared sizes instead.

        Args:
            sizes: The unit of a silo's size.
        """
        owners = self.silos if sizes == "records" else [silo for _, silo in self._memberships]
        counts = dict(zip(*np.unique(owners, return_counts=True), strict=True))
        return Federation.from_columns(
            silo=list(self.region_of),
            records=np.array([counts[silo] for silo in self.region_of], dtype=np.float64),
            tiers={"region": list(self.region_of.values())},
            name=self.name,
        )

    def split_by_person(self, *, seed: int, share: float = 0.2) -> BoolArray:
        """Returns a mask of the records to test on: all records of persons drawn at random.

        The first draw of every silo and of every class is a person to train on, so that the training split contains
        every silo and every class. Persons of small silos are therefore tested less often.

        Args:
            seed: Seed of the draw.
            share: The share of persons to test on.
        """
        if not 0 < share < 1:
            raise ParameterError("source.share-range", share=share)
        names, person_of = np.unique(self.persons, return_inverse=True)
        rank = np.random.default_rng([_STREAM, seed]).permutation(len(names))
        last_first = np.argsort(-rank[person_of], kind="stable").tolist()
        trained_on = np.zeros(len(names), dtype=bool)
        for column in (self.silos, self.labels.tolist()):
            first_draws = {column[row]: int(person_of[row]) for row in last_first}
            trained_on[list(first_draws.values())] = True
        free = np.flatnonzero(~trained_on)
        tested = free[np.argsort(rank[free])][max(0, len(free) - round(share * len(names))) :]
        return np.isin(person_of, tested)

    def task(self, test: BoolArray) -> Task:
        """Returns the task of a split by person, with the silo of every record.

        Args:
            test: True for the records to test on, a result of `split_by_person` for example.
        """
        test = np.asarray(test, dtype=bool)
        if test.shape != (len(self),):
            raise DataError("source.mask-length", data=self.name, records=len(self), shape=test.shape)
        sides = [np.flatnonzero(~test).tolist(), np.flatnonzero(test).tolist()]
        if not all(sides):
            raise DataError("data.split-empty", data=self.name)
        divided = set.intersection(*({self.persons[row] for row in rows} for rows in sides))
        if divided:
            raise DataError("source.person-divided", person=min(divided), data=self.name)
        return Task(
            name=self.name,
            features_train=self.features[~test],
            labels_train=self.labels[~test],
            features_test=self.features[test],
            labels_test=self.labels[test],
            classes=self.classes,
            silo=tuple(self.silos[row] for row in sides[0]),
            silo_test=tuple(self.silos[row] for row in sides[1]),
            fitted=False,
            metric=self.metric,
        )
