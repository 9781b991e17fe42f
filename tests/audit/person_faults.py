"""Silos with a fault planted in the sum of their persons, for tests of the audit."""

import dataclasses

import numpy as np

import fulcrum
from fulcrum.audit.integration.person_checks import PersonSum
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.core.noise.mechanism import LatticeMechanism, apply_by_person, clip

SIZES = {"north": [100] * 5, "south": [200, 150, 90], "west": [300]}
CLASSES, FEATURES, RECORDS = 3, 4, (1, 2, 3, 1, 4, 2)
PARAMETERS = CLASSES * FEATURES


def made(purpose="research", sizes=SIZES, **options):
    settings = {"rounds": 8, "epsilon": 1.0, "purpose": purpose, "parameters": 12, "unit": "person"}
    return fulcrum.plan(fulcrum.Federation.from_sizes(sizes), **settings | options)


def persons(seed=0):
    """The records of six persons: features and classes."""
    drawn = np.random.default_rng(seed)
    return [(drawn.standard_normal((n, FEATURES)), drawn.integers(0, CLASSES, n)) for n in RECORDS]


def gradient(model, records):
    """The step of a softmax model by the summed cross-entropy of some records."""
    features, labels = records
    scores = np.exp(features @ model - (features @ model).max(axis=1, keepdims=True))
    residual = -scores / scores.sum(axis=1, keepdims=True)
    residual[np.arange(len(labels)), labels] += 1
    return (features.T @ residual).ravel()


MODEL = np.random.default_rng(7).standard_normal((FEATURES, CLASSES))


def training(total):
    """A silo that makes its sum by this function."""
    return PersonSum(
        of="training",
        node="lille",
        total=total,
        persons=persons(),
        parameters=PARAMETERS,
        spoiled=(np.full((1, FEATURES), np.nan), np.zeros(1, dtype=int)),
        count=lambda records: len(records[1]),
    )


def sound(mechanism, some):
    return apply_by_person(mechanism, [gradient(MODEL, records) for records in some], PARAMETERS)


def two_local_steps(mechanism, some):
    """The second step of every person starts where the first step of all persons ended."""
    first = apply_by_person(mechanism, [gradient(MODEL, records) for records in some], PARAMETERS)
    scale = mechanism.step if isinstance(mechanism, LatticeMechanism) else 1.0
    moved = MODEL + 0.1 * (first * scale).reshape(MODEL.shape) / max(len(some), 1)
    return first + apply_by_person(mechanism, [gradient(moved, records) for records in some], PARAMETERS)


def clip_by_batch(mechanism, some):
    """The gradients of all persons are added before the clip."""
    return apply_by_person(mechanism, [np.sum([gradient(MODEL, records) for records in some], axis=0)], PARAMETERS)


def clipped_mean(mechanism, some):
    """The mean gradient is clipped, and multiplied by the number of persons after the clip."""
    return len(some) * apply_by_person(
        mechanism, [np.mean([gradient(MODEL, records) for records in some], axis=0)], PARAMETERS
    )


def records_clipped(mechanism, some):
    """Every record is clipped by itself."""
    rows = [
        gradient(MODEL, (x[None], y[None])) for features, labels in some for x, y in zip(features, labels, strict=True)
    ]
    return apply_by_person(mechanism, rows, PARAMETERS)


def no_clip(mechanism, some):
    """Nobody is clipped."""
    return apply_by_person(
        dataclasses.replace(mechanism, clip_norm=np.inf), [gradient(MODEL, records) for records in some], PARAMETERS
    )


def divided_by_count(mechanism, some):
    """The sum is divided by the number of persons who are there."""
    return sound(mechanism, some) / max(len(some), 1)


def divided_by_records(mechanism, some):
    """The sum is divided by the number of records that are there."""
    return sound(mechanism, some) / max(sum(len(labels) for _, labels in some), 1)


def with_memory(keep=0.5):
    """Every gradient holds a part of the gradient before, as momentum does."""
    before = [np.zeros(PARAMETERS)]

    def total(mechanism, some):
        rows = []
        for records in some:
            before[0] = gradient(MODEL, records) + keep * before[0]
            rows.append(before[0])
        return apply_by_person(mechanism, rows, PARAMETERS)

    return total


def with_memory_of_one_call(mechanism, some):
    """The memory begins anew in every round: only the order of persons tells of it."""
    return with_memory()(mechanism, some)


def lattice_of_sum(mechanism, some):
    """On a lattice the sum is cut, and not the row of every person."""
    rows = [clip(gradient(MODEL, records), mechanism.clip_norm) for records in some]
    total = mechanism.zeros(PARAMETERS)
    if rows:
        mechanism.add(total, np.sum(rows, axis=0))
    return mechanism.perturb_sum(total)


def silenced_by_one(mechanism, some):
    """A person without a finite gradient makes the silo's sum zero."""
    rows = [gradient(MODEL, records) for records in some]
    return apply_by_person(mechanism, rows if np.isfinite(rows).all() else [], PARAMETERS)


def not_scaled_down(mechanism, some):
    """The sum is not scaled down to the largest sum."""
    return sound(dataclasses.replace(mechanism, largest_sum=1e9), some)


def path(plan, by_person):
    """The real path of a plan, with another sum of persons."""
    return AuditedPath(plan=plan, by_person=by_person)


def rows_of_batch(mechanism, rows, parameters):
    return apply_by_person(mechanism, [np.sum([*rows, np.zeros(parameters)], axis=0)], parameters)


def rows_not_clipped(mechanism, rows, parameters):
    return apply_by_person(dataclasses.replace(mechanism, clip_norm=1e6 * mechanism.clip_norm), rows, parameters)


def rows_of_three_records(mechanism, rows, parameters):
    """Every person has three records, each clipped by itself."""
    return apply_by_person(mechanism, [row / 3 for row in rows for _ in range(3)], parameters)


def rows_divided(declared):
    """The mean of the persons who are there, times the declared number."""

    def by_person(mechanism, rows, parameters):
        total = apply_by_person(mechanism, rows, parameters)
        return np.asarray(total * (declared / max(len(rows), 1))).astype(total.dtype)

    return by_person


def rows_with_memory():
    before = []

    def by_person(mechanism, rows, parameters):
        kept = [np.zeros(parameters), *before[-1:]]
        before.append(np.sum([np.zeros(parameters), *rows], axis=0))
        return apply_by_person(mechanism, [row + kept[-1] for row in rows], parameters)

    return by_person


def rows_cut_together(mechanism, rows, parameters):
    total = mechanism.zeros(parameters)
    mechanism.add(total, np.sum([np.zeros(parameters), *[clip(row, mechanism.clip_norm) for row in rows]], axis=0))
    return mechanism.perturb_sum(total)
