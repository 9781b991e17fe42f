"""The sums of persons by real code: the head of the embedded engine, and the training module of a user.

Each function returns the sum before noise as a function of the persons, for the checks of
`fulcrum.audit.integration.person_checks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.audit.evidence.findings import Probe
from fulcrum.audit.integration.person_checks import PersonSum, Records, memory_probe, person_probes, state_probe
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism, apply_by_person, clip
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import DataError
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.person_groups import PersonGroups
from fulcrum.simulation.embedded.models import with_bias
from fulcrum.simulation.embedded.person_sums import clipped_sums

PERSONS = 6
"""The most persons of a silo whose gradients are compared."""

_FEATURES, _CLASSES = 6, 3


def head_sum(*, seed: int, node: str) -> PersonSum:
    """Returns the embedded engine's sum of a softmax head's gradients, for made-up records of several persons."""
    drawn = np.random.default_rng([0x68656164, seed])
    model = drawn.standard_normal((_FEATURES + 1, _CLASSES))
    persons = [
        (drawn.standard_normal((1 + place % 4, _FEATURES)), drawn.integers(0, _CLASSES, 1 + place % 4))
        for place in range(PERSONS)
    ]

    def total(mechanism: GaussianMechanism | LatticeMechanism, some: Sequence[Records]) -> FloatArray:
        counts = [len(labels) for _, labels in some]
        features: FloatArray = np.concatenate([np.zeros((0, _FEATURES)), *(values for values, _ in some)])
        labels: IntArray = np.concatenate([np.zeros(0, dtype=np.intp), *(values for _, values in some)])
        groups = PersonGroups(
            records=np.arange(len(labels)),
            starts=np.concatenate([[0], np.cumsum(counts, dtype=np.intp)]),
            silos=np.array([0, len(some)]),
        )
        sums = clipped_sums(
            model[..., None],
            with_bias(features),
            labels,
            groups,
            slice(0, 1),
            clip_norm=np.array([mechanism.clip_norm]),
            clip_share=np.array([mechanism.clip_share]),
        )
        return clip(sums.ravel(), mechanism.largest_sum * mechanism.clip_norm)

    return PersonSum(
        of="the embedded engine",
        node=node,
        total=total,
        persons=persons,
        parameters=model.size,
        spoiled=(np.full((1, _FEATURES), np.nan), np.zeros(1, dtype=np.intp)),
        count=lambda records: len(records[1]),
    )


def module_probes(
    plan: Plan, module: TrainingModule, *, name: str, silo: str, options: Mapping[str, Any], seed: int
) -> list[Probe]:
    """Returns the checks of a user's training module: the gradients of a silo's first persons, in this process.

    The checks read the silo's records through the module, as a round does. Nothing leaves the process but the verdict.

    Args:
        plan: A plan for persons.
        module: The module, with `persons` and `gradients`, or with `gradient_rows`.
        name: The name of the module.
        silo: The silo whose persons are read.
        options: The options of the silo's site.
        seed: Seed of the model at which gradients are compared.

    Raises:
        DataError: The module has no gradients, or too few persons or gradients to compare.
    """
    module.check_unit(plan.unit)
    assignment = Assignment(silo=silo, round_number=1, plan=verified_plan(plan), seed=seed, options=options)
    model = _displaced_model(module.starting_model(options), seed)
    parameters = sum(array.size for array in model.values())
    if module.gradient_rows is not None:
        first, second = (_all_rows(module, model, assignment) for _ in range(2))
        return [memory_probe(f"gradients of {name}", silo, first, second, plan.unit)]
    persons = list(islice(module.persons(assignment), PERSONS)) if module.persons is not None else []
    if len(persons) < 2:
        raise DataError("audit.persons-too-few", module=name, silo=silo, noun=plan.unit.noun, persons=len(persons))

    def total(mechanism: GaussianMechanism | LatticeMechanism, some: Sequence[Records]) -> FloatArray:
        rows = replace(module, persons=lambda _: some).rows(model, assignment)
        return np.asarray(apply_by_person(mechanism, rows, parameters), dtype=np.float64)

    silo_sum = PersonSum(
        of=f"gradients of {name}",
        node=silo,
        total=total,
        persons=persons,
        parameters=parameters,
        count=lambda _: 1,
    )
    try:
        return person_probes(silo_sum, plan.unit, lattice=plan.is_deployment)
    except DataError as error:
        if error.code != "training.gradients-state":
            raise
        return [state_probe(silo_sum.of, silo, len(persons), plan.unit)]  # a round would refuse the module as well


def _displaced_model(model: Mapping[str, np.ndarray[Any, Any]], seed: int) -> dict[str, FloatArray]:
    """Returns a model as after some rounds: at a starting model of zeros many gradients vanish."""
    drawn = np.random.default_rng([0x6D6F646C, seed])
    return {
        name: np.asarray(array + 0.1 * drawn.standard_normal(array.shape), dtype=array.dtype)
        for name, array in model.items()
    }


def _all_rows(module: TrainingModule, model: Mapping[str, FloatArray], assignment: Assignment) -> FloatArray:
    parameters = sum(array.size for array in model.values())
    blocks = [np.atleast_2d(block) for block in islice(module.rows(model, assignment), PERSONS)]
    return np.concatenate([np.zeros((0, parameters)), *blocks])
