"""Many replays of a stage: every observer's view, scored by a rule from a pilot, and counted.

The sign of the canary is random in every replay and fixed over the rounds, times a pattern that every observer knows:
plus and minus in turn. Noise that is used again in another round then cancels between rounds of opposite signs, and the
reuse shows. In a plain sum reused noise would grow, and hide the canary better than fresh noise does.
"""

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.audit.evidence.guessing import Tally, Thresholds, tally, thresholds_from
from fulcrum.audit.evidence.noise_tests import BINS, Width, bin_counts, moduli, phases
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.audit.replays.played_observers import Stage, View, known_signal, silos_of
from fulcrum.core.noise.mechanism import Values

CHUNK = 16_384
"""The most replays in a chunk."""

_AT_ONCE = 2**24  # numbers of silos, or of views over the rounds, that a thread holds: 128 MiB
_MOST_THREADS = 8

MOST_PILOT = 20_000
"""The most replays of a pilot."""

_STREAM = 0x6175646974  # separates the signs from all other uses of the seed
_BITS_LOOKED_AT = 50_000  # sums whose low bits are looked at, a view
_PAIRS_LOOKED_AT = 4_000_000  # numbers of single silos that are compared over rounds
_FEWEST_COMPARED = 64  # replays in that comparison, for any number of silos and rounds
_PLAINLY = 6.0  # standard deviations; uniform residues deviate as far with probability e^-36
_MOST_BETWEEN = 256  # silos of a stage whose noise is compared in pairs
_SHAPES_LOOKED_AT = 400_000  # sums whose distribution is looked at, a view
_FINE = 2.0**14  # steps of a lattice in a width of noise, above which the noise is practically continuous
_MANY_FOR_EACH = 10  # replays of half a pilot for every weight that is chosen on it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Score:
    """A rule that turns an observer's view of a replay into a number.

    Attributes:
        weights: By row and round.
        modulus: In steps of the lattice; with a modulus the observer scores the residues of sums.
    """

    weights: FloatArray
    modulus: int | None = None

    def of(self, seen: Values, step: float) -> FloatArray:
        """Returns the score of every replay; `seen` is (rows, rounds, replays), in steps."""
        if self.modulus is None:
            return np.tensordot(self.weights, seen * step, axes=2)
        residues = np.sin(phases(seen[0].astype(np.int64), self.modulus))
        return np.asarray(self.weights[0] @ residues)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of all replays for an observer.

    Attributes:
        view: The observer's view.
        rare: Guesses by the rule for the bound without assumptions.
        usual: Guesses by the rule for the bound on a Gaussian trade-off.
        noise: The observed noise, without the canary; None if no noise is claimed.
        turns: By modulus, the sum of exp(i phase) of the observed values; empty in research.
        looked_at: Number of sums in `turns`.
        shape: Counts of the noise of some sums by interval (`fulcrum.audit.evidence.noise_tests.bin_counts`).
        modulus: The modulus of the observer's score, if any.
        messages: Number of messages of a node in a round; the plan has one.
    """

    view: View
    rare: Tally
    usual: Tally
    noise: "SeenNoise | None"
    turns: dict[int, complex]
    looked_at: int
    shape: IntArray
    modulus: int | None
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNoise:
    """The observed noise of rounds, without the canary, in widths of the plan's claim.

    Attributes:
        response: The shift by the canary, over the shift that the clip admits.
        error: The standard error of `response`.
        width: The width of the noise.
        products: (rounds, rounds), the sums over replays of products of the noise in two rounds.
        count: Number of replays.
    """

    response: float
    error: float
    width: Width
    products: FloatArray
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """The results of the replays of a stage.

    Attributes:
        stage: The game.
        readings: The result for every view.
        silos: By silo of the stage that draws noise, the width of the noise.
        products: (rounds, rounds), products of single silos' noise in two rounds.
        compared: Number of values of single silos in a round.
        between: (silos, silos), products of the noise of two silos: the first 256 silos of the stage that draw noise.
        shapes: By silo that draws noise, counts of the noise by interval.
        trials: Counted replays, without the pilot.
    """

    stage: Stage
    readings: tuple[Reading, ...]
    silos: dict[int, Width]
    products: FloatArray
    compared: int
    between: FloatArray
    shapes: dict[int, IntArray]
    trials: int


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """The views of some replays, and the noise of single silos.

    Attributes:
        positive: By replay, True if the canary has its first sign.
        seen: By view, the values that the observer sees, (rows, rounds, replays).
        squares: By silo, the sum of the squared noise, in widths claimed.
        silo_noise: The noise of single silos in some replays, (rounds, silos, replays), in widths claimed.
    """

    positive: BoolArray
    seen: list[Values]
    squares: FloatArray
    silo_noise: FloatArray


@dataclass(slots=True, kw_only=True)
class _Counts:
    """Sums over the replays of a view.

    Attributes:
        right: The number of right guesses by threshold, "rare" or "usual".
        wrong: The number of wrong guesses by threshold.
        replays: The number of replays.
        sums: By round, the sum of the values that the observer sees, with the canary's sign of the round removed.
        products: (rounds, rounds), the sums of products of these values in two rounds.
        turns: By modulus, the sum of exp(i phase) of the observed integers; empty in research.
        looked_at: The number of integers in `turns`.
        shape: Counts of the noise by interval.
    """

    right: dict[str, int] = field(default_factory=lambda: {"rare": 0, "usual": 0})
    wrong: dict[str, int] = field(default_factory=lambda: {"rare": 0, "usual": 0})
    replays: int = 0
    sums: FloatArray
    products: FloatArray
    turns: dict[int, complex]
    looked_at: int = 0
    shape: IntArray = field(default_factory=lambda: np.zeros(BINS, dtype=np.intp))


def replay_stage(
    path: AuditedPath,
    stage: Stage,
    *,
    trials: int,
    seed: int,
    error: float,
    on_replays: Callable[[int], None] | None = None,
    threads: int | None = None,
) -> Replays:
    """Plays a stage many times.

    Args:
        path: The mechanism.
        stage: The game.
        trials: Number of replays, including the pilot.
        seed: Seed of signs, and of the noise in research; deployed noise cannot be drawn again.
        error: Allowed error of every bound; the pilot chooses thresholds for it.
        on_replays: Called with the number of replays done.
        threads: Number of chunks at once; the processor count by default, at most 8. The number does not change the
            result.
    """
    plan, rounds = path.plan, path.plan.rounds
    pilot = min(MOST_PILOT, max(trials // 5, 1))
    together = min(CHUNK, max(_AT_ONCE // max(stage.silos, rounds * len(stage.views)), 1))
    sizes = [*_chunks(pilot, together), *_chunks(trials - pilot, together)]
    pilots = len(list(_chunks(pilot, together)))
    compare = min(sizes[0], max(_FEWEST_COMPARED, _PAIRS_LOOKED_AT // (stage.silos * rounds)))
    pattern = pattern_of(rounds)
    silos = silos_of(stage)
    squares, silo_noise = np.zeros(len(silos)), np.zeros((rounds, len(silos), 0))
    counts = [
        _Counts(
            sums=np.zeros(rounds), products=np.zeros((rounds, rounds)), turns=dict.fromkeys(_moduli(path, view), 0j)
        )
        for view in stage.views
    ]
    rules: list[tuple[Score, Thresholds]] = []
    first: list[_Chunk] = []
    done = 0
    with ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        played = pool.map(
            lambda number: _play_chunk(
                path, stage, sizes[number], (seed << 20) + number, compare=0 if number else compare
            ),
            range(len(sizes)),
        )
        for number, chunk in enumerate(played):
            squares += chunk.squares
            silo_noise = chunk.silo_noise if number == 0 else silo_noise
            for place, view in enumerate(stage.views):
                _add_noise(counts[place], path, view, chunk.seen[place], chunk.positive, pattern)
            if number < pilots:
                first.append(chunk)
                if number == pilots - 1:
                    rules = _rules(path, stage, first, pattern, counts, trials=trials - pilot, error=error)
                    first.clear()
            else:
                for (score, at), seen, count in zip(rules, chunk.seen, counts, strict=True):
                    scores = score.of(seen, path.step)
                    for name, threshold in (("rare", at.rare), ("usual", at.usual)):
                        guesses = tally(scores, chunk.positive, threshold)
                        count.right[name] += guesses.right
                        count.wrong[name] += guesses.wrong
            done += sizes[number]
            if on_replays is not None:
                on_replays(done)
    counted = trials - pilot
    drawing = np.flatnonzero(plan.noise_multiplier[silos] > 0)
    if len(drawing) < len(silos):
        silo_noise = silo_noise[:, drawing]
    flat = silo_noise.reshape(rounds, -1)
    by_silo = silo_noise[:, :_MOST_BETWEEN].swapaxes(0, 1).reshape(-1, rounds * silo_noise.shape[2])
    fine = {place for place in drawing.tolist() if _fine(path, math.sqrt(float(plan.noise_variance[silos[place]])))}
    return Replays(
        stage=stage,
        readings=tuple(
            _reading(view, count, rule[0], counted, known_signal(plan, stage, view), _sums_of(stage, view))
            for view, count, rule in zip(stage.views, counts, rules, strict=True)
        ),
        silos={
            int(silos[place]): Width(squares=float(squares[place]), count=trials * rounds) for place in drawing.tolist()
        },
        products=flat @ flat.T,
        compared=flat.shape[1],
        between=by_silo @ by_silo.T,
        shapes={
            int(silos[place]): bin_counts(silo_noise[:, at])
            for at, place in enumerate(drawing.tolist())
            if place in fine
        },
        trials=counted,
    )


def pattern_of(rounds: int) -> FloatArray:
    """Returns the signs that a canary takes over the rounds."""
    return np.where(np.arange(rounds) % 2 == 0, 1.0, -1.0)


def _chunks(replays: int, most: int) -> Iterator[int]:
    for start in range(0, replays, most):
        yield min(most, replays - start)


def _play_chunk(path: AuditedPath, stage: Stage, replays: int, seed: int, *, compare: int) -> _Chunk:
    """Plays some replays of a stage, and compares single silos over the rounds in a part of the replays."""
    plan, rounds = path.plan, path.plan.rounds
    positive = np.random.default_rng([_STREAM, seed]).random(replays) < 0.5
    signs, nothing = np.where(positive, 1.0, -1.0), np.zeros(replays)
    silos = silos_of(stage)
    place = {int(silo): where for where, silo in enumerate(silos)}
    widths = plan.noise_multiplier[silos] * plan.federation.weights[silos] * plan.clip_norm / path.step
    squares = np.zeros(len(silos))
    silo_noise = np.zeros((rounds, len(silos), compare))
    seen: list[list[Values]] = [[] for _ in stage.views]
    for number, sign in enumerate(pattern_of(rounds), 1):
        sent: dict[int, Values] = {}
        for silo in place:
            own = signs * sign if silo in stage.canary_silos else nothing
            sent[silo] = path.released(path, silo, number, own, seed)
            width = widths[place[silo]]
            if width > 0:
                noise = sent[silo].astype(np.float64, copy=False)
                if silo in stage.canary_silos:
                    # The canary's shift is estimated and subtracted, which costs one degree of freedom.
                    noise = (noise - own * float(own @ noise) / replays) * math.sqrt(replays / max(replays - 1, 1))
                squares[place[silo]] += float(noise @ noise) / width**2
                silo_noise[number - 1, place[silo]] = noise[:compare] / width
        for view, rows in zip(stage.views, seen, strict=True):
            rows.append(_observe(path, stage, view, sent, number, seed))
    together = [np.stack(rows, axis=1) for rows in seen]
    return _Chunk(positive=positive, seen=together, squares=squares, silo_noise=silo_noise)


def _observe(path: AuditedPath, stage: Stage, view: View, sent: dict[int, Values], number: int, seed: int) -> Values:
    """Returns an observer's view of a round, (rows, replays), without the releases of colluders."""
    if view.single:
        return np.stack([sent[silo] for silo in stage.canary_silos])
    away = set(view.missing)
    by_region = []
    for region, members in stage.members.items():
        heard = [sent[silo] for silo in members if silo not in away]
        if heard:
            by_region.append(path.sent_up(path, region, heard, number, seed))
    if stage.is_apart or len(stage.members) == 1:
        shown = np.concatenate(by_region)
    else:
        shown = path.sent_out(path, stage.node, [messages[0] for messages in by_region], number)
    for silo in view.colluders:
        shown[0] -= sent[silo]
    return shown


