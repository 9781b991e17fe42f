"""The training module of an audited federation: every silo's update is a canary that the auditor knows.

The module trains nothing and reads no records. A silo's update of a round points in a direction that follows from the
seed, and is far larger than the clip admits. Under a plan for persons every silo has a few persons, and the gradient of
each person points in a direction of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.membership import index_of
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.training.assignment import Assignment

ARRAY = "audit"
"""The name of the model's only array."""

OVERSIZE = 1_000.0
"""Norm of an update over the clip norm: an update without clip is far larger than the noise."""

PERSONS = 3
"""The most persons of a silo."""

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


def gradient_rows(model: Mapping[str, FloatArray], assignment: Assignment) -> Iterator[FloatArray]:
    """Yields the gradients of the silo's canary persons in this round, a row for each person."""
    place, plan = index_of(assignment.plan, assignment.silo), assignment.plan
    seed = int(assignment.options["directions"])
    # The step of a person is minus the gradient.
    yield -person_rows(plan, place, seed, assignment.round_number, model[ARRAY].size)


def person_rows(plan: PlanData, silo: int, seed: int, round_number: int, parameters: int) -> FloatArray:
    """Returns the steps of a silo's canary persons before the clip; so few that their sum is not scaled down."""
    count = max(1, min(PERSONS, int(plan.largest_sums[silo])))
    along = [direction(seed, silo, round_number, parameters, person=person) for person in range(count)]
    return OVERSIZE * plan.clip_norm * np.array(along)


def expected_signal(plan: PlanData, silo: int, seed: int, round_number: int, parameters: int) -> FloatArray:
    """Returns a silo's release without noise: the clipped canary, or the sum of clipped canary persons, weighted."""
    weight = float(plan.federation.weights[silo])
    if not plan.unit.is_within_silo:
        return weight * plan.clip_norm * direction(seed, silo, round_number, parameters)
    rows = person_rows(plan, silo, seed, round_number, parameters)
    return np.asarray(weight / OVERSIZE * rows.sum(axis=0))


def direction(seed: int, silo: int, round_number: int, parameters: int, *, person: int = 0) -> FloatArray:
    """Returns the direction of a silo's canary in a round, or of one of the silo's canary persons, of norm 1."""
    drawn = np.random.default_rng([_STREAM, seed, silo, round_number, person][: 4 + (person > 0)])
    values = drawn.standard_normal(parameters)
    return np.asarray(values / np.linalg.norm(values))
