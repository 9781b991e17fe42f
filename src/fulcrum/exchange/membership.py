"""Who sends to whom under a plan: the region of a silo, the silos of a region, and the lattice they release on.

>>> from fulcrum.planning.making import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> region_of(made, "region-1-1"), list(members_of(made, "region-2"))
('region-1', ['region-2-1'])
"""

from fulcrum.errors import ExchangeError, suggestion
from fulcrum.federation.structure import Federation
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


def members_of(plan: Plan, region: str) -> dict[str, int]:
    """Returns the silos of a region, sorted by name, and where each stands in the federation."""
    inner = plan.federation.innermost
    if region not in inner.nodes:
        raise ExchangeError(f"the plan knows no region {region!r}.{suggestion(region, inner.nodes)}")
    where = (inner.parent_of == inner.nodes.index(region)).nonzero()[0].tolist()
    named = {plan.federation.silo_name(index): index for index in where}
    return dict(sorted(named.items()))


def step_of(plan: Plan, region: str) -> float | None:
    """Returns the step of a region's lattice; None in research."""
    steps = plan.lattice_steps
    return None if steps is None else float(steps[plan.federation.innermost.nodes.index(region)])
