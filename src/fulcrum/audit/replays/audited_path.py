"""The audited path: from a silo's update to the sum of its region, replayed many times at a single coordinate.

A replay is a single coordinate. A silo sends an update along a direction v; noise is the same in all directions, so v
may be the first coordinate, and the other coordinates carry noise without information. The update is clipped as a whole
by the code that clips every update, and the first coordinate is weighted and perturbed by the code and the sampler that
make every release (`fulcrum.core.noise.mechanism`): once for a replay, and without a ledger, since nothing is sent.
Under a plan for persons the update is the sum of a silo's persons, with and without the canary
(`fulcrum.audit.replays.canary_person`).

>>> from fulcrum.planning.planner import plan
>>> isic = plan("isic-paper", rounds=2, epsilon=1.0)
>>> path = AuditedPath(plan=isic)
>>> seen = path.released(path, 0, 1, np.array([1.0, -1.0, 0.0]), 7)
>>> seen.shape, path.sent_up(path, 0, [seen, seen], 1, 7).shape
((3,), (1, 3))
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.audit.replays.canary_person import SumByPerson, shifts_of
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism, Values, apply_by_person, clip
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.release_parameters import ReleaseParameters, release_parameters_of
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.simulation.embedded.batched_engine import AGGREGATOR_BLOCK

OVERSIZE = 16.0
"""Norm of a canary over the clip norm: a missing clip then shows."""

PARAMETERS = 64
"""Coordinates of a canary, for a plan without a number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditedPath:
    """The steps of silos, regions and nodes further out under a plan.

    Attributes:
        plan: The plan.
        released: Returns the release of a silo. Takes the path, the silo, the round, by replay the sign of the canary
            (0 for an update of zeros) and a seed, which deployment ignores.
        sent_up: Returns the messages of a region, a row for every message. Takes the path, the region, the releases of
            its silos, the round and a seed.
        sent_out: Returns the messages of a node of an outer tier, a row for every message. Takes the path, the node,
            the sums of its regions and the round.
        by_person: The function that clips and adds the rows of a silo's persons, for a plan for persons.
    """

    plan: Plan
    released: "Callable[[AuditedPath, int, int, FloatArray, int], Values]" = field(default_factory=lambda: silo_release)
    sent_up: "Callable[[AuditedPath, int, Sequence[Values], int, int], Values]" = field(
        default_factory=lambda: region_sum
    )
    sent_out: "Callable[[AuditedPath, str, Sequence[Values], int], Values]" = field(default_factory=lambda: outer_sum)
    by_person: SumByPerson = apply_by_person
    _terms: dict[int, ReleaseParameters] = field(default_factory=dict, init=False, repr=False)
    _clipped: list[float] = field(default_factory=list, init=False, repr=False)
    _shifts: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict, init=False, repr=False)

    def terms(self, silo: int) -> ReleaseParameters:
        """Returns the parameters of a silo's releases in deployment; verified once."""
        if silo not in self._terms:
            self._terms[silo] = release_parameters_of(self.plan, self.plan.federation.silo_name(silo))
        return self._terms[silo]

    def clip_canary(self) -> float:
        """Returns the canary's coordinate after the clip."""
        if not self._clipped:
            plan = self.plan
            self._clipped.append(float(clip(canary(plan), plan.clip_norm, plan.clip_share)[0]))
        return self._clipped[0]

    def mechanism(self, silo: int, round_number: int, seed: int) -> GaussianMechanism | LatticeMechanism:
        """Returns the mechanism of a silo's release: the silo's own in deployment, seeded in research."""
        if self.plan.is_deployment:
            return self.terms(silo)
        return seeded_mechanism(self.plan, silo, SeededNoise(seed=seed), round_number)

    def person_shifts(self, silo: int, round_number: int) -> tuple[float, float]:
        """Returns a silo's sum of persons at the canary's coordinate: with a positive canary, with a negative canary.

        Both sums are relative to the middle of the two, and without noise.
        """
        turn = turn_of(round_number)
        if (silo, turn) not in self._shifts:
            mechanism = self.mechanism(silo, round_number, seed=0)
            self._shifts[silo, turn] = shifts_of(
                self.by_person,
                mechanism,
                turn * canary(self.plan),
                largest_sum=float(self.plan.largest_sums[silo]),
                neighbours=self.plan.unit.neighbours,
            )
        plus, minus = self._shifts[silo, turn]
        return (plus, minus) if turn > 0 else (minus, plus)

    @property
    def step(self) -> float:
        """The unit of a release's numbers: a step of the lattice, or 1 in research."""
        return 1.0 if self.plan.lattice_steps is None else float(self.plan.lattice_steps[0])


def canary(plan: Plan) -> FloatArray:
    """Returns the update of a silo under attack: along a single coordinate, larger than the clip admits."""
    update = np.zeros(plan.parameters or PARAMETERS)
    update[0] = OVERSIZE * plan.clip_norm
    return update


def silo_release(path: AuditedPath, silo: int, round_number: int, signs: FloatArray, seed: int) -> Values:
    """Returns a silo's release at the canary's coordinate, by replay."""
    mechanism = path.mechanism(silo, round_number, seed)
    if not path.plan.unit.is_within_silo:
        return mechanism.perturb(path.clip_canary() * signs)
    # Replays take the place of coordinates here, so the norm of all replays together must not be scaled down: the
    # sums below were scaled down, coordinate by coordinate, when they were made.
    unbounded: Any = replace(mechanism, largest_sum=math.inf)
    noise: Values = unbounded.perturb_sum(unbounded.zeros(len(signs)))
    if not signs.any():
        return noise
    plus, minus = path.person_shifts(silo, round_number)
    shift = plus * np.maximum(signs, 0) + minus * np.maximum(-signs, 0)
    return np.asarray(noise + shift.astype(noise.dtype))


def turn_of(round_number: int) -> int:
    """Returns the direction of the canary in a round, which every observer knows: plus and minus in turn."""
    return 1 if round_number % 2 else -1


def region_sum(path: AuditedPath, region: int, releases: Sequence[Values], round_number: int, seed: int) -> Values:
    """Returns the message of a region: a sum, with the region's own noise if aggregators inject."""
    if not releases:
        raise ParameterError("audit.region-silent")
    total = releases[0].copy()
    for release in releases[1:]:
        total += release
    injected = path.plan.aggregator_noise_multiplier
    if injected is not None:
        drawn = SeededNoise(seed=seed).standard_normal(
            round_number=round_number, block=AGGREGATOR_BLOCK + region, shape=total.shape
        )
        total += float(injected[region]) * path.plan.clip_norm * drawn
    return total[None]


def outer_sum(path: AuditedPath, node: str, sums: Sequence[Values], round_number: int) -> Values:
    """Returns the message of a node of an outer tier: the sum of the sums of its regions."""
    del path, node, round_number
    return np.asarray(np.sum(sums, axis=0))[None]


def __getattr__(name: str) -> object:
    """Answers the earlier name of `AuditedPath`, with a warning."""
    if name != "Mechanism":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("audited_path.Mechanism goes with version 0.3. Use AuditedPath", DeprecationWarning, stacklevel=2)
    return AuditedPath
