"""The first screen of the page: what is promised, what that means against both observers, and what could be done.

>>> from fulcrum.planning.planner import plan
>>> [warning, *_] = spoken(advice_on(plan("consortium", rounds=10, epsilon=1.0)))
>>> [offer.label for offer in warning.offers]
['Promise 1 inside']
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from fulcrum.planning.advice import Advice, advice_on, advice_on_merges
from fulcrum.planning.engine_limits import refusals
from fulcrum.planning.plan import Plan
from fulcrum.planning.weight_tradeoff import own_choice
from fulcrum.views.html import promise, rendered
from fulcrum.words.numbers import figure
from fulcrum.words.verdict import verdict

MOST_SILOS_MERGED = 2_000
"""Silos up to which the page looks for merges where weights are not by size: each is planned for anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A button that follows advice.

    Attributes:
        setting: The control that it changes, or "merge".
        value: What it changes it to, in JSON.
        label: What stands on it.
    """

    setting: str
    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenAdvice:
    """Advice in words of the page, with a button for each way to follow it."""

    warning: bool
    text: str
    offers: tuple[Offer, ...]


def head(made: Plan) -> str:
    """Returns the first screen as HTML: the verdict, the claim, the figures, and what to think about."""
    own, by_size = own_choice(made), _by_size(made)
    return rendered(
        "serve_head.html",
        **promise(made),
        verdict=verdict(made),
        advice=[*_on_deploying(made), *spoken(advice_on(made, merges=by_size))],
        own=own,
        by_size=by_size,
    )


def late_advice(made: Plan) -> str:
    """Returns the advice that `head` leaves out as HTML, since a slider cannot wait for it: merges at other weights."""
    if _by_size(made) or len(made.federation) > MOST_SILOS_MERGED:
        return ""
    return rendered("serve_hints.html", advice=spoken(advice_on_merges(made)))


def spoken(advice: Iterable[Advice]) -> list[SpokenAdvice]:
    """Returns advice as the page says it: its controls take the place of the command line's options."""
    return [
        SpokenAdvice(
            warning=one.warning,
            text=one.finding if one.offers else one.text,
            offers=tuple(
                Offer(setting=setting, value=msgspec.json.encode(value).decode(), label=_label(setting, value))
                for setting, value in one.offers
            ),
        )
        for one in advice
    ]


def _on_deploying(made: Plan) -> list[SpokenAdvice]:
    """Says what NVIDIA FLARE would refuse of a deployment plan, while regions and silos can still be changed."""
    found = refusals(made) if made.purpose == "deployment" else ()
    return [SpokenAdvice(warning=True, text=f"NVIDIA FLARE will refuse this plan: {why}.", offers=()) for why in found]


def _by_size(made: Plan) -> bool:
    """Whether regions count by their sizes, and what a merge saves is known at once."""
    return made.weights_rule == "sizes" and made.server_rule.adds_up


def _label(setting: str, value: Any) -> str:
    if setting == "merge":
        return f"Merge {' and '.join(value)}"
    if setting == "epsilon_inside":
        return f"Promise {figure(value)} inside"
    if setting in ("colluders", "dropouts"):
        return f"Provide for {value} {setting.removesuffix('s') if value == 1 else setting}"
    return f"Take {setting} {value if isinstance(value, str) else f'{value:g}'}"
