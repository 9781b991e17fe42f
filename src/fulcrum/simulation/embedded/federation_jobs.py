"""A federation to train: the noise of every variant, the job of a seed, and the results of the job.

>>> from fulcrum.planning.planner import plan
>>> brca = plan("tcga-brca", rounds=10, epsilon=1.0)
>>> Variants.from_plans([brca, brca]).distinct()[1].tolist()
[0, 0]
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.mechanism import batch_factors, clip_factor, noise_norm
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.rosters import Rosters
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.plan import Plan
from fulcrum.rules.server_rule import ServerRule
from fulcrum.rules.sum_rule import SumRule
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variants:
    """The noise of every variant on a federation; all else is the same for every variant.

    Attributes:
        silo_name: The name of a silo by index, for messages.
        weights: Aggregation weight by silo and variant.
        region_of: Region by silo.
        regions: Number of regions.
        rounds: T.
        noise_multiplier: By silo and variant.
        aggregator_noise_multiplier: By region and variant, on the regional sum; zero if silos inject.
        clip_norm: By variant; infinite without a clip.
        clip_share: By variant, the share of the clip norm at which updates are clipped before scaling up.
        rules: Server rule by variant.
        largest_sums: By silo and variant, the largest norm of a silo's sum of clipped gradients, in clip norms; None
            for the unit "silo".
        unit: The unit of privacy, the same for every variant. Clip norm and clip share belong to one unit.
        rosters: The roster of every round, where membership changes; else None.
        phase_multiplier: Where membership changes, the noise multiplier by phase, region and variant.
    """

    silo_name: Callable[[int], str]
    weights: FloatArray
    region_of: IntArray
    regions: int
    rounds: int
    noise_multiplier: FloatArray
    aggregator_noise_multiplier: FloatArray
    clip_norm: FloatArray
    clip_share: FloatArray
    rules: tuple[ServerRule, ...]
    largest_sums: FloatArray | None = None
    unit: PrivacyUnit = SILO_UNIT
    rosters: Rosters | None = None
    phase_multiplier: FloatArray | None = None

    @classmethod
    def from_plans(cls, plans: Sequence[Plan]) -> "Variants":
        """Returns the variants of several plans for the same federation."""
        first = plans[0]
        others = [plan for plan in plans if plan.federation is not first.federation]
        foreign = any(plan.federation.digest != first.federation.digest for plan in others)
        if foreign or any(plan.rounds != first.rounds for plan in plans):
            raise ParameterError("training.plans-differ")
        names = {plan.unit.name for plan in plans}
        if len(names) > 1:
            raise ParameterError("training.units-differ", units=listing(sorted(names)))
        federation, regions = first.federation, len(first.federation.innermost.nodes)
        injected = [plan.aggregator_noise_multiplier for plan in plans]
        by_phase = [plan.phase_multiplier for plan in plans if plan.phase_multiplier is not None]
        return cls(
            silo_name=federation.silo_name,
            weights=np.stack([plan.weights for plan in plans], axis=1),
            region_of=federation.innermost.parent_of,
            regions=regions,
            rounds=first.rounds,
            noise_multiplier=np.stack([plan.noise_multiplier for plan in plans], axis=1),
            aggregator_noise_multiplier=np.stack([np.zeros(regions) if n is None else n for n in injected], axis=1),
            clip_norm=np.array([plan.clip_norm for plan in plans]),
            clip_share=np.array([plan.clip_share for plan in plans]),
            rules=tuple(plan.server_rule for plan in plans),
            largest_sums=np.stack([p.largest_sums for p in plans], axis=1) if first.unit.is_within_silo else None,
            unit=first.unit,
            rosters=federation.rosters,
            phase_multiplier=np.stack(by_phase, axis=2) if by_phase else None,
        )

    @property
    def noise_norm(self) -> FloatArray:
        """The unit of noise multipliers, by variant: the clip norm, or 0 without a clip."""
        return noise_norm(self.clip_norm)

    def of_round(self, silos: slice, round_number: int) -> tuple[FloatArray, FloatArray]:
        """Returns weights and noise multipliers by silo and variant in a round; weights of absent silos are 0."""
        if self.rosters is None or self.phase_multiplier is None:
            return self.weights[silos], self.noise_multiplier[silos]
        phase = self.rosters.phase(round_number)
        there = self.rosters.present[phase, silos][:, None]
        return self.weights[silos] * there, self.phase_multiplier[phase][self.region_of[silos]]

    def factors(self, sizes: FloatArray, silos: slice, round_number: int) -> tuple[FloatArray, FloatArray]:
        """Returns by silo and variant the factors of updates with these norms, and of normal draws, in a round's sums.

        For units within silos an update is a sum of clipped gradients, and is scaled down to the largest sum.
        """
        weight, noise_multiplier = self.of_round(silos, round_number)
        signal, noise = batch_factors(
            sizes,
            weight=weight,
            noise_multiplier=noise_multiplier,
            clip_norm=self.clip_norm,
            clip_share=self.clip_share,
        )
        if self.largest_sums is not None:
            signal = self.weights[silos] * clip_factor(sizes, self.largest_sums[silos] * self.clip_norm)
        return signal, noise

    def regions_of(self, task: Task) -> dict[str, int]:
        """Returns the number of the region by silo, if the task names the silos of test records."""
        if task.silo_test is None:
            return {}
        return {self.silo_name(silo): int(region) for silo, region in enumerate(self.region_of)}

    def without_privacy(self) -> "Variants":
        """Returns a single variant on the same federation with neither clip nor noise: the reference."""
        return replace(
            self,
            weights=self.weights[:, :1],
            noise_multiplier=np.zeros((len(self.weights), 1)),
            aggregator_noise_multiplier=np.zeros((self.regions, 1)),
            clip_norm=np.array([np.inf]),
            clip_share=np.ones(1),
            rules=(SumRule(),),
            largest_sums=None if self.largest_sums is None else self.largest_sums[:, :1],
            phase_multiplier=None if self.phase_multiplier is None else np.zeros_like(self.phase_multiplier[..., :1]),
        )

    def with_reference(self) -> "Variants":
        """Returns these variants, followed by the variant without privacy."""
        return self.concatenate(self.without_privacy())

    def concatenate(self, others: "Variants") -> "Variants":
        """Returns these variants, followed by further variants on the same federation."""
        injected = [self.aggregator_noise_multiplier, others.aggregator_noise_multiplier]
        largest = [part for part in (self.largest_sums, others.largest_sums) if part is not None]
        by_phase = [part for part in (self.phase_multiplier, others.phase_multiplier) if part is not None]
        return replace(
            self,
            weights=np.hstack([self.weights, others.weights]),
            noise_multiplier=np.hstack([self.noise_multiplier, others.noise_multiplier]),
            aggregator_noise_multiplier=np.hstack(injected),
            clip_norm=np.append(self.clip_norm, others.clip_norm),
            clip_share=np.append(self.clip_share, others.clip_share),
            rules=(*self.rules, *others.rules),
            largest_sums=np.hstack(largest) if largest else None,
            phase_multiplier=np.concatenate(by_phase, axis=2) if by_phase else None,
        )

    def distinct(self) -> tuple["Variants", IntArray]:
        """Returns the variants without repetition, in order, and the index of every variant in the result."""
        parts = [self.clip_norm, self.clip_share, self.weights, self.noise_multiplier, self.aggregator_noise_multiplier]
        parts += [] if self.largest_sums is None else [self.largest_sums]
        parts += [] if self.phase_multiplier is None else [self.phase_multiplier.reshape(-1, len(self.clip_norm))]
        columns = np.vstack(parts)
        number: dict[tuple[bytes, bytes], int] = {}
        keys = [(column.tobytes(), rule.key) for column, rule in zip(columns.T, self.rules, strict=True)]
        place = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.intp)
        first = np.unique(place, return_index=True)[1]
        chosen = replace(
            self,
            weights=self.weights[:, first],
            noise_multiplier=self.noise_multiplier[:, first],
            aggregator_noise_multiplier=self.aggregator_noise_multiplier[:, first],
            clip_norm=self.clip_norm[first],
            clip_share=self.clip_share[first],
            rules=tuple(self.rules[variant] for variant in first.tolist()),
            largest_sums=None if self.largest_sums is None else self.largest_sums[:, first],
            phase_multiplier=None if self.phase_multiplier is None else self.phase_multiplier[..., first],
        )
        return chosen, place


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A federation to train.

    Attributes:
        seed: The seed of batches and noise.
        partition: The training records of every silo.
        variants: The plans to train side by side, with the same batches and normal draws.
    """

    seed: int
    partition: Partition
    variants: Variants


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FederationRun:
    """The results of a job.

    Attributes:
        models: The final global models, (features + 1, classes, variants).
        accuracy: The metric on the test split after every round, (rounds, variants).
        recall: The share of correctly named test records of every class, for the final models, (classes, variants); NaN
            for a class without test records; (0, variants) for a task without classes.
        by_silo: The metric of the final models on every silo's own test records, (silos, variants), in the order of
            `metrics.tested_silos`; (0, variants) if the data does not name the silos of test records.
        by_region: The metric of the final models on the test records of every region's silos, (regions, variants), for
            regions with test records; (0, variants) if the data does not name the silos of test records.
        regional_sums: The sums seen by an observer above the regions, (rounds, regions, features + 1, classes,
            variants), or None if not requested.
    """

    models: FloatArray
    accuracy: FloatArray
    recall: FloatArray
    by_silo: FloatArray
    by_region: FloatArray
    regional_sums: FloatArray | None

    def by_variant(self, place: IntArray) -> "FederationRun":
        """Returns the run with a result for every variant, from a run of distinct variants.

        `place` has, for every variant, the index of its equal among the distinct variants (`Variants.distinct`).
        """
        if self.models.shape[-1] == len(place):
            return self
        return FederationRun(
            models=self.models[..., place],
            accuracy=self.accuracy[..., place],
            recall=self.recall[..., place],
            by_silo=self.by_silo[..., place],
            by_region=self.by_region[..., place],
            regional_sums=None if self.regional_sums is None else self.regional_sums[..., place],
        )
