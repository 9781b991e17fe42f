"""The training module of an audited federation: every silo's update is a canary that the auditor knows.

The module trains nothing and reads no records. A silo's update of a round points in a direction that follows from the
seed, and is far larger than the clip admits.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.membership import index_of
from fulcrum.core.training.assignment import Assignment

ARRAY = "audit"
"""The name of the model's only array."""

OVERSIZE = 1_000.0
"""Norm of an update over the clip norm: an update without clip is far larger than the noise."""

_STREAM = 0x76


def start(options: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Returns the model before the first round: zeros, as many as the option `parameters`."""
    return {ARRAY: np.zeros(int(options["parameters"]))}


def train(model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
    """Returns the model plus the silo's canary of this round."""
    place, plan = index_of(assignment.plan, assignment.silo), assignment.plan
    seed = int(assignment.options["directions"])
    along = direction(seed, place, assignment.round_number, model[ARRAY].size)
    return {ARRAY: model[ARRAY] + OVERSIZE * plan.clip_norm * along}


def direction(seed: int, silo: int, round_number: int, parameters: int) -> FloatArray:
    """Returns the direction of a silo's canary in a round, of norm 1."""
    drawn = np.random.default_rng([_STREAM, seed, silo, round_number]).standard_normal(parameters)
    return np.asarray(drawn / np.linalg.norm(drawn))
