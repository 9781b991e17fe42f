"""Words on levers: the saving of noise, the cost to silos and regions, and the option of the command line.

>>> from fulcrum.planning.planner import plan
>>> lever_words(plan("severe", rounds=10, epsilon=1.0))[1].remedy
'Plan with --rounds 5.'
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.core.plan.guarantee import NO_PROTECTION
from fulcrum.core.topology import SILO
from fulcrum.planning.content.levers import LEAST_SAVING, Lever, levers_of, with_equal_weights
from fulcrum.planning.content.plan_figures import PlanFigures
from fulcrum.rounding import display_epsilon

_SAME_SIGNAL = 0.005  # of a ratio: a smaller difference does not show in print
_ON_ENGINES = "Masked sums run on NVIDIA FLARE and Flower, and a round with too many missing silos gives no sum."


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverWords:
    """A lever in words.

    Attributes:
        name: The lever, as `Lever.name`.
        text: Saving, cost and remedy.
        remedy: The last part of the text: the option of the command line.
        offers: The setting of the lever, for a page with controls; empty without a control.
        saving: The saved share of the noise; None if the noise cannot be compared.
        changes_promise: True if the lever changes the promise.
    """

    name: str
    text: str
    remedy: str
    offers: tuple[tuple[str, Any], ...]
    saving: float | None
    changes_promise: bool


def lever_words(plan: PlanFigures) -> list[LeverWords]:
    """Returns the levers of a plan in words, in the order of `levers_of`."""
    return [_in_words(plan, lever) for lever in levers_of(plan)]


def silos_of(tier: str, count: int, *, every_node: bool = False) -> str:
    """Returns words on silos that help an observer: of one node of a tier, or of every node."""
    return f"{'one silo' if count == 1 else f'{count} silos'} of {'each' if every_node else 'a'} {tier}"


def inside_in_words(plan: PlanFigures) -> str:
    """Returns words on the observer inside: a curious aggregator or, with masked sums, the server with silos."""
    inner = plan.federation.innermost.name
    if not plan.is_masked:
        return f"a curious {inner} aggregator"
    return f"the server together with {silos_of(inner, max(1, plan.colluders), every_node=plan.one_group)}"


def _in_words(plan: PlanFigures, lever: Lever) -> LeverWords:
    sentences, offers = {
        "equal": _words_on_equal,
        "least-noise": _words_on_least_noise,
        "masked": _words_on_masked,
        "rounds": _words_on_rounds,
        "one-group": _words_on_one_group,
        "person": _words_on_person,
    }[lever.name](plan, lever)
    remedy = f"Plan with {lever.option}."
    return LeverWords(
        name=lever.name,
        text=" ".join([*filter(None, sentences), remedy]),
        remedy=remedy,
        offers=offers,
        saving=None if lever.name == "person" else lever.saving,
        changes_promise=lever.changes_promise,
    )


_Words = tuple[list[str], tuple[tuple[str, Any], ...]]


def _words_on_equal(plan: PlanFigures, lever: Lever) -> _Words:
    inner = plan.federation.innermost.name
    shares = plan.node_influence(inner), lever.plan.node_influence(inner)
    keeps = f"Every {inner} keeps its share of the model"
    if not np.allclose(*shares, rtol=1e-3):  # the plan's own weights are not by size
        keeps = f"Every {inner} has its share by size"
    silo = _least_represented(plan, lever, SILO)
    start = f"Equal weights within each {inner} would save {lever.saving:.1%} of the noise that enters the model in "
    return [f"{start}each round. {keeps}; {silo}.", _inside(plan, lever)], (("weights", "equal"),)


def _words_on_least_noise(plan: PlanFigures, lever: Lever) -> _Words:
    tier = plan.federation.innermost.name
    before, after = plan.node_influence(tier), lever.plan.node_influence(tier)
    if (after / before).min() > 1 - LEAST_SAVING:  # influence moves within each node alone
        tier = SILO
    node = _least_represented(plan, lever, tier)
    start = f"Weights of least noise would save {lever.saving:.1%} of the noise that enters the model in each round"
    return [f"{start}; {node}.", _inside(plan, lever)], (("weights", "least-noise"),)


def _words_on_masked(plan: PlanFigures, lever: Lever) -> _Words:
    target = display_epsilon(plan.epsilon_target[SILO])
    return [
        f"Masked sums would save {lever.saving:.1%} of the noise that enters the model in each round: nobody would see "
        f"single updates, and epsilon {target:g} over {_rounds_word(plan)} would be the target against "
        f"{inside_in_words(lever.plan)}.",
        _ON_ENGINES,
    ], ()


def _words_on_rounds(plan: PlanFigures, lever: Lever) -> _Words:
    ratio = math.sqrt(lever.plan.rounds * plan.model_noise / (plan.rounds * lever.plan.model_noise))
    signal = "stays the same" if abs(ratio - 1) < _SAME_SIGNAL else f"would be {ratio:.2g} times as large"
    start = f"{_rounds_word(lever.plan).capitalize()} in place of {plan.rounds:,} would save {lever.saving:.1%} of the "
    return [
        f"{start}noise that enters the model in each round, at the same epsilon over all rounds. The model makes fewer "
        f"steps, and the best signal to noise of the whole training {signal}.",
        _inside(plan, lever),
    ], (("rounds", lever.plan.rounds),)


def _words_on_one_group(plan: PlanFigures, lever: Lever) -> _Words:
    inner, after = plan.federation.innermost.name, lever.plan
    above, inside = (display_epsilon(after.worst_epsilon(tier)) for tier in (None, SILO))
    equal = with_equal_weights(after)
    further = 0.0 if equal is None else 1 - equal.model_noise / plan.model_noise
    together = ""
    if equal is not None and further > lever.saving + LEAST_SAVING:
        silo = _least_represented(plan, replace(lever, plan=equal), SILO)
        together = f"; with --weights equal too, {further:.1%}, and {silo}"
    moves = ""
    if (after.node_influence(inner) / plan.node_influence(inner)).min() < 1 - LEAST_SAVING:
        moves = f"Weights follow the target: {_least_represented(plan, lever, inner)}."
    return [
        f"Another promise: all silos masked as one group would save {lever.saving:.1%} of the noise that enters the "
        f"model in each round{together}. Nobody would see the sum of a {inner}. Over {_rounds_word(plan)} the worst "
        f"epsilon would be {above:g} against an observer outside the federation who sees the sum of all silos, and "
        f"{inside:g} against {inside_in_words(after)}.",
        moves,
        _ON_ENGINES,
    ], ()


def _words_on_person(plan: PlanFigures, lever: Lever) -> _Words:
    after = lever.plan
    whole = after.person_epsilons["whole_silo_above"]
    silo = f"epsilon {display_epsilon(whole):g}" if whole <= NO_PROTECTION else "no protection"
    above, inside = (display_epsilon(after.worst_epsilon(tier)) for tier in (None, SILO))
    sums = "the global sum" if after.one_group else f"the sums of a {plan.federation.innermost.name}"
    return [
        f"Another promise: with the unit person, epsilon {above:g} over {_rounds_word(plan)}, against an observer of "
        f"{sums}, would protect all records of one person in one silo, and a silo's whole dataset would have {silo}. "
        f"Against {inside_in_words(after)} the epsilon of a person would be {inside:g}. The noise that enters the "
        f"model in each round would be {after.model_noise:.3g} C², where C limits the gradient of one person "
        "instead of the update of a silo, and declared sizes would count persons.",
    ], (("unit", "person"),)


def _rounds_word(plan: PlanFigures) -> str:
    return "1 round" if plan.rounds == 1 else f"{plan.rounds:,} rounds"


def _least_represented(plan: PlanFigures, lever: Lever, tier: str) -> str:
    """Returns words on the node of a tier with the largest loss of influence."""
    federation = plan.federation
    names = federation.silo_names.tolist() if tier == SILO else list(federation.innermost.nodes)
    before = plan.influence if tier == SILO else plan.node_influence(tier)
    after = lever.plan.influence if tier == SILO else lever.plan.node_influence(tier)
    most = int(np.argmin(np.round(after / before, 9)))  # of equals, the first
    return f"{tier} {names[most]!r} would have {_share(after[most])} of the model in place of {_share(before[most])}"


def _inside(plan: PlanFigures, lever: Lever) -> str:
    """Returns a sentence on the observer inside if the epsilon would be larger; else an empty string."""
    now, then = (display_epsilon(variant.worst_epsilon(SILO)) for variant in (plan, lever.plan))
    if not then > now:
        return ""
    over = f"Over {_rounds_word(lever.plan)} the worst epsilon against {inside_in_words(plan)}"
    return f"{over} would be {then:g} in place of {now:g}."


def _share(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
