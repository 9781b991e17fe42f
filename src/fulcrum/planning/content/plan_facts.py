"""Warnings and facts about a plan, each a piece of advice: a sentence with a number.

>>> from fulcrum.planning.planner import draft_plan
>>> [fact.kind for fact in facts_on(draft_plan("tcga-brca", rounds=10, epsilon=1.0))]
['curious-aggregator', 'dropout']
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.core.phase_noise import rosters_of
from fulcrum.core.topology import SILO
from fulcrum.errors import listing
from fulcrum.planning.content.learning_signal import WEAK_SIGNAL, most_parameters, signal_to_noise
from fulcrum.planning.content.lever_words import silos_of
from fulcrum.planning.content.levers import masked_variant
from fulcrum.planning.content.plan_figures import PlanFigures, with_uniform_noise
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.planning.theory.leakage import finest_resolution, informativeness, shown_nats
from fulcrum.planning.theory.noise_bound import outer_coalitions
from fulcrum.planning.theory.prior import prior_entropy
from fulcrum.planning.theory.scheduling import constant_budget
from fulcrum.rounding import display_epsilon, rounded_up

LEVELS = 20
"""The resolution of the test of informativeness, the paper's R."""

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


def facts_on(plan: PlanFigures) -> list[Advice]:
    """Returns warnings and facts about a plan, in the order of their subjects; `advice_on` puts warnings first."""
    return [
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
    ]


def facts_on_schedule(plan: PlanFigures) -> list[Advice]:
    """Returns warnings and facts about a plan with changing membership."""
    return [
        *_on_accountant(plan),
        *_on_delta(plan),
        *_on_curious_aggregator(plan),
        *_on_signal(plan),
        *_on_dropout(plan),
        *_on_phases(plan),
    ]


def information_ceiling(plan: PlanFigures) -> float:
    """Returns the entropy of a silo's class concentration at `LEVELS` levels, in nats: a higher bound says nothing.

    Without a declared coupling the entropy is the most that any prior allows.
    """
    return math.log(LEVELS) if plan.coupling is None else prior_entropy(plan.coupling, levels=LEVELS)


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


def _on_phases(plan: PlanFigures) -> Iterator[Advice]:
    """Yields the noise beside that of one constant sum for each region, and a fact on rounds of absence."""
    constant, least = constant_budget(plan.federation, plan.requirement), plan.noise_lower_bound
    phases, tier = len(rosters_of(plan.federation).present), plan.federation.innermost.name
    saved = f"{max(1 - plan.noise_budget / constant, 0.0):.1%} less than with constant noise in the sum of each {tier}"
    restricted = plan.colluders or plan.dropouts or SILO in plan.required_multiplier
    form = f" with one multiplier in each {tier} and phase" if restricted else ""
    proof = f", and at most {max(1 - least / plan.noise_budget, 1e-9):.0e} of it above the least{form}" if least else ""
    text = (
        f"Membership changes over {phases} phases. The noise of all rounds is {saved}{proof}. Rounds in which a silo "
        "takes no part cost the silo nothing and give nothing back."
    )
    yield Advice(kind="phases", warning=False, text=text)
