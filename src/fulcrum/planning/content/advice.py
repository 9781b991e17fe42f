"""Advice to the reader of a plan: warnings first, then facts, then levers for less noise, by saving.

A piece of advice is a sentence with a number. No function changes a plan.

>>> advised = Advice(kind="balanced", warning=False, text="All regions are equally exposed: uniform noise is optimal.")
>>> advised.text
'All regions are equally exposed: uniform noise is optimal.'
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.core.phase_noise import rosters_of
from fulcrum.core.remaining_noise import left_by_coalitions, sum_by
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError, listing
from fulcrum.planning.content.lever_words import LeverWords, inside_in_words, lever_words, silos_of
from fulcrum.planning.content.levers import masked_variant
from fulcrum.planning.content.plan_figures import PlanFigures, changed_copy, with_uniform_noise
from fulcrum.planning.inputs.weighted_federation import choose_weights
from fulcrum.planning.theory.allocation import ALLOCATIONS, allocate
from fulcrum.planning.theory.leakage import finest_resolution, informativeness, shown_nats
from fulcrum.planning.theory.noise_bound import outer_coalitions
from fulcrum.planning.theory.prior import prior_entropy
from fulcrum.planning.theory.scheduling import constant_budget
from fulcrum.readers.editing import merge_regions
from fulcrum.rounding import display_epsilon, rounded_up

LEVELS = 20
"""The resolution of the test of informativeness, the paper's R."""

WEAK_SIGNAL = 0.1
"""Signal to noise over all rounds below which a model does not learn; the hardest setting of the paper in
which a model learnt has 0.15."""

STRONG_SIGNAL = 1.0
"""Signal to noise from which a model learns nearly as much as without privacy.

Of heads that were trained on two data sets under 144 plans (`paper/signal_to_noise.py`), those predicted at this or
more learnt at least 0.87 of what they learn without privacy, those below `WEAK_SIGNAL` 0.45 at most. Between the two it
was anything from nothing to 0.95.
"""

_MERGE_CANDIDATES = 12
_KEPT = ("sizes", DECLARED, BY_SILO)  # rules by which the weight of a silo does not depend on its region
_PLANNED_ANEW = 6  # regions whose pairs are planned for
_PLANNED_UP_TO, _ITERATED_UP_TO = 20_000, 200  # silos, for weights in closed form and for iterated weights
_DROPOUT_CHECK_UP_TO = 200_000
_LEAST_RATIO = 1 + 1e-9  # of a plan's noise and its lower bound: sums round


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A sentence for the reader of a plan.

    Attributes:
        kind: The subject of the advice, for programs.
        warning: True if ignorance of the advice could do harm.
        text: The sentence.
        remedy: The last part of the sentence: the remedy in words of the command line; a page has controls instead.
        offers: Settings that would follow the advice, each by itself: the name in `plan` or on the command line, and
            the value. "merge" stands for regions to merge.
        saving: The saved share of the noise entering the model in one round; None for advice without a saving, or with
            noise beyond comparison.
        changes_promise: True if a plan by the advice has another promise.
    """

    kind: str
    warning: bool
    text: str
    remedy: str = ""
    offers: tuple[tuple[str, Any], ...] = ()
    saving: float | None = None
    changes_promise: bool = False

    @property
    def finding(self) -> str:
        """The sentence without its remedy."""
        return self.text.removesuffix(self.remedy).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The merge of two regions that saves most noise; `saving` is a share of the plan's noise budget."""

    regions: tuple[str, str]
    saving: float


def advice_on(plan: PlanFigures, *, merges: bool = True, levers: bool = True) -> tuple[Advice, ...]:
    """Returns the advice on a plan, warnings first: warnings that undo the promise, then warnings that cost utility.

    After the warnings come facts, then levers for less noise at the same targets: by saving, the largest first, and a
    merge of regions last. Levers with another promise end the list. The whole advice is solved for once in the life of
    a plan: `fulcrum.plan` and `fulcrum.replan` do so, and later calls solve nothing.

    Args:
        plan: The plan.
        merges: True to look at merges of regions, which takes longest; `advice_on_merges` looks at merges alone.
        levers: True to look at the levers, every lever by a new plan; `advice_on_levers` looks at levers alone.
    """
    if not (merges and levers):
        return _solve_advice(plan, merges=merges, levers=levers)
    if plan.solved_advice is None:
        object.__setattr__(plan, "solved_advice", _solve_advice(plan, merges=True, levers=True))
    return tuple(plan.solved_advice or ())


