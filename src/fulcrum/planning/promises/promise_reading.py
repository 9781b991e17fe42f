"""The promise of a setup that Fulcrum did not plan: unit, sensitivity, composition, and epsilon for each observer.

>>> reading = read_numbers(clip=1.0, multiplier=20.0, rounds=10, delta=1e-5)
>>> [(entry.observer, round(entry.epsilon, 3)) for entry in reading.observers]
[('server', 1.199)]

An unknown part is named and never guessed: without the part no epsilon is stated. Sensitivity is 2C for the unit silo,
since another dataset of a silo replaces the whole update.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.topology import ROOT, Topology
from fulcrum.errors import ParameterError
from fulcrum.planning.promises.found_settings import FoundSetting
from fulcrum.planning.promises.sampled_gaussian import sampled_epsilon

SERVER_OBSERVER = "server"
"""The observer who gets single updates: in a setup without regions, the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPromise:
    """The worst epsilon of all units against an observer; None for no guarantee, NaN never."""

    observer: str
    epsilon: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseReading:
    """A setting as read: every part in words, and the epsilon of each observer as far as the parts are known.

    Attributes:
        place: The file and line, or "numbers".
        mechanism: The mechanism in the words of the tool.
        unit: The protected unit and the neighbouring relation.
        sensitivity: The largest effect of the unit on a release.
        noise: The noise on a release.
        composition: The number of releases, and the way in which they add up.
        delta: The delta of the epsilons.
        observers: The epsilon of each observer; empty if a needed part is unknown.
        unknown: The parts that the setting does not state.
        plan: The options of `fulcrum plan` for the same promise; empty without an epsilon.
    """

    place: str
    mechanism: str
    unit: str
    sensitivity: str
    noise: str
    composition: str
    delta: float
    observers: tuple[ObserverPromise, ...] = ()
    unknown: tuple[str, ...] = ()
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts that no setting of a mechanism states: rounds, delta, federation, and sampling at a silo."""

    rounds: int | None = None
    delta: float = 1e-5
    federation: Topology | None = None
    rate: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise ParameterError("promise.number-range", name="rounds", rule="at least 1", value=self.rounds)
        if not 0 < self.delta < 1:
            raise ParameterError("promise.number-range", name="delta", rule="in (0, 1)", value=self.delta)
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ParameterError("promise.number-range", name="rate", rule="in (0, 1]", value=self.rate)
        if self.steps is not None and self.steps < 1:
            raise ParameterError("promise.number-range", name="steps", rule="at least 1", value=self.steps)


def read_numbers(
    *,
    clip: float,
    multiplier: float,
    rounds: int,
    delta: float,
    rate: float = 1.0,
    federation: Topology | None = None,
) -> PromiseReading:
    """Returns the promise of numbers without a plan file, where each silo clips an update and adds noise.

    Args:
        clip: The clip norm.
        multiplier: The standard deviation of a silo's noise, divided by `clip`.
        rounds: The number of rounds.
        delta: The delta at which epsilon is stated.
        rate: The share of silos that a round samples. A rate below 1 gives no smaller epsilon: sampling protects only
            against an observer that does not know the silos of a round, and the server knows the silos.
        federation: Silos and regions, for the epsilon against observers of sums; None for the server's epsilon alone.
    """
    for name, value in (("clip", clip), ("multiplier", multiplier)):
        if not (value > 0 and math.isfinite(value)):
            raise ParameterError("promise.number-range", name=name, rule="above 0 and finite", value=value)
    circumstances = Circumstances(rounds=rounds, delta=delta, federation=federation, rate=rate)
    unknown = ("sampling of silos: not counted, since the server knows the silos of a round",) if rate < 1 else ()
    return _noise_at_silos("numbers", "clip and noise at each silo", clip, multiplier, circumstances, unknown)


def read_promise(setting: FoundSetting, circumstances: Circumstances) -> PromiseReading:
    """Returns the promise of a setting that `find_settings` found."""
    reading = _reading_of(setting, circumstances)
    changeable = tuple(
        f"{word} of a run: pyproject.toml states {setting.values[word]:g}, and flwr run --run-config may state another "
        "number"
        for word in setting.configured
    )
    return replace(reading, unknown=(*reading.unknown, *changeable))


def _reading_of(setting: FoundSetting, circumstances: Circumstances) -> PromiseReading:
    name, values = setting.mechanism, setting.values
    missing = tuple(f"{word}: no number in the text" for word in setting.unknown)
    if name == "LocalDpMod":
        return _local_dp_mod(setting, circumstances, missing)
    if name.startswith("DifferentialPrivacy"):
        return _flower_strategy(setting, circumstances, missing)
    if name == "make_private":
        return _opacus(setting, circumstances, missing)
    if name == "make_private_with_epsilon":
        return _opacus_target(setting, circumstances, missing)
    if name == "SVTPrivacy":
        return _without_epsilon(
            setting,
            circumstances,
            noise=f"Laplace noise on a share {values.get('fraction', math.nan):g} of all coordinates",
            sensitivity=f"each coordinate is cut to {values.get('gamma', math.nan):g}; the whole update has no bound",
            unknown=(
                *missing,
                "the epsilon of a whole update: the filter's epsilon is for single coordinates",
                "the number of parameters",
            ),
        )
    return _without_epsilon(
        setting,
        circumstances,
        noise="none that is known here",
        sensitivity="unknown",
        unknown=(*missing, f"noise: {name} adds none that is known here, so no epsilon is stated"),
    )


def _local_dp_mod(setting: FoundSetting, facts: Circumstances, missing: tuple[str, ...]) -> PromiseReading:
    values = setting.values
    if missing or not (values["epsilon"] > 0 and 0 < values["delta"] < 1 and values["clipping_norm"] > 0):
        return _without_epsilon(setting, facts, noise="Gaussian, at each silo", sensitivity="unknown", unknown=missing)
    deviation = values["sensitivity"] * math.sqrt(2 * math.log(1.25 / values["delta"])) / values["epsilon"]
    clip = values["clipping_norm"]
    stated = (
        f"LocalDpMod, which states epsilon {values['epsilon']:g} a round for the sensitivity {values['sensitivity']:g}"
    )
    return _noise_at_silos(setting.place, stated, clip, deviation / clip, facts)


def _noise_at_silos(
    place: str, mechanism: str, clip: float, multiplier: float, facts: Circumstances, unknown: tuple[str, ...] = ()
) -> PromiseReading:
    """Returns the promise of silos that clip and perturb their own updates, by the exact curve of the Gaussian."""
    observers: list[ObserverPromise] = []
    if facts.rounds is None:
        unknown = (*unknown, "rounds: no number in the text. Give --rounds")
    elif multiplier == 0:
        observers.append(ObserverPromise(observer=SERVER_OBSERVER, epsilon=None, reason="no noise"))
    else:
        shift = 2 * math.sqrt(facts.rounds) / multiplier
        observers.append(ObserverPromise(observer=SERVER_OBSERVER, epsilon=_epsilon(shift, facts.delta)))
        if facts.federation is None:
            unknown = (*unknown, "the topology: an observer of sums sees no more than the server. Give --federation")
        else:
            relief = _relief(facts.federation)
            observers += [
                ObserverPromise(observer=tier, epsilon=_epsilon(shift * factor, facts.delta))
                for tier, factor in relief.items()
            ]
    return PromiseReading(
        place=place,
        mechanism=mechanism,
        unit="a silo's whole dataset, replaced by another",
        sensitivity=f"2C = {2 * clip:g} for the clip norm C = {clip:g}",
        noise=f"Gaussian, standard deviation {multiplier * clip:.6g}, {multiplier:.6g} C, at each silo",
        composition=_rounds_in_words(facts),
        delta=facts.delta,
        observers=tuple(observers),
        unknown=unknown,
        plan=_plan_options(observers, facts),
    )


def _relief(federation: Topology) -> dict[str, float]:
    """Returns by tier the largest share of a silo's own noise-to-effect ratio that is left in the sums of the tier.

    With the same multiplier at all silos, the noise in a sum over a node is the root of the sum of squared weights, and
    the effect of a silo is its weight: the shift shrinks by weight over root.
    """
    weights, factors = federation.weights, {}
    for tier in federation.tiers:
        place = federation.membership(tier.name)
        root = np.sqrt(np.bincount(place, weights=weights**2))
        factors[tier.name] = float((weights / root[place]).max())
    factors[ROOT] = float((weights / np.sqrt((weights**2).sum())).max())
    return factors


def _flower_strategy(setting: FoundSetting, facts: Circumstances, missing: tuple[str, ...]) -> PromiseReading:
    """Returns the promise of a strategy that adds noise to the mean of all updates, at the server."""
    name, values = setting.mechanism, setting.values
    adaptive = "Adaptive" in name
    missing = tuple(part for part in missing if not (adaptive and part.startswith("clipping_norm")))
    unknown = [
        *missing,
        "weights: the strategy counts on equal weights. FedAvg weights by examples, and a silo with more than 1/n of "
        "all examples has a larger effect than is counted",
        "sampling: a sample of fixed size is not counted",
    ]
    if adaptive:
        unknown.append("the cost of the adaptive clip norm, which is computed from the silos' updates")
    sight = "clipped, without noise" if "ClientSide" in name else "as trained, without clip and noise"
    observers = [ObserverPromise(observer=SERVER_OBSERVER, epsilon=None, reason=f"the server gets each update {sight}")]
    multiplier = values.get("noise_multiplier", 0.0)
    if facts.rounds is None:
        unknown.append("rounds: no number in the text. Give --rounds")
    elif multiplier > 0 and not adaptive and not missing:
        shift = 2 * math.sqrt(facts.rounds) / multiplier
        reason = "if all weights are equal"
        observers.append(ObserverPromise(observer=ROOT, epsilon=_epsilon(shift, facts.delta), reason=reason))
    clip = values.get("clipping_norm")
    size = values.get("num_sampled_clients")
    return PromiseReading(
        place=setting.place,
        mechanism=name,
        unit="a silo's whole dataset, replaced by another",
        sensitivity=f"2C / n = {2 * clip / size:g} in the mean of n = {size:g}" if clip and size else "unknown",
        noise=f"Gaussian on the mean, {multiplier:g} C / n, drawn by the server",
        composition=_rounds_in_words(facts),
        delta=facts.delta,
        observers=tuple(observers),
        unknown=tuple(unknown),
        plan=_plan_options(observers, facts),
    )


def _opacus(setting: FoundSetting, facts: Circumstances, missing: tuple[str, ...]) -> PromiseReading:
    """Returns the promise of DP-SGD at a silo: each step is a Gaussian release on a Poisson sample of records."""
    unknown, observers = list(missing), []
    needed = {"rate": facts.rate, "steps": facts.steps, "rounds": facts.rounds}
    unknown += [f"{word}: no number in the text. Give --{word}" for word, value in needed.items() if value is None]
    multiplier = setting.values.get("noise_multiplier")
    if not unknown and multiplier is not None and facts.rate and facts.steps and facts.rounds:
        steps = facts.steps * facts.rounds
        epsilon = sampled_epsilon(multiplier=multiplier, rate=facts.rate, steps=steps, delta=facts.delta)
        bound = None if math.isinf(epsilon) else epsilon
        observers.append(ObserverPromise(observer=SERVER_OBSERVER, epsilon=bound))
    clip = setting.values.get("max_grad_norm")
    steps_in_words = "unknown steps a round" if facts.steps is None else f"{facts.steps:,} steps a round"
    return PromiseReading(
        place=setting.place,
        mechanism="Opacus, DP-SGD at the silo",
        unit="one record, added or removed; a person with several records has less protection",
        sensitivity=f"C = {clip:g}, the largest gradient" if clip is not None else "unknown",
        noise=f"Gaussian on the sum of a sample, {multiplier:g} C" if multiplier is not None else "unknown",
        composition=f"{_rounds_in_words(facts)}, {steps_in_words}, by Rényi divergences of Poisson samples",
        delta=facts.delta,
        observers=tuple(observers),
        unknown=tuple(unknown),
        plan=_plan_options(observers, facts, "--unit record --neighbours add-remove "),
    )


def _opacus_target(setting: FoundSetting, facts: Circumstances, missing: tuple[str, ...]) -> PromiseReading:
    """Returns the promise of a target epsilon of one training: repeated trainings compose by addition."""
    values, observers, unknown = setting.values, [], list(missing)
    if facts.rounds is None:
        unknown.append("rounds: no number in the text. Give --rounds")
    elif not {"target_epsilon", "target_delta"} - set(values):
        total = facts.rounds * values["target_delta"]
        if total < 1:
            reason = f"at delta {total:g}, if each round makes a new engine"
            epsilon = facts.rounds * values["target_epsilon"]
            observers.append(ObserverPromise(observer=SERVER_OBSERVER, epsilon=epsilon, reason=reason))
    clip = values.get("max_grad_norm")
    return PromiseReading(
        place=setting.place,
        mechanism="Opacus, DP-SGD at the silo with a target",
        unit="one record, added or removed; a person with several records has less protection",
        sensitivity=f"C = {clip:g}, the largest gradient" if clip is not None else "unknown",
        noise="chosen by Opacus for the target of one training",
        composition=f"{_rounds_in_words(facts)}, epsilons and deltas added up",
        delta=facts.rounds * values["target_delta"] if facts.rounds and "target_delta" in values else facts.delta,
        observers=tuple(observers),
        unknown=tuple(unknown),
        plan=_plan_options(observers, facts, "--unit record --neighbours add-remove "),
    )


def _without_epsilon(
    setting: FoundSetting, facts: Circumstances, *, noise: str, sensitivity: str, unknown: tuple[str, ...]
) -> PromiseReading:
    observer = ObserverPromise(observer=SERVER_OBSERVER, epsilon=None, reason="a part is unknown")
    return PromiseReading(
        place=setting.place,
        mechanism=setting.mechanism,
        unit="unknown",
        sensitivity=sensitivity,
        noise=noise,
        composition=_rounds_in_words(facts),
        delta=facts.delta,
        observers=(observer,),
        unknown=unknown or ("a number is out of its range",),
    )


def _epsilon(shift: float, delta: float) -> float:
    return float(epsilon_of_shift(shift, delta=delta, accountant="exact"))


def _rounds_in_words(facts: Circumstances) -> str:
    if facts.rounds is None:
        return "unknown rounds"
    return f"{facts.rounds:,} {'round' if facts.rounds == 1 else 'rounds'}, a silo in each of them"


def _plan_options(observers: list[ObserverPromise], facts: Circumstances, unit: str = "") -> str:
    """Returns the options of a plan with the same promise, epsilons rounded down; empty without an epsilon."""
    bounds: Mapping[str, float] = {entry.observer: entry.epsilon for entry in observers if entry.epsilon is not None}
    if not bounds or facts.rounds is None:
        return ""
    options = [f"--rounds {facts.rounds}", f"--delta {facts.delta:g}"]
    inside = bounds.get(SERVER_OBSERVER)
    outer = {name: value for name, value in bounds.items() if name != SERVER_OBSERVER}
    if outer:
        targets = ",".join(f"{name}={_rounded_down(value)}" for name, value in outer.items())
        options.append(f"--epsilon {targets}")
    if inside is not None:
        options.append(f"--epsilon-inside {_rounded_down(inside)}")
    return f"{unit}{' '.join(options)}"


def _rounded_down(value: float) -> str:
    """Returns four digits, never above the value."""
    scale = 10 ** (3 - math.floor(math.log10(value))) if value > 0 else 1
    return f"{math.floor(value * scale) / scale:g}"
