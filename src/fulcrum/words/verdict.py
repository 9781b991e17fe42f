"""What a plan's epsilons mean, for both observers: how often a guess about a silo is right.

>>> from fulcrum.planning.planner import plan
>>> found = verdict(plan("severe", rounds=10, epsilon=0.99))
>>> found.level, found.headline
('caution', 'above: right up to 56 of 100 times; inside: right up to 85 of 100 times (a coin: 50)')

The guess is between two datasets that a silo may hold, both equally likely beforehand, by an observer who has seen
every release of all rounds and all that was released before; the silo is the one worst off. In research plans the
rate is that of the best test of continuous Gaussian noise, Phi(mu / 2): no observer does better, and one does as well.
In deployment plans it is a bound that is proven for the lattice noise that silos draw
(`fulcrum.core.accounting.observer_power_of_shift`). It follows from mu and not from epsilon and delta, which allow
more than this noise gives away. Rates are rounded up.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fulcrum.core.plan.guarantee import is_below_target
from fulcrum.core.topology import SILO
from fulcrum.rounding import rounded_up

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan

LEVELS = ("calm", "caution", "warning")
"""How much a reader should worry, from least to most."""

CALM_UP_TO = 0.6
"""How often an observer may be right before a reader is cautioned. On the tight curve at delta 1e-5: epsilon 2.0."""

CAUTION_UP_TO = 0.9
"""How often an observer may be right before a reader is warned: wrong in one guess of ten. That is epsilon 13.6."""

_MEANINGS = {
    "calm": "little better than a coin's 50",
    "caution": "clearly more than a coin's 50",
    "warning": "so that hardly any protection is promised",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverVerdict:
    """What one observer can do to the silo worst off.

    Attributes:
        observer: "above", who sees the sums of regions, or "inside", who sees single updates or, where sums are masked,
            is the server with silos of the region. If all silos are masked as one group, "above" is outside the
            federation, and "inside" is the server with silos of each region.
        place: Its place in words: "above the regions", or "outside the federation".
        who: The observer in words, to open a sentence with.
        epsilon: The worst epsilon against it; infinite where there is no guarantee.
        right: How often it guesses right which of two datasets the silo holds, at best; one half is a coin.
        accuses: How often it recognises one dataset, at best, while it takes the other for it 1 % of the time.
        level: One of `LEVELS`, by `right` alone.
    """

    observer: str
    place: str
    who: str
    epsilon: float
    right: float
    accuses: float
    level: str

    @property
    def times(self) -> str:
        """How often it is right, of 100 times and rounded up.

        >>> [_seen_by("above", "", "", right).times for right in (0.553, 0.9867, 1.0)]
        ['up to 56 of 100 times', 'up to 99 of 100 times', 'up to 100 of 100 times']
        """
        return f"up to {math.ceil(round(100 * self.right, 9))} of 100 times"

    @property
    def meaning(self) -> str:
        """What that is worth, to follow `times` after a comma."""
        return _MEANINGS[self.level]

    @property
    def sentence(self) -> str:
        """All of it as a sentence of its own."""
        asked = "guesses which of two equally likely datasets a silo holds"
        return f"{self.who} {asked} and is right {self.times}, {self.meaning}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What both observers can do, in words.

    Attributes:
        above: The observer who sees the sums of regions.
        inside: The observer inside a region.
        basis: What the rates rest on, in words.
        one_group: True where all silos are masked as one group, so that "above" is outside the federation.
    """

    above: ObserverVerdict
    inside: ObserverVerdict
    basis: str
    one_group: bool = False

    @property
    def observers(self) -> tuple[ObserverVerdict, ObserverVerdict]:
        """Both, the one above first."""
        return self.above, self.inside

    @property
    def level(self) -> str:
        """The worse of both levels."""
        return max((observer.level for observer in self.observers), key=LEVELS.index)

    @property
    def headline(self) -> str:
        """Both in one line."""
        above, inside = self.observers
        return f"{self._above}: right {above.times}; inside: right {inside.times} (a coin: 50)"

    @property
    def _above(self) -> str:
        return self.above.place if self.one_group else "above"

    @property
    def sentence(self) -> str:
        """Both in one sentence that needs no heading."""
        above, inside = self.observers
        return (
            f"Guessing which of two equally likely datasets a silo holds, an observer {self._above} is right "
            f"{above.times}, {above.meaning}; inside: right {inside.times}, {inside.meaning}."
        )

    def summary(self) -> dict[str, Any]:
        """Returns all of it for JSON; figures are rounded up, and no epsilon is null."""
        return {
            "level": self.level,
            "sentence": self.sentence,
            "basis": self.basis,
            "observers": {
                seen.observer: {
                    "epsilon": rounded_up(seen.epsilon) if math.isfinite(seen.epsilon) else None,
                    "right": min(1.0, rounded_up(seen.right)),
                    "accuses": min(1.0, rounded_up(seen.accuses)),
                    "level": seen.level,
                }
                for seen in self.observers
            },
        }


def verdict(plan: "Plan") -> Verdict:
    """Returns what a plan's epsilons mean against both observers, at every epsilon."""
    inner = plan.federation.innermost.name
    too = ", who also saw all that was released before," if plan.continues_previous_plan else ""
    above, inside = f"above the {inner}s", f"inside a {inner}"
    sees = "sees single updates"
    if plan.aggregation == "masked":
        whose = f"of the silos of each {inner}" if plan.one_group else "of its silos"
        sees = f"is the server with {max(1, plan.colluders)} {whose}"
    if plan.one_group:
        above, inside = "outside the federation", "inside the federation"
    found = {}
    for observer, tier, place, who in (
        ("above", inner, above, f"An observer {above}{too}"),
        ("inside", SILO, inside, f"An observer {inside}{too or ','} {'and' if too else 'who'} {sees},"),
    ):
        power = plan.observer_power(tier)
        found[observer] = _seen_by(
            observer,
            place,
            who,
            power.guessing_rate,
            accuses=power.true_positive_rate,
            epsilon=plan.worst_epsilon(tier),
        )
    research = "the tight figures of continuous Gaussian noise"
    basis = research if plan.purpose == "research" else "bounds that are proven for the lattice noise that silos draw"
    if plan.continues_previous_plan and not all(_is_proven_by_filters(plan, tier) for tier in (inner, SILO)):
        basis += (
            ", against an observer without a target, or with an epsilon below its target, if outputs had no influence "
            "on this plan"
        )
    return Verdict(above=found["above"], inside=found["inside"], basis=basis, one_group=plan.one_group)


def _is_proven_by_filters(plan: "Plan", tier: str) -> bool:
    """Returns True where the worst epsilon at a tier is its target, which outputs of earlier plans cannot change."""
    target = plan.epsilon_target.get(tier)
    return target is not None and not is_below_target(plan.worst_epsilon(tier), target)


def _seen_by(
    observer: str, place: str, who: str, right: float, *, accuses: float = 1.0, epsilon: float = math.inf
) -> ObserverVerdict:
    level = LEVELS[(right > CALM_UP_TO) + (right > CAUTION_UP_TO)]
    return ObserverVerdict(
        observer=observer, place=place, who=who, epsilon=epsilon, right=right, accuses=accuses, level=level
    )