def _solve_advice(plan: PlanFigures, *, merges: bool, levers: bool) -> tuple[Advice, ...]:
    if plan.federation.rosters is not None:
        return _advice_on_schedule(plan)
    same, other = _levers(plan) if levers else ([], [])
    pieces = [
        *_on_accountant(plan),
        *_on_delta(plan),
        *_on_curious_aggregator(plan),
        *_on_signal(plan),
        *_on_information(plan),
        *_on_moves(plan),
        *_on_dropout(plan),
        *_on_coalitions_outside(plan),
        *_on_prior(plan),
        *_on_balance(plan),
        *same,
        *(advice_on_merges(plan) if merges else []),
        *other,
    ]
    return tuple(sorted(pieces, key=lambda advice: not advice.warning))


def _advice_on_schedule(plan: PlanFigures) -> tuple[Advice, ...]:
    """Returns the advice on a plan whose membership changes; levers and merges compare plans of one roster."""
    pieces = [
        *_on_accountant(plan),
        *_on_delta(plan),
        *_on_curious_aggregator(plan),
        *_on_signal(plan),
        *_on_dropout(plan),
        *_on_phases(plan),
    ]
    facts = (replace(advice, text=advice.finding, remedy="", offers=()) for advice in pieces)
    return tuple(sorted(facts, key=lambda advice: not advice.warning))


def _on_phases(plan: PlanFigures) -> Iterator[Advice]:
    """Yields the noise beside that of one constant sum for each region, and a fact on rounds of absence."""
    constant, least = constant_budget(plan.federation, plan.requirement), plan.noise_lower_bound
    phases, tier = len(rosters_of(plan.federation).present), plan.federation.innermost.name
    saved = f"{max(1 - plan.noise_budget / constant, 0.0):.1%} less than with constant noise in the sum of each {tier}"
    proof = f", and at most {max(1 - least / plan.noise_budget, 1e-9):.0e} of it above the least" if least else ""
    text = (
        f"Membership changes over {phases} phases. The noise of all rounds is {saved}{proof}. Rounds in which a silo "
        "takes no part cost the silo nothing and give nothing back."
    )
    yield Advice(kind="phases", warning=False, text=text)


def advice_on_levers(plan: PlanFigures, *, merges: bool = True) -> tuple[Advice, ...]:
    """Returns the levers for less noise, in the order of `advice_on`.

    Args:
        plan: The plan.
        merges: True to look at merges of regions too.
    """
    if plan.federation.rosters is not None:
        return ()
    same, other = _levers(plan)
    return (*same, *(advice_on_merges(plan) if merges else []), *other)


def _levers(plan: PlanFigures) -> tuple[list[Advice], list[Advice]]:
    """Returns advice on levers with the same promise, and advice on levers with another promise."""

    def advice_of(words: LeverWords) -> Advice:
        return Advice(
            kind=words.name,
            warning=False,
            text=words.text,
            remedy=words.remedy,
            offers=words.offers,
            saving=words.saving,
            changes_promise=words.changes_promise,
        )

    words = lever_words(plan)
    return (
        [advice_of(lever) for lever in words if not lever.changes_promise],
        [advice_of(lever) for lever in words if lever.changes_promise],
    )


def advice_on_merges(plan: PlanFigures) -> list[Advice]:
    """Returns the two regions to merge, if a merge saves noise."""
    merge = best_merge(plan) if plan.federation.rosters is None else None
    if merge is None:
        return []
    inner = plan.federation.innermost.name
    remedy = f"To merge them, give both the same {inner} in the federation's file."
    sees = "aggregator would then see the updates" if not plan.is_masked else "masked group would then hold the silos"
    text = (
        f"Of all pairs, merging {inner} {merge.regions[0]!r} with {merge.regions[1]!r} would save most: "
        f"{merge.saving:.1%} of the noise that enters the model in each round. One {sees} of both. "
        f"{_inside_after(plan, merge)}{remedy}"
    )
    offers = (("merge", merge.regions),)
    return [Advice(kind="merge", warning=False, text=text, remedy=remedy, offers=offers, saving=merge.saving)]


