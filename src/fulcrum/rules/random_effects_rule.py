"""The rule "random-effects": the server pools the sums of all rounds so far by their noise.

>>> rule = RandomEffectsRule(
...     shares=np.array([0.5, 0.5]),
...     weight=np.array([0.5, 0.5]),
...     variance=np.array([1e-4, 1e-4]),
...     least_noise=2e-4,
...     scale=0.9,
...     rounds=10,
... )
>>> state = rule.begin(np.zeros((3, 2)))
>>> values, present = np.full((2, 3, 2), 0.5) * [1, -1], np.ones(2, dtype=bool)
>>> state, diagnostics = rule.step(state, RoundSums(values=values, present=present, classes=2))
>>> state.model.shape, diagnostics.heard
((3, 2), 2)

For every region the server keeps a total: the sum of the region's sums so far, every round multiplied by the step of
the round. The totals are pooled (`random_effects`), and coordinates within the noise are shrunk (`shrinkage`): the
result is the displacement of the model from the start. The totals hold the sums as released; silos train on the shrunk
model. The same answers in the same order give the same bits.

The first step is near 1 for little noise and lower for much noise. Later steps follow the agreement between the last
round's estimate and the displacement so far: with agreement the step grows, without agreement the step falls. The
amount of noise depends on the model. A softmax head uses all coordinates, and the noise of all coordinates counts. A
large network has many coordinates, but the answers depend on few directions, and noise in the remaining directions does
no harm: the noise counts as if the network had 1,000 coordinates at most. In few rounds short steps move a model too
little, and noise has less time to add up: below 20 rounds the number of coordinates falls with the square of the
rounds. If all noise counted, a network would take short steps although long steps train it well. All of these numbers
are public, and known before the first round.

The constants were found by trial, and are the same everywhere. The constants for heads come from data and seeds outside
of all tables. The constants for networks were chosen with 1,860 to 30,010 parameters and 5 to 50 rounds, on held-out
training records of CIFAR-10 and on the test records of AG News, at seeds outside of the tables. Fewer than 1,000
coordinates suit networks with a random start better, more than 1,000 suit networks with a well trained start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.choices import EVEN, HEADS, SHRINKS_OF_HEADS, SPECTRUM
from fulcrum.errors import ParameterError
from fulcrum.rules.random_effects import mix_shares, mixing_share, pool_sums
from fulcrum.rules.regional_dispute import regions_dispute
from fulcrum.rules.server_rule import PlanFacts, RoundDiagnostics, RoundSums, ServerRule, ServerState
from fulcrum.rules.shrinkage import even_out, shrink_rows
from fulcrum.rules.spectrum_prior import shrink_by_one_scale, shrink_by_spectrum

_FIRST_STEP = 0.25  # with noise alone and no signal, for two classes
_NOISE_OF_DOUBT = 0.02  # at this `least_noise` the step follows agreement half as fast
_AGREEMENT = 0.15  # the agreement at which the step stays the same
_EVEN_POWER = 0.5  # of the factors of rows, with many classes
_EVENED_ABOVE = 4  # classes: the power falls from 1 with more of them
_COORDINATES_THAT_COUNT = 1000  # at most, for a model that is no softmax head
_ROUNDS_OF_THEM_ALL = 20  # with fewer rounds, fewer coordinates count

_AT_ONCE = 1 << 16  # coordinates of a region that are added up together, within the processor's cache
_ROUNDING = 1e-9  # relative, of sums of steps

# Names of the state's arrays: checkpoints store them, so the words of the first version stay.
DISPLACEMENT = "moved"
"""The displacement of the model from the model before round 1."""

REGIONAL_TOTALS = "said"
"""By region, the sum of the region's sums, every round multiplied by the step of the round."""

STEP_TOTALS = "heard"
"""By region, the sum of the steps of all rounds with a sum of the region."""

SLOPES = "slopes"
"""By region, the part of later sums along the displacement before each round, every round multiplied by its step."""

