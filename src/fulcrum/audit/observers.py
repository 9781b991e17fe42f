"""Whom the audit plays: every observer of a plan, the silo that each attacks, and what the plan claims against it.

>>> from fulcrum.planning.making import plan
>>> stages = stages_of(plan("isic-paper", rounds=2, epsilon=1.0))
>>> [(stage.node, [view.observer for view in stage.views]) for stage in stages][:2]
[('region-1', ['above', 'colluding']), ('region-1', ['inside'])]
"""

import math
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.federation.structure import ROOT, SILO
from fulcrum.planning.plan import Plan
from fulcrum.privacy.accounting import epsilon_of_shift

ABOVE, INSIDE, COLLUDING, DROPOUTS = "above", "inside", "colluding", "dropouts"
"""Who sees the sums of a node; who sees single releases; the first with colluders; and with silos missing as well."""

MOST_REGIONS = 24
"""Regions that are audited; of more, those with the highest epsilons, and the smallest and largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a plan claims of one silo against one observer, over the rounds of this plan.

    Attributes:
        shift: mu, from the noise multipliers.
        exact: The epsilon of that shift, tight for Gaussian noise.
        renyi: The same by the paper's Theorem 1.
        stated: What the plan says, by its own accountant.
    """

    shift: float
    exact: float
    renyi: float
    stated: float

    @property
    def epsilon(self) -> float:
        """What a measurement is held against: no more than the plan says, nor than its noise gives."""
        return min(self.stated, self.exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one observer sees of the silo that it attacks.

    Attributes:
        observer: `ABOVE`, `INSIDE`, `COLLUDING` or `DROPOUTS`.
        colluders: Silos whose noise it is told.
        missing: Silos whose releases are not in the sum.
        claim: What the plan claims against it.
        noise_std: The noise in what it sees of a round, colluders' noise taken off, in units of the update.
    """

    observer: str
    colluders: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    claim: Claim
    noise_std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One game: a node whose silos release, one of them under attack, and those who watch.

    Attributes:
        tier: Of the node.
        node: Its name.
        silo: Who is attacked: the one with the highest epsilon there.
        members: By region of the node, its silos; of one silo alone where the observer is inside.
        views: Who watches.
    """

    tier: str
    node: str
    silo: int
    members: dict[int, tuple[int, ...]]
    views: tuple[View, ...]

    @property
    def silos(self) -> int:
        """How many release."""
        return sum(len(members) for members in self.members.values())


def stages_of(plan: Plan, *, regions: int = MOST_REGIONS, silo: int | None = None) -> tuple[Stage, ...]:
    """Returns the games that a plan is put to, region by region, then those of the tiers further out.

    Args:
        plan: What is audited.
        regions: How many regions, at most; see `MOST_REGIONS`.
        silo: Audit this silo alone, in its region.
    """
    federation = plan.federation
    inner, region_of = federation.innermost, federation.innermost.parent_of
    chosen = _regions(plan, regions) if silo is None else [int(region_of[silo])]
    members = {region: tuple(np.flatnonzero(region_of == region).tolist()) for region in chosen}
    found: list[Stage] = []
    for region in chosen:
        found += _stages_of_region(plan, inner.nodes[region], region, members[region], silo)
    # A server that pools shows nothing of sums further out: its model is a function of the regions' sums.
    outer = (
        []
        if silo is not None or plan.server != "sum"
        else [name for name in federation.tier_names if name not in (SILO, inner.name)]
    )
    for tier in outer:
        node_of, shown = federation.membership(tier), plan.epsilon(tier, colluders=0, dropouts=0)
        names = (ROOT,) if tier == ROOT else federation.tier(tier).nodes
        for node, name in enumerate(names):
            below = sorted(set(region_of[node_of == node].tolist()))
            if set(below) <= members.keys() and len(below) > 1:
                among = {region: members[region] for region in below}
                targets = [int(np.argmax(np.where(node_of == node, shown, -1.0)))]
                if plan.purpose == "deployment":  # what low bits show is shown of the lightest silo
                    targets.append(int(np.argmin(np.where(node_of == node, federation.weights, np.inf))))
                for target in dict.fromkeys(targets):
                    view = _view(plan, tier, target, ABOVE)
                    found.append(Stage(tier=tier, node=name, silo=target, members=among, views=(view,)))
    return tuple(found)


def whole_federation(plan: Plan, observer: str) -> Stage:
    """Returns the stage of an observer for whom all regions release, against the silo with the highest epsilon above.

    What is claimed against it is what is claimed against an observer of the regions' sums.
    """
    region_of = plan.federation.innermost.parent_of
    count = len(plan.federation.innermost.nodes)
    members = {region: tuple(np.flatnonzero(region_of == region).tolist()) for region in range(count)}
    silo = int(np.argmax(plan.epsilon_above))
    view = _view(plan, plan.federation.innermost.name, silo, observer)
    return Stage(tier=ROOT, node=ROOT, silo=silo, members=members, views=(view,))


def _regions(plan: Plan, most: int) -> list[int]:
    region_of = plan.federation.innermost.parent_of
    count = len(plan.federation.innermost.nodes)
    if count <= most:
        return list(range(count))
    above, inside = np.zeros(count), np.zeros(count)
    np.maximum.at(above, region_of, np.minimum(plan.epsilon_above, 1e300))
    np.maximum.at(inside, region_of, np.minimum(plan.epsilon_inside, 1e300))
    sizes = np.bincount(region_of, minlength=count)
    orders = [np.argsort(-above, kind="stable"), np.argsort(-inside, kind="stable")]
    orders += [np.argsort(sizes, kind="stable"), np.argsort(-sizes, kind="stable")]
    by_turns = [int(order[place]) for place in range(count) for order in orders]
    return sorted(list(dict.fromkeys(by_turns))[:most])


def _stages_of_region(
    plan: Plan, name: str, region: int, members: tuple[int, ...], silo: int | None
) -> tuple[Stage, ...]:
    inner = plan.federation.innermost.name
    where = list(members)
    target = int(where[np.argmax(plan.epsilon_above[where])]) if silo is None else silo
    single = int(where[np.argmax(plan.epsilon_inside[where])]) if silo is None else silo
    views = [_view(plan, inner, target, ABOVE)]
    injected_here = plan.injection == "silo"
    if injected_here and len(members) > 1:
        views.append(_view(plan, inner, target, COLLUDING, colluders=max(1, plan.colluders)))
        if plan.dropouts:
            views.append(_view(plan, inner, target, DROPOUTS, colluders=plan.colluders, dropouts=plan.dropouts))
    sums = Stage(tier=inner, node=name, silo=target, members={region: members}, views=tuple(views))
    if plan.aggregation == "masked":  # nobody sees a single release; a fellow member is the one who colludes
        return (sums,)
    inside = _view(plan, SILO, single, INSIDE)
    return (sums, Stage(tier=SILO, node=name, silo=single, members={region: (single,)}, views=(inside,)))


def _view(plan: Plan, tier: str, silo: int, observer: str, *, colluders: int = 0, dropouts: int = 0) -> View:
    """Returns what an observer of a tier sees of a silo, with the worst coalition of its region against it."""
    federation, variance = plan.federation, plan.noise_variance
    region = int(federation.innermost.parent_of[silo])
    others = [int(i) for i in np.flatnonzero(federation.innermost.parent_of == region) if i != silo]
    worst = sorted(others, key=lambda i: -variance[i])
    missing = tuple(worst[:dropouts])
    told = tuple(worst[dropouts : dropouts + colluders])
    if tier == SILO:
        left = float(variance[silo]) if plan.injection == "silo" else 0.0
    else:
        node_of = federation.membership(tier)
        there = np.flatnonzero(node_of == node_of[silo]).tolist()
        uncounted = {*missing, *told}
        left = math.fsum(float(variance[i]) for i in there if i not in uncounted)
    claim = _claim(plan, tier, silo, colluders=colluders, dropouts=dropouts)
    return View(
        observer=observer, colluders=told, missing=missing, claim=claim, noise_std=math.sqrt(left) * plan.clip_norm
    )


def _claim(plan: Plan, tier: str, silo: int, *, colluders: int, dropouts: int) -> Claim:
    multiplier = float(plan.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)[silo])
    shift = 2 * math.sqrt(plan.rounds) / multiplier if multiplier else math.inf
    delta = plan.target.accounted_delta
    by = {name: float(epsilon_of_shift(shift, delta=delta, accountant=name)) for name in ("exact", "renyi")}
    # What was released before this plan is in its epsilons, and cannot be replayed.
    stated = by[plan.accountant]
    if not plan.follows:
        stated = float(plan.epsilon(tier, colluders=colluders, dropouts=dropouts)[silo])
    return Claim(shift=shift, stated=stated, **by)


def known_signal(plan: Plan, silo: int) -> float:
    """Returns how far a silo's canary moves its region's sum once it is clipped and weighted."""
    weights: FloatArray = plan.federation.weights
    return float(weights[silo]) * plan.clip_norm


def silos_of(stage: Stage) -> IntArray:
    """Returns all silos of a stage, region by region."""
    return np.array([silo for members in stage.members.values() for silo in members], dtype=np.intp)
