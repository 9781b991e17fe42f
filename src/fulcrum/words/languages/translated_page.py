"""The first page of the report in German or French: texts and figures from the title to the signature.

>>> from fulcrum.planning.planner import plan
>>> page = translated_page(plan("consortium", rounds=10, epsilon=1.0), "fr")
>>> print(*page.headline[0])
1 plus grand ε au-dessus d’une région
"""

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fulcrum.core.topology import SILO
from fulcrum.planning.comparisons.comparison import least_influence
from fulcrum.planning.content.learning_signal import WEAK_SIGNAL, most_parameters, signal_to_noise
from fulcrum.planning.plan import Plan
from fulcrum.rounding import rounded_up
from fulcrum.words.languages.phrases import Phrases, phrases_of
from fulcrum.words.languages.translated_promise import TranslatedPromise
from fulcrum.words.numbers import epsilon_text, figure, percent
from fulcrum.words.recipe_words import clip_share_text, proviso, recipe_name
from fulcrum.words.verdict import ObserverVerdict, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslatedPage:
    """The texts of the first page in German or French; fixed texts are in `phrases`.

    Attributes:
        phrases: The phrases of the language.
        claim: The first sentence of the promise, without its full stop.
        terms: The terms of the promise.
        further_claims: The further sentences of a plan for persons.
        question: The question to the observers of the verdict.
        observers: By observer: the name of the style, the level of the verdict, and the answer.
        verdict: The verdict as a sentence.
        headline: The figures of the first screen with their labels.
        trained: The largest number of trainable parameters.
        noise: The noise in the model, and the meaning of C².
        settings: The settings of the plan, labels and values.
    """

    phrases: Phrases
    claim: Markup
    terms: Markup
    further_claims: list[Markup]
    question: Markup
    observers: list[tuple[str, str, Markup]]
    verdict: Markup
    headline: list[tuple[str, Markup]]
    trained: Markup
    noise: Markup
    settings: list[tuple[str, str]]


def translated_page(plan: Plan, language: str) -> TranslatedPage:
    """Returns the first page of a plan's report in German or French."""
    phrases = phrases_of(language)
    promise = TranslatedPromise(phrases, plan)
    return TranslatedPage(
        phrases=phrases,
        claim=promise.claim,
        terms=promise.terms,
        further_claims=promise.further_claims,
        **_verdict(phrases, plan),
        headline=_headline(phrases, plan),
        trained=_trained_words(phrases, plan),
        noise=_noise(phrases, plan),
        settings=_settings(phrases, plan),
    )


def _verdict(phrases: Phrases, plan: Plan) -> dict[str, Any]:
    phrase, unit, inner = phrases.phrase, plan.unit, plan.federation.innermost.name
    judged = verdict(plan)
    places = {
        "above": phrase("above_all", of=phrases.node(inner, "the_plural")),
        "inside": phrase("inside_one", of=phrases.node(inner, "a")),
    }
    if plan.one_group:
        places = {"above": phrase("outside_all"), "inside": phrase("inside_all")}
    before = "_and_before" if plan.continues_previous_plan else ""
    kind = "silo" if not unit.is_within_silo else f"{unit.name}_{'replace' if unit.neighbours == 'replace' else 'come'}"
    silos = unit.silos_per_person
    guess = phrase(f"guess_{kind}", silos, silos=silos)

    def answer(observer: ObserverVerdict) -> dict[str, Any]:
        return {
            "place": places[observer.observer],
            "times": observer.of_100,
            "meaning": phrase(f"meaning_{observer.level}"),
        }

    above, inside = (answer(observer) for observer in judged.observers)
    return {
        "question": phrase("asked", seen=phrase(f"after_all_rounds{before}"), guess=guess),
        "observers": [
            (observer.observer, observer.level, phrase("right", observer=observer.observer, **answer(observer)))
            for observer in judged.observers
        ],
        "verdict": phrase(
            "verdict",
            seen=phrase(f"saw_all_rounds{before}"),
            guess=guess,
            above=above["place"],
            above_times=above["times"],
            above_meaning=above["meaning"],
            inside=inside["place"],
            inside_times=inside["times"],
            inside_meaning=inside["meaning"],
        ),
    }


