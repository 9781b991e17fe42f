"""The path that is audited: from a silo's update to what its region sends up, replayed many times at one coordinate.

A replay is one coordinate. A silo sends an update along a direction v; noise is the same in all directions, so v may be
the first coordinate, and what the other coordinates carry is noise that says nothing. The update is clipped as a whole
by the code that clips every update, and that one coordinate of it is weighted and perturbed by the code and the sampler
that make every release (`fulcrum.core.noise.mechanism`): once for each replay, and with no ledger, since nothing is
sent.

>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> path = AuditedPath(plan=made)
>>> seen = path.released(path, 0, 1, np.array([1.0, -1.0, 0.0]), 7)
>>> seen.shape, path.sent_up(path, 0, [seen, seen], 1, 7).shape
((3,), (1, 3))
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.mechanism import Values, clip
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.release_parameters import ReleaseParameters, release_parameters_of
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.simulation.embedded.batched_engine import AGGREGATOR_BLOCK

OVERSIZE = 16.0
"""Norm of a canary over the clip norm: what is not clipped then shows."""

PARAMETERS = 64
"""Coordinates of a canary where the plan does not say how many an update has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AuditedPath:
    """What silos and regions do under a plan.

    Attributes:
        plan: What they follow.
        released: What a silo sends its region. Takes the path, the silo, the round, by replay the sign of its
            canary (0 for an update of zeros) and a seed, which deployment ignores.
        sent_up: What a region sends up, a row for each message. Takes the path, the region, what its silos
            released, the round and a seed.
    """

    plan: Plan
    released: "Callable[[AuditedPath, int, int, FloatArray, int], Values]" = field(default_factory=lambda: silo_release)
    sent_up: "Callable[[AuditedPath, int, Sequence[Values], int, int], Values]" = field(
        default_factory=lambda: region_sum
    )
    _terms: dict[int, ReleaseParameters] = field(default_factory=dict, init=False, repr=False)
    _clipped: list[float] = field(default_factory=list, init=False, repr=False)

    def terms(self, silo: int) -> ReleaseParameters:
        """Returns what a silo's releases are made from in deployment; verified once."""
        if silo not in self._terms:
            self._terms[silo] = release_parameters_of(self.plan, self.plan.federation.silo_name(silo))
        return self._terms[silo]

    def clipped(self) -> float:
        """Returns what the clip leaves of a canary, at its coordinate."""
        if not self._clipped:
            plan = self.plan
            self._clipped.append(float(clip(canary(plan), plan.clip_norm, plan.clip_share)[0]))
        return self._clipped[0]

    @property
    def step(self) -> float:
        """What a number of a release stands for: a step of the lattice, or 1 in research."""
        return 1.0 if self.plan.lattice_steps is None else float(self.plan.lattice_steps[0])


def canary(plan: Plan) -> FloatArray:
    """Returns the update of a silo under attack: along one coordinate, larger than the clip admits."""
    update = np.zeros(plan.parameters or PARAMETERS)
    update[0] = OVERSIZE * plan.clip_norm
    return update


def silo_release(path: AuditedPath, silo: int, round_number: int, signs: FloatArray, seed: int) -> Values:
    """Returns what a silo releases at its canary's coordinate, by replay."""
    plan = path.plan
    clipped = path.clipped() * signs
    if plan.purpose == "deployment":
        return path.terms(silo).perturb(clipped)
    return seeded_mechanism(plan, silo, SeededNoise(seed=seed), round_number).perturb(clipped)


def region_sum(path: AuditedPath, region: int, releases: Sequence[Values], round_number: int, seed: int) -> Values:
    """Returns what a region sends up: one sum, with noise of its own where aggregators inject."""
    if not releases:
        raise ParameterError("audit.region-silent")
    total = releases[0].copy()
    for one in releases[1:]:
        total += one
    injected = path.plan.aggregator_noise_multiplier
    if injected is not None:
        drawn = SeededNoise(seed=seed).standard_normal(
            round_number=round_number, block=AGGREGATOR_BLOCK + region, shape=total.shape
        )
        total += float(injected[region]) * path.plan.clip_norm * drawn
    return total[None]


def __getattr__(name: str) -> object:
    """Answers the name that `AuditedPath` had before, with a warning."""
    if name != "Mechanism":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("audited_path.Mechanism goes with version 0.3. Use AuditedPath", DeprecationWarning, stacklevel=2)
    return AuditedPath
