"""Advice to the reader of a plan: warnings first, then what could be gained.

Each piece of advice is one sentence with its number in it. Nothing here changes a plan.

>>> advised = Advice(kind="balanced", warning=False, text="All regions are equally exposed: uniform noise is optimal.")
>>> advised.text
'All regions are equally exposed: uniform noise is optimal.'
"""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import ParameterError, listing
from fulcrum.federation.structure import SILO
from fulcrum.privacy.exposure import left_by_coalitions, sum_by
from fulcrum.privacy.leakage import finest_resolution, informativeness, shown_nats
from fulcrum.privacy.prior import prior_entropy
from fulcrum.rounding import rounded_up

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan

LEVELS = 20
"""Resolution at which informativeness is judged unless told otherwise, the paper's R."""

WEAK_SIGNAL = 0.1
"""Signal to noise over all rounds below which a model does not learn; the paper's hardest arm that did has 0.15."""

_MERGE_CANDIDATES = 12
_DROPOUT_CHECK_UP_TO = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One sentence for the reader of a plan.

    Attributes:
        kind: What it is about, for programs.
        warning: Whether someone could come to harm by not knowing it.
        text: The sentence.
    """

    kind: str
    warning: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The merge of two regions that saves most noise, as a share of the plan's budget."""

    regions: tuple[str, str]
    saving: float


def advice_on(plan: "Plan") -> tuple[Advice, ...]:
    """Returns the advice on a plan, warnings first, and of these what undoes the promise before what costs utility."""
    found = [
        *_on_accountant(plan),
        *_on_delta(plan),
        *_on_curious_aggregator(plan),
        *_on_signal(plan),
        *_on_information(plan),
        *_on_moves(plan),
        *_on_dropout(plan),
        *_on_coalitions_outside(plan),
        *_on_structure(plan),
    ]
    return tuple(sorted(found, key=lambda advice: not advice.warning))


def signal_to_noise(plan: "Plan", parameters: int) -> float:
    """Returns the signal to noise of the whole training at its best, sqrt(T / (d U)): every update aligned, norm C.

    One round has signal C and noise of norm C sqrt(d U); with equal weights that is the paper's sqrt(a n / d) / sigma
    at alignment a = 1. Signals add up over rounds, noise adds up in variance.
    """
    if parameters < 1:
        raise ParameterError(f"parameters must be a whole number of at least 1, got {parameters}")
    return math.sqrt(plan.rounds / (parameters * plan.noise_budget))


def best_merge(plan: "Plan") -> Merge | None:
    """Returns the two regions under one parent whose merge saves most noise, or None if no merge saves any.

    Known in closed form while only the innermost tier and the silos have targets; with outer targets a merge may only
    move noise elsewhere, so none is named.
    """
    federation, requirement = plan.federation, plan.requirement
    inner = federation.innermost
    if len(inner.nodes) < 2 or set(requirement.multiplier) - {SILO, inner.name}:
        return None
    squared = federation.weights**2
    need = requirement.need(federation, inner.name)
    base = np.broadcast_to(np.asarray(requirement.multiplier.get(SILO, 0.0)) ** 2, squared.shape) * squared
    noise = sum_by(inner.parent_of, plan.noise_variance, len(inner.nodes))
    excess = noise - sum_by(inner.parent_of, base, len(inner.nodes))
    outer = federation.tiers[1].parent_of if len(federation.tiers) > 1 else np.zeros(len(inner.nodes), np.intp)
    members = {
        int(region): np.flatnonzero(inner.parent_of == region)
        for region in np.argsort(-excess, kind="stable")[:_MERGE_CANDIDATES]
    }

    def least(silos: np.ndarray[tuple[int], np.dtype[np.intp]]) -> float:
        return _region_noise(squared[silos], need[silos], base[silos], requirement.uncounted)

    alone = {region: least(silos) for region, silos in members.items()}
    best: Merge | None = None
    for one, other in combinations(sorted(members), 2):
        if outer[one] != outer[other]:
            continue
        saved = alone[one] + alone[other] - least(np.concatenate([members[one], members[other]]))
        share = saved / plan.noise_budget
        if share > (1e-9 if best is None else best.saving + 1e-9):  # of equals, the first
            best = Merge(regions=(inner.nodes[one], inner.nodes[other]), saving=share)
    return best


