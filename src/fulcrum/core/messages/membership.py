"""Who sends to whom under a plan: the region of a silo, the silos of a region, and the lattice they release on.

>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> region_of(made, "region-1-1"), list(members_of(made, "region-2"))
('region-1', ['region-2-1'])
"""

from fulcrum.core.plan.figures import is_one_group, lattice_steps
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.topology import ROOT, Topology
from fulcrum.errors import ExchangeError, FulcrumError, ReleaseError, suggestion


def regions_of(federation: Topology) -> dict[str, str]:
    """Returns the region of every silo, in the order of the federation."""
    inner = federation.innermost
    regions = (inner.nodes[code] for code in inner.parent_of.tolist())
    return dict(zip(federation.silo_names.tolist(), regions, strict=True))


def index_of(plan: PlanData, silo: str, error: type[FulcrumError] = ReleaseError) -> int:
    """Returns the place of a silo in a plan's federation, or raises `error`."""
    names: list[str] = plan.federation.silo_names.tolist()
    if silo not in names:
        raise error("plan.silo-unknown", silo=silo, suggestion=suggestion(silo, names))
    return names.index(silo)


def region_of(plan: PlanData, silo: str) -> str:
    """Returns the region that a silo reports to."""
    inner = plan.federation.innermost
    return inner.nodes[int(inner.parent_of[index_of(plan, silo, ExchangeError)])]


def senders_of(plan: PlanData) -> tuple[str, ...]:
    """Returns whose sums the server gets: the regions', or that of the federation where all of it is masked as one."""
    return (ROOT,) if is_one_group(plan) else tuple(plan.federation.innermost.nodes)


def group_name_of(plan: PlanData, silo: str) -> str:
    """Returns the name of the group that a silo is masked in."""
    region = region_of(plan, silo)
    return ROOT if senders_of(plan) == (ROOT,) else region


def members_of(plan: PlanData, region: str) -> dict[str, int]:
    """Returns the silos of a region, sorted by name, and where each stands in the federation.

    Where all of it is masked as one, "federation" is the one region whose sum there is.
    """
    senders, inner = senders_of(plan), plan.federation.innermost
    if region not in senders:
        raise ExchangeError("plan.region-unknown", region=region, suggestion=suggestion(region, senders))
    if senders == (ROOT,):
        where = list(range(len(plan.federation)))
    else:
        where = (inner.parent_of == inner.nodes.index(region)).nonzero()[0].tolist()
    named = {plan.federation.silo_name(index): index for index in where}
    return dict(sorted(named.items()))


def step_of(plan: PlanData, region: str) -> float | None:
    """Returns the step of a region's lattice, which all regions share; None in research."""
    steps = lattice_steps(plan)
    nodes = plan.federation.innermost.nodes
    return None if steps is None else float(steps[nodes.index(region) if region in nodes else 0])