def _inside_after(plan: PlanFigures, merge: Merge) -> str:
    """Returns a sentence on the observer inside if a merge raises the epsilon: silos of a larger region draw less."""
    if plan.allocation != "optimal" or not plan.silos_draw_noise:
        return ""
    now, then = (
        display_epsilon(variant.worst_epsilon(SILO)) for variant in (plan, _merge_pair(plan, [*merge.regions]))
    )
    if not then > now:
        return ""
    rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds:,} rounds"
    return f"Over {rounds} the worst epsilon against {inside_in_words(plan)} would be {then:g} in place of {now:g}. "


def signal_to_noise(plan: PlanFigures, parameters: int) -> float:
    """Returns the best signal to noise of the whole training, sqrt(T / (d U)): every update aligned, norm C.

    U is the noise that enters the model, by the plan's weights and server rule. A round has signal C and noise of norm
    C sqrt(d U); with equal weights the ratio is the paper's sqrt(a n / d) / sigma at alignment a = 1. Signals add up
    over rounds, noise adds up in variance. A clip at a share of C, scaled up to C, changes neither; a server that
    shrinks its estimate removes more noise than signal, which is not counted.
    """
    if parameters < 1:
        raise ParameterError("plan.parameters-too-few", parameters=parameters)
    return math.sqrt(plan.rounds / (parameters * plan.model_noise))


def most_parameters(plan: PlanFigures) -> int:
    """Returns the largest d at which `signal_to_noise` is not below `WEAK_SIGNAL`; at least 1."""
    return max(1, math.floor(plan.rounds / (WEAK_SIGNAL**2 * plan.model_noise)))


def learnt_at(ratio: float) -> str:
    """Returns a sentence on how well models with this ratio learnt in the experiments behind `STRONG_SIGNAL`.

    Args:
        ratio: The predicted signal to noise, a result of `signal_to_noise`.
    """
    if ratio < WEAK_SIGNAL:
        outcome = f"below {WEAK_SIGNAL:g} learnt less than half"
    elif ratio < STRONG_SIGNAL:
        outcome = f"from {WEAK_SIGNAL:g} to {STRONG_SIGNAL:g} learnt anything from nothing to nearly all"
    else:
        outcome = f"from {STRONG_SIGNAL:g} on learnt at least four fifths"
    return f"In our experiments, heads with a predicted signal to noise {outcome} of what they learn without privacy."


def best_merge(plan: PlanFigures) -> Merge | None:
    """Returns the two regions under one parent whose merge saves most noise, or None if no merge saves any.

    After a merge silos have the weights of the plan's rule. If weights stay as before and the sums are added up, the
    noise of a merge has a closed form; otherwise the merged federation is planned for, except for federations too large
    for that. With outer targets a merge may only move noise elsewhere, so the result is None.
    """
    if not _has_merges(plan):
        return None
    return _best_of(plan, _saved_by_sums(plan) if _keeps_weights(plan) else _saved_by_planning(plan))


def _best_of(plan: PlanFigures, savings: Iterable[tuple[tuple[int, int], float]]) -> Merge | None:
    """Returns the merge that saves most, from the noise that each pair of regions saves."""
    nodes, best = plan.federation.innermost.nodes, None
    for (first, second), noise in savings:
        share = noise / plan.model_noise
        if share > (1e-9 if best is None else best.saving + 1e-9):  # of equals, the first
            best = Merge(regions=(nodes[first], nodes[second]), saving=share)
    return best


def _keeps_weights(plan: PlanFigures) -> bool:
    """Returns True if a merge changes neither weights nor provisions, so that its noise has a closed form."""
    # The provision for persons in several silos depends on the number of silos of a region, so a merge changes it.
    return plan.weights_rule in _KEPT and plan.unit.silos_per_person == 1 and plan.server_rule.adds_up


def _has_merges(plan: PlanFigures) -> bool:
    """Returns True if merges of regions can save noise, and are few enough to look at."""
    inner, required = plan.federation.innermost, plan.requirement
    if len(inner.nodes) < 2 or set(required.multiplier) - {SILO, inner.name}:
        return False
    if required.masked and SILO in required.multiplier:  # the target is then on sums, against more colluders
        return False
    iterated = plan.weights_rule not in (*_KEPT, "equal") and (
        plan.weights_rule != "least-noise" or len(required.multiplier) > 1
    )
    return _keeps_weights(plan) or len(plan.federation) <= (_ITERATED_UP_TO if iterated else _PLANNED_UP_TO)