def information_ceiling(plan: "Plan") -> float:
    """Returns the entropy of a silo's class concentration at `LEVELS` levels, in nats: no bound above it says anything.

    Without a declared coupling it is the most that any prior allows.
    """
    return math.log(LEVELS) if plan.coupling is None else prior_entropy(plan.coupling, levels=LEVELS)


def _region_noise(squared: FloatArray, need: FloatArray, base: FloatArray, uncounted: int) -> float:
    """The noise variance one region needs with a constant multiplier, that of `uncounted` silos not counted."""
    together = np.zeros(len(squared), dtype=np.intp)
    left, more = left_by_coalitions(squared, together, 1, uncounted)
    level = float((need / (left[0] + more)).max())
    return float(np.maximum(level * squared, base).sum())


def _shown(epsilon: float) -> str:
    return f"{rounded_up(epsilon, digits=4):g}"


def _on_accountant(plan: "Plan") -> list[Advice]:
    if plan.purpose != "deployment" or plan.accountant == "renyi":
        return []
    text = (
        "These figures are proven for continuous noise, not for the lattice noise that silos draw. "
        "Plan with --accountant renyi."
    )
    return [Advice(kind="accountant", warning=True, text=text)]


def _on_curious_aggregator(plan: "Plan") -> list[Advice]:
    inner = plan.federation.innermost.name
    if plan.injection == "aggregator":
        text = (
            f"The {inner} aggregators add the noise, so they see every update bare: "
            "there is no guarantee against a curious one."
        )
        return [Advice(kind="curious-aggregator", warning=True, text=text)]
    if SILO in plan.epsilon_target:
        return []
    inside, above = float(plan.epsilon_inside.max()), float(plan.epsilon_above.max())
    uniform = plan.uniform().worst_epsilon(SILO)
    if inside <= max(uniform, above) * (1 + 1e-9):
        return []
    text = (
        f"Against a curious {inner} aggregator the worst epsilon is {_shown(inside)} "
        f"(uniform noise: {_shown(uniform)}). To hold it down, add a target on the tier 'silo', "
        f"such as --epsilon-inside {_shown(uniform)}."
    )
    return [Advice(kind="curious-aggregator", warning=True, text=text)]


def _on_signal(plan: "Plan") -> list[Advice]:
    if plan.parameters is None:
        return []
    ratio = signal_to_noise(plan, plan.parameters)
    text = f"With {plan.parameters:,} parameters the signal to noise over {plan.rounds} rounds is at most {ratio:.2g}"
    if ratio < WEAK_SIGNAL:
        limit = max(1, math.floor(plan.rounds / (WEAK_SIGNAL**2 * plan.noise_budget)))
        text += f": the model will not train. Train at most about {limit:,} parameters, or allow a larger epsilon."
        return [Advice(kind="signal", warning=True, text=text)]
    return [Advice(kind="signal", warning=False, text=text + ".")]


