"""The protocol of an aggregation: the senders of sums to the server, and the silos that may be missing from a sum.

>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.core.plan.verified_plan import verified_plan
>>> sizes = {"north": {"caen": 100, "lille": 100, "metz": 100}, "south": {"nice": 300, "lyon": 300}}
>>> sample = plan(Federation.from_sizes(sizes), rounds=10, epsilon=1.0, dropouts=1)
>>> aggregation = aggregation_of(verified_plan(sample))
>>> aggregation.lacking("north", {"caen", "lille"})
>>> aggregation.lacking("north", {"caen"})
'2 of 3 silos are missing, the plan does without 1'
>>> sorted(aggregation.usable({"north"})), sorted(aggregation.usable({"north", "south"}))
([], ['north', 'south'])

Aggregators of every tier, the server's side of masked groups, coordinator and checkpoint all call this module and have
no rule of their own. The engines in process have every silo in every round. A masked silo does not trust the server
with this decision, and calls `masking_group.Group.lacking` before unmasking a sum.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.masking.masking_group import Group, group_of
from fulcrum.core.messages.aggregation_tree import AggregationTree, tree_of
from fulcrum.core.messages.membership import members_of
from fulcrum.core.phase_noise import variance_by_silo
from fulcrum.core.plan.figures import outermost_complete_tier
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.remaining_noise import left_by_coalitions, remaining_noise
from fulcrum.core.topology import ROOT

_TOLERANCE = 1e-9  # relative: sums are taken in another order elsewhere


class Aggregation(Protocol):
    """The way of making sums under a plan; `tests/roles/test_aggregations.py` tests the guarantees for both ways.

    Guarantees:

    - a sum of all silos is allowed, and a sum of no silo is refused;
    - an allowed sum stays allowed with a further silo;
    - for every silo in an allowed sum, the sum has the noise that the plan's epsilons count on;
    - sums count together or not at all if the plan's epsilons count on the noise of all these sums.

    Attributes:
        name: The value of the plan's setting `aggregation`.
        plan: The plan.
        logical: True for an engine without aggregators (`tree_of`).
    """

    name: ClassVar[str]
    plan: VerifiedPlan
    logical: bool

    @cached_property
    def tree(self) -> AggregationTree:
        """The aggregators of the plan."""
        return tree_of(self.plan, logical=self.logical)

    def lacking(self, sender: str, present: Collection[str]) -> str | None:
        """Returns the reason against a sum of the silos present, for a sender; None if the sum is allowed.

        The sum of an outer node consists of whole sums of its children, each allowed by the same rule. Up to
        `outermost_complete_tier` the plan's epsilons count on the noise of all children, and no child may be missing.
        """
        children = self.tree.children(sender)
        if sender == ROOT or not children:
            return self.lacking_in_group(sender, present)
        below = {child: set(self.tree.silos(child)) & set(present) for child in children}
        for child, silos in below.items():
            if silos and (reason := self.lacking(child, silos)):
                return f"{child}: {reason}"
        absent = [child for child, silos in below.items() if not silos]
        names = self.plan.federation.tier_names
        complete = names.index(self.tree.tier(sender)) <= names.index(outermost_complete_tier(self.plan))
        if len(absent) == len(children) or (absent and complete):
            return f"{len(absent)} of {len(children)} sums are missing, such as the sum of {absent[0]!r}"
        return None

    def lacking_in_group(self, sender: str, present: Collection[str], round_number: int | None = None) -> str | None:
        """Returns the reason against a sum of releases, for a region or for the one masked group.

        Where membership changes, the reason is against a sum of one round, whose roster counts.
        """

    def joint_senders(self) -> tuple[frozenset[str], ...]:
        """Returns the sets of nodes that report to the server and whose sums count together or not at all in a round.

        The plan's epsilons count on the noise of every node below a node of `outermost_complete_tier`. A set is a
        single node if no target is further out, and all nodes if the plan counts on a complete global sum.
        """
        tree, federation = self.tree, self.plan.federation
        if tree.reporting == (ROOT,):
            return (frozenset(tree.reporting),)
        top = tree.levels[-1]
        tier = max(top.name, outermost_complete_tier(self.plan), key=federation.tier_names.index)
        pairs = zip(federation.membership(top.name).tolist(), federation.membership(tier).tolist(), strict=True)
        joint: dict[int, set[str]] = {}
        for sender, node in sorted(set(pairs)):
            joint.setdefault(node, set()).add(top.nodes[sender])
        return tuple(map(frozenset, joint.values()))

    def usable(self, senders: Collection[str]) -> frozenset[str]:
        """Returns the senders whose sums count in a round with sums of `senders`."""
        return frozenset().union(*(joint for joint in self.joint_senders() if joint <= set(senders)))


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: a figure is cached
class TrustedAggregation(Aggregation):
    """Sums by regional aggregators, which see single releases and are trusted."""

    name: ClassVar[str] = "trusted"
    plan: VerifiedPlan
    logical: bool = False
    _noise: dict[int, tuple[FloatArray, FloatArray]] = field(default_factory=dict, init=False)

    def lacking_in_group(self, sender: str, present: Collection[str], round_number: int | None = None) -> str | None:
        """Returns the reason against a sum with less noise than the plan counts on; None if the noise is enough.

        For every silo the plan counts on the noise of the region, without the noise of the worst `dropouts` and
        `colluders` together. The data of absent silos are not in the sum and need no noise.
        """
        plan, members = self.plan, members_of(self.plan, sender, round_number)
        where = [index for silo, index in members.items() if silo in present]
        absent = len(members) - len(where)
        if not where or absent > plan.dropouts:
            return f"{absent} of {len(members)} silos are missing, the plan does without {plan.dropouts}"
        drawn, counted_on = self._noise_of(round_number)
        left, more = left_by_coalitions(drawn[where], np.zeros(len(where), dtype=np.intp), 1, plan.colluders)
        if (left[0] + more < counted_on[where] * (1 - _TOLERANCE)).any():
            return f"the noise of {len(where)} silos is less than the plan counts on"
        return None

    def _noise_of(self, round_number: int | None) -> tuple[FloatArray, FloatArray]:
        """Returns by silo the noise that the silo draws in a round, and the noise on which its epsilon above counts."""
        plan, rosters = self.plan, self.plan.federation.rosters
        phase = -1 if rosters is None or round_number is None else rosters.phase(round_number)
        if phase not in self._noise:
            drawn = plan.noise_variance
            if phase >= 0 and plan.phase_multiplier is not None:
                drawn = variance_by_silo(plan.federation, plan.phase_multiplier, phase)
            inner, lost = plan.federation.innermost.name, plan.colluders + plan.dropouts
            self._noise[phase] = (
                drawn,
                remaining_noise(plan.federation, drawn, tier=inner, excluded_silos=lost),
            )
        return self._noise[phase]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedAggregation(Aggregation):
    """Sums of masked releases; the server learns the sums and no single release."""

    name: ClassVar[str] = "masked"
    plan: VerifiedPlan
    logical: bool = False
    _groups: dict[str, Group] = field(default_factory=dict, init=False)

    def lacking_in_group(self, sender: str, present: Collection[str], round_number: int | None = None) -> str | None:
        """Returns the reason against unmasking the sum of a group, by the rule that the silos apply too."""
        if self.plan.federation.rosters is not None:
            return group_of(self.plan, sender, round_number).lacking(present)
        if sender not in self._groups:
            self._groups[sender] = group_of(self.plan, sender)
        return self._groups[sender].lacking(present)


def lacking_in_round(aggregation: Aggregation, sender: str, present: Collection[str], round_number: int) -> str | None:
    """Returns the reason against a sum of the silos present in a round; None if the sum is allowed.

    Where membership changes, the roster of the round takes the place of the region's silos: no other silo is in a sum,
    and no other silo counts as missing.
    """
    if aggregation.plan.federation.rosters is None:
        return aggregation.lacking(sender, present)
    if strangers := set(present) - members_of(aggregation.plan, sender, round_number).keys():
        return f"silo {min(strangers)!r} takes no part in round {round_number}, by the rosters of the plan"
    if reason := aggregation.lacking_in_group(sender, present, round_number):
        return f"round {round_number}: {reason}"
    return None


def aggregation_of(plan: VerifiedPlan, *, logical: bool = False) -> Aggregation:
    """Returns the way of making sums under a plan; `logical` is True for an engine without aggregators (`tree_of`)."""
    kind = MaskedAggregation if plan.aggregation == "masked" else TrustedAggregation
    return kind(plan=plan, logical=logical)