def _pairs(plan: PlanFigures, promising: FloatArray, candidates: int) -> Iterator[tuple[int, int]]:
    """Yields pairs of regions under one parent, out of the most promising regions."""
    federation = plan.federation
    regions = len(federation.innermost.nodes)
    outer = federation.tiers[1].parent_of if len(federation.tiers) > 1 else np.zeros(regions, np.intp)
    chosen = np.argsort(-promising, kind="stable")[:candidates].tolist()
    return (pair for pair in combinations(sorted(chosen), 2) if outer[pair[0]] == outer[pair[1]])


def _saved_by_sums(plan: PlanFigures) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields by pair of regions the saving of a merge, for weights that stay as before and sums that are added up."""
    federation, requirement = plan.federation, plan.requirement
    inner = federation.innermost
    squared = federation.weights**2
    need = requirement.need(federation, inner.name)
    base = np.broadcast_to(np.asarray(requirement.multiplier.get(SILO, 0.0)) ** 2, squared.shape) * squared
    excess = plan.node_noise(inner.name) - sum_by(inner.parent_of, base, len(inner.nodes))

    @cache
    def members(region: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        return np.flatnonzero(inner.parent_of == region)

    @cache
    def least(*regions: int) -> float:
        silos = np.concatenate([members(region) for region in regions])
        return _region_noise(squared[silos], need[silos], base[silos], requirement.excluded_silos)

    for first, second in _pairs(plan, excess, _MERGE_CANDIDATES):
        yield (first, second), least(first) + least(second) - least(first, second)


def _saved_by_planning(plan: PlanFigures) -> Iterator[tuple[tuple[int, int], float]]:
    """Yields by pair of regions the saving of a merge, by the noise of the merged federation under the plan's rules."""
    inner = plan.federation.innermost
    promising = plan.node_noise(inner.name) if plan.server_rule.adds_up else plan.node_influence(inner.name)
    for pair in _pairs(plan, promising, _PLANNED_ANEW):
        merged = _merge_pair(plan, [inner.nodes[region] for region in pair])
        yield pair, plan.model_noise - merged.model_noise


def _merge_pair(plan: PlanFigures, regions: list[str]) -> PlanFigures:
    """Returns the plan of the federation with merged regions, under the plan's rules and the optimal allocation."""
    requirement = plan.requirement
    federation: Topology = merge_regions(plan.federation, regions)
    federation = replace(federation, persons=plan.federation.persons)
    if plan.unit.silos_per_person > 1:
        requirement = plan.target.requirement(federation)
    if plan.weights_rule in _KEPT:
        federation = federation.with_weights(plan.weights)
    else:
        federation = choose_weights(
            federation,
            plan.weights_rule,
            requirement if plan.target.budget is None else replace(requirement, multiplier={}),
            server=plan.server,
            least_influence=plan.least_influence,
        ).federation
    noise = allocate(federation, requirement)
    return changed_copy(plan, federation=federation, noise_multiplier=noise, aggregator_noise_multiplier=None)


def information_ceiling(plan: PlanFigures) -> float:
    """Returns the entropy of a silo's class concentration at `LEVELS` levels, in nats: a higher bound says nothing.

    Without a declared coupling the entropy is the most that any prior allows.
    """
    return math.log(LEVELS) if plan.coupling is None else prior_entropy(plan.coupling, levels=LEVELS)


def _region_noise(squared: FloatArray, need: FloatArray, base: FloatArray, excluded_silos: int) -> float:
    """Returns the noise variance of a region with a constant multiplier, `excluded_silos` silos not counted."""
    together = np.zeros(len(squared), dtype=np.intp)
    left, more = left_by_coalitions(squared, together, 1, excluded_silos)
    level = float((need / (left[0] + more)).max())
    return float(np.maximum(level * squared, base).sum())


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def _epsilon_text(epsilon: float) -> str:
    return f"{display_epsilon(epsilon):g}"


def _on_accountant(plan: PlanFigures) -> list[Advice]:
    if not plan.is_deployment or plan.accountant == "renyi":
        return []
    remedy = "Plan with --accountant renyi."
    text = f"These figures are proven for continuous noise, not for the lattice noise that silos draw. {remedy}"
    return [Advice(kind="accountant", warning=True, text=text, remedy=remedy, offers=(("accountant", "renyi"),))]