def _fine(path: AuditedPath, width: float) -> bool:
    """Returns True for noise of so many steps of the lattice that its distribution is practically continuous.

    Args:
        path: The mechanism.
        width: Standard deviation of the noise, in units of the clip norm.
    """
    return path.plan.is_research or width * path.plan.clip_norm >= _FINE * path.step


def _moduli(path: AuditedPath, view: View) -> list[int]:
    return moduli(view.noise_std / path.step) if path.plan.is_deployment else []


def _add_noise(
    count: _Counts, path: AuditedPath, view: View, seen: Values, positive: BoolArray, pattern: FloatArray
) -> None:
    """Adds a view to the counts, multiplied by the canary's sign: symmetric noise keeps its distribution."""
    sent = pattern[:, None] * np.where(positive, 1, -1)
    if view.noise_std:
        turned = sent * seen[0] * (path.step / view.noise_std)
        if not count.replays and turned.shape[1] > 1 and _fine(path, view.noise_std / path.plan.clip_norm):
            some = turned[:, : max(_SHAPES_LOOKED_AT // len(turned), 2)]
            count.shape += bin_counts(some - some.mean(axis=1, keepdims=True))
        count.replays += turned.shape[1]
        count.sums += turned.sum(axis=1)
        count.products += turned @ turned.T
    if count.turns and count.looked_at < _BITS_LOOKED_AT:
        integers = seen[0] * sent.astype(np.int64)
        for modulus in count.turns:
            count.turns[modulus] += complex(np.exp(1j * phases(integers, modulus)).sum())
        count.looked_at += integers.size


def _noise(count: _Counts, signal: float) -> SeenNoise | None:
    """Returns the noise of a view, for any shift by the canary; `signal` is the shift that the clip admits."""
    if count.replays < 2:
        return None
    rounds = len(count.sums)
    centred = count.products - np.outer(count.sums, count.sums) / count.replays
    width = Width(squares=float(np.trace(centred)), count=(count.replays - 1) * rounds)
    return SeenNoise(
        response=float(count.sums.mean()) / count.replays / signal,
        error=max(width.ratio, 1.0) / (signal * math.sqrt(count.replays * rounds)),
        width=width,
        products=centred,
        count=count.replays - 1,
    )


def _rules(
    path: AuditedPath,
    stage: Stage,
    chunks: list[_Chunk],
    pattern: FloatArray,
    counts: list[_Counts],
    *,
    trials: int,
    error: float,
) -> list[tuple[Score, Thresholds]]:
    """Chooses on the pilot replays a score and its thresholds; returns both for every view of the stage, in order."""
    positive = np.concatenate([chunk.positive for chunk in chunks])
    rules = []
    for place in range(len(stage.views)):
        seen = np.concatenate([chunk.seen[place] for chunk in chunks], axis=2)
        score = _score(seen, positive, pattern, path.step, _bare_moduli(counts[place]))
        scores = score.of(seen, path.step)
        delta = path.plan.delta
        rules.append((score, thresholds_from(scores, positive, trials=trials, error=error, delta=delta)))
    return rules


def _score(seen: Values, positive: BoolArray, pattern: FloatArray, step: float, tried: list[int]) -> Score:
    """Returns the score that separates the canary's signs best on the pilot."""
    signs = np.where(positive, 1.0, -1.0)
    linear = _linear(seen * step, signs, pattern)
    best, strength = linear, _strength(linear.of(seen, step) * signs)
    for modulus in tried:
        other = Score(weights=pattern[None] * 1.0, modulus=modulus)
        promise = _strength(other.of(seen, step) * signs)
        if abs(promise) > strength:
            best, strength = Score(weights=other.weights * np.sign(promise), modulus=modulus), abs(promise)
    return best


def _bare_moduli(count: _Counts) -> list[int]:
    """Returns the moduli at which the values so far are clearly not uniform; noise alone never causes such values."""
    return [modulus for modulus, turn in count.turns.items() if abs(turn) > _PLAINLY * math.sqrt(count.looked_at)]


def _linear(seen: FloatArray, signs: FloatArray, pattern: FloatArray) -> Score:
    """Returns the better of two linear scores: with equal rounds, or weighted by the covariance of the noise.

    For noise that is fresh and equally wide in every round the first score is optimal, and the second loses by the
    pilot's random error in the covariance. The second must therefore win on a half of the pilot that was not used for
    the fit.
    """
    half, chosen = seen.shape[2] // 2, len(seen) if len(seen) > 1 else seen.shape[1]
    plain = Score(weights=_weights(seen, signs, pattern, fitted=False))
    if chosen < 2 or half < _MANY_FOR_EACH * chosen:
        return plain
    tried = Score(weights=_weights(seen[..., :half], signs[:half], pattern, fitted=True))
    promises = [_strength(score.of(seen[..., half:], 1.0) * signs[half:]) for score in (plain, tried)]
    return plain if promises[0] >= promises[1] else Score(weights=_weights(seen, signs, pattern, fitted=True))


def _weights(seen: FloatArray, signs: FloatArray, pattern: FloatArray, *, fitted: bool) -> FloatArray:
    """Returns the weights of a view: the canary's part, and with `fitted` divided by the covariance of the noise.

    The canary's part is the same in every round. With several messages in a round, the canary's part of every message
    is estimated.
    """
    rows, rounds, replays = seen.shape
    turned = seen * pattern[:, None]
    if rows > 1:
        turned = turned.sum(axis=1)
        response = turned @ signs / replays
    else:
        turned = turned[0]
        response = np.ones(rounds)
    chosen = response
    if fitted:
        noise = turned - np.outer(turned @ signs / replays, signs)
        covariance = noise @ noise.T / replays
        ridge = 1e-9 * float(np.trace(covariance)) / len(turned) or 1.0
        chosen = np.linalg.solve(covariance + ridge * np.eye(len(turned)), response)
    by_row = chosen[:, None] * np.ones(rounds) if rows > 1 else chosen[None]
    return np.asarray(by_row * pattern)


def _strength(signed: FloatArray) -> float:
    """Returns the distance of scores from 0, in their own widths."""
    width = float(signed.std())
    return float(signed.mean()) / width if width > 0 else float(np.sign(signed.mean())) * 1e9


def _sums_of(stage: Stage, view: View) -> int:
    """Returns the number of sums, or of single releases, that an observer rightly sees in a round."""
    if view.single:
        return len(stage.canary_silos)
    return len(stage.members) if stage.is_apart else 1


def _reading(view: View, count: _Counts, score: Score, trials: int, signal: float, sums: int) -> Reading:
    tallies = {
        name: Tally(right=count.right[name], wrong=count.wrong[name], trials=trials) for name in ("rare", "usual")
    }
    return Reading(
        view=view,
        rare=tallies["rare"],
        usual=tallies["usual"],
        noise=_noise(count, signal / view.noise_std) if view.noise_std else None,
        turns=count.turns,
        looked_at=count.looked_at,
        shape=count.shape,
        modulus=score.modulus,
        messages=len(score.weights) - sums + 1,
    )
