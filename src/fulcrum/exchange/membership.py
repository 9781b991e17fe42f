"""Who sends to whom under a plan: the region of a silo, the silos of a region, and the lattice they release on.

>>> from fulcrum.planning.making import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> region_of(made, "region-1-1"), list(members_of(made, "region-2"))
('region-1', ['region-2-1'])
"""

from fulcrum.errors import ExchangeError, suggestion
from fulcrum.federation.structure import ROOT, Federation
from fulcrum.planning.plan import Plan


def regions_of(federation: Federation) -> dict[str, str]:
    """Returns the region of every silo, in the order of the federation."""
    inner = federation.innermost
    regions = (inner.nodes[code] for code in inner.parent_of.tolist())
    return dict(zip(federation.silo_names.tolist(), regions, strict=True))


def region_of(plan: Plan, silo: str) -> str:
    """Returns the region that a silo reports to."""
    regions = regions_of(plan.federation)
    if silo not in regions:
        raise ExchangeError(f"the plan knows no silo {silo!r}.{suggestion(silo, regions)}")
    return regions[silo]


def senders_of(plan: Plan) -> tuple[str, ...]:
    """Returns whose sums the server gets: the regions', or that of the federation where all of it is masked as one."""
    whole = plan.aggregation == "masked" and plan.group_tier == ROOT
    return (ROOT,) if whole else tuple(plan.federation.innermost.nodes)


def joint_senders(plan: Plan) -> tuple[frozenset[str], ...]:
    """Returns the sets of senders whose sums count in a round together or not at all.

    The plan's epsilons count on the noise of every region below a node of `Plan.outermost_complete_tier`. A set is a
    single region if no target stands further out, and all regions if the plan counts on a complete global sum.

    >>> from fulcrum.planning.making import plan
    >>> [len(regions) for regions in joint_senders(plan("isic-paper", rounds=2, epsilon=1.0))]
    [4]
    """
    senders, inner = senders_of(plan), plan.federation.innermost
    if senders == (ROOT,):
        return (frozenset(senders),)
    joint: dict[int, set[str]] = {}
    nodes = plan.federation.membership(plan.outermost_complete_tier)
    for region, node in sorted(set(zip(inner.parent_of.tolist(), nodes.tolist(), strict=True))):
        joint.setdefault(node, set()).add(inner.nodes[region])
    return tuple(map(frozenset, joint.values()))


def members_of(plan: Plan, region: str) -> dict[str, int]:
    """Returns the silos of a region, sorted by name, and where each stands in the federation.

    Where all of it is masked as one, "federation" is the one region whose sum there is.
    """
    senders, inner = senders_of(plan), plan.federation.innermost
    if region not in senders:
        raise ExchangeError(f"the plan knows no region {region!r}.{suggestion(region, senders)}")
    if senders == (ROOT,):
        where = list(range(len(plan.federation)))
    else:
        where = (inner.parent_of == inner.nodes.index(region)).nonzero()[0].tolist()
    named = {plan.federation.silo_name(index): index for index in where}
    return dict(sorted(named.items()))


def step_of(plan: Plan, region: str) -> float | None:
    """Returns the step of a region's lattice, which all regions share; None in research."""
    steps = plan.lattice_steps
    nodes = plan.federation.innermost.nodes
    return None if steps is None else float(steps[nodes.index(region) if region in nodes else 0])
