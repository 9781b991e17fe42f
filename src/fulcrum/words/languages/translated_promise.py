"""The promise of a plan in German or French, clause by clause as in `fulcrum.core.plan.guarantee`.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.words.languages.phrases import phrases_of
>>> german = TranslatedPromise(phrases_of("de"), plan("consortium", rounds=10, epsilon=1.0))
>>> print(german.claim.striptags()[:88])
Über 10 Runden, bei delta 1e-05, hat der gesamte Datenbestand jedes Silos epsilon 1 gege

A test compares every number with the English promise.
"""

import math

from markupsafe import Markup

from fulcrum.core.plan.guarantee import NO_PROTECTION
from fulcrum.core.topology import ROOT, SILO
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.plan import Plan
from fulcrum.rounding import rounded_up
from fulcrum.words.languages.phrases import Phrases
from fulcrum.words.numbers import epsilon_text


class TranslatedPromise:
    """The sentences of a plan's guarantee in German or French.

    Attributes:
        phrases: The phrases of the language.
        plan: The plan.
    """

    def __init__(self, phrases: Phrases, plan: Plan) -> None:
        self.phrases, self.plan = phrases, plan
        self._guarantee = guarantee_of(plan)

    @property
    def claim(self) -> Markup:
        """The first sentence of the guarantee, without a full stop."""
        facts, phrase = self._guarantee, self.phrases.phrase
        against: dict[Markup, float] = {}
        for tier, epsilon in facts.worst.items():
            observer = self._observer(tier)
            against[observer] = max(against.get(observer, 0.0), math.inf if epsilon is None else epsilon)
        clauses = [phrase("clause", epsilon=self._epsilon(value), observer=who) for who, value in against.items()]
        return phrase(
            "claim",
            over=phrase("over_follows" if facts.follows else "over", facts.rounds, rounds=facts.rounds),
            delta=self._number(f"{rounded_up(facts.delta):g}"),
            data=self._data(),
            epsilons=Markup(", ").join(clauses[:-1]) + phrase("and") + clauses[-1],
            condition=self._condition(),
        )

    @property
    def further_claims(self) -> list[Markup]:
        """The further sentences of a plan for persons; empty for a plan for silos."""
        unit, persons, phrase = self.plan.unit, self._guarantee.persons, self.phrases.phrase
        if not unit.is_within_silo:
            return []
        noun, kinds = unit.name, ["exchange", "coming"]
        counted, other = kinds if unit.neighbours == "replace" else kinds[::-1]
        sentences = [
            phrase("counted_for", change=phrase(f"{counted}_{noun}")),
            phrase(
                "other_neighbours",
                change=phrase(f"{other}_{noun}"),
                first=self._epsilon(persons["other_neighbours_above"]),
                second=self._epsilon(persons["other_neighbours_inside"]),
            ),
        ]
        if "two_silos_above" in persons:
            place = "" if self._guarantee.one_group else phrase("outside_both", their=self._node("the_plural"))
            pair = self._epsilon(persons["two_silos_above"])
            sentences.append(phrase(f"two_silos_{noun}", epsilon=pair, place=place))
        whole = persons["whole_silo_above"]
        bare = whole is None or whole > NO_PROTECTION
        sentences.append(phrase("whole_silo_bare" if bare else "whole_silo", epsilon=self._epsilon(whole)))
        return sentences

    @property
    def terms(self) -> Markup:
        """The neighbouring relation and the trust in aggregators or masks."""
        return self.phrases.phrase("terms", adjacency=self._adjacency(), trust=self._trust())

    def _data(self) -> Markup:
        unit, phrase = self.plan.unit, self.phrases.phrase
        label = phrase("label", label=unit.label) if unit.label else ""
        silos = unit.silos_per_person
        return phrase(f"data_{unit.name}", label=label, silos=phrase("in_silos", silos, silos=silos))

    def _condition(self) -> Markup:
        facts, phrase = self._guarantee, self.phrases.phrase
        nodes, parts = self._node("each"), []
        if facts.colluders:
            counted = phrase("counted_once") if facts.aggregation == "masked" else ""
            name = "colluders_follows" if facts.follows else "colluders"
            parts.append(phrase(name, facts.colluders, silos=facts.colluders, each=nodes, counted=counted))
        if facts.dropouts:
            name = "dropouts_others" if facts.colluders else "dropouts"
            parts.append(phrase(name, facts.dropouts, silos=facts.dropouts, each=nodes))
        return phrase("even_if", parts=phrase("even_and").join(parts)) if parts else Markup("")

    def _observer(self, tier: str) -> Markup:
        """Returns the observer of a tier, as `Guarantee.describe_observer` does."""
        facts, unit, phrase = self._guarantee, self.plan.unit, self.phrases.phrase
        always = phrase("always") if facts.follows else ""
        count, within = max(1, facts.colluders), unit.is_within_silo
        whose = "silo" if within else "its"
        only = "" if tier == facts.innermost else phrase("no_sum_below")
        if within and unit.silos_per_person > 1 and not (facts.one_group or tier == ROOT):
            if tier == SILO and facts.aggregation == "masked":
                return phrase("server_with_of_each", count, always=always, silos=count, each=self._node("each"))
            if tier == SILO:
                return phrase("aggregators_of_silos", their=self._node("their_plural"))
            return phrase("outside_of_silos", always=always, each=self._node("each", tier), only=only)
        if tier == SILO and facts.aggregation == "masked":
            of = self._node("each") if facts.one_group else self._node(whose)
            name = "server_with_others" if within else "server_with"
            return phrase(name, count, always=always, silos=count, of=of)
        if tier == SILO:
            return phrase(f"aggregator_{whose}", of=self._node(whose))
        if facts.one_group:
            return phrase("outside_group", always=always)
        if tier == ROOT:
            return phrase("outside_federation", always=always)
        return phrase("outside", of=self._node(whose, tier), always=always, only=only)

    def _adjacency(self) -> Markup:
        unit, phrase = self.plan.unit, self.phrases.phrase
        if not unit.is_within_silo:
            return phrase("adjacent_silo_sized" if self._guarantee.sizes_known else "adjacent_silo")
        silos = unit.silos_per_person
        kind = "replace" if unit.neighbours == "replace" else "come"
        return phrase(f"adjacent_{unit.name}_{kind}", silos=phrase("in_silos", silos, silos=silos))

    def _trust(self) -> Markup:
        facts, phrase = self._guarantee, self.phrases.phrase
        aggregators = self._node("the_plural")
        if facts.injection == "aggregator":
            return phrase("trust_noise", of=aggregators)
        if facts.aggregation == "masked":
            sums = phrase("global_sum") if facts.masked_tier == ROOT else self._node("each", facts.masked_tier)
            name = "trust_masks_all" if facts.masked_tier == ROOT else "trust_masks"
            alone = phrase("trust_alone") if facts.smallest_group == 1 else ""
            return phrase(name, sums=sums, alone=alone)
        return phrase("trust_curious" if SILO in facts.targets else "trust_sums", of=aggregators)

    def _node(self, form: str, tier: str | None = None) -> Markup:
        return self.phrases.node(self._guarantee.innermost if tier is None else tier, form)

    def _epsilon(self, epsilon: float | None) -> Markup:
        if epsilon is None or not math.isfinite(epsilon):
            return self.phrases.phrase("no_guarantee")
        return self.phrases.phrase("epsilon", epsilon=self._number(epsilon_text(epsilon)))

    def _number(self, text: str) -> str:
        return self.phrases.number(text)
