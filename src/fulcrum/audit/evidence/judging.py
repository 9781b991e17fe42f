"""Judges tests of noise: the error that every test may have, and the sentence for every failed test."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.audit.evidence.findings import Probe, Reasons
from fulcrum.audit.evidence.noise_tests import Width, bin_counts, lag_correlation, narrowest, repetition, shape_p_value

_NOISE_SHARE = 0.1
"""The part of the allowed error that tests of the noise share; the bounds on epsilon share the rest."""

_BOUNDS = 3  # of a view: two lower bounds on epsilon, and an upper bound on the reach of the observer

_NOISE_TESTS = 12
"""Tests of a view: clip, too little and too much noise, the narrowest round, freshness, shape, low bits; of single
silos' noise: too little, too much, freshness, shape, and equal draws of two silos."""

_PROBE_TESTS = 8
"""Tests of a probe: clip, too little and too much noise, narrowest round and coordinate, freshness, shape, chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Allowed error of every test, so that all tests together fail with at most one minus the confidence.

    Attributes:
        bound: Error of each of the two lower bounds of a view, and of the upper bound.
        noise: Error of a single test of noise.
        tests: Number of all tests.
    """

    bound: float
    noise: float
    tests: int

    @classmethod
    def share(cls, views: int, probes: int, confidence: float) -> "Errors":
        """Returns the errors for a number of views and a number of probes."""
        allowed = 1 - confidence
        bounds, noise = _BOUNDS * views, _NOISE_TESTS * views + _PROBE_TESTS * probes
        return cls(
            bound=(1 - _NOISE_SHARE) * allowed / max(bounds, 1),
            noise=_NOISE_SHARE * allowed / noise,
            tests=bounds + noise,
        )


def judge_width(what: str, width: Width, error: float, reasons: Reasons) -> None:
    """Adds a reason to `reasons` if the noise called `what` is too narrow or too wide; `error` is the test's level."""
    if width.too_little < error:
        reasons.violated.append(f"{what} is {width.ratio:.1%} as wide as the plan says.")
    elif width.too_much < error:
        reasons.looser.append(f"{what} is {width.ratio:.3g} times as wide as the plan says.")


def judge_rounds(what: str, squares: FloatArray, count: int, error: float, reasons: Reasons) -> None:
    """Adds a violation to `reasons` if the noise called `what` is too narrow in a round.

    Args:
        what: The name of the noise, for the sentence.
        squares: By round, the sum of the squared noise, in widths of the plan.
        count: The number of values of a round.
        error: The level of the test.
        reasons: The reasons so far.
    """
    least = narrowest(squares, count)
    if least.p_value < error:
        reasons.violated.append(f"In round {least.place} {what} is {least.ratio:.1%} as wide as the plan says.")


def judge_shape(what: str, counts: IntArray, error: float, reasons: Reasons) -> None:
    """Adds a violation to `reasons` if Pearson's test rejects a normal shape of the noise called `what`.

    `counts` are the numbers of draws by bin, and `error` is the test's level.
    """
    if shape_p_value(counts) < error:
        reasons.violated.append(f"{what} is not Gaussian, whatever its width.")


def judge_freshness(what: str, products: FloatArray, count: int, error: float, reasons: Reasons) -> None:
    """Adds a violation to `reasons` if the noise called `what` is not drawn anew in every round.

    Args:
        what: The name of the noise, for the sentence.
        products: (rounds, rounds), the sums of products of the noise in two rounds.
        count: The number of values of a round.
        error: The level of the test.
        reasons: The reasons so far.
    """
    repeated = repetition(products, count)
    if repeated is not None and repeated.p_value < error:
        first, second = repeated.two
        reasons.violated.append(
            f"{what} is not fresh: between rounds {first} and {second} its correlation is {repeated.correlation:.3f}."
        )


def probe(
    of: str, node: str, scaled: FloatArray, errors: Errors, updates: FloatArray | None = None, *, parameters: int
) -> Probe:
    """Returns the verdict on some noise, (rounds, values), divided by the width that the plan states.

    Args:
        of: The part that drew the noise.
        node: The region or silo.
        scaled: The noise: sums or releases minus clipped updates.
        errors: Allowed error of every test.
        updates: The clipped updates, divided by the same width, for updates that were larger before the clip: a further
            part of them in the noise means that the clip failed.
        parameters: Coordinates of an update; `scaled` holds the coordinates of several runs one after the other.
    """
    reasons = Reasons()
    measured = Width(squares=float(np.einsum("tv,tv->", scaled, scaled)), count=scaled.size)
    if updates is not None:
        power = float(np.einsum("tv,tv->", updates, updates))
        excess = float(np.einsum("tv,tv->", scaled, updates)) / math.sqrt(power)  # standard normal
        if special.ndtr(-excess) < errors.noise:
            times = 1 + excess / math.sqrt(power)
            reasons.violated.append(f"Canaries arrive {times:.3g} times as large as the clip admits.")
    judge_width(f"The noise of {of}", measured, errors.noise, reasons)
    judge_freshness(f"The noise of {of}", scaled @ scaled.T, scaled.shape[1], errors.noise, reasons)
    judge_rounds(f"the noise of {of}", np.einsum("tv,tv->t", scaled, scaled), scaled.shape[1], errors.noise, reasons)
    judge_shape(f"The noise of {of}", bin_counts(scaled), errors.noise, reasons)
    _judge_coordinates(of, scaled.reshape(-1, parameters), errors, reasons)
    return Probe(
        of=of,
        node=node,
        values=scaled.size,
        noise_ratio=measured.ratio,
        verdict=reasons.verdict,
        reasons=reasons.sentences,
    )


def _judge_coordinates(of: str, draws: FloatArray, errors: Errors, reasons: Reasons) -> None:
    """Adds a violation unless noise is present and drawn anew in every coordinate.

    Args:
        of: The part that drew the noise, for the sentence.
        draws: The noise, (draws, coordinates), in widths of the plan.
        errors: The levels of all tests.
        reasons: The reasons so far.
    """
    least = narrowest(np.einsum("dc,dc->c", draws, draws), len(draws))
    if least.p_value < errors.noise:
        reasons.violated.append(
            f"In coordinate {least.place} the noise of {of} is {least.ratio:.1%} as wide as the plan says."
        )
    chain = lag_correlation(draws)
    if chain is not None and chain.p_value < errors.noise:
        reasons.violated.append(
            f"The noise of {of} is not drawn anew for every coordinate: between those {chain.distance} apart its "
            f"correlation is {chain.correlation:.3f}."
        )
