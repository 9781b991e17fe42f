"""Checks of a silo's sum before noise, as a function of its persons: every fault has a name of its own.

>>> from fulcrum.core.noise.mechanism import apply_by_person
>>> silo_sum = sum_of_rows(apply_by_person, made_up_persons(parameters=8, seed=1), of="sum by person", node="lille")
>>> person_probes(silo_sum, PrivacyUnit(name="person"))[0].verdict
'consistent'

An epsilon holds for persons if the sum is a sum of rows, one row for each person, each row clipped by itself and a
function of the model and of that person's records alone. Noise hides a broken sum from an observer of releases for a
long time, so the checks run the real code without noise, on few persons, at clip norms of their own choice:

- far above every gradient, where no clip acts and the sum must be the plain sum of the persons alone;
- below every gradient, where every person alone has the norm of the clip, and the sum must still be the sum of the
  persons alone;
- on a coarse lattice, where the integers of the sum must be the sum of every person's integers.

The checks draw nothing, so a sound silo never fails a check by chance.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, Probe
from fulcrum.audit.replays.canary_person import NoNoise, SumByPerson
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.errors import DataError

REMEMBERS = "gradient remembers earlier calls"
MIXED = "persons mixed before the clip"
DIVISOR = "divisor depends on the data"
NO_CLIP = "no clip"
RECORDS_CLIPPED = "records clipped one by one"
BATCH_CLIPPED = "clip by batch"
LATTICE_OF_SUM = "lattice applied to the sum"
NOT_FINITE = "one person silences the silo"
TOO_LONG = "silo's sum not scaled down"
TOO_FAR = "one person moves the sum too far"
SEVERAL_SILOS = "person in several silos"

REASONS = {
    REMEMBERS: (
        "{what} changes the result by {share}. The code keeps values between calls, or draws from a random generator "
        "of its own. The records of one {noun} then reach the rows of others, or later rounds, where no clip bounds "
        "their effect. Compute every gradient from the model and the records of one {noun} alone."
    ),
    MIXED: (
        "the sum of {persons} {noun}s differs from the sum of the same {noun}s alone by {share}, before any clip. Two "
        "local steps, batch normalisation or a loss that couples records let one {noun} change the gradient of "
        "another, and no clip bounds that change. Compute one gradient a round, for each {noun} at the global model."
    ),
    DIVISOR: (
        "the sum of {persons} {noun}s is {factor:.3g} times as long as the sum of the same {noun}s alone, before any "
        "clip. A divisor that depends on the data, such as the number of {noun}s or records that are there, lets one "
        "{noun} who comes or goes change the part of all others. Leave the division to the public weight of the plan."
    ),
    NO_CLIP: (
        "the gradient of one {noun} is {length:.3g} clip norms long. Clip the gradient of every {noun} at the clip "
        "norm of the plan."
    ),
    RECORDS_CLIPPED: (
        "the gradient of one {noun} with {records} records is {length:.3g} clip norms long. Each record is clipped by "
        "itself, so a {noun} with many records exceeds the bound. Add the records of one {noun} before the clip."
    ),
    BATCH_CLIPPED: (
        "the sum of {persons} {noun}s, each above the clip norm, is {length:.3g} clip norms long, and the sum of the "
        "same {noun}s alone {expected:.3g}. The gradients are added or averaged before the clip, so one large {noun} "
        "displaces all others. Clip the gradient of every {noun} by itself."
    ),
    LATTICE_OF_SUM: (
        "the integers of {persons} {noun}s together differ from the sum of every {noun}'s integers, by up to "
        "{steps:.0f} steps in a coordinate. Cut after the sum, one {noun} moves the release by up to sqrt(d) steps "
        "more than the clip admits. Cut the row of every {noun} to the lattice before the sum."
    ),
    NOT_FINITE: (
        "a {noun} whose gradient is not finite changes the sum of all others. Count such a gradient as zero for that "
        "{noun} alone."
    ),
    TOO_LONG: (
        "the sum of {persons} {noun}s is {length:.3g} clip norms long where 1.5 are allowed, so a silo as a whole is "
        "protected less than the plan states. Scale the sum down to the largest sum of the plan."
    ),
    TOO_FAR: (
        "the records of one {noun} move the sum by {length:.3g} clip norms, and the plan counts on at most {bound:g}."
    ),
    SEVERAL_SILOS: (
        "one {noun} has records in {silos} silos and epsilon {epsilon:.4g}. The plan states {stated:.4g}, for a {noun} "
        "in {provided}. Plan again with --silos-per-person {silos}."
    ),
}
"""By fault, the reason in words: the measurement, its consequence for one person, and the remedy."""

Records: TypeAlias = Any
"""The records of one person, in the form of the code under test."""

TOLERANCE = 1e-5
"""The largest share of a sum that rounding may change: gradients may be computed in single precision."""

_PERSONS = 6
_LARGEST = 1e6  # clip norms: no sum of the checks is scaled down


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonSum:
    """A silo's sum before noise, as a function of its persons.

    Attributes:
        of: The name of the part under test, for the audit's table.
        node: The name of the silo or of the training module, for the audit's table.
        total: Returns the clipped sum of persons. Takes a mechanism whose noise is switched off, and the records of
            every person.
        persons: The records of several persons with different gradients.
        parameters: The number of coordinates of a gradient.
        spoiled: The records of a person whose gradient is not finite; None if no such records can be made.
        count: Returns the number of records of a person.
    """

    of: str
    node: str
    total: Callable[[GaussianMechanism | LatticeMechanism, Sequence[Records]], FloatArray]
    persons: Sequence[Records]
    parameters: int
    spoiled: Records | None = None
    count: Callable[[Records], int] = len


def sum_of_rows(by_person: SumByPerson, persons: Sequence[FloatArray], *, of: str, node: str) -> PersonSum:
    """Returns the sum of gradients that are given: a matrix for each person, a row for each record."""
    parameters = persons[0].shape[1]
    return PersonSum(
        of=of,
        node=node,
        total=lambda mechanism, some: np.asarray(
            by_person(mechanism, [rows.sum(axis=0) for rows in some], parameters), dtype=np.float64
        ),
        persons=persons,
        parameters=parameters,
        spoiled=np.full((1, parameters), np.nan),
    )


def made_up_persons(*, parameters: int, seed: int) -> list[FloatArray]:
    """Returns gradients of several persons, a matrix for each person, a row for each of one to four records."""
    drawn = np.random.default_rng([0x706572736F6E, seed])
    # A direction that all records share: persons who point the same way show a clip of their sum best.
    common = drawn.standard_normal(parameters)
    return [common + 0.5 * drawn.standard_normal((1 + place % 4, parameters)) for place in range(_PERSONS)]


def person_probes(silo_sum: PersonSum, unit: PrivacyUnit, *, lattice: bool = True) -> list[Probe]:
    """Returns the verdict on a silo's sum: one result for every fault, or a single result without a fault.

    Args:
        silo_sum: The sum under test.
        unit: The unit of privacy of the plan.
        lattice: True to check the sum on a lattice too, for a plan for deployment.

    Raises:
        DataError: All gradients are zero or not finite, so no fault could be seen.
    """
    checks = _Checks(silo_sum, unit)
    faults = checks.memory() or checks.plain_sums() or checks.clips()
    if not faults and lattice:
        faults = checks.lattice()
    if not faults:
        faults = checks.not_finite() | checks.largest_sum() | checks.neighbours()
    of, node, compared = silo_sum.of, silo_sum.node, len(silo_sum.persons)
    if not faults:
        return [Probe(of=of, node=node, values=compared, noise_ratio=None, verdict=CONSISTENT, reasons=[])]
    return [
        _fault_probe(of, node, compared, fault, noun=unit.noun, persons=compared, **details)
        for fault, details in faults.items()
    ]


def memory_probe(of: str, node: str, first: FloatArray, second: FloatArray, unit: PrivacyUnit) -> Probe:
    """Returns the verdict on the rows of two calls with the same records, which must be the same.

    Args:
        of: The part under test.
        node: The silo.
        first: The rows of the first call, one row for each person.
        second: The rows of the second call.
        unit: The unit of privacy of the plan.

    Raises:
        DataError: All rows are zero or not finite, so no fault could be seen.
    """
    finite = [np.where(np.isfinite(rows), rows, 0.0) for rows in (first, second)]
    largest = max(float(np.linalg.norm(rows, axis=-1).max(initial=0.0)) for rows in finite)
    if not largest:
        raise DataError("audit.gradients-zero", part=of, silo=node, noun=unit.noun)
    changed = math.inf if first.shape != second.shape else _distance(*finite)
    if changed <= TOLERANCE * largest:
        return Probe(of=of, node=node, values=len(first), noise_ratio=None, verdict=CONSISTENT, reasons=[])
    details = {"what": "a second call with the same records", "share": _share_of(changed, largest), "noun": unit.noun}
    return _fault_probe(of, node, len(first), REMEMBERS, **details)


def state_probe(of: str, node: str, persons: int, unit: PrivacyUnit) -> Probe:
    """Returns the verdict on a gradient function that gives one person two gradients in the same round.

    Args:
        of: The part under test.
        node: The silo under test.
        persons: The number of persons of the test.
        unit: The unit of privacy of the plan.
    """
    details = {"what": "a second call in the same round", "share": "more than rounding does", "noun": unit.noun}
    return _fault_probe(of, node, persons, REMEMBERS, **details)


def several_silos_probe(node: str, epsilon: float, stated: float, unit: PrivacyUnit, silos: int) -> Probe:
    """Returns the verdict on a person with records in more silos than the plan provides for.

    Args:
        node: The observed node.
        epsilon: The epsilon of the worst placed person.
        stated: The largest epsilon that the plan states there.
        unit: The unit of privacy of the plan.
        silos: The number of silos of the person.
    """
    most = unit.silos_per_person
    provided = "one silo" if most == 1 else f"{most} silos"
    details = {"noun": unit.noun, "epsilon": epsilon, "stated": stated, "provided": provided, "silos": silos}
    return _fault_probe("placement", node, silos, SEVERAL_SILOS, **details)


def _fault_probe(of: str, node: str, values: int, fault: str, **details: Any) -> Probe:
    reason = f"{fault[0].upper()}{fault[1:]}: {REASONS[fault].format(**details)}"
    return Probe(of=of, node=node, values=values, noise_ratio=None, verdict=VIOLATED, reasons=[reason], fault=fault)


_Faults: TypeAlias = dict[str, dict[str, Any]]


class _Checks:
    """The checks of one sum; every check returns faults by name, with the details of their reasons."""

    def __init__(self, silo_sum: PersonSum, unit: PrivacyUnit) -> None:
        self._sum, self._unit, self._persons = silo_sum, unit, list(silo_sum.persons)
        self._gradients = [self._total(_plain(), [person]) for person in self._persons]
        sizes = [float(np.linalg.norm(gradient)) for gradient in self._gradients]
        self._largest = max(sizes, default=0.0)
        if not self._largest:
            raise DataError("audit.gradients-zero", part=silo_sum.of, silo=silo_sum.node, noun=unit.noun)
        # Below the smallest gradient, so that the clip acts on every person.
        self._clip = min((size for size in sizes if size > 0), default=1.0) / 4

    def memory(self) -> _Faults:
        """Calls twice with the same persons, and in another order."""
        persons, mechanism = self._persons, _plain()
        first = self._total(mechanism, persons)
        backward = self._total(mechanism, persons[::-1])
        again = self._total(mechanism, persons)
        alone = [self._total(mechanism, [person]) for person in persons]
        changed = max([_distance(first, again), *map(_distance, self._gradients, alone)])
        if self._differs(changed):
            return {REMEMBERS: {"what": "a second call with the same records", "share": self._share(changed)}}
        if self._differs(changed := _distance(first, backward)):
            return {REMEMBERS: {"what": "another order of the same records", "share": self._share(changed)}}
        return {}

    def plain_sums(self) -> _Faults:
        """Compares the sum of all persons with the sum of the persons alone, where no clip acts."""
        together, added = self._total(_plain(), self._persons), np.sum(self._gradients, axis=0)
        if not self._differs(_distance(together, added)):
            return {}
        if self._is_rescaled(together, added[None]) or self._pair_is_rescaled():
            factor = float(np.linalg.norm(together) / np.linalg.norm(added)) if added.any() else 0.0
            return {DIVISOR: {"factor": factor}}
        return {MIXED: {"share": self._share(_distance(together, added))}}

    def _pair_is_rescaled(self) -> bool:
        """Returns True if the sum of two persons has other factors on their gradients, and no further part."""
        pair = max(zip(self._persons, self._persons[1:], strict=False), key=lambda two: _total_count(self._sum, two))
        gradients = np.array([self._total(_plain(), [person]) for person in pair])
        together = self._total(_plain(), pair)
        return self._differs(_distance(together, gradients.sum(axis=0))) and self._is_rescaled(together, gradients)

    def _is_rescaled(self, together: FloatArray, rows: FloatArray) -> bool:
        """Returns True if the vector `together` is a sum of all `rows`, each row times a factor of its own."""
        if len(rows) >= together.size:  # so many rows would make up any sum
            return False
        factors = np.linalg.lstsq(rows.T, together, rcond=None)[0]
        return not self._differs(_distance(together, factors @ rows))

    def clips(self) -> _Faults:
        """Checks the norm of every person alone below every gradient, and the sum of all."""
        mechanism = _plain(self._clip)
        alone = [self._total(mechanism, [person]) for person in self._persons]
        norms = np.array([float(np.linalg.norm(row)) for row in alone]) / self._clip
        counts = np.array([self._sum.count(person) for person in self._persons])
        if norms.max() > 1 + TOLERANCE:
            worst = int(np.argmax(norms))
            if counts[worst] > 1 and (norms <= counts * (1 + TOLERANCE)).all():
                return {RECORDS_CLIPPED: {"records": counts[worst], "length": norms[worst]}}
            return {NO_CLIP: {"length": norms[worst]}}
        together, added = self._total(mechanism, self._persons), np.sum(alone, axis=0)
        if _distance(together, added) > TOLERANCE * self._clip * len(self._persons):
            length, expected = (float(np.linalg.norm(row)) / self._clip for row in (together, added))
            return {BATCH_CLIPPED: {"length": length, "expected": expected}}
        return {}

    def lattice(self) -> _Faults:
        """Checks on a coarse lattice, without noise, that each person is rounded to integers before persons are added.

        The integers of a sum over all persons must equal the sum of the integers of every person in a sum alone. A sum
        that is rounded once, after the addition, differs, and is a fault.
        """
        mechanism = LatticeMechanism(
            parameters=self._sum.parameters,
            clip_norm=self._clip,
            clip_share=1.0,
            weight=1.0,
            step=self._clip / (4 * float(np.sqrt(self._sum.parameters))),
            width=0.0,
            noise=NoNoise(),
            largest_sum=_LARGEST,
        )
        together = self._total(mechanism, self._persons)
        added = np.sum([self._total(mechanism, [person]) for person in self._persons], axis=0)
        steps = float(np.abs(together - added).max(initial=0.0))
        return {LATTICE_OF_SUM: {"steps": steps}} if steps else {}

    def not_finite(self) -> _Faults:
        """Checks that a person without a finite gradient counts as zero, and no other person does."""
        if self._sum.spoiled is None:
            return {}
        mechanism = _plain(self._clip)
        with_spoiled = self._total(mechanism, [*self._persons, self._sum.spoiled])
        differs = self._differs(_distance(with_spoiled, self._total(mechanism, self._persons)))
        return {NOT_FINITE: {}} if differs else {}

    def largest_sum(self) -> _Faults:
        """Checks the largest norm of the sum of all persons."""
        together = self._total(replace(_plain(self._clip), largest_sum=1.5), self._persons)
        length = float(np.linalg.norm(together)) / self._clip
        return {TOO_LONG: {"length": length}} if length > 1.5 * (1 + TOLERANCE) else {}

    def neighbours(self) -> _Faults:
        """Measures the farthest distance of two neighbours, with the clip and with a small largest sum."""
        farthest, bound = 0.0, 1.0 if self._unit.neighbours == "add-remove" else 2.0
        for mechanism in (_plain(self._clip), replace(_plain(self._clip), largest_sum=2.0)):
            whole = self._total(mechanism, self._persons)
            for place in range(len(self._persons)):
                others = self._persons[:place] + self._persons[place + 1 :]
                if bound > 1:  # replaced by the person after: the number of persons stays
                    others.insert(place, self._persons[(place + 1) % len(self._persons)])
                farthest = max(farthest, _distance(whole, self._total(mechanism, others)) / self._clip)
        return {TOO_FAR: {"length": farthest, "bound": bound}} if farthest > bound * (1 + TOLERANCE) else {}

    def _total(self, mechanism: GaussianMechanism | LatticeMechanism, persons: Sequence[Records]) -> FloatArray:
        return np.asarray(self._sum.total(mechanism, persons), dtype=np.float64)

    def _differs(self, distance: float) -> bool:
        return not distance <= TOLERANCE * self._largest

    def _share(self, distance: float) -> str:
        return _share_of(distance, self._largest)


def _plain(clip_norm: float = math.inf) -> GaussianMechanism:
    """Returns a mechanism without noise; by default the clip never acts."""
    return GaussianMechanism(
        clip_norm=clip_norm,
        clip_share=1.0,
        weight=1.0,
        noise_multiplier=0.0,
        draw=np.zeros,
        largest_sum=_LARGEST,
    )


def _share_of(distance: float, largest: float) -> str:
    return f"{distance / largest:.3g} times the largest gradient"


def _total_count(silo_sum: PersonSum, persons: Sequence[Records]) -> int:
    return sum(silo_sum.count(person) for person in persons)


def _distance(first: FloatArray, second: FloatArray) -> float:
    return float(np.linalg.norm(first - second))
