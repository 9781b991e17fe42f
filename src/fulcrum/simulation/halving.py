"""Successive halving: many candidates under few seeds, then the best third under three times as many seeds.

>>> strength = {"low": 0.1, "middle": 0.5, "high": 0.9, "highest": 1.0}
>>> def train(candidates, seeds):
...     for candidate in candidates:
...         yield {candidate: [strength[candidate]] * len(seeds)}
>>> halving = halve(list(strength), train, seeds=range(6), always=["low"])
>>> halving.finalists, halving.seeds, halving.values["high"].tolist()
(('low', 'highest', 'high', 'middle'), (0, 1, 2, 3, 4, 5), [0.9, 0.9, 0.9, 0.9, 0.9, 0.9])

A stage trains its candidates under the new seeds alone, so no run is repeated. Ctrl-C ends the search: the result is
then that of the last complete stage, or of the trained part of the first stage.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import TrainedVariants, train_variants

KEPT_SHARE = 3
"""After a stage one candidate in `KEPT_SHARE` stays, and the next stage has `KEPT_SHARE` times as many seeds."""

LEAST_KEPT = 3
"""The least number of candidates of a group in the last stage."""

LEAST_SEEDS = 2
"""The least number of seeds of a stage: a single seed has no standard error."""

Candidate = TypeVar("Candidate", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halving(Generic[Candidate]):
    """The result of a search.

    Attributes:
        finalists: The candidates of the last complete stage; those that stay always come first.
        seeds: The seeds of the last complete stage.
        values: By candidate, the value under every seed at which the candidate was trained, in the order of the seeds;
            a candidate that left the search early has fewer values.
        stopped: True if Ctrl-C ended the search.
    """

    finalists: tuple[Candidate, ...]
    seeds: tuple[int, ...]
    values: Mapping[Candidate, FloatArray] = field(compare=False)
    stopped: bool = False

    def final_values(self, candidate: Candidate) -> FloatArray:
        """Returns the values of a finalist under the seeds of the last complete stage."""
        return self.values[candidate][: len(self.seeds)]

    def best(self, candidates: Iterable[Candidate] | None = None) -> Candidate:
        """Returns the finalist with the highest mean, of some candidates or of all; the first of equals."""
        among = self.finalists if candidates is None else candidates
        return max(among, key=lambda candidate: _mean_value(self.final_values(candidate)))


def stage_seeds(seeds: int) -> list[int]:
    """Returns the number of seeds of every stage.

    >>> stage_seeds(20), stage_seeds(5), stage_seeds(1)
    ([3, 7, 20], [2, 5], [1])
    """
    counts = [seeds]
    while (fewer := math.ceil(counts[0] / KEPT_SHARE)) >= LEAST_SEEDS and fewer < counts[0]:
        counts.insert(0, fewer)
    return counts


def halve(
    candidates: Sequence[Candidate],
    train: Callable[[Sequence[Candidate], Sequence[int]], Iterable[Mapping[Candidate, Sequence[float] | FloatArray]]],
    *,
    seeds: Sequence[int],
    always: Sequence[Candidate] = (),
    group_of: Callable[[Candidate], Any] = lambda _: None,
    on_try: Callable[[int, int], None] | None = None,
) -> Halving[Candidate]:
    """Returns the result of successive halving.

    Args:
        candidates: The candidates, all different.
        train: Trains candidates under some seeds; yields values by seed of a few candidates at a time.
        seeds: The seeds of the last stage; an earlier stage has the first of these seeds.
        always: Candidates that stay to the end; the first stage trains these candidates first.
        group_of: The group of a candidate; every group keeps its own best candidates.
        on_try: Called with the number of trained runs, and the total.

    Raises:
        KeyboardInterrupt: The search was stopped before every group had a trained candidate.
    """
    staying = list(dict.fromkeys(always))
    rest = [candidate for candidate in dict.fromkeys(candidates) if candidate not in set(staying)]
    groups = {group_of(candidate) for candidate in (*staying, *rest)}
    counts = stage_seeds(len(seeds))
    total, done = _runs(staying, rest, counts, group_of), 0
    values: dict[Candidate, FloatArray] = {}
    finalists, begun = [*staying, *rest], 0
    for stage, count in enumerate(counts):
        fresh = list(seeds[begun:count])
        try:
            for part in (staying, rest):
                for trained in train(part, fresh) if part else ():
                    for candidate, fresh_values in trained.items():
                        earlier = values.get(candidate, np.empty(0))[:begun]
                        values[candidate] = np.append(earlier, np.asarray(fresh_values, dtype=np.float64))
                    done += len(trained) * len(fresh)
                    if on_try is not None:
                        on_try(done, total)
        except KeyboardInterrupt:
            if stage == 0:
                begun, finalists = count, [candidate for candidate in finalists if candidate in values]
                if {group_of(candidate) for candidate in finalists} != groups or not set(staying) <= set(values):
                    raise
            return Halving(finalists=tuple(finalists), seeds=tuple(seeds[:begun]), values=values, stopped=True)
        finalists, begun = [*staying, *rest], count
        if stage < len(counts) - 1:
            rest = _best_of_groups(rest, values, group_of)
    return Halving(finalists=tuple(finalists), seeds=tuple(seeds), values=values)


def _best_of_groups(
    candidates: Sequence[Candidate], values: Mapping[Candidate, FloatArray], group_of: Callable[[Candidate], Any]
) -> list[Candidate]:
    """Returns the best third of every group, in order of the mean value."""
    by_group: dict[Any, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda candidate: -_mean_value(values[candidate])):
        by_group.setdefault(group_of(candidate), []).append(candidate)
    return [candidate for group in by_group.values() for candidate in group[: _count_kept(len(group))]]


def _mean_value(values: FloatArray) -> float:
    """Returns the mean; a candidate without a metric under some seed comes last."""
    mean = float(values.mean())
    return -math.inf if math.isnan(mean) else mean


def _count_kept(count: int) -> int:
    return max(LEAST_KEPT, math.ceil(count / KEPT_SHARE))


def _runs(
    staying: Sequence[Candidate],
    rest: Sequence[Candidate],
    counts: Sequence[int],
    group_of: Callable[[Candidate], Any],
) -> int:
    """Returns the number of runs of a whole search: candidates times new seeds, over all stages."""
    sizes: dict[Any, int] = {}
    for candidate in rest:
        sizes[group_of(candidate)] = sizes.get(group_of(candidate), 0) + 1
    runs, begun = 0, 0
    for count in counts:
        runs += (len(staying) + sum(sizes.values())) * (count - begun)
        begun, sizes = count, {group: min(size, _count_kept(size)) for group, size in sizes.items()}
    return runs


def train_in_groups(
    candidates: Sequence[Candidate],
    seeds: Sequence[int],
    *,
    alike: Callable[[Candidate], Hashable],
    plan_of: Callable[[Candidate, int], Plan],
    task_of: Callable[[Candidate], Task],
    training_of: Callable[[Candidate], LocalTraining],
    **how: Any,
) -> Iterator[tuple[list[Candidate], list[list[Plan]], TrainedVariants]]:
    """Trains candidates, those with the same rounds, data and local training together; yields each group's results.

    Args:
        candidates: The candidates.
        seeds: The seeds of every candidate.
        alike: A key that is equal for candidates of one group.
        plan_of: The plan of a candidate under a seed.
        task_of: The data of a candidate.
        training_of: The local training of a candidate.
        **how: Further arguments of `train_variants`.

    Yields:
        The candidates of a group, their plans by seed, and their results.
    """
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(alike(candidate), []).append(candidate)
    for members in groups.values():
        plans = [[plan_of(candidate, seed) for candidate in members] for seed in seeds]
        first = members[0]
        yield members, plans, train_variants(plans, task_of(first), seeds=seeds, training=training_of(first), **how)