SLOPE_NOISE = "slope_noise"
"""By region, the variance of the noise in the region's slope."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RandomEffectsRule(ServerRule):
    """The rule "random-effects": pools the sums of all rounds so far over the regions that the plan names.

    The arrays of the state are "start", the model before round 1; `DISPLACEMENT`; `REGIONAL_TOTALS`; `STEP_TOTALS`; and
    "noise", by region the variance of the noise in a coordinate of the region's total. The numbers of the state are
    "steps", the sum of the steps of all rounds, and "step", the step of the last round. A rule with a larger least
    influence in a dispute (`regional_dispute`) also has the arrays `SLOPES` and `SLOPE_NOISE`.

    Attributes:
        shares: By region, the target share in the estimate.
        weight: By region, the sum of the silos' weights.
        variance: By region, the variance of the noise in a coordinate of the regional sum.
        least_noise: The noise budget of the least-noise weights.
        scale: From 0 to 1, the share of the clip norm at which updates are clipped before they are scaled up.
        rounds: T.
        clip_norm: C.
        shrinks: True to shrink coordinates within the noise for every model, False for no model, `HEADS` for softmax
            heads alone, whose signal is in few rows, one of `PRIORS` for heads by a prior of `spectrum_prior`, one of
            `EVEN` for the same with factors of rows that are nearer to each other in heads of more than four classes
            (`shrinkage.even_out`).
        spectrum: By input of a head, the public variance of the input, for `PRIORS`; None otherwise.
        least_influence: The least part of a region's share that the region's influence has, from 0 to 1.
        disputed_influence: The same for a softmax head while the sums show a dispute between regions, if larger.
    """

    name: ClassVar[str] = "random-effects"
    takes_shrink: ClassVar[bool] = True
    reused: ClassVar[tuple[str, ...]] = (REGIONAL_TOTALS,)
    clause: ClassVar[str] = "pools regional sums by their noise"
    sentences: ClassVar[str] = (
        "The server pools the sums of all rounds so far by their noise. Influence is what each {inner} has where they "
        "agree; as they differ it moves toward its share."
    )
    proviso: ClassVar[str] = "where {inner}s agree"

    shares: FloatArray
    weight: FloatArray
    variance: FloatArray
    least_noise: float
    scale: float
    rounds: int
    clip_norm: float = 1.0
    shrinks: bool | str = HEADS
    spectrum: FloatArray | None = None
    least_influence: float = 0.0
    disputed_influence: float = 0.0

    @classmethod
    def of(cls, facts: PlanFacts) -> Self:
        """Returns the rule for a plan."""
        plan = facts.plan
        return cls(
            shares=facts.shares,
            weight=facts.weight,
            variance=facts.variance,
            least_noise=facts.least_noise,
            scale=plan.clip_share,
            rounds=plan.rounds,
            clip_norm=plan.clip_norm,
            shrinks=plan.shrink,
            spectrum=None if plan.spectrum is None else np.array(plan.spectrum.variances),
            least_influence=plan.least_influence,
            disputed_influence=plan.disputed_influence,
        )

    @property
    def heeds_disputes(self) -> bool:
        """True if a dispute between regions changes the least influence."""
        return self.disputed_influence > self.least_influence

    def shrinks_head(self, classes: int | None) -> bool:
        """Returns True if a model with `classes` classes is shrunk; None is a model that is no softmax head."""
        return self.shrinks is True or (self.shrinks in SHRINKS_OF_HEADS and classes is not None)

    def check_model(self, shapes: Sequence[tuple[int, ...]], classes: int | None) -> None:
        """Raises `ParameterError` for a head whose rows are not those of the plan's input variances.

        The first rows are the inputs in the order of the variances; a last row, if any, is the bias.
        """
        if self.spectrum is None or classes is None:
            return
        rows = [math.prod(shape) // classes for shape in shapes]
        inputs = len(self.spectrum)
        if sum(rows) not in (inputs, inputs + 1) or rows[0] < inputs:
            raise ParameterError("rule.spectrum-rows", inputs=inputs, rows=sum(rows), first=rows[0])

    def shrink(self, rows: FloatArray, *, variance: FloatArray | float, free: int) -> FloatArray:
        """Returns the shrunk rows of an estimate, by row and class, and by variant if there are several.

        The arguments are those of `shrink_rows`.
        """
        if self.spectrum is None:
            shrunk_rows = shrink_rows(rows, variance=variance, free=free)
        else:
            bias = np.ones(len(rows) - len(self.spectrum))
            by_prior = shrink_by_spectrum if self.shrinks == SPECTRUM else shrink_by_one_scale
            shrunk_rows = by_prior(rows, np.concatenate([self.spectrum, bias]), variance=variance, free=free)
        if self.shrinks not in EVEN:
            return shrunk_rows
        return even_out(rows, shrunk_rows, power=max(_EVEN_POWER, min(_EVENED_ABOVE / (free + 1), 1.0)))

    @property
    def key(self) -> bytes:
        """Bytes of all settings: equal for rules with equal results."""
        shrinks = float(self.shrinks) if isinstance(self.shrinks, bool) else 2 + SHRINKS_OF_HEADS.index(self.shrinks)
        spectrum = np.empty(0) if self.spectrum is None else self.spectrum
        influence = [self.least_influence, self.disputed_influence]
        numbers = [shrinks, self.least_noise, self.scale, self.rounds, self.clip_norm, *influence]
        return np.concatenate([numbers, self.shares, self.weight, self.variance, spectrum]).tobytes()

    def region_factors(self) -> FloatArray:
        """Returns by region the factor of the sum if regions agree; differences move it toward the factor by size."""
        precision = self.weight**2 / self.variance
        share = precision / precision.sum()
        share = mix_shares(share, self.shares, mixing_share(share, self.shares, self.least_influence))
        return np.asarray(share / self.weight)

    def begin(self, start: FloatArray) -> ServerState:
        """Returns the state before the first sum."""
        regions = len(self.weight)
        slopes = {name: np.zeros(regions) for name in (SLOPES, SLOPE_NOISE) if self.heeds_disputes}
        return ServerState(
            model=start,
            arrays={
                **slopes,
                "start": start,
                DISPLACEMENT: np.zeros(start.shape),
                REGIONAL_TOTALS: np.zeros((regions, *start.shape)),
                STEP_TOTALS: np.zeros(regions),
                "noise": np.zeros(regions),
            },
            numbers={"steps": 0.0, "step": 0.0},
        )

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, RoundDiagnostics]:
        """Returns the state after a round, and the figures of the round. A round without sums leaves the state.

        The shift common to all classes of a softmax head changes no answer, and is projected out.
        """
        present, arrays = np.asarray(sums.present, dtype=bool), state.arrays
        if not present.any():
            zeros = RoundDiagnostics(heard=0, step=0.0, signal=0.0, noise=0.0, heterogeneity=0.0, shrunk=0.0)
            return state, zeros
        values = [np.reshape(region, -1) for region in sums.values]
        weight = self.weight if sums.weight is None else sums.weight
        noise = (self.variance if sums.variance is None else sums.variance) / weight**2
        step = _step(self, state, values, scale=sums.unit / weight, noise=noise, present=present, classes=sums.classes)
        steps = np.where(present, step, 0.0)
        room = sums.spare.get(REGIONAL_TOTALS)
        totals = _add_sums(arrays[REGIONAL_TOTALS], values, steps * sums.unit / weight, room)
        changed = {
            REGIONAL_TOTALS: totals.reshape(len(values), *state.model.shape),
            STEP_TOTALS: arrays[STEP_TOTALS] + steps,
            "noise": arrays["noise"] + steps**2 * noise,
        }
        if self.heeds_disputes and sums.classes is not None:
            changed |= _slopes(arrays, values, steps * sums.unit / weight, steps**2 * noise)
        numbers = {"steps": state.numbers["steps"] + step, "step": step}
        after = replace(state, arrays={**arrays, **changed}, numbers=numbers)
        return _move_model(self, after, totals, present=int(present.sum()), classes=sums.classes)

    def can_be(self, state: ServerState) -> bool:
        """Returns False for a state that no run can reach: a damaged or forged checkpoint would give a wrong model."""
        names = ("start", DISPLACEMENT, REGIONAL_TOTALS, STEP_TOTALS, "noise")
        start, displacement, totals, steps, noise = (state.arrays[name] for name in names)
        summed = steps > 0
        slope_noise = state.arrays.get(SLOPE_NOISE, noise)
        slopes = state.arrays.get(SLOPES, noise)
        return (
            bool(((slope_noise >= 0) & (slope_noise <= noise * (1 + _ROUNDING))).all())
            and bool(np.isfinite(slopes).all())
            and not slopes[slope_noise == 0].any()
            and np.array_equal(state.model, start + displacement)
            and state.numbers["step"] >= 0
            and bool(((steps >= 0) & (steps <= state.numbers["steps"] * (1 + _ROUNDING)) & (noise >= 0)).all())
            and bool((summed == (noise > 0)).all())
            and bool(summed.any()) == (state.numbers["step"] > 0)
            and not totals[~summed].any()
        )


def _add_sums(
    totals: FloatArray, sums: Sequence[np.ndarray[Any, Any]], factors: FloatArray, room: FloatArray | None
) -> FloatArray:
    """Returns the totals of regions plus the sums of a round times a factor by region, in the memory `room` if any."""
    before = totals.reshape(len(sums), -1)
    after = np.empty_like(before) if room is None else room.reshape(before.shape)
    for region, old, new, factor in zip(sums, before, after, factors, strict=True):
        for start in range(0, len(region), _AT_ONCE):
            piece = slice(start, start + _AT_ONCE)
            np.multiply(region[piece], factor, out=new[piece])
            new[piece] += old[piece]
    return after


def _slopes(
    arrays: Mapping[str, FloatArray], values: Sequence[np.ndarray[Any, Any]], factors: FloatArray, noise: FloatArray
) -> dict[str, FloatArray]:
    """Returns the slopes of regions and their noise after a round; without a displacement before, none changes."""
    displacement = arrays[DISPLACEMENT].reshape(-1)
    distance = _norm(displacement)
    if not distance:
        return {}
    along = np.array([_dot(region, displacement) for region in values]) / distance
    return {SLOPES: arrays[SLOPES] + factors * along, SLOPE_NOISE: arrays[SLOPE_NOISE] + noise}


def _least(rule: RandomEffectsRule, arrays: Mapping[str, FloatArray]) -> float:
    """Returns the least influence that the sums so far call for."""
    if not rule.heeds_disputes:
        return rule.least_influence
    disputed = regions_dispute(arrays[SLOPES], arrays[SLOPE_NOISE], arrays[STEP_TOTALS])
    return rule.disputed_influence if disputed else rule.least_influence


def _move_model(
    rule: RandomEffectsRule, state: ServerState, totals: FloatArray, *, present: int, classes: int | None
) -> tuple[ServerState, RoundDiagnostics]:
    """Returns the state with the model moved by the totals of all regions, and the figures of the round."""
    step_totals, start = state.arrays[STEP_TOTALS], state.arrays["start"]
    regions = np.flatnonzero(step_totals > 0)
    # A region with sums in some rounds alone stands for the missing rounds too: its total is scaled up, with its noise.
    whole = state.numbers["steps"] / step_totals[regions]
    pooled = pool_sums(
        [totals[region] for region in regions],
        variance=state.arrays["noise"][regions] * whole**2,
        shares=_among(rule.shares, regions),
        scale=whole,
        classes=classes,
        least=_least(rule, state.arrays),
    )
    displacement, variance = pooled.estimate, float(pooled.variance)
    if rule.shrinks_head(classes):
        rows = displacement.reshape(-1, classes or 1)
        displacement = rule.shrink(rows, variance=variance, free=(classes or 2) - 1).reshape(-1)
    free = displacement.size if classes is None else displacement.size // classes * (classes - 1)
    noise, size = math.sqrt(free * variance), _norm(pooled.estimate)
    displacement = displacement.reshape(start.shape)
    diagnostics = RoundDiagnostics(
        heard=present,
        step=state.numbers["step"],
        signal=math.sqrt(max(size**2 - noise**2, 0.0)),
        noise=noise,
        heterogeneity=float(pooled.heterogeneity),
        shrunk=1 - _norm(displacement) / size if size else 0.0,
    )
    arrays = {**state.arrays, DISPLACEMENT: displacement}
    return replace(state, model=start + displacement, arrays=arrays), diagnostics


def _step(
    rule: RandomEffectsRule,
    state: ServerState,
    values: Sequence[np.ndarray[Any, Any]],
    *,
    scale: FloatArray,
    noise: FloatArray,
    present: BoolArray,
    classes: int | None,
) -> float:
    """Returns the step of a round, the factor of the round's sums in the totals."""
    coordinates, before, displacement = state.model.size, state.numbers["step"], state.arrays[DISPLACEMENT]
    if not before:
        return first_step(rule, coordinates=coordinates, classes=classes)
    distance, pace = _norm(displacement), pace_of(rule, coordinates=coordinates, classes=classes)
    if not distance or not pace:
        return before
    regions = np.flatnonzero(present)
    estimate = pool_sums(
        [values[region] for region in regions.tolist()],
        variance=noise[regions],
        shares=_among(rule.shares, regions),
        scale=scale[regions],
        classes=classes,
        least=_least(rule, state.arrays),
    ).estimate
    agreement = _dot(estimate, displacement) / distance / rule.clip_norm
    return float(next_step(before, pace, agreement))


