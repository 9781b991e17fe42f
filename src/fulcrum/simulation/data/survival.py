"""Survival in discrete time: a record for every interval that a person enters, with the event as the class.

>>> periods = person_periods(np.array([0.5, 2.0, 9.0]), np.array([0, 1, 1]), ends=(1.0, 2.0, 3.0))
>>> periods.rows.tolist(), periods.intervals.tolist(), periods.labels.tolist()
([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2], [0, 0, 1, 0, 0, 0])

A two-class head on these records is a model of hazards: its score is the log-odds of the event in an interval, given
that the interval is entered, and the interval has an intercept of its own. All intervals of a person are records of one
person, so the clip of a person bounds them together. Unlike the partial likelihood of Cox, the loss is a sum over
persons, as a guarantee for persons needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PersonPeriods:
    """The records of persons by interval.

    Attributes:
        rows: The person of every record, as a row of the table of persons.
        intervals: The interval of every record, from 0.
        labels: 1 if the person has the event in the interval, else 0.
    """

    rows: IntArray
    intervals: IntArray
    labels: IntArray


def person_periods(times: FloatArray, events: IntArray, *, ends: Sequence[float]) -> PersonPeriods:
    """Returns a record for every interval that a person enters; an interval ends with its end included.

    A person whose observation ends within an interval counts as event-free in the interval, so every person has at
    least one record. An event after the last end is not seen: the person has all intervals without the event.

    Args:
        times: The time of the event or of the end of observation, by person.
        events: 1 for an event, 0 for the end of observation.
        ends: The ends of the intervals, ascending; the first interval begins at 0.
    """
    starts, last = np.array([0.0, *ends[:-1]]), np.asarray(ends, dtype=np.float64)
    entered = times[:, None] > starts
    entered[:, 0] = True
    ended = (times[:, None] <= last) & (np.asarray(events)[:, None] == 1)
    rows, intervals = np.nonzero(entered)
    return PersonPeriods(rows=rows, intervals=intervals, labels=ended[rows, intervals].astype(np.intp))


def with_intervals(features: FloatArray, intervals: IntArray, *, count: int) -> FloatArray:
    """Returns features with a column of 0 and 1 for every interval after the first.

    Args:
        features: By record and feature.
        intervals: The interval of every record, from 0.
        count: The number of intervals.
    """
    columns = np.eye(count)[np.asarray(intervals, dtype=np.intp)][:, 1:]
    return np.concatenate([features, columns], axis=1)