def _on_curious_aggregator(plan: PlanFigures) -> list[Advice]:
    inner = plan.federation.innermost.name
    if not plan.silos_draw_noise:
        text = (
            f"The {inner} aggregators add the noise, so every aggregator sees updates without noise: "
            "the plan has no guarantee against a curious aggregator."
        )
        return [Advice(kind="curious-aggregator", warning=True, text=text)]
    if SILO in plan.epsilon_target:
        return []
    inside, above = float(plan.epsilon_inside.max()), float(plan.epsilon_above.max())
    if plan.is_masked:
        if inside <= above * (1 + 1e-9):
            return []
        remedy = "For a smaller epsilon, plan with --colluders 1, or add a target with --epsilon-inside."
        helpers, why = f"one silo of a {inner}", f"masking hides little in a small {inner}"
        if plan.one_group:
            helpers, why = f"one silo of each {inner}", "each of these silos can subtract its own noise from the sum"
        worst = _epsilon_text(inside)
        text = f"Against the server together with {helpers} the worst epsilon is {worst}, since {why}. {remedy}"
        offered = (("colluders", 1),)
        return [Advice(kind="curious-aggregator", warning=True, text=text, remedy=remedy, offers=offered)]
    uniform = with_uniform_noise(plan).worst_epsilon(SILO)
    if inside <= max(uniform, above) * (1 + 1e-9):
        return []
    # A large region lets every silo draw little noise, and masks hide single releases at no more noise.
    masks, masked = "", masked_variant(plan) if plan.allocation in ALLOCATIONS else None
    if masked is not None and (then := masked.worst_epsilon(SILO)) < inside * (1 - 1e-9):
        helpers = f"the server together with {silos_of(inner, max(1, plan.colluders))}"
        masks = f", or mask the sums with --aggregation masked: then {_epsilon_text(then)} against {helpers}"
    remedy = (
        "For a smaller epsilon, add a target on the aggregator, such as --epsilon-inside "
        f"{_epsilon_text(uniform)}{masks}."
    )
    text = (
        f"Against a curious {inner} aggregator the worst epsilon is {_epsilon_text(inside)} "
        f"(uniform noise: {_epsilon_text(uniform)}). {remedy}"
    )
    offers = (("epsilon_inside", display_epsilon(uniform)),)
    return [Advice(kind="curious-aggregator", warning=True, text=text, remedy=remedy, offers=offers)]


def _on_signal(plan: PlanFigures) -> list[Advice]:
    if plan.parameters is None:
        return []
    ratio = signal_to_noise(plan, plan.parameters)
    over = f"over {plan.rounds} rounds is at most {_ratio_text(ratio)}"
    text = f"With {plan.parameters:,} parameters the signal to noise {over}"
    if ratio < WEAK_SIGNAL:
        text += (
            f": the model will not train. Train at most about {most_parameters(plan):,} parameters, "
            "or allow a larger epsilon."
        )
        return [Advice(kind="signal", warning=True, text=text)]
    return [Advice(kind="signal", warning=False, text=text + ".")]


def _on_information(plan: PlanFigures) -> list[Advice]:
    if plan.floor is None:
        return []
    mechanism = plan.mechanism_information
    worst = int(np.argmax(mechanism + plan.floor))
    records = int(plan.federation.sizes.min()) if plan.federation.sizes_known else None
    has_coupling, entropy = plan.coupling is not None, information_ceiling(plan)
    verdict = informativeness(
        mechanism=float(mechanism[worst]),
        floor=float(plan.floor[worst]),
        levels=LEVELS,
        entropy=entropy,
        records=records,
    )
    bound = shown_nats(verdict.mechanism + verdict.floor, digits=3)
    ceiling = f"ln {LEVELS} = {entropy:.3g}"
    if has_coupling:
        ceiling = f"the target's entropy {entropy:.3g} at {LEVELS} levels"
    if not verdict.informative:
        text = f"The information bound {bound} nats is not below {ceiling}: the bound says nothing."
        return [Advice(kind="information", warning=True, text=text)]
    if not plan.floor_declared:
        text = (
            f"The releases reveal at most {bound} nats of a silo's class concentration. No floor was declared, so the "
            "information that the silo's group reveals without any release is not counted."
        )
        return [Advice(kind="information", warning=False, text=text)]
    text = f"The information bound {bound} nats is informative: below {ceiling}"
    text += (
        "" if has_coupling else ", the largest possible entropy of the target; compare the bound with the real entropy"
    )
    if records is not None and not verdict.identifiable:
        text += f" (a silo of {records:g} records resolves at most {finest_resolution(records)} levels)"
    return [Advice(kind="information", warning=False, text=text + ".")]


