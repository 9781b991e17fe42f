"""The words of earlier plan files, and the reasons for which some of these words were false.

A plan file keeps digest and signatures as long as the words of the file are true, so `fulcrum verify` accepts the
earlier words as well. A file for which `untrue` returns a reason is refused: no officer shall sign, or rely on, a
false sentence.

>>> from fulcrum.core.plan.guarantee import Guarantee
>>> masked = {"aggregation": "masked", "masked_tier": "federation", "regions": 2}
>>> worst = {"region": 1.0, "silo": 1.5}
>>> words = EarlierGuarantee.of(Guarantee(rounds=10, delta=1e-5, innermost="region", worst=worst, **masked))
>>> words.untrue
'a silo of another region is outside the region, sees the global sum and knows its own noise'
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from fulcrum.core.plan.guarantee import FILTERS, Guarantee, is_below_target
from fulcrum.core.topology import ROOT, SILO


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsealedGuarantee(Guarantee):
    """The figures of a guarantee, in the words before silos sealed their answers to an aggregator.

    The words let the server of masked sums see the sum of every region. The server sees less since, so the words claim
    no protection that is missing.
    """

    @classmethod
    def of(cls, guarantee: Guarantee) -> Self:
        """Returns the earlier words of a guarantee."""
        return cls(**{field.name: getattr(guarantee, field.name) for field in fields(Guarantee)})

    @property
    def hides_regions(self) -> bool:
        """False: no earlier words hid the sums of masked regions from the server."""
        return False

    @property
    def untrue(self) -> str:
        """The reason for which the earlier words are false; an empty string for true words."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierGuarantee(UnsealedGuarantee):
    """The figures of a guarantee, in the earliest words.

    The strings are parts of signed files and never change. A method below overrides the method of `Guarantee` whose
    words were different.
    """

    @property
    def untrue(self) -> str:
        """The reason for which the earlier words are false; an empty string for true words."""
        if self.unit.is_within_silo:
            return "no earlier version protected persons"
        if self.scheduled:
            return "no earlier version knew rosters that change"
        # With colluders a silo of every region is counted out of the noise already, and the words are true.
        if self.one_group and self.regions > 1 and not self.colluders:
            return "a silo of another region is outside the region, sees the global sum and knows its own noise"
        # Silos that help the server subtract their own updates from the sum, in every region, and dropouts are missing:
        # with fewer than two silos left, the rest of the sum is the update of a single silo.
        absent = (max(1, self.colluders) + self.dropouts) * (self.regions if self.one_group else 1)
        if self.aggregation == "masked" and self.smallest_group - absent < 2:
            return "in its smallest masked group somebody sees a single update"
        if self.weights_given and not self.sizes_known:
            return "weights are public, and weights in proportion to sizes show the sizes that are said to stay secret"
        if self.follows and not set(self.worst) <= set(self.targets):
            return "privacy filters prove targets, and no epsilon of an observer without a target"
        if self.follows and any(is_below_target(self.worst[tier], self.targets[tier]) for tier in self.worst):
            return "privacy filters prove targets, and no epsilon below its target"
        if self.less_spent_outside and self.server != "sum":
            return "silos had spent less against observers further out, who have a smaller epsilon"
        return ""

    def _clauses(self, worst: Mapping[str, float | None]) -> list[str]:
        return [
            f"{'no guarantee' if epsilon is None else f'epsilon {epsilon:g}'} against {self.describe_observer(tier)}"
            for tier, epsilon in worst.items()
        ]

    def _of_whom(self) -> str:
        return f" of a {self.innermost}{', in any plan so far,' if self.follows else ''}"

    def _helped_sums(self) -> str:
        return "its sums"

    def _on_past(self) -> str:
        return (
            "what was released before is counted in; a plan made after its outputs were seen rests on privacy "
            f"filters ({FILTERS[self.accountant]})"
        )

    def _further_out(self, observer: str) -> str:
        return f"no epsilon smaller than that against {observer} is claimed further out"

    def _on_sizes(self) -> str:
        return f", and their sizes {'are public' if self.sizes_known else 'stay secret'}"

    def _on_masks(self) -> str:
        return (
            f"no one sees single updates: the server gets {self._masked_sums()} from masked updates, and learns "
            "nothing finer while X25519, Ed25519, HKDF-SHA256, AES-256 and SHA-256 hold"
        )

    def _counted_once(self) -> str:
        return ""  # the assumptions say the same: a silo that helps the server is a silo that helps an observer

    def describe_observer(self, tier: str) -> str:
        """Returns the observer of a tier in the earlier words."""
        always = ", in this plan and all before," if self.follows else ""
        if self.one_group and tier == ROOT:
            return f"anyone outside the federation{always} who sees the global sum and no sum below it"
        if self.one_group and tier != SILO:
            return f"anyone outside its {tier}{always} who sees the global sum, the one sum that is not masked"
        return Guarantee.describe_observer(self, tier)
