"""The pooling servers of several arms at once, every region heard in every round: what an embedded engine needs.

>>> rule = ServerRule.pooling(
...     shares=np.array([0.5, 0.5]),
...     weight=np.array([0.5, 0.5]),
...     variance=np.array([1e-4, 1e-4]),
...     least_noise=2e-4,
...     scale=0.9,
...     rounds=10,
... )
>>> together = PoolingArms([rule, rule], coordinates=6, classes=2)
>>> together.advance(np.full((2, 6, 2), 0.5) * np.tile([1, -1], 3)[:, None]).shape
(6, 2)

It does what `advanced` does arm by arm, and a test holds it to that; in small models most of the time would go into
calling NumPy, so arms share the calls.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.rules.random_effects import Pooled, pooled
from fulcrum.rules.server_rule import ServerRule, first_step, next_step, pace_of
from fulcrum.rules.shrinkage import shrunk


class PoolingArms:
    """Servers that pool, one an arm, and what regions said to each so far."""

    def __init__(self, rules: Sequence[ServerRule], *, coordinates: int, classes: int | None) -> None:
        """Begins with a model of so many coordinates that has not moved.

        Args:
            rules: By arm; all of them pool.
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
            kept = shrunk(rows, variance=found.variance[arms], free=(self._classes or 2) - 1)
            self._moved[:, arms] = kept.reshape(-1, len(arms))
        return self._moved

    def _next_step(self, sums: FloatArray) -> FloatArray:
        gone = np.sqrt(np.einsum("ca,ca->a", self._moved, self._moved))
        estimate = self._pooled(sums, self._noise, self._scale).estimate
        agreement = np.einsum("ca,ca->a", estimate, self._moved) / np.where(gone, gone, 1.0) / self._norm
        return np.where(gone, next_step(self._step, self._pace, agreement), self._step)

    def _pooled(self, values: FloatArray, variance: FloatArray, scale: FloatArray | None) -> Pooled:
        return pooled(
            values,
            variance=variance,
            shares=self._shares,
            scale=scale,
            classes=self._classes,
            least=self._least,
        )
