"""What tests of noise come to: how often each may err, and what each says in a sentence."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.audit.evidence.findings import Probe, Reasons
from fulcrum.audit.evidence.noise_tests import Width, binned, chained, narrowest, repetition, shape_p_value

_NOISE_SHARE = 0.1
"""The part of the allowed error that tests of the noise share; the bounds on epsilon share the rest."""

_BOUNDS = 3  # of a view: two lower bounds on epsilon, and what its observer does not reach beyond

_NOISE_TESTS = 12
"""Of a view: clip, too little and too much noise, its narrowest round, freshness, shape, low bits; and of single silos'
noise too little, too much, freshness, shape, and whether two silos draw the same."""

_PROBE_TESTS = 8
"""Of a probe: clip, too little and too much noise, its narrowest round and coordinate, freshness, shape, chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What each test may fail with, so that all together fail with one minus the confidence at most.

    Attributes:
        bound: Of each of the two lower bounds of a view, and of the upper one.
        noise: Of each test of noise.
        tests: How many that is together.
    """

    bound: float
    noise: float
    tests: int

    @classmethod
    def shared(cls, views: int, probes: int, confidence: float) -> "Errors":
        """Returns the errors of so many views, and of so many probes beside them."""
        allowed = 1 - confidence
        bounds, noise = _BOUNDS * views, _NOISE_TESTS * views + _PROBE_TESTS * probes
        return cls(
            bound=(1 - _NOISE_SHARE) * allowed / max(bounds, 1),
            noise=_NOISE_SHARE * allowed / noise,
            tests=bounds + noise,
        )


def judge_width(what: str, width: Width, error: float, reasons: Reasons) -> None:
    """Adds what the width of some noise says."""
    if width.too_little < error:
        reasons.violated.append(f"{what} is {width.ratio:.1%} as wide as the plan says.")
    elif width.too_much < error:
        reasons.looser.append(f"{what} is {width.ratio:.3g} times as wide as the plan says.")


def judge_rounds(what: str, squares: FloatArray, count: int, error: float, reasons: Reasons) -> None:
    """Adds what the width of some noise says round by round."""
    found = narrowest(squares, count)
    if found.p_value < error:
        reasons.violated.append(f"In round {found.place} {what} is {found.ratio:.1%} as wide as the plan says.")


def judge_shape(what: str, counts: IntArray, error: float, reasons: Reasons) -> None:
    """Adds whether some noise is distributed as the plan says."""
    if shape_p_value(counts) < error:
        reasons.violated.append(f"{what} is not Gaussian, whatever its width.")


def judge_freshness(what: str, products: FloatArray, count: int, error: float, reasons: Reasons) -> None:
    """Adds whether some noise is fresh in every round."""
    repeated = repetition(products, count)
    if repeated is not None and repeated.p_value < error:
        first, second = repeated.two
        reasons.violated.append(
            f"{what} is not fresh: between rounds {first} and {second} its correlation is {repeated.correlation:.3f}."
        )


def probe(
    of: str, node: str, scaled: FloatArray, errors: Errors, known: FloatArray | None = None, *, parameters: int
) -> Probe:
    """Returns what some noise says, (rounds, values), divided by the width that the plan states.

    Args:
        of: What drew it.
        node: Where.
        scaled: What is left when clipped updates are taken off.
        errors: What each test may fail with.
        known: Those updates, divided alike, where they are known to be larger before they are clipped: what arrives of
            them beyond that is no noise.
        parameters: How many coordinates an update has; `scaled` holds those of several runs one after the other.
    """
    reasons = Reasons()
    measured = Width(squares=float(np.einsum("tv,tv->", scaled, scaled)), count=scaled.size)
    if known is not None:
        power = float(np.einsum("tv,tv->", known, known))
        excess = float(np.einsum("tv,tv->", scaled, known)) / math.sqrt(power)  # standard normal
        if special.ndtr(-excess) < errors.noise:
            times = 1 + excess / math.sqrt(power)
            reasons.violated.append(f"Canaries arrive {times:.3g} times as large as the clip admits.")
    judge_width(f"The noise of {of}", measured, errors.noise, reasons)
    judge_freshness(f"The noise of {of}", scaled @ scaled.T, scaled.shape[1], errors.noise, reasons)
    judge_rounds(f"the noise of {of}", np.einsum("tv,tv->t", scaled, scaled), scaled.shape[1], errors.noise, reasons)
    judge_shape(f"The noise of {of}", binned(scaled), errors.noise, reasons)
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
    """Adds whether noise, (draws, coordinates), is in every coordinate and drawn anew for each."""
    least = narrowest(np.einsum("dc,dc->c", draws, draws), len(draws))
    if least.p_value < errors.noise:
        reasons.violated.append(
            f"In coordinate {least.place} the noise of {of} is {least.ratio:.1%} as wide as the plan says."
        )
    chain = chained(draws)
    if chain is not None and chain.p_value < errors.noise:
        reasons.violated.append(
            f"The noise of {of} is not drawn anew for every coordinate: between those {chain.distance} apart its "
            f"correlation is {chain.correlation:.3f}."
        )
