"""The tree of aggregators under a plan: the nodes that exist as processes, with parents, children and silos.

>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.planning.planner import plan
>>> outer = {"country": {"france": ["north", "south"]}}
>>> federation = Federation.from_sizes({"north": [100, 200], "south": [300]}, outer=outer)
>>> tree = tree_of(plan(federation, rounds=2, epsilon=1.0))
>>> tree.reporting, tree.children("france"), tree.parent("north"), list(tree.silos("france"))
(('france',), ('north', 'south'), 'france', ['north-1', 'north-2', 'south-1'])

Every tier of the federation is a level of aggregators, from the regions outward, in all plans but two kinds:

- All silos are one masked group: no node has a sum, and regions relay messages alone.
- The server's rule reads the sum of every region. The epsilons of such a plan take every observer above the regions for
  a reader of regional sums, so regions report to the server themselves.

On an engine without aggregators the tree is logical: the server reads the sums of masked regions and adds them up. The
observer of an outer tier is then the server, which sees more than the sums of the tier. With masked sums the server
knows the sums of regions on every engine. `figures.unmet_tiers` names the tiers whose targets forbid such plans. No
silo imports this module: a silo knows its region alone.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from fulcrum.core.messages.membership import members_of, summing_tiers
from fulcrum.core.plan.figures import is_one_group
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.topology import ROOT, Tier
from fulcrum.errors import ExchangeError, suggestion


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: values are cached
class AggregationTree:
    """The aggregators of a plan; made by `tree_of`.

    Attributes:
        plan: The plan.
        levels: The tiers whose nodes add up sums, from the innermost outward.
    """

    plan: PlanData
    levels: tuple[Tier, ...]

    @property
    def reporting(self) -> tuple[str, ...]:
        """The nodes whose sums reach the server; the federation if all silos are one masked group."""
        return (ROOT,) if is_one_group(self.plan) else self.levels[-1].nodes

    @cached_property
    def _level_of(self) -> dict[str, int]:
        return {node: level for level, tier in enumerate(self.levels) for node in tier.nodes}

    def level(self, node: str) -> int:
        """Returns the level of a node: 0 for a region, and `len(levels)` for the federation.

        Raises:
            ExchangeError: The tree has no such node.
        """
        if node == ROOT and self.reporting == (ROOT,):
            return len(self.levels)
        if node not in self._level_of:
            names = self.reporting if self.reporting == (ROOT,) else tuple(self._level_of)
            raise ExchangeError("plan.region-unknown", region=node, suggestion=suggestion(node, names))
        return self._level_of[node]

    def tier(self, node: str) -> str:
        """Returns the name of a node's tier."""
        return ROOT if node == ROOT else self.levels[self.level(node)].name

    @cached_property
    def _parents(self) -> dict[str, str]:
        """By node, the next node outward; the federation for nodes that report to the server."""
        parents = dict.fromkeys(self.levels[-1].nodes, ROOT)
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            parents |= {
                node: outer.nodes[code] for node, code in zip(inner.nodes, outer.parent_of.tolist(), strict=True)
            }
        return parents

    def parent(self, node: str) -> str:
        """Returns the node to which a node seals its sums; the federation for a node that reports to the server."""
        self.level(node)
        return self._parents[node]

    def children(self, node: str) -> tuple[str, ...]:
        """Returns the nodes whose sums a node adds up; none for a region, which adds up releases."""
        if node == ROOT:
            return self.levels[-1].nodes
        level = self.level(node)
        inner = self.levels[level - 1].nodes if level else ()
        return tuple(child for child in inner if self._parents[child] == node)

    def silos(self, node: str) -> dict[str, int]:
        """Returns the silos below a node, sorted by name, with their indices in the federation."""
        if self.level(node) in (0, len(self.levels)):
            return members_of(self.plan, node)
        below = [silo for child in self.children(node) for silo in self.silos(child).items()]
        return dict(sorted(below))


def tree_of(plan: PlanData, *, logical: bool = False) -> AggregationTree:
    """Returns the aggregators of a plan.

    Args:
        plan: The plan.
        logical: True for an engine without aggregators: the server reads the sums of masked regions.

    Raises:
        ExchangeError: Two nodes of the tree have one name, so that a key would belong to both.
    """
    levels = levels_of(plan, logical=logical)
    if plan.federation.rosters is not None and len(plan.federation.tiers) > 1:
        raise ExchangeError("plan.rosters-in-tiers")  # an outer sum of a round would need the rosters of its regions
    names = Counter(node for tier in levels for node in tier.nodes)
    if len(levels) > 1 and (twice := next((name for name, count in names.items() if count > 1), None)) is not None:
        raise ExchangeError("plan.node-repeated", name=twice)
    return AggregationTree(plan=plan, levels=levels)


def levels_of(plan: PlanData, *, logical: bool = False) -> tuple[Tier, ...]:
    """Returns the tiers of a plan whose nodes add up sums; see `tree_of`."""
    return plan.federation.tiers[:1] if logical else summing_tiers(plan)
