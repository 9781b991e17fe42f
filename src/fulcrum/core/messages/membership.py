"""Senders and receivers under a plan: the region of a silo, the silos of a region, and the lattice of the releases.

>>> from fulcrum.planning.planner import plan
>>> two_rounds = plan("isic-paper", rounds=2, epsilon=1.0)
>>> region_of(two_rounds, "region-1-1"), list(members_of(two_rounds, "region-2"))
('region-1', ['region-2-1'])
"""

from fulcrum.core.plan.figures import is_one_group, lattice_steps
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.topology import ROOT, Tier, Topology
from fulcrum.errors import ExchangeError, FulcrumError, ReleaseError, suggestion


def regions_of(federation: Topology) -> dict[str, str]:
    """Returns the region of every silo, in the order of the federation."""
    inner = federation.innermost
    regions = (inner.nodes[code] for code in inner.parent_of.tolist())
    return dict(zip(federation.silo_names.tolist(), regions, strict=True))


def index_of(plan: PlanData, silo: str, error: type[FulcrumError] = ReleaseError) -> int:
    """Returns the index of a silo in a plan's federation; raises `error` for an unknown silo."""
    names: list[str] = plan.federation.silo_names.tolist()
    if silo not in names:
        raise error("plan.silo-unknown", silo=silo, suggestion=suggestion(silo, names))
    return names.index(silo)


def region_of(plan: PlanData, silo: str) -> str:
    """Returns the region of a silo; raises `ExchangeError` for an unknown silo."""
    inner = plan.federation.innermost
    return inner.nodes[int(inner.parent_of[index_of(plan, silo, ExchangeError)])]


def senders_of(plan: PlanData) -> tuple[str, ...]:
    """Returns the senders of sums to the server: all regions, or the federation if all silos are one masked group."""
    return (ROOT,) if is_one_group(plan) else tuple(plan.federation.innermost.nodes)


def summing_tiers(plan: PlanData) -> tuple[Tier, ...]:
    """Returns the tiers whose nodes are sites; regions alone if the server reads their sums, or relays of one group."""
    return plan.federation.tiers[:1] if is_one_group(plan) or plan.server != "sum" else plan.federation.tiers


def seals_answers(plan: PlanData) -> bool:
    """Returns True for masked sums under outer aggregators, to whose engines silos seal their answers."""
    return plan.is_masked and len(summing_tiers(plan)) > 1


def group_name_of(plan: PlanData, silo: str) -> str:
    """Returns the name of a silo's masked group."""
    region = region_of(plan, silo)
    return ROOT if senders_of(plan) == (ROOT,) else region


def members_of(plan: PlanData, region: str, round_number: int | None = None) -> dict[str, int]:
    """Returns the silos of a region, sorted by name, with their indices in the federation.

    If all silos are one masked group, "federation" is the only region with a sum.

    Args:
        plan: The plan.
        region: The region.
        round_number: The round whose roster counts, where membership changes; None for the silos of all rounds.

    Raises:
        ExchangeError: No region of this name sends a sum to the server.
    """
    senders, inner = senders_of(plan), plan.federation.innermost
    if region not in senders:
        raise ExchangeError("plan.region-unknown", region=region, suggestion=suggestion(region, senders))
    if senders == (ROOT,):
        where = list(range(len(plan.federation)))
    else:
        where = (inner.parent_of == inner.nodes.index(region)).nonzero()[0].tolist()
    rosters = plan.federation.rosters
    if rosters is not None and round_number is not None:
        where = [index for index in where if rosters.has(index, round_number)]
    named = {plan.federation.silo_name(index): index for index in where}
    return dict(sorted(named.items()))


def step_of(plan: PlanData, region: str) -> float | None:
    """Returns the step of a region's lattice, the same for all regions; None in research."""
    steps = lattice_steps(plan)
    nodes = plan.federation.innermost.nodes
    return None if steps is None else float(steps[nodes.index(region) if region in nodes else 0])
