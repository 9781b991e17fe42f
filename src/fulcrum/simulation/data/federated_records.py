"""Records of a real federation: features by public ranges, persons, silos and regions as the source names them.

>>> records = FederatedRecords(
...     name="two",
...     features=np.zeros((3, 1)),
...     labels=np.array([0, 1, 0]),
...     classes=("no", "yes"),
...     persons=("ann", "ann", "bob"),
...     silos=("lyon", "lyon", "rome"),
...     region_of={"lyon": "west", "rome": "south"},
...     ranges=(FeatureRange(name="age", low=18, high=90, reference=60),),
... )
>>> records.federation(unit="person").sizes.tolist(), records.federation().sizes.tolist()
([1.0, 1.0], [2.0, 1.0])

A person may have several records, at several silos. Splits into training and test records are therefore by person. No
number here is fitted on the data: a range fitted on silos' data is a release that no epsilon counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.choices import UNITS, UnitName
from fulcrum.errors import DataError, ParameterError, check_known
from fulcrum.readers.federation import Federation
from fulcrum.simulation.data.sources.data_records import choose_test_persons
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange
from fulcrum.simulation.data.sources.record_columns import CsvTable, csv_table
from fulcrum.simulation.data.survival import person_periods, with_intervals
from fulcrum.simulation.data.tasks import Task

UNKNOWN_REGION = "unknown"
"""The region of silos for which the source names no region."""


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
        labels: The class of every record, 0 or 1; of survival, 1 for an event.
        classes: The names of both classes.
        persons: The person of every record.
        silos: The silo of every record.
        region_of: The region of every silo, in the order of the source's table of silos.
        ranges: The public range of every feature.
        metric: The metric of a task on these records, a name of `tasks.METRIC_NAMES`.
        left_out: The number of rows left out, by reason.
        times: The time of the event, or of the end of observation, by record; None unless the task is survival.
        interval_ends: The ends of the intervals of discrete time; empty unless the task is survival.
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
    times: FloatArray | None = None
    interval_ends: tuple[float, ...] = ()

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

    def federation(self, *, sizes: Literal["records", "persons"] | None = None, unit: UnitName = "silo") -> Federation:
        """Returns silos, regions and sizes.

        The sizes are counted from the data. A plan that must not reveal counts needs declared sizes instead.

        Args:
            sizes: The unit of a silo's size; by default the number that a plan for `unit` needs.
            unit: The unit of privacy of a plan: the sizes of a plan for persons are numbers of persons.
        """
        check_known("unit", unit, UNITS)
        by_person = sizes == "persons" or (sizes is None and unit == "person")
        owners = [silo for _, silo in self._memberships] if by_person else self.silos
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
        columns = (self.silos, self.labels.tolist())
        return choose_test_persons(self.persons, columns, seed=seed, share=share)

    def select(self, chosen: BoolArray) -> "FederatedRecords":
        """Returns the chosen records alone, with the silos that hold any of them.

        Args:
            chosen: True for the records to keep, for example all records without the test records.
        """
        rows = np.flatnonzero(chosen).tolist()
        silos = tuple(self.silos[row] for row in rows)
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            times=None if self.times is None else self.times[rows],
            persons=tuple(self.persons[row] for row in rows),
            silos=silos,
            region_of={silo: region for silo, region in self.region_of.items() if silo in set(silos)},
        )

    def scaled_by_middle(self) -> "FederatedRecords":
        """Returns the records with features scaled by the middle of their ranges, in place of the references.

        The end of a range becomes -1 or 1, and a missing value keeps the value of the reference. Both ways to scale use
        public numbers alone.
        """
        columns = []
        for column, declared in zip(self.features.T, self.ranges, strict=True):
            width = max(declared.high - declared.reference, declared.reference - declared.low)
            middle = replace(declared, reference=(declared.low + declared.high) / 2)
            columns.append(middle.scale(column * width + declared.reference))
        return replace(self, features=np.stack(columns, axis=1))

    def task(self, test: BoolArray) -> Task:
        """Returns the task of a split by person, with the silo of every record.

        The training records of a task of survival are the intervals that persons enter, with further columns for the
        intervals. The test records are the persons in the first interval: their scores have the order of risk at any
        time.

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
        features, labels, trained = self.features[~test], self.labels[~test], sides[0]
        tested, times_test = self.features[test], None
        if self.times is not None:
            periods = person_periods(self.times[~test], labels, ends=self.interval_ends)
            count = len(self.interval_ends)
            features = with_intervals(features[periods.rows], periods.intervals, count=count)
            labels, trained = periods.labels, np.array(trained)[periods.rows].tolist()
            tested = with_intervals(tested, np.zeros(len(tested), dtype=np.intp), count=count)
            times_test = self.times[test]
        return Task(
            name=self.name,
            features_train=features,
            labels_train=labels,
            features_test=tested,
            labels_test=self.labels[test],
            classes=self.classes,
            silo=tuple(self.silos[row] for row in trained),
            silo_test=tuple(self.silos[row] for row in sides[1]),
            persons=tuple(self.persons[row] for row in trained),
            fitted=False,
            metric=self.metric,
            times_test=times_test,
        )
