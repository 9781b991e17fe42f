"""The noise of a plan file whose membership changes, recomputed from stays, weights and multipliers of phases alone.

The computation is deliberately different from the planner's: round after round in place of slices of arrays, silos
gathered by equal stays, and exact sums (`math.fsum`).

>>> inverse_noise([2.0, 2.0], [0.25, 0.5], {0, 1}), inverse_noise([2.0, 2.0], [0.25, 0.5], {1})
(12.0, 4.0)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.topology import SILO


def inverse_noise(lengths: Sequence[float], noise: Sequence[float], phases: Iterable[int]) -> float:
    """Returns the sum of L_p / N_p over some phases, the squared shift over kappa² w²; infinite without noise."""
    try:
        return math.fsum(lengths[phase] / noise[phase] if noise[phase] else math.inf for phase in phases)
    except OverflowError:  # beyond double precision, where a single quotient would be infinite
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
        self._phases = [[phase for phase, there in enumerate(counts) if there[place]] for place in places.values()]
        self._multiplier = {node.name: node.phase_multipliers or [] for node in content.tiers[inner]}
        parts: dict[tuple[str, int], list[float]] = defaultdict(list)
        for region, pattern, value in zip(self._region, self._pattern, squared, strict=True):
            parts[region, pattern].append(value)
        self._parts = {place: sorted(values, reverse=True) for place, values in parts.items()}

    def roster_sizes(self) -> set[tuple[str, int]]:
        """Returns the regions, each with the numbers of its silos in any round."""
        counts: Counter[tuple[str, int]] = Counter()
        for (region, pattern), values in self._parts.items():
            for phase in self._phases[pattern]:
                counts[region, phase] += len(values)
        return {(region, size) for (region, _), size in counts.items()}

    def _remaining(self, excluded: int) -> tuple[dict[tuple[str, int], float], dict[tuple[str, int], float]]:
        """Returns by region and phase the squared weights that a coalition leaves, and the largest left weight.

        The coalition is of the `excluded` silos of the phase's roster with the largest weights. All silos of a region
        draw with one multiplier in a phase, so the noise of these silos is the largest too.
        """
        tops: dict[tuple[str, int], list[float]] = defaultdict(list)
        rests: dict[tuple[str, int], list[float]] = defaultdict(list)
        for (region, pattern), values in self._parts.items():
            largest, rest = values[: excluded + 1], math.fsum(values[excluded + 1 :])
            for phase in self._phases[pattern]:
                tops[region, phase] += largest
                rests[region, phase].append(rest)
        ordered = {place: sorted(values, reverse=True)[excluded:] for place, values in tops.items()}
        left = {place: math.fsum([*values, *rests[place]]) for place, values in ordered.items()}
        return left, {place: values[0] if values else 0.0 for place, values in ordered.items()}

    def _of_multipliers(self, choose: Callable[[Iterable[float]], float]) -> list[float]:
        """Returns by silo a choice among the multipliers of its phases."""
        places = list(zip(self._region, self._pattern, strict=True))
        chosen = {
            (region, pattern): choose(self._multiplier[region][phase] for phase in self._phases[pattern])
            for region, pattern in set(places)
        }
        return [chosen[place] for place in places]

    def largest(self) -> list[float]:
        """Returns by silo the largest multiplier of its phases."""
        return self._of_multipliers(max)

    def least(self) -> list[float]:
        """Returns by silo the least multiplier of its phases, the narrowest noise that the silo draws."""
        return self._of_multipliers(min)

    def mean_variance(self) -> list[float]:
        """Returns by silo the variance of its noise in a sum, as the mean of all rounds."""
        mean: dict[tuple[str, int], float] = {}
        for region, pattern in set(zip(self._region, self._pattern, strict=True)):
            drawn = self._multiplier[region]
            squares = [self.lengths[phase] * drawn[phase] ** 2 for phase in self._phases[pattern]]
            mean[region, pattern] = math.fsum(squares) / self._rounds
        places = zip(self._region, self._pattern, strict=True)
        return [value * mean[place] for value, place in zip(self._squared, places, strict=True)]

    def concealing(self, tier: str, excluded: int = 0, *, uniform: bool = False) -> list[float]:
        """Returns by silo the constant noise variance of all rounds with the same squared shift.

        Args:
            tier: The tier whose sums the observer sees; "silo" for an observer of single updates.
            excluded: The silos of every region whose noise does not count, in every phase the worst of the roster.
            uniform: True for a multiplier of 1 in every phase, in place of the file's.
        """
        phases = range(len(self.lengths))
        drawn = {
            region: [1.0 if uniform else value**2 for value in values] for region, values in self._multiplier.items()
        }
        places = list(zip(self._region, self._pattern, self._squared, strict=True))
        if tier == SILO:
            own = {
                (region, pattern): inverse_noise(self.lengths, drawn[region], self._phases[pattern])
                for region, pattern, _ in set(places)
            }
            return [value * self._rounds / own[region, pattern] for region, pattern, value in places]
        node_of = dict(zip(self._region, self._path[tier], strict=True))
        left, edge = self._remaining(excluded)
        parts: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in phases])
        for (region, phase), mass in left.items():
            parts[node_of[region]][phase].append(mass * drawn[region][phase])
        noise = {node: [math.fsum(values) for values in by_phase] for node, by_phase in parts.items()}
        # A silo of the coalition's weight is not in its own coalition: the next silo takes its place in the phase.
        least = {
            (region, pattern): min(edge[region, phase] for phase in self._phases[pattern])
            for region, pattern in self._parts
        }
        keys = [
            (region, pattern, value if value > least[region, pattern] else 0.0) for region, pattern, value in places
        ]
        inverse = {}
        for region, pattern, value in set(keys):
            rounds, total = self._phases[pattern], noise[node_of[region]]
            extra = [drawn[region][phase] * max(value - edge[region, phase], 0.0) for phase in rounds]
            remaining = [total[phase] + more for phase, more in zip(rounds, extra, strict=True)]
            inverse[region, pattern, value] = inverse_noise(
                [self.lengths[phase] for phase in rounds], remaining, range(len(rounds))
            )
        return [self._rounds / inverse[key] for key in keys]

    def mean_mass(self) -> float:
        """Returns the sum of the squared weights of a round's silos, as the mean of all rounds."""
        left, _ = self._remaining(0)
        return math.fsum(self.lengths[phase] * mass for (_, phase), mass in left.items()) / self._rounds
