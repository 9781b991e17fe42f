"""The noise of a plan file whose membership changes, recomputed from stays, weights and multipliers of phases alone.

The computation is deliberately different from the planner's: round after round in place of slices of arrays, silos
gathered by equal stays, and exact sums (`math.fsum`).

>>> total_of(quotients([2.0, 2.0], [0.25, 0.5])), total_of(quotients([2.0], [0.0]))
(12.0, inf)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat

from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.topology import SILO


def quotients(lengths: Iterable[float], noise: Iterable[float]) -> Iterator[float]:
    """Yields L_p / N_p by phase, the squared shift over kappa² w²; infinite without noise."""
    return (length / value if value else math.inf for length, value in zip(lengths, noise, strict=True))


def total_of(parts: Iterable[float]) -> float:
    """Returns an exact sum, or infinity beyond double precision, where a single part would be infinite."""
    try:
        return math.fsum(parts)
    except OverflowError:
        return math.inf


class RecomputedPhases:
    """The noise of every phase of a plan file.

    Args:
        content: A plan file with stays and with multipliers by phase.
        squared: By silo, the squared weight.
        path: By tier, the node whose sum holds the silo.
    """

    def __init__(self, content: PlanFile, squared: list[float], path: Mapping[str, list[str]]) -> None:
        inner = content.federation.tiers[0]
        self._squared, self._path, self._region = squared, path, path[inner]
        self._rounds = content.settings.rounds
        stays = [tuple(entry.rounds or ()) for entry in content.silos]
        places = {listed: place for place, listed in enumerate(dict.fromkeys(stays))}
        # A byte for each round: a file of some kilobytes can list 10^8 rounds of silos, and a set takes 60 bytes each.
        present = [bytearray(self._rounds) for _ in places]
        for listed, place in places.items():
            for first, last, every in listed:
                for number in range(first, last + 1, every):
                    present[place][number - 1] = 1
        self._pattern = [places[listed] for listed in stays]
        # A Counter keeps the order of first rounds, and one pass counts all phases.
        counts = Counter(map(bytes, zip(*present, strict=True)))
        self.lengths = [float(count) for count in counts.values()]
        # By stays, a byte for each phase. A plan may have 10^8 silos times phases: loops over them run in `compress`.
        self._there = [bytes(row) for row in zip(*counts, strict=True)]
        self._multiplier = {node.name: node.phase_multipliers or [] for node in content.tiers[inner]}
        parts: dict[tuple[str, int], list[float]] = defaultdict(list)
        for region, pattern, value in zip(self._region, self._pattern, squared, strict=True):
            parts[region, pattern].append(value)
        self._parts = {place: sorted(values, reverse=True) for place, values in parts.items()}
        self._left: dict[int, tuple[dict[str, list[float]], dict[str, list[float]]]] = {}

    def _of_rosters(self, entries: Sequence[tuple[float, int]]) -> Iterator[Iterator[float]]:
        """Yields by phase the values whose silos are in the roster; an entry is a value and the number of its stays."""
        values = [value for value, _ in entries]
        rosters = zip(*(self._there[pattern] for _, pattern in entries), strict=True)
        return (compress(values, roster) for roster in rosters)

    def roster_sizes(self) -> set[tuple[str, int]]:
        """Returns the regions, each with the numbers of its silos in any round."""
        counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (region, pattern), values in self._parts.items():
            counts[region].append((len(values), pattern))
        return {
            (region, int(math.fsum(sizes))) for region, listed in counts.items() for sizes in self._of_rosters(listed)
        }

    def _remaining(self, excluded: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """Returns by region and phase the squared weights that a coalition leaves, and the largest left weight.

        The coalition is of the `excluded` silos of the phase's roster with the largest weights. All silos of a region
        draw with one multiplier in a phase, so the noise of these silos is the largest too.
        """
        if excluded in self._left:
            return self._left[excluded]
        tops: dict[str, list[tuple[float, int]]] = defaultdict(list)
        rests: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for (region, pattern), values in self._parts.items():
            tops[region] += ((value, pattern) for value in values[: excluded + 1])
            if len(values) > excluded + 1:
                rests[region].append((math.fsum(values[excluded + 1 :]), pattern))
        left: dict[str, list[float]] = defaultdict(list)
        edge: dict[str, list[float]] = defaultdict(list)
        for region, listed in tops.items():
            others = self._of_rosters(rests[region]) if rests[region] else repeat(())
            for roster, rest in zip(self._of_rosters(sorted(listed, reverse=True)), others, strict=False):
                remaining = list(islice(roster, excluded, None))
                left[region].append(math.fsum([*remaining, *rest]))
                edge[region].append(remaining[0] if remaining else 0.0)
        self._left[excluded] = left, edge
        return left, edge

    def _of_multipliers(self, choose: Callable[[Iterable[float]], float]) -> list[float]:
        """Returns by silo a choice among the multipliers of its phases."""
        chosen = {
            (region, pattern): choose(compress(self._multiplier[region], self._there[pattern]))
            for region, pattern in self._parts
        }
        return [chosen[place] for place in zip(self._region, self._pattern, strict=True)]

    def largest(self) -> list[float]:
        """Returns by silo the largest multiplier of its phases."""
        return self._of_multipliers(max)

    def least(self) -> list[float]:
        """Returns by silo the least multiplier of its phases, the narrowest noise that the silo draws."""
        return self._of_multipliers(min)

    def mean_variance(self) -> list[float]:
        """Returns by silo the variance of its noise in a sum, as the mean of all rounds."""
        squares = {
            region: [length * value**2 for length, value in zip(self.lengths, drawn, strict=True)]
            for region, drawn in self._multiplier.items()
        }
        mean = {
            (region, pattern): math.fsum(compress(squares[region], self._there[pattern])) / self._rounds
            for region, pattern in self._parts
        }
        places = zip(self._region, self._pattern, strict=True)
        return [value * mean[place] for value, place in zip(self._squared, places, strict=True)]

    def concealing(self, tier: str, excluded: int = 0, *, uniform: bool = False) -> list[float]:
        """Returns by silo the constant noise variance of all rounds with the same squared shift.

        Args:
            tier: The tier whose sums the observer sees; "silo" for an observer of single updates.
            excluded: The silos of every region whose noise does not count, in every phase the worst of the roster.
            uniform: True for a multiplier of 1 in every phase, in place of the file's.
        """
        drawn = {
            region: [1.0 if uniform else value**2 for value in values] for region, values in self._multiplier.items()
        }
        places = list(zip(self._region, self._pattern, self._squared, strict=True))
        if tier == SILO:
            apart = {region: list(quotients(self.lengths, values)) for region, values in drawn.items()}
            own = {place: total_of(compress(apart[place[0]], self._there[place[1]])) for place in self._parts}
            return [value * self._rounds / own[region, pattern] for region, pattern, value in places]
        node_of = dict(zip(self._region, self._path[tier], strict=True))
        left, edge = self._remaining(excluded)
        parts: dict[str, list[list[float]]] = defaultdict(list)
        for region, masses in left.items():
            parts[node_of[region]].append([mass * own for mass, own in zip(masses, drawn[region], strict=True)])
        noise = {node: list(map(math.fsum, zip(*by_region, strict=True))) for node, by_region in parts.items()}
        shifts = {node: list(quotients(self.lengths, values)) for node, values in noise.items()}
        # A silo of the coalition's weight is not in its own coalition: the next silo takes its place in the phase.
        least = {place: min(compress(edge[place[0]], self._there[place[1]])) for place in self._parts}
        keys = [
            (region, pattern, value if value > least[region, pattern] else 0.0) for region, pattern, value in places
        ]
        inverse = {}
        for region, pattern, value in set(keys):
            there, node = self._there[pattern], node_of[region]
            parts_of_shift: Iterable[float] = compress(shifts[node], there)
            if value:
                phases = compress(zip(noise[node], drawn[region], edge[region], strict=True), there)
                remaining = [total + own * max(value - next_, 0.0) for total, own, next_ in phases]
                parts_of_shift = quotients(compress(self.lengths, there), remaining)
            inverse[region, pattern, value] = total_of(parts_of_shift)
        return [self._rounds / inverse[key] for key in keys]

    def mean_mass(self) -> float:
        """Returns the sum of the squared weights of a round's silos, as the mean of all rounds."""
        left, _ = self._remaining(0)
        masses = zip(*left.values(), strict=True)
        return (
            math.fsum(length * math.fsum(mass) for length, mass in zip(self.lengths, masses, strict=True))
            / self._rounds
        )
