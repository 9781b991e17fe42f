"""The verdict on a plan: the rate at which each observer guesses the unit of privacy rightly, with its meaning.

>>> from fulcrum.planning.planner import plan
>>> result = verdict(plan("severe", rounds=10, epsilon=0.99))
>>> result.level, result.headline
('caution', 'above: right up to 56 of 100 times; inside: right up to 85 of 100 times (a coin: 50)')

The game of the verdict:

- A silo holds the first or the second of two datasets, with equal probability. The silo is the most exposed silo. In a
  plan for persons, the silo holds the records of the first or of the second of two persons; if neighbours come or go,
  the records of one person, or not. The observer knows all other records.
- The observer has seen every release of all rounds, and everything that silos released before the plan.
- In research plans the rate is that of the best test of continuous Gaussian noise, Phi(mu / 2): no observer does
  better, and the best test does as well.
- In deployment plans the rate is a bound that is proven for the lattice noise of silos
  (`fulcrum.core.accounting.observer_power_of_shift`).
- The rate follows from mu, not from epsilon and delta, which allow more than this noise reveals. Rates are rounded up.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fulcrum.core.plan.guarantee import is_below_target
from fulcrum.core.topology import SILO
from fulcrum.rounding import rounded_up
from fulcrum.words.person_words import guess_words

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan

LEVELS = ("calm", "caution", "warning")
"""The degrees of concern, from least to most."""

CALM_UP_TO = 0.6
"""The largest rate of right guesses without a caution. At delta 1e-5, on the tight curve, epsilon is then 2.0."""

CAUTION_UP_TO = 0.9
"""The largest rate of right guesses without a warning: wrong in a tenth of all guesses. Epsilon is then 13.6."""

_MEANINGS = {
    "calm": "little better than a coin (50)",
    "caution": "clearly better than a coin (50)",
    "warning": "so hardly any protection is promised",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverVerdict:
    """The success of a single observer against the most exposed silo, or a person of the most exposed silo.

    Attributes:
        observer: "above" for an observer of the sums of regions; "inside" for an observer of single releases or, with
            masked sums, for the server together with silos of the region. With all silos masked as a single group,
            "above" is outside the federation, and "inside" is the server together with silos of each region.
        place: The place of the observer in words: "above the regions", or "outside the federation".
        who: The observer in words, to open a sentence with.
        epsilon: The worst epsilon against the observer; infinite without a guarantee.
        right: The largest rate of right guesses between two datasets of the silo, or two persons; a coin has one half.
        accuses: The largest rate at which the observer recognises the second dataset, while 1 % of first datasets are
            mistaken for the second.
        level: A name of `LEVELS`, by `right` alone.
        guess: The guess in words, to follow "guesses".
    """

    observer: str
    place: str
    who: str
    epsilon: float
    right: float
    accuses: float
    level: str
    guess: str = guess_words()

    @property
    def times(self) -> str:
        """Returns the rate of right guesses as a number of 100 times, rounded up.

        >>> [_observer_verdict("above", "", "", right).times for right in (0.553, 0.9867, 1.0)]
        ['up to 56 of 100 times', 'up to 99 of 100 times', 'up to 100 of 100 times']
        """
        return f"up to {self.of_100} of 100 times"

    @property
    def of_100(self) -> int:
        """Returns the number of right guesses of 100, rounded up."""
        return math.ceil(round(100 * self.right, 9))

    @property
    def meaning(self) -> str:
        """Returns the meaning of the rate, to follow `times` after a comma."""
        return _MEANINGS[self.level]

    @property
    def sentence(self) -> str:
        """Returns observer, rate and meaning as a sentence of its own."""
        return f"{self.who} guesses {self.guess} and is right {self.times}, {self.meaning}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The success of both observers, in words.

    Attributes:
        above: The observer of the sums of regions.
        inside: The observer inside a region.
        basis: The basis of the rates in words: tight figures, or proven bounds.
        one_group: True where all silos are masked as a single group, so that "above" is outside the federation.
        seen: The releases that the observers have seen, in words.
        guess: The guess of both observers in words, to follow "guesses".
    """

    above: ObserverVerdict
    inside: ObserverVerdict
    basis: str
    one_group: bool = False
    seen: str = "all rounds"
    guess: str = guess_words()

    @property
    def observers(self) -> tuple[ObserverVerdict, ObserverVerdict]:
        """Returns both observers, the observer above first."""
        return self.above, self.inside

    @property
    def level(self) -> str:
        """Returns the worse of both levels."""
        return max((observer.level for observer in self.observers), key=LEVELS.index)

    @property
    def headline(self) -> str:
        """Returns both rates in a single line."""
        above, inside = self.observers
        return f"{self._above}: right {above.times}; inside: right {inside.times} (a coin: 50)"

    @property
    def _above(self) -> str:
        return self.above.place if self.one_group else "above"

    @property
    def sentence(self) -> str:
        """Returns both rates and their meanings in a sentence that needs no heading."""
        above, inside = self.observers
        return (
            f"An observer who saw {self.seen} and guesses {self.guess} is right {above.times} {above.place}, "
            f"{above.meaning}, and {inside.times} {inside.place}, {inside.meaning}."
        )

    def summary(self) -> dict[str, Any]:
        """Returns the verdict for JSON; figures are rounded up, and an epsilon without a guarantee is null."""
        return {
            "level": self.level,
            "sentence": self.sentence,
            "basis": self.basis,
            "observers": {
                verdict.observer: {
                    "epsilon": rounded_up(verdict.epsilon) if math.isfinite(verdict.epsilon) else None,
                    "right": min(1.0, rounded_up(verdict.right)),
                    "accuses": min(1.0, rounded_up(verdict.accuses)),
                    "level": verdict.level,
                }
                for verdict in self.observers
            },
        }


