"""The records of every silo: the coupled partition of the paper's experiments, or the data's own silo column.

In the coupled partition the share of the sensitive class at silo i mixes a part determined by the region with a random
part: p_i = 1/2 + reach (coupling s_r + (1 - coupling) u_i), s_r = 1 or -1 by turns, u_i uniform on [-1, 1]. At the
defaults p spans [0.173, 0.827], and the entropy of p is the paper's at every resolution.

>>> import numpy as np
>>> share = target_shares(np.repeat([0, 1], 500), seed=1)
>>> bool(abs(share - 0.5).max() <= 0.327), bool(share[:500].min() > share[500:].max())
(True, True)
"""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.topology import Topology
from fulcrum.errors import DataError, ParameterError, listing, suggestion
from fulcrum.simulation.data.tasks import Task

REACH = 0.327
COUPLING = 0.7

_NAMES_COMPARED = 10_000  # for a suggestion
_STREAM = 0x7061727473  # keeps these draws apart from every other use of the same seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partition:
    """The training records of every silo.

    Attributes:
        records: Indices into the task's training split, silo after silo; no record is held twice.
        starts: The position of every silo's first record.
        counts: The number of records of every silo.
        shares: The share of the sensitive class at every silo.
    """

    records: IntArray
    starts: IntArray
    counts: IntArray
    shares: FloatArray


def target_shares(region_of: IntArray, *, seed: int, coupling: float = COUPLING, reach: float = REACH) -> FloatArray:
    """Returns the share of the sensitive class that every silo is to hold."""
    random = np.random.default_rng([_STREAM, seed, 0]).uniform(-1, 1, len(region_of))
    return 0.5 + reach * (coupling * np.where(region_of % 2 == 0, 1.0, -1.0) + (1 - coupling) * random)


def coupled_partition(
    task: Task,
    federation: Topology,
    *,
    seed: int,
    records: float | None = None,
    coupling: float = COUPLING,
    reach: float = REACH,
) -> Partition:
    """Deals training records to silos without repetition, in the proportion of declared sizes.

    If records of a class are too few, all silos get proportionally fewer. Without classes records are dealt at random.
    If the data names persons, persons are dealt whole: sizes then count persons, and the class of a person is the class
    of the person's first record.

    Args:
        task: The records to deal.
        federation: The silos. Weights still follow the declared sizes.
        seed: Seed of the shares and of the deal.
        records: The mean number of records of a silo. Without a number: the task's own default, else the declared
            sizes.
        coupling: From 0 to 1: how far the silos of a region have the same share of the sensitive class.
        reach: The largest distance of this share from a half.
    """
    shares = target_shares(federation.innermost.parent_of, seed=seed, coupling=coupling, reach=reach)
    return partition_by_share(task, federation, shares, seed=seed, records=records)


def partition_by_share(
    task: Task, federation: Topology, shares: FloatArray, *, seed: int, records: float | None = None
) -> Partition:
    """Deals training records to silos as `coupled_partition` does, for given shares of the sensitive class.

    Args:
        task: The records to deal.
        federation: The silos.
        shares: The share of the sensitive class that every silo is to hold.
        seed: Seed of the deal.
        records: Mean records a silo.
    """
    if records is not None and not 1 <= records < np.inf:
        raise ParameterError("federation.records-range", least=1, records=records)
    mean = task.records if records is None else records
    if mean is None and not federation.sizes_known:
        raise DataError("partition.sizes-secret", federation=federation.name)
    sizes = federation.sizes if mean is None else federation.sizes * (mean / federation.sizes.mean())
    if not task.classes:
        shares = np.zeros(len(federation))  # without classes nothing is dealt unevenly
    sensitive, first_records = _sensitive(task), None
    if task.persons is not None:  # a person stays whole: records at two silos are clipped twice
        first_records, person_of = np.unique(task.persons, return_index=True, return_inverse=True)[1:]
        sensitive = sensitive[first_records]
    pools = [np.flatnonzero(~sensitive), np.flatnonzero(sensitive)]
    stream = np.random.default_rng([_STREAM, seed, 1])
    for pool in pools:
        stream.shuffle(pool)
    wanted = (float(((1 - shares) * sizes).sum()), float((shares * sizes).sum()))
    factor = min(1.0, *(len(pool) / want for pool, want in zip(pools, wanted, strict=True) if want))
    while True:
        counts = np.maximum(np.rint(sizes * factor), 1).astype(np.intp)
        of_sensitive = np.rint(counts * shares).astype(np.intp)
        short = of_sensitive.sum() > len(pools[1]) or (counts - of_sensitive).sum() > len(pools[0])
        if not short:
            break
        if (counts == 1).all():
            raise DataError("partition.records-few", data=task.name, records=len(task.labels_train), silos=len(counts))
        factor *= 0.99  # rounding needs a record more than the pool has
    units = _deal_records(pools, counts, of_sensitive)
    return units if first_records is None else _records_of_persons(units, person_of)


