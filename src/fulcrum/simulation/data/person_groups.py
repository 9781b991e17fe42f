"""The persons of every silo: the records that one gradient of the units "person" and "record" is summed over.

>>> from fulcrum.simulation.data.partition import Partition
>>> part = Partition(
...     records=np.array([0, 1, 2, 3]), starts=np.array([0, 3]), counts=np.array([3, 1]), shares=np.zeros(2)
... )
>>> groups = group_persons(part, ("ann", "bob", "ann", "ann"))
>>> [groups.rows(person).tolist() for person in range(groups.count)], groups.by_silo.tolist()
([[0, 2], [1], [3]], [2, 1])

A person with records at two silos is two groups: no silo knows the records of another silo, so each silo clips alone.
The unit's number of silos of one person states how many groups a person may have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import IntArray
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PersonGroups:
    """The training records of every person at every silo.

    Attributes:
        records: Indices into the task's training split: silo after silo, and person after person within a silo.
        starts: The position of every person's first record, and at the end the number of records.
        silos: The number of the first person of every silo, and at the end the number of persons.
    """

    records: IntArray
    starts: IntArray
    silos: IntArray

    @property
    def count(self) -> int:
        """The number of persons, a person counted once for each of the person's silos."""
        return len(self.starts) - 1

    @property
    def by_silo(self) -> IntArray:
        """The number of persons of every silo."""
        return np.diff(self.silos)

    def rows(self, person: int) -> IntArray:
        """Returns the training records of a person at the person's silo."""
        return self.records[self.starts[person] : self.starts[person + 1]]


def group_persons(partition: Partition, persons: Sequence[str] | None) -> PersonGroups:
    """Returns the persons of every silo.

    Args:
        partition: The training records of every silo.
        persons: The person of every training record; None if every record is a unit of its own.
    """
    owner = np.repeat(np.arange(len(partition.counts)), partition.counts)
    if persons is None:
        ends = np.append(partition.starts, len(partition.records))
        return PersonGroups(records=partition.records, starts=np.arange(len(partition.records) + 1), silos=ends)
    number = np.unique(np.asarray(persons), return_inverse=True)[1][partition.records]
    order = np.lexsort((number, owner))  # stable: the records of a person keep their order
    person, silo = number[order], owner[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (person[1:] != person[:-1]) | (silo[1:] != silo[:-1])
    counts = np.bincount(silo[is_first], minlength=len(partition.counts))
    return PersonGroups(
        records=partition.records[order],
        starts=np.append(np.flatnonzero(is_first), len(order)),
        silos=np.concatenate([[0], np.cumsum(counts)]),
    )


def groups_of(partition: Partition, task: Task, unit: PrivacyUnit) -> PersonGroups:
    """Returns the units of every silo: persons, or single records for the unit "record"."""
    return group_persons(partition, task.persons if unit.name == "person" else None)


def check_task_fits(task: Task, unit: PrivacyUnit) -> None:
    """Raises unless the data serves a unit within silos: persons are named, and no statistic was fitted on the data.

    A scale or components fitted on the silos' records are a release of their own, and no epsilon of a person counts it.

    Raises:
        DataError: The unit is "person", and no column names the person of every record.
        ParameterError: Components or a scale were fitted on the training records.
    """
    if not unit.is_within_silo:
        return
    if unit.name == "person" and task.persons is None:
        raise DataError("data.persons-unnamed", data=task.name)
    if task.fitted:
        raise ParameterError("data.unit-fitted", data=task.name, unit=unit.name)


def check_task_deployable(task: Task, unit: PrivacyUnit) -> None:
    """Raises unless the data names the silo of each record: one person who leaves would deal all others anew.

    Published records that are known by name are fixed, and may be dealt.

    Raises:
        DataError: A user's own data names no silos.
    """
    if task.silo is None and not task.public:
        raise DataError("data.silos-unnamed", data=task.name, unit=unit.noun)


def silos_per_person(partition: Partition, persons: Sequence[str]) -> int:
    """Returns the largest number of silos with training records of the same person."""
    owner = np.repeat(np.arange(len(partition.counts)), partition.counts)
    number = np.unique(np.asarray(persons), return_inverse=True)[1][partition.records]
    pairs = np.unique(np.stack([number, owner]), axis=1)
    return int(np.bincount(pairs[0]).max())
