"""Sums of a softmax head's gradients, clipped by person, for many silos and all variants together.

The gradient of a record is an outer product: inputs times (class probabilities minus the label). So the norm of a
person with one record is |inputs| |probabilities - label|, and no gradient of the person is ever written down. Persons
with several records are summed in chunks of bounded memory. The sum of clipped gradients is then one matrix product:
inputs, times probabilities minus labels, every record times the clip factor of its person.
"""

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.mechanism import clip_factor
from fulcrum.simulation.data.person_groups import PersonGroups
from fulcrum.simulation.embedded.models import softmax

_NUMBERS_AT_ONCE = 1 << 21  # 16 MiB: numbers of a chunk, of one person at least


def clipped_sums(
    models: FloatArray,
    inputs: FloatArray,
    labels: IntArray,
    groups: PersonGroups,
    silos: slice,
    *,
    clip_norm: FloatArray,
    clip_share: FloatArray,
) -> FloatArray:
    """Returns by silo and variant the sum over persons of the clipped, negative gradient of the summed cross-entropy.

    Neighbouring relation: all records of one person at one silo. Guarantees for every silo and variant:

    - the records of one person change the sum by at most twice the clip norm, for any number of records;
    - a person whose gradient is not finite adds zero, and every other person adds the same as without that person;
    - a silo without persons has the sum zero.

    Args:
        models: The global models, (features + 1, classes, variants).
        inputs: All training records with the bias column, (records, features + 1).
        labels: The class of every training record.
        groups: The persons of every silo.
        silos: The silos to sum, without a step.
        clip_norm: By variant, the largest norm of a person's gradient; infinite without a clip.
        clip_share: By variant, the share of the clip norm at which gradients are clipped before scaling up.

    Returns:
        The sums, (silos, features + 1, classes, variants).
    """
    width, classes, variants = models.shape
    sums = np.zeros((silos.stop - silos.start, width, classes * variants))
    first, last = int(groups.silos[silos.start]), int(groups.silos[silos.stop])
    for begin, end in _chunks(groups.starts, first, last, _NUMBERS_AT_ONCE // (classes * variants + width)):
        start, stop = int(groups.starts[begin]), int(groups.starts[end])
        rows = groups.records[start:stop]
        features = inputs[rows]
        with np.errstate(over="ignore", invalid="ignore"):  # a gradient that is not finite becomes zero below
            scores = (features @ models.reshape(width, -1)).reshape(len(rows), classes, variants)
            residual = -softmax(scores, axis=1)
            residual[np.arange(len(rows)), labels[rows]] += 1
            sizes = _person_norms(features, residual, groups.starts[begin : end + 1] - start)
        finite = np.isfinite(sizes)
        factors = np.where(finite, clip_factor(np.where(finite, sizes, 0.0), clip_norm, clip_share), 0.0)
        person_of = np.repeat(np.arange(end - begin), np.diff(groups.starts[begin : end + 1]))
        residual *= factors[person_of][:, None, :]
        if not finite.all():  # zero times NaN or infinity is not zero
            residual = np.where(finite[person_of][:, None, :], residual, 0.0)
            features = np.where(np.isfinite(features), features, 0.0)
        flat = residual.reshape(len(rows), -1)
        for silo in range(silos.start, silos.stop):
            low, high = max(int(groups.silos[silo]), begin), min(int(groups.silos[silo + 1]), end)
            if low < high:
                part = slice(int(groups.starts[low]) - start, int(groups.starts[high]) - start)
                sums[silo - silos.start] += features[part].T @ flat[part]
    return sums.reshape(-1, width, classes, variants)


def _chunks(starts: IntArray, first: int, last: int, rows: int) -> list[tuple[int, int]]:
    """Divides the persons from `first` to `last` (exclusive) into chunks of at most `rows` records.

    Returns first person and end (exclusive) of every chunk. A chunk has at least one person.
    """
    chunks, begin = [], first
    while begin < last:
        end = int(np.searchsorted(starts, starts[begin] + max(rows, 1), side="right")) - 1
        end = min(max(end, begin + 1), last)
        chunks.append((begin, end))
        begin = end
    return chunks


def _person_norms(features: FloatArray, residual: FloatArray, starts: IntArray) -> FloatArray:
    """Returns by person and variant the norm of the summed gradient; NaN or infinity if the sum is not finite.

    Args:
        features: Inputs by record, a person's records side by side.
        residual: By record, class and variant.
        starts: The first record of every person, and at the end the number of records.
    """
    counts = np.diff(starts)
    norms = np.empty((len(counts), residual.shape[2]))
    single = counts == 1
    rows = starts[:-1][single]
    norms[single] = _norms(features[rows])[:, None] * np.sqrt(np.einsum("rcv,rcv->rv", residual[rows], residual[rows]))
    several = np.flatnonzero(~single)
    if not len(several):
        return norms
    # Only the norms of sums are kept. Norms from inner products of records would need no sums, but lose all digits
    # where the gradients of a person's records cancel.
    ends = np.concatenate([[0], np.cumsum(counts[several])])
    records = np.repeat(starts[several] - ends[:-1], counts[several]) + np.arange(ends[-1])
    width, many = features.shape[1], residual[0].size
    for begin, end in _chunks(ends, 0, len(several), _NUMBERS_AT_ONCE // (width * many)):
        chosen = records[ends[begin] : ends[end]]
        products = features[chosen][:, :, None] * residual[chosen].reshape(len(chosen), 1, -1)
        sums = np.add.reduceat(products, ends[begin:end] - ends[begin], axis=0)
        flat = sums.reshape(end - begin, -1, residual.shape[2])
        norms[several[begin:end]] = _norms(np.moveaxis(flat, 2, 1))
    return norms


def _norms(vectors: FloatArray) -> FloatArray:
    """Returns the L2 norms over the last axis; squares of large numbers do not overflow."""
    largest = np.abs(vectors).max(axis=-1, initial=0.0)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    scaled = vectors / scale[..., None]
    return np.asarray(scale * np.sqrt(np.einsum("...i,...i->...", scaled, scaled)))