def _records_of_persons(persons: Partition, person_of: IntArray) -> Partition:
    """Returns the partition of the records of persons that were dealt to silos.

    Args:
        persons: The persons of every silo, in place of records.
        person_of: The person of every training record.
    """
    order = np.argsort(person_of, kind="stable")
    by_person = np.bincount(person_of)
    first = np.cumsum(by_person) - by_person
    amounts = by_person[persons.records]
    begin = np.cumsum(amounts) - amounts
    positions = np.repeat(first[persons.records] - begin, amounts) + np.arange(amounts.sum())
    counts = np.add.reduceat(amounts, persons.starts)
    return Partition(records=order[positions], starts=np.cumsum(counts) - counts, counts=counts, shares=persons.shares)


def check_silos_known(task: Task, federation: Topology) -> None:
    """Raises `DataError` for training or test records of a silo outside the federation."""
    if task.silo is None and task.silo_test is None:
        return
    silo_names = dict.fromkeys(federation.silo_names.tolist())
    for part, names in (("records", task.silo or ()), ("test records", task.silo_test or ())):
        unknown = next((name for name in names if name not in silo_names), None)
        if unknown is not None:
            compared = list(islice(silo_names, _NAMES_COMPARED))
            similar = suggestion(unknown, compared) or suggestion(unknown.casefold(), compared)
            raise DataError(
                "partition.silo-unknown",
                data=task.name,
                part=part,
                silo=unknown,
                federation=federation.name,
                suggestion=similar,
                known=listing(silo_names),
            )


def declared_partition(task: Task, federation: Topology) -> Partition:
    """Returns the partition that the data's own silo column names."""
    if task.silo is None:
        raise DataError("partition.silos-unnamed", data=task.name)
    check_silos_known(task, federation)
    index = {name: number for number, name in enumerate(federation.silo_names.tolist())}
    owner = np.array([index[name] for name in task.silo], dtype=np.intp)
    counts = np.bincount(owner, minlength=len(federation))
    # A silo without persons sends noise: its absence would reveal that the silo has no persons.
    if federation.persons is None and not counts.all():
        raise DataError("partition.silo-empty", silo=federation.silo_name(int(np.argmin(counts))), data=task.name)
    sensitive = _sensitive(task).astype(float)
    return Partition(
        records=np.argsort(owner, kind="stable"),
        starts=np.cumsum(counts) - counts,
        counts=counts,
        shares=np.bincount(owner, weights=sensitive, minlength=len(federation)) / np.maximum(counts, 1),
    )


def _sensitive(task: Task) -> BoolArray:
    """Returns a mask of the training records of a sensitive class."""
    if not task.classes:
        return np.zeros(len(task.labels_train), dtype=bool)
    return np.isin(task.labels_train, task.sensitive)


def _deal_records(pools: list[IntArray], counts: IntArray, of_sensitive: IntArray) -> Partition:
    starts = np.cumsum(counts) - counts
    records = np.empty(counts.sum(), dtype=np.intp)
    others = counts - of_sensitive
    for pool, amounts, offset in ((pools[1], of_sensitive, np.zeros_like(starts)), (pools[0], others, of_sensitive)):
        begin = np.cumsum(amounts) - amounts
        within = np.arange(amounts.sum()) - np.repeat(begin, amounts)
        records[np.repeat(starts + offset, amounts) + within] = pool[: amounts.sum()]
    return Partition(records=records, starts=starts, counts=counts, shares=of_sensitive / counts)
