"""The servers of several arms at once, every region heard in every round: what the engines in process need.

>>> rule = SumRule()
>>> servers = Servers([rule, rule], (3, 2), classes=2)
>>> servers.moved(np.zeros((3, 2, 2)), np.ones((4, 3, 2, 2)))[0, 0].tolist()
[4.0, 4.0]

A rule needs nothing from here: `Servers` steps each arm by itself. Arms that add up, and arms that pool by random
effects, share the calls of NumPy, in which most of the time goes with small models; `PoolingArms` does what
`RandomEffectsRule.step` does arm by arm, and a test holds it to that.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.rules.random_effects import PooledEstimate, pool_sums
from fulcrum.rules.random_effects_rule import RandomEffectsRule, first_step, next_step, pace_of
from fulcrum.rules.server_rule import RoundSums, ServerRule, ServerState
from fulcrum.rules.shrinkage import shrink_rows
from fulcrum.rules.sum_rule import SumRule


class Servers:
    """The servers of all arms of a job, each with its own rule and state."""

    def __init__(self, rules: Sequence[ServerRule], shape: tuple[int, ...], *, classes: int | None) -> None:
        """Begins before the first round.

        Args:
            rules: By arm.
            shape: Of the model.
            classes: Of a softmax head; None for a model of which nothing is known.
        """
        self._rules, self._classes = rules, classes
        pooling = {arm: rule for arm, rule in enumerate(rules) if isinstance(rule, RandomEffectsRule)}
        self._pooling = list(pooling)
        self._moved = np.zeros((*shape, len(pooling)))
        if pooling:
            self._together = PoolingArms(list(pooling.values()), coordinates=math.prod(shape), classes=classes)
        self._alone = [arm for arm, rule in enumerate(rules) if not isinstance(rule, (SumRule, RandomEffectsRule))]
        self._states: dict[int, ServerState] = {}

    def moved(self, models: FloatArray, sums: FloatArray) -> FloatArray:
        """Returns the models after a round, arms on the last axis; the first axis of the sums is that of regions."""
        total = sums.sum(axis=0)
        after = np.asarray(models + total)
        if self._pooling:
            said = sums[..., self._pooling].reshape(len(sums), -1, len(self._pooling))
            moved = self._together.advance(said).reshape(self._moved.shape)
            after[..., self._pooling] = models[..., self._pooling] - self._moved + moved
            self._moved = moved
        for arm in self._alone:
            rule = self._rules[arm]
            state = self._states.get(arm) or rule.begin(models[..., arm].copy())
            values = sums[..., arm] if rule.reads_regions else total[None, ..., arm]
            present = np.ones(len(sums), dtype=bool)
            self._states[arm], _ = rule.step(state, RoundSums(values=values, present=present, classes=self._classes))
            after[..., arm] = self._states[arm].model
        return after


class PoolingArms:
    """Servers that pool, one an arm, and what regions said to each so far."""

    def __init__(self, rules: Sequence[RandomEffectsRule], *, coordinates: int, classes: int | None) -> None:
        """Begins with a model of so many coordinates that has not moved.

        Args:
            rules: By arm.
            coordinates: Of the model, those of a head's classes after each other.
            classes: Of a softmax head; None for a model of which nothing is known.
        """
        self._classes = classes
        self._shares = np.stack([rule.shares for rule in rules], axis=1)
        self._scale = 1 / np.stack([rule.weight for rule in rules], axis=1)
        self._noise = np.stack([rule.variance for rule in rules], axis=1) * self._scale**2
        self._least = np.array([rule.least_influence for rule in rules])
        self._norm = np.array([rule.clip_norm for rule in rules])
        model: dict[str, Any] = {"coordinates": coordinates, "classes": classes}
        self._pace = np.array([pace_of(rule, **model) for rule in rules])
        self._step = np.array([first_step(rule, **model) for rule in rules])
        self._shrinking = np.flatnonzero([rule.shrinks_head(classes) for rule in rules])
        self._said = np.zeros((len(self._shares), coordinates, len(rules)))
        self._said_noise = np.zeros_like(self._noise)
        self._moved = np.zeros((coordinates, len(rules)))
        self._began = False

    def advance(self, sums: FloatArray) -> FloatArray:
        """Returns how far models have moved (coordinates, arms), after a round of sums (regions, coordinates, arms)."""
        if self._began:
            self._step = self._next_step(sums)
        self._began = True
        self._said += sums * (self._step * self._scale)[:, None, :]
        self._said_noise += self._step**2 * self._noise
        found = self._pooled(self._said, self._said_noise, None)
        self._moved = found.estimate
        if len(self._shrinking):
            width, arms = self._classes or 1, self._shrinking
            rows = self._moved[:, arms].reshape(-1, width, len(arms))
            kept = shrink_rows(rows, variance=found.variance[arms], free=(self._classes or 2) - 1)
            self._moved[:, arms] = kept.reshape(-1, len(arms))
        return self._moved

    def _next_step(self, sums: FloatArray) -> FloatArray:
        gone = np.sqrt(np.einsum("ca,ca->a", self._moved, self._moved))
        estimate = self._pooled(sums, self._noise, self._scale).estimate
        agreement = np.einsum("ca,ca->a", estimate, self._moved) / np.where(gone, gone, 1.0) / self._norm
        return np.where(gone, next_step(self._step, self._pace, agreement), self._step)

    def _pooled(self, values: FloatArray, variance: FloatArray, scale: FloatArray | None) -> PooledEstimate:
        return pool_sums(
            values,
            variance=variance,
            shares=self._shares,
            scale=scale,
            classes=self._classes,
            least=self._least,
        )
