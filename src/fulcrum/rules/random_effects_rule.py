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
>>> state, told = rule.step(state, RoundSums(values=values, present=present, classes=2))
>>> state.model.shape, told.heard
((3, 2), 2)

The server keeps, for every region, the sum of all it has said so far, each round at the step that was chosen for it;
what these sums say together (`random_effects`), with what does not stand out of the noise taken off (`shrinkage`), is
how far the model has moved from where it began. The sums stay as they were released; silos train on the shrunk model.
The same answers in the same order give the same bits.

The step begins near 1 where there is little noise and lower where there is much, and goes on by how well the last
round's estimate agrees with the way the model has gone so far: while they agree the step grows, where they do not it
falls. How much noise there is depends on the model. A softmax head uses all its coordinates, so all their noise counts.
A large network has many coordinates, but its answers depend on few directions among them, and noise in the others does
no harm: its noise counts as if it had 1,000 coordinates at most. In few rounds a model gets nowhere by short steps, and
noise has less time to add up: below 20 rounds that number falls with the square of the rounds. If all its noise
counted, a network would be held to short steps where it learns well by long ones. All of this is public, and known
before the first round.

The constants were found by trial, and are the same everywhere. Those of heads come from data and seeds that stand in no
table. Those of networks were chosen with 1,860 to 30,010 parameters and 5 to 50 rounds, on training records of CIFAR-10
that were held out and on the test records of AG News, at other seeds than those of the tables. Fewer than 1,000
coordinates suit networks that begin at random better, more suit those that begin well trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray
from fulcrum.core.choices import HEADS
from fulcrum.rules.random_effects import mix_shares, mixing_share, pool_sums
from fulcrum.rules.server_rule import PlanFacts, RoundDiagnostics, RoundSums, ServerRule, ServerState
from fulcrum.rules.shrinkage import shrink_rows

_FIRST_STEP = 0.25  # where noise is all there is, for two classes
_NOISE_OF_DOUBT = 0.02  # the least noise at which the step follows agreement half as fast
_AGREEMENT = 0.15  # at which the step stays as it is
_COORDINATES_THAT_COUNT = 1000  # at most, of a model of which nothing is known
_ROUNDS_OF_THEM_ALL = 20  # from so many rounds on; in fewer, fewer coordinates count