def first_step(rule: RandomEffectsRule, *, coordinates: int, classes: int | None) -> float:
    """Returns the step of the first round."""
    trust = _trust(rule, coordinates, classes)
    return trust + (1 - trust) * _FIRST_STEP * math.sqrt((classes or 2) - 1)


def pace_of(rule: RandomEffectsRule, *, coordinates: int, classes: int | None) -> float:
    """Returns the pace at which the step follows agreement, from 0 to 1."""
    return (1 - _trust(rule, coordinates, classes)) * _NOISE_OF_DOUBT / (_NOISE_OF_DOUBT + rule.least_noise)


def _trust(rule: RandomEffectsRule, coordinates: int, classes: int | None) -> float:
    """Returns the trust in a single round, from 0 to 1: 1 / (1 + n v), n coordinates with noise v.

    The plan clips at the share 1 / (1 + d v), with all d coordinates; for a softmax head n is d too.
    """
    part = min(rule.rounds / _ROUNDS_OF_THEM_ALL, 1.0) ** 2
    counted = coordinates if classes is not None else min(coordinates, part * _COORDINATES_THAT_COUNT)
    if counted == coordinates:
        return rule.scale
    return rule.scale / (rule.scale + (1 - rule.scale) * counted / coordinates)


def next_step(step: FloatArray | float, pace: FloatArray | float, agreement: FloatArray | float) -> FloatArray:
    """Returns the step of a round from the step before, for a single server or several."""
    return np.asarray(step * np.exp(pace * (agreement - _AGREEMENT)))


def _among(shares: FloatArray, regions: IntArray) -> FloatArray:
    """Returns the shares of `regions`, scaled to add up to 1."""
    return np.asarray(shares[regions] / shares[regions].sum())


def _norm(values: FloatArray) -> float:
    return math.sqrt(_dot(values, values))


def _dot(left: FloatArray, right: FloatArray) -> float:
    """Returns the inner product, with the same bits for any number of threads."""
    # BLAS adds up in an order that depends on the number of threads; einsum does not.
    return float(np.einsum("i,i->", left.reshape(-1), right.reshape(-1)))
