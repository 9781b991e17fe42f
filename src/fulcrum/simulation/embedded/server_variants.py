"""The servers of several variants at once, with every region present in every round, for the engines in process.

>>> rule = SumRule()
>>> servers = Servers([rule, rule], (3, 2), classes=2)
>>> servers.advance(np.zeros((3, 2, 2)), np.ones((4, 3, 2, 2)))[0, 0].tolist()
[4.0, 4.0]

A server rule needs no code here: `Servers` steps every variant by itself. Variants that add up, and variants that pool
by random effects, share calls of NumPy, because small models spend most time in such calls. `PoolingVariants` computes
`RandomEffectsRule.step` for several variants, and a test compares both.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError
from fulcrum.rules.random_effects import PooledEstimate, pool_sums
from fulcrum.rules.random_effects_rule import RandomEffectsRule, first_step, next_step, pace_of
from fulcrum.rules.regional_dispute import regions_dispute
from fulcrum.rules.server_rule import RoundSums, ServerRule, ServerState
from fulcrum.rules.sum_rule import SumRule


class Servers:
    """The servers of all variants of a job, with a rule and a state for every variant."""

    def __init__(
        self, rules: Sequence[ServerRule], shape: tuple[int, ...], *, classes: int | None, rate: float = 1.0
    ) -> None:
        """Begins before the first round.

        Args:
            rules: Server rule by variant.
            shape: Shape of the model.
            classes: Number of classes of a softmax head; None for any other model.
            rate: The server's learning rate: the distance by which a sum of length 1 moves the model. 1 for sums of
                updates; the learning rate of training for sums of gradients.
        """
        self._rules, self._classes, self._rate = rules, classes, rate
        for rule in rules:
            rule.check_model([shape], classes)
        pooling: dict[int, list[int]] = {}
        for variant, rule in enumerate(rules):
            if isinstance(rule, RandomEffectsRule):  # together, if they pool as many sums
                pooling.setdefault(len(rule.weight), []).append(variant)
        self._pooling = [
            (variants, PoolingVariants([rules[v] for v in variants], coordinates=math.prod(shape), classes=classes))
            for variants in pooling.values()
        ]
        self._displacement = np.zeros((*shape, len(rules)))
        self._alone = [
            variant for variant, rule in enumerate(rules) if not isinstance(rule, (SumRule, RandomEffectsRule))
        ]
        self._states: dict[int, ServerState] = {}

    def advance(self, models: FloatArray, sums: FloatArray) -> FloatArray:
        """Returns the models after a round, variants on the last axis, from sums with regions on the first axis.

        A rule knows noise and clip norm in the unit of the sums. So the rule moves the models divided by the rate, and
        the rate is a factor of the displacement under every rule.
        """
        return self._advance(models, sums) if self._rate == 1 else self._rate * self._advance(models / self._rate, sums)

    def _advance(self, models: FloatArray, sums: FloatArray) -> FloatArray:
        total = sums.sum(axis=0)
        after = np.asarray(models + total)
        for variants, together in self._pooling:
            released = sums[..., variants] if together.regions == len(sums) else total[None, ..., variants]
            displacement = together.advance(released.reshape(len(released), -1, len(variants)))
            displacement = displacement.reshape(*models.shape[:-1], len(variants))
            after[..., variants] = models[..., variants] - self._displacement[..., variants] + displacement
            self._displacement[..., variants] = displacement
        for variant in self._alone:
            rule = self._rules[variant]
            state = self._states.get(variant) or rule.begin(models[..., variant].copy())
            values = sums[..., variant] if rule.reads_regions else total[None, ..., variant]
            present = np.ones(len(sums), dtype=bool)
            self._states[variant] = _state_after(
                rule, state, RoundSums(values=values, present=present, classes=self._classes)
            )
            after[..., variant] = self._states[variant].model
        return after


def _state_after(rule: ServerRule, state: ServerState, sums: RoundSums) -> ServerState:
    """Returns the state after a round; refuses a result of a registered rule that no server could keep."""
    result: Any = rule.step(state, sums)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], ServerState)):
        raise ParameterError("rule.result-type", rule=rule.name, type=type(result).__name__)
    if np.shape(result[0].model) != state.model.shape:
        raise ParameterError(
            "rule.result-shape", rule=rule.name, shape=state.model.shape, actual=np.shape(result[0].model)
        )
    return result[0]


class PoolingVariants:
    """The servers of several variants whose rule is `RandomEffectsRule`, computed at once.

    The object holds, by variant, the model's displacement and the totals of all rounds by region.
    """

    def __init__(self, rules: Sequence[Any], *, coordinates: int, classes: int | None) -> None:
        """Begins with models that have not moved.

        Args:
            rules: Server rule by variant.
            coordinates: Number of coordinates of the model; a head has its classes innermost.
            classes: Number of classes of a softmax head; None for any other model.
        """
        self._classes = classes
        self.regions = len(rules[0].weight)
        self._shares = np.stack([rule.shares for rule in rules], axis=1)
        self._scale = 1 / np.stack([rule.weight for rule in rules], axis=1)
        self._noise = np.stack([rule.variance for rule in rules], axis=1) * self._scale**2
        self._rules = rules
        self._least = np.array([rule.least_influence for rule in rules])
        self._heeding = [place for place, rule in enumerate(rules) if rule.heeds_disputes and classes is not None]
        self._slopes, self._slope_noise = np.zeros_like(self._noise), np.zeros_like(self._noise)
        self._steps = np.zeros(len(rules))
        self._norm = np.array([rule.clip_norm for rule in rules])
        model: dict[str, Any] = {"coordinates": coordinates, "classes": classes}
        self._pace = np.array([pace_of(rule, **model) for rule in rules])
        self._step = np.array([first_step(rule, **model) for rule in rules])
        self._shrinking = _by_prior(rules, classes)
        self._totals = np.zeros((len(self._shares), coordinates, len(rules)))
        self._total_noise = np.zeros_like(self._noise)
        self._displacement = np.zeros((coordinates, len(rules)))
        self._began = False

    def advance(self, sums: FloatArray) -> FloatArray:
        """Returns the models' displacement (coordinates, variants) after sums (regions, coordinates, variants)."""
        if self._began:
            self._step = self._next_step(sums)
        self._began = True
        self._totals += sums * (self._step * self._scale)[:, None, :]
        self._total_noise += self._step**2 * self._noise
        self._steps += self._step
        for place in self._heeding:
            self._heed_disputes(place, sums[..., place])
        pool = self._pool(self._totals, self._total_noise, None)
        self._displacement = pool.estimate
        width = self._classes or 1
        for rule, variants in self._shrinking:
            rows = self._displacement[:, variants].reshape(-1, width, len(variants))
            shrunk_rows = rule.shrink(rows, variance=pool.variance[variants], free=(self._classes or 2) - 1)
            self._displacement[:, variants] = shrunk_rows.reshape(-1, len(variants))
        return self._displacement

    def _heed_disputes(self, place: int, sums: FloatArray) -> None:
        """Adds a round to the slopes of a variant, and chooses the least influence that the slopes call for."""
        displacement, step, rule = self._displacement[:, place], self._step[place], self._rules[place]
        distance = math.sqrt(np.einsum("c,c->", displacement, displacement))
        if distance:
            along = np.einsum("rc,c->r", sums, displacement) / distance
            self._slopes[:, place] += step * self._scale[:, place] * along
            self._slope_noise[:, place] += step**2 * self._noise[:, place]
        heard = np.full(self.regions, self._steps[place])
        disputed = regions_dispute(self._slopes[:, place], self._slope_noise[:, place], heard)
        self._least[place] = rule.disputed_influence if disputed else rule.least_influence

    def _next_step(self, sums: FloatArray) -> FloatArray:
        distance = np.sqrt(np.einsum("ca,ca->a", self._displacement, self._displacement))
        estimate = self._pool(sums, self._noise, self._scale).estimate
        agreement = np.einsum("ca,ca->a", estimate, self._displacement) / np.where(distance, distance, 1.0) / self._norm
        return np.where(distance, next_step(self._step, self._pace, agreement), self._step)

    def _pool(self, values: FloatArray, variance: FloatArray, scale: FloatArray | None) -> PooledEstimate:
        return pool_sums(
            values,
            variance=variance,
            shares=self._shares,
            scale=scale,
            classes=self._classes,
            least=self._least,
        )


def _by_prior(rules: Sequence[RandomEffectsRule], classes: int | None) -> list[tuple[RandomEffectsRule, list[int]]]:
    """Returns the variants that shrink, together where they have the same prior, each with a rule of this prior."""
    places: dict[tuple[object, bytes], list[int]] = {}
    for place, rule in enumerate(rules):
        if rule.shrinks_head(classes):
            prior = (rule.shrinks, b"" if rule.spectrum is None else rule.spectrum.tobytes())
            places.setdefault(prior, []).append(place)
    return [(rules[variants[0]], variants) for variants in places.values()]