def _on_dropout(plan: PlanFigures) -> list[Advice]:
    inner = plan.federation.innermost.name
    if len(plan.federation) > _DROPOUT_CHECK_UP_TO or not plan.silos_draw_noise:
        return []
    now = float(plan.epsilon_above.max())
    then = float(plan.epsilon(dropouts=plan.dropouts + 1).max())
    if then <= now * (1 + 1e-9):
        return []
    more = "one more silo" if plan.colluders or plan.dropouts else "one silo"
    offers = (("dropouts", plan.dropouts + 1), ("colluders", plan.colluders + 1))
    remedy = f"To plan for that, use --dropouts {plan.dropouts + 1} or --colluders {plan.colluders + 1}."
    place = "outside the federation" if plan.one_group else "above it"
    text = (
        f"If {more} of each {inner} dropped out or colluded, the worst epsilon {place} would be {_epsilon_text(then)} "
        f"instead of {_epsilon_text(now)}. {remedy}"
    )
    return [Advice(kind="dropout", warning=False, text=text, remedy=remedy, offers=offers)]


def _on_moves(plan: PlanFigures) -> list[Advice]:
    """Names the silos that changed region since the previous plan: coalitions of past and future then differ."""
    if not plan.moved:
        return []
    federation = plan.federation
    inner = federation.innermost
    now = dict(zip(federation.silo_names.tolist(), inner.parent_of.tolist(), strict=True))
    moves = [f"{silo} ({before} to {inner.nodes[now[silo]]})" for silo, before in sorted(plan.moved.items())]
    text = f"Moved to another {inner.name} since the plan before: {listing(moves)}."
    if plan.colluders:
        text += (
            f" Colluders are counted in every {inner.name} of every plan so far, so two colluders of different "
            f"{inner.name}s may have been in one {inner.name} before, or may be now."
        )
    return [Advice(kind="moved", warning=plan.colluders > 0, text=text)]


def _on_coalitions_outside(plan: PlanFigures) -> list[Advice]:
    """Compares the noise of the optimum with its lower bound, if the optimum is not proven to be the least."""
    outside = outer_coalitions(plan.federation, plan.requirement)
    ratio = plan.noise_budget / plan.noise_lower_bound
    if not outside or plan.allocation != "optimal" or ratio <= _LEAST_RATIO:
        return []
    text = (
        f"With silos that collude or are missing from a sum of the tier {listing(outside)}, this plan's noise is at "
        f"most {rounded_up(ratio, digits=3):g} times the least noise of any allocation for the same targets."
    )
    return [Advice(kind="coalitions", warning=False, text=text)]


def _on_delta(plan: PlanFigures) -> list[Advice]:
    persons = plan.federation.persons
    count = len(plan.federation) if persons is None else math.ceil(float(persons.sum()))
    if plan.delta * count <= 1:
        return []
    places = math.ceil(math.log10(count))  # of one digit, rounded down
    most = math.floor(10**places / count) / 10**places
    units = "silos" if persons is None else f"{plan.unit.noun}s"
    text = f"delta {plan.delta:g} is above one over the number of {units} ({count:,}). Take at most {most:g}."
    return [Advice(kind="delta", warning=True, text=text, offers=(("delta", most),))]


def _on_prior(plan: PlanFigures) -> list[Advice]:
    """Returns advice to try the spectrum prior first, if the inputs are not declared as a frozen public embedding."""
    if plan.spectrum is None or plan.spectrum.embedding:
        return []
    text = (
        f"The server's prior follows the variances of the inputs in {plan.spectrum.source}. The prior helps for frozen "
        "public embeddings; for other inputs variance may say nothing about the classes, and the prior may cost "
        "accuracy: compare with --no-shrink on public data."
    )
    return [Advice(kind="prior", warning=False, text=text)]


def _on_balance(plan: PlanFigures) -> list[Advice]:
    if plan.dispersion != 0 or plan.attainable_saving >= 1e-12 or abs(plan.saving) >= 1e-12:
        return []
    text = f"Every {plan.federation.innermost.name} is equally exposed: uniform noise is already optimal."
    return [Advice(kind="balanced", warning=False, text=text)]
