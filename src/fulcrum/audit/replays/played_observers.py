"""Whom the audit plays: every observer of a plan, the silo that each attacks, and what the plan claims against it.

>>> from fulcrum.planning.planner import plan
>>> stages = stages_of(plan("isic-paper", rounds=2, epsilon=1.0))
>>> [(stage.node, [view.observer for view in stage.views]) for stage in stages][:2]
[('region-1', ['above', 'colluding']), ('region-1', ['inside'])]
"""

import math
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.calibration import shift_of

ABOVE, INSIDE, COLLUDING, DROPOUTS = "above", "inside", "colluding", "dropouts"
"""Who sees the sums of a node; who is inside a region; the first with colluders; and with silos missing as well.

Inside is whoever sees single releases; of masked sums, it is the server together with members of each region, one
at least: they take their own updates and noise off the sums.
"""

MOST_REGIONS = 24
"""Regions that are audited; of more, those with the highest epsilons, and the smallest and largest."""

MOST_RELEASES = 100_000
"""Releases of one replay, over all regions that are audited: more of them would take hours."""

_MOST_VERIFIED = 4_000_000  # silos that verify a deployment plan, times silos of the plan: two minutes


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
        colluders: Silos whose updates and noise it is told.
        missing: Silos whose releases are not in the sum.
        claim: What the plan claims against it.
        colluding: How many of a region these colluders are, at most.
        absent: How many of a region are missing, at most.
        noise_std: The noise in what it sees of a round, colluders' noise taken off, in units of the update.
        single: Whether it sees the silo's own release, and no sum.
    """

    observer: str
    colluders: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    colluding: int = 0
    absent: int = 0
    claim: Claim
    noise_std: float
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One game: a node whose silos release, one of them under attack, and those who watch.

    Attributes:
        tier: Of the node.
        node: Its name.
        silo: Who is attacked: the one with the highest epsilon there.
        members: By region of the node, its silos; of one silo alone where the observer sees single releases.
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
    room = _room(plan)
    if plan.one_group:  # nobody sees a sum further in
        if len(federation) > room:
            raise _too_large(plan, ROOT, len(federation), room)
        everyone = {region: _silos_of(plan, region) for region in range(len(inner.nodes))}
        return _stages_of_group(plan, ROOT, ROOT, everyone, silo)
    wanted = _by_turns(plan) if silo is None else [int(region_of[silo])]
    chosen = _fitting(plan, wanted, regions, room)
    members = {region: _silos_of(plan, region) for region in chosen}
    if not chosen:
        if plan.aggregation == "masked":
            raise _too_large(plan, inner.name, int(np.bincount(region_of)[wanted].min()), room)
        return (_stage_inside(plan, int(np.argmax(plan.epsilon_inside)) if silo is None else silo),)
    found: list[Stage] = []
    for region in chosen:
        found += _stages_of_group(plan, inner.name, inner.nodes[region], {region: members[region]}, silo)
    # Beyond the outermost complete tier an observer may see one node of that tier alone, which was played before.
    tiers = federation.tier_names
    outer = tiers[tiers.index(inner.name) + 1 : tiers.index(plan.outermost_complete_tier) + 1]
    for tier in outer if silo is None else ():
        node_of, shown = federation.membership(tier), plan.epsilon(tier, colluders=0, dropouts=0)
        names = (ROOT,) if tier == ROOT else federation.tier(tier).nodes
        for node, name in enumerate(names):
            below = sorted(set(region_of[node_of == node].tolist()))
            if set(below) <= members.keys() and len(below) > 1:
                among = {region: members[region] for region in below}
                target = int(np.argmax(np.where(node_of == node, shown, -1.0)))
                views = _views_of_sums(plan, tier, target)
                found.append(Stage(tier=tier, node=name, silo=target, members=among, views=views))
                lightest = int(np.argmin(np.where(node_of == node, federation.weights, np.inf)))
                if plan.purpose == "deployment" and lightest != target:  # what low bits show is shown of the lightest
                    view = _view(plan, tier, lightest, ABOVE)
                    found.append(Stage(tier=tier, node=name, silo=lightest, members=among, views=(view,)))
    return tuple(found)


def whole_federation(plan: Plan, observer: str) -> Stage:
    """Returns the stage of an observer for whom all regions release, against the silo with the highest epsilon above.

    What is claimed against it is what is claimed against an observer of the regions' sums.
    """
    members = {region: _silos_of(plan, region) for region in range(len(plan.federation.innermost.nodes))}
    silo = int(np.argmax(plan.epsilon_above))
    view = _view(plan, plan.federation.innermost.name, silo, observer)
    return Stage(tier=ROOT, node=ROOT, silo=silo, members=members, views=(view,))


def _room(plan: Plan) -> int:
    """Returns how many silos may release in a replay: each of them does in every round, and verifies a deployment."""
    most = MOST_RELEASES // plan.rounds
    return most if plan.purpose == "research" else min(most, _MOST_VERIFIED // len(plan.federation))


def _too_large(plan: Plan, tier: str, silos: int, room: int) -> ParameterError:
    return ParameterError("audit.masked-sum-too-large", tier=tier, silos=silos, rounds=plan.rounds, room=room)


def _fitting(plan: Plan, wanted: list[int], most: int, room: int) -> list[int]:
    """Returns the regions that are audited, the first of those wanted that there is room for."""
    sizes = np.bincount(plan.federation.innermost.parent_of)
    found: list[int] = []
    for region in wanted:
        if len(found) < most and sizes[region] <= room:
            found.append(region)
            room -= int(sizes[region])
    return sorted(found)


def _by_turns(plan: Plan) -> list[int]:
    """Returns all regions: by turns that with the highest epsilon above, inside, the smallest and the largest."""
    region_of = plan.federation.innermost.parent_of
    count = len(plan.federation.innermost.nodes)
    above, inside = np.zeros(count), np.zeros(count)
    np.maximum.at(above, region_of, np.minimum(plan.epsilon_above, 1e300))
    np.maximum.at(inside, region_of, np.minimum(plan.epsilon_inside, 1e300))
    sizes = np.bincount(region_of, minlength=count)
    orders = [np.argsort(-above, kind="stable"), np.argsort(-inside, kind="stable")]
    orders += [np.argsort(sizes, kind="stable"), np.argsort(-sizes, kind="stable")]
    return list(dict.fromkeys(int(order[place]) for place in range(count) for order in orders))


def _silos_of(plan: Plan, region: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(plan.federation.innermost.parent_of == region).tolist())


def _stages_of_group(
    plan: Plan, tier: str, name: str, members: dict[int, tuple[int, ...]], silo: int | None
) -> tuple[Stage, ...]:
    """Returns the games of silos whose releases are summed: against who sees their sum, and against who is inside."""
    where = [one for some in members.values() for one in some]
    target = int(where[np.argmax(plan.epsilon_above[where])]) if silo is None else silo
    single = int(where[np.argmax(plan.epsilon_inside[where])]) if silo is None else silo
    sums = Stage(tier=tier, node=name, silo=target, members=members, views=_views_of_sums(plan, tier, target))
    if plan.aggregation == "masked":
        if len(where) == 1:  # nobody else is there to be inside
            return (sums,)
        missing = plan.dropouts
        inside = _view(plan, SILO, single, INSIDE, colluders=max(1, plan.colluders), dropouts=missing)
        return (sums, Stage(tier=SILO, node=name, silo=single, members=members, views=(inside,)))
    return (sums, _stage_inside(plan, single))


def _stage_inside(plan: Plan, silo: int) -> Stage:
    """Returns the game against who sees the single releases of a silo."""
    inner = plan.federation.innermost
    region, view = int(inner.parent_of[silo]), _view(plan, SILO, silo, INSIDE)
    return Stage(tier=SILO, node=inner.nodes[region], silo=silo, members={region: (silo,)}, views=(view,))


def _views_of_sums(plan: Plan, tier: str, target: int) -> tuple[View, ...]:
    """Returns who watches the sums of a tier: alone, with colluders of each region, and with silos missing."""
    views = [_view(plan, tier, target, ABOVE)]
    told = max(1, plan.colluders)
    colluding = _view(plan, tier, target, COLLUDING, colluders=told)
    if plan.injection != "silo" or not colluding.colluders:
        return tuple(views)
    further_out = tier not in (plan.group_tier, plan.federation.innermost.name)
    if plan.aggregation != "masked":
        views.append(colluding)
    elif further_out:  # at the group itself the observer inside has a game of its own
        views.append(_view(plan, tier, target, INSIDE, colluders=told, dropouts=plan.dropouts))
    if plan.dropouts:
        views.append(_view(plan, tier, target, DROPOUTS, colluders=plan.colluders, dropouts=plan.dropouts))
    return tuple(views)


def _view(plan: Plan, tier: str, silo: int, observer: str, *, colluders: int = 0, dropouts: int = 0) -> View:
    """Returns what an observer of a tier sees of a silo, with the worst coalition of each region against it."""
    federation, variance = plan.federation, plan.noise_variance
    missing: list[tuple[int, ...]] = []
    told: list[tuple[int, ...]] = []
    seen = plan.group_tier if tier == SILO and plan.aggregation == "masked" else tier
    if seen == SILO:
        left = float(variance[silo]) if plan.injection == "silo" else 0.0
    else:
        node_of, region_of = federation.membership(seen), federation.innermost.parent_of
        there = np.flatnonzero(node_of == node_of[silo])
        for region in np.unique(region_of[there]) if colluders or dropouts else ():
            others = [int(one) for one in there[region_of[there] == region] if one != silo]
            worst = tuple(sorted(others, key=lambda one: -variance[one]))
            missing.append(worst[:dropouts])
            told.append(worst[dropouts : dropouts + colluders])
        uncounted = {one for some in (*missing, *told) for one in some}
        left = math.fsum(float(variance[one]) for one in there.tolist() if one not in uncounted)
    claim = _claim(plan, tier, silo, colluders=colluders, dropouts=dropouts)
    return View(
        observer=observer,
        colluders=tuple(one for some in told for one in some),
        missing=tuple(one for some in missing for one in some),
        colluding=max(map(len, told), default=0),
        absent=max(map(len, missing), default=0),
        claim=claim,
        noise_std=math.sqrt(left) * plan.clip_norm,
        single=seen == SILO,
    )


def _claim(plan: Plan, tier: str, silo: int, *, colluders: int, dropouts: int) -> Claim:
    multiplier = float(plan.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)[silo])
    shift = float(shift_of(multiplier, rounds=plan.rounds, unit=plan.unit))
    delta = plan.target.accounted_delta
    by = {name: float(epsilon_of_shift(shift, delta=delta, accountant=name)) for name in ("exact", "renyi")}
    # What was released before this plan is in its epsilons, and cannot be replayed.
    stated = by[plan.accountant]
    if not plan.continues_previous_plan:
        stated = float(plan.epsilon(tier, colluders=colluders, dropouts=dropouts)[silo])
    return Claim(shift=shift, stated=stated, **by)


def known_signal(plan: Plan, silo: int) -> float:
    """Returns how far a silo's canary moves its region's sum once it is clipped and weighted."""
    weights: FloatArray = plan.federation.weights
    return float(weights[silo]) * plan.clip_norm


def silos_of(stage: Stage) -> IntArray:
    """Returns all silos of a stage, region by region."""
    return np.array([silo for members in stage.members.values() for silo in members], dtype=np.intp)
