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
        gathered: dict[tuple[str, int], list[float]] = defaultdict(list)
        for (region, pattern), values in parts.items():
            for phase in self._phases[pattern]:
                gathered[region, phase].append(math.fsum(values))
        self._mass = {place: math.fsum(values) for place, values in gathered.items()}

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