_AT_ONCE = 1 << 16  # coordinates of a region that are added up together
_ROUNDING = 1e-9  # relative, of sums of steps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RandomEffectsRule(ServerRule):
    """Pools the sums of all rounds so far; it knows its regions from the plan, before the first round.

    Its state has the arrays `start`, the model before round 1; `moved`, how far the model is from there; by region
    `said`, the sum of all it said at the steps of the rounds, `heard`, the sum of the steps at which it was heard, and
    `noise`, the variance of the noise in each coordinate of `said`. Its numbers are `steps`, the sum of the steps of
    all rounds, and `step`, that of the last.

    Attributes:
        shares: By region, what it ought to count for.
        weight: By region, the sum of its silos' weights.
        variance: By region, of the noise in each coordinate of its sum.
        least_noise: The noise variance that the least-noise weights would have, over the squared clip norm.
        scale: From 0 to 1, the share of the clip norm at which updates are clipped before they are scaled up.
        rounds: T.
        clip_norm: C.
        shrinks: Whether it takes off what does not stand out of the noise: of every model, of none, or of softmax heads
            alone (`HEADS`), where signal stands in few rows.
        least_influence: How much of its share every region counts for at least, from 0 to 1.
    """

    name: ClassVar[str] = "random-effects"
    takes_shrink: ClassVar[bool] = True
    reused: ClassVar[tuple[str, ...]] = ("said",)
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
    least_influence: float = 0.0

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
            least_influence=plan.least_influence,
        )

    def shrinks_head(self, classes: int | None) -> bool:
        """Whether a model of so many classes is shrunk; None is a model of which nothing is known."""
        return self.shrinks is True or (self.shrinks == HEADS and classes is not None)

    @property
    def key(self) -> bytes:
        """The same for rules that do the same."""
        shrinks = (self.shrinks is True) + 2 * (self.shrinks == HEADS)
        numbers = [shrinks, self.least_noise, self.scale, self.rounds, self.clip_norm, self.least_influence]
        return np.concatenate([numbers, self.shares, self.weight, self.variance]).tobytes()

    def region_factors(self) -> FloatArray:
        """Returns by region the factor of its sum where regions agree; as they differ it moves toward that by size."""
        precision = self.weight**2 / self.variance
        share = precision / precision.sum()
        share = mix_shares(share, self.shares, mixing_share(share, self.shares, self.least_influence))
        return np.asarray(share / self.weight)

    def begin(self, start: FloatArray) -> ServerState:
        """Returns a state in which nothing was said."""
        regions = len(self.weight)
        return ServerState(
            model=start,
            arrays={
                "start": start,
                "moved": np.zeros(start.shape),
                "said": np.zeros((regions, *start.shape)),
                "heard": np.zeros(regions),
                "noise": np.zeros(regions),
            },
            numbers={"steps": 0.0, "step": 0.0},
        )

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, RoundDiagnostics]:
        """Returns the state after a round, and what can be told of it. A round in which nobody was heard moves nothing.

        The shift common to all classes of a softmax head changes no answer, and is projected out.
        """
        present, arrays = np.asarray(sums.present, dtype=bool), state.arrays
        if not present.any():
            nothing = RoundDiagnostics(heard=0, step=0.0, signal=0.0, noise=0.0, heterogeneity=0.0, shrunk=0.0)
            return state, nothing
        values = [np.reshape(one, -1) for one in sums.values]
        weight = self.weight if sums.weight is None else sums.weight
        noise = (self.variance if sums.variance is None else sums.variance) / weight**2
        step = _step(self, state, values, scale=sums.unit / weight, noise=noise, present=present, classes=sums.classes)
        at = np.where(present, step, 0.0)
        said = _with(arrays["said"], values, at * sums.unit / weight, sums.spare.get("said"))
        changed = {
            "said": said.reshape(len(values), *state.model.shape),
            "heard": arrays["heard"] + at,
            "noise": arrays["noise"] + at**2 * noise,
        }
        numbers = {"steps": state.numbers["steps"] + step, "step": step}
        after = replace(state, arrays={**arrays, **changed}, numbers=numbers)
        return _estimated(self, after, said, heard=int(present.sum()), classes=sums.classes)

    def can_be(self, state: ServerState) -> bool:
        """Returns False for a state that no run comes to: it would give a model that nobody meant."""
        start, moved, said, heard, noise = (state.arrays[name] for name in ("start", "moved", "said", "heard", "noise"))
        spoke = heard > 0
        return (
            np.array_equal(state.model, start + moved)
            and state.numbers["step"] >= 0
            and bool(((heard >= 0) & (heard <= state.numbers["steps"] * (1 + _ROUNDING)) & (noise >= 0)).all())
            and bool((spoke == (noise > 0)).all())
            and bool(spoke.any()) == (state.numbers["step"] > 0)
            and not said[~spoke].any()
        )


def _with(
    before: FloatArray, said: Sequence[np.ndarray[Any, Any]], factor: FloatArray, room: FloatArray | None
) -> FloatArray:
    """Returns what regions said so far and, times a factor, what they say now."""
    known = before.reshape(len(said), -1)
    after = np.empty_like(known) if room is None else room.reshape(known.shape)
    for one, so_far, now, times in zip(said, known, after, factor, strict=True):
        for start in range(0, len(one), _AT_ONCE):
            piece = slice(start, start + _AT_ONCE)
            np.multiply(one[piece], times, out=now[piece])
            now[piece] += so_far[piece]
    return after


