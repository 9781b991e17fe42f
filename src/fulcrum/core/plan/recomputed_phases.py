"""The noise of a plan file whose membership changes, recomputed from stays, weights and multipliers of phases alone.

The computation is deliberately different from the planner's: sets of rounds in place of arrays, silos gathered by equal
stays, and exact sums (`math.fsum`).

>>> inverse_noise([2.0, 2.0], [0.25, 0.5], {0, 1}), inverse_noise([2.0, 2.0], [0.25, 0.5], {1})
(12.0, 4.0)
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.topology import SILO


def inverse_noise(lengths: Sequence[float], noise: Sequence[float], phases: Iterable[int]) -> float:
    """Returns the sum of L_p / N_p over some phases, the squared shift over kappa² w²."""
    return math.fsum(lengths[phase] / noise[phase] for phase in phases)


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
        rounds_of = {
            listed: {number for first, last, every in listed for number in range(first, last + 1, every)}
            for listed in set(stays)
        }
        present: list[set[int]] = [set() for _ in range(self._rounds + 1)]
        places = {listed: place for place, listed in enumerate(rounds_of)}
        for listed, rounds in rounds_of.items():
            for number in rounds:
                present[number].add(places[listed])
        self._pattern = [places[listed] for listed in stays]
        numbers: dict[frozenset[int], int] = {}
        of_round = [numbers.setdefault(frozenset(patterns), len(numbers)) for patterns in present[1:]]
        self.lengths = [float(of_round.count(phase)) for phase in range(len(numbers))]
        self._phases: dict[int, list[int]] = defaultdict(list)
        for patterns, phase in numbers.items():
            for pattern in patterns:
                self._phases[pattern].append(phase)
        self._multiplier = {node.name: node.phase_multipliers or [] for node in content.tiers[inner]}
        parts: dict[tuple[str, int], list[float]] = defaultdict(list)
        for region, pattern, value in zip(self._region, self._pattern, squared, strict=True):
            parts[region, pattern].append(value)
        gathered: dict[tuple[str, int], list[float]] = defaultdict(list)
        for (region, pattern), values in parts.items():
            for phase in self._phases[pattern]:
                gathered[region, phase].append(math.fsum(values))
        self._mass = {place: math.fsum(values) for place, values in gathered.items()}

    def _multipliers_of(self, index: int) -> list[float]:
        """Returns the multipliers of a silo in its phases."""
        drawn = self._multiplier[self._region[index]]
        return [drawn[phase] for phase in self._phases[self._pattern[index]]]

    def largest(self) -> list[float]:
        """Returns by silo the largest multiplier of its phases."""
        return [max(self._multipliers_of(index)) for index in range(len(self._squared))]

    def least(self) -> list[float]:
        """Returns by silo the least multiplier of its phases, the narrowest noise that the silo draws."""
        return [min(self._multipliers_of(index)) for index in range(len(self._squared))]

    def mean_variance(self) -> list[float]:
        """Returns by silo the variance of its noise in a sum, as the mean of all rounds."""
        mean: dict[tuple[str, int], float] = {}
        for region, pattern in set(zip(self._region, self._pattern, strict=True)):
            drawn = self._multiplier[region]
            squares = [self.lengths[phase] * drawn[phase] ** 2 for phase in self._phases[pattern]]
            mean[region, pattern] = math.fsum(squares) / self._rounds
        places = zip(self._region, self._pattern, strict=True)
        return [value * mean[place] for value, place in zip(self._squared, places, strict=True)]

    def concealing(self, tier: str, *, uniform: bool = False) -> list[float]:
        """Returns by silo the constant noise variance of all rounds with the same squared shift.

        Args:
            tier: The observer's tier.
            uniform: True for a multiplier of 1 in every phase, in place of the file's.
        """
        phases = range(len(self.lengths))
        drawn = {region: [1.0 for _ in phases] if uniform else values for region, values in self._multiplier.items()}
        if tier == SILO:
            own = {
                (region, pattern): inverse_noise(
                    self.lengths, [value**2 for value in drawn[region]], self._phases[pattern]
                )
                for region, pattern in set(zip(self._region, self._pattern, strict=True))
            }
            places = zip(self._region, self._pattern, strict=True)
            return [value * self._rounds / own[place] for value, place in zip(self._squared, places, strict=True)]
        node_of = dict(zip(self._region, self._path[tier], strict=True))
        parts: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in phases])
        for (region, phase), mass in self._mass.items():
            parts[node_of[region]][phase].append(mass * drawn[region][phase] ** 2)
        noise = {node: [math.fsum(values) for values in by_phase] for node, by_phase in parts.items()}
        places = zip(self._path[tier], self._pattern, strict=True)
        of_sum = {
            (node, pattern): inverse_noise(self.lengths, noise[node], self._phases[pattern])
            for node, pattern in set(places)
        }
        return [self._rounds / of_sum[place] for place in zip(self._path[tier], self._pattern, strict=True)]

    def mean_mass(self) -> float:
        """Returns the sum of the squared weights of a round's silos, as the mean of all rounds."""
        return math.fsum(self.lengths[phase] * mass for (_, phase), mass in self._mass.items()) / self._rounds