def verdict(plan: "Plan") -> Verdict:
    """Returns the verdict on a plan against both observers, at every epsilon."""
    inner = plan.federation.innermost.name
    too = ", who also saw all that was released before," if plan.continues_previous_plan else ""
    above, inside = f"above the {inner}s", f"inside a {inner}"
    sees = "sees single updates"
    if plan.is_masked:
        whose = f"of the silos of each {inner}" if plan.one_group else "of its silos"
        sees = f"is the server with {max(1, plan.colluders)} {whose}"
    if plan.one_group:
        above, inside = "outside the federation", "inside the federation"
    observers, guess = {}, guess_words(plan.unit)
    for observer, tier, place, who in (
        ("above", inner, above, f"An observer {above}{too}"),
        ("inside", SILO, inside, f"An observer {inside}{too or ','} {'and' if too else 'who'} {sees},"),
    ):
        power = plan.observer_power(tier)
        observers[observer] = _observer_verdict(
            observer,
            place,
            who,
            power.guessing_rate,
            accuses=power.true_positive_rate,
            epsilon=plan.worst_epsilon(tier),
            guess=guess,
        )
    research = "the tight figures of continuous Gaussian noise"
    basis = research if plan.is_research else "bounds that are proven for the lattice noise that silos draw"
    if plan.continues_previous_plan and not all(_is_proven_by_filters(plan, tier) for tier in (inner, SILO)):
        basis += (
            ", against an observer without a target, or with an epsilon below its target, if outputs had no influence "
            "on this plan"
        )
    before = " of this plan and all that silos released before" if plan.continues_previous_plan else ""
    return Verdict(
        above=observers["above"],
        inside=observers["inside"],
        basis=basis,
        one_group=plan.one_group,
        seen=f"all rounds{before}",
        guess=guess,
    )


def _is_proven_by_filters(plan: "Plan", tier: str) -> bool:
    """Checks that the worst epsilon at a tier is its target, which outputs of earlier plans cannot change."""
    target = plan.epsilon_target.get(tier)
    return target is not None and not is_below_target(plan.worst_epsilon(tier), target)


def _observer_verdict(
    observer: str,
    place: str,
    who: str,
    right: float,
    *,
    accuses: float = 1.0,
    epsilon: float = math.inf,
    guess: str = guess_words(),
) -> ObserverVerdict:
    level = LEVELS[(right > CALM_UP_TO) + (right > CAUTION_UP_TO)]
    return ObserverVerdict(
        observer=observer, place=place, who=who, epsilon=epsilon, right=right, accuses=accuses, level=level, guess=guess
    )
