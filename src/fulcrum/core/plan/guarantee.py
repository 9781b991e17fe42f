"""The guarantee of a plan in words that a data protection officer can sign, made from the plan's figures alone.

The words are part of the plan file: digest and signature cover the words, and `fulcrum verify` compares the words with
the figures. A changed sentence makes every signed plan fail, unless the sentence stays in
`fulcrum.core.plan.earlier_words`.

>>> import textwrap
>>> worst = {"region": 0.99, "silo": None}
>>> guarantee = Guarantee(rounds=10, delta=1e-5, innermost="region", worst=worst)
>>> print(textwrap.fill(guarantee.statement, 118))
Over 10 rounds, at delta 1e-05, every silo's whole dataset has epsilon 0.99 against anyone outside its region who sees
the sums of its region, and no guarantee against whoever sees its own updates, such as its region aggregator.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import listing
from fulcrum.rounding import display_epsilon, rounded_up

FILTERS = {"exact": "Smith and Thakurta 2022", "renyi": "Feldman and Zrnic 2021"}
"""By accountant, the proof that shifts add up even if later noise is chosen after earlier outputs were seen."""

_TOLERANCE = 1e-9  # relative, of an epsilon that was solved for

_ON_PRIOR = {
    "public": (
        "the input variances that the server's prior reads come from public data, not from records of the silos: the "
        "issuer of the plan declares so, and no check can tell"
    ),
    "training-split": "the input variances that the server's prior reads are a release outside every epsilon here",
}
"""By origin of the variances, the claim on the server's prior."""

NO_PROTECTION = 10.0
"""An epsilon above this figure is called no protection: by it, the odds of a guess may change by e^10, 22,000 times."""