def _on_information(plan: "Plan") -> list[Advice]:
    if plan.floor is None:
        return []
    mechanism = plan.mechanism_information
    worst = int(np.argmax(mechanism + plan.floor))
    records = int(plan.federation.sizes.min()) if plan.federation.sizes_known else None
    known, entropy = plan.coupling is not None, information_ceiling(plan)
    verdict = informativeness(
        mechanism=float(mechanism[worst]),
        floor=float(plan.floor[worst]),
        levels=LEVELS,
        entropy=entropy,
        records=records,
    )
    bound = shown_nats(verdict.mechanism + verdict.floor, digits=3)
    ceiling = f"the target's entropy {entropy:.3g} at {LEVELS} levels" if known else f"ln {LEVELS} = {entropy:.3g}"
    if not verdict.informative:
        text = f"The information bound {bound} nats is not below {ceiling}: it says nothing."
        return [Advice(kind="information", warning=True, text=text)]
    text = f"The information bound {bound} nats is informative: below {ceiling}"
    text += "" if known else ", the most that the target's entropy can be; check it against the real one"
    if records is not None and not verdict.identifiable:
        text += f" (a silo of {records:g} records resolves at most {finest_resolution(records)} levels)"
    return [Advice(kind="information", warning=False, text=text + ".")]


def _on_dropout(plan: "Plan") -> list[Advice]:
    inner = plan.federation.innermost.name
    if len(plan.federation) > _DROPOUT_CHECK_UP_TO or plan.injection == "aggregator":
        return []
    now = float(plan.epsilon_above.max())
    then = float(plan.epsilon(dropouts=plan.dropouts + 1).max())
    if then <= now * (1 + 1e-9):
        return []
    more = "one more silo" if plan.colluders or plan.dropouts else "one silo"
    text = (
        f"If {more} of each {inner} dropped out or colluded, the worst epsilon above it would be {_shown(then)} "
        f"instead of {_shown(now)}. To provision for it: --dropouts {plan.dropouts + 1} or --colluders "
        f"{plan.colluders + 1}."
    )
    return [Advice(kind="dropout", warning=False, text=text)]


def _on_moves(plan: "Plan") -> list[Advice]:
    """Names who changed region since the plan before: coalitions of past and future then differ."""
    if not plan.moved:
        return []
    federation = plan.federation
    inner = federation.innermost
    now = dict(zip(federation.silo_names.tolist(), inner.parent_of.tolist(), strict=True))
    told = [f"{silo} ({before} to {inner.nodes[now[silo]]})" for silo, before in sorted(plan.moved.items())]
    text = f"Moved to another {inner.name} since the plan before: {listing(told)}."
    if plan.colluders:
        text += (
            f" Colluders are counted in every {inner.name} of every plan so far, so two that were in different ones "
            "may be in one now, or were before."
        )
    return [Advice(kind="moved", warning=plan.colluders > 0, text=text)]


def _on_coalitions_outside(plan: "Plan") -> list[Advice]:
    """Says where the optimum is not claimed to be the least."""
    inner = plan.federation.innermost.name
    outside = sorted(set(plan.requirement.multiplier) - {SILO, inner})
    if not outside or not plan.requirement.uncounted or plan.allocation != "optimal":
        return []
    text = (
        f"With colluders or dropouts and a target on {listing(outside)}, every target is met, but up to about half as "
        "much noise again as the least may be needed for it."
    )
    return [Advice(kind="coalitions", warning=False, text=text)]


def _on_delta(plan: "Plan") -> list[Advice]:
    silos = len(plan.federation)
    if plan.delta * silos <= 1:
        return []
    places = math.ceil(math.log10(silos))  # of one digit, rounded down
    most = math.floor(10**places / silos) / 10**places
    text = f"delta {plan.delta:g} is above one over the number of silos ({silos:,}). Take at most {most:g}."
    return [Advice(kind="delta", warning=True, text=text)]


def _on_structure(plan: "Plan") -> list[Advice]:
    found = []
    inner = plan.federation.innermost.name
    if plan.dispersion == 0 and abs(plan.saving) < 1e-12:
        text = f"Every {inner} is equally exposed: uniform noise is already optimal."
        found.append(Advice(kind="balanced", warning=False, text=text))
    merge = best_merge(plan)
    if merge is not None:
        text = (
            f"Of all pairs, merging {inner} {merge.regions[0]!r} with {merge.regions[1]!r} would save most: "
            f"{merge.saving:.1%} of the remaining noise."
        )
        found.append(Advice(kind="merge", warning=False, text=text))
    return found
