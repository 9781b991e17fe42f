"""The first screen of the page: the promise, the verdict on both observers, and advice with buttons.

>>> from fulcrum.planning.planner import plan
>>> [warning, *_] = page_advice(advice_on(plan("consortium", rounds=10, epsilon=1.0)))
>>> [offer.label for offer in warning.offers]
['Promise 1 inside']
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from fulcrum.planning.comparisons.weight_tradeoff import own_choice
from fulcrum.planning.content.advice import advice_on, advice_on_levers, advice_on_merges
from fulcrum.planning.content.plan_facts import Advice
from fulcrum.planning.engine_limits import refusals
from fulcrum.planning.plan import Plan
from fulcrum.views.html import promise, render
from fulcrum.words.numbers import figure
from fulcrum.words.verdict import verdict

MOST_SILOS_MERGED = 2_000
"""The most silos for which the page looks for merges with weights that are not by size: every merge is planned anew."""


MOST_SILOS_AT_ONCE = 1_000
"""The most silos for which the page looks for levers while a slider moves: every lever is planned anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A button that follows advice.

    Attributes:
        setting: The control of the button, or "merge".
        value: The new value of the control, in JSON.
        label: The text of the button.
    """

    setting: str
    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAdvice:
    """Advice in words of the page, with a button for every way to follow the advice."""

    warning: bool
    text: str
    offers: tuple[Offer, ...]


def head(plan: Plan) -> str:
    """Returns the first screen of the page for a plan as HTML: verdict, promise, main numbers and advice."""
    own, by_size, quick = own_choice(plan), _by_size(plan), _levers_at_once(plan)
    return render(
        "serve_head.html",
        **promise(plan, control="the field 'parameters'"),
        verdict=verdict(plan),
        advice=[*_on_deploying(plan), *page_advice(advice_on(plan, merges=by_size and quick, levers=quick))],
        own=own,
        by_size=by_size,
    )


def late_advice(plan: Plan) -> str:
    """Returns slow advice as HTML, which `head` leaves out to keep up with a slider.

    Levers of large federations and of several targets are slow, and so are merges at other weights.
    """
    merges = _by_size(plan) or len(plan.federation) <= MOST_SILOS_MERGED
    if not _levers_at_once(plan):
        return render("serve_hints.html", advice=page_advice(advice_on_levers(plan, merges=merges)))
    if _by_size(plan) or not merges:
        return ""
    return render("serve_hints.html", advice=page_advice(advice_on_merges(plan)))


def page_advice(advice: Iterable[Advice]) -> list[PageAdvice]:
    """Returns advice without the command line's options: the controls of the page stand in their place, if any."""
    return [
        PageAdvice(
            warning=piece.warning,
            text=piece.finding.replace("--weights equal", "equal weights"),  # digests cover the words of advice
            offers=tuple(
                Offer(setting=setting, value=msgspec.json.encode(value).decode(), label=_label(setting, value))
                for setting, value in piece.offers
            ),
        )
        for piece in advice
    ]


def _on_deploying(plan: Plan) -> list[PageAdvice]:
    """Returns warnings of deployment plans that NVIDIA FLARE refuses, while regions and silos can still be changed."""
    reasons = refusals(plan) if plan.is_deployment else ()
    return [
        PageAdvice(warning=True, text=f"NVIDIA FLARE will refuse this plan: {reason}.", offers=()) for reason in reasons
    ]


def _levers_at_once(plan: Plan) -> bool:
    """Checks that the levers of a plan are found fast enough for a slider."""
    return len(plan.federation) <= MOST_SILOS_AT_ONCE and len(plan.requirement.multiplier) == 1


def _by_size(plan: Plan) -> bool:
    """Checks that influence is by size, so that the saving of a merge follows without a new plan."""
    return plan.weights_rule == "sizes" and plan.server_rule.adds_up


def _label(setting: str, value: Any) -> str:
    if setting == "merge":
        return f"Merge {' and '.join(value)}"
    if setting == "epsilon_inside":
        return f"Promise {figure(value)} inside"
    if setting in ("colluders", "dropouts"):
        return f"Provide for {value} {setting.removesuffix('s') if value == 1 else setting}"
    if setting == "weights":
        return "Take equal weights within each region" if value == "equal" else "Take weights of least noise"
    if setting == "rounds":
        return f"Take {value:,} {'round' if value == 1 else 'rounds'}"
    if setting == "unit":
        return "Protect persons instead of silos"
    return f"Take {setting} {value if isinstance(value, str) else f'{value:g}'}"