def is_below_target(epsilon: float | None, target: float) -> bool:
    """Returns True where a stated epsilon is smaller than the target: privacy filters do not prove the epsilon.

    >>> is_below_target(3.02, target=30.0), is_below_target(29.9999999999, target=30.0), is_below_target(None, 30.0)
    (True, False, False)

    Args:
        epsilon: The worst epsilon of any silo; None stands for no guarantee.
        target: The epsilon that the plan's settings ask for, fixed before the first round.
    """
    return epsilon is not None and rounded_up(epsilon) < target * (1 - _TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The figures behind the words of a plan.

    Neighbouring relation: `adjacency`, the relation of the unit of privacy together with the public sizes.

    Attributes:
        rounds: T.
        delta: The DP parameter.
        innermost: The tier that silos report to.
        worst: By tier, the worst epsilon of any silo, rounded up; None stands for no guarantee. Both observers have an
            entry, and every further tier with a target.
        accountant: The way from noise to epsilon.
        targets: By tier, the epsilon that the settings ask for.
        injection: The side that draws the noise, "silo" or "aggregator".
        purpose: "research" or "deployment".
        colluders: Silos of every region that may share their noise with the observer.
        dropouts: Silos of every region that may be missing from a sum.
        follows: True where silos released before this plan; the epsilons then include the earlier releases.
        sizes_known: True where the sizes of silos are declared, and therefore public.
        weights_given: True where weights of silos were declared, or given by silo, and therefore are public.
        server: The server's rule; every rule but "sum" may read the sum of a single region.
        aggregation: "trusted" where aggregators see single updates, "masked" where the server gets sums alone.
        masked_tier: The tier whose sums are masked, for masked sums.
        smallest_group: The number of silos in the smallest masked sum, for masked sums.
        regions: The number of nodes of the innermost tier.
        complete_tier: The outermost tier whose sums hold the noise of every region below in every round.
        less_spent_outside: True where a silo had spent less before this plan against an observer further out than
            `complete_tier` than against an observer of `complete_tier`.
        prior: The origin of the input variances that the server's prior reads; empty without such a prior.
        unit: The unit of privacy.
        persons: For a plan that protects persons, the further epsilons by field of `PlanSummary`, rounded up.
        scheduled: True where membership changes by rosters that the plan states.
    """

    rounds: int
    delta: float
    innermost: str
    worst: Mapping[str, float | None]
    accountant: str = "exact"
    targets: Mapping[str, float] = field(default_factory=dict)
    injection: str = "silo"
    purpose: str = "research"
    colluders: int = 0
    dropouts: int = 0
    follows: bool = False
    sizes_known: bool = True
    weights_given: bool = False
    server: str = "sum"
    aggregation: str = "trusted"
    masked_tier: str = "region"
    smallest_group: int = 2
    regions: int = 1
    complete_tier: str = ROOT
    less_spent_outside: bool = False
    prior: str = ""
    unit: PrivacyUnit = SILO_UNIT
    persons: Mapping[str, float | None] = field(default_factory=dict)
    scheduled: bool = False

    @property
    def adjacency(self) -> str:
        """The neighbouring relation: the change that leads from a federation to a neighbour."""
        if self.unit.is_within_silo:
            return f"{self.unit.relation}, in all rounds, the declared numbers of {self.unit.noun}s kept"
        size = "its declared size kept" if self.sizes_known else "of whatever size"
        return f"{self.unit.relation}, {size}"

    @property
    def statement(self) -> str:
        """The guarantee in a single sentence, as plan files hold the sentence."""
        return self._sentence(self.worst) + self._on_persons(self.persons)

    @property
    def promise(self) -> str:
        """The statement with epsilons for people: four digits, rounded up."""
        return self._sentence(_for_people(self.worst)) + self._on_persons(_for_people(self.persons))

    @property
    def one_group(self) -> bool:
        """True where all silos are masked as one group: the global sum is then the only visible sum."""
        return self.aggregation == "masked" and self.masked_tier == ROOT

    def _sentence(self, worst: Mapping[str, float | None]) -> str:
        """Returns rounds, delta, the epsilon against every observer, and the coalitions that are counted in."""
        rounds, colluders, dropouts = self.rounds, self.colluders, self.dropouts
        over = "1 round" if rounds == 1 else f"{rounds} rounds"
        if self.follows:
            over = f"{'this' if rounds == 1 else 'these'} {over} and all released before"
        clauses = self._clauses(worst)
        epsilons = ", ".join(clauses[:-1]) + f", and {clauses[-1]}"
        even = []
        if colluders:
            collude = "colludes" if colluders == 1 else "collude"
            even.append(f"{self._coalition()} {collude}{self._counted_once()}")
        if dropouts:
            who = f"{dropouts} {'other' if dropouts == 1 else 'others'}" if colluders else _silos(dropouts)
            even.append(f"up to {who} of each {self.innermost} {'is' if dropouts == 1 else 'are'} missing from a sum")
        condition = f", even if {' and '.join(even)}" if even else ""
        delta = rounded_up(self.delta)
        has = "have" if "records" in self.unit.protected_data else "has"
        return f"Over {over}, at delta {delta:g}, every {self.unit.protected_data} {has} {epsilons}{condition}."

    def _on_persons(self, persons: Mapping[str, float | None]) -> str:
        """Returns the further sentences of a plan for persons: the second convention, two silos, a silo as a whole."""
        if not self.unit.is_within_silo:
            return ""
        noun = self.unit.noun
        changes = [f"the replacement of one {noun} by another", f"one {noun} added or removed"]
        counted, other = changes if self.unit.neighbours == "replace" else changes[::-1]
        first, second = (_epsilon(persons[f"other_neighbours_{place}"]) for place in ("above", "inside"))
        sentences = [
            f"These figures are for {counted}.",
            f"For {other} there is {first} against the first of these observers, and {second} against the second.",
        ]
        if "two_silos_above" in persons:
            pair = _epsilon(persons["two_silos_above"])
            place = "" if self.one_group else f", outside the {self.innermost}s of both silos"
            sentences.append(
                f"This plan provides for each {noun} in one silo: in two silos one {noun} has {pair} against the first "
                f"observer{place}."
            )
        whole = persons["whole_silo_above"]
        bare = " is not protected" if whole is None or whole > NO_PROTECTION else ""
        sentences.append(
            f"A silo as a whole{bare}: for the replacement of all its data there is {_epsilon(whole)} against the "
            "first observer."
        )
        return " " + " ".join(sentences)

    def _clauses(self, worst: Mapping[str, float | None]) -> list[str]:
        """Returns the epsilon against every observer; tiers with the same observer share a clause with the worst."""
        against: dict[str, float] = {}
        for tier, epsilon in worst.items():
            observer = self.describe_observer(tier)
            against[observer] = max(against.get(observer, 0.0), math.inf if epsilon is None else epsilon)
        return [
            f"{f'epsilon {epsilon:g}' if math.isfinite(epsilon) else 'no guarantee'} against {observer}"
            for observer, epsilon in against.items()
        ]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """All assumptions of the guarantee; trust and noise stand last."""
        return (
            f"each silo reports to one {self.innermost} and no other",
            "membership changes as this plan states, and by nothing else while this plan is in force"
            if self.scheduled
            else "membership is fixed while this plan is in force",
            *(
                self._on_identity()
                if self.unit.is_within_silo
                else [f"the datasets of silos are disjoint{self._on_sizes()}"]
            ),
            self._on_presence(),
            "observers are passive: they follow the protocol and read what they see",
            self._on_collusion(),
            *([self._on_past()] if self.follows else []),
            *([] if self.server == "sum" else [self._on_server()]),
            *([_ON_PRIOR[self.prior]] if self.prior else []),
            *([] if self.server != "sum" or self.complete_tier == ROOT else [self._on_absent_regions()]),
            self._on_trust(),
            self._on_noise(),
        )

    def _on_identity(self) -> tuple[str, ...]:
        """Returns the claims on who is one person, on counts, and on the side channels of a plan for persons."""
        noun, most = self.unit.noun, self.unit.silos_per_person
        many = f"{noun}s"
        held = "one silo" if most == 1 else f"{most} silos"
        counted = f"the declared numbers of {many} are public and stay as they are"
        if self.unit.neighbours == "add-remove":
            counted += f" when one {noun} is added or removed: they were not counted from the data"
        identity = (
            f"no two {many} are about one person: the protection of a person with k {many} is that of k {many} together"
            if self.unit.name == "record"
            else f"all records of one {noun} in a silo carry one identifier: under k identifiers one {noun} counts as "
            f"k {many}, and {many} with a record in common carry one identifier"
        )
        if self.unit.name == "person" and self.unit.neighbours == "add-remove":  # one of two moves their row by 2C
            identity += f", and have the epsilon of replaced {many}"
        return (
            identity,
            f"no {noun} is in more than {held}, over all rounds and all plans of the silos' ledgers together",
            f"a silo that holds records of the {noun} in question neither helps an observer nor is one"
            if self.unit.name == "person"
            else f"a silo that holds the {noun} in question neither helps an observer nor is one",
            counted,
            f"in each round a silo computes one gradient, and the gradient of each {noun} follows from the model and "
            + (f"that {noun} alone" if self.unit.name == "record" else f"the records of that {noun} alone"),
            "the starting model, scaling, imputation, chosen features, class weights and every other setting come from "
            "public data, not from records of the silos",
            "no metric, loss, count, choice of round, rule of eligibility, presence or time that depends on records "
            f"leaves a silo; other releases about the same {many} are not counted in",
        )

    def _on_sizes(self) -> str:
        """Returns the claim on sizes; public weights in proportion to sizes reveal sizes that are not declared."""
        if self.sizes_known:
            return ", and their sizes are public"
        if self.weights_given:
            return (
                "; their sizes are not declared, but their weights are public, and weights in proportion to sizes show "
                "the sizes"
            )
        return ", and their sizes stay secret"

    def _on_presence(self) -> str:
        """Returns the assumption on absent silos: absence that depends on records would reveal records."""
        if self.scheduled:
            taken = "each silo takes part in all of its rounds and in no other"
            if self.dropouts:
                taken = (
                    f"each silo takes part in its rounds alone, up to {_silos(self.dropouts)} of each {self.innermost} "
                    "may miss a round for reasons that do not depend on records"
                )
            return (
                "the rounds of every silo are public, were fixed before the first release, and do not depend on "
                f"records: {taken}, and no amplification by sampling is claimed"
            )
        if not self.dropouts:
            return "every silo takes part in every round: no amplification by sampling is claimed"
        return (
            f"up to {_silos(self.dropouts)} of each {self.innermost} may miss a round, for reasons that do not depend "
            "on records; no amplification by sampling is claimed"
        )

    def _on_collusion(self) -> str:
        """Returns the limit on silos that help an observer: revealed noise conceals no silo."""
        if self.injection == "aggregator":
            return "silos hold no noise, so none can collude it away"
        if not self.colluders:
            return (
                f"no silo{self._of_whom()} helps an observer of {self._helped_sums()}, is one, or leaves out its "
                "noise: it conceals the others by its noise"
            )
        alone = self.colluders == 1
        helps = (
            "helps an observer, is one, or leaves out its noise"
            if alone
            else "help an observer, are one, or leave out their noise"
        )
        return f"{self._coalition()} {helps}"

    def _of_whom(self) -> str:
        """Returns the silos whose noise must stay secret."""
        of = " of the federation" if self.one_group else "" if self._outer_tiers() else f" of a {self.innermost}"
        qualifiers = ["in any plan so far"] if self.follows else []
        if self.aggregation == "masked":  # the clause on the server states an epsilon that counts on less noise
            qualifiers.append("but for those named with the server")
        return of + "".join(f", {qualifier}" for qualifier in qualifiers) + ("," if qualifiers else "")

    def _helped_sums(self) -> str:
        """Returns the sums whose observers no silo may help."""
        if self.one_group:
            return "the global sum"
        return "a sum that holds its updates" if self._outer_tiers() else "its sums"

    def _outer_tiers(self) -> bool:
        """Returns True where an epsilon is stated against an observer of sums of several regions."""
        return not set(self.worst) <= {self.innermost, SILO}

    def _coalition(self) -> str:
        """Returns the silos that may collude; after earlier releases, silos of every earlier plan are counted."""
        who = _silos(self.colluders)
        if self.follows:
            return f"no more than {who}, the same throughout, of any {self.innermost} of any plan so far"
        return f"up to {who} of each {self.innermost}"

    def _counted_once(self) -> str:
        """Returns, for masked sums, the remark that colluders include the silos that help the server."""
        return " (silos that help the server are counted in this number)" if self.aggregation == "masked" else ""

    def _on_past(self) -> str:
        """Returns the claim on earlier releases.

        A privacy filter stops a composition at a budget that was fixed beforehand. The filter therefore proves targets,
        and no other epsilon, when a plan is made after outputs of earlier plans were seen.
        """
        targets = listing([f"epsilon {rounded_up(epsilon):g} on {tier}" for tier, epsilon in self.targets.items()])
        if not targets:
            return "what was released before is counted in, as if outputs had no influence on this plan"
        return (
            f"what was released before is counted in; privacy filters ({FILTERS[self.accountant]}) prove the targets, "
            f"{targets}, even if this plan was made after outputs were seen; an epsilon below its target, or without "
            "one, holds if outputs had no influence on this plan"
        )

    def _on_server(self) -> str:
        """Returns the claim on a server that reads regional sums (docs/maths.md, "What a server may do for free")."""
        if self.one_group:
            return "the server reads the global sum alone, and its rule tells an observer of that sum nothing new"
        does = "pools" if self.server == "random-effects" else f"moves the model by the rule {self.server!r} from"
        sums = f"the sums of {self.innermost}s, which tells an observer of those sums nothing new"
        return f"the server {does} {sums}; {self._further_out('one of them')}"

    def _on_absent_regions(self) -> str:
        """Returns the claim on rounds without a region: the global sum may then be the sum of a single region."""
        further_out = self._further_out(f"an observer of the sums of {self.complete_tier}s")
        return f"a round goes on without a {self.complete_tier} that has no sum; {further_out}"

    def _further_out(self, observer: str) -> str:
        """Returns the claim against observers further out than the sums that are complete in every round."""
        if self.less_spent_outside:  # the past adds less to the epsilon further out: that epsilon is then the smaller
            return f"in these rounds an observer further out is counted as {observer}"
        return f"no epsilon smaller than that against {observer} is claimed further out"

    def _on_trust(self) -> str:
        """Returns the trust in aggregators, or in the masks that take the place of the trust."""
        aggregators = f"{self.innermost} aggregators"
        if self.injection == "aggregator":
            return f"{aggregators} are trusted to see what they aggregate and to add the noise"
        if self.aggregation == "masked":
            return self._on_masks()
        if SILO in self.targets:
            return f"{aggregators} may be curious: the target on the tier 'silo' is against them"
        return f"{aggregators} are trusted to see what they aggregate; silos draw the noise themselves"

    def _on_masks(self) -> str:
        """Returns the claim on masked sums; the sum of a single silo hides nothing."""
        whole = "the federation" if self.one_group else f"a {self.masked_tier}"
        alone = f"; the sum of {whole} of one silo is that silo's own update" if self.smallest_group == 1 else ""
        if self.hides_regions:
            return (
                f"sums are masked, and updates are sealed to the aggregator of their {self.innermost}: the aggregator "
                f"gets {self._masked_sums()} from masked updates, and by itself learns nothing finer, and the server "
                f"reads no sum but those of aggregators further out, while X25519, Ed25519, HKDF-SHA256, AES-256 and "
                f"SHA-256 hold{alone}"
            )
        return (
            f"sums are masked: the server gets {self._masked_sums()} from masked updates, and by itself learns nothing "
            f"finer while X25519, Ed25519, HKDF-SHA256, AES-256 and SHA-256 hold{alone}"
        )

    @property
    def hides_regions(self) -> bool:
        """True for masked sums with an epsilon against observers of an outer tier, who see no sum of a region."""
        return self.aggregation == "masked" and not set(self.worst) <= {self.innermost, SILO, ROOT}

    def _server(self) -> str:
        """Returns the parties that see masked sums in the finest form."""
        return f"the server and the {self.innermost} aggregators" if self.hides_regions else "the server"

    def _masked_sums(self) -> str:
        """Returns the sums that the server gets."""
        if self.hides_regions:
            return f"the sum of the {self.masked_tier}"
        return "the global sum alone" if self.masked_tier == ROOT else f"the sum of each {self.masked_tier}"

    def _on_noise(self) -> str:
        """Returns the claim on the noise; whoever knows the seed of research noise can subtract the noise."""
        if self.purpose == "research":
            return "noise is continuous and drawn from a seed, for research: whoever knows the seed can subtract it"
        if self.accountant == "renyi":
            return (
                "noise is discrete Gaussian on a lattice from a cryptographic source; its distance is charged to delta"
            )
        return "the exact accountant is proven for continuous noise and not for the lattice noise that is drawn"

    def describe_observer(self, tier: str) -> str:
        """Returns the observer of a tier and the view of the observer.

        - A party that was inside a region before silos moved is no observer of the region.
        - With masked sums the observer inside is the server together with max(1, c) members of a region, or of every
          region where all silos are masked as one group.
        """
        always = ", in this plan and all before," if self.follows else ""
        if self.unit.is_within_silo and self.unit.silos_per_person > 1 and not (self.one_group or tier == ROOT):
            return self._observer_of_silos(tier, always)
        its = "the silo's" if self.unit.is_within_silo else "its"
        if tier == SILO and self.aggregation == "masked":
            count, other = max(1, self.colluders), "other " if self.unit.is_within_silo else ""
            whose = "each" if self.one_group else its
            return f"{self._server()}{always} together with {_silos(count, other)} of {whose} {self.innermost}"
        if tier == SILO:
            return f"whoever sees {its} own updates, such as its {self.innermost} aggregator"
        if self.one_group:  # outside the federation: a silo of another region sees the sum and knows its own noise
            return f"anyone outside the federation{always} who sees the global sum, the one sum that is not masked"
        if tier == ROOT:
            return f"anyone outside the federation{always} who sees the global sum and no sum below it"
        only = "" if tier == self.innermost else " and no sum below them"
        return f"anyone outside {its} {tier}{always} who sees the sums of {its} {tier}{only}"

    def _observer_of_silos(self, tier: str, always: str) -> str:
        """Returns the observer of a tier for a person with records in several silos, perhaps of several nodes."""
        if tier == SILO and self.aggregation == "masked":
            silos = _silos(max(1, self.colluders), "other ")
            return f"{self._server()}{always} together with {silos} of each {self.innermost} of these silos"
        if tier == SILO:
            return f"whoever sees the updates of these silos, such as their {self.innermost} aggregators"
        only = "" if tier == self.innermost else " and no sum below them"
        return (
            f"anyone outside every {tier} of these silos{always} who sees the sums of each {tier} of these silos{only}"
        )


def _for_people(epsilons: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns epsilons with four digits, rounded up."""
    return {name: None if epsilon is None else display_epsilon(epsilon) for name, epsilon in epsilons.items()}


def _epsilon(epsilon: float | None) -> str:
    """Returns an epsilon in words; None, or infinity, is no guarantee."""
    return "no guarantee" if epsilon is None or not math.isfinite(epsilon) else f"epsilon {epsilon:g}"


def _silos(count: int, other: str = "") -> str:
    """Returns "1 silo" or "2 silos"; with `other` set to "other ", "1 other silo" or "2 other silos"."""
    return f"{count} {other}silo" if count == 1 else f"{count} {other}silos"