def _estimated(
    rule: RandomEffectsRule, state: ServerState, said: FloatArray, *, heard: int, classes: int | None
) -> tuple[ServerState, RoundDiagnostics]:
    """Returns where all that was said so far moves the model, and what can be told of it."""
    heard_at, start = state.arrays["heard"], state.arrays["start"]
    known = np.flatnonzero(heard_at > 0)
    # A region heard in some rounds alone speaks for the others too: its sum is scaled up, and its noise with it.
    whole = state.numbers["steps"] / heard_at[known]
    found = pool_sums(
        [said[region] for region in known],
        variance=state.arrays["noise"][known] * whole**2,
        shares=_among(rule.shares, known),
        scale=whole,
        classes=classes,
        least=rule.least_influence,
    )
    moved, variance = found.estimate, float(found.variance)
    if rule.shrinks_head(classes):
        rows = moved.reshape(-1, classes or 1)
        moved = shrink_rows(rows, variance=variance, free=(classes or 2) - 1).reshape(-1)
    free = moved.size if classes is None else moved.size // classes * (classes - 1)
    noise, size = math.sqrt(free * variance), _norm(found.estimate)
    moved = moved.reshape(start.shape)
    return replace(state, model=start + moved, arrays={**state.arrays, "moved": moved}), RoundDiagnostics(
        heard=heard,
        step=state.numbers["step"],
        signal=math.sqrt(max(size**2 - noise**2, 0.0)),
        noise=noise,
        heterogeneity=float(found.heterogeneity),
        shrunk=1 - _norm(moved) / size if size else 0.0,
    )


def _step(
    rule: RandomEffectsRule,
    state: ServerState,
    said: Sequence[np.ndarray[Any, Any]],
    *,
    scale: FloatArray,
    noise: FloatArray,
    present: BoolArray,
    classes: int | None,
) -> float:
    """Returns how far the model follows this round."""
    coordinates, before, moved = state.model.size, state.numbers["step"], state.arrays["moved"]
    if not before:
        return first_step(rule, coordinates=coordinates, classes=classes)
    gone, pace = _norm(moved), pace_of(rule, coordinates=coordinates, classes=classes)
    if not gone or not pace:
        return before
    known = np.flatnonzero(present)
    estimate = pool_sums(
        [one for one, there in zip(said, present, strict=True) if there],
        variance=noise[known],
        shares=_among(rule.shares, known),
        scale=scale[known],
        classes=classes,
        least=rule.least_influence,
    ).estimate
    agreement = _dot(estimate, moved) / gone / rule.clip_norm
    return float(next_step(before, pace, agreement))


def first_step(rule: RandomEffectsRule, *, coordinates: int, classes: int | None) -> float:
    """Returns how far the model follows the first round."""
    trust = _trust(rule, coordinates, classes)
    return trust + (1 - trust) * _FIRST_STEP * math.sqrt((classes or 2) - 1)


def pace_of(rule: RandomEffectsRule, *, coordinates: int, classes: int | None) -> float:
    """Returns how fast the step follows agreement."""
    return (1 - _trust(rule, coordinates, classes)) * _NOISE_OF_DOUBT / (_NOISE_OF_DOUBT + rule.least_noise)


def _trust(rule: RandomEffectsRule, coordinates: int, classes: int | None) -> float:
    """Returns how far a round is believed as it is, from 0 to 1: 1 / (1 + n v), n the coordinates whose noise v counts.

    The plan clips at the share 1 / (1 + d v), which counts all d coordinates, and so does a head.
    """
    part = min(rule.rounds / _ROUNDS_OF_THEM_ALL, 1.0) ** 2
    counted = coordinates if classes is not None else min(coordinates, part * _COORDINATES_THAT_COUNT)
    if counted == coordinates:
        return rule.scale
    return rule.scale / (rule.scale + (1 - rule.scale) * counted / coordinates)


def next_step(step: FloatArray | float, pace: FloatArray | float, agreement: FloatArray | float) -> FloatArray:
    """Returns how far the model follows a round, of one server or of several."""
    return np.asarray(step * np.exp(pace * (agreement - _AGREEMENT)))


def _among(shares: FloatArray, known: IntArray) -> FloatArray:
    """Returns the shares of some regions, of what these have together."""
    return np.asarray(shares[known] / shares[known].sum())


def _norm(values: FloatArray) -> float:
    return math.sqrt(_dot(values, values))


def _dot(one: FloatArray, other: FloatArray) -> float:
    """Returns the inner product, the same whatever the number of threads."""
    return float(np.einsum("i,i->", one.reshape(-1), other.reshape(-1)))
