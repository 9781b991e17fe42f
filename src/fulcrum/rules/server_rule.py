"""How a server moves the model by what its regions send up: added up, or pooled over all rounds so far.

>>> rule = ServerRule.pooling(
...     shares=np.array([0.5, 0.5]),
...     weight=np.array([0.5, 0.5]),
...     variance=np.array([1e-4, 1e-4]),
...     least_noise=2e-4,
...     scale=0.9,
...     rounds=10,
... )
>>> state = begun(rule, regions=2, shape=(3, 2))
>>> state, told = advanced(rule, state, np.full((2, 3, 2), 0.5) * [1, -1], classes=2)
>>> state.moved.shape, told.heard
((3, 2), 2)

A server that adds up moves the model by the regions' sums. One that pools keeps, for every region, the sum of all it
has said so far, each round at the step that was chosen for it; what these sums say together (`random_effects`), with
what does not stand out of the noise taken off (`shrinkage`), is how far the model has moved from where it began. The
sums stay as they were released; silos train on the shrunk model. The same answers in the same order give the same bits.

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
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.choices import HEADS
from fulcrum.rules.random_effects import pooled
from fulcrum.rules.shrinkage import shrunk

_FIRST_STEP = 0.25  # where noise is all there is, for two classes
_NOISE_OF_DOUBT = 0.02  # the least noise at which the step follows agreement half as fast
_AGREEMENT = 0.15  # at which the step stays as it is
_COORDINATES_THAT_COUNT = 1000  # at most, of a model of which nothing is known
_ROUNDS_OF_THEM_ALL = 20  # from so many rounds on; in fewer, fewer coordinates count

_AT_ONCE = 1 << 16  # coordinates of a region that are added up together


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerRule:
    """What a server knows of its regions before the first round, all of it public.

    Attributes:
        pools: Whether it pools; otherwise it adds up and the rest does not matter.
        shrinks: Whether it takes off what does not stand out of the noise: of every model, of none, or of softmax heads
            alone (`HEADS`), where signal stands in few rows.
        shares: By region, what it ought to count for.
        weight: By region, the sum of its silos' weights.
        variance: By region, of the noise in each coordinate of its sum.
        least_noise: The noise variance that the least-noise weights would have, over the squared clip norm.
        scale: From 0 to 1, the share of the clip norm at which updates are clipped before they are scaled up.
        rounds: T.
        clip_norm: C.
        least_influence: How much of its share every region counts for at least, from 0 to 1.
    """

    pools: bool
    shrinks: bool | str
    shares: FloatArray
    weight: FloatArray
    variance: FloatArray
    least_noise: float
    scale: float
    rounds: int
    clip_norm: float = 1.0
    least_influence: float = 0.0

    def shrinks_head(self, classes: int | None) -> bool:
        """Whether a model of so many classes is shrunk; None is a model of which nothing is known."""
        return self.shrinks is True or (self.shrinks == HEADS and classes is not None)

    @property
    def key(self) -> bytes:
        """The same for rules that do the same."""
        shrinks = (self.shrinks is True) + 2 * (self.shrinks == HEADS)
        numbers = [self.pools, shrinks, self.least_noise, self.scale, self.rounds, self.clip_norm, self.least_influence]
        return b"" if not self.pools else np.concatenate([numbers, self.shares, self.weight, self.variance]).tobytes()

    @classmethod
    def adding_up(cls, regions: int) -> "ServerRule":
        """Returns the rule of the paper's Algorithm 1."""
        ones = np.ones(regions)
        return cls(
            pools=False, shrinks=False, shares=ones, weight=ones, variance=ones, least_noise=0.0, scale=1.0, rounds=1
        )

    @classmethod
    def pooling(
        cls,
        *,
        shares: FloatArray,
        weight: FloatArray,
        variance: FloatArray,
        least_noise: float,
        scale: float,
        rounds: int,
        clip_norm: float = 1.0,
        shrinks: bool | str = HEADS,
        least_influence: float = 0.0,
    ) -> "ServerRule":
        """Returns the rule of a server that pools."""
        return cls(
            pools=True,
            shrinks=shrinks,
            shares=shares,
            weight=weight,
            variance=variance,
            least_noise=least_noise,
            scale=scale,
            rounds=rounds,
            clip_norm=clip_norm,
            least_influence=least_influence,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """Where a server stands between two rounds.

    Attributes:
        moved: How far the model is from where it began, in the model's shape.
        said: By region, the sum of all it said, at the steps of the rounds; None where the server adds up.
        heard: By region, the sum of the steps at which it was heard.
        noise: By region, the variance of the noise in each coordinate of what it said.
        steps: The sum of the steps of all rounds.
        step: That of the last round.
        rounds: How many are over.
    """

    moved: FloatArray
    said: FloatArray | None
    heard: FloatArray
    noise: FloatArray
    steps: float
    step: float
    rounds: int

    @property
    def finite(self) -> bool:
        """Whether all of it is numbers that a next round can go on from."""
        arrays = (self.moved, self.heard, self.noise, np.array([self.steps, self.step]))
        return all(np.isfinite(array).all() for array in arrays) and (
            self.said is None or all(np.isfinite(said).all() for said in self.said)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDiagnostics:
    """What a server can tell of a round, from what was released alone, so that it costs no privacy.

    Attributes:
        heard: Regions that were heard.
        step: How far the model follows what was said in this round.
        signal: The norm of the estimate, less its noise's part; 0 where noise explains all of it.
        noise: The norm that the noise in the estimate has.
        heterogeneity: t², how much regions differ in a coordinate beyond their noise.
        shrunk: The share of the estimate's norm that was taken off.
    """

    heard: int
    step: float
    signal: float
    noise: float
    heterogeneity: float
    shrunk: float


def begun(rule: ServerRule, *, regions: int, shape: tuple[int, ...]) -> ServerState:
    """Returns the state before the first round of a model of this shape."""
    said = np.zeros((regions, *shape)) if rule.pools else None
    nothing = np.zeros(regions)
    return ServerState(moved=np.zeros(shape), said=said, heard=nothing, noise=nothing, steps=0.0, step=0.0, rounds=0)


def advanced(
    rule: ServerRule,
    state: ServerState,
    sums: Sequence[np.ndarray[Any, Any]] | FloatArray,
    *,
    heard: FloatArray | None = None,
    weight: FloatArray | None = None,
    variance: FloatArray | None = None,
    unit: float = 1.0,
    classes: int | None = None,
    room: FloatArray | None = None,
) -> tuple[ServerState, RoundDiagnostics]:
    """Returns the state after a round, and what can be told of it. A round in which nobody was heard moves nothing.

    Args:
        rule: What the server knows.
        state: Where it stood; it is not written to.
        sums: By region, in the model's shape; zeros where a region was not heard.
        heard: By region, whether its sum is there; all by default.
        weight: By region, of the silos that are in its sum in this round; that of all of them by default.
        variance: By region, of the noise in each coordinate of its sum in this round; that of all by default.
        unit: What the sums are multiplied by, such as the step of their lattice.
        classes: Of a softmax head, whose last axis they are: it ignores a shift common to all classes, which is
            therefore projected out. None for a model of which nothing is known.
        room: Where `said` of the new state is to be kept, such as that of the state before the last; else new memory,
            which for large models takes longer to come by than all the rest.
    """
    present = np.ones(len(sums), dtype=bool) if heard is None else np.asarray(heard, dtype=bool)
    said = [np.reshape(one, -1) for one in sums]
    if not rule.pools:
        total = np.reshape(sum(one * unit for one in said), state.moved.shape)
        done = replace(state, moved=state.moved + total, rounds=state.rounds + 1, steps=state.steps + 1, step=1.0)
        return done, RoundDiagnostics(
            heard=int(present.sum()), step=1.0, signal=_norm(total), noise=0.0, heterogeneity=0.0, shrunk=0.0
        )
    if not present.any():
        nothing = RoundDiagnostics(heard=0, step=0.0, signal=0.0, noise=0.0, heterogeneity=0.0, shrunk=0.0)
        return replace(state, rounds=state.rounds + 1), nothing
    weight = rule.weight if weight is None else weight
    noise = (rule.variance if variance is None else variance) / weight**2
    step = _step(rule, state, said, scale=unit / weight, noise=noise, present=present, classes=classes)
    at = np.where(present, step, 0.0)
    so_far = _with(state.said, said, at * unit / weight, room)
    after = replace(
        state,
        said=so_far.reshape(len(said), *state.moved.shape),
        heard=state.heard + at,
        noise=state.noise + at**2 * noise,
        steps=state.steps + step,
        step=step,
        rounds=state.rounds + 1,
    )
    return _estimated(rule, after, so_far, heard=int(present.sum()), classes=classes)


def _with(
    before: FloatArray | None, said: Sequence[np.ndarray[Any, Any]], factor: FloatArray, room: FloatArray | None
) -> FloatArray:
    """Returns what regions said so far and, times a factor, what they say now."""
    known = np.zeros((len(said), len(said[0]))) if before is None else before.reshape(len(said), -1)
    after = np.empty_like(known) if room is None else room.reshape(known.shape)
    for one, so_far, now, times in zip(said, known, after, factor, strict=True):
        for start in range(0, len(one), _AT_ONCE):
            piece = slice(start, start + _AT_ONCE)
            np.multiply(one[piece], times, out=now[piece])
            now[piece] += so_far[piece]
    return after


def _estimated(
    rule: ServerRule, state: ServerState, said: FloatArray, *, heard: int, classes: int | None
) -> tuple[ServerState, RoundDiagnostics]:
    """Returns where all that was said so far moves the model, and what can be told of it."""
    known = np.flatnonzero(state.heard > 0)
    # A region heard in some rounds alone speaks for the others too: its sum is scaled up, and its noise with it.
    whole = state.steps / state.heard[known]
    found = pooled(
        [said[region] for region in known],
        variance=state.noise[known] * whole**2,
        shares=_among(rule.shares, known),
        scale=whole,
        classes=classes,
        least=rule.least_influence,
    )
    moved, variance = found.estimate, float(found.variance)
    if rule.shrinks_head(classes):
        rows = moved.reshape(-1, classes or 1)
        moved = shrunk(rows, variance=variance, free=(classes or 2) - 1).reshape(-1)
    free = moved.size if classes is None else moved.size // classes * (classes - 1)
    noise, size = math.sqrt(free * variance), _norm(found.estimate)
    return replace(state, moved=moved.reshape(state.moved.shape)), RoundDiagnostics(
        heard=heard,
        step=state.step,
        signal=math.sqrt(max(size**2 - noise**2, 0.0)),
        noise=noise,
        heterogeneity=float(found.heterogeneity),
        shrunk=1 - _norm(moved) / size if size else 0.0,
    )


def _step(
    rule: ServerRule,
    state: ServerState,
    said: Sequence[np.ndarray[Any, Any]],
    *,
    scale: FloatArray,
    noise: FloatArray,
    present: FloatArray,
    classes: int | None,
) -> float:
    """Returns how far the model follows this round."""
    coordinates = state.moved.size
    if not state.step:
        return first_step(rule, coordinates=coordinates, classes=classes)
    gone, pace = _norm(state.moved), pace_of(rule, coordinates=coordinates, classes=classes)
    if not gone or not pace:
        return state.step
    known = np.flatnonzero(present)
    estimate = pooled(
        [one for one, there in zip(said, present, strict=True) if there],
        variance=noise[known],
        shares=_among(rule.shares, known),
        scale=scale[known],
        classes=classes,
        least=rule.least_influence,
    ).estimate
    agreement = _dot(estimate, state.moved) / gone / rule.clip_norm
    return float(next_step(state.step, pace, agreement))


def first_step(rule: ServerRule, *, coordinates: int, classes: int | None) -> float:
    """Returns how far the model follows the first round."""
    trust = _trust(rule, coordinates, classes)
    return trust + (1 - trust) * _FIRST_STEP * math.sqrt((classes or 2) - 1)


def pace_of(rule: ServerRule, *, coordinates: int, classes: int | None) -> float:
    """Returns how fast the step follows agreement."""
    return (1 - _trust(rule, coordinates, classes)) * _NOISE_OF_DOUBT / (_NOISE_OF_DOUBT + rule.least_noise)


def _trust(rule: ServerRule, coordinates: int, classes: int | None) -> float:
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
