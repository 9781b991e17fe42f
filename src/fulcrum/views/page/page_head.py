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
from fulcrum.planning.content.advice import Advice, advice_on, advice_on_merges
from fulcrum.planning.engine_limits import refusals
from fulcrum.planning.plan import Plan
from fulcrum.views.html import promise, render
from fulcrum.words.numbers import figure
from fulcrum.words.verdict import verdict

MOST_SILOS_MERGED = 2_000
"""The most silos for which the page looks for merges with weights that are not by size: every merge is planned anew."""


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
    own, by_size = own_choice(plan), _by_size(plan)
    return render(
        "serve_head.html",
        **promise(plan),
        verdict=verdict(plan),
        advice=[*_on_deploying(plan), *page_advice(advice_on(plan, merges=by_size))],
        own=own,
        by_size=by_size,
    )


def late_advice(plan: Plan) -> str:
    """Returns advice on merges at other weights as HTML; `head` leaves slow advice out to keep up with a slider."""
    if _by_size(plan) or len(plan.federation) > MOST_SILOS_MERGED:
        return ""
    return render("serve_hints.html", advice=page_advice(advice_on_merges(plan)))


def page_advice(advice: Iterable[Advice]) -> list[PageAdvice]:
    """Returns advice with the controls of the page in place of the command line's options."""
    return [
        PageAdvice(
            warning=piece.warning,
            text=piece.finding if piece.offers else piece.text,
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
    return f"Take {setting} {value if isinstance(value, str) else f'{value:g}'}"