def _headline(phrases: Phrases, plan: Plan) -> list[tuple[str, Markup]]:
    """Returns the four figures of the first screen, as `fulcrum.views.html.promise` chooses them."""
    phrase, inner = phrases.phrase, plan.federation.innermost.name
    region = phrases.node(inner, "a")
    group = "_all" if plan.one_group else ""

    def epsilon(value: float) -> str:
        return phrases.number(epsilon_text(value)) if math.isfinite(value) else str(phrase("no_guarantee_bare"))

    by_size = plan.weights_rule == "sizes" and plan.server_rule.adds_up
    fourth = (
        (plan.attainable_saving, phrase("at_most_saved"))
        if by_size
        else (
            least_influence(plan),
            phrase("influence_left", by=_share_rule(phrases, plan), every=phrases.node(inner, "every")),
        )
    )
    return [
        (epsilon(plan.worst_epsilon()), phrase(f"worst_above{group}", of=region)),
        (epsilon(plan.worst_epsilon(SILO)), phrase(f"worst_inside{group}", of=region)),
        (
            phrases.number(percent(plan.model_saving)),
            phrase("saved" if plan.silos_draw_noise else "saved_against_silos"),
        ),
        (phrases.number(percent(fourth[0])), fourth[1]),
    ]


def _share_rule(phrases: Phrases, plan: Plan) -> Markup:
    if not plan.federation.sizes_known:
        return phrases.phrase("by_silos")
    return phrases.phrase(f"by_{plan.unit.name}")


def _proviso(phrases: Phrases, plan: Plan) -> Markup:
    """Returns the condition of the noise; the words of an unknown server rule stay English."""
    words = proviso(plan, plan.federation.innermost.name).strip()
    if not words:
        return Markup("")
    name = {"where": "proviso_agree", "with": "proviso_momentum"}.get(words.partition(" ")[0], "proviso_other")
    return phrases.phrase(name, words=words)


def _trained_words(phrases: Phrases, plan: Plan) -> Markup:
    """Returns the largest number of trainable parameters, as `noise_words.trained_words` does."""
    phrase, most = phrases.phrase, most_parameters(plan)
    start = phrase(
        "trained",
        plan.rounds,
        proviso=_proviso(phrases, plan),
        most=phrase("parameters", most, number=phrases.number(f"{most:,}")),
        rounds=phrases.number(f"{plan.rounds:,}"),
    )
    if plan.parameters is None:
        return start + phrase("trained_unknown")
    own = phrase("parameters", plan.parameters, number=phrases.number(f"{plan.parameters:,}"))
    weak = signal_to_noise(plan, plan.parameters) < WEAK_SIGNAL
    return start + phrase("trained_not" if weak else "trained_own", own=own)


def _noise(phrases: Phrases, plan: Plan) -> Markup:
    """Returns the noise in the model and the meaning of C², as `noise_words.noise_unit_words` does."""
    return phrases.phrase(
        f"noise_{plan.unit.name}",
        noise=phrases.number(figure(plan.model_noise)),
        deviation=phrases.number(figure(math.sqrt(plan.model_noise))),
        proviso=_proviso(phrases, plan),
    )


def _settings(phrases: Phrases, plan: Plan) -> list[tuple[str, str]]:
    """Returns labels and values of the settings; names of options stay English."""
    phrase, number, federation = phrases.phrase, phrases.number, plan.federation
    inner = federation.innermost
    regions = len(inner.nodes)
    clip = number(f"{plan.clip_norm:g}")
    if plan.clip_share < 1:
        clip = phrase("clip_share", clip=clip, share=number(clip_share_text(plan)))
    rule = plan.weights_rule
    if isinstance(rule, str):
        named = {
            "sizes": _share_rule(phrases, plan),
            "equal": phrase("weights_equal", of=phrases.node(inner.name, "a")),
        }
        weights = named.get(rule) or (phrase("weights_least_noise") if rule == "least-noise" else rule)
    else:
        weights = phrase("weights_between", number=number(f"{rule:g}"))
    recipe = recipe_name(plan)
    settings = [
        (
            "silos",
            phrase(
                "silos_in",
                silos=number(f"{len(federation):,}"),
                regions=number(f"{regions:,}"),
                nodes=phrases.node(inner.name, "one" if regions == 1 else "many"),
            ),
        ),
        ("rounds", number(f"{plan.rounds:,}")),
        ("delta", number(f"{rounded_up(plan.delta):g}")),
        ("accountant", plan.accountant),
        ("allocation", plan.allocation),
    ]
    if plan.unit.is_within_silo and federation.persons is not None:
        silos = plan.unit.silos_per_person
        settings.append(("unit", phrase(f"unit_{plan.unit.name}", silos=phrase("in_silos", silos, silos=silos))))
        settings.append((f"declared_{plan.unit.name}", number(f"{federation.persons.sum():,.6g}")))
    settings += [
        ("clip", clip),
        ("recipe", phrase("recipe_none") if recipe.startswith("none") else recipe),
        ("weights", weights),
        ("server", plan.server),
    ]
    return [(str(phrase(f"setting_{label}")), value) for label, value in settings]
